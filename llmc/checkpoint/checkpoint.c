/* Saving: a temporary directory, made durable, renamed into place; then the oldest go.
 *
 * Names in OUT while a save runs, and what a kill leaves behind for the next run's checkpoint_clean:
 *   .tmp-step_00000200-PID   being written, or being removed: never whole, it goes
 *   .old-step_00000200-PID   the checkpoint that a new one of the same step replaces: put back or removed, as its
 *                            successor is missing or there; readers take it as it is */
#include "checkpoint.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "checkpoint_directory.h"
#include "hf_config.h"
#include "hf_weights.h"
#include "llmc/base/checksum.h"
#include "llmc/base/terminal.h"
#include "manifest.h"

/* ---- the files ---- */
static bool save_config(const char *directory, const GPT2 *model, const Tokenizer *tokenizer,
                        JsonWriter *manifest, Error *err) {
    JsonWriter w;
    int eot = tokenizer                                ? tokenizer_eot(tokenizer)
              : model->config.vocab_size == GPT2_VOCAB ? (int)GPT2_EOT
                                                       : -1;
    hf_config_write(&w, &model->config, eot);
    const bool ok = w.text.failed ? fail(err, EXIT_RUN, "%s: no memory to write config.json", directory)
                                  : file_write(directory, "config.json", w.text.data, w.text.length, err);
    manifest_begin_file(manifest, "config.json");
    manifest_end_file(manifest, (int64_t)w.text.length, crc32c(0, w.text.data, w.text.length));
    json_writer_free(&w);
    return ok;
}

