/* Checkpoints in a bad world: flipped bits, cut files, a full disk, no permission, and a fault or a kill at
 * every system call of a save. Whatever happens, the newest or the previous checkpoint is found whole, bit
 * for bit. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <pthread.h>
#include "llmc/base/files.h"
#include "llmc/base/parallel.h"
#include "dev/test/run_folder.h"

/* ---- the system calls of a save, with a fault at the n-th ---- */
typedef enum { NO_FAULT, KILL, FAIL_ONCE, FAIL_FROM, SHORT_WRITE } FaultKind;

static struct {
    FaultKind kind;
    int at;    /* index of the call that fails, from 0 */
    int error; /* its errno */
    int n;     /* calls so far */
} fault;

/* Counts a call; true if it is to fail, with errno set. */
static bool hit(void) {
    int call = fault.n++;
    if (fault.kind == KILL && call == fault.at) kill(getpid(), SIGKILL);
    errno = fault.error;
    return (fault.kind == FAIL_ONCE && call == fault.at) || (fault.kind == FAIL_FROM && call >= fault.at);
}

/* Files and directories whose last change was followed by an fsync, by inode. */
static ino_t synced[256];
static int n_synced;

static void set_synced(ino_t inode, bool yes) {
    int k = 0;
    for (int i = 0; i < n_synced; i++)
        if (synced[i] != inode) synced[k++] = synced[i];
    if (yes && k < 256) synced[k++] = inode;
    n_synced = k;
}

static bool is_synced(const char *path) {
    struct stat info;
    bool found = false;
    if (stat(path, &info)) return false;
    for (int i = 0; i < n_synced; i++) found |= synced[i] == info.st_ino;
    return found;
}

/* A name in the directory of `path` changed. */
static void unsync_parent(const char *path) {
    char parent[600];
    struct stat info;
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (stat(parent, &info) == 0) set_synced(info.st_ino, false);
}

static int n_read; /* openings of a file of optimizer states to read it */

/* These take the place of the C library's for the whole program. */
int open(const char *path, int flags, ...) {
    if ((flags & O_CREAT) && hit()) return -1;
    if (flags & O_CREAT) unsync_parent(path);
    n_read += !(flags & O_CREAT) && strstr(path, "optimizer.safetensors");
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0644);
}

