/* Sums over the clusters, and over the lanes of a warp, of token.cu and token_wide.cu. */
#pragma once
#include <math_constants.h>
#include "token.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

/* ---- over clusters ----
 *
 * All add to one 64-bit word a channel, in fixed point, with the count of who has added in its upper bits: who reads it
 * with the full count has the sum. Integers add up to the same in any order. From bit 0 on: the sum, how many parts were
 * too large or NaN, how many there are. */

static constexpr int SUM_BITS = 54, COUNT_AT = 59, LIMIT_BITS = 19;
static constexpr float LIMIT = 1 << LIMIT_BITS;
/* Of 1. Up to LIMIT a part then has 49 or 48 bits, and one for the sign. */
static constexpr int UNIT_BITS = 30, WIDE_UNIT_BITS = 29;
static_assert(TOKEN_MAX_NH <= 16 && WIDE_MAX_NH <= 31, "so many parts of 50 or 49 bits are a sum of 54");
/* Makes a part positive. */
template <int BITS> static constexpr long long OFFSET = 1LL << (BITS + LIMIT_BITS);

__device__ __forceinline__ uint64_t *sums_of(const TokenArgs &a) {
    return a.sums + (a.launch & 1) * (token_sums(a.n_layers, a.C) / 2);
}
template <int BITS> __device__ __forceinline__ void add_part(uint64_t *sum, float part) {
    const bool fits = fabsf(part) < LIMIT; /* NaN does not */
    const long long units = fits ? __float2ll_rn(part * (1 << BITS)) : 0;
    add_relaxed(sum, (uint64_t)(units + OFFSET<BITS>)+(1ULL << COUNT_AT) + (fits ? 0 : 1ULL << SUM_BITS));
}
__device__ __forceinline__ bool has_all(uint64_t sum, int NH) {
    return (int)(sum >> COUNT_AT) == NH;
}
template <int BITS> __device__ __forceinline__ float value_of(uint64_t sum, int NH) {
    if (sum >> SUM_BITS & 31) return CUDART_NAN_F;
    return (float)((long long)(sum & ((1ULL << SUM_BITS) - 1)) - NH * OFFSET<BITS>)*(1.0f / (1 << BITS));
}
/* With pauses: each question holds up those who add. */
__device__ __forceinline__ uint64_t wait_all(const uint64_t *from, int NH) {
    uint64_t sum;
    while (sum = load_relaxed_8(from), !has_all(sum, NH)) __nanosleep(500);
    return sum;
}
/* The other set is the next launch's. That before this one, which used it, has ended: it ends before its draw, for which the
 * caller has waited. thread, threads: of a block. */
__device__ __forceinline__ void clear_sums(const TokenArgs &a, int thread, int threads) {
    const int n = (int)(token_sums(a.n_layers, a.C) / 2), apart = (int)gridDim.y * threads;
    uint64_t *next = a.sums + (int64_t)(~a.launch & 1) * n;
    for (int i = (int)blockIdx.y * threads + thread; i < n; i += apart) next[i] = 0;
}

/* ---- over a warp's lanes, of N rows at once: each step halves the rows of a lane ---- */

/* The sum of row summed_row<N>(). */
template <int N> __device__ __forceinline__ float sum_rows(float (&x)[N]) {
    int n = N;
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
        const int half = (n + 1) / 2;
        const bool upper = threadIdx.x & offset;
        if (n == 1) {
            x[0] += __shfl_xor_sync(0xffffffffu, x[0], offset);
            continue;
        }
#pragma unroll
        for (int i = 0; i < (N + 1) / 2; i++)
            if (i < half) {
                const float other = half + i < n ? x[half + i] : 0.0f;
                x[i] = (upper ? other : x[i]) + __shfl_xor_sync(0xffffffffu, upper ? x[i] : other, offset);
            }
        n = half;
    }
    return x[0];
}
/* -1: of none. Several lanes in a row may have the same one. */
template <int N> __device__ __forceinline__ int summed_row() {
    int row = 0, n = N, left = N;
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0 && n > 1; offset /= 2) {
        const int half = (n + 1) / 2;
        const bool upper = threadIdx.x & offset;
        row += upper ? half : 0;
        left = upper ? left - half : min(left, half);
        n = half;
    }
    return left > 0 ? row : -1;
}
/* How many lanes have a row. */
static constexpr int lanes_of_row(int n_rows) {
    int lanes = WARP_SIZE;
    for (int n = n_rows; n > 1; n = (n + 1) / 2) lanes /= 2;
    return lanes;
}

__device__ __forceinline__ float rounded(float x) {
    return to_float(from_float<bf16>(x));
}
