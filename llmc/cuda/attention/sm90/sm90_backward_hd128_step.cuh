/* Attention backward for sm_90a, head size 128, as a 1-CTA kernel (C::CLUSTER 1) and in 2-CTA clusters (2). What the two
 * do and why: sm90_backward_hd128.cu. The math and the augmented step: sm90_backward.cuh; the sum of dQ: sm90_dq_semaphore.cuh.
 *
 * Operands in shared memory are places: the low halves of descriptors, in uniform registers. */
#pragma once
#include "sm90_backward_tiles.cuh"

/* HEAD: 128, or less, and more than 64: in shared memory a head has two chunks of 64 columns, the last of which are 0 or
 * unused; products are as wide as the head. The two warpgroups' columns of dQ are K's two chunks. At head size 96 those of
 * K are the two halves of the head, so that dQ is no wider. */
template <bool IS_CAUSAL, int BLOCKS, int HEAD> struct Hd128Config : Sm90Roles {
    static constexpr Sm90Shape SHAPE = {2, 64, BLOCKS == 1 ? 3 : 2, 1, 232, 40, false};
    static constexpr int HD = HEAD, COLUMNS = tile_columns(HD), WARPGROUPS = SHAPE.warpgroups,
                         STAGES = SHAPE.stages /* of Q */;
    static constexpr bool CAUSAL = IS_CAUSAL;
    static constexpr int CLUSTER = BLOCKS, ADDED_TILES = BLOCKS /* a pair adds to dQ as one */;
    static constexpr bool PAIRED = CLUSTER == 2;
    static constexpr bool K_IN_REGISTERS = false;           /* dK and dV take 96 to 128 */
    static constexpr int FIRST_COLUMNS = first_columns(HD); /* of the head in K's first chunk */
    static constexpr bool RANGES = false;                   /* a mask: tiles end before the sequence does */
    static constexpr bool TURNS = false;                    /* turned */
    static constexpr bool SPARSE = false;                   /* a mask: a list of blocks of queries */
    static constexpr bool DROPS = false, KEY_PAIRS = false; /* WithDropout */
    static constexpr bool KEEPS_MASKS = false;              /* of dropout: registers lack */
    static constexpr int TILE_ROWS = WARPGROUPS * WG_ROWS, CLUSTER_ROWS = CLUSTER * TILE_ROWS;
    static constexpr int THREADS = sm90_threads(SHAPE), TILE_BYTES = WG_ROWS * COLUMNS * 2;
    static constexpr int LSE_D_BYTES = WG_ROWS * sizeof(LseDRow), DS_BYTES = WG_ROWS * WG_ROWS * 2;
    static constexpr int DS_STAGES = PAIRED ? 1 : 2, OWN = SHAPE.own_buffers;
    static_assert(CLUSTER == 1 || STAGES == 2, "Q and dO of a pair have their stages from `step`");
    static_assert(SHAPE.columns == WG_ROWS && TILE_ROWS == 2 * WG_ROWS,
                  "blocks and tiles of sm90_dq_semaphore.cuh");
    static_assert(COLUMNS / 64 == WARPGROUPS,
                  "a warpgroup's half of dQ is a column_block, and one chunk of K's columns");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
};

template <class C> struct Hd128QueriesAt {
    Ring<C::STAGES> q;
    Ring<2> dout;
};

