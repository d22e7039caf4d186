#include "vocabulary.h"
#include <stdlib.h>
#include <string.h>
#include "llmc/base/files.h"
#include "tokenizer.h"

enum { MAGIC = 20240328, HEADER_BYTES = 1024, HEADER_FIELDS = 4, MAX_BYTES = 1 << 30 };
static const uint32_t no_eot = UINT32_MAX;

bool vocabulary_alloc(Vocabulary *vocabulary, int n_tokens, size_t n_bytes, Error *err) {
    *vocabulary = (Vocabulary){.n_tokens = n_tokens, .eot = -1};
    vocabulary->bytes = malloc(n_bytes + 1);
    vocabulary->offsets = calloc((size_t)n_tokens + 1, sizeof *vocabulary->offsets);
    if (vocabulary->bytes && vocabulary->offsets) return true;
    vocabulary_free(vocabulary);
    return fail(err, EXIT_RUN, "out of memory for a vocabulary of %d tokens", n_tokens);
}

void vocabulary_free(Vocabulary *vocabulary) {
    free(vocabulary->bytes);
    free(vocabulary->offsets);
    free(vocabulary->merges);
    free(vocabulary->file);
    *vocabulary = (Vocabulary){.eot = -1};
}

int vocabulary_first_other(const Vocabulary *a, const Vocabulary *b) {
    for (int i = 0; i < b->n_tokens; i++) {
        size_t n;
        const uint8_t *bytes = vocabulary_bytes(b, i, &n);
        if (i >= a->n_tokens || !vocabulary_is(a, i, bytes, n)) return i;
    }
    return -1;
}

/* ---- llm.c's tokenizer .bin ---- */

static const char hint[] =
    "a tokenizer is `bytes`, a llm.c tokenizer .bin, a tokenizer.json, or a directory that holds one";

/* The header's fields, checked against each other and against the size of the file. */
static bool check_header(const uint32_t *header, size_t size, const char *path, Error *err) {
    if (header[0] != MAGIC)
        return fail(err, EXIT_INPUT, "%s: magic: expected %d (a llm.c tokenizer), found %u; hint: %s", path,
                    MAGIC, header[0], hint);
    if (header[1] != 1 && header[1] != 2)
        return fail(err, EXIT_INPUT, "%s: version: expected 1 or 2, found %u", path, header[1]);
    size_t most = (size - HEADER_BYTES) / 2; /* a token takes two bytes at least */
    if (header[2] < 1 || header[2] > most)
        return fail(err, EXIT_INPUT,
                    "%s: number of tokens: expected 1 to %zu in a file of %zu bytes, found %u", path, most,
                    size, header[2]);
    if (header[1] == 2 && header[3] != no_eot && header[3] >= header[2])
        return fail(err, EXIT_INPUT, "%s: end-of-text id: expected below the %u tokens, found %u", path,
                    header[2], header[3]);
    return true;
}

static bool read_tokens(Vocabulary *vocabulary, const uint8_t *file, size_t size, const char *path,
                        Error *err) {
    size_t at = HEADER_BYTES;
    for (int i = 0; i < vocabulary->n_tokens; i++) {
        size_t length = at < size ? file[at] : 0;
        if (length == 0 || length > size - at - 1)
            return fail(err, EXIT_INPUT,
                        "%s: token %d of %d: expected a length and that many bytes at byte %zu, found %s",
                        path, i, vocabulary->n_tokens, at,
                        at < size && length == 0 ? "length 0" : "the end of the file");
        memcpy(vocabulary->bytes + vocabulary->offsets[i], file + at + 1, length);
        vocabulary->offsets[i + 1] = vocabulary->offsets[i] + (uint32_t)length;
        at += 1 + length;
    }
    if (at == size) return true;
    return fail(err, EXIT_INPUT, "%s: size: expected %zu bytes after %d tokens, found %zu", path, at,
                vocabulary->n_tokens, size);
}

static bool parse_bin(Vocabulary *vocabulary, const char *file, size_t size, const char *path, Error *err) {
    uint32_t header[HEADER_FIELDS];
    if (size < HEADER_BYTES)
        return fail(err, EXIT_INPUT, "%s: header: expected %d bytes, the file has %zu; hint: %s", path,
                    HEADER_BYTES, size, hint);
    memcpy(header, file, sizeof header);
    if (!check_header(header, size, path, err)) return false;
    int n_tokens = (int)header[2];
    if (!vocabulary_alloc(vocabulary, n_tokens, size, err)) return false;
    if (header[1] == 1) {
        vocabulary->eot = n_tokens > GPT2_EOT ? GPT2_EOT : -1;
    } else {
        vocabulary->eot = header[3] == no_eot ? -1 : (int)header[3];
    }
    return read_tokens(vocabulary, (const uint8_t *)file, size, path, err);
}

bool vocabulary_read_bin(Vocabulary *vocabulary, const char *path, Error *err) {
    size_t size;
    char *file = file_read(path, MAX_BYTES, &size, err);
    bool ok = file && parse_bin(vocabulary, file, size, path, err);
    free(file);
    return ok;
}

bool vocabulary_write_bin(const Vocabulary *vocabulary, const char *directory, const char *name, Error *err) {
    size_t n = (size_t)vocabulary->n_tokens, size = HEADER_BYTES + n + vocabulary->offsets[n],
           at = HEADER_BYTES;
    uint8_t *file = calloc(size, 1);
    if (!file) return fail(err, EXIT_RUN, "out of memory for %s, %zu bytes", name, size);
    uint32_t header[HEADER_FIELDS] = {MAGIC, 2, (uint32_t)n,
                                      vocabulary->eot < 0 ? no_eot : (uint32_t)vocabulary->eot};
    memcpy(file, header, sizeof header);
    for (size_t i = 0; i < n; i++) {
        size_t length;
        const uint8_t *bytes = vocabulary_bytes(vocabulary, (int)i, &length);
        file[at] = (uint8_t)length;
        memcpy(file + at + 1, bytes, length);
        at += 1 + length;
    }
    const bool ok = file_write(directory, name, file, size, err);
    free(file);
    return ok;
}
