/* Attention backward for sm_90a, head size 128, in clusters of two blocks (see sm90_backward_hd128_2cta.cu for why).
 *
 * Two blocks own tiles 2p and 2p + 1 of a head and walk the same blocks of 64 queries. A block of queries is owned by
 * the thread block whose rank is its parity: that one computes the pair's share of dQ = dS K over all 256 keys, and
 * adds it once. So the two exchange dS, and each has the other's K as well. A warpgroup's products, for a block j that
 * is owned, and for the next:
 *
 *     S(j)  dP(j)  dV(j)  dK(j)
 *     S(j+1)  dP(j+1)  dV(j+1)  dQ(j)  dK(j+1)
 *
 * dS(j) stays here and dS(j+1) is sent, from registers into the other block's shared memory. dQ is one block late: by
 * then the other's dS(j) has come. While one block has its longer step the other has its shorter one. dV, dQ and dK
 * leave by TMA, from where V, dQ's sums and the other tile's K were. What was measured on the way here, and what the
 * exchange costs and gives: dev/attention/README.md, "Exchange of dS, head size 128". */
#pragma once
#include "sm90_backward_hd128.cuh"
#include "sm90_pairs.cuh"

template <bool CAUSAL> using TwoCtaConfig = Config128<CAUSAL, 2, 2>;

/* 227 KB, all there is. dS: 64 keys x 64 queries for each warpgroup, see keep_ds. */
template <class C> struct alignas(1024) TwoCtaShared {
    uint8_t k[C::WARPGROUPS][C::TILE_BYTES], other_k[C::WARPGROUPS][C::TILE_BYTES]; /* other_k: then dK */
    uint8_t v[C::WARPGROUPS][C::TILE_BYTES];                                        /* then dV */
    uint8_t q[C::STAGES][C::TILE_BYTES], dout[C::STAGES][C::TILE_BYTES];
    uint8_t fold[C::STAGES][C::FOLD_BYTES]; /* with Q; not near the end: to memcheck its products read 2 KB */
    uint8_t ds[C::WARPGROUPS][C::DS_BYTES], other_ds[C::WARPGROUPS][C::DS_BYTES];
    TurnBuffers<1> turns[C::WARPGROUPS];
    RingBarriers<1> k_ring, other_k_ring, v_ring;
    RingBarriers<C::STAGES> q_ring, dout_ring;
    RingBarriers<1> ds_ring; /* full: of ds and other_ds; empty: of ds */
    uint64_t other_ds_bytes; /* completes when other_ds is written */
    uint64_t sent_empty;     /* completes when the other block's other_ds may be written */
    Work work;               /* with K */
    NextWork next;
};

/* Where a warpgroup is. */
template <class C> struct TwoCtaPlace {
    Work work;
    int warpgroup;
    uint32_t k, v;           /* places of the warpgroup's keys */
    uint32_t k_half;         /* of its columns of K, all keys of the pair */
    uint32_t chunk;          /* of the thread's first chunk of dS, from its warpgroup's first */
    uint32_t ones[2][4];     /* A of the folded step: 1 where FoldRow has -lse / scale; where it has -D */
    int step = 0;            /* blocks before the one in work, of all tiles */
    int owned = 0, sent = 0; /* of those of the tiles before */
    Ring<1> own;
    TurnAt<1> turns;

    /* For sm90_backward_hd128.cuh. (anew: or what follows from an address stays in registers, and 56 bytes spill.) */
    __device__ __forceinline__ Ring<2> q_at() const { return ring_after(step); }
    __device__ __forceinline__ Ring<2> dout_at() const { return ring_after(step); }
    __device__ __forceinline__ uint32_t k_rows() const { return anew(k); }
    __device__ __forceinline__ uint32_t v_rows() const { return anew(v); }

    __device__ __forceinline__ bool owns(int block) const { return ((block ^ work.tile) & 1) == 0; }
    __device__ __forceinline__ uint32_t other() const { return ~work.tile & 1; } /* rank of the other block */

    /* Parity of ds_ring for a block that is owned, of sent_empty for one that is not: a pair's first is a multiple of
     * 4. (Counted in bits that are flipped after each use, they kept ptxas from seeing that the stage is the same for
     * all threads, and a step took 3470 clocks for 3290.) */
    __device__ __forceinline__ uint32_t ds_parity(int block) const { return (owned + block / 2) & 1; }
    __device__ __forceinline__ uint32_t sent_parity(int block) const { return (sent + block / 2) & 1; }
};