/* 2-CTA: 227 KB, all there is. */
template <class C> struct alignas(1024) Hd128Shared {
    typedef Hd128QueriesAt<C> QueriesAt;
    uint8_t k[C::WARPGROUPS][C::TILE_BYTES];
    uint8_t other_k[C::PAIRED ? C::WARPGROUPS : 0][C::TILE_BYTES]; /* of the pair's other tile; then dK */
    uint8_t v[C::WARPGROUPS][C::TILE_BYTES];                       /* then dV */
    uint8_t q[C::STAGES][C::TILE_BYTES], dout[2][C::TILE_BYTES];
    uint8_t lse_d[C::STAGES]
                 [C::LSE_D_BYTES]; /* with Q; not near the end: to memcheck its products read 2 KB */
    /* 64 queries x 64 keys for each warpgroup. 1-CTA: of two blocks, then dK. 2-CTA: own keys; the other tile's. */
    uint8_t ds[2][C::WARPGROUPS][C::DS_BYTES];
    DqBuffers<1, C::PAIRED ? WARPGROUP : 32, C::FIRST_COLUMNS> dq_buffers[C::WARPGROUPS];
    RingBarriers<1> own_ring /* of K */, other_k_ring, v_ring;
    RingBarriers<C::STAGES> q_ring;
    RingBarriers<2> dout_ring;
    RingBarriers<C::DS_STAGES> ds_ring; /* 2-CTA: full: of both halves of ds; empty: of ds[0] */
    uint64_t other_ds_bytes;            /* completes when ds[1] is written */
    uint64_t sent_empty;                /* completes when the other block's ds[1] may be written */
    Work work[1];                       /* with K */
    DropoutMatrix masks[C::DROPS ? 1 : 0];
    NextWork next;
};

/* Where a warpgroup is. */
template <class C> struct Hd128Place {
    Work work;
    int warpgroup;
    uint32_t k, v;           /* places of the warpgroup's keys */
    uint32_t k_half;         /* of its columns of K, all keys of the cluster */
    uint32_t chunk;          /* 2-CTA: the thread's first chunk of dS, from its warpgroup's first */
    uint32_t ones[2][4];     /* A of the augmented step: 1 where LseDRow has -lse / scale; where it has -D */
    int step = 0;            /* blocks before the one in work, of all tiles */
    int owned = 0, sent = 0; /* of those of the tiles before: dQ was computed here; in the other block */
    Ring<C::STAGES> q;       /* 1-CTA: of the block in work */
    Ring<1> own;
    DqRings<1> dq_rings;
    /* Only where RANGES. */
    int own_end, end; /* blocks of queries before this one see keys of the warpgroup, of the tile */
    int last_from;    /* from this block on the tile adds last */
    QueryEnds ends;
    KeyMask<C> mask;    /* only where C::DROPS: of the block in work */
    SparseVisit before; /* only where SPARSE: of the block before, whose dQ is next */
    bool diagonal;      /* only where SPARSE: the block in work lies there */

    __device__ __forceinline__ void advance() {
        q.advance();
        step++;
        if (C::DROPS) mask.move(1);
    }
    __device__ __forceinline__ Ring<C::STAGES> q_at() const {
        if constexpr (C::PAIRED)
            return ring_after(step);
        else
            return q;
    }
    __device__ __forceinline__ Ring<2> dout_at() const { return ring_after(step); }
    /* anew: or what follows from an address stays in registers, and 56 bytes spill. */
    __device__ __forceinline__ uint32_t k_rows() const { return C::PAIRED ? anew(k) : k; }
    __device__ __forceinline__ uint32_t v_rows() const { return C::PAIRED ? anew(v) : v; }
    __device__ __forceinline__ uint32_t k_columns() const { return C::PAIRED ? anew(k_half) : k_half; }

    /* Whether this thread block computes dQ of a block of queries; the rank of the one that does otherwise. */
    __device__ __forceinline__ bool owns(int block) const {
        return !C::PAIRED || ((block ^ work.tile) & 1) == 0;
    }
    __device__ __forceinline__ uint32_t other() const { return ~work.tile & 1; }

    /* Where dS of a block that is owned is in its ring; 2-CTA: a pair's first block is a multiple of 4. (Counted in bits
     * that are flipped after each use, the parities kept ptxas from seeing that the stage is the same for all threads,
     * and a step took 3470 clocks for 3290.) */
    __device__ __forceinline__ Ring<C::DS_STAGES> ds_at(int block, int at_step) const {
        if constexpr (C::PAIRED)
            return {0, (uint32_t)(owned + block / 2) & 1};
        else
            return ring_after(at_step);
    }
    __device__ __forceinline__ uint32_t sent_parity(int block) const { return (sent + block / 2) & 1; }
};

