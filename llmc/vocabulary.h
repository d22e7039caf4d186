/* The tokens of a tokenizer as byte strings, and the files that hold them: llm.c's tokenizer .bin, and
 * Hugging Face's vocab.json with merges.txt. Private to tokenizer.c and its files. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "bpe.h"
#include "error.h"

typedef struct Vocabulary {
    int n_tokens;
    int eot;           /* end-of-text id, -1: none */
    uint8_t *bytes;    /* all tokens end to end */
    uint32_t *offsets; /* (n_tokens + 1) token i is bytes[offsets[i], offsets[i+1]) */
} Vocabulary;

/* Room for n_tokens tokens of n_bytes bytes in all. */
bool vocabulary_alloc(Vocabulary *vocabulary, int n_tokens, size_t n_bytes, Error *err);
void vocabulary_free(Vocabulary *vocabulary);

/* Header of 256 uint32: magic 20240328, version 1 or 2, number of tokens, end-of-text id (version 2; 2^32 -
 * 1: none); then per token its length in one byte and its bytes. */
bool vocabulary_read_bin(Vocabulary *vocabulary, const char *path, Error *err);
bool vocabulary_write_bin(const Vocabulary *vocabulary, const char *directory, Error *err);

/* vocab.json: {token: id}, its bytes spelled as printable characters (hf_spell). */
bool vocabulary_read_hf(Vocabulary *vocabulary, const char *directory, Error *err);
/* merges.txt of the directory, where there is one, must be the merges that the ids imply. */
bool vocabulary_check_merges(const Bpe *bpe, const char *directory, Error *err);
/* vocab.json, merges.txt, tokenizer_config.json, special_tokens_map.json. */
bool vocabulary_write_hf(const Vocabulary *vocabulary, const Bpe *bpe, const char *directory, Error *err);

/* Creates DIRECTORY/NAME, flushed to the disk; removed if that fails. */
bool vocabulary_write_file(const char *directory, const char *name, const char *bytes, size_t n, Error *err);
