#include "checkpoint_directory.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "llmc/base/thread.h"
#include "manifest.h"

/* ---- names ---- */
void checkpoint_name(char name[CHECKPOINT_NAME], const char *prefix, int64_t step) {
    if (*prefix)
        snprintf(name, CHECKPOINT_NAME, "%sstep_%08" PRId64 "-%ld", prefix, step, (long)getpid());
    else
        snprintf(name, CHECKPOINT_NAME, "step_%08" PRId64, step);
}

/* The step in "step_DIGITS" or ".old-step_DIGITS-PID"; -1 where the name is neither. */
static int64_t step_of(const char *name, bool aside) {
    const char *digits = name + strlen(aside ? ".old-step_" : "step_");
    const size_t length = strspn(digits, "0123456789");
    if (strlen(name) >= CHECKPOINT_NAME || length < 8 || length > 18) return -1;
    return digits[length] == (aside ? '-' : 0) ? strtoll(digits, NULL, 10) : -1;
}

static int compare_entries(const void *a, const void *b) {
    const CheckpointEntry *x = a, *y = b;
    return x->step != y->step ? (x->step < y->step) - (x->step > y->step) : x->aside - y->aside;
}

static void add_entries(CheckpointEntry *entries, int *n, char **names, int n_names, bool aside) {
    for (int i = 0; i < n_names; i++) {
        CheckpointEntry entry = {.step = step_of(names[i], aside), .aside = aside};
        if (entry.step < 0) continue;
        snprintf(entry.name, sizeof entry.name, "%s", names[i]);
        entries[(*n)++] = entry;
    }
}

bool checkpoint_entries(const char *out, CheckpointEntry **entries, int *n, Error *err) {
    char **placed, **aside;
    int n_placed, n_aside;
    *n = 0;
    if (!directory_list(out, "step_", &placed, &n_placed, err)) return false;
    if (!directory_list(out, ".old-step_", &aside, &n_aside, err)) {
        names_free(placed, n_placed);
        return false;
    }
    *entries = malloc(((size_t)n_placed + (size_t)n_aside + 1) * sizeof **entries);
    if (*entries) {
        add_entries(*entries, n, placed, n_placed, false);
        add_entries(*entries, n, aside, n_aside, true);
        qsort(*entries, (size_t)*n, sizeof **entries, compare_entries);
    }
    names_free(placed, n_placed);
    names_free(aside, n_aside);
    return *entries || fail(err, EXIT_RUN, "%s: no memory to list it", out);
}

/* ---- whole or not ---- */
/* Of a run's own checkpoint. One that was renamed is none: names tell which is the newest, and what --keep removes. */
static bool read_manifest(Manifest *manifest, const char *out, const char *name, Error *err) {
    char path[PATH_MAX], own_name[CHECKPOINT_NAME];
    if (!path_join(path, out, name, err) || !manifest_read(manifest, path, err)) return false;
    if (manifest->state.step == step_of(name, *name == '.')) return true;
    checkpoint_name(own_name, "", manifest->state.step);
    manifest_free(manifest);
    return fail(err, EXIT_INPUT, "%s: is %s by its trainer_state.json; hint: rename it", path, own_name);
}

static bool fail_model_only(const Manifest *manifest, Error *err) {
    return fail(err, EXIT_INPUT, "%s holds weights only, without the optimizer: it cannot be resumed",
                manifest->directory);
}

bool checkpoint_is_whole(const char *out, const char *name, bool with_optimizer, Error *err) {
    Manifest manifest;
    if (!read_manifest(&manifest, out, name, err)) return false;
    bool ok = manifest.model_only && with_optimizer ? fail_model_only(&manifest, err)
                                                    : manifest_verify(&manifest, with_optimizer, err);
    manifest_free(&manifest);
    return ok;
}

bool checkpoint_is_undamaged(const char *out, const char *name) {
    Manifest manifest;
    Error damage;
    if (!read_manifest(&manifest, out, name, &damage)) return false;
    const bool ok = manifest_verify(&manifest, !manifest.model_only, &damage);
    manifest_free(&manifest);
    return ok;
}

bool checkpoint_looks_resumable(const char *out, const char *name, Error *err) {
    Manifest manifest;
    if (!read_manifest(&manifest, out, name, err)) return false;
    bool ok = !manifest.model_only || fail_model_only(&manifest, err);
    ok = ok && (manifest_sizes_match(&manifest) ||
                fail(err, EXIT_INPUT, "%s: a file of it is missing or cut short", manifest.directory));
    manifest_free(&manifest);
    return ok;
}

