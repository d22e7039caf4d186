/* What the kernels of a token share that have a cluster for each head: messages between its blocks, and attention over the keys
 * of the cache, of which each block has every CLUSTER-th. S is a kernel's shared memory, whose fields have the same names in both.
 *
 * Machine code of both depends on how arguments are passed: in token_wide.cu rank, warp and lane are made anew, as they cost
 * registers as members. */
#pragma once
#include "llmc/cuda/attention/generic/decode_piece.cuh"
#include "llmc/cuda/attention/launch.cuh"
#include "llmc/cuda/ops/layernorm.cuh"
#include "token_sums.cuh"
#include "llmc/cuda/ptx/sm90.cuh"

/* ---- what the blocks of the cluster send to each other ---- */

/* The i-th block that this one sends to: for each block another one. */
template <int CLUSTER> __device__ __forceinline__ int to_block(int i) {
    return (i + (int)cluster_rank()) % CLUSTER;
}
__device__ __forceinline__ void send(const void *at, uint2 x, int to, const uint64_t *full) {
    store_async_8(cluster_address(shared_address(at), to), x, cluster_address(shared_address(full), to));
}
__device__ __forceinline__ void send(const void *at, int4 x, int to, const uint64_t *full) {
    store_async_16(cluster_address(shared_address(at), to), x, cluster_address(shared_address(full), to));
}
/* Readies the barriers of what is sent, by one thread. */
template <class S> __device__ __forceinline__ void init_messages(S &s) {
    mbarrier_init(shared_address(&s.x_full), 1);
    mbarrier_init(shared_address(&s.qkv_full), 1);
    mbarrier_init(shared_address(&s.parts_full), 1);
    mbarrier_init(shared_address(&s.hidden_full), 1);
}
/* All that is sent to this block for the n-th time. */
__device__ __forceinline__ void wait_sent(uint64_t *full, int bytes, int n) {
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(shared_address(full), bytes);
    mbarrier_wait(shared_address(full), n & 1);
}

/* ---- norms ---- */

/* Over a row, of what the threads of the block have: by how much its mean is off the pivot, and one over its deviation. */
template <int WARPS, class S>
__device__ __forceinline__ float2 row_statistics(S &s, float sum, float squares, float of_C) {
    sum = warp_sum(sum);
    squares = warp_sum(squares);
    if (threadIdx.x % WARP_SIZE == 0) s.statistics[threadIdx.x / WARP_SIZE] = {sum, squares};
    named_barrier_sync<WARPS * WARP_SIZE>(1);
    sum = squares = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float2 of_warp = s.statistics[w];
        sum += of_warp.x;
        squares += of_warp.y;
    }
    const float off = sum * of_C;
    return {off, rsqrtf(squares * of_C - off * off + LAYERNORM_EPSILON)};
}

/* ---- attention ---- */

/* Of a channel of q, k and v: a place in 17 is left out, for the banks. */
__device__ __forceinline__ int place_of(int channel) {
    return channel + channel / 16;
}
/* Eight bf16, each of the lower or the upper half of a word. */
template <bool UPPER, typename F> __device__ __forceinline__ int4 pack(F word) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = __byte_perm(word(2 * i), word(2 * i + 1), UPPER ? 0x7632 : 0x5410);
    return make_int4((int)w[0], (int)w[1], (int)w[2], (int)w[3]);
}
/* Starts to bring the block's values to shared memory, by lines of 128 bytes, which the caller commits; at(key): where a cached
 * key's value is. But for the one at `position`, which is keep_new's. */
template <int CLUSTER, int THREADS, class S, typename F, typename G>
__device__ __forceinline__ void load_values(S &s, int rank, int position, F is_cached, G at) {
    constexpr int KEYS = DECODE_MAX_T / CLUSTER;
    const int piece = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < KEYS * 8 / THREADS; i++) {
        const int row = i * (THREADS / 8) + threadIdx.x / 8, key = row * CLUSTER + rank;
        if (key != position)
            cp_async_16(shared_address(&s.values[row][piece ^ row % 8]),
                        at(is_cached(key) ? key : 0) + 8 * piece, is_cached(key));
    }
}
/* The new key, by threads 0 to 7, to its place in the cache, and the new value, by the next eight, to its own and to the others. */
template <class S>
__device__ __forceinline__ void keep_piece(S &s, const uint2 *of_piece, int row, int piece, int4 *at) {
    if (threadIdx.x < 8)
        *at = pack<true>([&](int k) { return of_piece[k].x; });
    else
        *at = s.values[row][piece ^ row % 8] = pack<false>([&](int k) { return of_piece[k].y; });
}
/* Of a key whose score is made; each has 16 channels. */
enum { SCORE_LANES = 4, SCORE_KEYS = WARP_SIZE / SCORE_LANES };

