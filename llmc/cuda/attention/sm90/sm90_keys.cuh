/* What the kernels whose warpgroups own keys share: P^T and dS^T of 64 keys, block after block of 64 queries,
 * and the gradients dK and dV of those keys (see sm90_backward.cuh). C is the kernel's config. */
#pragma once
#include "sm90_backward.cuh"

/* The ring of blocks of queries. */
template <class C> struct alignas(1024) QueryStages {
    uint8_t q[C::STAGES][C::TILE_BYTES], dout[C::STAGES][C::TILE_BYTES];
    uint8_t lse_d[C::STAGES][C::LSE_D_BYTES]; /* B of the augmented step, for both halves of k */
    /* A of it: 1 where LseDRow has -lse / scale; 1 where it has -D; zeros, the k 8..15 of both */
    uint8_t ones[3][C::LSE_D_BYTES];
    RingBarriers<C::STAGES> ring;
};

/* Blocks of 64 queries, from the first that sees keys from row0 on. */
template <class C> __device__ __forceinline__ int first_queries(int row0, int T) {
    const int blocks = ceil_div(T, (int)WG_ROWS);
    return row0 >= T ? blocks : C::CAUSAL ? row0 / WG_ROWS : 0;
}

enum : uint32_t { ONE_LOW = 0x3f80 /* 1 in bf16 */, ONE_HIGH = ONE_LOW << 16 };

/* Writes what stays: all threads of the kernel, before its first __syncthreads or open_cluster. */
template <class C> __device__ __forceinline__ void write_constants(QueryStages<C> &queries) {
    for (int row = threadIdx.x; row < WG_ROWS; row += C::THREADS) {
        reinterpret_cast<uint4 *>(queries.ones[0])[row] = make_uint4(ONE_HIGH | ONE_LOW, ONE_LOW, 0, 0);
        reinterpret_cast<uint4 *>(queries.ones[1])[row] = make_uint4(0, ONE_HIGH, ONE_HIGH | ONE_LOW, 0);
        reinterpret_cast<uint4 *>(queries.ones[2])[row] = make_uint4(0, 0, 0, 0);
    }
    fence_proxy_async();
}

/* Blocks of queries before the first that sees none of the keys [row0, row0 + rows), of which one or more are in the
 * sequence. blocks: of the sequence. */
template <class C>
__device__ __forceinline__ int end_queries(const SeenKeys &seen, int batch, int row0, int rows, int blocks) {
    if (!C::RANGES) return blocks;
    return min(blocks, ceil_div(seen.end_query(batch, min(row0 + rows, seen.T) - 1), (int)WG_ROWS));
}

/* Only where RANGES: up to which query a warpgroup's keys are seen. */
typedef struct QueryEnds {
    const SeenKeys *seen;
    int batch, row0; /* the keys */
    int whole;       /* the blocks of queries before this one see all of the keys from the diagonal on */
    int block;       /* the block whose scores are computed */
} QueryEnds;

__device__ __forceinline__ QueryEnds query_ends(const SeenKeys &seen, int batch, int row0, int block) {
    return {&seen, batch, row0, seen.end_query(batch, row0) / (int)WG_ROWS, block};
}

/* Only where SPARSE: the blocks of queries that see a tile. */
typedef struct TileVisits {
    int begin, end;
} TileVisits;
__device__ __forceinline__ TileVisits tile_visits(const BlockSparse &sparse, int tile) {
    return {sparse.begins[tile], sparse.begins[tile + 1]};
}

/* A block of queries to all blocks of the cluster. lse_d: of the head. */
template <class C>
__device__ __forceinline__ void load_queries_block(QueryStages<C> &queries, Ring<C::STAGES> at,
                                                   const Work &work, int block, const LseDRow *lse_d,
                                                   const BackwardArgs &args) {
    const uint32_t full = acquire<C>(queries.ring, at, 2 * C::TILE_BYTES + C::LSE_D_BYTES);
    load_rows<C>(queries.q[at.stage], args.rows, block * WG_ROWS, work.head, work.batch, full, WG_ROWS);
    load_rows<C>(queries.dout[at.stage], args.dout, block * WG_ROWS, work.head, work.batch, full, WG_ROWS);
    load_bytes<C>(queries.lse_d[at.stage], lse_d + block * WG_ROWS, C::LSE_D_BYTES, full);
}

