/* Layernorm forward (Ba et al. 2016): out = (x - mean) * rstd * weight + bias over rows of C, rstd = 1 /
 * sqrt(variance + 1e-5), the variance from squared deviations in a pass of its own (no cancellation). */
#pragma once
#include "dev/driver/launch.cuh"
#include "ladder.h"

enum { NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / WARP_SIZE };

template <typename X> struct Norm {
    X *out;             /* (N,C) */
    float *mean, *rstd; /* (N) */
    const X *x, *weight, *bias;
    int64_t N;
    int C;
};
template <typename X> static Norm<X> norm_of(const Call *c) {
    return {(X *)c->p[0],       (float *)c->p[1],   (float *)c->p[2], (const X *)c->p[3],
            (const X *)c->p[4], (const X *)c->p[5], c->s.N,           c->s.C};
}

__device__ inline float rstd_of(float squares, int C) {
    return rsqrtf(squares / (float)C + 1e-5f);
}
__device__ inline float squared(float x) {
    return x * x;
}
template <typename X> __device__ inline X normed(const Norm<X> &n, X x, float mean, float rstd, int c) {
    return from_float<X>((to_float(x) - mean) * rstd * to_float(n.weight[c]) + to_float(n.bias[c]));
}

/* Of a launch in which every warp has a row: that row. */
__device__ inline int64_t warp_row() {
    return thread_number() / WARP_SIZE;
}
