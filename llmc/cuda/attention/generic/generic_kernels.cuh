/* Attention for any head size up to 256, bf16 and fp32 storage, fp32 arithmetic throughout: the path for fp32 (generic.cu),
 * and, in the lab, what bf16 without tensor cores takes (Dao 2023, Algorithms 1 and 2, backward split in two passes as in
 * sm80_backward.cu). out =, lse =, dqkv =. Deterministic: no atomics.
 *
 * Exponentials are exp2f of fp32 products, logarithms logf: errors stay at fp32 rounding, 1e-7 relative. */
#pragma once
#include <math_constants.h>
#include "generic.cuh"
#include "llmc/cuda/attention/mask.cuh"
#include "llmc/cuda/attention/paths.cuh"

/* Running max and sum of a thread's rows, in log2 units; every thread of a row has the same. */
template <int HDP> struct OnlineSoftmax { float max[GenericSize<HDP>::R], sum[GenericSize<HDP>::R]; };

/* s becomes P = 2^(s * scale_log2 - max), 0 for keys that a row does not see; the sums o are rescaled to the new
 * max. row, key: positions of the thread's first row and column. Without a window the first tile holds key 0, so
 * every max is finite from there on; with one a row that has seen no key yet takes 0 for its max. */
template <int HDP, class Mask>
__device__ __forceinline__ void online_softmax(OnlineSoftmax<HDP> &state, GenericSums<HDP> &o,
                                               GenericScores<HDP> &s, int row, int key, float scale_log2,
                                               const Mask &mask) {
    using Config = GenericConfig<HDP>;
#pragma unroll
    for (int i = 0; i < Config::R; i++) {
        float tile_max = -CUDART_INF_F;
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++) {
            const bool hidden = key + 16 * j > row + i || mask.beyond(row + i, key + 16 * j);
            s[i][j] = hidden ? -CUDART_INF_F : s[i][j] * scale_log2;
            tile_max = fmaxf(tile_max, s[i][j]);
        }
        const float max = fmaxf(state.max[i], row_max(tile_max));
        const float base = !Mask::PLAIN && max == -CUDART_INF_F ? 0.0f : max;
        const float shrink = exp2f(state.max[i] - base);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++) {
            s[i][j] = exp2f(s[i][j] - base);
            sum += s[i][j];
        }
        state.sum[i] = state.sum[i] * shrink + row_sum(sum);
        state.max[i] = max;
#pragma unroll
        for (int c = 0; c < Config::PAIRS; c++) {
            o[i][c].x *= shrink;
            o[i][c].y *= shrink;
        }
    }
}

/* What dropout takes of a thread's elements: bit COLUMNS i + j. row, column: positions of the thread's first of each.
 * TRANSPOSED: columns are queries, rows are keys. */
template <int HDP, bool TRANSPOSED, class Mask>
__device__ __forceinline__ uint32_t generic_dropped(const Mask &mask, DropoutMatrix matrix, int row,
                                                    int column) {
    using Config = GenericConfig<HDP>;
    static_assert(Config::R * Config::COLUMNS <= 32, "a bit an element");
    uint32_t bits = 0;
    if (!mask.drops()) return bits;
#pragma unroll
    for (int i = 0; i < Config::R; i++)
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++) {
            const int r = row + i, c = column + 16 * j;
            const bool dropped = TRANSPOSED ? mask.dropped(matrix, c, r) : mask.dropped(matrix, r, c);
            bits |= (uint32_t)dropped << (i * Config::COLUMNS + j);
        }
    return bits;
}

/* s, 0 where dropped. */
template <int HDP> __device__ __forceinline__ void generic_drop(GenericScores<HDP> &s, uint32_t dropped) {
    using Config = GenericConfig<HDP>;
#pragma unroll
    for (int i = 0; i < Config::R; i++)
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++)
            if (dropped >> (i * Config::COLUMNS + j) & 1) s[i][j] = 0.0f;
}