/* Producer: the blocks of queries that a tile's keys need, which begin at row0. */
template <class C>
__device__ __forceinline__ void load_queries(QueryStages<C> &queries, Ring<C::STAGES> &at, const Work &work,
                                             int row0, const SeenKeys &seen, const BackwardArgs &args) {
    const LseDRow *lse_d = args.lse_d + ((int64_t)work.batch * args.NH + work.head) * padded_rows(args.T);
    const int end =
        end_queries<C>(seen, work.batch, row0, C::CLUSTER * C::TILE_ROWS, ceil_div(args.T, (int)WG_ROWS));
    for (int block = first_queries<C>(row0, args.T); block < end; block++, at.advance())
        load_queries_block(queries, at, work, block, lse_d, args);
}

/* The same where SPARSE. */
template <class C>
__device__ __forceinline__ void load_visits(QueryStages<C> &queries, Ring<C::STAGES> &at, const Work &work,
                                            const BlockSparse &sparse, const BackwardArgs &args) {
    const LseDRow *lse_d = args.lse_d + ((int64_t)work.batch * args.NH + work.head) * padded_rows(args.T);
    const TileVisits visits = tile_visits(sparse, work.tile);
#pragma unroll 1
    for (int v = visits.begin; v < visits.end; v++, at.advance())
        load_queries_block(queries, at, work, sparse.visits[v].block, lse_d, args);
}

template <class C> using KeyMask = FragmentMask<C::KEY_PAIRS ? MASK_KEY_PAIRS : MASK_KEY_ROWS>;

/* A thread's two keys of the warpgroup's 64: the first, and how far the second is from it. */
template <class C> __device__ __forceinline__ int thread_key() {
    return C::KEY_PAIRS ? thread_pair_row() : thread_row();
}
template <class C> constexpr int KEYS_APART = C::KEY_PAIRS ? 1 : 8;

/* A thread's part of the warpgroup's keys; accumulators have keys as rows. */
template <class C> struct KeyRows {
    float dk[C::HD / 2], dv[C::HD / 2];
    float s[WG_ROWS / 2];            /* S^T - lse / scale, then P^T */
    float dp[WG_ROWS / 2];           /* dP^T - D, then dS^T */
    MaskLine lines[2];               /* only where C::DROPS and C::KEEPS_MASKS: of the block */
    uint32_t masks[WG_ROWS / 16][4]; /* kept_pair */
    uint32_t p[WG_ROWS / 16][4];     /* P^T and dS^T as A operands */
    uint32_t ds[WG_ROWS / 16][4];
    uint32_t k[C::K_IN_REGISTERS ? C::HD / 16 : 1][4];
    float bias[2]; /* only where !CAUSAL: -inf for rows beyond the sequence, which get P = 0 */
};

template <class C> struct KeyPlace {
    Ring<C::STAGES> at; /* the block of queries in work */
    uint32_t k;         /* the warpgroup's K in shared memory; V lies TILE_ROWS rows behind */
    uint32_t ds;        /* the lane's row of dS^T in shared memory; only where dS^T goes there */
    int ds_blocks;      /* blocks for which it has gone there, or there was none */
    int warpgroup;
    QueryEnds ends;
    bool diagonal;   /* only where SPARSE: the block whose scores are next lies there */
    KeyMask<C> mask; /* only where C::DROPS: of the block whose P and dS are next */
};

/* Two warpgroups multiply one after the other: each issues its products when those of the other are done, all but
 * dP. So one multiplies while the other takes exponentials; left alone, both do the same at the same time as often
 * as not (head size 64, H200: 1800 to 2110 clocks a step, by chance; in ping-pong 1740 to 1850).
 * Warpgroup 0 waits at named barrier 1 and passes at 2; warpgroup 1 waits at 2 and passes at 1. Where SPARSE they take no
 * turns: many blocks are one warpgroup's alone, and the other would wait for them. */
