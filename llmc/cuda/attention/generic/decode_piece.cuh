/* What kernels share that put a new token's query to a cache of bf16 keys and values: 128 of them by four warps. */
#pragma once
#include <math_constants.h>
#include "llmc/cuda/device/cuda_common.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

enum { PIECE_KEYS = 128 };

/* Of one sequence: keys [begin, end) are seen. */
struct Seen {
    int64_t begin, end;
};
__device__ __forceinline__ Seen seen_keys(const int32_t *positions, const int32_t *begins, int window,
                                          int b) {
    const int position = positions[b], begin = begins ? begins[b] : 0;
    return {max(begin, window > 0 && position >= window ? position + 1 - window : 0), (int64_t)position + 1};
}

__device__ __forceinline__ float dot8(const float (&q)[8], const int4 &k) {
    float f[8], sum = 0.0f;
    to_floats(f, k);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(q[i], f[i], sum);
    return sum;
}

/* A part of a head's keys: unnormalised output, maximum, sum; max -inf: there are none. */
template <int HD> struct Part { float o[HD], max, sum; };

/* Parts joined in their order, one element of each; *sum of all. */
template <int MAX>
__device__ __forceinline__ float join_values(const float (&o)[MAX], const float (&sums)[MAX],
                                             const float (&maxima)[MAX], float *sum, float *max) {
    float total = 0.0f;
    *max = -CUDART_INF_F;
    *sum = 0.0f;
#pragma unroll
    for (int p = 0; p < MAX; p++) *max = fmaxf(*max, maxima[p]);
    if (*max == -CUDART_INF_F) return total;
#pragma unroll
    for (int p = 0; p < MAX; p++) {
        const float scale = exp2f(maxima[p] - *max); /* 0 where there is none */
        *sum = fmaf(sums[p], scale, *sum);
        total = fmaf(o[p], scale, total);
    }
    return total;
}

/* Element d of n <= MAX parts. All are read before anything waits for one. */
template <int HD, int MAX, typename F>
__device__ __forceinline__ float join_parts(int n, int d, float *sum, float *max, F part) {
    float o[MAX], sums[MAX], maxima[MAX];
#pragma unroll
    for (int p = 0; p < MAX; p++) {
        maxima[p] = p < n ? part(p)->max : -CUDART_INF_F;
        sums[p] = p < n ? part(p)->sum : 0.0f;
        o[p] = p < n ? part(p)->o[d] : 0.0f;
    }
    return join_values(o, sums, maxima, sum, max);
}

/* A warp's 32 keys of a piece, in LOADS rows of KEYS: LANES threads have a key, 16 bytes of it each, and of its value.
 * Warps' parts are joined as pieces are. */
