/* What the kernels whose warpgroups own keys share: P^T and dS^T of 64 keys, block after block of 64 queries,
 * and the gradients dK and dV of those keys (see sm90_backward.cuh). C is the kernel's config. */
#pragma once
#include "sm90_backward.cuh"

/* The ring of blocks of queries. */
template <class C> struct alignas(1024) QueryStages {
    uint8_t q[C::STAGES][C::TILE_BYTES], dout[C::STAGES][C::TILE_BYTES];
    uint8_t fold[C::STAGES][2][C::FOLD_BYTES]; /* B of the folded step: k 0..7; k 8..15, all zero */
    uint8_t ones[3][C::FOLD_BYTES]; /* A of it: 1 where FoldRow has -lse / scale; where it has -D; zeros */
    RingBarriers<C::STAGES> ring;
};

/* Blocks of 64 queries, from the first that sees keys from row0 on. */
template <class C> __device__ __forceinline__ int first_queries(int row0, int T) {
    const int blocks = ceil_div(T, (int)ROWS);
    return row0 >= T ? blocks : C::CAUSAL ? row0 / ROWS : 0;
}

/* Writes what stays: all threads of the kernel, before its first __syncthreads. */
template <class C> __device__ __forceinline__ void write_constants(QueryStages<C> &queries) {
    const uint32_t low = 0x3f80, high = low << 16; /* 1 in bf16 */
    const uint4 zero = {0, 0, 0, 0};
    for (int row = threadIdx.x; row < ROWS; row += C::THREADS) {
        reinterpret_cast<uint4 *>(queries.ones[0])[row] = make_uint4(high | low, low, 0, 0);
        reinterpret_cast<uint4 *>(queries.ones[1])[row] = make_uint4(0, high, high | low, 0);
        reinterpret_cast<uint4 *>(queries.ones[2])[row] = zero;
        for (int i = 0; i < C::STAGES; i++) reinterpret_cast<uint4 *>(queries.fold[i][1])[row] = zero;
    }
    fence_proxy_async();
}

/* Producer: the blocks of queries that a tile of keys needs. */
template <class C>
__device__ __forceinline__ void load_queries(QueryStages<C> &queries, Ring<C::STAGES> &at, const Work &work,
                                             const BackwardArgs &args) {
    const FoldRow *fold = args.fold + ((int64_t)work.batch * args.NH + work.head) * fold_rows(args.T);
    const int blocks = ceil_div(args.T, (int)ROWS);
    for (int block = first_queries<C>(work.tile * C::TILE_ROWS, args.T); block < blocks;
         block++, at.advance()) {
        const uint32_t full = queries.ring.acquire(at, 2 * C::TILE_BYTES + C::FOLD_BYTES);
        tma_load_5d(shared_address(queries.q[at.stage]), &args.rows, 0, block * ROWS, 0, work.head,
                    work.batch, full);
        tma_load_5d(shared_address(queries.dout[at.stage]), &args.dout, 0, block * ROWS, 0, work.head,
                    work.batch, full);
        bulk_load(shared_address(queries.fold[at.stage][0]), fold + block * ROWS, C::FOLD_BYTES, full);
    }
}

/* A thread's share of the warpgroup's keys; accumulators have keys as rows. */
template <class C> struct KeyRows {
    float dk[C::HD / 2], dv[C::HD / 2];
    float s[ROWS / 2];        /* S^T - lse / scale, then P^T */
    float dp[ROWS / 2];       /* dP^T - D, then dS^T */
    uint32_t p[ROWS / 16][4]; /* P^T and dS^T as A operands */
    uint32_t ds[ROWS / 16][4];
    uint32_t k[C::K_IN_REGISTERS ? C::HD / 16 : 1][4], v[C::V_IN_REGISTERS ? C::HD / 16 : 1][4];
    float bias[2]; /* only where !CAUSAL && MASK_KEYS: -inf for rows beyond the sequence, which get P = 0 */
};