template <class C> __device__ __forceinline__ void pingpong_wait(const KeyPlace<C> &place) {
    if (!C::SPARSE) named_barrier_sync<2 * WARPGROUP>(1 + place.warpgroup);
}
template <class C> __device__ __forceinline__ void pingpong_pass(const KeyPlace<C> &place) {
    if (!C::SPARSE) named_barrier_arrive<2 * WARPGROUP>(2 - place.warpgroup);
}

/* A warp's 16 rows of a 64 x 64 tile as A operands. */
__device__ __forceinline__ void load_fragments(uint32_t (&a)[4][4], uint32_t tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 4; i++) ldmatrix_x4(a[i], tile + swizzled_at<SW128_COLUMNS>(row, 2 * i + lane / 16));
}

/* A of the augmented step in registers: 1 where LseDRow has -lse / scale; where it has -D. */
__device__ __forceinline__ void write_ones(uint32_t (&ones)[2][4]) {
    const int pair = threadIdx.x % 4; /* of k: 0 and 1, 2 and 3, .. */
    const uint32_t lse = pair == 0 ? ONE_HIGH | ONE_LOW : pair == 1 ? ONE_LOW : 0;
    const uint32_t d = pair == 1 ? ONE_HIGH : pair == 2 ? ONE_HIGH | ONE_LOW : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) { /* the last two are k 8..15 */
        ones[0][i] = i < 2 ? lse : 0;
        ones[1][i] = i < 2 ? d : 0;
    }
    wgmma_results(ones); /* made here, not again before each product, which would serialise those */
}
/* acc += the block's -lse / scale (which = 0) or -D (1) in every row. */
template <class C>
__device__ __forceinline__ void multiply_lse_d(float (&acc)[WG_ROWS / 2], QueryStages<C> &queries, int which,
                                               int stage) {
    const uint32_t ones = shared_address(queries.ones[which]), zeros = shared_address(queries.ones[2]);
    wgmma<D_ADD, B_K_MAJOR>(acc, descriptor_unswizzled(ones, zeros - ones),
                            descriptor_unswizzled(shared_address(queries.lse_d[stage]), 0));
}

/* S^T - lse / scale = K Q^T. */
template <class C>
__device__ __forceinline__ void multiply_s(KeyRows<C> &r, QueryStages<C> &queries, const KeyPlace<C> &place,
                                           int stage) {
    const uint64_t b = descriptor_k_major<C::ATOM_COLUMNS>(shared_address(queries.q[stage]));
    if constexpr (C::K_IN_REGISTERS) {
        wgmma<D_SET, B_K_MAJOR>(r.s, r.k[0], b);
#pragma unroll
        for (int i = 1; i < C::HD / 16; i++) wgmma<D_ADD, B_K_MAJOR>(r.s, r.k[i], b + i * 2);
    } else {
        multiply_heads<C::HD, C::ATOM_COLUMNS>(r.s, descriptor_k_major<C::ATOM_COLUMNS>(place.k), b);
    }
    multiply_lse_d(r.s, queries, 0, stage);
    wgmma_commit();
}
/* dP^T - D = V dO^T. */
template <class C>
__device__ __forceinline__ void multiply_dp(KeyRows<C> &r, QueryStages<C> &queries, const KeyPlace<C> &place,
                                            int stage) {
    /* before the other descriptor, or head size 64 is 1 to 2 % slower at T = 4k and 8k */
    const uint64_t b = descriptor_k_major<C::ATOM_COLUMNS>(shared_address(queries.dout[stage]));
    multiply_heads<C::HD, C::ATOM_COLUMNS>(
        r.dp, descriptor_k_major<C::ATOM_COLUMNS>(place.k + C::WARPGROUPS * C::TILE_BYTES), b);
    multiply_lse_d(r.dp, queries, 1, stage);
    wgmma_commit();
}

