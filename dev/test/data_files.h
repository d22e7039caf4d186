/* What the tests of the data loader share: a folder of their own, files made in it, loaders opened on them. */
#pragma once
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/data/dataloader.h"
#include "folder.h"

enum { MAGIC16 = 20240520, MAGIC32 = 20240801 };

/* ---- files ---- */

/* Writes a header with these fields and n_bytes of payload. */
__attribute__((unused)) static void write_raw(const char *name, int magic, int version, int count,
                                              const void *payload, size_t n_bytes) {
    int32_t header[256] = {magic, version, count};
    FILE *file = fopen(path_of(name), "wb");
    bool ok = file && fwrite(header, sizeof header, 1, file) == 1;
    ok = ok && fwrite(payload, 1, n_bytes, file) == n_bytes && fclose(file) == 0;
    REQUIRE(ok, "cannot write %s", name);
}

/* A uint16 shard of n consecutive tokens from `first` on. */
__attribute__((unused)) static void write_shard(const char *name, int first, int n) {
    uint16_t *tokens = malloc((size_t)n * sizeof *tokens + 1);
    for (int i = 0; i < n; i++) tokens[i] = (uint16_t)(first + i);
    write_raw(name, MAGIC16, 1, n, tokens, (size_t)n * sizeof *tokens);
    free(tokens);
}

/* ---- loaders ---- */

__attribute__((unused)) static DataOptions options_of(const char *name, int B, int T) {
    return (DataOptions){
        .pattern = path_of(name), .vocab_size = 65536, .B = B, .T = T, .ranks = {0, 1}
    };
}

__attribute__((unused)) static DataLoader *open_or_report(const DataOptions *options) {
    Error err = {0};
    DataLoader *loader = dataloader_open(options, &err);
    CHECK(loader != NULL, "%s: %s", options->pattern, err.text);
    return loader;
}

/* Opening must fail with EXIT_INPUT, one line, and these words. */
__attribute__((unused)) static void expect_refusal(const DataOptions *options, const char *words,
                                                   const char *more) {
    Error err = {0};
    DataLoader *loader = dataloader_open(options, &err);
    CHECK(loader == NULL, "%s was opened, expected '%s'", options->pattern, words);
    dataloader_close(loader);
    CHECK(err.exit_code == EXIT_INPUT, "exit code %d: %s", err.exit_code, err.text);
    CHECK(strstr(err.text, words) && strstr(err.text, more), "expected '%s' and '%s' in: %s", words, more,
          err.text);
    CHECK(!strchr(err.text, '\n'), "more than one line: %s", err.text);
}

/* The next batch as (2, B, T) in out: tokens, targets. */
__attribute__((unused)) static bool take(DataLoader *loader, int B, int T, int32_t *out) {
    Error err = {0};
    const int32_t *tokens, *targets;
    if (!CHECK(dataloader_next(loader, &tokens, &targets, &err), "%s", err.text)) return false;
    size_t n = (size_t)B * (size_t)T;
    memcpy(out, tokens, n * sizeof *out);
    memcpy(out + n, targets, n * sizeof *out);
    return true;
}