template <class C> struct KeyPlace {
    Ring<C::STAGES> at; /* the block of queries in work */
    uint32_t k;         /* the warpgroup's K in shared memory; V lies TILE_ROWS rows behind */
};

/* A warp's 16 rows of a 64 x 64 tile as A operands. */
__device__ __forceinline__ void load_fragments(uint32_t (&a)[4][4], uint32_t tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 4; i++) ldmatrix_x4(a[i], tile + row * 128 + ((2 * i + lane / 16) ^ (row & 7)) * 16);
}

/* acc = rows of K or V, in registers or shared memory, times the block's queries, and the folded step. which:
 * of ones. */
template <class C, bool IN_REGISTERS, int N>
__device__ __forceinline__ void multiply_queries(float (&acc)[ROWS / 2], const uint32_t (&fragments)[N][4],
                                                 uint32_t rows, QueryStages<C> &queries, uint32_t tile,
                                                 int which, int stage) {
    const uint64_t b = descriptor_k_major(tile);
    if constexpr (IN_REGISTERS) {
#pragma unroll
        for (int i = 0; i < C::HD / 16; i++) {
            if (i == 0)
                wgmma<D_SET, B_K_MAJOR>(acc, fragments[i], b);
            else
                wgmma<D_ADD, B_K_MAJOR>(acc, fragments[i], b + i * 2);
        }
    } else {
        multiply_heads<C::HD>(acc, descriptor_k_major(rows), b);
    }
    wgmma<D_ADD, B_K_MAJOR>(acc, descriptor_unswizzled(shared_address(queries.ones[which]), C::FOLD_BYTES),
                            descriptor_unswizzled(shared_address(queries.fold[stage]), C::FOLD_BYTES));
    wgmma_commit();
}

template <class C>
__device__ __forceinline__ void multiply_s(KeyRows<C> &r, QueryStages<C> &queries, const KeyPlace<C> &place,
                                           int stage) {
    multiply_queries<C, C::K_IN_REGISTERS>(r.s, r.k, place.k, queries, shared_address(queries.q[stage]), 0,
                                           stage);
}
template <class C>
__device__ __forceinline__ void multiply_dp(KeyRows<C> &r, QueryStages<C> &queries, const KeyPlace<C> &place,
                                            int stage) {
    multiply_queries<C, C::V_IN_REGISTERS>(r.dp, r.v, place.k + C::WARPGROUPS * C::TILE_BYTES, queries,
                                           shared_address(queries.dout[stage]), 1, stage);
}

/* dV += P^T dO, dK += dS^T Q. */
template <class C>
__device__ __forceinline__ void multiply_gradients(KeyRows<C> &r, QueryStages<C> &queries, int stage) {
    const uint64_t q = descriptor_mn_major(shared_address(queries.q[stage]), ROWS * 128);
    const uint64_t dout = descriptor_mn_major(shared_address(queries.dout[stage]), ROWS * 128);
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
        wgmma<D_ADD, B_MN_MAJOR>(r.dv, r.p[i], dout + i * (2048 >> 4));
        wgmma<D_ADD, B_MN_MAJOR>(r.dk, r.ds[i], q + i * (2048 >> 4));
    }
    wgmma_commit();
}

template <class C> __device__ __forceinline__ void gradients_done(KeyRows<C> &r) {
    wgmma_results(r.dk);
    wgmma_results(r.dv);
    wgmma_results(r.p);
    wgmma_results(r.ds);
}

template <class C> __device__ __forceinline__ void key_probabilities(KeyRows<C> &r, float scale_log2) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        r.s[i] = ex2(!C::CAUSAL && C::MASK_KEYS ? fmaf(r.s[i], scale_log2, r.bias[i / 2 % 2])
                                                : r.s[i] * scale_log2);
    pack(r.p, r.s);
}

template <class C> __device__ __forceinline__ void key_scores(KeyRows<C> &r) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) r.dp[i] *= r.s[i];
    pack(r.ds, r.dp);
}

