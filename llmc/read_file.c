#include "read_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One read() moves at most 2 GiB on Linux: loops until size bytes are there. */
static bool read_fully(int fd, const char *path, char *bytes, size_t size, Error *err) {
    size_t n = 0;
    while (n < size) {
        ssize_t got = read(fd, bytes + n, size - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, EXIT_INPUT, "%s: cannot read byte %zu: %s", path, n, strerror(errno));
        if (got == 0)
            return fail(err, EXIT_INPUT, "%s: ended at byte %zu of %zu: did it change?", path, n, size);
        n += (size_t)got;
    }
    return true;
}

char *read_file(const char *path, size_t *size, Error *err) {
    char *bytes = NULL;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* non-blocking: a pipe must not hang here */
    if (fd < 0 || fstat(fd, &info) != 0) {
        fail(err, EXIT_INPUT, "%s: cannot open: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        fail(err, EXIT_INPUT, "%s: not a regular file", path);
    } else if (!(bytes = malloc((size_t)info.st_size + 1))) {
        fail(err, EXIT_RUN, "%s: out of memory for its %lld bytes", path, (long long)info.st_size);
    } else if (!read_fully(fd, path, bytes, (size_t)info.st_size, err)) {
        free(bytes);
        bytes = NULL;
    } else {
        *size = (size_t)info.st_size;
        bytes[*size] = 0;
    }
    if (fd >= 0) close(fd);
    return bytes;
}
