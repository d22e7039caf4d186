/* Documents in a sequence of tokens: each ends with the end-of-text token, or with the sequence. */
#pragma once
#include <stdint.h>

/* starts, ends (B,T) =: the first position of the document that a position is of, and the one behind its last. */
void document_bounds(int32_t *starts, int32_t *ends, const int32_t *tokens, int B, int T, int end_of_text);
/* Pairs of query and key that are seen, of n positions with these bounds, where a query sees its last `window` positions: of a
 * document as gpt2_flops_per_token counts those of a sequence. */
double document_pairs(const int32_t *starts, const int32_t *ends, int64_t n, int window);