/* ---- dS ---- */

/* A tile of dS^T has 64 queries of a key in a row of 128 bytes, chunks of 16 swizzled, in an order that needs no
 * shuffle: a thread's accumulators have 16 queries of a row, and they become two chunks as they are, four threads'
 * chunks one half of the row. dQ's rows have the same order, until it is finished: query_at. */
__device__ __forceinline__ int query_at(int place) {
    return place / 32 * 32 + place / 4 % 2 * 16 + place / 2 % 2 * 8 + place / 8 % 4 * 2 + place % 2;
}

/* One chunk of the thread's row, or of the row 8 further on. Of two neighbouring rows one writes the other half first,
 * or they would have the same banks. */
__device__ __forceinline__ int4 ds_chunk(const uint32_t (&ds)[ROWS / 16][4], int i, int row) {
    const bool odd = threadIdx.x / 4 % 2;
    const int even_half = 2 * i, odd_half = 2 - 2 * i;
    return make_int4(odd ? ds[odd_half][row] : ds[even_half][row],
                     odd ? ds[odd_half][2 + row] : ds[even_half][2 + row],
                     odd ? ds[odd_half + 1][row] : ds[even_half + 1][row],
                     odd ? ds[odd_half + 1][2 + row] : ds[even_half + 1][2 + row]);
}
__device__ __forceinline__ uint32_t first_chunk() {
    const int g = threadIdx.x % 32 / 4, chunk = threadIdx.x % 4 + g % 2 * 4;
    return (threadIdx.x % WARPGROUP / 32 * 16 + g) * 128 + (chunk ^ g) * 16;
}
__device__ __forceinline__ uint32_t chunk_at(uint32_t first, int i, int row) {
    return (first ^ i * 64) + row * (8 * 128);
}

/* Of a block that is owned, for the product here. */
template <class C>
__device__ __forceinline__ void keep_ds(const uint32_t (&ds)[ROWS / 16][4], TwoCtaShared<C> &shared,
                                        const TwoCtaPlace<C> &place, int block) {
    mbarrier_wait(shared_address(&shared.ds_ring.empty[0]), place.ds_parity(block) ^ 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        *reinterpret_cast<int4 *>(shared.ds[place.warpgroup] + chunk_at(place.chunk, i / 2, i % 2)) =
            ds_chunk(ds, i / 2, i % 2);
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.ds_ring.full[0]));
}

/* Of a block that the other thread block owns, for the product there. */
template <class C>
__device__ __forceinline__ void send_ds(const uint32_t (&ds)[ROWS / 16][4], TwoCtaShared<C> &shared,
                                        const TwoCtaPlace<C> &place, int block) {
    const uint32_t to =
        cluster_address(shared_address(shared.other_ds[place.warpgroup]) + place.chunk, place.other());
    const uint32_t bytes = cluster_address(shared_address(&shared.other_ds_bytes), place.other());
    mbarrier_wait(shared_address(&shared.sent_empty), place.sent_parity(block) ^ 1);
#pragma unroll
    for (int i = 0; i < 4; i++) store_async_16(chunk_at(to, i / 2, i % 2), ds_chunk(ds, i / 2, i % 2), bytes);
}

/* Until dS of a block that is owned has come from all four warpgroups. */
template <class C>
__device__ __forceinline__ void wait_ds(TwoCtaShared<C> &shared, const TwoCtaPlace<C> &place, int block) {
    mbarrier_wait(shared_address(&shared.ds_ring.full[0]), place.ds_parity(block));
}

/* The product has read it. */
template <class C>
__device__ __forceinline__ void release_ds(TwoCtaShared<C> &shared, const TwoCtaPlace<C> &place) {
    __syncwarp(); /* lane 0's arrivals then stand for the reads of all 32 */
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(shared_address(&shared.ds_ring.empty[0]));
        mbarrier_arrive_cluster(shared_address(&shared.sent_empty), place.other());
    }
}

/* ---- dQ ---- */

