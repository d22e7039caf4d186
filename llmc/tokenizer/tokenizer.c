#include "tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "bpe.h"
#include "llmc/base/files.h"
#include "llmc/base/integers.h"
#include "llmc/base/utf8.h"
#include "vocabulary.h"

struct Tokenizer {
    Vocabulary vocabulary;
    Bpe bpe;
    bool is_bytes; /* 256 tokens, token = byte: BPE without merges, encoded the short way */
    char name[64];
    char source[PATH_MAX]; /* the file that the vocabulary is of, or "bytes" */
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
    for (int b = 0; b < 256; b++)
        if (vocabulary->bytes[b] != b) return false;
    return true;
}

/* The tokens are read: now the merges, which the file's own must agree with. */
static bool enter(Tokenizer *tokenizer, Error *err) {
    const Vocabulary *vocabulary = &tokenizer->vocabulary;
    Error why;
    tokenizer->is_bytes = is_byte_vocabulary(vocabulary);
    if (!bpe_open(&tokenizer->bpe, vocabulary, &why))
        return fail(err, why.exit_code, "%s: %s", tokenizer->source, why.text);
    return vocabulary_check_merges(vocabulary, &tokenizer->bpe, err);
}

/* The vocabularies that a directory can have. A file is there, too, if it is a link to nothing. */
static const struct Source {
    const char *names[2]; /* one of them says that it is meant to be there */
    bool (*read)(Vocabulary *vocabulary, const char *path, Error *err);
} sources[] = {
    {{"tokenizer.bin", NULL},      vocabulary_read_bin },
    {{"tokenizer.json", NULL},     vocabulary_read_json},
    {{"vocab.json", "merges.txt"}, vocabulary_read_hf  },
};
enum { N_SOURCES = sizeof sources / sizeof *sources };

static bool source_is_in(const struct Source *source, const char *directory) {
    char path[PATH_MAX];
    struct stat info;
    Error ignored;
    for (int i = 0; i < 2 && source->names[i]; i++)
        if (path_join(path, directory, source->names[i], &ignored) && lstat(path, &info) == 0) return true;
    return false;
}

bool tokenizer_is_in(const char *directory) {
    for (int i = 0; i < N_SOURCES; i++)
        if (source_is_in(&sources[i], directory)) return true;
    return false;
}

/* A second vocabulary of the directory: the same tokens, of which special ones at the end may be missing. */
static bool check_agrees(const Tokenizer *tokenizer, const Vocabulary *other, const char *path, Error *err) {
    const Vocabulary *first = &tokenizer->vocabulary;
    bool same = vocabulary_first_other(first, other) < 0;
    for (int i = other->n_tokens; same && i < first->n_tokens; i++) same = bpe_is_special(&tokenizer->bpe, i);
    if (!same)
        return fail(err, EXIT_INPUT,
                    "%s: its tokens are not those of %s beside it; hint: remove the wrong one", path,
                    tokenizer->source);
    return vocabulary_check_merges(other, &tokenizer->bpe, err);
}

/* No token is <|endoftext|>: the configuration beside the tokens may name another that ends a text. One that text
 * becomes is none, as all of bytes are: their configuration is not read. */
static bool name_end_of_text(Tokenizer *tokenizer, const char *directory, Error *err) {
    Vocabulary *vocabulary = &tokenizer->vocabulary;
    char text[TOKEN_BYTES + 1];
    if (tokenizer->is_bytes || vocabulary->eot >= 0) return true;
    if (!vocabulary_read_eos(directory, text, err)) return false;
    for (int i = 0; i < vocabulary->n_tokens; i++)
        if (vocabulary_is(vocabulary, i, text, strlen(text)) && bpe_is_special(&tokenizer->bpe, i))
            vocabulary->eot = i;
    return true;
}

static bool open_directory(Tokenizer *tokenizer, const char *directory, Error *err) {
    for (int i = 0; i < N_SOURCES; i++) {
        char path[PATH_MAX];
        Vocabulary other = {0};
        if (!source_is_in(&sources[i], directory)) continue;
        if (!path_join(path, directory, sources[i].names[0], err)) return false;
        const bool is_first = !tokenizer->source[0];
        bool ok = sources[i].read(is_first ? &tokenizer->vocabulary : &other, path, err);
        if (is_first) memcpy(tokenizer->source, path, sizeof path);
        ok = ok && (is_first ? enter(tokenizer, err) : check_agrees(tokenizer, &other, path, err));
        if (ok && is_first && sources[i].read != vocabulary_read_bin)
            ok = name_end_of_text(tokenizer, directory, err);
        vocabulary_free(&other);
        if (!ok) return false;
    }
    return tokenizer->source[0] ||
           fail(
               err, EXIT_INPUT,
               "%s: no tokenizer there: expected tokenizer.bin, tokenizer.json, or vocab.json and merges.txt",
               directory);
}