/* ---- products ---- */

/* step_of_columns in a tile of 64 columns a chunk, COLUMNS of which are the head's in the first. */
template <int COLUMNS> __device__ __forceinline__ uint32_t columns_at(int step) {
    return step / (COLUMNS / 16) * (WG_ROWS * 128 >> 4) + step % (COLUMNS / 16) * 2;
}

/* acc = or += a step of 16 columns of K or V times those of Q or dO. */
template <int COLUMNS>
__device__ __forceinline__ void multiply_columns(float (&acc)[WG_ROWS / 2], uint32_t rows, uint32_t queries,
                                                 int step) {
    if (step == 0)
        wgmma<D_SET, B_K_MAJOR>(acc, swizzled(rows), swizzled(queries));
    else
        wgmma<D_ADD, B_K_MAJOR>(acc, swizzled(rows + columns_at<COLUMNS>(step)),
                                swizzled(queries + step_of_columns<SW128_COLUMNS>(step, WG_ROWS)));
}

/* S - lse / scale or dP - D: a warpgroup's rows of K or V times a block of Q or dO, and the augmented step, whose A is
 * `ones` and whose B, of k 8..15, where A is 0, is that of k 0..7 again. */
template <class C, int COLUMNS = 64>
__device__ __forceinline__ void multiply_scores(float (&acc)[WG_ROWS / 2], uint32_t rows, uint32_t queries,
                                                const uint32_t (&ones)[4], uint32_t lse_d) {
#pragma unroll
    for (int i = 0; i < C::HD / 16; i++) multiply_columns<COLUMNS>(acc, rows, queries, i);
    wgmma<D_ADD, B_K_MAJOR>(acc, ones, unswizzled(lse_d, 0));
    wgmma_commit();
}

/* S - lse / scale. */
template <class C>
__device__ __forceinline__ void multiply_s(KeyRows<C> &r, const Hd128Place<C> &place, uint32_t queries,
                                           uint32_t lse_d) {
    multiply_scores<C, C::FIRST_COLUMNS>(r.s, place.k_rows(), queries, place.ones[0], lse_d);
}

/* dV += P^T dO or dK += dS^T Q. */
template <class C>
__device__ __forceinline__ void multiply_gradient(float (&d)[C::HD / 2], const uint32_t (&a)[WG_ROWS / 16][4],
                                                  const uint8_t *queries) {
    const uint32_t b = uniform_descriptor(shared_address(queries)) + (WG_ROWS * 128 >> 4 << 16);
#pragma unroll
    for (int i = 0; i < WG_ROWS / 16; i++) wgmma<D_ADD, B_MN_MAJOR>(d, a[i], swizzled(b + i * (2048 >> 4)));
    wgmma_commit();
}

/* The warpgroup's columns of dQ, in the registers of dP. Of head size 112 the second warpgroup has 48: what is in the other
 * registers belongs to no column. */
template <class C> __device__ __forceinline__ auto &own_dq(KeyRows<C> &r) {
    return first<C::FIRST_COLUMNS / 2>(r.dp);
}

/* dQ = dS K over all keys of the cluster, this tile's first. */
template <class C>
__device__ __forceinline__ void multiply_dq(KeyRows<C> &r, Hd128Shared<C> &shared, const Hd128Place<C> &place,
                                            Ring<C::DS_STAGES> ds_at) {
    constexpr int A_MN_MAJOR = C::PAIRED, STEP = A_MN_MAJOR ? 2048 >> 4 : 2;
    const uint32_t ds = uniform_descriptor(shared_address(shared.ds[ds_at.stage])), k = place.k_columns();
    auto &dq = own_dq<C>(r);
#pragma unroll
    for (int i = 0; i < C::CLUSTER_ROWS / 16; i++) {
        const uint32_t a = ds + i / 4 * (C::DS_BYTES >> 4) + i % 4 * STEP;
        const uint32_t b = k + i / 4 * (C::TILE_BYTES >> 4) + i % 4 * (2048 >> 4);
        if (i == 0)
            wgmma<D_SET, B_MN_MAJOR, A_MN_MAJOR>(dq, swizzled(a), swizzled(b));
        else
            wgmma<D_ADD, B_MN_MAJOR, A_MN_MAJOR>(dq, swizzled(a), swizzled(b));
    }
    wgmma_commit();
}