/* The warpgroup's 64 columns of dQ = dS K over the pair's 256 keys, this tile's first, in the registers of dP. */
template <class C>
__device__ __forceinline__ void multiply_dq(KeyRows<C> &r, TwoCtaShared<C> &shared,
                                            const TwoCtaPlace<C> &place) {
    const uint32_t ds = uniform_place(shared_address(shared.ds)), k = anew(place.k_half);
#pragma unroll
    for (int i = 0; i < C::PAIR_ROWS / 16; i++) {
        const uint32_t a = ds + i / 4 * (C::DS_BYTES >> 4) + i % 4 * (2048 >> 4);
        const uint32_t b = k + i / 4 * (C::TILE_BYTES >> 4) + i % 4 * (2048 >> 4);
        if (i == 0)
            wgmma<D_SET, B_MN_MAJOR, 1>(r.dp, swizzled(a), swizzled(b));
        else
            wgmma<D_ADD, B_MN_MAJOR, 1>(r.dp, swizzled(a), swizzled(b));
    }
    wgmma_commit();
}

/* Pair 0: adds the sums of all others, and bf16 dQ leaves from where they were: 8 of the 16 KB, from a multiple of 1024
 * on. A warp's rows lie apart, so the warpgroup's leave together. */
template <class C>
__device__ __forceinline__ void finish_dq(KeyRows<C> &r, TurnBuffers<1> &turns, TwoCtaPlace<C> &place,
                                          int block, const KernelArgs &args) {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const int row = query_at(thread / 32 * 16 + lane % 16);
    const uint32_t tile = (shared_address(turns.dq) + 1023) & ~1023u;
    const float scale = args.base.scale;
    add_sums_kept(turns, place.turns, r.dp, turn_shares<C>(args.turns, block));
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup); /* all have read their sums */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = cvt_bf16x2(r.dp[8 * i + 2 * j] * scale, r.dp[8 * i + 2 * j + 1] * scale);
        stmatrix_x4(tile + row * 128 + ((2 * i + lane / 16) ^ (row & 7)) * 16, x);
    }
    fence_proxy_async();
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup);
    if (thread > 0) return;
    tma_store_5d(&args.dq, 0, block * ROWS, 0, 2 * place.work.head + place.warpgroup, place.work.batch, tile);
    bulk_commit();
}

/* Once the product is done: dQ of `block`, from r.dp to where it belongs. */
template <class C>
__device__ __forceinline__ void take_dq(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                        int block, const KernelArgs &args) {
    wgmma_results(r.dp);
    release_ds(shared, place);
    TurnBuffers<1> &turns = shared.turns[place.warpgroup];
    if (place.work.tile > 1)
        give_share(turns, place.turns, r.dp);
    else
        finish_dq(r, turns, place, block, args);
}

/* dQ of a block, with nothing else under way, in a warpgroup that may not have waited for the other tile's K. */
template <class C>
__device__ __forceinline__ void drain_dq(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                         int block, const KernelArgs &args) {
    shared.other_k_ring.wait(place.own);
    wait_ds(shared, place, block);
    wgmma_fence();
    multiply_dq(r, shared, place);
    wgmma_wait<0>();
    take_dq(r, shared, place, block, args);
    dq_stored<C>(shared, place);
}

/* ---- blocks of queries ---- */

/* A block of queries that see none of the warpgroup's keys: its dS is 0. */
template <class C>
__device__ __forceinline__ void skip_block(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                           int block, int pair_first, const KernelArgs &args) {
    const uint32_t zeros[ROWS / 16][4] = {};
    release_queries<C>(shared, place);
    if (place.owns(block)) return keep_ds(zeros, shared, place, block);
    send_ds(zeros, shared, place, block);
    if (block > pair_first) drain_dq(r, shared, place, block - 1, args);
}

