#include "setup.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/checkpoint/manifest.h"

bool setup_backend(Run *run, Error *err) {
    Settings *s = &run->settings;
    const bool built = ops_cuda_bf16 != NULL, present = cuda_available();
    const bool use_cuda =
        !s->export_path && (s->device == DEVICE_CUDA || (s->device == DEVICE_AUTO && present));
    if (s->device == DEVICE_CUDA && !built)
        return fail(err, EXIT_INPUT,
                    "--device cuda: this program was built for the CPU alone; hint: make train_gpt2cu");
    if (s->device == DEVICE_CUDA && !present && !s->memory)
        return fail(err, EXIT_INPUT,
                    "--device cuda: no CUDA device or no driver found; hint: nvidia-smi, or --device cpu");
    run->cpu_instead = s->device == DEVICE_AUTO && built && !present && !s->export_path;
    settings_complete(s, use_cuda, run->comm->ranks.n_ranks);
    run->ops = !use_cuda ? &ops_cpu : s->precision == PRECISION_FP32 ? ops_cuda_fp32 : ops_cuda_bf16;
    setup_plan_exchange(run, &run->planned_ranks);
    return true;
}

/* ---- the prompt ---- */

enum { PROMPT_MOST = 64 << 20 }; /* bytes of --prompt-file */

/* Stdin to its end, malloc'ed, with a null behind. */
static char *read_stdin(size_t *size, Error *err) {
    char *text = malloc(PROMPT_MOST + 2); /* what is not written to takes no memory */
    if (!text) {
        fail(err, EXIT_RUN, "stdin: no memory for %d bytes", PROMPT_MOST);
        return NULL;
    }
    *size = fread(text, 1, PROMPT_MOST + 1, stdin);
    text[*size] = 0;
    if (ferror(stdin))
        fail_stdin(err);
    else if (*size > PROMPT_MOST)
        fail(err, EXIT_INPUT, "stdin: expected at most %d bytes, found more", PROMPT_MOST);
    else
        return text;
    free(text);
    return NULL;
}

bool setup_prompt(Run *run, Error *err) {
    const Settings *s = &run->settings;
    size_t size;
    char none[1];
    if (s->chat && read(STDIN_FILENO, none, 0) < 0) return fail_stdin(err) || fail_flag("chat", err);
    if (!s->prompt_file) return true;
    run->prompt = strcmp(s->prompt_file, "-") == 0 ? read_stdin(&size, err)
                                                   : file_read(s->prompt_file, PROMPT_MOST, &size, err);
    if (!run->prompt) return fail_flag("prompt-file", err);
    return strlen(run->prompt) == size ||
           fail(err, EXIT_INPUT, "--prompt-file: %s: byte %zu is 0, expected text", s->prompt_file,
                strlen(run->prompt));
}

/* ---- model size ---- */

static void override_size(GPT2Config *config, const Settings *s) {
    if (s->layers) config->n_layer = (int)s->layers;
    if (s->heads) config->n_head = (int)s->heads;
    if (s->channels) config->n_embd = (int)s->channels;
}

/* Of what attention sees, what the flags say; a pattern in place of the window or documents of a model's files, or the other
 * way round, must be asked for. */
static bool config_sparse(Run *run, Error *err) {
    GPT2Config *c = &run->config;
    Settings *s = &run->settings;
    if (s->sparse && !sparse_read(&c->sparse, s->sparse))
        return fail(
            err, EXIT_INPUT,
            "--sparse '%s': expected W,G,R: tokens of the window, 64 or more, tokens at the start, both in "
            "multiples of 64, and a number of random blocks; hint: --sparse 256,64,2",
            s->sparse);
    if (!s->sparse && c->sparse.window) s->sparse = sparse_text(run->sparse, sizeof run->sparse, c->sparse);
    const bool joined = c->sparse.window && (c->window || c->documents);
    return !joined ||
           fail(err, EXIT_INPUT,
                "--sparse and %s: each says alone what attention sees; hint: leave one of them out%s",
                c->window ? "--window" : "--documents",
                run->model_path[0] ? ", or --window 0, --documents 0 or --sparse 0 against the model's files"
                                   : "");
}

/* What the flags say of the computation; of a window, documents and blocks that they leave open, the model's files. */
static bool config_options(Run *run, Error *err) {
    Settings *s = &run->settings;
    if (flags_was_set(s, "window"))
        run->config.window = (int)s->window;
    else
        s->window = run->config.window;
    if (flags_was_set(s, "documents"))
        run->config.documents = s->documents;
    else
        s->documents = run->config.documents;
    run->config.dropout = (float)s->dropout;
    return config_sparse(run, err);
}

static bool config_from_flags(Run *run, Error *err) {
    const Settings *s = &run->settings;
    override_size(&run->config, s);
    if (!config_options(run, err)) return false;
    run->config.max_seq_len = (int)s->seq;
    run->config.vocab_size = run->tokenizer ? tokenizer_vocab_size(run->tokenizer) : GPT2_VOCAB;
    run->config.padded_vocab_size = gpt2_pad_vocab(run->config.vocab_size);
    return true;
}

