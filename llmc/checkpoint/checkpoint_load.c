/* Finding and loading checkpoints, Hugging Face directories and llm.c files. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "checkpoint.h"
#include "checkpoint_directory.h"
#include "hf_config.h"
#include "hf_weights.h"
#include "llmc_bin.h"
#include "manifest.h"
#include "llmc/base/terminal.h"

/* ---- finding ---- */
/* What a path named, to see whether it still does: a run beside may rename or remove it at any time. */
typedef struct Identity {
    dev_t device;
    ino_t inode; /* 0: nothing is there */
} Identity;

static Identity identity_of(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (Identity){info.st_dev, info.st_ino} : (Identity){0};
}

static bool has_moved(const char *path, Identity before) {
    const Identity now = identity_of(path);
    struct stat info;
    return now.device != before.device || now.inode != before.inode || lstat(path, &info) != 0;
}

/* The index of the newest of the entries whose files are all as they were written; those before it have their
 * damage in `damage`. -1: none is. *moved: one was not there any more when it was read. */
static int find_whole(const char *out, const CheckpointEntry *entries, int n, bool with_optimizer,
                      char path[PATH_MAX], Error *damage, bool *moved) {
    *moved = false;
    for (int i = 0; i < n && !*moved; i++) {
        if (!path_join(path, out, entries[i].name, &damage[i])) continue;
        const Identity before = identity_of(path);
        if (checkpoint_is_whole(out, entries[i].name, with_optimizer, &damage[i])) return i;
        *moved = has_moved(path, before);
    }
    return -1;
}

/* None of n > 0 checkpoints is whole: the newest one's damage says why. */
static bool fail_damaged(const char *out, int n, bool with_optimizer, const Error *damage, Error *err) {
    return fail(err, EXIT_INPUT,
                "%s: expected a whole checkpoint, found %d that cannot be used, the newest: %s%s", out, n,
                damage->text, with_optimizer ? "; hint: another --out begins a new run" : "");
}

/* One look at the folder: the newest whole checkpoint, the damaged ones before it named on stderr. */
static bool look_for_newest(const char *out, bool with_optimizer, char path[PATH_MAX], int64_t *step,
                            bool *moved, Error *err) {
    CheckpointEntry *entries;
    int n, found = -1;
    *moved = false;
    if (!checkpoint_entries(out, &entries, &n, err)) return false;
    Error *damage = calloc((size_t)n + 1, sizeof *damage);
    if (damage) found = find_whole(out, entries, n, with_optimizer, path, damage, moved);
    for (int i = 0; i < found; i++) print_line(stderr, "warning: checkpoint skipped: %s", damage[i].text);
    *err = (Error){0};
    if (!damage)
        fail(err, EXIT_RUN, "%s: no memory to look at its checkpoints", out);
    else if (found >= 0)
        *step = entries[found].step;
    else if (n > 0)
        fail_damaged(out, n, with_optimizer, &damage[0], err);
    free(damage);
    free(entries);
    return found >= 0;
}

/* Newest whole checkpoint. Where a run beside removes what is looked at, it has saved a newer one: once more. */
static bool find_newest(const char *out, bool with_optimizer, char path[PATH_MAX], int64_t *step,
                        Error *err) {
    enum { MAX_TRIES = 1000 };
    bool found = false, moved = true;
    for (int i = 0; moved && i < MAX_TRIES; i++)
        found = look_for_newest(out, with_optimizer, path, step, &moved, err);
    return found;
}

bool checkpoint_find(const char *out, char *path, size_t path_size, int64_t *step, Error *err) {
    char found[PATH_MAX];
    struct stat info;
    *err = (Error){0};
    if (stat(out, &info) != 0 && errno == ENOENT) return false;
    if (!find_newest(out, true, found, step, err)) return false;
    return snprintf(path, path_size, "%s", found) < (int)path_size ||
           fail(err, EXIT_INPUT, "%s: the path is longer than %zu bytes", found, path_size - 1);
}

