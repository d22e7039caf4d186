/* What both forms of attention backward for sm_90a, head size 128, have in common: blocks alone
 * (sm90_backward_hd128_1cta.cuh) and clusters of two (sm90_backward_hd128_2cta.cuh). C is the kernel's config, Shared its
 * shared memory, and Place where a warpgroup is:
 *
 *   q_at(), dout_at()    stages of the block of queries in work; of dO there are two
 *   k_rows(), v_rows()   the warpgroup's keys
 *
 * Operands in shared memory are places: the low halves of descriptors, in uniform registers. */
#pragma once
#include "sm90_turns.cuh"

/* Q_STAGES: of blocks of Q. BLOCKS: of a cluster, whose tiles, one each, add to dQ as one. */
template <bool IS_CAUSAL, int Q_STAGES, int BLOCKS> struct Config128 {
    static constexpr Sm90Shape SHAPE = {2, 64, Q_STAGES, 1, 232, 40, false};
    static constexpr int HD = 128, WARPGROUPS = SHAPE.warpgroups, STAGES = SHAPE.stages;
    static constexpr bool CAUSAL = IS_CAUSAL;
    static constexpr int CLUSTER = BLOCKS, ADDED_TILES = BLOCKS;
    static constexpr bool K_IN_REGISTERS = false; /* dK and dV take 128 */
    static constexpr int TILE_ROWS = WARPGROUPS * ROWS, PAIR_ROWS = CLUSTER * TILE_ROWS;
    static constexpr int THREADS = sm90_threads(SHAPE), TILE_BYTES = ROWS * HD * 2;
    static constexpr int FOLD_BYTES = ROWS * sizeof(FoldRow), DS_BYTES = ROWS * ROWS * 2;
    static_assert(SHAPE.columns == ROWS && TILE_ROWS == 2 * ROWS, "blocks and tiles of sm90_turns.cuh");
    static_assert(HD / 64 == WARPGROUPS,
                  "a warpgroup's half of dQ is a stream, and one chunk of K's columns");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
};

/* ---- producer ---- */

/* Q, the fold rows and dO of a block of queries, to all blocks of the cluster. fold: the head's. */
template <class C, class Shared>
__device__ __forceinline__ void load_block(Shared &shared, Ring<C::STAGES> q_at, Ring<2> dout_at,
                                           const Work &work, int block, const FoldRow *fold,
                                           const BackwardArgs &args) {
    const uint32_t q_full = acquire<C>(shared.q_ring, q_at, C::TILE_BYTES + C::FOLD_BYTES);
    load_rows<C>(shared.q[q_at.stage], args.rows, block * ROWS, work.head, work.batch, q_full);
    load_bytes<C>(shared.fold[q_at.stage], fold + block * ROWS, C::FOLD_BYTES, q_full);
    const uint32_t dout_full = acquire<C>(shared.dout_ring, dout_at, C::TILE_BYTES);
    load_rows<C>(shared.dout[dout_at.stage], args.dout, block * ROWS, work.head, work.batch, dout_full);
}

/* ---- products ---- */

/* acc = or += a step of 16 columns of K or V times those of Q or dO. */
__device__ __forceinline__ void multiply_columns(float (&acc)[ROWS / 2], uint32_t rows, uint32_t queries,
                                                 int step) {
    const uint32_t at = step / 4 * (ROWS * 128 >> 4) + step % 4 * 2;
    if (step == 0)
        wgmma<D_SET, B_K_MAJOR>(acc, swizzled(rows), swizzled(queries));
    else
        wgmma<D_ADD, B_K_MAJOR>(acc, swizzled(rows + at), swizzled(queries + at));
}

/* S - lse / scale or dP - D: a warpgroup's rows of K or V times a block of Q or dO, and the folded step, whose A is
 * `ones` and whose B, of k 8..15, where A is 0, is that of k 0..7 again. */
