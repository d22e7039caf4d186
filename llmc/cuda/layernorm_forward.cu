/* LayerNorm (Ba et al. 2016), forward, alone and fused with the residual addition before it.
 *
 * One warp a row. The row goes to shared memory by asynchronous copies, all in flight at once, and stays
 * there between the two passes of the statistics (mean, then squared deviations: no cancellation) and the
 * write, so each byte crosses HBM once. A lane reads back only what it copied itself: no barriers. */
#include <cuda_pipeline.h>
#include "cuda_ops.cuh"

enum {
    MAX_WARPS = 4,
    ROW_BYTES_LIMIT = 48 << 10, /* shared memory of a block without opting in */
};
static constexpr float EPSILON = 1e-5f;

/* Starts the copy of a row by a warp, 16 bytes a lane in turns. */
template <typename T> __device__ inline void copy_row_async(T *shared, const T *row, int C) {
    for (int c = threadIdx.x % WARP_SIZE * Vec<T>::N; c < C; c += WARP_SIZE * Vec<T>::N)
        __pipeline_memcpy_async(shared + c, row + c, sizeof(Vec<T>));
}

/* With RESIDUAL: residual = a + b, and the norm of that; else b and residual are unused. CACHED: the row is
 * kept in shared memory; else (rows beyond 48 KB) it is read again. */
template <typename T, bool RESIDUAL, bool CACHED>
__global__ void __launch_bounds__(MAX_WARPS *WARP_SIZE)
    layernorm_forward_kernel(T *residual, T *out, float *mean, float *rstd, const T *a, const T *b,
                             const T *__restrict__ weight, const T *__restrict__ bias, int64_t N, int C) {
    extern __shared__ int4 shared_rows[];
    constexpr int VEC = Vec<T>::N, STEP = WARP_SIZE * VEC;
    const int warp = threadIdx.x / WARP_SIZE, first = threadIdx.x % WARP_SIZE * VEC;
    const int64_t row = (int64_t)blockIdx.x * (blockDim.x / WARP_SIZE) + warp;
    if (row >= N) return;
    a += row * C;
    b += RESIDUAL ? row * C : 0;
    residual += RESIDUAL ? row * C : 0;
    out += row * C;

    T *cached_a = (T *)shared_rows + (int64_t)warp * C * (RESIDUAL ? 2 : 1), *cached_b = cached_a + C;
    if (CACHED) {
        copy_row_async(cached_a, a, C);
        if (RESIDUAL) copy_row_async(cached_b, b, C);
        __pipeline_commit();
        __pipeline_wait_prior(0);
    }
    const T *in_a = CACHED ? cached_a : a, *in_b = CACHED ? cached_b : b;

    float sum = 0;
    for (int c = first; c < C; c += STEP) {
        Vec<T> x = load_vec(in_a + c);
        if (RESIDUAL) {
            const Vec<T> y = load_vec(in_b + c);
#pragma unroll
            for (int k = 0; k < VEC; k++) x.v[k] = from_float<T>(to_float(x.v[k]) + to_float(y.v[k]));
            store_vec(residual + c, x);
            if (CACHED) store_vec(cached_a + c, x);
        }
#pragma unroll
        for (int k = 0; k < VEC; k++) sum += to_float(x.v[k]);
    }
    const T *in = CACHED ? cached_a : RESIDUAL ? residual : a;
    const float m = warp_sum(sum) / (float)C;
    float squares = 0;
    for (int c = first; c < C; c += STEP) {
        const Vec<T> x = load_vec(in + c);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            const float deviation = to_float(x.v[k]) - m;
            squares += deviation * deviation;
        }
    }
    const float s = rsqrtf(warp_sum(squares) / (float)C + EPSILON);
    for (int c = first; c < C; c += STEP) {
        Vec<T> x = load_vec(in + c);
        const Vec<T> w = load_vec(weight + c), shift = load_vec(bias + c);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            x.v[k] = from_float<T>((to_float(x.v[k]) - m) * s * to_float(w.v[k]) + to_float(shift.v[k]));
        store_vec(out + c, x);
    }
    if (first == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

template <typename T, bool RESIDUAL>
static void launch(T *residual, T *out, float *mean, float *rstd, const T *a, const T *b, const T *weight,
                   const T *bias, int64_t N, int C) {
    const size_t row_bytes = (size_t)C * sizeof(T) * (RESIDUAL ? 2 : 1);
    const bool cached = row_bytes <= ROW_BYTES_LIMIT;
    int warps = MAX_WARPS;
    while (cached && warps * row_bytes > ROW_BYTES_LIMIT) warps--;
    const auto kernel =
        cached ? layernorm_forward_kernel<T, RESIDUAL, true> : layernorm_forward_kernel<T, RESIDUAL, false>;
    kernel<<<(unsigned)ceil_div<int64_t>(N, warps), warps * WARP_SIZE, cached ? warps * row_bytes : 0,
             main_stream>>>(residual, out, mean, rstd, a, b, weight, bias, N, C);
    launch_check(RESIDUAL ? "residual_layernorm_forward" : "layernorm_forward");
}

template <typename T>
void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *x, const floatX *weight,
                       const floatX *bias, int64_t N, int C) {
    launch<T, false>(NULL, (T *)out, mean, rstd, (const T *)x, NULL, (const T *)weight, (const T *)bias, N,
                     C);
}

template <typename T>
void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd, const floatX *a,
                                const floatX *b, const floatX *weight, const floatX *bias, int64_t N, int C) {
    launch<T, true>((T *)residual, (T *)out, mean, rstd, (const T *)a, (const T *)b, (const T *)weight,
                    (const T *)bias, N, C);
}

template void layernorm_forward<float>(floatX *, float *, float *, const floatX *, const floatX *,
                                       const floatX *, int64_t, int);
template void layernorm_forward<bf16>(floatX *, float *, float *, const floatX *, const floatX *,
                                      const floatX *, int64_t, int);
template void residual_layernorm_forward<float>(floatX *, floatX *, float *, float *, const floatX *,
                                                const floatX *, const floatX *, const floatX *, int64_t, int);
template void residual_layernorm_forward<bf16>(floatX *, floatX *, float *, float *, const floatX *,
                                               const floatX *, const floatX *, const floatX *, int64_t, int);