ssize_t write(int fd, const void *data, size_t n) {
    bool shortened = fault.kind == SHORT_WRITE && fault.n == fault.at && n > 1;
    struct stat info;
    if (hit()) return -1;
    if (fstat(fd, &info) == 0) set_synced(info.st_ino, false);
    return syscall(SYS_write, fd, data, shortened ? n / 2 : n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) {
    bool shortened = fault.kind == SHORT_WRITE && fault.n == fault.at && n > 1;
    struct stat info;
    if (hit()) return -1;
    if (fstat(fd, &info) == 0) set_synced(info.st_ino, false);
    return syscall(SYS_pwrite64, fd, data, shortened ? n / 2 : n, offset);
}

int fsync(int fd) {
    struct stat info;
    if (hit()) return -1;
    if (fstat(fd, &info) == 0) set_synced(info.st_ino, true);
    return 0; /* no test looks at the disk itself */
}

/* Nothing goes to the disk: a file that is soon removed would wait for it twice. */
int sync_file_range(int fd, off_t offset, off_t n, unsigned flags) {
    (void)fd, (void)offset, (void)n, (void)flags;
    return 0;
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    struct stat info;
    if (hit()) return -1;
    if (fstat(to_folder, &info) == 0) set_synced(info.st_ino, false);
    return (int)syscall(SYS_renameat, from_folder, from, to_folder, to);
}

int mkdir(const char *path, mode_t mode) {
    return hit() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int mkdirat(int folder_fd, const char *path, mode_t mode) {
    return hit() ? -1 : (int)syscall(SYS_mkdirat, folder_fd, path, mode);
}

int unlinkat(int folder_fd, const char *path, int flags) {
    return hit() ? -1 : (int)syscall(SYS_unlinkat, folder_fd, path, flags);
}

/* ---- damage ---- */
static int64_t file_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

/* True if the damaged checkpoint is refused with the file's name in the message. */
static bool refused(const char *checkpoint, const char *file) {
    TrainerState state;
    Error err = {0};
    if (checkpoint_resume(checkpoint, &model, &state, &err)) {
        free((char *)state.flags);
        return false;
    }
    return err.exit_code == EXIT_INPUT && strstr(err.text, file);
}

static void test_bit_flips(const char *checkpoint, char **names, int n) {
    uint32_t random = 2463534242u;
    int n_missed = 0, n_kept = 0;
    for (int round = 0; round < 2000; round++) {
        char path[600];
        const char *name = names[round % n];
        snprintf(path, sizeof path, "%s/%s", checkpoint, name);
        random ^= random << 13, random ^= random >> 17, random ^= random << 5;
        int64_t bit = random % (8 * file_bytes(path));
        flip_bit(path, bit);
        if (!refused(checkpoint, name)) {
            n_missed++;
            printf("  %s: flip of bit %lld was not found\n", name, (long long)bit);
        }
        if (round % 100 == 0) n_kept += newest_seed(path_of("run")) == 1;
        flip_bit(path, bit);
    }
    CHECK(n_missed == 0, "%d of 2000 flipped bits were not found", n_missed);
    CHECK(n_kept == 20, "the previous checkpoint was found %d of 20 times", n_kept);
}

/* Every bit of trainer_state.json, which must find its own damage. */
static void test_all_flips_of_state(const char *checkpoint) {
    char path[600];
    int n_missed = 0;
    snprintf(path, sizeof path, "%s/trainer_state.json", checkpoint);
    for (int64_t bit = 0; bit < 8 * file_bytes(path); bit++) {
        flip_bit(path, bit);
        n_missed += !refused(checkpoint, "trainer_state.json");
        flip_bit(path, bit);
    }
    CHECK(n_missed == 0, "%d flipped bits of trainer_state.json were not found", n_missed);
}

/* Cut at 40 places and at each of the last 64 bytes; bytes added; removed. */
static void test_cuts(const char *checkpoint, const char *name) {
    char path[600];
    size_t size;
    Error err = {0};
    int n_missed = 0;
    snprintf(path, sizeof path, "%s/%s", checkpoint, name);
    char *bytes = file_read(path, 1 << 24, &size, &err);
    if (!CHECK(bytes, "%s", err.text)) return;
    for (int i = 0; i < 106; i++) {
        int64_t cut = i < 40 ? (int64_t)size * i / 40 : (int64_t)size - 64 + (i - 40);
        if (cut < 0 || cut == (int64_t)size) continue;
        CHECK(truncate(path, cut) == 0, "truncate");
        n_missed += !refused(checkpoint, name);
        int fd = open(path, O_WRONLY);
        REQUIRE(pwrite(fd, bytes, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0,
                "restoring %s", path);
        close(fd);
    }
    CHECK(n_missed == 0, "%s: %d cuts were not found", name, n_missed);
    unlink(path);
    CHECK(refused(checkpoint, name), "%s: missing, not found out", name);
    FILE *file = fopen(path, "w");
    REQUIRE(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "restoring %s", path);
    free(bytes);
}

static void test_damage(void) {
    char **names;
    int n;
    Error err = {0};
    const char *out = path_of("run"), *checkpoint = path_of("run/step_00000002");
    char newest[256];
    snprintf(newest, sizeof newest, "%s", checkpoint);
    CHECK(save(out, 1, 1, 0, &err) && save(out, 2, 2, 0, &err), "%s", err.text);
    CHECK(newest_seed(path_of("run")) == 2, "the newest is found");
    if (!CHECK(directory_list(newest, "", &names, &n, &err) && n == 9, "%d files", n)) return;
    test_bit_flips(newest, names, n);
    test_all_flips_of_state(newest);
    for (int i = 0; i < n; i++) test_cuts(newest, names[i]);
    CHECK(newest_seed(path_of("run")) == 2, "restored, the newest is found again");
    names_free(names, n);
}

/* The message says which tensor a flipped bit is in. */
static void test_tensor_named(void) {
    const char *path = path_of("run/step_00000002/optimizer.safetensors");
    Error err = {0};
    TrainerState state;
    flip_bit(path, 8 * (file_bytes(path) - 1));
    CHECK(!checkpoint_resume(path_of("run/step_00000002"), &model, &state, &err) &&
              strstr(err.text, "tensor v.ln_f.bias"),
          "%s", err.text);
    load_accepts(&model, path_of("run/step_00000002"), 2); /* --model needs no optimizer */
    CHECK(newest_seed(path_of("run")) == 1, "the previous one is found");
}

/* Both damaged: refused, not silently started from scratch. */
static void test_all_damaged(void) {
    char path[256];
    Error err = {0};
    CHECK(truncate(path_of("run/step_00000001/config.json"), 10) == 0, "truncate");
    CHECK(!find_quietly(path_of("run"), path, &err) && err.exit_code == EXIT_INPUT &&
              strstr(err.text, "found 2 that cannot be used"),
          "%s", err.text);
}

/* ---- places that cannot be written ---- */
static void test_unwritable(void) {
    Error err = {0};
    write_text(path_of("file"), "x");
    CHECK(!save(path_of("file"), 1, 1, 0, &err) && err.exit_code == EXIT_RUN &&
              strstr(err.text, "Not a directory"),
          "%s", err.text);
    CHECK(!save(path_of("file/below"), 1, 1, 0, &err) && err.exit_code == EXIT_RUN, "%s", err.text);
    CHECK(!save("", 1, 1, 0, &err) && err.exit_code == EXIT_RUN, "%s", err.text);
    CHECK(save(path_of("locked"), 1, 1, 0, &err), "%s", err.text);
    REQUIRE(chmod(folder, 0755) == 0 && chmod(path_of("locked"), 0555) == 0, "chmod");
    bool is_root = geteuid() == 0; /* whom no mode bits stop */
    if (is_root && seteuid(65534) != 0) {
        SKIP("cannot drop root's rights, so no directory is unwritable");
        return;
    }
    CHECK(!save(path_of("locked"), 2, 2, 1, &err) && err.exit_code == EXIT_INPUT &&
              strstr(err.text, "Permission denied"),
          "%s", err.text);
    if (is_root) CHECK(seteuid(0) == 0, "seteuid");
    REQUIRE(chmod(path_of("locked"), 0755) == 0, "chmod");
    CHECK(newest_seed(path_of("locked")) == 1, "the previous checkpoint stands");
}

/* A limit on the size of files stands for a full disk: the save fails, and the next one works. */
static void test_full_disk(void) {
    struct rlimit limit, none;
    Error err = {0};
    CHECK(save(path_of("full"), 1, 1, 0, &err), "%s", err.text);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &none);
    for (rlim_t bytes = 0; bytes < 300000; bytes += 30000) {
        limit = (struct rlimit){bytes, none.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        bool saved = save(path_of("full"), 2, 2, 1, &err);
        setrlimit(RLIMIT_FSIZE, &none);
        if (saved) break;
        CHECK(err.exit_code == EXIT_RUN && strstr(err.text, "checkpoint of step 2 not saved: cannot write") &&
                  strstr(err.text, "File too large"),
              "%s", err.text);
        CHECK(count_names(path_of("full"), "") == 1 && newest_seed(path_of("full")) == 1, "at %d bytes",
              (int)bytes);
    }
    CHECK(save(path_of("full"), 3, 3, 0, &err) && newest_seed(path_of("full")) == 3, "%s", err.text);
}

/* ---- a fault at every call ---- */
/* A save, here or as training does it: by a thread, from a snapshot. */
typedef struct Job {
    const char *out;
    const TrainerState *state;
    const Tokenizer *tokenizer;
    SaveOptions options;
    Error *err;
    bool ok;
} Job;

static void *run_job(void *argument) {
    Job *job = argument;
    job->ok = checkpoint_save(job->out, &model, job->tokenizer, job->state, &job->options, job->err);
    return NULL;
}

static bool in_thread; /* the latter */

static bool save_somewhere(const char *out, const TrainerState *state, const Tokenizer *tokenizer,
                           Error *err) {
    Job job = {out, state, tokenizer, {.keep = 1}, err, false};
    Snapshot snapshot = {0};
    pthread_t thread;
    if (!in_thread) return run_job(&job), job.ok;
    if (!REQUIRE(snapshot_open(&snapshot, &model, false), "no memory")) return false;
    snapshot_take(&snapshot, &model, false);
    job.options.snapshot = &snapshot;
    REQUIRE(pthread_create(&thread, NULL, run_job, &job) == 0 && pthread_join(thread, NULL) == 0,
            "no thread");
    checkpoint_end_removal();
    snapshot_close(&snapshot);
    return job.ok;
}

/* One save with a fault; in a child that it kills, or here. Returns false if the save said so. */
static bool save_with_fault(const char *out, int64_t step, FaultKind kind, int at, int error, Error *err) {
    *err = (Error){0};
    tiny_fill(&model, 2);
    Tokenizer *tokenizer = tokenizer_open("bytes", err);
    const TrainerState state = {.step = step, .seed = 2};
    pid_t child = kind == KILL ? fork() : 0;
    bool saved = false;
    int status = 0;
    if (child == 0) {
        const int kept = begin_quiet(); /* leftovers that cannot be removed are warned of */
        fault.kind = kind, fault.at = at, fault.error = error, fault.n = 0;
        saved = save_somewhere(out, &state, tokenizer, err);
        fault.kind = NO_FAULT;
        end_quiet(kept);
        if (kind == KILL) _exit(0);
    } else {
        CHECK(waitpid(child, &status, 0) == child, "waitpid");
        saved = WIFEXITED(status);
        CHECK(saved || WTERMSIG(status) == SIGKILL, "the child ended with status %d", status);
    }
    tokenizer_close(tokenizer);
    return saved;
}

/* Step 1 of seed 1 stands, then a save of seed 2 to `step` suffers the fault. */
static bool survives(int64_t step, FaultKind kind, int at, int error) {
    const char *out = path_of("fault");
    char run[256];
    Error err = {0};
    snprintf(run, sizeof run, "%s", out);
    remove_tree(run);
    if (!CHECK(save(run, 1, 1, 0, &err), "%s", err.text)) return false;
    bool saved = save_with_fault(run, step, kind, at, error, &err);
    if (!saved && kind != KILL) {
        bool told = err.exit_code == EXIT_RUN && strstr(err.text, strerror(error));
        CHECK(told, "step %d, call %d: message '%s'", (int)step, at, err.text);
    }
    uint64_t seed = newest_seed(run);
    bool ok = CHECK(seed == 2 || (seed == 1 && !saved),
                    "step %d, fault %d (%s) at call %d: saved %d, found seed %d", (int)step, kind,
                    strerror(error), at, saved, (int)seed);
    if (kind == FAIL_ONCE && !saved)
        ok &= CHECK(count_names(run, ".tmp-") == 0, "call %d: the temporary directory stays", at);
    checkpoint_clean(run);
    ok &= CHECK(save(run, 3, 5, 1, &err), "the next save: %s", err.text);
    return ok && CHECK(newest_seed(run) == 3 && count_names(run, "") == 1,
                       "step %d, fault %d at call %d: leftovers", (int)step, kind, at);
}

/* All faults at all calls of a save beside (step 2) or over (step 1) the previous checkpoint. */
static void test_faults(int64_t step) {
    static const struct {
        FaultKind kind;
        int error;
    } faults[] = {
        {KILL,        0     },
        {FAIL_ONCE,   EIO   },
        {FAIL_FROM,   ENOSPC},
        {SHORT_WRITE, 0     }
    };
    Error err = {0};
    CHECK(save(path_of("fault"), 1, 1, 0, &err), "%s", err.text);
    CHECK(save_with_fault(path_of("fault"), step, NO_FAULT, 0, 0, &err), "%s", err.text);
    int n_calls = fault.n;
    CHECK(n_calls > 20, "only %d calls were seen", n_calls);
    const size_t n_kinds =
        in_thread ? 1 : sizeof faults / sizeof *faults; /* the same calls: the kill alone */
    for (size_t k = 0; k < n_kinds; k++)
        for (int at = 0; at < n_calls; at++)
            if (!survives(step, faults[k].kind, at, faults[k].error)) return;
}

/* All files of a checkpoint are as old as that; below zero: from a time to come. */
static void age(const char *checkpoint, int seconds) {
    const struct timespec now = {.tv_sec = time(NULL) - seconds}, times[2] = {now, now};
    char **names, path[600];
    int n;
    Error err = {0};
    if (!CHECK(directory_list(checkpoint, "", &names, &n, &err), "%s", err.text)) return;
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", checkpoint, names[i]);
        CHECK(utimensat(AT_FDCWD, path, times, 0) == 0, "the times of %s", path);
    }
    names_free(names, n);
}

/* Found and loaded, a file is read twice; once more where it is too young to tell, or was written in between. */
static void test_reads(void) {
    const char *const checkpoint = "reads/step_00000001";
    char path[256];
    TrainerState state = {0};
    Error err = {0};
    CHECK(save(path_of("reads"), 1, 1, 0, &err), "%s", err.text);
    for (int young = 0; young < 2; young++) {
        age(path_of(checkpoint), young ? -600 : 60);
        n_read = 0;
        CHECK(newest_seed(path_of("reads")) == 1 && n_read == 2 + young, "%s files are read %d times",
              young ? "young" : "old", n_read);
    }
    age(path_of(checkpoint), 60);
    CHECK(find_quietly(path_of("reads"), path, &err), "%s", err.text);
    flip_bit(path_of("reads/step_00000001/optimizer.safetensors"), 50000);
    CHECK(!checkpoint_resume(path, &model, &state, &err) && strstr(err.text, "damaged"),
          "damaged once it was found: %s", err.text);
}

/* After a save, every file, its directory and the run's folder have been synced since their last change. */
static void test_durable(void) {
    char **names, path[600];
    int n;
    Error err = {0};
    n_synced = 0;
    CHECK(save(path_of("durable"), 1, 1, 0, &err) && save(path_of("durable"), 2, 1, 0, &err), "%s", err.text);
    if (!CHECK(directory_list(path_of("durable/step_00000001"), "", &names, &n, &err) && n == 9, "%d files",
               n))
        return;
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", path_of("durable/step_00000001"), names[i]);
        CHECK(is_synced(path), "%s is not synced", names[i]);
    }
    CHECK(is_synced(path_of("durable/step_00000001")) && is_synced(path_of("durable")),
          "a directory is not synced");
    names_free(names, n);
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("checkpoint_faults");
    cpu_set_thread_count(1); /* calls come in one order */
    tiny_open(&model, &tiny_config);
    test_damage();
    test_tensor_named();
    test_all_damaged();
    test_reads();
    test_unwritable();
    test_full_disk();
    test_faults(2);
    test_faults(1);
    in_thread = true;
    test_faults(2);
    test_durable();
    gpt2_close(&model);
    remove_tree(folder);
    return check_finish("checkpoint_faults");
}