/* The warpgroup's first block of a tile; it lies on the diagonal if causal. */
template <class C>
__device__ __forceinline__ void first_block(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                            int block, int pair_first, const KernelArgs &args) {
    const bool owned = place.owns(block);
    clear_gradients(r);
    shared.v_ring.wait(place.own);
    block_scores<C, C::CAUSAL>(r, shared, place, args.base.scale_log2);
    if (owned)
        keep_ds(r.ds, shared, place, block);
    else
        send_ds(r.ds, shared, place, block);
    wgmma_fence();
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q_at().stage]);
    wgmma_wait<0>();
    dv_done(r, shared, place);
    dk_done(r, shared, place);
    shared.other_k_ring.wait(place.own); /* for all products dQ of the tile */
    if (!owned && block > pair_first) drain_dq(r, shared, place, block - 1, args);
}

/* Any other block, if it is owned. */
template <class C>
__device__ __forceinline__ void owned_block(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                            int block, const KernelArgs &args) {
    block_scores<C, false>(r, shared, place, args.base.scale_log2);
    wgmma_fence();
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q_at().stage]);
    keep_ds(r.ds, shared, place, block);
    wgmma_wait<1>();
    dv_done(r, shared, place);
    wgmma_wait<0>();
    dk_done(r, shared, place);
}

/* If it is not; and dQ of the block before. */
template <class C>
__device__ __forceinline__ void other_block(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                            int block, const KernelArgs &args) {
    block_scores<C, false>(r, shared, place, args.base.scale_log2,
                           [&] { wait_ds(shared, place, block - 1); });
    send_ds(r.ds, shared, place, block);
    wgmma_fence();
    multiply_dq(r, shared, place);
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q_at().stage]);
    wgmma_wait<2>();
    dv_done(r, shared, place);
    wgmma_wait<1>();
    take_dq(r, shared, place, block - 1, args);
    wgmma_wait<0>();
    dk_done(r, shared, place);
    dq_stored<C>(shared, place);
}

/* ---- tiles ---- */

/* What is left when all blocks are done: dQ of the last, if it is owned, and dV, dQ and dK leave, in this order. */
template <class C>
__device__ __forceinline__ void close_tile(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                           int row0, const KernelArgs &args) {
    const int NH = args.base.NH, last = args.turns.blocks - 1;
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup); /* all its warps have multiplied by V */
    queue_key_rows<C>(args.gradients, shared_address(shared.v[place.warpgroup]), r.dv, 1.0f, 2, place.work,
                      row0, NH);
    if (place.owns(last)) {
        wait_ds(shared, place, last);
        wgmma_fence();
        multiply_dq(r, shared, place);
        release_stored(shared.v_ring);
        wgmma_wait<0>();
        shared.k_ring.release(place.own);
        take_dq(r, shared, place, last, args);
        dq_stored<C>(shared, place);
    } else {
        shared.k_ring.release(place.own);
        release_stored(shared.v_ring);
    }
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup); /* all its warps have multiplied by their half of K */
    /* where that half of the other tile's K was: a warp's quarter of dK is half of one of its two chunks */
    const uint32_t dk = shared_address(shared.other_k) + place.warpgroup * (ROWS * 128) +
                        threadIdx.x % WARPGROUP / 64 * (C::TILE_BYTES - ROWS * 128);
    queue_key_rows<C>(args.gradients, dk, r.dk, args.base.scale, 1, place.work, row0, NH);
}

/* The same where no block sees the warpgroup's keys. */
template <class C>
__device__ __forceinline__ void close_unseen(KeyRows<C> &r, TwoCtaShared<C> &shared, TwoCtaPlace<C> &place,
                                             const KernelArgs &args) {
    const int last = args.turns.blocks - 1;
    shared.v_ring.wait(place.own);
    release_stored(shared.v_ring);
    shared.other_k_ring.wait(place.own); /* whoever does not wait might be a phase behind */
    if (place.owns(last)) drain_dq(r, shared, place, last, args);
    shared.k_ring.release(place.own);
}

/* A tile; blocks pair_first .. blocks - 1 see keys of the pair, first .. blocks - 1 the warpgroup's. */
template <class C>
__device__ __forceinline__ void tile_blocks(TwoCtaShared<C> &shared, TwoCtaPlace<C> &place, int row0,
                                            int pair_first, int first, const KernelArgs &args) {
    const int blocks = args.turns.blocks;
    KeyRows<C> r;
    write_bias(r, row0, args.base.T);
#pragma unroll 1
    for (int block = pair_first; block < first; block++, place.step++)
        skip_block(r, shared, place, block, pair_first, args);
    if (first == blocks) return close_unseen(r, shared, place, args);
    first_block(r, shared, place, first, pair_first, args);
    place.step++;
#pragma unroll 1
    for (int block = first + 1; block < blocks; block++, place.step++) {
        if (place.owns(block))
            owned_block(r, shared, place, block, args);
        else
            other_block(r, shared, place, block, args);
    }
    close_tile(r, shared, place, row0, args);
}

