/* What a run reads and where it writes: the files of --train and --val, the folder of --out. */
#include "setup.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "files.h"
#include "manifest.h"

enum { OUT_MAX = 960 }; /* bytes of --out: Run.checkpoint and the log add a name to it in 1024 */

/* ---- output ---- */

static bool writes_output(const Settings *s) {
    return s->out && !settings_sample_only(s) && !s->eval_only;
}

/* A new run beside the checkpoints of another would leave --resume to guess which to go on with. */
static bool refuse_used_output(const Settings *s, Error *err) {
    char **names = NULL;
    int n = 0;
    if (s->resume || (access(s->out, F_OK) && errno == ENOENT)) return true;
    if (!directory_list(s->out, "step_", &names, &n, err)) return fail_flag("out", err);
    if (n)
        fail(err, EXIT_INPUT,
             "--out %s: holds checkpoints of another run (%s); hint: --resume goes on with it, or another "
             "folder",
             s->out, names[0]);
    names_free(names, n);
    return n == 0;
}

/* Two runs in one folder would mix their checkpoints and logs. The lock goes with the process, however it ends.
 * Without `make`, a folder that has no run.lock stays as it is. */
static bool lock_output(Run *run, bool make, Error *err) {
    const char *out = run->settings.out;
    char path[PATH_MAX];
    if (run->output_locked) return true;
    if (!path_join(path, out, "run.lock", err)) return false;
    const int fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0666);
    if (fd < 0 && !make && errno == ENOENT) return true;
    if (fd < 0) return fail_errno(err, "--out: cannot write", path);
    run->output_locked = true;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return true; /* a file system without locks: go on */
    close(fd);
    return fail(err, EXIT_INPUT,
                "--out %s: another run is writing there; hint: another folder, or wait for it", out);
}

bool setup_check_output(Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (!writes_output(s)) return true;
    if (strlen(s->out) >= OUT_MAX)
        return fail(err, EXIT_INPUT, "--out: the path is longer than %d bytes", OUT_MAX);
    return refuse_used_output(s, err) && lock_output(run, false, err);
}

bool setup_output(Run *run, Error *err) {
    if (!writes_output(&run->settings)) return true;
    if (!directory_make(run->settings.out, err)) return fail_flag("out", err);
    return lock_output(run, true, err);
}

/* ---- data ---- */

/* --train as the flags of the checkpoint `path` have it, into text; false where they do not. */
static bool recorded_data(const char *path, char *text, size_t size) {
    Manifest manifest;
    Error ignored;
    if (!path[0] || !manifest_read(&manifest, path, &ignored)) return false;
    const JsonValue *train = json_get(json_get(json_root(manifest.json), "flags"), "train");
    const bool known = train && train->type == JSON_STRING;
    if (known) snprintf(text, size, "%s", train->text);
    manifest_free(&manifest);
    return known;
}

/* No --train, and its default is not there: says what the user left out, first of all of --resume. */
static bool fail_no_data(const Run *run, Error *err) {
    const Settings *s = &run->settings;
    char trained_on[256];
    if (s->resume && !run->checkpoint[0])
        return fail(
            err, EXIT_INPUT,
            "--resume: --out %s holds no checkpoint, and a new run has nothing to train on: %s is not "
            "there; hint: another --out, or --train FILE",
            s->out, s->train);
    if (recorded_data(run->checkpoint, trained_on, sizeof trained_on))
        return fail(
            err, EXIT_INPUT,
            "--train is missing: %s trained on '%s', and the default, %s, is not there; hint: --train '%s'",
            run->checkpoint, trained_on, s->train, trained_on);
    return fail(
        err, EXIT_INPUT,
        "--train is missing, and the default, %s, is not there; hint: --train FILE, or make default-text",
        s->train);
}

/* The files of `pattern`, the value of --train or of --val. */
static DataLoader *open_data(const Run *run, const char *pattern, int split, bool training, Error *err) {
    const Settings *s = &run->settings;
    DataOptions options = {
        .pattern = pattern,
        .tokenizer = run->tokenizer,
        .vocab_size = run->config.vocab_size,
        .B = (int)s->batch,
        .T = (int)s->seq,
        .rank = training ? run->rank : 0,
        .n_ranks = training ? run->n_ranks : 1,
        .shuffle = training,
        .seed = (uint64_t)s->seed,
        .split = split,
    };
    DataLoader *loader = dataloader_open(&options, err);
    if (loader) return loader;
    if (pattern == s->train && !flags_was_set(s, "train") && access(pattern, F_OK))
        fail_no_data(run, err);
    else
        fail_flag(pattern == s->val ? "val" : "train", err);
    return NULL;
}

/* The default --eval-batches reads a short validation text once, not over and over. */
static void limit_eval_batches(Run *run) {
    Settings *s = &run->settings;
    const int64_t windows = (dataloader_n_tokens(run->val) - 1) / s->seq,
                  batches = (windows + s->batch - 1) / s->batch;
    if (!flags_was_set(s, "eval-batches") && s->eval_batches > batches) s->eval_batches = batches;
}

static bool same_file(const char *a, const char *b) {
    struct stat info_a, info_b;
    return stat(a, &info_a) == 0 && stat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
           info_a.st_ino == info_b.st_ino;
}

/* A wide pattern for --train takes the validation shard in. */
static void name_shared_file(const Run *run) {
    for (int i = 0; i < dataloader_n_files(run->val); i++)
        for (int j = 0; j < dataloader_n_files(run->train); j++) {
            const char *file = dataloader_file(run->val, i);
            if (!same_file(file, dataloader_file(run->train, j))) continue;
            printf("note: %s of --val is among the files of --train, too: the validation loss is of data "
                   "that was "
                   "trained on\n",
                   file);
            return;
        }
}

bool setup_data(Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (settings_sample_only(s)) return true;
    const bool shards = pattern_is_shards(s->train), own_val = s->val != NULL;
    if (!s->eval_only) {
        run->train = open_data(run, s->train, shards || own_val ? SPLIT_ALL : SPLIT_TRAIN, true, err);
        if (!run->train) return false;
    }
    if (shards && !own_val) return true; /* nothing to validate on */
    run->val = open_data(run, own_val ? s->val : s->train, own_val ? SPLIT_ALL : SPLIT_VAL, false, err);
    if (!run->val) return false;
    if (own_val && run->train) name_shared_file(run);
    limit_eval_batches(run);
    const int32_t *tokens, *targets; /* bad validation data ends the run now, not after hours */
    return dataloader_next(run->val, &tokens, &targets, err) || fail_flag(own_val ? "val" : "train", err);
}
