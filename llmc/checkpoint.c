/* Saving: a temporary directory, made durable, renamed into place; then the oldest go.
 *
 * Names in OUT while a save runs, and what a kill leaves behind:
 *   .tmp-step_00000200-PID   being written, or being removed: never whole, the next save removes it
 *   .old-step_00000200-PID   the checkpoint that a new one of the same step replaces: put back or removed by
 * the next save or checkpoint_find, as its successor is missing or there */
#include "checkpoint.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "checkpoint_directory.h"
#include "hf_config.h"
#include "hf_weights.h"
#include "manifest.h"

/* ---- the files ---- */
static bool save_config(const char *directory, const GPT2 *model, const Tokenizer *tokenizer,
                        JsonWriter *manifest, Error *err) {
    char path[PATH_MAX];
    OutFile file;
    int eot = tokenizer                           ? tokenizer_eot(tokenizer)
              : model->config.vocab_size == 50257 ? 50256
                                                  : -1; /* GPT-2's */
    if (!path_join(path, directory, "config.json", err) || !outfile_open(&file, path, err)) return false;
    bool ok = hf_config_write(&file, &model->config, eot, err) && outfile_close(&file, err);
    manifest_begin_file(manifest, "config.json");
    manifest_end_file(manifest, file.bytes, file.crc);
    outfile_abandon(&file);
    return ok;
}

static bool save_weights(const char *directory, const GPT2 *model, bool model_only, JsonWriter *manifest,
                         Error *err) {
    const FlatBuffer weights = {"transformer.", model->master, NULL};
    const FlatBuffer moments[] = {
        {"m.", model->m, NULL},
        {"v.", model->v, NULL}
    };
    if (!hf_tensors_save(directory, "model.safetensors", model, &weights, 1, manifest, err)) return false;
    return model_only ||
           hf_tensors_save(directory, "optimizer.safetensors", model, moments, 2, manifest, err);
}

