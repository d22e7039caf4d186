/* Documents in a sequence of tokens: each ends with the end-of-text token, or with the sequence. */
#pragma once
#include <stdint.h>

/* starts, ends (B,T) =: the first position of the document that a position is of, and the one behind its last. */
void document_bounds(int32_t *starts, int32_t *ends, const int32_t *tokens, int B, int T, int end_of_text);
