/* The folder of --out: whose it is, its lock, its room, and whether it is still there. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/base/terminal.h"
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/checkpoint/manifest.h"
#include "setup.h"

/* In DEFAULT_OUT: what is there was begun without --out, and the next such run may replace it. */
#define MARK "default_run"
static const char mark_text[] =
    "Made by a run without --out. The next one replaces the model here, unless this file is gone.\n";

enum { OUT_MAX = 960 }; /* bytes of --out: Run.checkpoint and the log add a name to it in 1024 */

/* ---- whose folder it is ---- */
/* The hint is one that helps: --resume, or for what it cannot go on with the reason. */
static bool fail_used(const char *out, const CheckpointEntry *entries, int n, Error *err) {
    Error newest = {0}, ignored;
    for (int i = 0; i < n; i++)
        if (checkpoint_looks_resumable(out, entries[i].name, i ? &ignored : &newest))
            return fail(err, EXIT_INPUT,
                        "--out %s: holds checkpoints of another run (%s); hint: --resume goes on with it, or "
                        "another folder",
                        out, entries[i].name);
    return fail(
        err, EXIT_INPUT,
        "--out %s: holds %s, named as a run's checkpoint, but %s; hint: move it away, or another --out", out,
        entries->name, newest.text);
}

/* The folder that took the place of the run's own. */
static bool fail_others(const char *out, const CheckpointEntry *entries, int n, Error *err) {
    return fail(
        err, EXIT_RUN,
        "--out %s: the folder that the run began in is gone (moved, removed or unmounted), the one of "
        "its name holds other checkpoints (%s)",
        out, entries->name);
}

/* A new run beside the checkpoints of another would leave --resume to guess which to go on with. */
static bool refuse_checkpoints(const char *out, Error *err,
                               bool (*why)(const char *, const CheckpointEntry *, int, Error *)) {
    CheckpointEntry *entries;
    int n;
    if (!checkpoint_entries(out, &entries, &n, err)) return fail_flag("out", err);
    const bool ok = n == 0 || why(out, entries, n, err);
    free(entries);
    return ok;
}

/* A checkpoint's own folder, or another model's, is no place for a run: what is in it would be taken for the run's, and
 * the other way round. */
static bool refuse_model_itself(const char *out, Error *err) {
    if (directory_has(out, MANIFEST_NAME))
        return fail(err, EXIT_INPUT,
                    "--out %s: is a checkpoint itself, not a run's folder; hint: --resume --out %s/.. "
                    "goes on with its run, --model %s begins another one from it",
                    out, out, out);
    return !directory_has(out, "config.json") ||
           fail(err, EXIT_INPUT,
                "--out %s: is a model itself (config.json), not a run's folder; hint: another --out, and "
                "--model %s begins a run from it",
                out, out);
}

/* ---- the lock ---- */
/* Empty, or with a run's signature; of a user's file of that name nothing is overwritten. */
static bool is_lock(int fd, const struct stat *info) {
    static const char begin[] = "process ";
    char found[sizeof begin - 1];
    return info->st_size == 0 ||
           (info->st_size < SIGNATURE && pread(fd, found, sizeof found, 0) == sizeof found &&
            memcmp(found, begin, sizeof found) == 0);
}

/* run.lock of the open folder; -1 with err, or without one where it is not there and not to be made. */
static int open_lock(int folder, const char *out, int make, Error *err) {
    struct stat info;
    *err = (Error){0};
    const int fd = openat(folder, "run.lock", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | make, 0666);
    const int reason = errno;
    if (fd < 0 && !make && errno == ENOENT) return -1;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        if (is_lock(fd, &info)) return fd;
        close(fd);
        fail(err, EXIT_INPUT,
             "--out: %s/run.lock: expected the lock of a run, found a file of %lld bytes that no run wrote; "
             "hint: move it away, or another --out",
             out, (long long)info.st_size);
        return -1;
    }
    if (fstatat(folder, "run.lock", &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(info.st_mode))
        fail(err, EXIT_INPUT,
             "--out: %s/run.lock: expected a file, found %s, through which nothing is written; hint: remove "
             "it, or another --out",
             out, file_type_name(info.st_mode));
    else
        fail(err, reason == ENOSPC || reason == EIO ? EXIT_RUN : EXIT_INPUT,
             "--out: cannot write %s/run.lock: %s", out, strerror(reason));
    if (fd >= 0) close(fd);
    return -1;
}

void setup_release_output(Run *run) {
    if (run->output_locked) close(run->output.lock);
    if (run->output_locked) close(run->output.folder);
    run->output_locked = false;
}

/* Two runs in one folder would mix their checkpoints and logs. The lock goes with the process, however it ends.
 * make: O_CREAT, or 0: a folder that has no run.lock stays as it is. */
