/* Directories: made by path, changed through a descriptor, so that no symbolic link leads out of them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "files.h"

/* ---- making and opening ---- */
int directory_open(const char *path, Error *err) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail_errno(err, "cannot open the directory", path);
    return fd;
}

bool directory_sync(const char *path, Error *err) {
    const int fd = directory_open(path, err);
    if (fd < 0) return false;
    bool ok = file_sync(fd, path, err);
    close(fd);
    return ok;
}

/* mkdir, where a new directory's name is made durable in its parent as far as that can be opened. */
static bool make_one(const char *path, Error *err) {
    char parent[PATH_MAX];
    struct stat info;
    Error ignored;
    if (mkdir(path, 0777)) {
        if (errno == EEXIST && stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) errno = ENOTDIR;
        return errno == EEXIST || fail_errno(err, "cannot create the directory", path);
    }
    path_parent(parent, path);
    directory_sync(parent, &ignored);
    return true;
}

bool directory_make(const char *path, Error *err) {
    char partial[PATH_MAX];
    if (!path_copy(partial, path, err)) return false;
    for (char *slash = partial + 1; *partial && (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (!make_one(partial, err)) return false;
        *slash = '/';
    }
    return make_one(path, err);
}

bool directory_is_writable(const char *path, Error *err) {
    if (access(path, W_OK | X_OK) == 0) return true;
    struct stat link;
    if (errno != ENOENT || lstat(path, &link) == 0) return fail_errno(err, "cannot write in", path);
    return fail(err, EXIT_INPUT, "cannot write in %s: no such directory; hint: mkdir -p '%s'", path, path);
}

/* ---- listing ---- */
bool directory_has(const char *directory, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    Error ignored;
    return path_join(path, directory, name, &ignored) && stat(path, &info) == 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void names_sort(char **names, int n) {
    if (n > 1) qsort(names, (size_t)n, sizeof *names, compare_names);
}

void names_free(char **names, int n) {
    for (int i = 0; i < n; i++) free(names[i]);
    free(names);
}

bool names_add(char ***names, int *n, const char *name) {
    if ((*n & (*n - 1)) == 0) { /* room doubles at powers of two */
        char **grown = realloc(*names, (*n ? 2 * (size_t)*n : 1) * sizeof *grown);
        if (!grown) return false;
        *names = grown;
    }
    (*names)[*n] = strdup(name);
    return (*names)[*n] && ++*n;
}

/* Takes the descriptor over. */
static bool list(int fd, const char *path, const char *prefix, char ***names, int *n, Error *err) {
    *names = NULL;
    *n = 0;
    DIR *directory = fdopendir(fd);
    if (!directory) {
        fail_errno(err, "cannot open the directory", path);
        close(fd);
        return false;
    }
    bool ok = true;
    errno = 0;
    for (struct dirent *entry; ok && (entry = readdir(directory)); errno = 0) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) ok = names_add(names, n, entry->d_name);
    }
    if (!ok)
        fail(err, EXIT_RUN, "%s: no memory to list it", path);
    else if (errno) /* what was not listed is not what is not there */
        ok = fail_errno(err, "cannot read the directory", path);
    closedir(directory);
    if (!ok) {
        names_free(*names, *n);
        return false;
    }
    names_sort(*names, *n);
    return true;
}

bool directory_list(const char *path, const char *prefix, char ***names, int *n, Error *err) {
    const int fd = directory_open(path, err);
    return fd >= 0 && list(fd, path, prefix, names, n, err);
}

bool directory_list_open(int fd, const char *path, const char *prefix, char ***names, int *n, Error *err) {
    const int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0) return fail_errno(err, "cannot open the directory", path);
    return list(again, path, prefix, names, n, err);
}

int64_t directory_room(int fd) {
    struct statvfs info;
    if (fstatvfs(fd, &info) || info.f_blocks == 0) return -1;
    return (int64_t)(info.f_bavail * info.f_frsize);
}

/* ---- removing ---- */
/* Of a name that is a directory: a descriptor. Of a link: -1 and true. Else false. */
static bool open_entry(int parent, const char *name, int *fd, Error *err) {
    struct stat info;
    *fd = -1;
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW)) return fail_errno(err, "cannot remove", name);
    if (S_ISLNK(info.st_mode)) return true;
    if (!S_ISDIR(info.st_mode))
        return fail(err, EXIT_INPUT, "%s stays: expected a checkpoint's directory, found a file", name);
    *fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *fd >= 0 || fail_errno(err, "cannot open the directory", name);
}

/* Names in the open directory, where each is a file's, or a link's, that may go. */
static bool list_to_remove(int fd, const char *name, bool (*may_go)(const char *file), char ***files, int *n,
                           Error *err) {
    struct stat info;
    if (!directory_list_open(fd, name, "", files, n, err)) return false;
    for (int i = 0; i < *n; i++) {
        const char *file = (*files)[i];
        const bool there = fstatat(fd, file, &info, AT_SYMLINK_NOFOLLOW) == 0;
        if (!there || (!S_ISDIR(info.st_mode) && (!may_go || may_go(file)))) continue;
        fail(err, EXIT_INPUT, "%s stays: it holds %s, which is no file of a checkpoint", name, file);
        names_free(*files, *n);
        return false;
    }
    return true;
}

/* Whether the files of the open directory may go; with `remove` they do: all, or where one may not none. */
static bool clear(int fd, const char *name, bool (*may_go)(const char *file), bool remove, Error *err) {
    char **files;
    int n;
    bool ok = true;
    if (!list_to_remove(fd, name, may_go, &files, &n, err)) return false;
    for (int i = 0; remove && i < n; i++)
        if (unlinkat(fd, files[i], 0) && errno != ENOENT) ok = fail_errno(err, "cannot remove", files[i]);
    names_free(files, n);
    return ok;
}

bool directory_may_go(int parent, const char *name, bool (*may_go)(const char *file), Error *err) {
    int fd;
    if (!open_entry(parent, name, &fd, err)) return false;
    const bool ok = fd < 0 || clear(fd, name, may_go, false, err);
    if (fd >= 0) close(fd);
    return ok;
}

bool directory_remove(int parent, const char *name, bool (*may_go)(const char *file), Error *err) {
    int fd;
    if (!open_entry(parent, name, &fd, err)) return false;
    if (fd < 0) /* what a link points to is not ours */
        return unlinkat(parent, name, 0) == 0 || fail_errno(err, "cannot remove the link", name);
    const bool ok = clear(fd, name, may_go, true, err);
    close(fd);
    return ok && (unlinkat(parent, name, AT_REMOVEDIR) == 0 || fail_errno(err, "cannot remove", name));
}
