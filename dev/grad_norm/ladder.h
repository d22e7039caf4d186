/* The ladder of the global norm. Gradients are fp32 whatever the storage type. */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

void grad_norm_atomics(const Call *c);       /* one addition a thread */
void grad_norm_block_atomics(const Call *c); /* one a block */
void grad_norm_two_stage(const Call *c);

#ifdef __cplusplus
}
#endif
