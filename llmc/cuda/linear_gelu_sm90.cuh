/* The two GEMMs of an MLP whose output goes through GELU, on Hopper: see linear_gelu_sm90.cu. */
#pragma once
#include "cuda_common.cuh"

/* True where the kernels below serve a GEMM that gives (rows, columns) out of a sum over `inner`; all three
 * are properties of the model, so a shape is always served by the same code. */
bool linear_gelu_sm90_serves(int64_t rows, int columns, int inner);

/* pre_gelu = x weight^T + bias, out = gelu(pre_gelu); as Ops.linear_forward */
void linear_gelu_forward_sm90(bf16 *out, bf16 *pre_gelu, const bf16 *x, const bf16 *weight, const bf16 *bias,
                              int64_t N, int OC, int IC);
/* dx = (dout weight) * gelu'(pre_gelu), dx_sums += column sums of dx or NULL; as Ops.linear_backward_input */
void linear_gelu_backward_sm90(bf16 *dx, float *dx_sums, const bf16 *dout, const bf16 *weight,
                               const bf16 *pre_gelu, void *scratch, int64_t N, int OC, int IC);
/* Of linear_gelu_backward_sm90 */
size_t linear_gelu_sm90_scratch_bytes(int64_t N, int IC);