/* --val, or --train, of which a part validates where that is absent. NULL: earlier programs do not say. */
static const JsonValue *validated_on(const Manifest *manifest) {
    const JsonValue *flags = manifest_flags(manifest), *val = json_get(flags, "val");
    return json_is(val, JSON_STRING) ? val : json_get(flags, "train");
}

static bool is_validated_on(const Manifest *manifest, const char *validation) {
    const JsonValue *data = validated_on(manifest);
    return !data || json_equals(data, validation);
}

/* By the sizes of its files alone. */
static bool looks_whole(const char *out, CheckpointEntry *entry, const char *validation) {
    Manifest manifest;
    Error ignored;
    if (!read_manifest(&manifest, out, entry->name, &ignored)) return false;
    const bool whole = manifest_sizes_match(&manifest);
    const bool counts = !validation || is_validated_on(&manifest, validation);
    entry->val_loss = counts ? manifest.state.val_loss : NAN;
    entry->best_only = counts && manifest.state.best_only;
    manifest_free(&manifest);
    return whole;
}

/* ---- removing ---- */
bool checkpoint_has_file(const char *name) {
    static const char *const names[] = {
        "model.safetensors",
        "optimizer.safetensors",
        "config.json",
        "trainer_state.json",
        "tokenizer.bin",
        "tokenizer.json",
        "vocab.json",
        "merges.txt",
        "added_tokens.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void warn_of_folder(const char *out, const Error *cause) {
    Error err;
    fail(&err, cause->exit_code, "--out %s: %s", out, cause->text);
    warn(&err);
}

void checkpoint_remove(int folder, const char *out, const char *name) {
    Error cause;
    if (!directory_remove(folder, name, checkpoint_has_file, &cause)) warn_of_folder(out, &cause);
}

/* What a thread removes while training goes on: giving back the pages of a gigabyte takes a third of the time that writing
 * it took. One save after the other uses it, so nothing here is locked. */
static struct Removal {
    bool running;
    pthread_t thread;
    int folder;
    char out[PATH_MAX];
    char names[16][CHECKPOINT_NAME];
    int n;
} removal;

static void *remove_names(void *unused) {
    for (int i = 0; i < removal.n; i++) checkpoint_remove(removal.folder, removal.out, removal.names[i]);
    return unused;
}

void checkpoint_end_removal(void) {
    if (!removal.running) return;
    pthread_join(removal.thread, NULL);
    close(removal.folder);
    removal.running = false;
}

bool checkpoint_is_removing(void) {
    return removal.running;
}

static void begin_removal(int folder, const char *out) {
    Error ignored;
    if (!removal.n || !path_copy(removal.out, out, &ignored)) return;
    const int own = dup(folder);
    removal.folder = own >= 0 ? own : folder;
    removal.running = own >= 0 && thread_start(&removal.thread, remove_names, NULL);
    if (removal.running) return;
    remove_names(NULL);
    if (own >= 0) close(own);
}

/* Renamed first, so that a kill on the way leaves nothing that looks like a checkpoint; what holds files of others
 * keeps its name. `later`: begin_removal will follow. */
static void remove_checkpoint(int folder, const char *out, const CheckpointEntry *entry, bool later) {
    static int64_t last_named = -1; /* what stays is named once: saves of weeks come upon it */
    char temporary[CHECKPOINT_NAME];
    Error cause;
    if (!directory_may_go(folder, entry->name, checkpoint_has_file, &cause)) {
        if (entry->step <= last_named) return;
        last_named = entry->step;
        warn_of_folder(out, &cause);
        return;
    }
    checkpoint_name(temporary, ".tmp-", entry->step);
    if (renameat(folder, entry->name, folder, temporary)) return;
    if (later && removal.n < (int)(sizeof removal.names / sizeof *removal.names))
        snprintf(removal.names[removal.n++], CHECKPOINT_NAME, "%s", temporary);
    else
        checkpoint_remove(folder, out, temporary);
}

/* ---- leftovers ---- */
static bool exists(int folder, const char *name, bool *is_link) {
    struct stat info;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW)) return false;
    if (is_link) *is_link = S_ISLNK(info.st_mode);
    return true;
}

/* A checkpoint that a dead save had moved aside: back into its place where nothing took it, else it goes, unless
 * what took it is damaged: then both are for the user to look at. */
