/* A file of multiple choice for tests: items of random tokens, and single fields to damage. */
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/data/choices.h"
#include "check.h"

enum { CASE_ITEMS = 40, CASE_LONGEST = 36, CASE_MAX = 1 << 14 };

typedef struct ChoicesCase {
    int32_t header[256];
    uint16_t stream[CASE_MAX];
    int n;
} ChoicesCase;

static void put_tokens(ChoicesCase *c, uint32_t *state, int longest, int vocab_size) {
    *state = *state * 1664525 + 1013904223;
    const int n = 1 + (int)(*state >> 8) % longest;
    c->stream[c->n++] = (uint16_t)n;
    for (int i = 0; i < n; i++) {
        *state = *state * 1664525 + 1013904223;
        c->stream[c->n++] = (uint16_t)((*state >> 8) % (uint32_t)vocab_size);
    }
}

/* Items of 4 endings (the second of 2), contexts of up to CASE_LONGEST tokens, endings of half of it. */
static void make_case(ChoicesCase *c, int vocab_size) {
    uint32_t state = 7;
    *c = (ChoicesCase){
        .header = {20240522, 1, CASE_ITEMS, 0, vocab_size}
    };
    for (int i = 0; i < CASE_ITEMS; i++) {
        const int begin = c->n, n_endings = i == 1 ? 2 : 4;
        const uint16_t item[] = {65535, 0, (uint16_t)i, (uint16_t)(i * 3 % n_endings), (uint16_t)n_endings};
        memcpy(c->stream + c->n, item, sizeof item);
        c->n += 5;
        put_tokens(c, &state, CASE_LONGEST, vocab_size);
        for (int k = 0; k < n_endings; k++) put_tokens(c, &state, CASE_LONGEST / 2, vocab_size);
        c->stream[begin + 1] = (uint16_t)(2 * (c->n - begin));
    }
}

static void write_case(const ChoicesCase *c, const char *path) {
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(c->header, sizeof c->header, 1, file) == 1 &&
                fwrite(c->stream, 2, (size_t)c->n, file) == (size_t)c->n && fclose(file) == 0,
            "writing %s", path);
}