/* dV += P^T dO, dK += dS^T Q. */
template <class C>
__device__ __forceinline__ void multiply_gradients(KeyRows<C> &r, QueryStages<C> &queries, int stage) {
    constexpr int ROW = C::ATOM_COLUMNS * 2; /* bytes */
    const uint64_t q = descriptor_mn_major<C::ATOM_COLUMNS>(shared_address(queries.q[stage]), WG_ROWS * ROW);
    const uint64_t dout =
        descriptor_mn_major<C::ATOM_COLUMNS>(shared_address(queries.dout[stage]), WG_ROWS * ROW);
#pragma unroll
    for (int i = 0; i < WG_ROWS / 16; i++) {
        wgmma<D_ADD, B_MN_MAJOR>(r.dv, r.p[i], dout + i * (16 * ROW >> 4));
        wgmma<D_ADD, B_MN_MAJOR>(r.dk, r.ds[i], q + i * (16 * ROW >> 4));
    }
    wgmma_commit();
}

template <class C> __device__ __forceinline__ void gradients_done(KeyRows<C> &r) {
    wgmma_results(r.dk);
    wgmma_results(r.dv);
    wgmma_results(r.p);
    wgmma_results(r.ds);
}

/* ---- dropout, where C::DROPS ---- */

/* Masks that are drawn while a block's products are under way, of 16 queries each, so that the other two are not behind them all;
 * those come between the exponentials. All before: backward at head size 64 takes 4 % more at T = 1k, 1 % at 8k. */
enum { EARLY_SETS = 2 };

template <class C>
__device__ __forceinline__ void draw_block(KeyRows<C> &r, const KeyMask<C> &mask, const DropoutArgs &args) {
    if constexpr (C::DROPS && C::KEEPS_MASKS) draw_masks<EARLY_SETS>(r.lines, r.masks, mask, args);
}
template <class C>
__device__ __forceinline__ void draw_late(KeyRows<C> &r, const KeyMask<C> &mask, const DropoutArgs &args,
                                          int set) {
    if constexpr (C::DROPS && C::KEEPS_MASKS)
        if (set >= EARLY_SETS)
#pragma unroll
            for (int i = 0; i < 4; i++) r.masks[set][i] = kept_pair(r.lines, set, i, mask, args.limit);
}

/* RAGGED: some of the keys may be beyond the sequence. */
template <class C, bool RAGGED = true>
__device__ __forceinline__ void key_probabilities(KeyRows<C> &r, float scale_log2, const KeyMask<C> &mask,
                                                  const DropoutArgs &args) {
#pragma unroll
    for (int i = 0; i < WG_ROWS / 2; i++) {
        r.s[i] =
            ex2(!C::CAUSAL && RAGGED ? fmaf(r.s[i], scale_log2, r.bias[i / 2 % 2]) : r.s[i] * scale_log2);
        if (i % 8 == 7) draw_late(r, mask, args, i / 8);
    }
    pack(r.p, r.s);
}

/* -D of a pair of queries, of register i of all sets. lse_d: LseDRow of the block. */
__device__ __forceinline__ uint32_t pair_d(const uint8_t *lse_d, int i) {
    return *reinterpret_cast<const uint32_t *>(lse_d + (thread_column() + i / 2 * 8) * sizeof(LseDRow) +
                                               offsetof(uint4, w));
}
/* P, once it is packed. Where masks are kept, dS is -D P until key_scores. */
template <class C>
__device__ __forceinline__ void drop_p(KeyRows<C> &r, const KeyMask<C> &mask, const DropoutArgs &args,
                                       const uint8_t *lse_d) {
    if constexpr (C::DROPS && C::KEEPS_MASKS) {
#pragma unroll
        for (int i = 0; i < WG_ROWS / 4; i++) {
            uint32_t &p = r.p[i / 4][i % 4];
            r.ds[i / 4][i % 4] = multiply_bf16x2(p, pair_d(lse_d, i));
            p &= r.masks[i / 4][i % 4];
        }
    } else if constexpr (C::DROPS) {
        drop_sets(r.p, mask, args.limit);
    }
}