/* ---- dS: 1-CTA stores it, transposed, so that keys are contiguous as the product's k; 2-CTA does not, and exchanges it */

/* 2-CTA. A tile of dS^T has 64 queries of a key in a row of 128 bytes, chunks of 16 swizzled, in an order that needs no
 * shuffle: a thread's accumulators have 16 queries of a row, and they become two chunks as they are, four threads'
 * chunks one half of the row. dQ's rows have the same order, until it is finished: query_at. */
__device__ __forceinline__ int query_at(int place) {
    return place / 32 * 32 + place / 4 % 2 * 16 + place / 2 % 2 * 8 + place / 8 % 4 * 2 + place % 2;
}

/* One chunk of the thread's row, or of the row 8 further on. Of two neighbouring rows one writes the other half first,
 * or they would have the same banks. */
__device__ __forceinline__ int4 ds_chunk(const uint32_t (&ds)[WG_ROWS / 16][4], int i, int row) {
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

/* Of the block in work, which is owned, for the product of both warpgroups here. */
template <class C>
__device__ __forceinline__ void store_ds(const uint32_t (&ds)[WG_ROWS / 16][4], Hd128Shared<C> &shared,
                                         const Hd128Place<C> &place, int block) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
    const Ring<C::DS_STAGES> at = place.ds_at(block, place.step);
    uint8_t *to = shared.ds[at.stage][place.warpgroup];
    const uint32_t row =
        shared_address(to) + (lane / 16 * 8 + lane % 8) * 128 +
        ((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16; /* 1-CTA: a thread needs one address */
    shared.ds_ring.wait_free(at);
#pragma unroll
    for (int i = 0; i < WG_ROWS / 16; i++) {
        if (C::PAIRED)
            *reinterpret_cast<int4 *>(to + chunk_at(place.chunk, i / 2, i % 2)) = ds_chunk(ds, i / 2, i % 2);
        else
            stmatrix_x4_trans(row + i * (16 * 128), ds[i]);
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&shared.ds_ring.full[at.stage]));
}

/* Of a block that the other thread block owns, for the product there. */
template <class C>
__device__ __forceinline__ void send_ds(const uint32_t (&ds)[WG_ROWS / 16][4], Hd128Shared<C> &shared,
                                        const Hd128Place<C> &place, int block) {
    const uint32_t to =
        cluster_address(shared_address(shared.ds[1][place.warpgroup]) + place.chunk, place.other());
    const uint32_t bytes = cluster_address(shared_address(&shared.other_ds_bytes), place.other());
    mbarrier_wait(shared_address(&shared.sent_empty), place.sent_parity(block) ^ 1);
#pragma unroll
    for (int i = 0; i < 4; i++) store_async_16(chunk_at(to, i / 2, i % 2), ds_chunk(ds, i / 2, i % 2), bytes);
}
template <class C>
__device__ __forceinline__ void store_or_send_ds(const uint32_t (&ds)[WG_ROWS / 16][4],
                                                 Hd128Shared<C> &shared, const Hd128Place<C> &place,
                                                 int block) {
    if (place.owns(block))
        store_ds(ds, shared, place, block);
    else
        send_ds(ds, shared, place, block);
}

/* The product has read it. */
template <class C>
__device__ __forceinline__ void release_ds(Hd128Shared<C> &shared, const Hd128Place<C> &place,
                                           Ring<C::DS_STAGES> at) {
    __syncwarp(); /* lane 0's arrivals then stand for the reads of all 32 */
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(shared_address(&shared.ds_ring.empty[at.stage]));
        if (C::PAIRED) mbarrier_arrive_cluster(shared_address(&shared.sent_empty), place.other());
    }
}