template <typename X, int HDP, class Mask>
__global__ void __launch_bounds__(GenericConfig<HDP>::THREADS, 2)
    generic_forward_kernel(X *out, float *lse, const X *qkv, int T, int NH, int HD, float scale_log2,
                           const __grid_constant__ TileOrder order, Mask mask) {
    using Config = GenericConfig<HDP>;
    extern __shared__ __align__(16) float shared_floats[];
    float *q = shared_floats, *kv = q + Config::OWN_FLOATS, *weights = kv + Config::STREAM_FLOATS;
    const BlockRows at = block_rows<true>(order, Config::OWN, T, NH, HD);
    mask.enter_sequence((int)((at.token - at.row0) / T));
    const int C = NH * HD, stride = 3 * C;
    const X *q_rows = qkv + at.token * stride + at.column, *k_rows = q_rows + C - (int64_t)at.row0 * stride;
    const int own = threadIdx.x / 16 * Config::R;

    OnlineSoftmax<HDP> state;
    GenericSums<HDP> o;
    generic_clear<HDP>(o);
#pragma unroll
    for (int i = 0; i < Config::R; i++) {
        state.max[i] = -CUDART_INF_F;
        state.sum[i] = 0.0f;
    }
    generic_load<HDP, Config::OWN>(q, q_rows, stride, T - at.row0, HD);
    const DropoutMatrix matrix = mask.matrix(at.head);
    for (int key = mask.first_key(at.row0) / Config::STREAM * Config::STREAM;
         key < min(at.row0 + Config::OWN, T); key += Config::STREAM) {
        if (mask.hides_block(at.row0, key)) continue;
        __syncthreads();
        generic_load<HDP, Config::STREAM>(kv, k_rows + (int64_t)key * stride, stride, T - key, HD);
        __syncthreads();
        GenericScores<HDP> s;
        generic_scores<HDP>(s, q, kv);
        const int first_key = key + threadIdx.x % 16;
        online_softmax<HDP>(state, o, s, at.row0 + own, first_key, scale_log2, mask);
        generic_drop<HDP>(s, generic_dropped<HDP, false>(mask, matrix, at.row0 + own, first_key));
        generic_share<HDP>(weights, s);
        __syncthreads();
        generic_load<HDP, Config::STREAM>(kv, k_rows + C + (int64_t)key * stride, stride, T - key, HD);
        __syncthreads();
        generic_multiply<HDP>(o, weights, kv);
    }
    float inverse[Config::R];
#pragma unroll
    for (int i = 0; i < Config::R; i++) {
        inverse[i] = mask.kept_scale() / state.sum[i];
        if (threadIdx.x % 16 == 0 && at.row0 + own + i < T)
            lse[at.stat + own + i] = state.max[i] * LN2 + logf(state.sum[i]);
    }
    generic_store<HDP>(out + at.token * C + at.column, C, T - at.row0, HD, o, inverse);
}

/* D (times kept) of the thread's rows from dO and O in global memory, lse beside it; writes both to stats for the dK/dV
 * pass. */
template <typename X, int HDP>
__device__ __forceinline__ void own_stats(RowStats (&own)[GenericSize<HDP>::R], RowStats *stats,
                                          const float *lse, const X *dout, const X *out, int C,
                                          int rows_valid, int HD, float kept) {
#pragma unroll
    for (int i = 0; i < GenericSize<HDP>::R; i++) {
        const int row = threadIdx.x / 16 * GenericSize<HDP>::R + i;
        float d = 0.0f;
        if (row < rows_valid)
            for (int column = threadIdx.x % 16; column < HD; column += 16)
                d = fmaf(to_float(dout[row * C + column]), to_float(out[row * C + column]), d);
        own[i].neg_d = -row_sum(d) * kept;
        own[i].neg_lse2 = row < rows_valid ? -LOG2E * lse[row] : 0.0f;
        if (threadIdx.x % 16 == 0 && row < rows_valid) stats[row] = own[i];
    }
}

