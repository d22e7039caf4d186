/* Files and directories: every call checked, every failure one line with the path and the system's words. */
#pragma once
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>
#include "error.h"

/* Fails with "WHAT PATH: strerror(errno)", of a long path with its end: EXIT_INPUT where the path is at fault (missing, no
 * permission), EXIT_RUN for the rest (full disk, I/O error). */
bool fail_errno(Error *err, const char *what, const char *path);
/* Of a failure of fail_errno: the disk is full, or a quota is used up. */
bool error_is_full(const Error *err);

/* Fails of stdin with errno: EXIT_INPUT where what stands for it cannot be read (closed, a directory). */
bool fail_stdin(Error *err);

/* A whole regular file of at most max_bytes, malloc'ed, with a null after its *size bytes. NULL on error. */
char *file_read(const char *path, size_t max_bytes, size_t *size, Error *err);
/* Opens a regular file for reading (never blocks on a pipe); -1 on error. */
int file_open(const char *path, int64_t *bytes, Error *err);
/* False where anything has that name, a link or an empty folder included: nothing is replaced. */
bool file_is_free(const char *path, Error *err);
/* True where both are of one file, or folder, whatever its names. */
static inline bool is_same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}
/* What a name stands for where a file is expected: "a symbolic link", "a directory", "a FIFO", ... */
const char *file_type_name(mode_t mode);
/* Reads exactly n bytes at an offset; a file that ends before is an error. */
bool file_read_at(int fd, const char *path, void *out, size_t n, int64_t offset, Error *err);
/* Size and CRC-32C of a whole file. */
bool file_checksum(const char *path, int64_t *bytes, uint32_t *crc, Error *err);
/* CRC-32C of the bytes [begin, end) of an open file. */
bool file_checksum_at(int fd, const char *path, int64_t begin, int64_t end, uint32_t *crc, Error *err);

/* Makes the data durable; a file system that has no fsync for it is no error. */
bool file_sync(int fd, const char *path, Error *err);

/* True of "shard.bin" and ".bin". */
bool text_ends_in(const char *text, const char *end);
/* `from` into path (PATH_MAX bytes); one that is longer is refused. */
bool path_copy(char *path, const char *from, Error *err);
/* "DIRECTORY/NAME" into path (PATH_MAX bytes). */
bool path_join(char *path, const char *directory, const char *name, Error *err);
/* What is before the last slash of a path of less than PATH_MAX bytes, or "/"; "." where there is none. */
void path_parent(char *parent, const char *path);
/* What is behind the last slash: all of it where there is none. */
const char *path_name(const char *path);

/* ---- writing ---- */
/* A new file, written through a buffer; its length and CRC-32C grow with the bytes handed in. */
typedef struct OutFile {
    int fd; /* -1 once closed */
    char path[PATH_MAX];
    char *buffer;
    size_t used;
    int64_t bytes;
    uint32_t crc;
} OutFile;

/* Creates the file; one of that name must not exist. */
bool outfile_open(OutFile *file, const char *path, Error *err);
/* Through a buffer: what does not fit on the disk may be said by a later call, by outfile_close at the latest. */
bool outfile_write(OutFile *file, const void *data, size_t n, Error *err);
/* The bytes at `offset`, past the buffer and its checksum: for several threads at once. outfile_count then counts what
 * they wrote, n bytes of checksum crc, behind what the file has. */
bool outfile_write_at(const OutFile *file, const void *data, size_t n, int64_t offset, Error *err);
void outfile_count(OutFile *file, int64_t n, uint32_t crc);
/* Flush, fsync, close: on true the bytes are on the disk. */
bool outfile_close(OutFile *file, Error *err);
/* After a failure: closes without a word. Fine on a closed file. */
void outfile_abandon(OutFile *file);
/* The new file DIRECTORY/NAME of n bytes, on the disk; removed if that fails. */
bool file_write(const char *directory, const char *name, const void *bytes, size_t n, Error *err);
/* Not NULL: once it says true, everything that is to be written fails (EINTR), since the program is to end. */
extern bool (*file_writes_end)(void);
/* write(2) until all n bytes are written; false with errno. */
bool file_write_all(int fd, const char *bytes, size_t n);

/* ---- directories ---- */
/* Creates the directory and its missing parents; an existing one is fine. */
bool directory_make(const char *path, Error *err);
/* A descriptor of the directory, which may be named by a symbolic link; -1 on error. */
int directory_open(const char *path, Error *err);
/* Whether names can be made in the directory: what is missing is not made. */
bool directory_is_writable(const char *path, Error *err);
/* True where DIRECTORY/NAME exists. */
bool directory_has(const char *directory, const char *name);
bool directory_sync(const char *path, Error *err);
/* Bytes that this user may still write where the open directory lies; -1: not known. */
int64_t directory_room(int fd);
/* Removes the directory NAME of the open directory `parent`: all of it where it holds files alone and may_go (NULL: any) is
 * true of each name, else nothing. A symbolic link goes as a link. False, with what stays and why. */
bool directory_remove(int parent, const char *name, bool (*may_go)(const char *file), Error *err);
/* True where directory_remove would find nothing that may not go. */
bool directory_may_go(int parent, const char *name, bool (*may_go)(const char *file), Error *err);
/* Names in the directory that start with `prefix`, without "." and "..", sorted bytewise, so that the order is the same
 * in every locale; malloc'ed, each and the list. */
bool directory_list(const char *path, const char *prefix, char ***names, int *n, Error *err);
/* The same of an open directory; `path` is for messages. */
bool directory_list_open(int fd, const char *path, const char *prefix, char ***names, int *n, Error *err);
/* Adds a copy of the name to a list, which begins as NULL and 0; false where there is no memory. */
bool names_add(char ***names, int *n, const char *name);
/* Bytewise. */
void names_sort(char **names, int n);
void names_free(char **names, int n);