static bool is_saved_here(const char *name) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* The tokenizer writes its own files: they are made durable and summed by reading them back. */
static bool save_tokenizer(const char *directory, const Tokenizer *tokenizer, JsonWriter *manifest,
                           Error *err) {
    char **names, path[PATH_MAX];
    int n;
    if (!tokenizer) return true;
    if (!tokenizer_save(tokenizer, directory, err) || !directory_list(directory, "", &names, &n, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        int64_t bytes;
        uint32_t crc;
        if (is_saved_here(names[i])) continue;
        ok = path_join(path, directory, names[i], err) && file_checksum(path, true, &bytes, &crc, err);
        if (!ok) break;
        manifest_begin_file(manifest, names[i]);
        manifest_end_file(manifest, bytes, crc);
    }
    names_free(names, n);
    return ok;
}

static bool save_files(const char *directory, const GPT2 *model, const Tokenizer *tokenizer,
                       const TrainerState *state, bool model_only, Error *err) {
    JsonWriter manifest;
    bool ok = manifest_begin(&manifest, state, model_only, err) &&
              save_weights(directory, model, model_only, &manifest, err) &&
              save_config(directory, model, tokenizer, &manifest, err) &&
              save_tokenizer(directory, tokenizer, &manifest, err) &&
              manifest_write(&manifest, directory, err) && directory_sync(directory, err);
    json_writer_free(&manifest);
    return ok;
}

/* ---- names in OUT ---- */
bool checkpoint_name(char *path, const char *out, const char *prefix, int64_t step, Error *err) {
    char name[80];
    if (*prefix)
        snprintf(name, sizeof name, "%sstep_%08lld-%ld", prefix, (long long)step, (long)getpid());
    else
        snprintf(name, sizeof name, "step_%08lld", (long long)step);
    return path_join(path, out, name, err);
}

/* True if the process that a leftover's name ends with is another one, and lives. */
static bool owner_lives(const char *name) {
    const char *dash = strrchr(name, '-');
    long pid = dash ? strtol(dash + 1, NULL, 10) : 0;
    return pid > 0 && pid != (long)getpid() && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

void checkpoint_recover(const char *out) {
    char **names, aside[PATH_MAX], target[PATH_MAX], step[64];
    int n;
    struct stat info;
    Error ignored;
    if (!directory_list(out, ".old-step_", &names, &n, &ignored)) return;
    for (int i = 0; i < n; i++) {
        if (owner_lives(names[i])) continue;
        snprintf(step, sizeof step, "%.*s", (int)strcspn(names[i] + 5, "-"), names[i] + 5);
        if (!path_join(aside, out, names[i], &ignored) || !path_join(target, out, step, &ignored)) continue;
        if (stat(target, &info) == 0)
            directory_remove(aside);
        else if (rename(aside, target) == 0)
            directory_sync(out, &ignored);
    }
    names_free(names, n);
}

static void remove_leftovers(const char *out) {
    char **names, path[PATH_MAX];
    int n;
    Error ignored;
    checkpoint_recover(out);
    if (!directory_list(out, ".tmp-step_", &names, &n, &ignored)) return;
    for (int i = 0; i < n; i++)
        if (!owner_lives(names[i]) && path_join(path, out, names[i], &ignored)) directory_remove(path);
    names_free(names, n);
}

/* ---- into place ---- */
/* Renames the temporary directory to its name. One that is there already steps aside first and goes
 * afterwards. */
static bool publish(const char *out, const char *temporary, int64_t step, Error *err) {
    char target[PATH_MAX], aside[PATH_MAX];
    struct stat info;
    if (!checkpoint_name(target, out, "", step, err) || !checkpoint_name(aside, out, ".old-", step, err))
        return false;
    bool replaces = stat(target, &info) == 0;
    if (replaces && rename(target, aside)) return fail_errno(err, "cannot rename", target);
    if (rename(temporary, target)) {
        fail_errno(err, "cannot rename", temporary);
        if (replaces && rename(aside, target)) fail_errno(err, "cannot rename", aside);
        return false;
    }
    if (!directory_sync(out, err)) return false;
    if (replaces) directory_remove(aside);
    return true;
}

/* Removes by first renaming, so that a kill on the way leaves nothing that looks like a checkpoint. */
static void remove_checkpoint(const char *out, int64_t step) {
    char path[PATH_MAX], temporary[PATH_MAX];
    Error ignored;
    if (!checkpoint_name(path, out, "", step, &ignored) ||
        !checkpoint_name(temporary, out, ".tmp-", step, &ignored))
        return;
    if (rename(path, temporary) == 0) directory_remove(temporary);
}

static bool looks_whole(const char *path) {
    Manifest manifest;
    Error ignored;
    if (!manifest_read(&manifest, path, &ignored)) return false;
    bool whole = manifest_sizes_match(&manifest);
    manifest_free(&manifest);
    return whole;
}

/* Damaged checkpoints neither count nor go, nor do later ones than the step just saved, which another run
 * left: both are for the user to look at. */
static void prune(const char *out, int64_t saved_step, int keep) {
    int64_t *steps;
    int n, n_whole = 0;
    char path[PATH_MAX];
    Error ignored;
    if (keep <= 0 || !checkpoint_steps(out, &steps, &n, &ignored)) return;
    for (int i = 0; i < n; i++) {
        if (steps[i] > saved_step || !checkpoint_name(path, out, "", steps[i], &ignored)) continue;
        if (looks_whole(path) && ++n_whole > keep) remove_checkpoint(out, steps[i]);
    }
    free(steps);
}

bool checkpoint_save(const char *out, GPT2 *model, const Tokenizer *tokenizer, const TrainerState *state,
                     int keep, bool model_only, Error *err) {
    char temporary[PATH_MAX];
    Error cause;
    if (!model_only && !model->m)
        return fail(err, EXIT_RUN,
                    "%s: the model was opened without an optimizer: only its weights can be saved", out);
    if (!directory_make(out, err) || !checkpoint_name(temporary, out, ".tmp-", state->step, err))
        return false;
    remove_leftovers(out);
    bool ok = mkdir(temporary, 0777) == 0 || fail_errno(&cause, "cannot create the directory", temporary);
    ok = ok && save_files(temporary, model, tokenizer, state, model_only, &cause) &&
         publish(out, temporary, state->step, &cause);
    if (!ok) {
        directory_remove(temporary);
        return fail(err, cause.exit_code, "checkpoint of step %lld not saved: %s", (long long)state->step,
                    cause.text);
    }
    prune(out, state->step, keep);
    return true;
}