template <class C>
__device__ __forceinline__ void two_cta_keys(TwoCtaShared<C> &shared, const KernelArgs &args, int warpgroup) {
    const int T = args.base.T;
    TwoCtaPlace<C> place;
    place.warpgroup = warpgroup;
    place.k = uniform_place(shared_address(shared.k[warpgroup]));
    place.v = uniform_place(shared_address(shared.v[warpgroup]));
    place.k_half = uniform_place(shared_address(shared.k) + warpgroup * (ROWS * 128));
    place.chunk = anew(first_chunk());
    write_ones(place.ones);
    for (;; place.own.advance()) {
        shared.k_ring.wait(place.own);
        release_stored(shared.other_k_ring); /* dK of the tile before has left */
        place.work = read_work(shared.work);
        if (place.work.index < 0) break;
        const int tile = place.work.tile, row0 = tile * C::TILE_ROWS + warpgroup * ROWS;
        const int pair_first = first_queries<C>(tile / 2 * C::PAIR_ROWS, T),
                  n = args.turns.blocks - pair_first;
        tile_blocks(shared, place, row0, pair_first, first_queries<C>(row0, T), args);
        place.owned += (n + 1 - tile % 2) / 2;
        place.sent += (n + tile % 2) / 2;
    }
}

__device__ unsigned two_cta_tickets;

/* ---- producers: one thread of a cluster for Q and dO; one of each block for its keys ---- */

template <class C>
__device__ __forceinline__ void two_cta_producer(TwoCtaShared<C> &shared, const BackwardArgs &args) {
    const int blocks = ceil_div(args.T, (int)ROWS), total = args.order.total;
    Ring<1> at;
    Ring<C::STAGES> q_at;
    for (int index = first_work<C>(&two_cta_tickets, total); index < total; at.advance()) {
        const Work work = work_at(args.order, index);
        const FoldRow *fold = args.fold + ((int64_t)work.batch * args.NH + work.head) * fold_rows(args.T);
        tell_work<C>(shared.next, at, work);
        const int first = first_queries<C>(work.tile * C::PAIR_ROWS, args.T);
        for (int block = first; block < blocks; block++, q_at.advance())
            load_block<C>(shared, q_at, q_at, work, block, fold, args);
        index = draw_work<C>(&two_cta_tickets, total); /* not earlier: see sm90_turns.cuh */
    }
    tell_work<C>(shared.next, at, Work{-1, 0, 0, 0});
}

/* A tile of K or V. head: its columns in qkv. */
template <class C>
__device__ __forceinline__ void load_tile(const uint8_t (&to)[C::WARPGROUPS][C::TILE_BYTES], int tile,
                                          int head, int batch, uint32_t full, const BackwardArgs &args) {
    for (int i = 0; i < C::WARPGROUPS; i++)
        tma_load_5d(shared_address(to[i]), &args.rows, 0, tile * C::TILE_ROWS + i * ROWS, 0, head, batch,
                    full);
}

/* A block's own V and K, which tile it is, and K of the pair's other. */
template <class C>
__device__ __forceinline__ void load_keys(TwoCtaShared<C> &shared, Ring<1> at, const Work &work,
                                          const BackwardArgs &args) {
    const int bytes = C::WARPGROUPS * C::TILE_BYTES, k_head = args.NH + work.head;
    const uint32_t v_full = shared.v_ring.acquire(at, bytes);
    load_tile<C>(shared.v, work.tile, args.NH + k_head, work.batch, v_full, args);
    shared.k_ring.wait_free(at);
    shared.work = work;
    const uint32_t k_full = shared.k_ring.expect(at, bytes);
    load_tile<C>(shared.k, work.tile, k_head, work.batch, k_full, args);
    shared.other_k_ring.wait_free(at.next()); /* it is released when a tile begins */
    const uint32_t other_k_full = shared.other_k_ring.expect(at, bytes);
    load_tile<C>(shared.other_k, work.tile ^ 1, k_head, work.batch, other_k_full, args);
}

