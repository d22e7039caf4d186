/* Calls of the C library on files with faults, for a program started with LD_PRELOAD; the environment says which:
 *
 *   NO_DIRECTORY_SYNC=1   fsync of a directory gives EINVAL, as on SMB and FUSE
 *   NO_LOCKS=1            flock gives EOPNOTSUPP
 *   NO_LISTING=1          readdir gives EIO, as where a server does not answer
 *   ROOM=N                the disk has N bytes free
 *   FULL=PART:N           the first N openings of new files whose path has PART in it fail: no space left
 *   SLOW=MS               every fsync takes so many milliseconds, every removal of a file twice as many
 *   LATE=N:MS             the N-th pread takes so many milliseconds
 *   BROKEN=N:PATH         the N-th pread gives EIO, and makes the file PATH
 *   HOLD=PATH             an fsync of a file waits until there is no file PATH
 *   VANISH=K              at the K-th opening of a file below a directory step_*, that directory gets another name */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int fd) {
    struct stat info;
    const char *slow = getenv("SLOW"), *hold = getenv("HOLD");
    const int is_folder = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
    if (slow) usleep(1000u * (unsigned)atoi(slow));
    while (hold && !is_folder && access(hold, F_OK) == 0) usleep(10000);
    if (!getenv("NO_DIRECTORY_SYNC") || !is_folder) return (int)syscall(SYS_fsync, fd);
    errno = EINVAL;
    return -1;
}

int unlinkat(int directory, const char *path, int flags) {
    const char *slow = getenv("SLOW");
    if (slow) usleep(2000u * (unsigned)atoi(slow));
    return (int)syscall(SYS_unlinkat, directory, path, flags);
}

int flock(int fd, int operation) {
    if (!getenv("NO_LOCKS")) return (int)syscall(SYS_flock, fd, operation);
    errno = EOPNOTSUPP;
    return -1;
}

struct dirent *readdir(DIR *directory) {
    if (!getenv("NO_LISTING")) return (struct dirent *)readdir64(directory); /* another name of it */
    errno = EIO;
    return NULL;
}

int fstatvfs(int fd, struct statvfs *info) {
    const char *room = getenv("ROOM");
    *info = (struct statvfs){.f_bsize = 1, .f_frsize = 1, .f_blocks = 1ul << 40};
    info->f_bfree = info->f_bavail = room ? strtoul(room, NULL, 10) : 1ul << 40;
    return 0;
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset) {
    static int n_reads;
    const char *late = getenv("LATE"), *milliseconds = late ? strchr(late, ':') : NULL;
    const char *broken = getenv("BROKEN"), *made = broken ? strchr(broken, ':') : NULL;
    const int read = __atomic_add_fetch(&n_reads, 1, __ATOMIC_RELAXED);
    if (milliseconds && read == atoi(late)) usleep(1000u * (unsigned)atoi(milliseconds + 1));
    if (made && read == atoi(broken)) {
        close(open(made + 1, O_CREAT | O_WRONLY, 0600));
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, bytes, n, offset);
}

ssize_t pread64(int fd, void *bytes, size_t n, off_t offset) __attribute__((alias("pread")));

static int is_full(const char *path, int flags) {
    static int n_failed;
    const char *full = getenv("FULL"), *colon = full ? strrchr(full, ':') : NULL;
    char part[64];
    if (!colon || !(flags & O_CREAT)) return 0;
    snprintf(part, sizeof part, "%.*s", (int)(colon - full), full);
    return strstr(path, part) && n_failed++ < atoi(colon + 1);
}

static void vanish(const char *path) {
    static int n_opened;
    const char *at = getenv("VANISH"), *step = strstr(path, "/step_"),
               *end = step ? strchr(step + 1, '/') : NULL;
    char from[4096], to[4096];
    if (!at || !end || ++n_opened != atoi(at)) return;
    snprintf(from, sizeof from, "%.*s", (int)(end - path), path);
    snprintf(to, sizeof to, "%.*s/.tmp-%.*s-1", (int)(step - path), path, (int)(end - step - 1), step + 1);
    rename(from, to);
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    vanish(path);
    if (!is_full(path, flags)) return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    errno = ENOSPC;
    return -1;
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
