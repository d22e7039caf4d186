/* Layernorm backward. With n = (x - mean) * rstd and g = dout * weight, row by row:
 *
 *   dx = dresidual + rstd * (g - mean_c(g) - n * mean_c(g n))      dresidual NULL: 0
 *
 * and column by column dweight += sum dout n, dbias += sum dout, dx_sums += sum dx (NULL: not wanted). */
#pragma once
#include "dev/driver/launch.cuh"
#include "ladder.h"

enum { NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / WARP_SIZE };

template <typename X> struct NormBackward {
    X *dx;                            /* (N,C), may be dresidual */
    float *dweight, *dbias, *dx_sums; /* (C) */
    const X *dresidual, *dout, *x;    /* (N,C) */
    const X *weight;                  /* (C) */
    const float *mean, *rstd;         /* (N) */
    void *scratch;
    int64_t N;
    int C;
};
template <typename X> static NormBackward<X> backward_of(const Call *c) {
    void *const *p = c->p;
    NormBackward<X> b = {};
    b.dx = (X *)p[0];
    b.dweight = (float *)p[1];
    b.dbias = (float *)p[2];
    b.dx_sums = (float *)p[3];
    b.dresidual = (const X *)p[4];
    b.dout = (const X *)p[5];
    b.x = (const X *)p[6];
    b.weight = (const X *)p[7];
    b.mean = (const float *)p[8];
    b.rstd = (const float *)p[9];
    b.scratch = p[10];
    b.N = c->s.N;
    b.C = c->s.C;
    return b;
}

/* mean_c(g) and mean_c(g n) of a row. */
struct RowMeans {
    float g, gn;
};

/* What one element of a row contributes. */
struct NormElement {
    float dout, n, g;
};
template <typename X> __device__ inline NormElement element(const NormBackward<X> &b, int64_t row, int c) {
    const float dout = to_float(b.dout[row * b.C + c]);
    const float n = (to_float(b.x[row * b.C + c]) - b.mean[row]) * b.rstd[row];
    return {dout, n, dout * to_float(b.weight[c])};
}
template <typename X>
__device__ inline float dx_of(const NormBackward<X> &b, const NormElement &e, RowMeans means, int64_t row,
                              int c) {
    const float residual = b.dresidual ? to_float(b.dresidual[row * b.C + c]) : 0;
    return residual + b.rstd[row] * (e.g - means.g - e.n * means.gn);
}

/* The means of a row, by a warp. */
template <typename X> __device__ inline RowMeans warp_means(const NormBackward<X> &b, int64_t row) {
    float g = 0, gn = 0;
    for (int c = threadIdx.x % WARP_SIZE; c < b.C; c += WARP_SIZE) {
        const NormElement e = element(b, row, c);
        g += e.g;
        gn += e.g * e.n;
    }
    return {warp_sum(g) / (float)b.C, warp_sum(gn) / (float)b.C};
}
