/* Bias gradients of the linear layer that makes q, k and v: Ops.qkv_bias_backward, which says why two of them need
 * no pass over the gradient. The two small sums share a launch: 30 us at 65536 x 768, 26 of them the pass over dq. */
#include "column_sums.cuh"
#include "llmc/cuda/cuda_ops.cuh"

/* Both rows of dbias (3,C) that change, each by blocks of its own: q's += the n rows of `partials` (n,C), v's =
 * dproj_bias (C) W, W (C,C). Grid (ceil(C / 32), 2), block (32, 32): a warp takes every 32nd row of 32 columns. */
template <typename T>
__global__ void __launch_bounds__(1024)
    qkv_bias_kernel(float *dbias, const float *__restrict__ partials, int n,
                    const float *__restrict__ dproj_bias, const T *__restrict__ weight, int C) {
    const bool is_q = blockIdx.y == 0;
    const int column = blockIdx.x * WARP_SIZE + threadIdx.x;
    float sum = 0;
    if (column < C && is_q) {
#pragma unroll 8
        for (int i = threadIdx.y; i < n; i += WARP_SIZE) sum += partials[(int64_t)i * C + column];
    } else if (column < C) {
#pragma unroll 8
        for (int i = threadIdx.y; i < C; i += WARP_SIZE)
            sum += dproj_bias[i] * to_float(weight[(int64_t)i * C + column]);
    }
    const float total = warps_column_total(sum);
    if (threadIdx.y != 0 || column >= C) return;
    if (is_q)
        dbias[column] += total;
    else
        dbias[2 * C + column] = total;
}

template <typename T>
void qkv_bias_backward(float *dbias, const floatX *dqkv, const float *dproj_bias, const floatX *proj_weight,
                       void *scratch, int64_t N, int C) {
    float *partials = static_cast<float *>(scratch);
    const int n = column_partials(partials, (const T *)dqkv, N, C, 3 * C);
    qkv_bias_kernel<<<dim3(ceil_div<int>(C, WARP_SIZE), 2), dim3(WARP_SIZE, WARP_SIZE), 0, main_stream>>>(
        dbias, partials, n, dproj_bias, (const T *)proj_weight, C);
    launch_check("qkv_bias");
}

template QkvBiasBackward qkv_bias_backward<float>;
template QkvBiasBackward qkv_bias_backward<bf16>;