static bool lock_output(Run *run, int make, Error *err) {
    const char *out = run->settings.out;
    Output output = {.folder = -1, .lock = -1, .alone = true};
    if (run->output_locked) return true;
    output.folder = directory_open(out, err);
    if (output.folder < 0) return fail_flag("out", err);
    output.lock = open_lock(output.folder, out, make, err);
    if (output.lock >= 0 && flock(output.lock, LOCK_EX | LOCK_NB)) {
        output.alone = false; /* the file system may have no locks: go on */
        if (errno == EWOULDBLOCK)
            fail(err, EXIT_INPUT,
                 "--out %s: another run is writing there; hint: another folder, or wait for it", out);
    }
    if (output.lock >= 0 && err->exit_code == 0) {
        run->output = output;
        return run->output_locked = true;
    }
    if (output.lock >= 0) close(output.lock);
    close(output.folder);
    return err->exit_code == 0;
}

/* run.lock says whose folder it is: the run knows it again in a copy on another disk, or when its disk was away. */
static void sign_output(Run *run) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (!run->signature[0])
        snprintf(run->signature, sizeof run->signature, "process %ld, begun %lld.%09ld\n", (long)getpid(),
                 (long long)now.tv_sec, now.tv_nsec);
    if (ftruncate(run->output.lock, 0) == 0) /* on a full disk the run does without */
        file_write_all(run->output.lock, run->signature, strlen(run->signature));
}

static bool is_signed(const Run *run) {
    char found[SIGNATURE];
    const ssize_t n = run->output_locked ? pread(run->output.lock, found, sizeof found, 0) : 0;
    return n > 0 && (size_t)n == strlen(run->signature) && memcmp(found, run->signature, (size_t)n) == 0;
}

/* The open folder has this name. */
static bool is_folder(const Run *run, const char *name) {
    struct stat held, named;
    return fstat(run->output.folder, &held) == 0 && stat(name, &named) == 0 && is_same_file(&held, &named);
}

/* --resume alone goes on with nothing but a run without --out. */
static bool refuse_unmarked(const char *out, Error *err) {
    if (directory_has(out, MARK)) return true;
    if (access(out, F_OK))
        return fail(
            err, EXIT_INPUT,
            "--resume without --out: there is no %s, which a run without --out makes; hint: --out DIR, "
            "the run's folder",
            out);
    return fail(err, EXIT_INPUT,
                "--resume without --out: %s has no %s, the mark of a run without --out; hint: --out DIR, the "
                "run's folder",
                out, MARK);
}

bool setup_check_output(Run *run, Error *err) {
    const Settings *s = &run->settings;
    const bool is_default = settings_out_is_default(s);
    struct stat info;
    if (!s->out || !ranks_leads(run->comm->ranks) || (is_default && !s->resume)) return true;
    if (is_default && !refuse_unmarked(s->out, err)) return false;
    if (s->memory) return true;
    if (strlen(s->out) >= OUT_MAX)
        return fail(err, EXIT_INPUT, "--out: the path is longer than %d bytes", OUT_MAX);
    if (stat(s->out, &info) && errno == ENOENT)
        return lstat(s->out, &info) != 0 ||
               fail(err, EXIT_INPUT,
                    "--out %s: expected a folder, found a symbolic link to nothing; hint: remove it, or make "
                    "the folder",
                    s->out);
    return refuse_model_itself(s->out, err) &&
           (s->eval_only || s->resume || refuse_checkpoints(s->out, err, fail_used)) &&
           log_check(s->out, s->resume, err) && lock_output(run, 0, err);
}

/* ---- ready to be written ---- */
/* Whatever a dead save left goes now: the lock says that no living one is at it. */
static void clean_output(const Run *run) {
    Error note;
    if (run->output.alone) {
        checkpoint_clean(run->settings.out);
        return;
    }
    fail(&note, EXIT_RUN,
         "--out %s: its file system has no locks: nothing keeps a second run out, and leftovers of dead "
         "saves stay",
         run->settings.out);
    warn(&note);
}

static bool check_room(const Run *run, Error *err) {
    const SaveOptions options = setup_save_options(run);
    return run->settings.eval_only || setup_is_finished(run) ||
           checkpoint_check_room(run->settings.out, &run->config, run->settings.optimizer, &options, err);
}

/* ---- the folder of a run without --out ---- */
/* A new folder, or one with the mark. */
static bool make_default(const char *out, Error *err) {
    if (directory_has(out, MARK)) return true;
    if (access(out, F_OK) == 0)
        return fail(err, EXIT_INPUT, "%s has no %s, the mark of a run without --out, and stays as it is", out,
                    MARK);
    return directory_make(out, err) && file_write(out, MARK, mark_text, strlen(mark_text), err);
}

/* The model that is there, which the run will replace; false where there is none. */
static bool find_replaced(const char *out, CheckpointEntry *newest) {
    CheckpointEntry *entries;
    Error ignored;
    int n;
    if (!checkpoint_entries(out, &entries, &n, &ignored)) return false;
    if (n > 0) *newest = entries[0];
    free(entries);
    return n > 0;
}

