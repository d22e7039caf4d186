/* What kernels with a LayerNorm of a row in a warp's registers share: the same instructions, so the same bits. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

static constexpr float LAYERNORM_EPSILON = 1e-5f;

/* Elements of a + b, rounded to T. */
template <typename T> __device__ __forceinline__ Vec<T> add_vecs(const Vec<T> &a, const Vec<T> &b) {
    float x[Vec<T>::N], y[Vec<T>::N];
    Vec<T> sum;
    to_floats(x, a);
    to_floats(y, b);
#pragma unroll
    for (int k = 0; k < Vec<T>::N; k++) sum.v[k] = from_float<T>(x[k] + y[k]);
    return sum;
}

/* The first n_vecs vectors of this lane become what deviates from the row's mean; those behind them are 0. */
template <int VECS, int VEC>
__device__ __forceinline__ void center_row(float (&x)[VECS][VEC], int n_vecs, int C, float *mean,
                                           float *rstd) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int v = 0; v < VECS; v++)
#pragma unroll
        for (int k = 0; k < VEC; k++) sum += x[v][k];
    *mean = warp_sum(sum) / (float)C;
#pragma unroll
    for (int v = 0; v < VECS; v++)
        if (v < n_vecs)
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                x[v][k] -= *mean;
                squares += x[v][k] * x[v][k];
            }
    *rstd = rsqrtf(warp_sum(squares) / (float)C + LAYERNORM_EPSILON);
}

/* A vector of the output; x: what its elements deviate from the mean. */
template <typename T>
__device__ __forceinline__ Vec<T> norm_vec(const float (&x)[Vec<T>::N], float rstd, const Vec<T> &weight,
                                           const Vec<T> &bias) {
    float w[Vec<T>::N], b[Vec<T>::N];
    Vec<T> y;
    to_floats(w, weight);
    to_floats(b, bias);
#pragma unroll
    for (int k = 0; k < Vec<T>::N; k++) y.v[k] = from_float<T>(x[k] * rstd * w[k] + b[k]);
    return y;
}
