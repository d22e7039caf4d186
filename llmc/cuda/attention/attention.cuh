/* Causal self-attention on CUDA. dispatch.cu chooses among the paths below by compute capability, storage type, head
 * size and mask:
 *   sm90_forward.cu, sm90_backward_*.cu bf16, head sizes 64 to 128 (forward also 256): wgmma and TMA, Hopper alone;
 *                                       *_dropout.cu with that
 *   sm80_forward.cu, sm80_backward.cu   bf16, any head size up to 256: mma.sync, sm_80 and later
 *   generic.cu                          fp32, any head size up to 256: FFMA
 *   standard.cu                         the T*T form, for comparison only
 *   decode.cu                           one query against a cache
 * mask.cuh has what a window and dropout are to a kernel; sm80_mask.cuh the same for mma.sync's fragments.
 */
#pragma once
#include "llmc/cuda/cuda_ops.cuh"

/* Bytes that attention_backward needs of the scratch buffer: the most that any path takes, on any device. */
size_t attention_scratch_bytes(const OpShape *shape);
