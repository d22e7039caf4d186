#include "tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "bpe.h"
#include "files.h"
#include "vocabulary.h"

struct Tokenizer {
    Vocabulary vocabulary;
    bool is_bytes; /* 256 tokens, token = byte: no merges, bpe unused */
    Bpe bpe;
    char name[64];
};

/* ---- opening ---- */

static bool make_bytes(Vocabulary *vocabulary, Error *err) {
    if (!vocabulary_alloc(vocabulary, 256, 256, err)) return false;
    for (int b = 0; b < 256; b++) {
        vocabulary->bytes[b] = (uint8_t)b;
        vocabulary->offsets[b + 1] = (uint32_t)b + 1;
    }
    return true;
}

static bool is_byte_vocabulary(const Vocabulary *vocabulary) {
    if (vocabulary->n_tokens != 256 || vocabulary->eot >= 0 || vocabulary->offsets[256] != 256) return false;
    for (int b = 0; b < 256; b++) {
        if (vocabulary->bytes[b] != b) return false;
    }
    return true;
}

/* The vocabulary of a directory: tokenizer.bin, or else vocab.json; *from_json says which. */
static bool read_directory(Vocabulary *vocabulary, const char *directory, bool *from_json, Error *err) {
    char path[PATH_MAX];
    if (!path_join(path, directory, "tokenizer.bin", err)) return false;
    if (access(path, F_OK) == 0) return vocabulary_read_bin(vocabulary, path, err);
    if (!path_join(path, directory, "vocab.json", err)) return false;
    *from_json = access(path, F_OK) == 0;
    if (*from_json) return vocabulary_read_hf(vocabulary, directory, err);
    return fail(err, EXIT_INPUT, "%s: no tokenizer there: expected tokenizer.bin or vocab.json", directory);
}

static bool open_spec(Tokenizer *tokenizer, const char *spec, Error *err) {
    Vocabulary *vocabulary = &tokenizer->vocabulary;
    struct stat info;
    bool from_json = false;
    if (strcmp(spec, "bytes") == 0) {
        if (!make_bytes(vocabulary, err)) return false;
    } else if (stat(spec, &info) == 0 && S_ISDIR(info.st_mode)) {
        if (!read_directory(vocabulary, spec, &from_json, err)) return false;
    } else {
        if (!vocabulary_read_bin(vocabulary, spec, err)) return false;
    }
    tokenizer->is_bytes = is_byte_vocabulary(vocabulary);
    if (tokenizer->is_bytes) return true;
    Error why;
    if (!bpe_open(&tokenizer->bpe, vocabulary->n_tokens, vocabulary->bytes, vocabulary->offsets,
                  vocabulary->eot, &why))
        return fail(err, why.exit_code, "%s: %s", spec, why.text);
    return !from_json || vocabulary_check_merges(&tokenizer->bpe, spec, err);
}

Tokenizer *tokenizer_open(const char *spec, Error *err) {
    Tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) {
        fail(err, EXIT_RUN, "out of memory for a tokenizer");
        return NULL;
    }
    if (!open_spec(tokenizer, spec, err)) {
        tokenizer_close(tokenizer);
        return NULL;
    }
    if (tokenizer->is_bytes) {
        snprintf(tokenizer->name, sizeof tokenizer->name, "bytes");
    } else {
        snprintf(tokenizer->name, sizeof tokenizer->name, "gpt2 bpe (%d)", tokenizer->vocabulary.n_tokens);
    }
    return tokenizer;
}

void tokenizer_close(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    bpe_close(&tokenizer->bpe);
    vocabulary_free(&tokenizer->vocabulary);
    free(tokenizer);
}

/* ---- reading ---- */

int tokenizer_vocab_size(const Tokenizer *tokenizer) {
    return tokenizer->vocabulary.n_tokens;
}

int tokenizer_eot(const Tokenizer *tokenizer) {
    return tokenizer->vocabulary.eot;
}

const char *tokenizer_name(const Tokenizer *tokenizer) {
    return tokenizer->name;
}

const char *tokenizer_bytes(const Tokenizer *tokenizer, int token, size_t *length) {
    const Vocabulary *vocabulary = &tokenizer->vocabulary;
    if (token < 0 || token >= vocabulary->n_tokens) return NULL;
    *length = vocabulary->offsets[token + 1] - vocabulary->offsets[token];
    return (const char *)vocabulary->bytes + vocabulary->offsets[token];
}

/* ---- encoding ---- */

static bool encode_bytes(const char *text, size_t length, int32_t **tokens, size_t *n, Error *err) {
    int32_t *grown = realloc(*tokens, (*n + length + 1) * sizeof **tokens);
    if (!grown) return fail(err, EXIT_RUN, "out of memory for %zu tokens", *n + length);
    for (size_t i = 0; i < length; i++) grown[*n + i] = (uint8_t)text[i];
    *tokens = grown;
    *n += length;
    return true;
}

bool tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t length, int32_t **tokens,
                      size_t *n, Error *err) {
    return tokenizer->is_bytes ? encode_bytes(text, length, tokens, n, err)
                               : bpe_encode(&tokenizer->bpe, text, length, tokens, n, err);
}

/* ---- saving ---- */

bool tokenizer_save(const Tokenizer *tokenizer, const char *directory, Error *err) {
    if (!vocabulary_write_bin(&tokenizer->vocabulary, directory, err)) return false;
    return tokenizer->is_bytes ||
           vocabulary_write_hf(&tokenizer->vocabulary, &tokenizer->bpe, directory, err);
}
