/* Back through a linear layer, with the dot products of each row's groups, on Hopper: see linear_row_dots_sm90.cu. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* bf16; 64 or 128 columns a group. */
bool linear_row_dots_sm90_serves(int64_t N, int OC, int IC, int group);

/* As linear_backward_input_row_dots in llmc/model/ops.h. */
void linear_row_dots_sm90(bf16 *dx, float *row_dots, const bf16 *dout, const bf16 *weight, const bf16 *other,
                          int64_t N, int OC, int IC, int group);