/* The lane's channels of keys, round by round: at(r), if it is cached; else 0. */
template <int ROUNDS, typename F, typename G>
__device__ __forceinline__ void take_keys(int4 (&keys)[ROUNDS][2], F is_cached, G at) {
#pragma unroll
    for (int r = 0; r < ROUNDS; r++)
#pragma unroll
        for (int i = 0; i < 2; i++) keys[r][i] = ld_global_once_if(is_cached(r), at(r) + 8 * i);
}
/* The lane's channels of q; its share of the new key's score. */
template <class S> __device__ __forceinline__ float take_query(const S &s, int lane, float (&q)[2][8]) {
    const int d = lane % SCORE_LANES * 16;
    float of_new = 0;
#pragma unroll
    for (int k = 0; k < 16; k++) {
        const uint32_t qk = s.qkv[place_of(d) + k].x;
        q[k / 8][k % 8] = bf16_low(qk);
        of_new = fmaf(bf16_low(qk), bf16_high(qk), of_new);
    }
    return of_new;
}
__device__ __forceinline__ float warp_max_at_once(float x) {
    const int bits = __float_as_int(x), ordered = bits ^ (bits >> 31 & 0x7fffffff);
    const int max = __reduce_max_sync(0xffffffffu, ordered);
    return __int_as_float(max ^ (max >> 31 & 0x7fffffff));
}
/* The values by the softmax of the block's scores: this warp's channels, to all blocks of the cluster. is_read(r): whether some of
 * the r-th 32 scores are there. */
template <int CLUSTER, class S, typename F>
__device__ __forceinline__ void weigh(S &s, int warp, int lane, int rank, F is_read) {
    constexpr int ROUNDS =
        DECODE_MAX_T / CLUSTER / WARP_SIZE; /* a lane has a key, eight channels of its value, the warp's */
    float p[ROUNDS], largest[ROUNDS], o[8] = {}, sum = 0;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++)
        largest[r] = p[r] = is_read(r) ? s.scores[r * WARP_SIZE + lane] : NO_SCORE;
#pragma unroll
    for (int apart = 1; apart < ROUNDS; apart *= 2)
#pragma unroll
        for (int r = 0; r < ROUNDS; r += 2 * apart) largest[r] = fmaxf(largest[r], largest[r + apart]);
    const float max = warp_max_at_once(largest[0]);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        if (!is_read(r)) break;
        const int row = r * WARP_SIZE + lane;
        const int4 value = s.values[row][warp ^ row % 8];
        p[r] = p[r] == NO_SCORE ? 0.0f : ex2(p[r] - max);
        sum += p[r];
        float v[8];
        to_floats(v, value);
#pragma unroll
        for (int k = 0; k < 8; k++) o[k] = fmaf(p[r], v[k], o[k]);
    }
    sum = warp_sum(sum);
    const float channel = sum_rows(o) * (sum > 0 ? rcp(sum) : 0.0f); /* lane / 4 */
    const int half = lane % 2 * 16, to = to_block<CLUSTER>(lane / 2);
    const int bits = __float_as_int(channel);
    const int4 four =
        make_int4(__shfl_sync(0xffffffffu, bits, half), __shfl_sync(0xffffffffu, bits, half + 4),
                  __shfl_sync(0xffffffffu, bits, half + 8), __shfl_sync(0xffffffffu, bits, half + 12));
    if (lane < 2 * CLUSTER) send(&s.parts[rank][8 * warp + lane % 2 * 4], four, to, &s.parts_full);
    if (warp == 0 && lane < CLUSTER)
        send(&s.weights_of_parts[rank],
             make_int4(__float_as_int(sum > 0 ? max + lg2(sum) : NO_SCORE), 0, 0, 0), to_block<CLUSTER>(lane),
             &s.parts_full);
}
