/* How text becomes tokens in a run. Text is encoded only by the model's own tokenizer or by the one that --tokenizer
 * names; for a new model on text bytes are the tokens. Token shards need none; the one that the data scripts write
 * beside them shows samples as text. One in the shards' folder is theirs: a new model is of its size, and no other may
 * be named. One in the folder above may be that of other shards: a named one goes before it, and so does that of a run
 * on its own data, and a new model takes GPT-2's alone. Nothing depends on the working directory. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "setup.h"

/* The origins that a reader of the header sees. */
static const char *const by_flag = "--tokenizer", *const by_model = "the model's own",
                         *const by_data = "beside the shards", *const by_default = "the default for text";

static bool open_tokenizer(Run *run, const char *spec, const char *origin, Error *err) {
    run->tokenizer = tokenizer_open(spec, err);
    run->tokenizer_origin = origin;
    return run->tokenizer != NULL;
}

/* FOLDER/gpt2_tokenizer.bin into path (PATH_MAX bytes); "" where there is none. */
static bool find_in(char *path, const char *folder, Error *err) {
    struct stat info;
    if (!path_join(path, folder, GPT2_TOKENIZER_FILE, err)) return false;
    if (lstat(path, &info) != 0) *path = 0;
    return true;
}

/* That of a shard: in its folder. */
static bool find_beside(char *path, const char *shard, Error *err) {
    char folder[PATH_MAX];
    path_parent(folder, shard);
    return find_in(path, folder, err);
}

/* In the folder above a shard's, where the data scripts write it for all that lie below. */
static bool find_above(char *path, const char *shard, Error *err) {
    char folder[PATH_MAX], above[PATH_MAX];
    path_parent(folder, shard);
    return path_join(above, folder, "..", err) && find_in(path, above, err);
}

/* Its ids must be the model's. path "": there is none. */
static bool open_beside(Run *run, const char *path, const char *origin, Error *err) {
    const bool has_files = run->model_path[0];
    const int vocab_size = has_files ? run->config.vocab_size : GPT2_VOCAB;
    if (!*path) return true;
    if (!open_tokenizer(run, path, origin, err)) return false;
    const int n = tokenizer_vocab_size(run->tokenizer);
    if (n == vocab_size || (has_files && tokenizer_fits(run->tokenizer, vocab_size))) return true;
    if (has_files)
        return fail(err, EXIT_INPUT,
                    "the tokenizer %s has %d tokens, the model of %s %d: their ids cannot be the same; hint: "
                    "--tokenizer names another, or move it away",
                    path, n, run->model_path, vocab_size);
    return fail(
        err, EXIT_INPUT,
        "the tokenizer %s has %d tokens, a new model on shards %d; hint: --tokenizer %s makes the model "
        "of its size, or move it away",
        path, n, vocab_size, path);
}

/* The tokenizer in the model's folder; beside an llm.c .bin. None is no failure here: shards need none. */
static bool open_models_own(Run *run, Error *err) {
    const char *path = run->model_path, *flag = run->checkpoint[0] ? "resume" : "model";
    char folder[PATH_MAX], beside[PATH_MAX];
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        if (tokenizer_is_in(path)) return open_tokenizer(run, path, by_model, err) || fail_flag(flag, err);
        if (!directory_has(path, "config.json")) /* a run beside removed it meanwhile */
            return fail(err, EXIT_INPUT, "--%s: %s: there no more", flag, path);
        snprintf(run->no_tokenizer, sizeof run->no_tokenizer,
                 "%.800s has no tokenizer.bin, tokenizer.json, or vocab.json and merges.txt", path);
        return true;
    }
    path_parent(folder, path);
    if (!find_in(beside, folder, err) || !open_beside(run, beside, by_model, err))
        return fail_flag(flag, err);
    if (!run->tokenizer)
        snprintf(run->no_tokenizer, sizeof run->no_tokenizer, "%.800s has none, and there is no %s beside it",
                 path, GPT2_TOKENIZER_FILE);
    return true;
}

