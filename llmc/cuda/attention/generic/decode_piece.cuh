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

/* Element d of n <= MAX parts joined in their order; *sum of all. All are read before anything waits for one. */
template <int HD, int MAX, typename F>
__device__ __forceinline__ float join_parts(int n, int d, float *sum, float *max, F part) {
    float o[MAX], sums[MAX], maxima[MAX], total = 0.0f;
    *max = -CUDART_INF_F;
    *sum = 0.0f;
#pragma unroll
    for (int p = 0; p < MAX; p++) {
        maxima[p] = p < n ? part(p)->max : -CUDART_INF_F;
        sums[p] = p < n ? part(p)->sum : 0.0f;
        o[p] = p < n ? part(p)->o[d] : 0.0f;
    }
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

/* A warp's 32 keys of a piece. LANES threads hold a key's row, 16 bytes each, and its value's. The cache is on its way
 * while q and the new key are made. Warps' parts are joined as pieces are. */
template <int HD> struct FastPiece {
    enum {
        LANES = HD / 8,
        KEYS = WARP_SIZE / LANES,
        LOADS = WARP_SIZE / KEYS,
        WARPS = PIECE_KEYS / WARP_SIZE
    };
    bf16 *keys; /* from this thread's columns on */
    int64_t stride;
    int first, begin, position; /* its first key; keys [begin, position] are seen, the last one is new */
    int4 k[LOADS], v[LOADS];

    __device__ __forceinline__ FastPiece(bf16 *keys_, int64_t stride_, int piece, const Seen &seen_)
        : keys(keys_), stride(stride_), begin((int)seen_.begin), position((int)seen_.end - 1) {
        first = piece * PIECE_KEYS + threadIdx.x % PIECE_KEYS / WARP_SIZE * WARP_SIZE +
                threadIdx.x % WARP_SIZE / LANES;
    }
    __device__ __forceinline__ bool is_cached(int i) const {
        const int key = first + i * KEYS;
        return key >= begin && key < position;
    }
    __device__ __forceinline__ const bf16 *key_at(int i) const { return keys + (first + i * KEYS) * stride; }

    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            k[i] = is_cached(i) ? ld_global_once(key_at(i)) : make_int4(0, 0, 0, 0);
            v[i] = is_cached(i) ? ld_global_once(key_at(i) + stride / 2) : make_int4(0, 0, 0, 0);
        }
    }
    /* The same in two halves, through shared memory, (2,LOADS,PIECE_KEYS): a thread has what it brought itself. */
    __device__ __forceinline__ void begin_load(int4 *stage) const {
        const int own = threadIdx.x % PIECE_KEYS;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const bf16 *at = is_cached(i) ? key_at(i) : keys;
            cp_async_16(shared_address(&stage[i * PIECE_KEYS + own]), at, is_cached(i));
            cp_async_16(shared_address(&stage[(LOADS + i) * PIECE_KEYS + own]), at + stride / 2,
                        is_cached(i));
        }
        cp_async_commit();
    }
    __device__ __forceinline__ void end_load(const int4 *stage) {
        const int own = threadIdx.x % PIECE_KEYS;
        cp_async_wait<0>();
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            k[i] = stage[i * PIECE_KEYS + own];
            v[i] = stage[(LOADS + i) * PIECE_KEYS + own];
        }
    }

    /* The new token's q, k and v, this thread's columns; k and v go to the cache. */
    __device__ __forceinline__ void attend(Part<HD> *part, const int4 &query, const int4 &new_key,
                                           const int4 &new_value, float scale_log2) {
        const int lane = threadIdx.x % WARP_SIZE, d = lane % LANES * 8;
        float q[8], x[LOADS], max = -CUDART_INF_F, sum = 0.0f, o[8] = {};
        to_floats(q, query);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] *= scale_log2;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int key = first + i * KEYS;
            if (key == position) {
                k[i] = new_key;
                v[i] = new_value;
                *reinterpret_cast<int4 *>(keys + key * stride) = k[i];
                *reinterpret_cast<int4 *>(keys + key * stride + stride / 2) = v[i];
            }
            x[i] = dot8(q, k[i]);
#pragma unroll
            for (int offset = 1; offset < LANES; offset *= 2)
                x[i] += __shfl_xor_sync(0xffffffffu, x[i], offset);
            if (key < begin || key > position) x[i] = -CUDART_INF_F;
            max = fmaxf(max, x[i]);
        }
        max = warp_max(max);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const float p = x[i] == -CUDART_INF_F ? 0.0f : exp2f(x[i] - max);
            float f[8];
            to_floats(f, v[i]);
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
