/* What the rungs of the matrix product share: operands, the order of tiles, and what is done with finished sums. */
#pragma once
#include "llmc/cuda/ops/gelu.cuh"
#include "dev/driver/launch.cuh"
#include "ladder.h"

template <typename X> struct Linear {
    X *out, *pre_gelu;          /* (N,OC); pre_gelu may be NULL */
    const X *x, *weight, *bias; /* (N,IC), (OC,IC), (OC) or NULL */
    int64_t N;
    int OC, IC;
};
template <typename X> static Linear<X> linear_of(const Call *c) {
    return {(X *)c->p[0], (X *)c->p[1], (const X *)c->p[2], (const X *)c->p[3], (const X *)c->p[4], c->s.N,
            c->s.OC,      c->s.IC};
}

/* ---- tiles ---- */

/* First row and column of a block's tile of out. */
struct Corner {
    int64_t row;
    int column;
};
template <typename X> static unsigned tiles_of(const Linear<X> &l, int rows, int columns) {
    return (unsigned)(ceil_div<int64_t>(l.N, rows) * ceil_div(l.OC, columns));
}
/* Blocks that run together should share what they read: tiles come in bands of 8 rows of tiles, down the band first,
 * so that 132 blocks read 8 strips of x and 17 of W, not 1 and 132. */
template <typename X> __device__ inline Corner corner_of(const Linear<X> &l, int rows, int columns) {
    enum { BAND = 8 };
    const int64_t down = ceil_div<int64_t>(l.N, rows), across = ceil_div(l.OC, columns);
    const int64_t band = blockIdx.x / (BAND * across), in_band = blockIdx.x % (BAND * across);
    const int64_t height = min(down - band * BAND, (int64_t)BAND);
    return {(band * BAND + in_band % height) * rows, (int)(in_band / height) * columns};
}
/* Read by tiles of that size, every one its own strips of x and W, and out written: what L2 and memory serve. */
static double tile_bytes(const Sizes *s, int elem, int rows, int columns) {
    const double N = (double)s->N, OC = s->OC, IC = s->IC;
    return elem * (N * OC * IC * (1.0 / rows + 1.0 / columns) + N * OC * (s->flags & GELU ? 2 : 1));
}

/* ---- results ---- */

template <typename X, int N> struct alignas(N * sizeof(X)) Neighbours { X v[N]; };

/* N neighbours of a row (1, 2, 4 or 8, the column a multiple of N): bias, GELU if it is wanted, one store. What lies
 * outside out is left alone. */
template <typename X, int N>
__device__ inline void finish(const Linear<X> &l, int64_t row, int column, const float (&sum)[N]) {
    if (row >= l.N || column >= l.OC) return;
    const int64_t at = row * l.OC + column;
    Neighbours<X, N> bias = {}, pre, out;
    if (l.bias) bias = *(const Neighbours<X, N> *)(l.bias + column);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float s = sum[i] + to_float(bias.v[i]);
        pre.v[i] = from_float<X>(s);
        out.v[i] = l.pre_gelu ? from_float<X>(gelu(s)) : pre.v[i];
    }
    if (l.pre_gelu) *(Neighbours<X, N> *)(l.pre_gelu + at) = pre;
    *(Neighbours<X, N> *)(l.out + at) = out;
}