/* ---- dQ, of the block before the one in work, once dS of all warpgroups has come ---- */

/* Where the warpgroup's columns of dQ go. */
template <class C>
__device__ __forceinline__ const CUtensorMap *dq_map(const Hd128Place<C> &place, const KernelArgs &args) {
    return C::HD % 64 && place.warpgroup ? &args.second_dq : &args.dq;
}
template <class C> __device__ __forceinline__ int dq_head(const Hd128Place<C> &place) {
    return C::HD % 64 ? place.work.head : 2 * place.work.head + place.warpgroup;
}

/* The last to add: dQ leaves from where the sums were. 1-CTA: each warp stores its 16 rows. 2-CTA: a warp's rows lie
 * apart, so the warpgroup's leave together: 8 KB of the buffer, from a multiple of 1024 on. */
template <class C, class Buffers>
__device__ __forceinline__ void finish_dq(KeyRows<C> &r, Buffers &buffers, Hd128Place<C> &place, int block,
                                          const KernelArgs &args) {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const float scale = args.base.scale;
    auto &dq = own_dq<C>(r);
    add_dq_sums(buffers, place.dq_rings, dq,
                C::SPARSE ? place.before.before + 1 : partials_of<C>(args, place.work.tile, block));
    if constexpr (!C::PAIRED) {
        const float scales[2] = {scale, scale};
        __syncwarp(); /* all lanes have read the sums where the result goes now */
        tma_store_rows(dq_map(place, args), shared_address(buffers.part(place.dq_rings.sums.stage)), dq,
                       scales, block * WG_ROWS + thread / 32 * 16, dq_head(place), place.work.batch);
        return;
    }
    const int row = query_at(thread / 32 * 16 + lane % 16);
    static_assert(!C::PAIRED || (int)Buffers::BYTES >= WG_ROWS * 128 + 1023,
                  "a tile from the next multiple of 1024");
    const uint32_t tile = (shared_address(buffers.dq) + 1023) & ~1023u;
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup); /* all have read their sums */
#pragma unroll
    for (int i = 0; i < C::FIRST_COLUMNS / 16; i++) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = cvt_bf16x2(dq[8 * i + 2 * j] * scale, dq[8 * i + 2 * j + 1] * scale);
        stmatrix_x4(tile + swizzled_at<SW128_COLUMNS>(row, 2 * i + lane / 16), x);
    }
    fence_proxy_async();
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup);
    if (thread > 0) return;
    tma_store_5d(dq_map(place, args), 0, block * WG_ROWS, 0, dq_head(place), place.work.batch, tile);
    bulk_commit();
}

/* The block of queries before `block`, whose dQ is computed with that. */
template <class C> __device__ __forceinline__ int block_before(const Hd128Place<C> &place, int block) {
    return C::SPARSE ? place.before.block : block - 1;
}

/* Whether the tile or pair in work is the last to add to a block's dQ. */
template <class C>
__device__ __forceinline__ bool adds_last(const Hd128Place<C> &place, int block, const KernelArgs &args) {
    if (C::SPARSE) return place.before.flags & ADDS_LAST;
    return C::RANGES ? block >= place.last_from : place.work.tile < C::ADDED_TILES;
}

/* Once the product is done: dQ of `block`, from r.dp to where it belongs. */
template <class C>
__device__ __forceinline__ void hand_on_dq(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                           int block, int step, const KernelArgs &args) {
    wgmma_results(r.dp);
    release_ds(shared, place, place.ds_at(block, step));
    auto &buffers = shared.dq_buffers[place.warpgroup];
    if (!adds_last(place, block, args))
        publish_partial_dq(buffers, place.dq_rings, own_dq<C>(r));
    else
        finish_dq(r, buffers, place, block, args);
}

