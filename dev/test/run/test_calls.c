/* How files are read and written, at calls of the system that this test puts itself in front of: interrupted calls are made
 * again, short ones go on, what must be on the disk is synced before it takes its name, and every failure is seen. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/run/log.h"
#include "dev/test/check.h"
#include "dev/test/folder.h"

/* ---- the calls ---- */

static struct {
    bool interrupted, brief;      /* every second call is interrupted; no call moves more than 1000 bytes */
    bool sync_fails, close_fails; /* with EIO */
    int n_calls, n_interrupted;   /* of reading and writing */
    char order[256];              /* s: a file is synced, d: a directory, n: a file takes its name */
} calls;

static void note(char what) {
    const size_t n = strlen(calls.order);
    if (n + 1 < sizeof calls.order) calls.order[n] = what;
}

/* -1 with EINTR, or how many bytes of n may be moved. */
static ssize_t allowed(size_t n) {
    if (calls.interrupted && calls.n_calls++ % 2 == 0) {
        calls.n_interrupted++;
        errno = EINTR;
        return -1;
    }
    return (ssize_t)(calls.brief && n > 1000 ? 1000 : n);
}

ssize_t write(int fd, const void *bytes, size_t n) {
    const ssize_t most = allowed(n);
    return most < 0 ? -1 : syscall(SYS_write, fd, bytes, (size_t)most);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset) {
    const ssize_t most = allowed(n);
    return most < 0 ? -1 : syscall(SYS_pread64, fd, bytes, (size_t)most, offset);
}

int fsync(int fd) {
    struct stat info;
    note(fstat(fd, &info) == 0 && S_ISDIR(info.st_mode) ? 'd' : 's');
    errno = EIO;
    return calls.sync_fails ? -1 : (int)syscall(SYS_fsync, fd);
}

int close(int fd) {
    const int status = (int)syscall(SYS_close, fd);
    if (!calls.close_fails) return status;
    errno = EIO;
    return -1;
}

int rename(const char *from, const char *to) {
    note('n');
    return (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

static void plain_calls(void) {
    memset(&calls, 0, sizeof calls);
}

/* ---- files ---- */

enum { N = 400000 }; /* more than a buffer */

static bool write_all(const char *path, const char *bytes, Error *err) {
    OutFile file;
    unlink(path);
    *err = (Error){0};
    if (!outfile_open(&file, path, err)) return false;
    if (outfile_write(&file, bytes, N, err) && outfile_close(&file, err)) return true;
    outfile_abandon(&file);
    return false;
}

static void test_files(void) {
    char *bytes = malloc(N), path[128];
    Error err;
    size_t size = 0;
    int64_t n_bytes;
    uint32_t crc, again;
    if (!bytes) abort();
    for (int i = 0; i < N; i++) bytes[i] = (char)((uint32_t)i * 2654435761u >> 24);
    snprintf(path, sizeof path, "%s/file", folder);
    plain_calls();
    CHECK(write_all(path, bytes, &err) && strcmp(calls.order, "s") == 0, "synced once: '%s', %s", calls.order,
          err.text);
    CHECK(file_checksum(path, &n_bytes, &crc, &err) && strcmp(calls.order, "s") == 0, "and only there: %s",
          calls.order);
    calls.interrupted = calls.brief = true;
    CHECK(write_all(path, bytes, &err) && calls.n_interrupted > 100, "%d interrupted writes: %s",
          calls.n_interrupted, err.text);
    char *found = file_read(path, N, &size, &err);
    CHECK(found && size == N && memcmp(found, bytes, N) == 0, "interrupted and short calls lose nothing: %s",
          err.text);
    CHECK(file_checksum(path, &n_bytes, &again, &err) && again == crc && n_bytes == N,
          "the same checksum: %s", err.text);
    plain_calls();
    calls.sync_fails = true;
    CHECK(!write_all(path, bytes, &err) && err.exit_code == EXIT_RUN && strstr(err.text, "sync"),
          "fsync fails: %s", err.text);
    CHECK(!directory_sync(folder, &err), "fsync of a directory fails with EIO");
    plain_calls();
    calls.close_fails = true;
    CHECK(!write_all(path, bytes, &err) && strstr(err.text, "close"), "close fails: %s", err.text);
    plain_calls();
    CHECK(directory_sync(folder, &err) && strcmp(calls.order, "d") == 0, "a directory is synced: %s",
          calls.order);
    free(found);
    free(bytes);
}

/* ---- the log ---- */

static int count_lines(const char *path) {
    FILE *file = fopen(path, "r");
    int n = 0;
    for (int c; file && (c = fgetc(file)) != EOF;) n += c == '\n';
    if (file) fclose(file);
    return n;
}

static void test_log(void) {
    char path[128];
    RunLog run;
    Error err = {0};
    LogHeader header = {.model = "nano", .device = "cpu", .n_ranks = 1};
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    plain_calls();
    if (!CHECK(log_open(&run, folder, -1, &header, &err), "%s", err.text)) return;
    calls.interrupted = true;
    for (int64_t step = 1; step <= 4; step++) log_val(&run, step, 2, NULL);
    CHECK(calls.n_interrupted == 4 && count_lines(path) == 5 && run.n_lost == 0,
          "interrupted writes: %d lines", count_lines(path));
    log_close(&run);
    plain_calls();
    CHECK(log_open(&run, folder, 2, &header, &err), "%s", err.text);
    CHECK(strcmp(calls.order, "snd") == 0, "a log that is cut is on the disk before it takes its name: %s",
          calls.order);
    CHECK(count_lines(path) == 4, "the header, two steps, another header: %d lines", count_lines(path));
    log_close(&run);
    calls.sync_fails = true;
    CHECK(!log_open(&run, folder, 1, &header, &err) && count_lines(path) == 4,
          "fsync fails: the log stays as it is: %s", err.text);
    plain_calls();
}

int main(void) {
    if (!CHECK(mkdtemp(folder), "no folder")) return check_finish("calls");
    test_files();
    test_log();
    empty_folder();
    rmdir(folder);
    return check_finish("calls");
}