static void settle_aside(int folder, const char *out, const char *aside) {
    char name[CHECKPOINT_NAME];
    bool is_link = false;
    CheckpointEntry entry = {.step = step_of(aside, true)};
    Error ignored;
    if (entry.step < 0 || !exists(folder, aside, &is_link)) return;
    snprintf(entry.name, sizeof entry.name, "%s", aside);
    checkpoint_name(name, "", entry.step);
    if (exists(folder, name, NULL)) {
        if (is_link || checkpoint_is_undamaged(out, name)) checkpoint_remove(folder, out, aside);
    } else if (is_link && !looks_whole(out, &entry, NULL)) {
        checkpoint_remove(folder, out, aside);
    } else if (renameat(folder, aside, folder, name) == 0) {
        file_sync(folder, out, &ignored);
    }
}

static bool is_ours(const char *name) {
    const char *dash = strrchr(name, '-');
    return dash && strtol(dash + 1, NULL, 10) == (long)getpid();
}

void checkpoint_remove_leftovers(int folder, const char *out, bool all) {
    static const char *const prefixes[] = {".old-step_", ".tmp-step_"};
    char **names;
    int n;
    Error ignored;
    for (int k = 0; k < 2; k++) {
        if (!directory_list_open(folder, out, prefixes[k], &names, &n, &ignored)) continue;
        for (int i = 0; i < n; i++) {
            if (!all && !is_ours(names[i])) continue;
            if (k == 0)
                settle_aside(folder, out, names[i]);
            else
                checkpoint_remove(folder, out, names[i]);
        }
        names_free(names, n);
    }
}

/* ---- --keep ---- */
/* The whole checkpoints up to `step`, the newest first; NULL: none can be seen. Damaged ones neither count nor go, nor do
 * later ones than the step just saved, which another run left: both are for the user to look at. */
static CheckpointEntry *list_whole(const char *out, int64_t step, const char *validation, int *n) {
    CheckpointEntry *entries;
    int n_entries;
    Error ignored;
    *n = 0;
    if (!checkpoint_entries(out, &entries, &n_entries, &ignored)) return NULL;
    for (int i = 0; i < n_entries; i++)
        if (!entries[i].aside && entries[i].step <= step && looks_whole(out, &entries[i], validation))
            entries[(*n)++] = entries[i];
    return entries;
}

/* Which of them has the lowest validation loss; -1: none was validated. */
static int find_best(const CheckpointEntry *whole, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (isfinite(whole[i].val_loss) && (best < 0 || whole[i].val_loss <= whole[best].val_loss)) best = i;
    return best;
}

/* That one, into *best; false: none was validated. */
static bool best_of(const char *out, int64_t step, const char *validation, CheckpointEntry *best) {
    int n;
    CheckpointEntry *whole = list_whole(out, step, validation, &n);
    const int i = find_best(whole, n);
    if (i >= 0) *best = whole[i];
    free(whole);
    return i >= 0;
}

double checkpoint_lowest_loss(const char *out, int64_t step, const char *validation) {
    CheckpointEntry best;
    return best_of(out, step, validation, &best) ? best.val_loss : NAN;
}

bool checkpoint_kept_better(const char *out, const char *newest, CheckpointEntry *best) {
    Manifest manifest;
    Error ignored;
    if (!manifest_read(&manifest, newest, &ignored)) return false;
    const JsonValue *keeps = json_get(manifest_flags(&manifest), "keep-best"),
                    *data = validated_on(&manifest);
    const char *validation = json_is(data, JSON_STRING) ? data->text : NULL;
    const bool better = json_is(keeps, JSON_TRUE) && best_of(out, manifest.state.step, validation, best) &&
                        !(best->val_loss >= manifest.state.val_loss);
    manifest_free(&manifest);
    return better;
}

/* The newest stays in any case. keep 0: all that were not saved for their loss alone. */
static void choose_what_goes(CheckpointEntry *whole, int n, int64_t keep, bool keep_best) {
    const int best = keep_best ? find_best(whole, n) : -1;
    int64_t n_counted = 0;
    for (int i = 0; i < n; i++) {
        const bool extra = keep_best && whole[i].best_only;
        if (!extra) n_counted++;
        whole[i].goes = i > 0 && i != best && (extra || (keep > 0 && n_counted > keep));
    }
}

/* The first that goes is the oldest. Returns how many would go; removes them where `folder` is open (>= 0). */
static int prune(int folder, const char *out, int64_t step, const SaveOptions *options, int64_t keep,
                 bool later) {
    int n, n_going = 0;
    CheckpointEntry *whole = list_whole(out, step, options->validation, &n);
    choose_what_goes(whole, n, keep, options->keep_best);
    for (int i = n - 1; i >= 0; i--) {
        if (!whole[i].goes) continue;
        n_going++;
        if (folder >= 0) remove_checkpoint(folder, out, &whole[i], later);
    }
    free(whole);
    return n_going;
}

