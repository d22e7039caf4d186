/* A run's folder of a tiny model, for tests of what becomes of its checkpoints. */
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include "llmc/base/files.h"
#include "tiny_model.h"

static GPT2 model;

/* A save of that seed and step. */
__attribute__((unused)) static bool save(const char *out, uint64_t seed, int64_t step, int keep, Error *err) {
    return tiny_save(&model, out, seed, &(TrainerState){.step = step, .seed = seed}, keep, false, err);
}

/* What is written to stderr from here goes nowhere; returns what end_quiet takes. */
__attribute__((unused)) static int begin_quiet(void) {
    fflush(stderr);
    const int kept = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    close(null);
    return kept;
}

__attribute__((unused)) static void end_quiet(int kept) {
    dup2(kept, 2);
    close(kept);
}

__attribute__((unused)) static bool find_quietly(const char *out, char path[256], Error *err) {
    int64_t step;
    const int kept = begin_quiet();
    const bool found = checkpoint_find(out, path, 256, &step, err);
    end_quiet(kept);
    return found;
}

__attribute__((unused)) static void clean_quietly(const char *out) {
    const int kept = begin_quiet();
    checkpoint_clean(out);
    end_quiet(kept);
}

/* The seed of the newest whole checkpoint, whose buffers must be its own; 0 if there is none. */
__attribute__((unused)) static uint64_t newest_seed(const char *out) {
    char path[256];
    TrainerState state;
    Error err = {0};
    if (!find_quietly(out, path, &err)) return 0;
    tiny_poison(&model);
    if (!CHECK(checkpoint_resume(path, &model, &state, &err), "found but not resumed: %s", err.text))
        return 0;
    free((char *)state.flags);
    return CHECK(tiny_equals(&model, state.seed, true), "%s: buffers of seed %d differ", path,
                 (int)state.seed)
               ? state.seed
               : 0;
}

__attribute__((unused)) static int count_names(const char *out, const char *prefix) {
    char **names;
    int n = -1;
    Error err;
    if (directory_list(out, prefix, &names, &n, &err)) names_free(names, n);
    return n;
}

__attribute__((unused)) static void flip_bit(const char *path, int64_t bit) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    REQUIRE(pread(fd, &byte, 1, bit / 8) == 1, "reading %s", path);
    byte ^= (unsigned char)(1 << bit % 8);
    REQUIRE(pwrite(fd, &byte, 1, bit / 8) == 1, "writing %s", path);
    close(fd);
}
