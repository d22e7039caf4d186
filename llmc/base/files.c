#include "files.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "checksum.h"

enum { BUFFER_BYTES = 256 << 10 }; /* a system call takes 1 % of the time of copying so much */

bool fail_errno(Error *err, const char *what, const char *path) {
    static const int input[] = {ENOENT, EACCES, EPERM, EROFS, ENOTDIR, EISDIR, EEXIST, ELOOP, ENAMETOOLONG};
    int code = errno, exit_code = EXIT_RUN;
    for (size_t i = 0; i < sizeof input / sizeof *input; i++)
        if (input[i] == code) exit_code = EXIT_INPUT;
    const size_t n = strlen(path), most = sizeof err->text - 200; /* words, and the reason */
    return fail(err, exit_code, "%s %s%s: %s", what, n > most ? "..." : "", n > most ? path + n - most : path,
                strerror(code));
}

bool fail_stdin(Error *err) {
    if (errno == EBADF) return fail(err, EXIT_INPUT, "stdin: expected text, found it closed");
    return fail_errno(err, "cannot read", "stdin");
}

bool error_is_full(const Error *err) {
    return text_ends_in(err->text, strerror(ENOSPC)) || text_ends_in(err->text, strerror(EDQUOT));
}

/* Some file systems (SMB, FUSE) have no fsync, of directories above all: what there is none of has not failed. */
static bool sync_fd(int fd) {
    static const int has_none[] = {EINVAL, ENOSYS, EOPNOTSUPP};
    int failed;
    do failed = fsync(fd);
    while (failed && errno == EINTR);
    for (size_t i = 0; failed && i < sizeof has_none / sizeof *has_none; i++)
        if (errno == has_none[i]) return true;
    return !failed;
}

bool file_sync(int fd, const char *path, Error *err) {
    return sync_fd(fd) || fail_errno(err, "cannot sync", path);
}

