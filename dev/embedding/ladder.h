/* The ladder of the embedding's gradient. Operands: dwte (V,C) +=, dwpe (T,C) +=, dout (B,T,C), tokens (B,T), scratch. */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

void embedding_atomics(const Call *c);
void embedding_columns(const Call *c);        /* tokens as they come */
void embedding_sorted_columns(const Call *c); /* tokens sorted */
void embedding_runs(const Call *c);

#ifdef __cplusplus
}
#endif