static bool open_spec(Tokenizer *tokenizer, const char *spec, Error *err) {
    Vocabulary *vocabulary = &tokenizer->vocabulary;
    struct stat info;
    const bool by_bytes = strcmp(spec, "bytes") == 0;
    if (!by_bytes && stat(spec, &info) == 0 && S_ISDIR(info.st_mode))
        return open_directory(tokenizer, spec, err);
    snprintf(tokenizer->source, sizeof tokenizer->source, "%s", spec);
    const bool ok = by_bytes                      ? make_bytes(vocabulary, err)
                    : text_ends_in(spec, ".json") ? vocabulary_read_json(vocabulary, spec, err)
                                                  : vocabulary_read_bin(vocabulary, spec, err);
    return ok && enter(tokenizer, err);
}

Tokenizer *tokenizer_open(const char *spec, Error *err) {
    Tokenizer *tokenizer = must_allocate(sizeof *tokenizer, "a tokenizer");
    *tokenizer = (Tokenizer){0};
    if (!open_spec(tokenizer, spec, err)) {
        tokenizer_close(tokenizer);
        return NULL;
    }
    snprintf(tokenizer->name, sizeof tokenizer->name, tokenizer->is_bytes ? "bytes" : "bpe of %d tokens",
             tokenizer->vocabulary.n_tokens);
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

bool tokenizer_fits(const Tokenizer *tokenizer, int n_rows) {
    const int64_t n = tokenizer->vocabulary.n_tokens;
    bool fits = false;
    for (int64_t multiple = 1; multiple <= VOCAB_PADDING; multiple *= 2)
        fits = fits || round_up(n, multiple) == n_rows;
    return fits;
}

int tokenizer_eot(const Tokenizer *tokenizer) {
    return tokenizer->vocabulary.eot;
}

const char *tokenizer_name(const Tokenizer *tokenizer) {
    return tokenizer->name;
}

const char *tokenizer_source(const Tokenizer *tokenizer) {
    return tokenizer->source;
}

void tokenizer_describe(JsonWriter *w, const Tokenizer *tokenizer) {
    if (!tokenizer) {
        json_write_null(w, "tokenizer");
        return;
    }
    json_begin_object(w, "tokenizer");
    json_write_string(w, "name", tokenizer->name);
    json_write_int(w, "tokens", tokenizer->vocabulary.n_tokens);
    json_write_string(w, "source", tokenizer->source);
    json_end_object(w);
}

int tokenizer_start(const Tokenizer *tokenizer) {
    if (tokenizer->vocabulary.eot >= 0) return tokenizer->vocabulary.eot;
    return tokenizer->bpe.byte_token['\n'];
}

const char *tokenizer_bytes(const Tokenizer *tokenizer, int token, size_t *length) {
    if (token < 0 || token >= tokenizer->vocabulary.n_tokens) return NULL;
    return (const char *)vocabulary_bytes(&tokenizer->vocabulary, token, length);
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

bool tokenizer_save_bin(const Tokenizer *tokenizer, const char *directory, const char *name, Error *err) {
    return vocabulary_write_bin(&tokenizer->vocabulary, directory, name, err);
}

int tokenizer_first_other(const Tokenizer *a, const Tokenizer *b) {
    return vocabulary_first_other(&a->vocabulary, &b->vocabulary);
}

bool tokenizer_equals(const Tokenizer *a, const Tokenizer *b) {
    return tokenizer_vocab_size(a) == tokenizer_vocab_size(b) && tokenizer_eot(a) == tokenizer_eot(b) &&
           tokenizer_first_other(a, b) < 0;
}

bool tokenizer_is_special(const Tokenizer *tokenizer, int token) {
    return bpe_is_special(&tokenizer->bpe, token);
}

void tokenizer_append_spelled(Buffer *buffer, const Tokenizer *tokenizer, int token) {
    char spelled[TOKEN_SPELLED];
    size_t n = 0;
    const char *bytes = tokenizer_bytes(tokenizer, token, &n);
    if (tokenizer_is_special(tokenizer, token) && utf8_valid(bytes, n) == n) {
        buffer_append(buffer, bytes, n);
        return;
    }
    vocabulary_spell(&tokenizer->vocabulary, token, spelled);
    buffer_append(buffer, spelled, strlen(spelled));
}

void tokenizer_append_merges(Buffer *buffer, const Tokenizer *tokenizer) {
    vocabulary_append_merges(buffer, &tokenizer->bpe);
}

bool tokenizer_save(const Tokenizer *tokenizer, const char *directory, int context, Error *err) {
    return vocabulary_write_bin(&tokenizer->vocabulary, directory, "tokenizer.bin", err) &&
           vocabulary_write_hf(&tokenizer->bpe, directory, context, err);
}
