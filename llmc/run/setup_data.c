/* What a run reads: the files of --train and --val. */
#include "setup.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/base/integers.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/comm/watchdog.h"
#include "llmc/base/terminal.h"

/* No --train, and its default is not there: says what the user left out, first of all of --resume. */
static bool fail_no_data(const Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (s->resume && !run->checkpoint[0])
        return fail(
            err, EXIT_INPUT,
            "--resume: --out %s holds no checkpoint, and a new run has nothing to train on: %s is not "
            "there; hint: another --out, or --train FILE",
            s->out, s->train);
    return fail(err, EXIT_INPUT,
                "--train is missing, and the default, %s, is not there; hint: --train FILE, %s", s->train,
                run->model_path[0] && !run->checkpoint[0] && !s->eval_only && !s->profile
                    ? "or --prompt TEXT for samples alone"
                : flags_was_set(s, "prompt") && !flags_was_set(s, "model")
                    ? "or --model DIR for samples of a trained model"
                    : "or make default-text");
}

/* The files of --train, or of --val; without --val a part of --train's validates. */
static DataLoader *open_data(const Run *run, Split part, Error *err) {
    const Settings *s = &run->settings;
    const bool training = part == SPLIT_TRAIN, own_val = !training && s->val;
    const bool first_alone = training && s->overfit; /* the first batch, on all ranks */
    const Ranks ranks = first_alone ? comm_alone.ranks : setup_data_ranks(run);
    DataOptions options = {
        .pattern = own_val ? s->val : s->train,
        .tokenizer = run->tokenizer,
        .no_tokenizer = run->no_tokenizer,
        .vocab_size = run->config.vocab_size,
        .B = (int)s->batch,
        .T = (int)s->seq,
        .ranks = ranks,
        .block = training ? s->tokens_per_step / (s->batch * s->seq * ranks.n_ranks) : 1,
        .shuffle = training,
        .seed = (uint64_t)s->seed,
        .pack = training && s->pack,
        .end_of_text = run->end_of_text,
        .split = s->val || dataloader_names_shards(s->train) ? SPLIT_ALL : part,
    };
    DataLoader *loader = dataloader_open(&options, err);
    if (!loader) fail_flag(own_val ? "val" : "train", err);
    return loader;
}

static bool check_pattern(const Run *run, const char *flag, const char *pattern, Error *err) {
    if (dataloader_check(pattern, err)) return true;
    if (!run->settings.data_of_run || flags_was_set(&run->settings, flag)) return fail_flag(flag, err);
    const Error cause = *err;
    const char *hint = strstr(cause.text, "; hint:");
    return fail(err, EXIT_INPUT,
                "--%s: the run's --%s: %.*s; hint: it may be meant from the folder that the run was started "
                "in; --%s PATH",
                run->checkpoint[0] ? "resume" : "eval-only", flag,
                hint ? (int)(hint - cause.text) : (int)strlen(cause.text), cause.text, flag);
}

bool setup_check_data(const Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (settings_model_alone(s) || settings_scores_alone(s)) return true;
    if (s->resume && !s->is_complete && !flags_was_set(s, "train"))
        return true; /* a checkpoint may name it */
    const bool reads_train = !s->eval_only || !s->val;
    const bool is_default = !flags_was_set(s, "train") && !s->data_of_run;
    if (reads_train && is_default && access(s->train, F_OK)) return fail_no_data(run, err);
    if (reads_train && !check_pattern(run, "train", s->train, err)) return false;
    return !s->val || check_pattern(run, "val", s->val, err);
}

/* Batches that read all windows of the validation data. */
static int64_t whole_validation(const Run *run) {
    return ceil_div(dataloader_epoch(run->val), run->settings.batch);
}

/* The default --eval-batches reads a short validation text once, not over and over. */
static void limit_eval_batches(Run *run) {
    Settings *s = &run->settings;
    const int64_t batches = whole_validation(run);
    const bool as_in_run = s->data_of_run && !flags_was_set(s, "batch") && !flags_was_set(s, "seq");
    if (!flags_was_set(s, "eval-batches") && !as_in_run && s->eval_batches > batches)
        s->eval_batches = batches;
}

static bool is_trained_on(const Run *run, const char *file) {
    struct stat info, of_train;
    bool found = false;
    if (stat(file, &info) != 0) return false;
    for (int i = 0; !found && i < dataloader_n_files(run->train); i++)
        found = stat(dataloader_file(run->train, i), &of_train) == 0 && is_same_file(&of_train, &info);
    return found;
}

