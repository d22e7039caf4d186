/* A temporary folder of a test program: main() makes it with mkdtemp(folder) and removes it at the end. */
#pragma once
#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "check.h"

static char folder[] = "/tmp/test_llmc_XXXXXX";

/* "FOLDER/NAME"; stays valid for the next three calls. */
__attribute__((unused)) static const char *path_of(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

__attribute__((unused)) static void write_file(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(path_of(name), "wb");
    REQUIRE(file && fwrite(bytes, 1, n, file) == n && fclose(file) == 0, "cannot write %s", name);
}

/* To a path of any folder. */
__attribute__((unused)) static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0, "writing %s", path);
}

/* A whole file, null-terminated and malloc'ed; "" where there is none. */
__attribute__((unused)) static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (!text) abort();
    if (file) {
        text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
        fclose(file);
    }
    return text;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
    return remove(path);
}

/* Removes a file or a directory with all that is in it. */
__attribute__((unused)) static void remove_tree(const char *path) {
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

__attribute__((unused)) static void empty_folder(void) {
    remove_tree(folder);
    REQUIRE(mkdir(folder, 0700) == 0, "cannot make %s again", folder);
}