/* The flags that made the size, for a message: "--channels 100 --heads 3". Returns text. */
static const char *size_flags(const Settings *s, char *text, size_t size) {
    const long long channels = s->channels, heads = s->heads;
    if (channels && heads)
        snprintf(text, size, "--channels %lld --heads %lld", channels, heads);
    else if (channels)
        snprintf(text, size, "--channels %lld", channels);
    else if (heads)
        snprintf(text, size, "--heads %lld", heads);
    else
        snprintf(text, size, "--model %s", s->model);
    return text;
}

/* Fills `path` with the model's files; of a descriptor it stays empty, and *config is its. */
static bool find_files(const char *model, GPT2Config *config, char *path, size_t size, Error *err) {
    *path = 0;
    if (gpt2_config_from_descriptor(config, model, err)) return true;
    if (access(model, F_OK) && errno == ENOENT) return false; /* with the names that there are */
    *err = (Error){0};
    return checkpoint_model_path(model, path, size, err) || fail_flag("model", err);
}

static bool are_same_files(const char *path, const char *other) {
    struct stat info, other_info;
    return strcmp(path, other) == 0 ||
           (stat(path, &info) == 0 && stat(other, &other_info) == 0 && is_same_file(&info, &other_info));
}

/* The size of --model beside a checkpoint, *asked. Files that the run began with may have gone; others must be there,
 * and are not read for more than this. */
static bool asked_size(Run *run, GPT2Config *asked, Error *err) {
    const char *model = run->settings.model, *before = run->settings.model_of_run;
    char path[sizeof run->model_path];
    Error unused;
    if (gpt2_config_from_descriptor(asked, model, &unused)) return true;
    *asked = run->config;
    if (!before || are_same_files(model, before) || !ranks_leads(run->comm->ranks)) return true;
    if (!find_files(model, asked, path, sizeof path, err)) return false;
    if (are_same_files(path, run->checkpoint)) return true;
    run->unread_model = model;
    return checkpoint_read_config(path, asked, err) || fail_flag("model", err);
}

/* A size that the flags ask for must be the size that the files have. */
static bool same_size(Run *run, const char *path, Error *err) {
    const Settings *s = &run->settings;
    GPT2Config asked = run->config;
    if (run->checkpoint[0] && flags_was_set(s, "model") && !asked_size(run, &asked, err)) return false;
    override_size(&asked, s);
    if (asked.n_layer == run->config.n_layer && asked.n_head == run->config.n_head &&
        asked.n_embd == run->config.n_embd)
        return true;
    return fail(err, EXIT_INPUT,
                "the flags ask for %d layers, %d heads, %d channels, %s has %d, %d, %d; hint: %s",
                asked.n_layer, asked.n_head, asked.n_embd, path, run->config.n_layer, run->config.n_head,
                run->config.n_embd,
                run->checkpoint[0]
                    ? "leave the flags out, the checkpoint says its size, or another --out for a new run"
                    : "a model's files say its size, leave the flags out");
}

/* So that --resume goes on as the run was, and --eval-only gives the loss that it printed. */
static bool set_as_trained(Run *run, Error *err) {
    Manifest manifest;
    Error ignored;
    Settings *s = &run->settings;
    const int n_ranks = run->comm->ranks.n_ranks;
    bool ok = true;
    if (!manifest_read(&manifest, run->model_path, &ignored))
        return true; /* whose it is says what is wrong */
    const JsonValue *saved = manifest.state.flags ? manifest_flags(&manifest) : NULL;
    run->lacks_validation = isnan(manifest.state.val_loss);
    if (saved && run->checkpoint[0])
        ok = settings_resume_as(s, saved, n_ranks, err);
    else if (saved)
        settings_evaluate_as(s, saved, n_ranks);
    manifest_free(&manifest);
    return ok;
}

static bool config_from_path(Run *run, Error *err) {
    Settings *s = &run->settings;
    const char *path = run->model_path;
    if (!checkpoint_read_config(path, &run->config, err))
        return fail_flag(run->checkpoint[0] ? "resume" : "model", err);
    if (flags_was_set(s, "seq") && s->seq > run->config.max_seq_len)
        return fail(err, EXIT_INPUT,
                    "--seq %lld: the model of %s has a context of %d tokens; hint: --seq %d at most",
                    (long long)s->seq, path, run->config.max_seq_len, run->config.max_seq_len);
    if ((run->checkpoint[0] || s->eval_only) && !set_as_trained(run, err)) return false;
    if (!config_options(run, err)) return false;
    settings_limit_seq(s, run->config.max_seq_len, run->comm->ranks.n_ranks);
    s->is_complete = true;
    return flags_check(s, run->comm->ranks.n_ranks, err) && same_size(run, path, err);
}

static bool find_newest(Run *run, Error *err) {
    if (checkpoint_find(run->settings.out, run->checkpoint, sizeof run->checkpoint, &run->checkpoint_step,
                        err))
        return true;
    run->checkpoint[0] = 0;
    return err->exit_code == 0 /* none there: a new run */ || fail_flag("resume", err);
}