/* A wide pattern for --train takes the validation shard in. */
static void note_shared_file(const Run *run) {
    for (int i = 0; i < dataloader_n_files(run->val); i++) {
        const char *file = dataloader_file(run->val, i);
        if (!is_trained_on(run, file)) continue;
        print_note("%s is in --val and in --train: the validation loss includes training data", file);
        return;
    }
}

bool setup_fail_val(const Run *run, Error *err) {
    return fail_flag(run->settings.val ? "val" : "train", err);
}

/* What is no UTF-8, Latin-1 say, is trained on all the same, byte by byte: the first such place is named. */
static void note_not_utf8(const DataLoader *loader) {
    int n = 0, first = 0;
    for (int i = dataloader_n_files(loader) - 1; i >= 0; i--)
        if (dataloader_not_utf8(loader, i) >= 0) first = i, n++;
    if (n > 0)
        print_note("%s is no UTF-8 from byte %lld on%s: its bytes are taken as they are; hint: iconv -f "
                   "ISO-8859-1 -t UTF-8, if it is Latin-1",
                   dataloader_file(loader, first), (long long)dataloader_not_utf8(loader, first),
                   n > 1 ? ", nor are other files" : "");
}

static bool is_json(const char *file) {
    static const char *const endings[] = {".json", ".jsonl", ".ndjson"};
    const char *dot = strrchr(file, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0) return true;
    return false;
}

/* Braces and names of fields would be learned, too. */
static void note_json(const DataLoader *loader) {
    for (int i = 0; i < dataloader_n_files(loader); i++) {
        const char *file = dataloader_file(loader, i);
        if (!is_json(file)) continue;
        print_note("%s is read as plain text, with all that is JSON in it; hint: data/text.py makes shards "
                   "of the texts in lines of JSON (.jsonl)",
                   file);
        return;
    }
}

/* No text becomes the token that ends a document. */
static void note_text_for_documents(const Run *run) {
    const Settings *s = &run->settings;
    if (!s->pack && !run->config.documents) return;
    for (int i = 0; i < dataloader_n_sources(run->train); i++) {
        const DataSource source = dataloader_source(run->train, i, 0);
        if (!source.is_text) continue;
        print_note(
            "--%s: plain text has no end-of-text tokens, so %s is one document; hint: data/text.py makes "
            "shards of it in which each file is one",
            s->pack ? "pack" : "documents", source.pattern);
        return;
    }
}

/* A validation that was asked to read the same again; of a mixture each source says how often it is read. */
static void note_repeats(const Run *run) {
    const Settings *s = &run->settings;
    const int64_t once = whole_validation(run);
    if (!flags_was_set(s, "eval-batches") || s->eval_batches <= once || dataloader_n_sources(run->val) > 1)
        return;
    print_note("--eval-batches %lld: the validation data, %lld windows of %lld tokens, are read %.3g times; "
               "hint: --eval-batches %lld reads all",
               (long long)s->eval_batches, (long long)dataloader_epoch(run->val), (long long)s->seq,
               (double)(s->eval_batches * s->batch) / (double)dataloader_epoch(run->val), (long long)once);
}

static bool open_choices(Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (!s->hellaswag) return true;
    run->choices = choices_open(s->hellaswag, run->config.vocab_size,
                                run->tokenizer ? tokenizer_vocab_size(run->tokenizer) : 0, err);
    return (run->choices && choices_plan(&run->choice_plan, run->choices, (int)s->batch, (int)s->seq, err)) ||
           fail_flag("hellaswag", err);
}

/* Of each source of a mixture, and how often the run will read it. */
static void print_sources(const char *label, const DataLoader *loader, int64_t n_windows) {
    const int n = dataloader_n_sources(loader);
    char number[FORMAT_NUMBER];
    console_row(stdout, label, "mixture of %d sources, %s tokens", n,
                format_integer(number, dataloader_n_tokens(loader)));
    for (int i = 0; i < n; i++) {
        const DataSource source = dataloader_source(loader, i, n_windows);
        console_row(stdout, "", "%.6g %% %s: %s, read %.3g times", 100 * source.share, source.pattern,
                    source.description, source.epochs);
    }
}

static void print_data(const char *label, const DataLoader *loader, int64_t n_windows) {
    if (loader && dataloader_n_sources(loader) > 1)
        print_sources(label, loader, n_windows);
    else if (loader)
        console_row(stdout, label, "%s: %s", dataloader_source(loader, 0, 0).pattern,
                    dataloader_description(loader));
}

/* Still to be trained on. */
static int64_t tokens_left(const Run *run) {
    const Settings *s = &run->settings;
    return (s->steps - run->resumed.step) * s->tokens_per_step;
}