bool text_ends_in(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

bool path_copy(char *path, const char *from, Error *err) {
    if (snprintf(path, PATH_MAX, "%s", from) < PATH_MAX) return true;
    return fail(err, EXIT_INPUT, "%.200s...: the path is longer than %d bytes", from, PATH_MAX - 1);
}

bool path_join(char *path, const char *directory, const char *name, Error *err) {
    if (snprintf(path, PATH_MAX, "%s/%s", directory, name) < PATH_MAX) return true;
    return fail(err, EXIT_INPUT, "%.200s.../%.200s: the path is longer than %d bytes", directory, name,
                PATH_MAX - 1);
}

void path_parent(char *parent, const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash)
        strcpy(parent, ".");
    else
        snprintf(parent, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- reading ---- */
const char *file_type_name(mode_t mode) {
    return S_ISREG(mode)    ? "a file"
           : S_ISLNK(mode)  ? "a symbolic link"
           : S_ISDIR(mode)  ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

bool file_is_free(const char *path, Error *err) {
    struct stat info;
    if (lstat(path, &info) != 0) return true;
    const bool may_go = S_ISREG(info.st_mode) || S_ISLNK(info.st_mode) || S_ISDIR(info.st_mode);
    return fail(err, EXIT_INPUT, "%s is there already (%s), and nothing is replaced; hint: %sanother name",
                path, file_type_name(info.st_mode), may_go ? "remove it, or " : "");
}

int file_open(const char *path, int64_t *bytes, Error *err) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        fail_errno(err, "cannot open", path);
        return -1;
    }
    if (fstat(fd, &info))
        fail_errno(err, "cannot open", path);
    else if (!S_ISREG(info.st_mode))
        fail(err, EXIT_INPUT, "%s: expected a file, found %s", path, file_type_name(info.st_mode));
    else {
        *bytes = info.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

bool file_read_at(int fd, const char *path, void *out, size_t n, int64_t offset, Error *err) {
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)out + done, n - done, offset + (int64_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(err, "cannot read", path);
        if (got == 0)
            return fail(err, EXIT_INPUT,
                        "%s: expected %zu bytes at offset %lld, found %zu: the file is cut short", path, n,
                        (long long)offset, done);
        done += (size_t)got;
    }
    return true;
}

char *file_read(const char *path, size_t max_bytes, size_t *size, Error *err) {
    int64_t bytes;
    char *text = NULL;
    int fd = file_open(path, &bytes, err);
    if (fd < 0) return NULL;
    if ((uint64_t)bytes > max_bytes)
        fail(err, EXIT_INPUT, "%s: expected at most %zu bytes, found %lld", path, max_bytes,
             (long long)bytes);
    else if (!(text = malloc((size_t)bytes + 1)))
        fail(err, EXIT_RUN, "%s: no memory for its %lld bytes", path, (long long)bytes);
    else if (!file_read_at(fd, path, text, (size_t)bytes, 0, err)) {
        free(text);
        text = NULL;
    } else {
        text[bytes] = 0;
        *size = (size_t)bytes;
    }
    close(fd);
    return text;
}

bool file_checksum_at(int fd, const char *path, int64_t begin, int64_t end, uint32_t *crc, Error *err) {
    char *buffer = malloc(BUFFER_BYTES);
    if (!buffer) return fail(err, EXIT_RUN, "%s: no memory to read it", path);
    bool ok = true;
    *crc = 0;
    for (int64_t at = begin; ok && at < end; at += BUFFER_BYTES) {
        size_t n = end - at < BUFFER_BYTES ? (size_t)(end - at) : BUFFER_BYTES;
        ok = file_read_at(fd, path, buffer, n, at, err);
        if (ok) *crc = crc32c(*crc, buffer, n);
    }
    free(buffer);
    return ok;
}

bool file_checksum(const char *path, int64_t *bytes, uint32_t *crc, Error *err) {
    int fd = file_open(path, bytes, err);
    if (fd < 0) return false;
    const bool ok = file_checksum_at(fd, path, 0, *bytes, crc, err);
    close(fd);
    return ok;
}

/* ---- writing ---- */
bool outfile_open(OutFile *file, const char *path, Error *err) {
    *file = (OutFile){.fd = -1};
    if (!path_copy(file->path, path, err)) return false;
    file->buffer = malloc(BUFFER_BYTES);
    if (!file->buffer) return fail(err, EXIT_RUN, "%s: no memory to write it", path);
    file->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file->fd >= 0) return true;
    fail_errno(err, "cannot create", path);
    outfile_abandon(file);
    return false;
}

bool (*file_writes_end)(void);

/* At an offset, or (-1) where the file is. */
static bool write_all(int fd, const char *bytes, size_t n, int64_t offset) {
    for (size_t done = 0; done < n;) {
        if (file_writes_end && file_writes_end()) {
            errno = EINTR;
            return false;
        }
        const ssize_t put = offset < 0 ? write(fd, bytes + done, n - done)
                                       : pwrite(fd, bytes + done, n - done, offset + (int64_t)done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        done += (size_t)put;
    }
    return true;
}

bool file_write_all(int fd, const char *bytes, size_t n) {
    return write_all(fd, bytes, n, -1);
}

static bool flush(OutFile *file, Error *err) {
    if (!file_write_all(file->fd, file->buffer, file->used))
        return fail_errno(err, "cannot write", file->path);
    file->used = 0;
    return true;
}

bool outfile_write(OutFile *file, const void *data, size_t n, Error *err) {
    file->bytes += (int64_t)n;
    file->crc = crc32c(file->crc, data, n);
    for (const char *p = data; n > 0;) {
        size_t room = BUFFER_BYTES - file->used, part = n < room ? n : room;
        memcpy(file->buffer + file->used, p, part);
        file->used += part;
        p += part;
        n -= part;
        if (file->used == BUFFER_BYTES && !flush(file, err)) return false;
    }
    return true;
}

bool outfile_write_at(const OutFile *file, const void *data, size_t n, int64_t offset, Error *err) {
    if (!write_all(file->fd, data, n, offset)) return fail_errno(err, "cannot write", file->path);
#ifdef SYNC_FILE_RANGE_WRITE
    sync_file_range(file->fd, offset, (off_t)n, SYNC_FILE_RANGE_WRITE); /* what fails shows in fsync */
#endif
    return true;
}

void outfile_count(OutFile *file, int64_t n, uint32_t crc) {
    file->bytes += n;
    file->crc = crc32c_join(file->crc, crc, (size_t)n);
}

bool outfile_close(OutFile *file, Error *err) {
    bool ok = flush(file, err);
    ok = ok && file_sync(file->fd, file->path, err);
    int fd = file->fd;
    file->fd = -1;
    if (close(fd) && ok) ok = fail_errno(err, "cannot close", file->path);
    outfile_abandon(file);
    return ok;
}

void outfile_abandon(OutFile *file) {
    if (file->fd >= 0) close(file->fd);
    free(file->buffer);
    file->fd = -1;
    file->buffer = NULL;
}

bool file_write(const char *directory, const char *name, const void *bytes, size_t n, Error *err) {
    char path[PATH_MAX];
    OutFile file;
    if (!path_join(path, directory, name, err) || !outfile_open(&file, path, err)) return false;
    if (outfile_write(&file, bytes, n, err) && outfile_close(&file, err)) return true;
    outfile_abandon(&file);
    unlink(path);
    return false;
}