/* Queries before a key, in the block that starts where the warpgroup's keys start. */
template <class C> __device__ __forceinline__ void mask_queries(KeyRows<C> &r) {
    const int first_seen = thread_row() - thread_column();
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        if (i / 4 * 8 + i % 2 < first_seen + i / 2 % 2 * 8) r.s[i] = -CUDART_INF_F;
}

/* P and dS of the first block of queries; it lies on the diagonal if causal. */
template <class C>
__device__ __forceinline__ void first_queries_block(KeyRows<C> &r, QueryStages<C> &queries,
                                                    const KeyPlace<C> &place, float scale_log2) {
    queries.ring.wait(place.at);
    wgmma_fence();
    multiply_s(r, queries, place, place.at.stage);
    multiply_dp(r, queries, place, place.at.stage);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (C::CAUSAL) mask_queries(r);
    key_probabilities(r, scale_log2);
    wgmma_wait<0>();
    wgmma_results(r.dp);
    key_scores(r);
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.dk[i] = r.dv[i] = 0.0f;
}

/* The gradients of the block in work, then P and dS of the next. */
template <class C>
__device__ __forceinline__ void next_queries_block(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place,
                                                   float scale_log2) {
    const Ring<C::STAGES> next = place.at.next();
    queries.ring.wait(next);
    wgmma_fence();
    multiply_gradients(r, queries, place.at.stage);
    multiply_s(r, queries, place, next.stage);
    if (C::LATE_DP) {
        wgmma_wait<1>();
        gradients_done(r);
        queries.ring.release(place.at);
        wgmma_fence();
    }
    multiply_dp(r, queries, place, next.stage);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (!C::LATE_DP) {
        gradients_done(r);
        queries.ring.release(place.at);
    }
    key_probabilities(r, scale_log2);
    wgmma_wait<0>();
    wgmma_results(r.dp);
    key_scores(r);
    place.at = next;
}

/* Writes dK and dV of the warpgroup's keys. */
template <class C>
__device__ __forceinline__ void store_key_rows(const KeyRows<C> &r, const Work &work, int row0,
                                               const BackwardArgs &args) {
    const int64_t stride = 3 * (int64_t)args.NH * C::HD;
    const float scale[2] = {args.scale, args.scale}, one[2] = {1.0f, 1.0f};
    bf16 *dk = args.dqkv + ((int64_t)work.batch * args.T + row0) * stride + (args.NH + work.head) * C::HD;
    store_rows(dk, stride, args.T - row0, r.dk, scale);
    store_rows(dk + args.NH * C::HD, stride, args.T - row0, r.dv, one);
}

/* From one tile into the next: the gradients of the last block of `work`, whose rows they complete, then P and
 * dS of the first block of the tile that follows, at `next`. One step as any other, where last_gradients,
 * store_key_rows and first_queries_block one after another leave the tensor cores idle. */
template <class C>
__device__ __forceinline__ void next_tile_block(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place,
                                                Ring<C::STAGES> next, const Work &work, int row0,
                                                const BackwardArgs &args) {
    queries.ring.wait(next);
    wgmma_fence();
    multiply_gradients(r, queries, place.at.stage);
    multiply_s(r, queries, place, next.stage);
    multiply_dp(r, queries, place, next.stage);
    wgmma_wait<1>();
    wgmma_results(r.s);
    gradients_done(r);
    queries.ring.release(place.at);
    if (C::CAUSAL) mask_queries(r);
    key_probabilities(r, args.scale_log2);
    store_key_rows(r, work, row0, args);
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.dk[i] = r.dv[i] = 0.0f;
    wgmma_wait<0>();
    wgmma_results(r.dp);
    key_scores(r);
    place.at = next;
}

/* The gradients of the last block. */
template <class C>
__device__ __forceinline__ void last_gradients(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place) {
    wgmma_fence();
    multiply_gradients(r, queries, place.at.stage);
    wgmma_wait<0>();
    gradients_done(r);
    queries.ring.release(place.at);
    place.at.advance();
}