/* Hands on what the other block sends, for all blocks of a tile that are owned: it is written by ordinary accesses,
 * and the product is none, so there must be a fence between them; here it costs no warpgroup time (in those, 0.5 to 1
 * % of speed). */
template <class C>
__device__ __forceinline__ void receive_ds(TwoCtaShared<C> &shared, Ring<1> &received, const Work &work,
                                           int T) {
    const uint32_t bytes = shared_address(&shared.other_ds_bytes);
    const int first = first_queries<C>(work.tile / 2 * C::PAIR_ROWS, T) + work.tile % 2;
    for (int block = first; block < ceil_div(T, (int)ROWS); block += C::ADDED_TILES, received.advance()) {
        mbarrier_arrive_expect_tx(bytes, C::WARPGROUPS * C::DS_BYTES);
        mbarrier_wait(bytes, received.parity);
        fence_proxy_async();
        mbarrier_arrive(shared_address(&shared.ds_ring.full[0]));
    }
}

template <class C>
__device__ __forceinline__ void keys_producer(TwoCtaShared<C> &shared, const BackwardArgs &args) {
    Ring<1> at, received;
    for (;; at.advance()) {
        const Work work = told_work(shared.next, at);
        if (work.index < 0) break;
        load_keys(shared, at, work, args);
        receive_ds(shared, received, work, args.T);
    }
    shared.k_ring.wait_free(at);
    shared.work.index = -1;
    shared.k_ring.expect(at, 0);
}

template <class C> __device__ __forceinline__ void init_barriers(TwoCtaShared<C> &shared) {
    enum {
        WARPS = 4 * C::WARPGROUPS,
        WRITERS = C::WARPGROUPS * WARPGROUP /* see release_stored */
    };
    shared.k_ring.init(WARPS + C::WARPGROUPS);
    shared.other_k_ring.init(WRITERS);
    shared.v_ring.init(WRITERS);
    shared.q_ring.init(C::CLUSTER * WARPS);
    shared.dout_ring.init(C::CLUSTER * WARPS);
    shared.ds_ring.init(WARPS, WARPS + 1); /* and receive_ds */
    mbarrier_init(shared_address(&shared.other_ds_bytes), 1);
    mbarrier_init(shared_address(&shared.sent_empty), WARPS);
    shared.next.ring.init(C::CLUSTER);
    for (auto &turns : shared.turns) turns.init();
    fence_mbarrier_init();
}

template <bool CAUSAL>
__global__ void __launch_bounds__(TwoCtaConfig<CAUSAL>::THREADS, 1)
    sm90_backward_hd128_2cta_kernel(const __grid_constant__ KernelArgs args) {
#ifdef SM90_BODY
    using C = TwoCtaConfig<CAUSAL>;
    auto &shared = at_uniform_address(shared_memory<TwoCtaShared<C>>());
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    if (threadIdx.x == 0) init_barriers(shared);
    open_cluster<C>();
    wait_on_dependency();
    if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        if (warp == 0 && lane == 0 && cluster_rank() == 0) two_cta_producer(shared, args.base);
        if (warp == 3 && lane == 0) keys_producer(shared, args.base);
        if (warp >= 1 && warp <= C::WARPGROUPS && lane == 0)
            add_stream<C>(shared, args.base, args.turns, warp - 1);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        two_cta_keys(shared, args, warpgroup);
    }
    close_cluster<C>();
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

/* ---- host ---- */

template <bool CAUSAL>
static void backward_hd128_2cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, void *scratch, int B, int T, int NH) {
    using C = TwoCtaConfig<CAUSAL>;
    KernelArgs args = kernel_args<128>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, CAUSAL);
    args.turns.tiles = ceil_div(args.turns.tiles, 2);
    args.dq = tensor_map(dqkv, B, T, 3 * NH * 2, 64, ROWS);
    launch_one_pass<C, TwoCtaShared<C>>("sm90_backward_hd128_2cta_kernel",
                                        sm90_backward_hd128_2cta_kernel<CAUSAL>, args);
}