int64_t setup_run_tokens(const Run *run) {
    return run->resumed.tokens_seen + tokens_left(run);
}

void setup_print_data(const Run *run) {
    const Settings *s = &run->settings;
    const int64_t of_run = s->overfit ? s->batch : run->resumed.data_position + tokens_left(run) / s->seq;
    print_data("train", run->train, of_run);
    print_data("validation", run->val, s->eval_batches * s->batch);
}

void setup_print_choices(const Run *run) {
    const Choices *choices = run->choices;
    char items[FORMAT_NUMBER], endings[FORMAT_NUMBER], cut[80] = "";
    if (!choices) return;
    if (run->choice_plan.n_cut)
        snprintf(cut, sizeof cut, "; %d items are longer than --seq: their beginning is left out",
                 run->choice_plan.n_cut);
    console_row(stdout, "hellaswag", "%s items, %s endings: %s%s", format_integer(items, choices->n_items),
                format_integer(endings, choices->n_rows), choices->path, cut);
}

bool setup_data(Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (settings_model_alone(s)) return true;
    const int32_t *tokens, *targets;
    dataloader_on_wait = watchdog_waits_for_disk;
    if (!open_choices(run, err)) return false;
    if (settings_scores_alone(s)) return true;
    if (!s->eval_only && !(run->train = open_data(run, SPLIT_TRAIN, err))) return false;
    if (run->train) note_not_utf8(run->train);
    if (run->train) note_json(run->train);
    if (run->train) note_text_for_documents(run);
    if (!settings_has_validation(s)) return true;
    if (!(run->val = open_data(run, SPLIT_VAL, err))) return false;
    if (s->val || !run->train) {
        note_not_utf8(run->val);
        note_json(run->val);
    }
    if (s->val && run->train) note_shared_file(run);
    limit_eval_batches(run);
    note_repeats(run);
    /* Bad validation data ends the run now, not after hours. */
    return dataloader_next(run->val, &tokens, &targets, err) || setup_fail_val(run, err);
}

/* ---- the same on all ranks ---- */

enum { TRAIN_TOKENS, VAL_TOKENS, ITEMS, SIZES, TRAIN_TEXT = SIZES, VAL_TEXT, COMPARED };

/* What rank `rank` has opened is not what rank 0 has. */
static bool fail_other_data(const Run *run, int rank, int what, const int64_t sizes[2], Error *err) {
    static const char *const named[COMPARED] = {"tokens of --train", "tokens to validate",
                                                "items of --hellaswag", "tokens of --train",
                                                "tokens to validate"};
    static const char hint[] = "hint: whole files that are the same on every host";
    char numbers[2][FORMAT_NUMBER], names[2][RANK_NAME_BYTES];
    rank_name(names[0], &run->rendezvous, rank);
    rank_name(names[1], &run->rendezvous, 0);
    if (what >= SIZES)
        return fail(err, EXIT_INPUT, "%s has opened other %s than %s, though as many; %s", names[0],
                    named[what], names[1], hint);
    return fail(err, EXIT_INPUT, "%s has opened %s %s, %s %s; %s", names[0],
                format_integer(numbers[0], sizes[0]), named[what], names[1],
                format_integer(numbers[1], sizes[1]), hint);
}

/* Copies on two hosts, or a file that grows meanwhile: ranks would mix their windows up, and wait without end for those
 * that have fewer batches to validate. */
bool setup_same_data(const Run *run, Error *err) {
    const DataLoader *train = run->train, *val = run->val;
    const int64_t mine[COMPARED] = {
        [TRAIN_TOKENS] = train ? dataloader_n_tokens(train) : 0,
        [VAL_TOKENS] = val ? dataloader_n_tokens(val) : 0,
        [ITEMS] = run->choices ? run->choices->n_items : 0,
        [TRAIN_TEXT] = train ? dataloader_fingerprint(train) : 0,
        [VAL_TEXT] = val ? dataloader_fingerprint(val) : 0,
    };
    Comm *comm = run->comm;
    const int n = comm->ranks.n_ranks;
    int64_t(*all)[COMPARED] = must_allocate((size_t)n * sizeof mine, "the sizes of all ranks' data");
    bool ok = true;
    comm->gather_on_host(comm, all, mine, sizeof mine);
    for (int rank = 1; rank < n; rank++)
        for (int what = 0; ok && what < COMPARED; what++)
            if (all[rank][what] != all[0][what])
                ok = fail_other_data(run, rank, what, (int64_t[]){all[rank][what], all[0][what]}, err);
    free(all);
    return ok;
}