/* Some time after dQ of `block` was handed on: where it was given to TMA, it has been read, and the next sums may come. */
template <class C>
__device__ __forceinline__ void dq_stored(Hd128Shared<C> &shared, Hd128Place<C> &place, int block,
                                          const KernelArgs &args) {
    if (!adds_last(place, block, args)) return;
    wait_stored();
    release_dq_sums(shared.dq_buffers[place.warpgroup], place.dq_rings);
}

/* With nothing else under way, in a warpgroup that may not have waited for the other tile's K. */
template <class C>
__device__ __forceinline__ void drain_dq(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                         int block, const KernelArgs &args) {
    if (C::PAIRED) shared.other_k_ring.wait(place.own);
    shared.ds_ring.wait(place.ds_at(block, place.step - 1));
    wgmma_fence();
    multiply_dq(r, shared, place, place.ds_at(block, place.step - 1));
    wgmma_wait<0>();
    hand_on_dq(r, shared, place, block, place.step - 1, args);
    dq_stored(shared, place, block, args);
}

/* ---- what leaves by TMA ---- */

/* TMA has read what a warpgroup left in a stage. Every thread arrives, for every thread wrote there. */
__device__ __forceinline__ void release_stored(RingBarriers<1> &ring) {
    wait_stored();
    mbarrier_arrive(shared_address(&ring.empty[0]));
}

/* 1-CTA: TMA has read dK of the tile before: the warpgroup may write dS again, where it left from. */
template <class C> __device__ __forceinline__ void dk_stored(const Hd128Place<C> &place) {
    wait_stored();
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup);
}

/* ---- blocks of queries ---- */

/* P, dV and dS of the block in work; dV stays under way. meanwhile: done beside dP and dV. */
template <class C, bool DIAGONAL, class Meanwhile>
__device__ __forceinline__ void block_scores(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                             const KernelArgs &args, Meanwhile meanwhile) {
    const Ring<C::STAGES> q_at = place.q_at();
    const Ring<2> dout_at = place.dout_at();
    const uint32_t q = uniform_descriptor(shared_address(shared.q[q_at.stage]));
    const uint32_t dout = uniform_descriptor(shared_address(shared.dout[dout_at.stage]));
    const uint32_t lse_d = uniform_descriptor(shared_address(shared.lse_d[q_at.stage]));
    shared.q_ring.wait(q_at);
    wgmma_fence();
    multiply_s(r, place, q, lse_d);
    shared.dout_ring.wait(dout_at);
    wgmma_fence();
    multiply_scores<C>(r.dp, place.v_rows(), dout, place.ones[1], lse_d);
    draw_block(r, place.mask, args.dropout);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (C::SPARSE ? place.diagonal : DIAGONAL) mask_queries(r);
    mask_queries_behind(r, place.ends);
    key_probabilities(r, args.base.scale_log2, place.mask, args.dropout);
    drop_p(r, place.mask, args.dropout, shared.lse_d[q_at.stage]);
    wgmma_fence();
    multiply_gradient<C>(r.dv, r.p, shared.dout[dout_at.stage]);
    meanwhile();
    wgmma_wait<1>();
    wgmma_results(r.dp);
    key_scores(r, shared.lse_d[q_at.stage]);
}

/* When dV is done: P and dO are no longer needed. When dK is: dS and Q. */
template <class C>
__device__ __forceinline__ void dv_done(KeyRows<C> &r, Hd128Shared<C> &shared, const Hd128Place<C> &place) {
    wgmma_results(r.dv);
    wgmma_results(r.p);
    release<C>(shared.dout_ring, place.dout_at());
}
template <class C>
__device__ __forceinline__ void dk_done(KeyRows<C> &r, Hd128Shared<C> &shared, const Hd128Place<C> &place) {
    wgmma_results(r.dk);
    wgmma_results(r.ds);
    release<C>(shared.q_ring, place.q_at());
}