bool setup_find_checkpoint(Run *run, Error *err) {
    Comm *comm = run->comm;
    bool ok = true;
    if (!run->settings.resume) return true;
    if (ranks_leads(comm->ranks)) ok = find_newest(run, err);
    comm->broadcast_on_host(comm, &ok, sizeof ok);
    comm->broadcast_on_host(comm, run->checkpoint, sizeof run->checkpoint);
    comm->broadcast_on_host(comm, &run->checkpoint_step, sizeof run->checkpoint_step);
    return ok || ranks_leads(comm->ranks) ? ok : fail(err, EXIT_RUN, "rank 0 finds no checkpoint");
}

/* Fills run->model_path; of a descriptor it stays empty, and run->config is its. */
static bool find_model(Run *run, Error *err) {
    if (!run->checkpoint[0])
        return find_files(run->settings.model, &run->config, run->model_path, sizeof run->model_path, err);
    snprintf(run->model_path, sizeof run->model_path, "%s", run->checkpoint);
    return true;
}

bool setup_model_moved(Run *run) {
    char before[sizeof run->model_path];
    Error ignored;
    if (run->checkpoint[0] || !run->model_path[0] || !strcmp(run->model_path, run->settings.model))
        return false;
    snprintf(before, sizeof before, "%s", run->model_path);
    return checkpoint_model_path(run->settings.model, run->model_path, sizeof run->model_path, &ignored) &&
           strcmp(before, run->model_path) != 0;
}

static bool size_from_files(Run *run, Error *err) {
    while (!config_from_path(run, err) || !setup_tokenizer(run, err)) {
        tokenizer_close(run->tokenizer);
        run->tokenizer = NULL;
        if (!setup_model_moved(run)) return false;
    }
    return true;
}

static bool model_size(Run *run, Error *err) {
    char named[80];
    if (!setup_find_checkpoint(run, err) || !find_model(run, err)) return false;
    if (run->model_path[0]) return size_from_files(run, err);
    run->settings.is_complete = true;
    if (run->settings.resume && !flags_check(&run->settings, run->comm->ranks.n_ranks, err)) return false;
    if (!setup_tokenizer(run, err) || !config_from_flags(run, err)) return false;
    return gpt2_config_check(&run->config, size_flags(&run->settings, named, sizeof named), err);
}

/* Which token ends a document, where the model's files do not say. */
static bool end_of_documents(Run *run, Error *err) {
    const Settings *s = &run->settings;
    GPT2Config *c = &run->config;
    const bool by_flag = c->documents && flags_was_set(s, "documents");
    if (!by_flag && !s->pack) return true;
    run->end_of_text = c->documents && !by_flag   ? c->end_of_text
                       : run->tokenizer           ? tokenizer_eot(run->tokenizer)
                       : c->vocab_size > GPT2_EOT ? (int)GPT2_EOT
                                                  : -1;
    if (by_flag) c->end_of_text = run->end_of_text;
    return (run->end_of_text >= 0 && run->end_of_text < c->vocab_size) ||
           fail(err, EXIT_INPUT,
                "--%s: the tokenizer has no end-of-text token; expected one, documents end there; "
                "hint: data/text.py makes shards in which each of your files is a document",
                by_flag ? "documents" : "pack");
}

bool setup_model_size(Run *run, Error *err) {
    const Settings *s = &run->settings;
    const int size = (int)s->context_gpus;
    if (!model_size(run, err) || !end_of_documents(run, err)) return false;
    if (size == 1 || settings_model_alone(s)) return true;
    if (!run->context) {
        run->planned = comm_planned(size);
        setup_plan_exchange(run, &run->planned);
        run->context = &run->planned;
    }
    return gpt2_check_context(&run->config, (int)s->seq, size, err);
}

int64_t setup_model_step(const Run *run) {
    Manifest manifest;
    Error ignored;
    if (!run->model_path[0] || !manifest_read(&manifest, run->model_path, &ignored)) return 0;
    const int64_t step = manifest.state.step;
    manifest_free(&manifest);
    return step;
}

bool setup_owes_validation(const Run *run) {
    const Settings *s = &run->settings;
    return run->checkpoint[0] && run->lacks_validation && settings_has_validation(s) &&
           settings_validates_after(s, run->checkpoint_step);
}

bool setup_is_finished(const Run *run) {
    return run->checkpoint[0] && run->checkpoint_step >= run->settings.steps && !setup_owes_validation(run);
}

SaveOptions setup_save_options(const Run *run) {
    const Settings *s = &run->settings;
    return (SaveOptions){.keep = s->keep,
                         .keep_best = s->keep_best,
                         .validation = s->val ? s->val : s->train,
                         .model_only = s->model_only,
                         .replaces = settings_out_is_default(s)};
}

void setup_close(Run *run) {
    dataloader_close(run->train);
    dataloader_close(run->val);
    snapshot_close(&run->snapshot);
    choices_plan_free(&run->choice_plan);
    choices_close(run->choices);
    if (run->model.ops) gpt2_close(&run->model);
    tokenizer_close(run->tokenizer);
    free(run->prompt);
}
