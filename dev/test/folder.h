/* A temporary folder of a test program: main() makes it with mkdtemp(folder) and removes it at the end. */
#pragma once
#include <stdlib.h>
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

__attribute__((unused)) static void empty_folder(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s/*", folder);
    REQUIRE(system(command) == 0, "cannot empty %s", folder);
}