template <class C>
__device__ __forceinline__ void multiply_scores(float (&acc)[ROWS / 2], uint32_t rows, uint32_t queries,
                                                const uint32_t (&ones)[4], uint32_t fold) {
#pragma unroll
    for (int i = 0; i < C::HD / 16; i++) multiply_columns(acc, rows, queries, i);
    wgmma<D_ADD, B_K_MAJOR>(acc, ones, unswizzled(fold, 0));
    wgmma_commit();
}

/* dV += P^T dO or dK += dS^T Q. */
template <class C>
__device__ __forceinline__ void multiply_gradient(float (&d)[C::HD / 2], const uint32_t (&a)[ROWS / 16][4],
                                                  const uint8_t *queries) {
    const uint32_t b = uniform_place(shared_address(queries)) + (ROWS * 128 >> 4 << 16);
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) wgmma<D_ADD, B_MN_MAJOR>(d, a[i], swizzled(b + i * (2048 >> 4)));
    wgmma_commit();
}

/* ---- a block of queries ---- */

struct Nothing {
    __device__ __forceinline__ void operator()() const {}
};

/* P, dV and dS of the block in work; dV stays under way. between: done beside dP and dV. */
template <class C, bool DIAGONAL, class Shared, class Place, class Between = Nothing>
__device__ __forceinline__ void block_scores(KeyRows<C> &r, Shared &shared, const Place &place,
                                             float scale_log2, Between between = Between()) {
    const Ring<C::STAGES> q_at = place.q_at();
    const Ring<2> dout_at = place.dout_at();
    const uint32_t q = uniform_place(shared_address(shared.q[q_at.stage]));
    const uint32_t dout = uniform_place(shared_address(shared.dout[dout_at.stage]));
    const uint32_t fold = uniform_place(shared_address(shared.fold[q_at.stage]));
    shared.q_ring.wait(q_at);
    wgmma_fence();
    multiply_scores<C>(r.s, place.k_rows(), q, place.ones[0], fold);
    shared.dout_ring.wait(dout_at);
    wgmma_fence();
    multiply_scores<C>(r.dp, place.v_rows(), dout, place.ones[1], fold);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (DIAGONAL) mask_queries(r);
    key_probabilities(r, scale_log2);
    wgmma_fence();
    multiply_gradient<C>(r.dv, r.p, shared.dout[dout_at.stage]);
    between();
    wgmma_wait<1>();
    wgmma_results(r.dp);
    key_scores(r);
}

/* When dV is done: P and dO are no longer needed. When dK is: dS and Q. */
template <class C, class Shared, class Place>
__device__ __forceinline__ void dv_done(KeyRows<C> &r, Shared &shared, const Place &place) {
    wgmma_results(r.dv);
    wgmma_results(r.p);
    release<C>(shared.dout_ring, place.dout_at());
}
template <class C, class Shared, class Place>
__device__ __forceinline__ void dk_done(KeyRows<C> &r, Shared &shared, const Place &place) {
    wgmma_results(r.dk);
    wgmma_results(r.ds);
    release<C>(shared.q_ring, place.q_at());
}

/* A block of queries that see none of the warpgroup's keys. */
template <class C, class Shared, class Place>
__device__ __forceinline__ void release_queries(Shared &shared, const Place &place) {
    const Ring<C::STAGES> q_at = place.q_at();
    const Ring<2> dout_at = place.dout_at();
    shared.q_ring.wait(q_at);
    release<C>(shared.q_ring, q_at);
    shared.dout_ring.wait(dout_at);
    release<C>(shared.dout_ring, dout_at);
}

/* ---- what leaves by TMA ---- */

/* TMA has read what a warpgroup left in a stage. Every thread arrives, for every thread wrote there. */
__device__ __forceinline__ void release_stored(RingBarriers<1> &ring) {
    wait_stored();
    mbarrier_arrive(shared_address(&ring.empty[0]));
}

/* Some time after dQ of tile or pair 0 was given to TMA: it has been read, and the next sums may come. */
template <class C, class Shared, class Place>
__device__ __forceinline__ void dq_stored(Shared &shared, Place &place) {
    if (place.work.tile >= C::ADDED_TILES) return;
    wait_stored();
    release_sums(shared.turns[place.warpgroup], place.turns);
}