/* dS, with -D P in place of what is dropped. Where masks were not kept, that is where P is 0: if it was so before, either
 * is 0. */
template <class C> __device__ __forceinline__ void key_scores(KeyRows<C> &r, const uint8_t *lse_d) {
#pragma unroll
    for (int i = 0; i < WG_ROWS / 2; i++) r.dp[i] *= r.s[i];
    if constexpr (C::DROPS) {
#pragma unroll
        for (int i = 0; i < WG_ROWS / 4; i++) {
            uint32_t &ds = r.ds[i / 4][i % 4];
            if (!C::KEEPS_MASKS)
                ds = multiply_bf16x2(cvt_bf16x2(r.s[2 * i], r.s[2 * i + 1]), pair_d(lse_d, i));
            const uint32_t dropped = C::KEEPS_MASKS ? ~r.masks[i / 4][i % 4] : zero_bf16x2(r.p[i / 4][i % 4]);
            ds = (cvt_bf16x2(r.dp[2 * i], r.dp[2 * i + 1]) & ~dropped) | (ds & dropped);
        }
    } else {
        pack(r.ds, r.dp);
    }
}

/* Queries before a key, in the block that starts where the warpgroup's keys start. */
template <class C> __device__ __forceinline__ void mask_queries(KeyRows<C> &r) {
    const int first_seen = thread_key<C>() - thread_column();
#pragma unroll
    for (int i = 0; i < WG_ROWS / 2; i++)
        if (i / 4 * 8 + i % 2 < first_seen + i / 2 % 2 * KEYS_APART<C>) r.s[i] = -CUDART_INF_F;
}

/* Queries behind the last that sees a key. */
template <class C> __device__ __forceinline__ void mask_queries_behind(KeyRows<C> &r, const QueryEnds &ends) {
    if constexpr (C::RANGES) {
        if (ends.block < ends.whole) return;
        int end[2]; /* from the block's first column of this thread on */
#pragma unroll
        for (int half = 0; half < 2; half++)
            end[half] = ends.seen->end_query(ends.batch, ends.row0 + thread_key<C>() + KEYS_APART<C> * half) -
                        thread_column() - ends.block * WG_ROWS;
#pragma unroll
        for (int i = 0; i < WG_ROWS / 2; i++)
            if (i / 4 * 8 + i % 2 >= end[i / 2 % 2]) r.s[i] = -CUDART_INF_F;
    }
}

template <class C> __device__ __forceinline__ void clear_gradients(KeyRows<C> &r) {
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.dk[i] = r.dv[i] = 0.0f;
}

/* P and dS of the block at place.at, where no gradients are to be multiplied before. */
template <class C, bool DIAGONAL>
__device__ __forceinline__ void start_at_block(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place,
                                               float scale_log2, const DropoutArgs &dropout) {
    queries.ring.wait(place.at);
    pingpong_wait(place);
    wgmma_fence();
    multiply_s(r, queries, place, place.at.stage);
    multiply_dp(r, queries, place, place.at.stage);
    draw_block(r, place.mask, dropout);
    wgmma_wait<1>();
    pingpong_pass(place);
    wgmma_results(r.s);
    if (DIAGONAL && (!C::SPARSE || place.diagonal)) mask_queries(r);
    mask_queries_behind(r, place.ends);
    key_probabilities(r, scale_log2, place.mask, dropout);
    drop_p(r, place.mask, dropout, queries.lse_d[place.at.stage]);
    wgmma_wait<0>();
    wgmma_results(r.dp);
    key_scores(r, queries.lse_d[place.at.stage]);
    if (C::DROPS) place.mask.move(1);
}