/* The first in the directory. The tokenizer writes its own files: they are summed by reading them back. */
static bool save_tokenizer(const char *directory, const Tokenizer *tokenizer, int context,
                           JsonWriter *manifest, Error *err) {
    char **names, path[PATH_MAX];
    int n;
    if (!tokenizer) return true;
    if (!tokenizer_save(tokenizer, directory, context, err) ||
        !directory_list(directory, "", &names, &n, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        int64_t bytes;
        uint32_t crc;
        ok = path_join(path, directory, names[i], err) && file_checksum(path, &bytes, &crc, err);
        if (!ok) break;
        manifest_begin_file(manifest, names[i]);
        manifest_end_file(manifest, bytes, crc);
    }
    names_free(names, n);
    return ok;
}

/* What others open. */
static bool save_model(const char *directory, GPT2 *model, const Tokenizer *tokenizer,
                       const SaveOptions *options, const char *note, JsonWriter *manifest, Error *err) {
    return save_tokenizer(directory, tokenizer, model->config.max_seq_len, manifest, err) &&
           hf_weights_save(directory, model, options->snapshot, options->model_only, note, manifest, err) &&
           save_config(directory, model, tokenizer, manifest, err);
}

bool checkpoint_write_model(const char *directory, GPT2 *model, const Tokenizer *tokenizer, const char *note,
                            Error *err) {
    const SaveOptions options = {.model_only = true};
    JsonWriter unread = {0}; /* sums for a manifest, which is a checkpoint's */
    json_begin_object(&unread, NULL);
    const bool ok = save_model(directory, model, tokenizer, &options, note, &unread, err);
    json_writer_free(&unread);
    return ok;
}

/* A save on its way. */
typedef struct Save {
    const char *out;
    int folder; /* out, open */
    GPT2 *model;
    const Tokenizer *tokenizer;
    const TrainerState *state;
    const SaveOptions *options;
} Save;

static bool save_files(const Save *s, const char *directory, Error *err) {
    JsonWriter manifest;
    bool ok = manifest_begin(&manifest, s->state, s->tokenizer, s->options->model_only, err) &&
              save_model(directory, s->model, s->tokenizer, s->options, NULL, &manifest, err) &&
              manifest_write(&manifest, directory, err) && directory_sync(directory, err);
    json_writer_free(&manifest);
    return ok;
}

/* ---- into place ---- */
/* What stands where the checkpoint goes: nothing, or one that steps aside. A file of that name is not ours. */
static bool look_at_place(int folder, const char *name, bool *taken, Error *err) {
    struct stat info;
    *taken = fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    return !*taken || S_ISDIR(info.st_mode) || S_ISLNK(info.st_mode) ||
           fail(err, EXIT_INPUT, "%s: expected a checkpoint's directory or nothing, found a file", name);
}

/* Where the one that is there already steps aside to. Only a whole one goes afterwards: of another, which was edited or could not
 * be read, the user may want what is left. */
static void name_aside(const Save *s, const char *name, char aside[CHECKPOINT_NAME], bool *goes) {
    struct stat info;
    *goes = checkpoint_is_undamaged(s->out, name);
    checkpoint_name(aside, ".old-", s->state->step);
    for (int i = 1; !*goes; i++) {
        snprintf(aside, CHECKPOINT_NAME, "%.40s.damaged.%d", name, i);
        if (fstatat(s->folder, aside, &info, AT_SYMLINK_NOFOLLOW)) break;
    }
}

/* Renames the temporary directory to its name. */
static bool publish(const Save *s, const char *temporary, Error *err) {
    const int folder = s->folder;
    char name[CHECKPOINT_NAME], aside[CHECKPOINT_NAME];
    bool replaces, goes = true;
    checkpoint_name(name, "", s->state->step);
    if (!look_at_place(folder, name, &replaces, err)) return false;
    if (replaces) name_aside(s, name, aside, &goes);
    if (replaces && renameat(folder, name, folder, aside)) return fail_errno(err, "cannot rename", name);
    if (renameat(folder, temporary, folder, name)) {
        fail_errno(err, "cannot rename", temporary);
        if (replaces && renameat(folder, aside, folder, name)) fail_errno(err, "cannot rename", aside);
        return false;
    }
    if (!file_sync(folder, s->out, err)) return false;
    if (!goes)
        print_note("%s/%s was not a whole checkpoint of that step: what it had is kept as %s", s->out, name,
                   aside);
    if (replaces && goes) checkpoint_remove(folder, s->out, aside);
    return true;
}

/* Written, made durable and in its place; or gone again, with the cause. */
static bool save_in(const Save *s, Error *err) {
    char temporary[CHECKPOINT_NAME], path[PATH_MAX];
    Error ignored;
    checkpoint_name(temporary, ".tmp-", s->state->step);
    if (!path_join(path, s->out, temporary, err)) return false;
    if (mkdirat(s->folder, temporary, 0777)) return fail_errno(err, "cannot create the directory", path);
    if (save_files(s, path, err) && publish(s, temporary, err)) return true;
    directory_remove(s->folder, temporary, checkpoint_has_file, &ignored);
    return false;
}

/* Once more where the disk was full, though it said that it had room, as a quota does: what is to be removed goes before. */
static bool save_with_room(const Save *s, Error *err) {
    if (save_in(s, err)) return true;
    if (!error_is_full(err)) return false;
    const bool was_removing = checkpoint_is_removing();
    checkpoint_end_removal();
    return (checkpoint_prune_before(s->folder, s->out, s->state->step, s->options) || was_removing) &&
           save_in(s, err);
}

static bool fail_save(int64_t step, int exit_code, const Error *cause, Error *err) {
    return fail(err, exit_code, "checkpoint of step %lld not saved: %s", (long long)step, cause->text);
}

bool checkpoint_save(const char *out, GPT2 *model, const Tokenizer *tokenizer, const TrainerState *state,
                     const SaveOptions *options, Error *err) {
    Error cause;
    if (!options->model_only && !model->options.training)
        return fail(err, EXIT_RUN,
                    "%s: the model was opened without an optimizer: only its weights can be saved", out);
    const int folder = directory_make(out, &cause) ? directory_open(out, &cause) : -1;
    if (folder < 0) return fail_save(state->step, EXIT_RUN, &cause, err);
    const Save save = {out, folder, model, tokenizer, state, options};
    if (!options->snapshot) checkpoint_end_removal();
    if (!checkpoint_is_removing()) checkpoint_remove_leftovers(folder, out, false);
    const bool ok =
        checkpoint_make_room(folder, out,
                             checkpoint_bytes(&model->config, model->options.optimizer, options->model_only),
                             state->step, options, &cause) &&
        save_with_room(&save, &cause);
    if (ok) checkpoint_prune(folder, out, state->step, options);
    close(folder);
    return ok || fail_save(state->step, cause.exit_code, &cause, err);
}

void checkpoint_clean(const char *out) {
    Error ignored;
    const int folder = directory_open(out, &ignored);
    if (folder < 0) return;
    checkpoint_remove_leftovers(folder, out, true);
    close(folder);
}