template <int HD> struct PieceKeys {
    enum {
        LANES = HD / 8,
        KEYS = WARP_SIZE / LANES,
        LOADS = WARP_SIZE / KEYS,
        WARPS = PIECE_KEYS / WARP_SIZE
    };
    static_assert((int)LOADS == (int)LANES, "of a row's threads each has one key's score");
    bf16 *keys, *own; /* from this thread's columns on: of key 0, of its first key */
    int64_t stride;
    int step;            /* bytes from row to row */
    int begin, position; /* from its first key on: keys [begin, position] are seen, the last one is new */

    __device__ __forceinline__ PieceKeys(bf16 *keys_, int64_t stride_, int piece, const Seen &seen)
        : keys(keys_), stride(stride_) {
        const int first = piece * PIECE_KEYS + threadIdx.x % PIECE_KEYS / WARP_SIZE * WARP_SIZE +
                          threadIdx.x % WARP_SIZE / LANES;
        own = keys + first * stride;
        step = KEYS * (int)stride * (int)sizeof *keys;
        begin = (int)seen.begin - first;
        position = (int)seen.end - 1 - first;
    }
    __device__ __forceinline__ void next_piece() {
        own += PIECE_KEYS * stride;
        begin -= PIECE_KEYS;
        position -= PIECE_KEYS;
    }
    __device__ __forceinline__ bool is_cached(int i) const {
        return i * KEYS >= begin && i * KEYS < position;
    }
    __device__ __forceinline__ bf16 *key_at(int i) const {
        return (bf16 *)((char *)own + (int64_t)(i * step));
    }
    __device__ __forceinline__ bf16 *value_at(int i) const { return key_at(i) + stride / 2; }
    __device__ __forceinline__ int4 load_key(int i) const {
        return is_cached(i) ? ld_global_once(key_at(i)) : make_int4(0, 0, 0, 0);
    }
    __device__ __forceinline__ int4 load_value(int i) const {
        return is_cached(i) ? ld_global_once(value_at(i)) : make_int4(0, 0, 0, 0);
    }
    /* The new token's key, or value, takes its place among the rows and in the cache. */
    __device__ __forceinline__ void put_new(int4 (&rows)[LOADS], const bf16 *from, int64_t offset) const {
        if ((unsigned)position >= WARP_SIZE) return;
        const int4 row = *reinterpret_cast<const int4 *>(from);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (position == i * KEYS) {
                rows[i] = row;
                *reinterpret_cast<int4 *>(key_at(i) + offset) = row;
            }
    }
    __device__ __forceinline__ void put_new_key(int4 (&rows)[LOADS], const bf16 *key) const {
        put_new(rows, key, 0);
    }
    __device__ __forceinline__ void put_new_value(int4 (&rows)[LOADS], const bf16 *value) const {
        put_new(rows, value, stride / 2);
    }

    /* This lane's score, that of row lane % LANES; -inf: the key is not seen. Threads of a key add their products as
     * with xor shuffles, but in each step a thread keeps half of the rows. row(i) is asked for once, in order. */
    template <typename F> __device__ __forceinline__ float score(const float (&q)[8], F row) const {
        const int lane = threadIdx.x % WARP_SIZE, own_row = lane % LANES * KEYS;
        float x[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) x[i] = dot8(q, row(i));
#pragma unroll
        for (int offset = 1; offset < LANES; offset *= 2)
#pragma unroll
            for (int i = 0; i < LOADS / (2 * offset); i++) {
                const bool odd = lane & offset;
                const float other = __shfl_xor_sync(0xffffffffu, odd ? x[2 * i] : x[2 * i + 1], offset);
                x[i] = (odd ? x[2 * i + 1] : x[2 * i]) + other;
            }
        return own_row >= begin && own_row <= position ? x[0] : -CUDART_INF_F;
    }
    /* Values, row(i), by the softmax of the warp's scores. */
    template <typename F> static __device__ __forceinline__ void weigh(Part<HD> *part, float x, F row) {
        const int lane = threadIdx.x % WARP_SIZE, d = lane % LANES * 8;
        const float max = warp_max(x);
        const float weight = x == -CUDART_INF_F ? 0.0f : exp2f(x - max);
        float sum = 0.0f, o[8] = {};
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const float p = __shfl_sync(0xffffffffu, weight, i, LANES);
            float f[8];
            to_floats(f, row(i));
            sum += p;
#pragma unroll
            for (int e = 0; e < 8; e++) o[e] = fmaf(p, f[e], o[e]);
        }
#pragma unroll
        for (int offset = LANES; offset < WARP_SIZE; offset *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
#pragma unroll
            for (int e = 0; e < 8; e++) o[e] += __shfl_xor_sync(0xffffffffu, o[e], offset);
        }
        if (lane < LANES)
#pragma unroll
            for (int e = 0; e < 8; e++) part->o[d + e] = o[e];
        if (lane == 0) part->max = max, part->sum = sum;
    }
};

__device__ __forceinline__ void scaled_query(float (&q)[8], const bf16 *query, float scale_log2) {
    const int4 bits = *reinterpret_cast<const int4 *>(query);
    to_floats(q, bits);
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] *= scale_log2;
}

/* All keys and values of a piece at once. They are on their way while q and the new key are made. */
template <int HD> struct FastPiece : PieceKeys<HD> {
    using PieceKeys<HD>::LOADS;
    int4 k[LOADS], v[LOADS];

    using PieceKeys<HD>::PieceKeys;
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            k[i] = this->load_key(i);
            v[i] = this->load_value(i);
        }
    }
    /* The new token's q, k and v, this thread's columns; k and v go to the cache. */
    __device__ __forceinline__ void attend(Part<HD> *part, const bf16 *query, const bf16 *new_key,
                                           const bf16 *new_value, float scale_log2) {
        float q[8];
        scaled_query(q, query, scale_log2);
        this->put_new_key(k, new_key);
        this->put_new_value(v, new_value);
        const float x = this->score(q, [&](int i) { return k[i]; });
        this->weigh(part, x, [&](int i) { return v[i]; });
    }
};