/* ---- weights ---- */
/* llm.c's .bin; else a directory. */
static bool is_bin(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

/* A file with config.json beside it that is no .bin: *directory = where it lies. */
static bool is_part_of_model(char directory[PATH_MAX], const char *path) {
    path_parent(directory, path);
    return text_ends_in(path, ".safetensors") && directory_has(directory, "config.json");
}

/* No model: names what the folder has one of, a run. */
static bool fail_no_model(const char *path, Error *err) {
    char **names, below[PATH_MAX], run[PATH_MAX + 16] = "";
    int n;
    Error ignored;
    if (directory_list(path, "", &names, &n, &ignored)) {
        for (int i = 0; i < n && !*run; i++) {
            CheckpointEntry *entries = NULL;
            int n_entries = 0;
            if (!path_join(below, path, names[i], &ignored) ||
                !checkpoint_entries(below, &entries, &n_entries, &ignored))
                continue;
            if (n_entries > 0) snprintf(run, sizeof run, "--model %s, or ", below);
            free(entries);
        }
        names_free(names, n);
    }
    return fail(
        err, EXIT_INPUT,
        "%s: expected config.json or step_* directories, found neither; hint: %sa checkpoint, a run's "
        "folder or a Hugging Face directory",
        path, run);
}

/* What --model names: a .bin, a directory with a model, or a run's folder, which stands for its newest
 * checkpoint. */
static bool resolve(char model[PATH_MAX], const char *path, Error *err) {
    struct stat info;
    int64_t step;
    if (stat(path, &info)) return fail_errno(err, "cannot open", path);
    if (S_ISREG(info.st_mode) && is_part_of_model(model, path))
        return fail(err, EXIT_INPUT, "%s: expected a model, found a file of one; hint: --model %s", path,
                    model);
    if (!S_ISDIR(info.st_mode) || directory_has(path, "config.json")) return path_copy(model, path, err);
    if (find_newest(path, false, model, &step, err)) return true;
    if (err->exit_code) return false;
    return fail_no_model(path, err);
}

static bool read_config(const char *model, GPT2Config *config, Error *err) {
    char path[PATH_MAX];
    if (is_bin(model)) return llmc_bin_read_config(model, config, err);
    return path_join(path, model, "config.json", err) && hf_config_read(path, config, err);
}

bool checkpoint_model_path(const char *path, char *resolved, size_t size, Error *err) {
    char model[PATH_MAX];
    if (!resolve(model, path, err)) return false;
    if (snprintf(resolved, size, "%s", model) < (int)size) return true;
    return fail(err, EXIT_INPUT, "--model: the path is longer than %zu bytes", size);
}

bool checkpoint_read_config(const char *path, GPT2Config *config, Error *err) {
    char model[PATH_MAX];
    return resolve(model, path, err) && read_config(model, config, err);
}

static bool check_same_config(const char *path, const GPT2Config *a, const GPT2Config *b, Error *err) {
    const struct {
        const char *name;
        int expected, found;
    } fields[] = {
        {"max_seq_len", b->max_seq_len, a->max_seq_len},
        {"vocab_size",  b->vocab_size,  a->vocab_size },
        {"n_layer",     b->n_layer,     a->n_layer    },
        {"n_head",      b->n_head,      a->n_head     },
        {"n_embd",      b->n_embd,      a->n_embd     },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].expected != fields[i].found)
            return fail(err, EXIT_INPUT, "%s: expected %s %d as in the open model, found %d", path,
                        fields[i].name, fields[i].expected, fields[i].found);
    return true;
}

/* Checksums of what is about to be loaded, where the directory has them: a Hugging Face directory has none. */
static bool verify_model_files(const char *directory, Error *err) {
    Manifest manifest;
    if (!directory_has(directory, MANIFEST_NAME)) return true;
    if (!manifest_read(&manifest, directory, err)) return false;
    bool ok = manifest_verify_once(&manifest, false, err);
    manifest_free(&manifest);
    return ok;
}

/* Weights of a source whose checksums hold. */
static bool load_weights(const char *source, GPT2 *model, Error *err) {
    GPT2Config config;
    if (!read_config(source, &config, err)) return false;
    if (!check_same_config(source, &config, &model->config, err)) return false;
    return is_bin(source) ? llmc_bin_load_weights(source, model, err) : hf_weights_load(source, model, err);
}

bool checkpoint_load_weights(const char *path, GPT2 *model, Error *err) {
    char source[PATH_MAX];
    return resolve(source, path, err) && (is_bin(source) || verify_model_files(source, err)) &&
           load_weights(source, model, err);
}

/* ---- resume ---- */
/* The states are those of the run's optimizer. Checkpoints of earlier programs do not say: AdamW's. */
static bool check_optimizer(const Manifest *manifest, const GPT2 *model, Error *err) {
    const JsonValue *saved = json_get(manifest_flags(manifest), "optimizer");
    const char *const names[N_OPTIMIZERS] = OPTIMIZER_FLAGS, *now = names[model->options.optimizer];
    const char *before = json_is(saved, JSON_STRING) ? saved->text : names[OPTIMIZER_ADAMW];
    return strcmp(before, now) == 0 || fail(err, EXIT_INPUT,
                                            "%s: expected the states of --optimizer %s, found those of "
                                            "%.20s; hint: --optimizer %.20s, or its "
                                            "weights alone by --model",
                                            manifest->directory, now, before, before);
}

static bool load_all(const Manifest *manifest, GPT2 *model, Error *err) {
    const char *directory = manifest->directory;
    if (manifest->model_only)
        return fail(err, EXIT_INPUT,
                    "%s holds weights only and cannot be resumed: start from it with --model", directory);
    if (!model->options.training)
        return fail(err, EXIT_RUN, "%s: the model was opened without an optimizer and cannot be resumed",
                    directory);
    if (!check_optimizer(manifest, model, err)) return false;
    if (!manifest_verify_once(manifest, true, err) || !load_weights(directory, model, err) ||
        !hf_states_load(directory, model, err))
        return false;
    char *n_skipped = (char *)model->stats + offsetof(StepStats, n_skipped);
    model->ops->device->upload(n_skipped, &manifest->state.n_skipped, sizeof manifest->state.n_skipped);
    return true;
}

bool checkpoint_resume(const char *path, GPT2 *model, TrainerState *state, Error *err) {
    Manifest manifest;
    if (!manifest_read(&manifest, path, err)) return false;
    bool ok = load_all(&manifest, model, err);
    if (ok) {
        *state = manifest.state;
        manifest.state.flags = NULL; /* the caller's now */
    }
    manifest_free(&manifest);
    return ok;
}