template <typename X, int HDP, class Mask>
__global__ void __launch_bounds__(GenericConfig<HDP>::THREADS, 2)
    generic_dq_kernel(X *dqkv, RowStats *stats, const X *dout, const X *out, const X *qkv, const float *lse,
                      int T, int NH, int HD, float scale, const __grid_constant__ TileOrder order,
                      Mask mask) {
    using Config = GenericConfig<HDP>;
    extern __shared__ __align__(16) float shared_floats[];
    float *q = shared_floats, *d_out = q + Config::OWN_FLOATS;
    float *kv = d_out + Config::OWN_FLOATS, *weights = kv + Config::STREAM_FLOATS;
    const BlockRows at = block_rows<true>(order, Config::OWN, T, NH, HD);
    mask.enter_sequence((int)((at.token - at.row0) / T));
    const int C = NH * HD, stride = 3 * C, rows_valid = T - at.row0;
    const X *q_rows = qkv + at.token * stride + at.column, *k_rows = q_rows + C - (int64_t)at.row0 * stride;
    const int64_t o_offset = at.token * C + at.column;
    const int row = at.row0 + threadIdx.x / 16 * Config::R;

    RowStats own[Config::R];
    own_stats<X, HDP>(own, stats + at.stat, lse + at.stat, dout + o_offset, out + o_offset, C, rows_valid, HD,
                      mask.kept());
    generic_load<HDP, Config::OWN>(q, q_rows, stride, rows_valid, HD);
    generic_load<HDP, Config::OWN>(d_out, dout + o_offset, C, rows_valid, HD);
    GenericSums<HDP> dq;
    generic_clear<HDP>(dq);
    const DropoutMatrix matrix = mask.matrix(at.head);
    for (int key = mask.first_key(at.row0) / Config::STREAM * Config::STREAM;
         key < min(at.row0 + Config::OWN, T); key += Config::STREAM) {
        if (mask.hides_block(at.row0, key)) continue;
        GenericScores<HDP> s, dp;
        __syncthreads();
        generic_load<HDP, Config::STREAM>(kv, k_rows + C + (int64_t)key * stride, stride, T - key, HD);
        __syncthreads();
        generic_scores<HDP>(dp, d_out, kv);
        __syncthreads();
        generic_load<HDP, Config::STREAM>(kv, k_rows + (int64_t)key * stride, stride, T - key, HD);
        __syncthreads();
        generic_scores<HDP>(s, q, kv);
        const int first_key = key + (int)threadIdx.x % 16;
        generic_drop<HDP>(dp, generic_dropped<HDP, false>(mask, matrix, row, first_key));
#pragma unroll
        for (int i = 0; i < Config::R; i++)
#pragma unroll
            for (int j = 0; j < Config::COLUMNS; j++) {
                const bool ahead = first_key + 16 * j > row + i,
                           beyond = mask.beyond(row + i, first_key + 16 * j);
                const float p = exp2f(fmaf(s[i][j], scale * LOG2E, own[i].neg_lse2));
                s[i][j] = ahead || beyond ? 0.0f : p * (dp[i][j] + own[i].neg_d);
            }
        generic_share<HDP>(weights, s);
        generic_multiply<HDP>(dq, weights, kv);
    }
    float factor[Config::R];
#pragma unroll
    for (int i = 0; i < Config::R; i++) factor[i] = scale * mask.kept_scale();
    generic_store<HDP>(dqkv + at.token * stride + at.column, stride, rows_valid, HD, dq, factor);
}

template <typename X, int HDP, class Mask>
__global__ void __launch_bounds__(GenericConfig<HDP>::THREADS, 2)
    generic_dkv_kernel(X *dqkv, const RowStats *stats, const X *dout, const X *qkv, int T, int NH, int HD,
                       float scale, const __grid_constant__ TileOrder order, Mask mask) {
    using Config = GenericConfig<HDP>;
    extern __shared__ __align__(16) float shared_floats[];
    float *k = shared_floats, *v = k + Config::OWN_FLOATS;
    float *q = v + Config::OWN_FLOATS, *d_out = q + Config::STREAM_FLOATS,
          *weights = d_out + Config::STREAM_FLOATS;
    const BlockRows at = block_rows<false>(order, Config::OWN, T, NH, HD);
    mask.enter_sequence((int)((at.token - at.row0) / T));
    const int C = NH * HD, stride = 3 * C, rows_valid = T - at.row0;
    const int64_t q_offset = at.token * stride + at.column;
    const int row = at.row0 + threadIdx.x / 16 * Config::R;

    generic_load<HDP, Config::OWN>(k, qkv + q_offset + C, stride, rows_valid, HD);
    generic_load<HDP, Config::OWN>(v, qkv + q_offset + 2 * C, stride, rows_valid, HD);
    GenericSums<HDP> dk, dv;
    generic_clear<HDP>(dk);
    generic_clear<HDP>(dv);
    const DropoutMatrix matrix = mask.matrix(at.head);
    const int end = mask.end_query(at.row0 + Config::OWN, T);
    for (int query = at.row0; query < end; query += Config::STREAM) {
        if (mask.hides_block(query, at.row0)) continue;
        const int64_t ahead = query - at.row0;
        __syncthreads();
        generic_load<HDP, Config::STREAM>(q, qkv + q_offset + ahead * stride, stride, T - query, HD);
        generic_load<HDP, Config::STREAM>(d_out, dout + (at.token + ahead) * C + at.column, C, T - query, HD);
        __syncthreads();
        GenericScores<HDP> p, ds;
        generic_scores<HDP>(p, k, q);
        generic_scores<HDP>(ds, v, d_out);
        const uint32_t dropped = generic_dropped<HDP, true>(mask, matrix, row, query + threadIdx.x % 16);
        generic_drop<HDP>(ds, dropped);
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++) {
            const int column = threadIdx.x % 16 + 16 * j;
            const RowStats of = query + column < T ? stats[at.stat + ahead + column] : RowStats{0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < Config::R; i++) {
                const bool before = query + column < row + i, beyond = mask.beyond(query + column, row + i);
                p[i][j] = before || beyond ? 0.0f : exp2f(fmaf(p[i][j], scale * LOG2E, of.neg_lse2));
                ds[i][j] = before || beyond ? 0.0f : p[i][j] * (ds[i][j] + of.neg_d);
            }
        }
        generic_drop<HDP>(p, dropped);
        generic_share<HDP>(weights, p);
        generic_multiply<HDP>(dv, weights, d_out);
        generic_share<HDP>(weights, ds);
        generic_multiply<HDP>(dk, weights, q);
    }
    float dk_factor[Config::R], dv_factor[Config::R];