static void remove_others(int folder, const char *out, int64_t step) {
    CheckpointEntry *entries;
    int n;
    Error ignored;
    if (!checkpoint_entries(out, &entries, &n, &ignored)) return;
    for (int i = 0; i < n; i++)
        if (entries[i].step != step) remove_checkpoint(folder, out, &entries[i], false);
    free(entries);
}

void checkpoint_prune(int folder, const char *out, int64_t step, const SaveOptions *options) {
    if (options->replaces) remove_others(folder, out, step);
    checkpoint_end_removal(); /* of the save before */
    removal.n = 0;
    if (options->keep > 0 || options->keep_best)
        prune(folder, out, step, options, options->keep, options->snapshot != NULL);
    begin_removal(folder, out);
}

/* ---- room on the disk ---- */
/* True where every byte of the newest checkpoint up to `step` is as it was written. */
static bool newest_is_whole(const char *out, int64_t step) {
    int n;
    CheckpointEntry *whole = list_whole(out, step, NULL, &n);
    const bool ok = n > 0 && checkpoint_is_undamaged(out, whole[0].name);
    free(whole);
    return ok;
}

static bool fail_room(const char *out, int64_t bytes, int64_t room, Error *err) {
    return fail(err, EXIT_RUN,
                "--out %s: a checkpoint takes %.1f MiB, %.1f MiB are free on its disk; hint: make room, or "
                "another --out",
                out, (double)bytes / 1048576, (double)room / 1048576);
}

/* How many stay before a save that has --keep: with it they are as many. One stays in any case, until the new one is whole. */
static int64_t kept_before(const SaveOptions *options) {
    return options->keep > 1 ? options->keep - 1 : 1;
}

bool checkpoint_prune_before(int folder, const char *out, int64_t step, const SaveOptions *options) {
    return options->keep > 0 && newest_is_whole(out, step) &&
           prune(folder, out, step, options, kept_before(options), false) > 0;
}

bool checkpoint_make_room(int folder, const char *out, int64_t bytes, int64_t step,
                          const SaveOptions *options, Error *err) {
    int64_t room = directory_room(folder);
    if (room < 0 || room >= bytes) return true;
    checkpoint_end_removal();
    room = directory_room(folder);
    if (room < bytes && checkpoint_prune_before(folder, out, step, options)) room = directory_room(folder);
    return room < 0 || room >= bytes || fail_room(out, bytes, room, err);
}

/* States of a tensor's parameters. */
static int n_states_of(const Tensor *tensor, OptimizerKind optimizer) {
    int n = 0;
    for (int i = 0; i < N_STATES; i++)
        n += optimizer_states[i].kind == optimizer_of(optimizer, tensor->group);
    return n;
}

int64_t checkpoint_bytes(const GPT2Config *config, OptimizerKind optimizer, bool model_only) {
    Tensor tensors[N_TENSORS];
    const int64_t n_padding = (int64_t)(config->padded_vocab_size - config->vocab_size) * config->n_embd;
    const int64_t n_values = gpt2_tensors(tensors, config, 1) - n_padding;
    const int64_t names = 65536 + 8192 * (int64_t)config->n_layer + 100 * (int64_t)config->vocab_size;
    int64_t n_floats = n_values;
    for (int id = 0; id < N_TENSORS && !model_only; id++) {
        const int64_t n = tensors[id].layer_elems * tensors[id].n_layers - (id == WTE ? n_padding : 0);
        n_floats += n_states_of(&tensors[id], optimizer) * n;
    }
    return n_floats * (int64_t)sizeof(float) + names;
}

/* A descriptor of the folder, or of the nearest one above it that is there. */
static int open_there(const char *out, Error *err) {
    char path[PATH_MAX], *slash = path;
    struct stat info;
    if (snprintf(path, sizeof path, "%s", out) >= PATH_MAX) slash = NULL;
    while (slash && stat(path, &info) && errno == ENOENT && (slash = strrchr(path, '/')))
        *(slash == path ? slash + 1 : slash) = 0;
    return directory_open(slash ? path : ".", err);
}

bool checkpoint_check_room(const char *out, const GPT2Config *config, OptimizerKind optimizer,
                           const SaveOptions *options, Error *err) {
    const int64_t bytes = checkpoint_bytes(config, optimizer, options->model_only);
    const int folder = open_there(out, err);
    if (folder < 0) return false;
    const int64_t room = directory_room(folder);
    close(folder);
    if (room < 0 || room >= bytes) return true;
    if (options->keep > 0 && prune(-1, out, INT64_MAX, options, kept_before(options), false)) return true;
    return fail_room(out, bytes, room, err);
}
