/* What the tests of the tokenizer share: a small vocabulary with a few merges whose outcome can be checked by
 * hand. */
#pragma once
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/tokenizer/tokenizer.h"
#include "folder.h"

/* ---- a small vocabulary: ids 0..255 are the bytes, then these; 270 is end-of-text, 271 cannot be merged
 * ---- */
static const char *const merged[] = {
    "he", "ll", "lo", "hell", "llo", " w", "or", "aa", "aaaa", "\xC3\xA9", "'s", "bc", "ab", "abc",
};
enum { N_MERGED = sizeof merged / sizeof *merged, EOT = 256 + N_MERGED, SPECIAL, N_TOKENS };

__attribute__((unused)) static size_t append(uint8_t *file, size_t at, const char *token, size_t length) {
    file[at] = (uint8_t)length;
    memcpy(file + at + 1, token, length);
    return at + 1 + length;
}

/* A file of the test's folder, as text; until the next call. */
__attribute__((unused)) static char *text_of(const char *name) {
    static char buffer[1 << 16];
    FILE *file = fopen(path_of(name), "rb");
    size_t n = file ? fread(buffer, 1, sizeof buffer - 1, file) : 0;
    CHECK(file && n > 0, "cannot read %s", name);
    buffer[n] = 0;
    if (file) fclose(file);
    return buffer;
}

/* The small vocabulary as a tokenizer .bin; its size. */
__attribute__((unused)) static size_t make_bin(uint8_t file[4096]) {
    uint32_t header[256] = {20240328, 2, N_TOKENS, EOT};
    size_t at = sizeof header;
    memcpy(file, header, sizeof header);
    for (int b = 0; b < 256; b++) at = append(file, at, &(char){(char)b}, 1);
    for (int i = 0; i < N_MERGED; i++) at = append(file, at, merged[i], strlen(merged[i]));
    at = append(file, at, "<|endoftext|>", 13);
    return append(file, at, "<|pad|>", 7);
}

__attribute__((unused)) static Tokenizer *open_small(void) {
    uint8_t file[4096];
    Error err = {0};
    write_file("small.bin", file, make_bin(file));
    Tokenizer *tokenizer = tokenizer_open(path_of("small.bin"), &err);
    CHECK(tokenizer != NULL, "%s", err.text);
    return tokenizer;
}

/* ---- helpers ---- */

/* The tokens of text, malloc'ed. */
__attribute__((unused)) static int32_t *encode(const Tokenizer *tokenizer, const char *text, size_t length,
                                               size_t *n) {
    Error err = {0};
    int32_t *tokens = NULL;
    *n = 0;
    CHECK(tokenizer_encode(tokenizer, text, length, &tokens, n, &err), "%s", err.text);
    return tokens;
}

/* Whether the tokens spell the text. */
__attribute__((unused)) static bool spells(const Tokenizer *tokenizer, const int32_t *tokens, size_t n,
                                           const char *text, size_t length) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t piece;
        const char *bytes = tokenizer_bytes(tokenizer, tokens[i], &piece);
        if (!bytes || piece > length - at || memcmp(bytes, text + at, piece) != 0) return false;
        at += piece;
    }
    return at == length;
}

/* text must encode as the ids of `expected`, blank-separated. */
__attribute__((unused)) static void expect_ids(const Tokenizer *tokenizer, const char *text,
                                               const char *expected) {
    size_t n, used = 0;
    char found[512] = "";
    int32_t *tokens = encode(tokenizer, text, strlen(text), &n);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%d", i ? " " : "", tokens[i]);
    CHECK(strcmp(found, expected) == 0, "'%s' is %s, expected %s", text, found, expected);
    free(tokens);
}

__attribute__((unused)) static void expect_refusal(const char *spec, const char *words) {
    Error err = {0};
    Tokenizer *tokenizer = tokenizer_open(spec, &err);
    CHECK(tokenizer == NULL, "%s was opened, expected '%s'", spec, words);
    tokenizer_close(tokenizer);
    CHECK(err.exit_code == EXIT_INPUT && strstr(err.text, words), "expected '%s' in: %s", words, err.text);
}