#pragma unroll
    for (int i = 0; i < Config::R; i++) {
        dk_factor[i] = scale * mask.kept_scale();
        dv_factor[i] = mask.kept_scale();
    }
    generic_store<HDP>(dqkv + q_offset + C, stride, rows_valid, HD, dk, dk_factor);
    generic_store<HDP>(dqkv + q_offset + 2 * C, stride, rows_valid, HD, dv, dv_factor);
}

template <typename X, int HDP, class Mask>
static void forward(X *out, float *lse, const X *qkv, Mask mask, int B, int T, int NH, int HD) {
    using Config = GenericConfig<HDP>;
    constexpr int BYTES =
        (Config::OWN_FLOATS + Config::STREAM_FLOATS + Config::WEIGHT_FLOATS) * sizeof(float);
    const TileOrder order = tile_order(B, T, NH, Config::OWN, 2 * HD * sizeof(X), true, HEAD_GROUP_BYTES);
    allow_shared_bytes<generic_forward_kernel<X, HDP, Mask>>(BYTES);
    generic_forward_kernel<X, HDP, Mask><<<order.total, Config::THREADS, BYTES, main_stream>>>(
        out, lse, qkv, T, NH, HD, LOG2E / sqrtf(HD), order, mask);
    launch_check("generic_forward_kernel");
}

template <typename X, int HDP, class Mask>
static void backward(X *dqkv, const X *dout, const X *out, const X *qkv, const float *lse, RowStats *stats,
                     Mask mask, int B, int T, int NH, int HD) {
    using Config = GenericConfig<HDP>;
    constexpr int DQ_BYTES =
        (2 * Config::OWN_FLOATS + Config::STREAM_FLOATS + Config::WEIGHT_FLOATS) * sizeof(float);
    constexpr int DKV_BYTES = DQ_BYTES + Config::STREAM_FLOATS * sizeof(float);
    const float scale = 1.0f / sqrtf(HD);
    const TileOrder order = tile_order(B, T, NH, Config::OWN, 2 * HD * sizeof(X), true, HEAD_GROUP_BYTES);
    TileOrder key_order = order;
    key_order.descending = false;
    allow_shared_bytes<generic_dq_kernel<X, HDP, Mask>>(DQ_BYTES);
    generic_dq_kernel<X, HDP, Mask><<<order.total, Config::THREADS, DQ_BYTES, main_stream>>>(
        dqkv, stats, dout, out, qkv, lse, T, NH, HD, scale, order, mask);
    launch_check("generic_dq_kernel");
    allow_shared_bytes<generic_dkv_kernel<X, HDP, Mask>>(DKV_BYTES);
    generic_dkv_kernel<X, HDP, Mask><<<order.total, Config::THREADS, DKV_BYTES, main_stream>>>(
        dqkv, stats, dout, qkv, T, NH, HD, scale, key_order, mask);
    launch_check("generic_dkv_kernel");
}

/* Head sizes up to `size` go to these kernels; the first row that is large enough is taken. */
template <typename X, class Mask> struct Bucket {
    int size;
    void (*forward)(X *, float *, const X *, Mask, int, int, int, int);
    void (*backward)(X *, const X *, const X *, const X *, const float *, RowStats *, Mask, int, int, int,
                     int);
};
template <typename X, class Mask> static const Bucket<X, Mask> *bucket_for(int HD) {
    static const Bucket<X, Mask> buckets[] = {
        {32,  forward<X, 32,  Mask>, backward<X, 32,  Mask>},
        {64,  forward<X, 64,  Mask>, backward<X, 64,  Mask>},
        {96,  forward<X, 96,  Mask>, backward<X, 96,  Mask>},
        {128, forward<X, 128, Mask>, backward<X, 128, Mask>},
        {192, forward<X, 192, Mask>, backward<X, 192, Mask>},
        {256, forward<X, 256, Mask>, backward<X, 256, Mask>},
    };
    const Bucket<X, Mask> *bucket = buckets;
    while (bucket->size < HD) bucket++;
    return bucket;
}

template <typename X, class Mask>
static void any_forward(floatX *out, float *lse, const floatX *qkv, Mask mask, int B, int T, int NH, int HD) {
    bucket_for<X, Mask>(HD)->forward((X *)out, lse, (const X *)qkv, mask, B, T, NH, HD);
}
template <typename X, class Mask>
static void any_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                         const float *lse, void *scratch, Mask mask, int B, int T, int NH, int HD) {
    bucket_for<X, Mask>(HD)->backward((X *)dqkv, (const X *)dout, (const X *)out, (const X *)qkv, lse,
                                      (RowStats *)scratch, mask, B, T, NH, HD);
}