static bool open_beside_shards(Run *run, const char *shard, Error *err) {
    char folder[PATH_MAX], path[PATH_MAX];
    path_parent(folder, shard);
    if (!find_beside(path, shard, err)) return fail_flag("train", err);
    if (*path && !run->model_path[0])
        return open_tokenizer(run, path, by_data, err) || fail_flag("train", err);
    if ((!*path && !find_above(path, shard, err)) || !open_beside(run, path, by_data, err))
        return fail_flag("train", err);
    if (!run->tokenizer && !run->model_path[0])
        snprintf(run->no_tokenizer, sizeof run->no_tokenizer, "there is no %s in %.800s or above it",
                 GPT2_TOKENIZER_FILE, folder);
    return true;
}

/* --tokenizer's; of a folder where the data scripts wrote one, theirs. */
static bool open_named(Run *run, Error *err) {
    const char *spec = run->settings.tokenizer;
    char path[PATH_MAX];
    if (access(spec, F_OK) != 0 && strcmp(spec, "bytes") != 0) {
        if (errno != ENOENT && errno != ENOTDIR) return fail_errno(err, "cannot open", spec);
        return fail(err, EXIT_INPUT,
                    "%s: no such file or folder; hint: bytes, or a tokenizer's file: make "
                    "data/tinyshakespeare writes data/%s",
                    spec, GPT2_TOKENIZER_FILE);
    }
    if (directory_has(spec, GPT2_TOKENIZER_FILE) && !tokenizer_is_in(spec))
        return path_join(path, spec, GPT2_TOKENIZER_FILE, err) && open_tokenizer(run, path, by_flag, err);
    return open_tokenizer(run, spec, by_flag, err);
}

static bool find_tokenizer(Run *run, Error *err) {
    const Settings *s = &run->settings;
    char first[PATH_MAX];
    if (s->tokenizer) return open_named(run, err) || fail_flag("tokenizer", err);
    if (run->model_path[0] && !open_models_own(run, err)) return false;
    if (run->tokenizer || (run->model_path[0] && settings_model_alone(s))) return true;
    bool is_shard;
    const bool found = dataloader_first_file(s->train, first, &is_shard);
    if (is_shard) return open_beside_shards(run, first, err);
    if (!found && dataloader_names_shards(s->train)) {
        snprintf(run->no_tokenizer, sizeof run->no_tokenizer, "there is no %s yet", s->train);
        return true;
    }
    return run->model_path[0] || open_tokenizer(run, "bytes", by_default, err);
}

/* A model's own files may have any ids past the tokenizer's. */
static bool check_size(const Run *run, Error *err) {
    if (!run->tokenizer || !run->model_path[0]) return true;
    const int n = tokenizer_vocab_size(run->tokenizer), n_model = run->config.vocab_size;
    if (tokenizer_fits(run->tokenizer, n_model) || (run->tokenizer_origin == by_model && n < n_model))
        return true;
    const bool named = run->tokenizer_origin == by_flag;
    fail(err, EXIT_INPUT,
         "the tokenizer %s has %d tokens, the model of %s %d: their ids cannot be the same; hint: %s",
         tokenizer_source(run->tokenizer), n, run->model_path, n_model,
         named ? "without --tokenizer the model takes its own" : "--tokenizer names another");
    return fail_flag(named ? "tokenizer" : run->checkpoint[0] ? "resume" : "model", err);
}

/* Tokenizers of one size may still differ: a model does not know the words of another's. The flag says whose is
 * wrong: that of --tokenizer, or `spec` beside the flag's shards. `spec` that cannot be read is compared with
 * nothing. */
static bool check_tokens(const Run *run, const char *flag, const char *spec, const char *hint, Error *err) {
    Error unread = {0};
    if (strcmp(spec, tokenizer_source(run->tokenizer)) == 0) return true;
    Tokenizer *other = tokenizer_open(spec, &unread);
    const bool named = strcmp(flag, "tokenizer") == 0, is_models = named || run->tokenizer_origin == by_model;
    const int first = other ? tokenizer_first_other(run->tokenizer, other) : -1;
    if (first >= 0)
        fail(err, EXIT_INPUT,
             "--%s: the tokenizer %s has other tokens than %s%s, the first under id %d; hint: %s", flag,
             tokenizer_source(named ? run->tokenizer : other), is_models ? "the model of " : "the run's, ",
             is_models ? run->model_path : tokenizer_source(run->tokenizer), first, hint);
    tokenizer_close(other);
    return first < 0;
}

