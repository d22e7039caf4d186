/* The tokens of a tokenizer as byte strings, and the files that hold them: llm.c's tokenizer .bin, Hugging
 * Face's tokenizer.json, and its vocab.json with merges.txt. Private to tokenizer.c and its files. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "llmc/base/error.h"
#include "llmc/base/json.h"

/* The longest token, whose length a .bin has in a byte; and its spelling, null-terminated. */
enum { TOKEN_BYTES = 255, TOKEN_SPELLED = 2 * TOKEN_BYTES + 1 };

typedef struct Vocabulary {
    int n_tokens;
    int eot;           /* end-of-text id, -1: none */
    uint8_t *bytes;    /* all tokens end to end */
    uint32_t *offsets; /* (n_tokens + 1) token i is bytes[offsets[i], offsets[i+1]) */
    char *merges;      /* as the lines of a merges.txt without its header; NULL: the file says none */
    char *file;        /* where the merges stand, for messages; NULL with them */
} Vocabulary;
typedef struct Bpe Bpe; /* bpe.h */

static inline const uint8_t *vocabulary_bytes(const Vocabulary *v, int token, size_t *n) {
    *n = v->offsets[token + 1] - v->offsets[token];
    return v->bytes + v->offsets[token];
}
/* True where the token has these bytes. */
static inline bool vocabulary_is(const Vocabulary *v, int token, const void *bytes, size_t n) {
    size_t length;
    const uint8_t *own = vocabulary_bytes(v, token, &length);
    return length == n && memcmp(own, bytes, n) == 0;
}

/* Room for n_tokens tokens of n_bytes bytes in all. */
bool vocabulary_alloc(Vocabulary *vocabulary, int n_tokens, size_t n_bytes, Error *err);
void vocabulary_free(Vocabulary *vocabulary);
/* The first id under which b has another token than a, which may have more; -1: none. */
int vocabulary_first_other(const Vocabulary *a, const Vocabulary *b);

/* Header of 256 uint32: magic 20240328, version 1 or 2, number of tokens, end-of-text id (version 2; 2^32 -
 * 1: none); then per token its length in one byte and its bytes. */
bool vocabulary_read_bin(Vocabulary *vocabulary, const char *path, Error *err);
bool vocabulary_write_bin(const Vocabulary *vocabulary, const char *directory, const char *name, Error *err);

/* vocab.json: {token: id}, its bytes spelled as printable characters (vocabulary_spell); and merges.txt beside it. */
bool vocabulary_read_hf(Vocabulary *vocabulary, const char *path, Error *err);
/* {token: id}, and a list of added_tokens, each special (NULL or null: none): all ids from 0 on. */
bool vocabulary_read_tokens(Vocabulary *vocabulary, const JsonValue *vocab, const JsonValue *added,
                            const char *path, Error *err);
/* The token that ends a text by Hugging Face's configuration in the directory, eos_token; empty where it says none. */
bool vocabulary_read_eos(const char *directory, char text[TOKEN_BYTES + 1], Error *err);
/* tokenizer.json: vocabulary, merges, and how text is cut, which must be GPT-2's way. */
bool vocabulary_read_json(Vocabulary *vocabulary, const char *path, Error *err);
/* The merges that the file states, if it does, must be those that the ids imply. */
bool vocabulary_check_merges(const Vocabulary *vocabulary, const Bpe *bpe, Error *err);
/* Token i as vocab.json has it: each byte a printable character. Null-terminated. */
void vocabulary_spell(const Vocabulary *vocabulary, int i, char text[TOKEN_SPELLED]);
/* The lines of merges.txt after its first, in the order of the ids: the two parts of a token, a space between. */
void vocabulary_append_merges(Buffer *buffer, const Bpe *bpe);
/* vocab.json, merges.txt, tokenizer_config.json, special_tokens_map.json. */
bool vocabulary_write_hf(const Bpe *bpe, const char *directory, int context, Error *err);