/* A block of queries that see none of the warpgroup's keys, the first of a tile: its dS is 0. */
template <class C>
__device__ __forceinline__ void pass_block(Hd128Shared<C> &shared, Hd128Place<C> &place, int block) {
    const uint32_t zeros[WG_ROWS / 16][4] = {};
    shared.q_ring.wait(place.q_at());
    release<C>(shared.q_ring, place.q_at());
    shared.dout_ring.wait(place.dout_at());
    release<C>(shared.dout_ring, place.dout_at());
    store_or_send_ds(zeros, shared, place, block);
}

/* The same, any block of a pair's. */
template <class C>
__device__ __forceinline__ void skip_block(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                           int block, int cluster_first, const KernelArgs &args) {
    const uint32_t zeros[WG_ROWS / 16][4] = {};
    const bool owned = place.owns(block);
    const Ring<C::STAGES> q_at = place.q_at();
    const Ring<2> dout_at = place.dout_at();
    shared.q_ring.wait(q_at);
    release<C>(shared.q_ring, q_at);
    shared.dout_ring.wait(dout_at);
    release<C>(shared.dout_ring, dout_at);
    store_or_send_ds(zeros, shared, place, block);
    if (!owned && block > cluster_first) drain_dq(r, shared, place, block - 1, args);
    place.advance();
}

/* A block of queries behind one that sees the warpgroup's keys, and does not. Computes dQ of the block before. */
template <class C>
__device__ __forceinline__ void trailing_block(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                               int block, const KernelArgs &args) {
    pass_block(shared, place, block);
    if (!C::PAIRED || !place.owns(block)) drain_dq(r, shared, place, block_before(place, block), args);
}

/* The warpgroup's first block of a tile; it lies on the diagonal if causal. */
template <class C>
__device__ __forceinline__ void first_block(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                            int block, int cluster_first, const KernelArgs &args) {
    const bool late_dq = !C::PAIRED || !place.owns(block);
    clear_gradients(r);
    shared.v_ring.wait(place.own);
    block_scores<C, C::CAUSAL>(r, shared, place, args, [] {});
    store_or_send_ds(r.ds, shared, place, block);
    wgmma_fence();
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q_at().stage]);
    wgmma_wait<0>();
    dv_done(r, shared, place);
    dk_done(r, shared, place);
    if (C::PAIRED) shared.other_k_ring.wait(place.own); /* for all products dQ of the tile */
    if (late_dq && block > cluster_first) drain_dq(r, shared, place, block_before(place, block), args);
}

/* Any other block. 2-CTA: one that this thread block does not own. Computes dQ of the block before. */
template <class C>
__device__ __forceinline__ void next_block(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                           int block, const KernelArgs &args) {
    const int before = block_before(place, block);
    const auto wait_ds = [&] { shared.ds_ring.wait(place.ds_at(before, place.step - 1)); };
    if constexpr (C::PAIRED) {
        block_scores<C, false>(r, shared, place, args, wait_ds);
        send_ds(r.ds, shared, place, block);
    } else {
        block_scores<C, false>(r, shared, place, args, [] {});
        store_ds(r.ds, shared, place, block);
        wait_ds();
    }
    wgmma_fence();
    multiply_dq(r, shared, place, place.ds_at(before, place.step - 1));
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q_at().stage]);
    wgmma_wait<2>();
    dv_done(r, shared, place);
    wgmma_wait<1>();
    hand_on_dq(r, shared, place, before, place.step - 1, args);
    wgmma_wait<0>();
    dk_done(r, shared, place);
    dq_stored(shared, place, before, args);
}

/* 2-CTA: one that it owns, so dQ of the block before is the other's. */
template <class C>
__device__ __forceinline__ void owned_block(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                            int block, const KernelArgs &args) {
    block_scores<C, false>(r, shared, place, args, [] {});
    wgmma_fence();
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q_at().stage]);
    store_ds(r.ds, shared, place, block);
    wgmma_wait<1>();
    dv_done(r, shared, place);
    wgmma_wait<0>();
    dk_done(r, shared, place);
}