/* The tokenizer in a shard's own folder is that of the shard. */
static bool check_own(const Run *run, const char *flag, const char *path, Error *err) {
    const bool is_choice = run->tokenizer_origin == by_flag && !run->model_path[0];
    char hint[PATH_MAX + 64];
    snprintf(hint, sizeof hint,
             is_choice ? "--tokenizer %s, or move it away"
                       : "move it away, where the shards have the tokens of %s",
             is_choice ? path : tokenizer_source(run->tokenizer));
    return check_tokens(run, flag, path, hint, err);
}

/* One in the folder above counts where the command names the data and no tokenizer. A run that was begun with
 * --tokenizer goes on, and is evaluated, without a word. */
static bool check_above(const Run *run, const char *flag, const char *shard, Error *err) {
    char path[PATH_MAX], hint[PATH_MAX + 64];
    if (run->tokenizer_origin == by_flag || !flags_was_set(&run->settings, flag)) return true;
    if (!find_above(path, shard, err)) return false;
    snprintf(hint, sizeof hint, "--tokenizer %s, where the shards have its tokens",
             tokenizer_source(run->tokenizer));
    return !*path || check_tokens(run, flag, path, hint, err);
}

/* The shards of each source, and the tokenizer that they were made with, where it lies beside or above them. */
static bool check_shards(const Run *run, const char *flag, const char *pattern, Error *err) {
    char first[PATH_MAX], path[PATH_MAX];
    bool is_shard;
    for (int i = 0; dataloader_source_file(pattern, i, first, &is_shard); i++) {
        if (!is_shard) continue;
        if (!find_beside(path, first, err)) return false;
        if (!(*path ? check_own(run, flag, path, err) : check_above(run, flag, first, err))) return false;
    }
    return true;
}

/* The model's own beside the one that --tokenizer names; the run's beside those that shards were made with. */
static bool check_others(const Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (!run->tokenizer) return true;
    if (run->tokenizer_origin == by_flag && run->model_path[0] && tokenizer_is_in(run->model_path) &&
        !check_tokens(run, "tokenizer", run->model_path, "without it the model takes its own", err))
        return false;
    if (settings_model_alone(s) || settings_scores_alone(s)) return true;
    return ((s->eval_only && s->val) || check_shards(run, "train", s->train, err)) &&
           (!s->val || check_shards(run, "val", s->val, err));
}

bool setup_tokenizer(Run *run, Error *err) {
    const char *prompt = setup_prompt_text(run);
    if (!find_tokenizer(run, err) || !check_size(run, err) || !check_others(run, err)) return false;
    const bool chats = run->settings.chat, encodes = chats || (prompt && *prompt);
    if (run->tokenizer || !encodes) return true;
    return fail(err, EXIT_INPUT, "--%s: there is no tokenizer to encode it: %s; hint: --tokenizer %s",
                chats ? "chat" : "prompt", run->no_tokenizer,
                run->config.vocab_size == 256 ? "bytes" : "PATH");
}

void setup_print_tokenizer(const Run *run) {
    const Tokenizer *tokenizer = run->tokenizer;
    if (!tokenizer)
        console_row(setup_header(run), "tokenizer", "none: samples are token ids; %s", run->no_tokenizer);
    else if (strcmp(tokenizer_source(tokenizer), "bytes") == 0)
        console_row(setup_header(run), "tokenizer", "bytes (256 tokens), %s", run->tokenizer_origin);
    else
        console_row(setup_header(run), "tokenizer", "%s, %s: %s", tokenizer_name(tokenizer),
                    run->tokenizer_origin, tokenizer_source(tokenizer));
}
