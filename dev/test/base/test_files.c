/* Checked file access, and the checksum against the values that RFC 3720 gives. */
#include <errno.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include "llmc/base/checksum.h"
#include "llmc/base/files.h"
#include "dev/test/tiny_model.h"

static void test_checksum(void) {
    unsigned char bytes[1000];
    CHECK(crc32c(0, "123456789", 9) == 0xE3069283, "found %08x", crc32c(0, "123456789", 9));
    memset(bytes, 0, 32);
    CHECK(crc32c(0, bytes, 32) == 0x8A9136AA, "32 zeros: found %08x", crc32c(0, bytes, 32));
    memset(bytes, 0xff, 32);
    CHECK(crc32c(0, bytes, 32) == 0x62A8AB43, "32 ones: found %08x", crc32c(0, bytes, 32));
    for (int i = 0; i < 1000; i++) bytes[i] = (unsigned char)i;
    CHECK(crc32c(0, bytes, 32) == 0x46DD794E, "0 to 31: found %08x", crc32c(0, bytes, 32));
    int n_wrong = 0;
    for (size_t n = 0; n <= 100; n++)
        for (size_t first = 0; first <= n; first++) {
            uint32_t whole = crc32c(0, bytes + first, n);
            n_wrong += whole != crc32c_portable(0, bytes + first, n);
            n_wrong += whole != crc32c(crc32c(0, bytes + first, first), bytes + 2 * first, n - first);
            n_wrong += whole != crc32c_join(crc32c(0, bytes + first, first),
                                            crc32c(0, bytes + 2 * first, n - first), n - first);
        }
    CHECK(n_wrong == 0, "%d sums differ between the two paths or between one piece and two", n_wrong);
}

static void test_write_and_read(void) {
    enum { N = 700001 }; /* several buffers and a rest */
    unsigned char *bytes = malloc(N);
    OutFile file;
    Error err = {0};
    size_t size = 0;
    int64_t n_bytes = 0;
    uint32_t crc = 0;
    for (int i = 0; i < N; i++) bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    CHECK(outfile_open(&file, path_of("data"), &err), "%s", err.text);
    for (size_t at = 0, n = 1; at < N; at += n, n = 3 * n + 1)
        CHECK(outfile_write(&file, bytes + at, at + n < N ? n : N - at, &err), "%s", err.text);
    CHECK(outfile_close(&file, &err) && file.bytes == N, "%s", err.text);
    CHECK(file_checksum(path_of("data"), &n_bytes, &crc, &err) && n_bytes == N && crc == file.crc, "%s",
          err.text);
    char *found = file_read(path_of("data"), N, &size, &err);
    CHECK(found && size == N && memcmp(found, bytes, N) == 0 && found[N] == 0, "the bytes came back");
    CHECK(!file_read(path_of("data"), N - 1, &size, &err) &&
              strstr(err.text, "at most 700000 bytes, found 700001"),
          "%s", err.text);
    CHECK(!outfile_open(&file, path_of("data"), &err) && strstr(err.text, "File exists"),
          "an existing file is not overwritten");
    free(found);
    free(bytes);
}

static void test_not_a_file(void) {
    Error err = {0};
    size_t size;
    CHECK(!file_read(path_of("none"), 10, &size, &err) && err.exit_code == EXIT_INPUT &&
              strstr(err.text, "/none: No such file"),
          "%s", err.text);
    CHECK(!file_read(folder, 10, &size, &err) && strstr(err.text, "expected a file, found a directory"), "%s",
          err.text);
    CHECK(mkfifo(path_of("pipe"), 0600) == 0, "mkfifo");
    CHECK(!file_read(path_of("pipe"), 10, &size, &err) && strstr(err.text, "expected a file"),
          "a pipe does not block: %s", err.text);
}

static void test_full_device(void) {
    OutFile file = {.fd = open("/dev/full", O_WRONLY), .path = "/dev/full", .buffer = malloc(256 << 10)};
    Error err = {0};
    if (file.fd < 0) {
        SKIP("no /dev/full");
        outfile_abandon(&file);
        return;
    }
    CHECK(outfile_write(&file, "x", 1, &err) && !outfile_close(&file, &err), "a full device was not noticed");
    CHECK(err.exit_code == EXIT_RUN && strstr(err.text, "cannot write /dev/full: No space left"), "%s",
          err.text);
}

