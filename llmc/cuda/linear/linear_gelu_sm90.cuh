/* A linear layer and the GELU behind it in one kernel, on Hopper: see linear_gelu_sm90.cu. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* True where the kernel takes a layer (N,IC) -> (N,OC). A function of the shape alone, so a shape is always
 * computed by the same code. */
bool linear_gelu_sm90_serves(int64_t N, int OC, int IC);

/* pre_gelu (N,OC) = x weight^T + bias, out (N,OC) = gelu of the rounded pre_gelu; bias may be NULL */
void linear_gelu_sm90(bf16 *out, bf16 *pre_gelu, const bf16 *x, const bf16 *weight, const bf16 *bias,
                      int64_t N, int OC, int IC);