static bool take_default(Run *run, Error *err) {
    const char *out = run->settings.out;
    CheckpointEntry replaced;
    if (!make_default(out, err) || !lock_output(run, O_CREAT, err) || !log_check(out, false, err) ||
        !check_room(run, err))
        return false;
    if (run->output.alone) checkpoint_clean(out);
    sign_output(run);
    /* A run that was killed before its save left its log beside another's model. */
    if (find_replaced(out, &replaced)) log_take_back(out, replaced.step);
    unlinkat(run->output.folder, LOG_ASIDE, 0); /* the log of the model that is there takes its place */
    return true;
}

/* Who asks for text of the model that is there, or stops this run early, would see it replaced. */
static void say_replaces(const Settings *s) {
    CheckpointEntry replaced;
    if (!find_replaced(s->out, &replaced)) return;
    if (s->prompt_file || flags_was_set(s, "prompt"))
        print_note("--prompt without --model: a new model is trained, and replaces the one in %s; hint: "
                   "--model %s samples from that one",
                   s->out, s->out);
    else
        print_note(
            "this run's model replaces %s/%s at its end, or where it is stopped; hint: --out DIR keeps "
            "both",
            s->out, replaced.name);
}

/* Where nobody asked for it, the run goes on without. */
static bool open_default(Run *run, Error *err) {
    if (take_default(run, err)) {
        say_replaces(&run->settings);
        return true;
    }
    if (run->settings.resume) return false;
    const char *hint = strstr(err->text, "; hint: "); /* one for who names a folder */
    print_note("no model is kept: %.*s; hint: --out DIR", hint ? (int)(hint - err->text) : -1, err->text);
    setup_release_output(run);
    run->settings.out = NULL;
    *err = (Error){0};
    return true;
}

/* The folder stays one of runs without --out, whichever way it is named. */
static void say_default_goes(const Run *run) {
    const char *out = run->settings.out;
    if (directory_has(out, MARK) && !settings_out_is_default(&run->settings) && is_folder(run, DEFAULT_OUT))
        print_note(
            "the next run without --out replaces what is in %s; hint: move the folder, or remove %s/%s", out,
            out, MARK);
}

void setup_share_output(Run *run) {
    bool keeps = run->settings.out != NULL;
    run->comm->broadcast_on_host(run->comm, &keeps, sizeof keeps);
    if (!keeps) run->settings.out = NULL;
}

bool setup_output(Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (!s->out || !ranks_leads(run->comm->ranks)) return true;
    if (settings_out_is_default(s) && !run->checkpoint[0]) return open_default(run, err);
    if (access(s->out, F_OK) && !check_room(run, err)) return false; /* no folder is made for nothing */
    if (!directory_make(s->out, err)) return fail_flag("out", err);
    if (!lock_output(run, O_CREAT, err)) return false;
    if (s->eval_only) return true; /* a line of its log is all that is written */
    /* Before the lock another run may have begun and ended in a new folder. */
    if (!run->checkpoint[0] && !refuse_checkpoints(s->out, err, fail_used)) return false;
    if (!run->checkpoint[0])
        unlinkat(run->output.folder, MARK, 0); /* the user's from now on */
    else
        say_default_goes(run);
    sign_output(run);
    clean_output(run);
    return check_room(run, err);
}

/* ---- while the run goes on ---- */
static bool stands(const Run *run) {
    return run->output_locked && is_folder(run, run->settings.out);
}

/* The folder of that name: the run's own, as run.lock says, or a new one. */
static bool take_named(Run *run, bool *own, Error *err) {
    const char *out = run->settings.out;
    Error cause;
    if (!directory_make(out, &cause))
        return fail(err, EXIT_RUN, "--out %s: the folder that the run began in is gone, and %s", out,
                    cause.text);
    if (!lock_output(run, 0, err)) return false;
    *own = is_signed(run);
    if (!*own && !refuse_checkpoints(out, err, fail_others)) {
        setup_release_output(run);
        return false;
    }
    if (!lock_output(run, O_CREAT, err)) return false;
    if (!*own) sign_output(run);
    return true;
}

bool setup_follow_output(Run *run, bool *moved, Error *err) {
    const char *out = run->settings.out;
    Error note;
    bool own = false;
    *moved = false;
    if (stands(run)) return true;
    setup_release_output(run);
    if (!take_named(run, &own, err)) return false;
    if (settings_out_is_default(&run->settings) && !directory_has(out, MARK) &&
        !file_write(out, MARK, mark_text, strlen(mark_text), err))
        return false;
    fail(
        &note, EXIT_RUN,
        own ? "--out %s: the folder is another one (copied to another disk, or mounted anew) with this run's "
              "files; the run goes on there"
            : "--out %s: the folder is gone (moved, removed or unmounted); the run goes on in a new one",
        out);
    warn(&note);
    return *moved = true;
}