static bool is_short(const char *name) {
    return strlen(name) <= 6;
}

/* Of the directory a/b: all that is in it goes or nothing, and a link goes without what it points to. */
static void test_removal(void) {
    Error err = {0};
    const int parent = directory_open(path_of("a/b"), &err);
    if (!CHECK(parent >= 0, "%s", err.text)) return;
    write_text(path_of("a/b/c/foreign"), "");
    CHECK(!directory_remove(parent, "c", is_short, &err) && strstr(err.text, "c stays: it holds foreign"),
          "%s", err.text);
    CHECK(access(path_of("a/b/c/one"), F_OK) == 0, "nothing went");
    CHECK(unlink(path_of("a/b/c/foreign")) == 0 && mkdir(path_of("a/b/c/sub"), 0777) == 0,
          "a directory in it");
    CHECK(!directory_remove(parent, "c", is_short, &err) && strstr(err.text, "it holds sub"), "%s", err.text);
    CHECK(rmdir(path_of("a/b/c/sub")) == 0 && symlink("c", path_of("a/b/link")) == 0, "a link beside it");
    CHECK(directory_may_go(parent, "link", is_short, &err) &&
              directory_remove(parent, "link", is_short, &err),
          "%s", err.text);
    CHECK(access(path_of("a/b/c/one"), F_OK) == 0, "the link's target stays as it is");
    CHECK(symlink("..", path_of("a/b/c/up")) == 0 && directory_remove(parent, "c", is_short, &err), "%s",
          err.text);
    write_text(path_of("a/b/file"), "");
    CHECK(!directory_remove(parent, "file", is_short, &err) && strstr(err.text, "found a file"), "%s",
          err.text);
    close(parent);
}

static void test_directories(void) {
    char **names, longest[PATH_MAX + 2];
    int n;
    Error err = {0};
    CHECK(directory_make(path_of("a/b//c/"), &err) && directory_make(path_of("a/b/c"), &err), "%s", err.text);
    write_text(path_of("a/b/c/two"), "");
    write_text(path_of("a/b/c/one"), "");
    write_text(path_of("a/b/c/.three"), "");
    if (CHECK(directory_list(path_of("a/b/c"), "", &names, &n, &err) && n == 3, "%d names", n)) {
        CHECK(!strcmp(names[0], ".three") && !strcmp(names[1], "one") && !strcmp(names[2], "two"),
              "sorted names");
        names_free(names, n);
    }
    test_removal();
    CHECK(!directory_sync(path_of("a/b/c"), &err), "it is gone");
    CHECK(!directory_make(path_of("data"), &err) && strstr(err.text, "Not a directory"), "%s", err.text);
    CHECK(!directory_make(path_of("data/x"), &err) && strstr(err.text, "Not a directory"), "%s", err.text);
    memset(longest, 'x', sizeof longest);
    longest[PATH_MAX + 1] = 0;
    CHECK(!directory_make(longest, &err) && err.exit_code == EXIT_INPUT &&
              strstr(err.text, "longer than 4095"),
          "%s", err.text);
}

/* Of a path that an error has no room for the end stands in it, and the reason behind. */
static void test_long_path(void) {
    char path[2000];
    Error err = {0};
    memset(path, 'x', sizeof path);
    snprintf(path + 1900, 100, "/model");
    errno = ENOSPC;
    CHECK(!fail_errno(&err, "cannot write", path) && strncmp(err.text, "cannot write ...xxx", 19) == 0 &&
              strstr(err.text, "xxx/model: No space left on device"),
          "%s", err.text);
    CHECK(!fail_flag("out", &err) && error_is_full(&err), "%s", err.text);
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("files");
    test_checksum();
    test_write_and_read();
    test_not_a_file();
    test_full_device();
    test_directories();
    test_long_path();
    remove_tree(folder);
    return check_finish("files");
}
