/* Text to tokens and back: bytes, or GPT-2's byte-level BPE (equal to tiktoken's gpt2). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tokenizer Tokenizer;

/* spec: "bytes" (256 tokens, token = byte); a llm.c tokenizer .bin (magic 20240328); a directory with such a
 * tokenizer.bin or Hugging Face's vocab.json (+ merges.txt). NULL on error. */
Tokenizer *tokenizer_open(const char *spec, Error *err);
void tokenizer_close(Tokenizer *tokenizer);
int tokenizer_vocab_size(const Tokenizer *tokenizer);
/* End-of-text id, -1 where there is none (bytes). */
int tokenizer_eot(const Tokenizer *tokenizer);
/* "bytes" or "gpt2 bpe (50257)". */
const char *tokenizer_name(const Tokenizer *tokenizer);
/* Bytes of one token (not null-terminated); NULL for an id out of range or without text. */
const char *tokenizer_bytes(const Tokenizer *tokenizer, int token, size_t *length);
/* Appends to *tokens (malloc'ed, grown; *n tokens so far). Any bytes are legal; invalid UTF-8 is one symbol
 * per byte. */
bool tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t length, int32_t **tokens,
                      size_t *n, Error *err);
/* Writes the files that go into a checkpoint directory: tokenizer.bin, and vocab.json, merges.txt,
 * tokenizer_config.json, special_tokens_map.json for BPE, so that transformers loads it. */
bool tokenizer_save(const Tokenizer *tokenizer, const char *directory, Error *err);

#ifdef __cplusplus
}
#endif
