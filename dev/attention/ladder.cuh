/* What the ladder's kernels share: typed operands, tiles in shared memory, and one product of tiles.
 *
 * The kernels are written to be read: fp32 tiles in shared memory, multiply-adds on the ordinary cores, one
 * barrier after every step. What the tensor cores and Hopper's engines give is in llmc/cuda/attention. */
#pragma once
#include <math.h>
#include "dev/driver/launch.cuh"
#include "ladder.h"

enum { LADDER_THREADS = 256, N_WARPS = LADDER_THREADS / WARP_SIZE };

/* ---- operands ---- */

template <typename X> struct Tensors {
    Sizes s;
    AttentionLayout l;
    float scale;
    X *out;
    float *lse;
    const X *qkv, *dout;
    X *dqkv;
    void *scratch;
};

template <typename X> static Tensors<X> forward_tensors(const Call *c) {
    Tensors<X> t = {c->s, attention_layout(&c->s), 1 / sqrtf((float)c->s.HD)};
    t.out = (X *)c->p[FORWARD_OUT];
    t.lse = (float *)c->p[FORWARD_LSE];
    t.qkv = (const X *)c->p[FORWARD_QKV];
    t.scratch = c->p[FORWARD_SCRATCH];
    return t;
}
template <typename X> static Tensors<X> backward_tensors(const Call *c) {
    Tensors<X> t = {c->s, attention_layout(&c->s), 1 / sqrtf((float)c->s.HD)};
    t.dqkv = (X *)c->p[BACKWARD_DQKV];
    t.dout = (const X *)c->p[BACKWARD_DOUT];
    t.out = (X *)c->p[BACKWARD_OUT]; /* read only */
    t.qkv = (const X *)c->p[BACKWARD_QKV];
    t.lse = (float *)c->p[BACKWARD_LSE]; /* read only */
    t.scratch = c->p[BACKWARD_SCRATCH];
    return t;
}

/* One head of one sequence: offsets of its first row in the tensors, in elements. */
struct Head {
    int64_t q, k, v, out; /* rows are q_stride, k_stride, v_stride, out_stride apart */
    int64_t row;          /* of its first query in (B,NH,T) */
};
template <typename X> __device__ inline Head head_of(const Tensors<X> &t, int index) {
    const int b = index / t.s.NH, h = index % t.s.NH;
    return {t.l.q + (int64_t)b * t.s.T * t.l.q_stride + h * t.s.HD,
            t.l.k + (int64_t)b * t.s.Tk * t.l.k_stride + h * t.s.HD,
            t.l.v + (int64_t)b * t.s.Tk * t.l.v_stride + h * t.s.DV,
            (int64_t)b * t.s.T * t.l.out_stride + h * t.s.DV, (int64_t)index * t.s.T};
}

/* ---- tiles: fp32 in shared memory, rows one word longer than they need be, against bank conflicts ---- */

struct Tile {
    float *at;
    int ld;
    __device__ float &operator()(int row, int column) const { return at[row * ld + column]; }
};

HOST_DEVICE int tile_floats(int rows, int width) {
    return rows * (width + 1);
}
/* Takes the next rows x width of shared memory. */
__device__ inline Tile take_tile(float *&memory, int rows, int width) {
    const Tile t = {memory, width + 1};
    memory += tile_floats(rows, width);
    return t;
}

/* `rows` rows from memory, `valid` of them there, the others 0. */
template <typename X>
__device__ inline void load_tile(Tile t, const X *src, int64_t stride, int rows, int width, int valid) {
    for (int i = threadIdx.x; i < rows * width; i += blockDim.x) {
        const int r = i / width, d = i % width;
        t(r, d) = r < valid ? to_float(src[r * stride + d]) : 0;
    }
}
/* The first `valid` rows to memory, row r times factor[r] (NULL: 1). */
template <typename X>
__device__ inline void store_tile(X *dst, int64_t stride, Tile t, int width, int valid, const float *factor) {
    for (int i = threadIdx.x; i < valid * width; i += blockDim.x) {
        const int r = i / width, d = i % width;
        dst[r * stride + d] = from_float<X>(factor ? t(r, d) * factor[r] : t(r, d));
    }
}
__device__ inline void fill_tile(Tile t, int rows, int width, float x) {
    for (int i = threadIdx.x; i < rows * width; i += blockDim.x) t(i / width, i % width) = x;
}

/* A tile as an operand: element (i, k) at at[i*i_step + k*k_step]. */
struct Factor {
    const float *at;
    int i_step, k_step;
};
__device__ inline Factor rows_of(Tile t) {
    return {t.at, t.ld, 1};
}
__device__ inline Factor columns_of(Tile t) {
    return {t.at, 1, t.ld};
}

/* C(m, n) = scale * sum_k A(m, k) B(n, k), or += if `add`; each thread holds 4 x 4 sums at a time. */
__device__ inline void product(Tile c, Factor a, Factor b, int M, int N, int K, float scale, bool add) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, rows = blockDim.x / 16;
    for (int m0 = ty; m0 < M; m0 += 4 * rows)
        for (int n0 = tx; n0 < N; n0 += 4 * 16) {
            float sum[4][4] = {};
            const float *pa[4], *pb[4];
            for (int i = 0; i < 4; i++) {
                pa[i] = a.at + min(m0 + i * rows, M - 1) * a.i_step;
                pb[i] = b.at + min(n0 + i * 16, N - 1) * b.i_step;
            }
            for (int k = 0; k < K; k++) {
                float x[4], y[4];
                for (int i = 0; i < 4; i++) x[i] = pa[i][k * a.k_step], y[i] = pb[i][k * b.k_step];
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
            }
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) {
                    const int m = m0 + i * rows, n = n0 + j * 16;
                    if (m < M && n < N) c(m, n) = (add ? c(m, n) : 0) + scale * sum[i][j];
                }
        }
}

/* ---- masks ---- */

/* One past the last key that any of the queries [i0, i0+rows) sees; the first tile of keys that one of them sees. */
HOST_DEVICE int keys_end(const Sizes *s, int i0, int rows) {
    const int last = i0 + rows < s->T ? i0 + rows : s->T, n = attention_visible(s, last - 1);
    return n < s->Tk ? n : s->Tk;
}
HOST_DEVICE int keys_begin(const Sizes *s, int i0, int tile) {
    return attention_first(s, i0) / tile * tile;
}
/* The first query that sees key j0, and one past the last that sees one of the keys [j0, j0+rows): under a window T = Tk. */
HOST_DEVICE int queries_begin(const Sizes *s, int j0) {
    const int i = s->causal ? j0 - (s->Tk - s->T) : 0;
    return i > 0 ? i : 0;
}
HOST_DEVICE int queries_end(const Sizes *s, int j0, int rows) {
    const int64_t end = (int64_t)j0 + rows - 1 + s->window;
    return s->window && end < s->T ? (int)end : s->T;
}
HOST_DEVICE bool sees(const Sizes *s, int i, int j) {
    return i < s->T && j < s->Tk && j < attention_visible(s, i) && j >= attention_first(s, i) &&
           attention_block_set(s, i / SPARSE_BLOCK, j / SPARSE_BLOCK);
}

/* ---- launches ---- */

/* Rows of a tile: 64, or 32 where a head is so wide that tiles would not fit an SM's shared memory. */
HOST_DEVICE int tile_rows(const Sizes *s) {
    return s->HD > 128 || s->DV > 128 ? 32 : 64;
}