/* The first block of queries; it lies on the diagonal if causal. */
template <class C>
__device__ __forceinline__ void first_queries_block(KeyRows<C> &r, QueryStages<C> &queries,
                                                    KeyPlace<C> &place, float scale_log2,
                                                    const DropoutArgs &dropout) {
    start_at_block<C, C::CAUSAL>(r, queries, place, scale_log2, dropout);
    clear_gradients(r);
}

/* r.bias of the warpgroup's keys, from row0 on. */
template <class C> __device__ __forceinline__ void write_bias(KeyRows<C> &r, int row0, int T) {
    for (int half = 0; half < 2; half++)
        r.bias[half] = row0 + thread_key<C>() + KEYS_APART<C> * half < T ? 0.0f : -CUDART_INF_F;
}

/* The gradients of the block in work, then P and dS of the one at `next`. DIAGONAL: it starts where the warpgroup's keys do. */
template <class C, bool RAGGED, bool DIAGONAL>
__device__ __forceinline__ void step_to_block(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place,
                                              Ring<C::STAGES> next, float scale_log2,
                                              const DropoutArgs &dropout) {
    queries.ring.wait(next);
    pingpong_wait(place);
    wgmma_fence();
    multiply_gradients(r, queries, place.at.stage);
    multiply_s(r, queries, place, next.stage);
    multiply_dp(r, queries, place, next.stage);
    draw_block(r, place.mask, dropout);
    wgmma_wait<1>();
    pingpong_pass(place);
    wgmma_results(r.s);
    gradients_done(r);
    release<C>(queries.ring, place.at);
    if (DIAGONAL && (!C::SPARSE || place.diagonal)) mask_queries(r);
    mask_queries_behind(r, place.ends);
    key_probabilities<C, RAGGED>(r, scale_log2, place.mask, dropout);
    drop_p(r, place.mask, dropout, queries.lse_d[next.stage]);
    wgmma_wait<0>();
    wgmma_results(r.dp);
    key_scores(r, queries.lse_d[next.stage]);
    if (C::DROPS) place.mask.move(1);
    place.at = next;
}

template <class C, bool RAGGED = true>
__device__ __forceinline__ void next_queries_block(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place,
                                                   float scale_log2, const DropoutArgs &dropout) {
    step_to_block<C, RAGGED, false>(r, queries, place, place.at.next(), scale_log2, dropout);
}

/* Until TMA has read what the warp gave it to store. */
__device__ __forceinline__ void wait_stored() {
    if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
    __syncwarp();
}

/* Writes a warp's rows of dK (part 1) or dV (part 2) by TMA, times a factor. map: boxes of 16 rows of dqkv;
 * buffer: TILE_BYTES of the warpgroup's, which no store still reads. */
template <class C>
__device__ __forceinline__ void queue_key_rows(const CUtensorMap &map, uint32_t buffer,
                                               const float (&gradient)[C::HD / 2], float factor, int part,
                                               const Work &work, int row0, int NH) {
    const int warp = threadIdx.x % WARPGROUP / 32;
    const float factors[2] = {factor, factor};
    tma_store_rows<C::ATOM_COLUMNS, C::KEY_PAIRS>(&map, buffer + warp * (C::TILE_BYTES / 4), gradient,
                                                  factors, row0 + warp * 16, part * NH + work.head,
                                                  work.batch);
}

/* From one tile into the next: the gradients of the last block of the tile before, which complete dK and dV,
 * and P and dS of this tile's first block, at `next`. One step as any other, where last_gradients and
 * first_queries_block one after the other leave the tensor cores idle. */
template <class C>
__device__ __forceinline__ void next_tile_block(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place,
                                                Ring<C::STAGES> next, float scale_log2,
                                                const DropoutArgs &dropout) {
    step_to_block<C, true, C::CAUSAL>(r, queries, place, next, scale_log2, dropout);
}

/* The gradients of the last block. */
template <class C>
__device__ __forceinline__ void last_gradients(KeyRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place) {
    wgmma_fence();
    multiply_gradients(r, queries, place.at.stage);
    wgmma_wait<0>();
    gradients_done(r);
    release<C>(queries.ring, place.at);
    place.at.advance();
}
