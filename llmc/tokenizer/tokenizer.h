/* Text to tokens and back: bytes, or byte-level BPE (with GPT-2's vocabulary equal to tiktoken's gpt2). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "llmc/base/error.h"
#include "llmc/base/json.h"

typedef struct Tokenizer Tokenizer;

/* GPT-2's own: its tokens, the last of them end-of-text; and the file that llm.c and the scripts of data/ write it to, beside
 * shards and models. */
enum { GPT2_VOCAB = 50257, GPT2_EOT = GPT2_VOCAB - 1 };
#define GPT2_TOKENIZER_FILE "gpt2_tokenizer.bin"

/* A model's table has its tokens rounded up to a multiple of so many rows; others' are to smaller powers of two. */
enum { VOCAB_PADDING = 128 };

/* spec: "bytes" (256 tokens, token = byte); a llm.c tokenizer .bin (magic 20240328); Hugging Face's
 * tokenizer.json; a directory with such a tokenizer.bin, a tokenizer.json, or vocab.json and merges.txt: those
 * that are there must agree. NULL on error. */
Tokenizer *tokenizer_open(const char *spec, Error *err);
/* Whether the directory has one of these files, whole or not. */
bool tokenizer_is_in(const char *directory);
void tokenizer_close(Tokenizer *tokenizer);
int tokenizer_vocab_size(const Tokenizer *tokenizer);
/* Whether its ids can be those of a table of so many rows: as many, or rounded up to a multiple, at most of
 * VOCAB_PADDING. */
bool tokenizer_fits(const Tokenizer *tokenizer, int n_rows);
/* End-of-text id, -1 where there is none (bytes). */
int tokenizer_eot(const Tokenizer *tokenizer);
/* "bytes" or "bpe of 50257 tokens". */
const char *tokenizer_name(const Tokenizer *tokenizer);
/* The file it was read from; "bytes" where it needs none. */
const char *tokenizer_source(const Tokenizer *tokenizer);
/* Member "tokenizer" of a log's or a checkpoint's object: name, number of tokens, source; NULL: null. */
void tokenizer_describe(JsonWriter *w, const Tokenizer *tokenizer);
/* The token that stands before a text without a beginning: end-of-text, or else a newline. */
int tokenizer_start(const Tokenizer *tokenizer);
/* Bytes of one token (not null-terminated); NULL for an id out of range. Every token has a byte or more. */
const char *tokenizer_bytes(const Tokenizer *tokenizer, int token, size_t *length);
/* Appends to *tokens (malloc'ed, grown; *n tokens so far). Any bytes are legal; invalid UTF-8 is one symbol
 * per byte. */
bool tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t length, int32_t **tokens,
                      size_t *n, Error *err);
/* As llm.c's tokenizer .bin: DIRECTORY/NAME. */
bool tokenizer_save_bin(const Tokenizer *tokenizer, const char *directory, const char *name, Error *err);
/* The first id under which b has another token than a, which may have more; -1: none. */
int tokenizer_first_other(const Tokenizer *a, const Tokenizer *b);
/* True where both have the same tokens, under the same ids. */
bool tokenizer_equals(const Tokenizer *a, const Tokenizer *b);
/* A vocabulary as byte-level BPE files have it: each byte of a token a printable character, a special token, which no
 * text becomes, as it is; the merges, a line each ("Ġ t"), none where bytes are the tokens. */
void tokenizer_append_spelled(Buffer *buffer, const Tokenizer *tokenizer, int token);
bool tokenizer_is_special(const Tokenizer *tokenizer, int token);
void tokenizer_append_merges(Buffer *buffer, const Tokenizer *tokenizer);
/* Writes the files that go into a checkpoint directory: tokenizer.bin, and vocab.json, merges.txt,
 * tokenizer_config.json, special_tokens_map.json, with which transformers gives the same ids, and knows the model's
 * context of so many tokens. */
bool tokenizer_save(const Tokenizer *tokenizer, const char *directory, int context, Error *err);
