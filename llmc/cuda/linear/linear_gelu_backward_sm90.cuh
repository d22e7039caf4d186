/* Back through a linear layer and the GELU before it in one kernel, on Hopper: see linear_gelu_backward_sm90.cu. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* True where the kernel takes a layer (N,IC) -> (N,OC). A function of the shape alone, so a shape is always
 * computed by the same code. */
bool linear_gelu_backward_sm90_serves(int64_t N, int OC, int IC);
size_t linear_gelu_backward_sm90_scratch_bytes(int64_t N, int IC);

/* dx (N,IC) = (dout (N,OC) weight), rounded, times gelu'(pre_gelu); dx_sums (IC) += its column sums, or NULL;
 * gelu (N,IC) = gelu(pre_gelu), or NULL; gelu may be pre_gelu */
void linear_gelu_backward_sm90(bf16 *dx, float *dx_sums, bf16 *gelu, const bf16 *dout, const bf16 *weight,
                               const bf16 *pre_gelu, void *scratch, int64_t N, int OC, int IC);
