/* Byte-level byte pair encoding as GPT-2 does it, with the same ids as tiktoken's "gpt2" (Sennrich et al.
 * 2016; Radford et al. 2019, section 2.2).
 *
 * Text is cut into pieces (letters, numbers, punctuation, white space: bpe_split), and inside each piece the
 * adjacent pair whose bytes are the token of lowest id is merged, the leftmost first, until none is a token.
 * So the ids must be in the order of the merges; then the tokens' bytes are all that is needed. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "llmc/base/error.h"
#include "vocabulary.h"

struct Bpe {
    const Vocabulary *vocabulary; /* the caller's */
    int32_t (*parts)[2]; /* (n_tokens, 2) the merge that makes token i; -1, -1: a byte, or not mergeable */
    int32_t byte_token[256]; /* the token of each single byte */
    size_t longest;          /* bytes of the longest token that merging can make */
    int32_t *slots;          /* (n_slots) hash table by bytes: token ids, -1 empty */
    size_t n_slots;          /* a power of two */
};

/* Builds the hash table and the merges. EXIT_INPUT where a byte has no token or two tokens are the same. A
 * token that no merge of lower ids makes (a special token) is kept for decoding and never made from text. */
bool bpe_open(Bpe *bpe, const Vocabulary *vocabulary, Error *err);
void bpe_close(Bpe *bpe);
/* Whether no text becomes this token. */
bool bpe_is_special(const Bpe *bpe, int token);

/* Appends the tokens of text to *tokens (malloc'ed, grown), as tiktoken's encode_ordinary: "<|endoftext|>" is
 * text like any other. Time is O(n log n) in the longest piece. */
bool bpe_encode(const Bpe *bpe, const char *text, size_t length, int32_t **tokens, size_t *n, Error *err);

/* Bytes of the first piece of text (length > 0) by GPT-2's pattern
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * A byte that is not part of valid UTF-8 counts as one symbol of the class [^\s\p{L}\p{N}]. */
size_t bpe_split(const char *text, size_t length);

/* Where text (length > 0) can be cut, whatever follows it, so that both sides encode as the whole does: before its last
 * space or newline that follows no white space, where the pattern begins a piece. 0: nowhere. */
size_t bpe_cut(const char *text, size_t length);
