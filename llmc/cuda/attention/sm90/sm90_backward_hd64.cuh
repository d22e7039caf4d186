/* Attention backward for sm_90a, head sizes 64 and 80 (see sm90_backward.cuh for the math and the augmented step).
 *
 * A tile is 128 keys, 64 for each of two warpgroups that keep dK and dV in registers and walk the blocks of
 * 64 queries from the diagonal on, multiplying one after the other; dS^T also goes through shared memory to a
 * third warpgroup, which computes the block's partial dQ = dS K. The tiles of a head add theirs in a fixed order
 * (sm90_dq_semaphore.cuh), so every bit is fixed. Of the fourth warpgroup one thread loads; the reducers are one thread
 * for each buffer of partial dQ. dK and dV leave by TMA while the next tile is under way: dV from where V was, dK as
 * well or, in the causal 1-CTA kernel of 64, from a buffer of its own.
 *
 * For short T a causal tile has 2 to 16 blocks, and in the first of them only 64 of its keys have work. So the two
 * warpgroups exchange halves from tile to tile (half_of), and ping-pong never idles: 64 sequences
 * of 1024 with 12 heads take 656 to 637 us in a training step.
 *
 * For long T, thread blocks form clusters of two, which own pairs of tiles (sm90_backward_tiles.cuh): one producer, in the
 * first, loads Q and dO for both by multicast, and a thread of each its own K and V. The first two blocks of a causal
 * pair are tile 2p's alone: tile 2p + 1 lets them pass, or all of them if it is beyond the sequence. Nothing waits in a
 * circle: tile 2p waits for tile 2p + 1 only when it has released that block's stage and those of the
 * next two, and all other waits are for pairs drawn earlier.
 *
 * Head size 80 has its rows in tiles of 16 columns: so 221 KB hold all; in tiles of 64 columns it would not fit. dK and dV
 * take the registers that K has at 64, so all of S's operands come from shared memory. For as many products it takes 1.00
 * to 1.06 times as long as 64. */
#pragma once
#include "sm90_keys.cuh"
#include "sm90_backward_tiles.cuh"

/* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag (not used) */
constexpr Sm90Shape HD64_SHAPES[2 /* DK_HAS_PLACE */] = {
    {2, 64, 5, 2, 208, 32, false},
    {2, 64, 4, 2, 208, 32, false},
};
constexpr Sm90Shape HD80_SHAPE = {2, 64, 3, 2, 208, 24, false}; /* a reducer spills 8 bytes */
enum {
    DQ_BUFFERS = 2, /* a third gains nothing that can be measured */
};

/* dQ of tile 0 leaves by TMA up to T = 1k, +5 %; without clusters it loses 3 % from 4k to 16k (2k was not noted). Up to
 * T = 1k halves are exchanged as well. */
enum { TMA_UP_TO = 1024 };

/* TMA: dQ of tile 0 leaves by TMA, and tiles alone exchange halves; at head size 80 it always leaves so, and TMA is the exchange
 * alone. PAIRED: pairs of tiles in clusters. What is faster differs with T: TMA_UP_TO, and
 * the table in dispatch.cu. */
template <bool IS_CAUSAL, bool TMA, bool PAIRED, int HEAD = 64> struct Hd64Config : Sm90Roles {
    /* dK has a buffer of its own while it leaves. Else it follows dV through V's place: a tile ends later, but there
     * is room for a fifth stage of queries. That takes 2 to 3 % off the clocks without a mask from T = 8k on (nothing
     * below), 1 % in causal pairs, and would add 2 % to causal tiles alone at T = 2k. */
    static constexpr bool DK_HAS_PLACE = IS_CAUSAL && !PAIRED && HEAD == 64;
    static constexpr Sm90Shape SHAPE = HEAD == 64 ? HD64_SHAPES[DK_HAS_PLACE] : HD80_SHAPE;
    static constexpr int ATOM_COLUMNS = HEAD == 64 ? SW128_COLUMNS : SW32_COLUMNS;
    static constexpr int DQ_REGISTERS = HEAD == 64 ? 64 : 72; /* of the third warpgroup */
    static constexpr int HD = HEAD, WARPGROUPS = SHAPE.warpgroups, STAGES = SHAPE.stages,
                         OWN = SHAPE.own_buffers;
    static constexpr bool CAUSAL = IS_CAUSAL, DQ_BY_TMA = TMA || HEAD != 64;
    /* Of halves, see half_of: 3 % at T = 1k in training steps; long tiles gain nothing, and at T = 16k lose 2 %. */
    static constexpr bool EXCHANGE = TMA && !PAIRED;
    static constexpr bool K_IN_REGISTERS = HEAD == 64;      /* of 64: 208 hold no more; of 80: none */
    static constexpr bool RANGES = false;                   /* a mask: tiles end before the sequence does */
    static constexpr bool TURNS = false;                    /* turned */
    static constexpr bool SPARSE = false;                   /* a mask: a list of blocks of queries */
    static constexpr bool DROPS = false, KEY_PAIRS = false; /* WithDropout */
    static constexpr bool KEEPS_MASKS = true;               /* of dropout */
    static constexpr int CLUSTER = PAIRED ? 2 : 1, ADDED_TILES = 1;
    static constexpr int TILE_ROWS = WARPGROUPS * WG_ROWS, THREADS = (WARPGROUPS + 2) * WARPGROUP;
    static constexpr int TILE_BYTES = WG_ROWS * HD * 2, LSE_D_BYTES = WG_ROWS * sizeof(LseDRow);
    static constexpr int DS_BYTES = TILE_ROWS * WG_ROWS * 2;
    static_assert(SHAPE.columns == WG_ROWS && TILE_ROWS == 2 * WG_ROWS,
                  "blocks and tiles of the turns below");
    static_assert(!EXCHANGE || (CAUSAL && OWN == 2), "half_of");
    static_assert(WARPGROUPS * SHAPE.registers + DQ_REGISTERS + SHAPE.producer_registers <= 65536 / WARPGROUP,
                  "setmaxnreg");
};

/* More than the blocks by which tile 2p + 1 can be ahead, 9. While a reducer of tile 2p waits, there are three blocks of
 * partial dQ (two in buffers, one in registers), three of dS (two in the ring, one in registers) and up to four of queries
 * (five stages, one of which the last block still holds). */
enum { PAIR_BARRIERS = 16 };

template <class C> struct alignas(1024) Hd64Shared {
    typedef Ring<C::STAGES> QueriesAt;
    struct {
        uint8_t k[C::WARPGROUPS][C::TILE_BYTES], v[C::WARPGROUPS][C::TILE_BYTES];
    } own[C::OWN];
    uint8_t ds[2][C::DS_BYTES];                                     /* dS^T: 128 keys x 64 queries */
    uint8_t dk[C::DK_HAS_PLACE ? C::WARPGROUPS : 0][C::TILE_BYTES]; /* dK on its way out */
    DqBuffers<DQ_BUFFERS, C::DQ_BY_TMA ? 32 : WARPGROUP, C::HD> dq_buffers;
    QueryStages<C> queries;
    RingBarriers<C::OWN> own_ring;
    RingBarriers<2> ds_ring;
    Work work[C::OWN];
    DropoutMatrix masks[C::DROPS ? C::OWN : 0];
    NextWork next;
    uint64_t pair_barriers[PAIR_BARRIERS];
};

__device__ unsigned hd64_tickets;

/* ---- producers ---- */

template <class C>
__device__ __forceinline__ void load_keys(Hd64Shared<C> &shared, Ring<C::OWN> at, const Work &work,
                                          const KernelArgs &args) {
    const int row0 = work.tile * C::TILE_ROWS;
    shared.own_ring.wait_free(at);
    shared.work[at.stage] = work;
    if constexpr (C::DROPS)
        shared.masks[at.stage] = head_mask(args.dropout, work.batch * args.base.NH + work.head);
    const uint32_t full = shared.own_ring.expect(at, 2 * C::WARPGROUPS * C::TILE_BYTES);
    auto &own = shared.own[at.stage];
    for (int i = 0; i < C::WARPGROUPS; i++) {
        if constexpr (C::KEY_PAIRS) {
            const int64_t row = (int64_t)work.batch * args.base.T + row0 + i * WG_ROWS;
            load_key_pairs<C>(own.k[i], args.keys, row, args.base.NH + work.head, full);
            load_key_pairs<C>(own.v[i], args.keys, row, 2 * args.base.NH + work.head, full);
        } else {
            tma_load_5d(shared_address(own.k[i]), &args.base.rows, 0, row0 + i * WG_ROWS, 0,
                        args.base.NH + work.head, work.batch, full);
            tma_load_5d(shared_address(own.v[i]), &args.base.rows, 0, row0 + i * WG_ROWS, 0,
                        2 * args.base.NH + work.head, work.batch, full);
        }
    }
}

template <class C>
__device__ __forceinline__ void load_queries(Hd64Shared<C> &shared, Ring<C::STAGES> &at, const Work &work,
                                             int row0, const KernelArgs &args) {
    if constexpr (C::SPARSE)
        load_visits(shared.queries, at, work, args.sparse, args.base);
    else
        load_queries(shared.queries, at, work, row0, args.seen, args.base);
}

/* ---- the warpgroups that own keys ---- */

/* The first block of queries that is loaded for a tile: for both of a pair that of the first. */
template <class C> __device__ __forceinline__ int first_loaded(const Work &work, int T) {
    return first_queries<C>((work.tile & ~(C::CLUSTER - 1)) * C::TILE_ROWS, T);
}

/* Which half of a tile's keys is the warpgroup's own; stage: of the tile's K and V, which changes from tile to tile.
 * The first half has one block of queries more than the second, so its owner is first in the ping-pong and
 * the last, and where halves are exchanged it owns the second half of the next tile. */
template <class C> __device__ __forceinline__ int half_of(int warpgroup, int stage) {
    return C::EXCHANGE ? warpgroup ^ stage : warpgroup;
}

/* Where the lane writes dS^T of its half, in the first stage. */
template <class C> __device__ __forceinline__ uint32_t ds_row(Hd64Shared<C> &shared, int half) {
    const int row = half * WG_ROWS + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 16;
    return shared_address(shared.ds[0]) + row * 128;
}

/* Tells the dQ warpgroup that dS^T of the block is there. That warpgroup makes the writes visible to its product (the
 * fence), for it has time: a fence here, before the arrival, took 2 % of the clocks. */
template <class C> __device__ __forceinline__ void signal_ds(Hd64Shared<C> &shared, KeyPlace<C> &place) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(shared_address(&shared.ds_ring.full[ring_after(place.ds_blocks).stage]));
    place.ds_blocks++;
}

/* Writes dS^T of the warpgroup's keys for the dQ warpgroup. */
template <class C>
__device__ __forceinline__ void store_ds(const uint32_t (&ds)[WG_ROWS / 16][4], Hd64Shared<C> &shared,
                                         KeyPlace<C> &place) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
    const Ring<2> at = ring_after(place.ds_blocks);
    const uint32_t to = place.ds + at.stage * C::DS_BYTES;
    shared.ds_ring.wait_free(at);
#pragma unroll
    for (int i = 0; i < WG_ROWS / 16; i++) stmatrix_x4(to + ((2 * i + lane / 16) ^ (row & 7)) * 16, ds[i]);
    signal_ds(shared, place);
}

/* Blocks of queries that see none of the warpgroup's keys. */
template <class C>
__device__ __forceinline__ void skip_queries(Hd64Shared<C> &shared, KeyPlace<C> &place, Ring<C::STAGES> &at,
                                             int count) {
    for (int i = 0; i < count; i++, at.advance()) {
        shared.queries.ring.wait(at);
        if (!C::EXCHANGE) {
            pingpong_wait(place);
            pingpong_pass(place);
        }
        release<C>(shared.queries.ring, at);
        shared.ds_ring.wait_free(ring_after(place.ds_blocks));
        signal_ds(shared, place);
    }
}

/* The tile before: its last block's gradients are still to be multiplied, or dK and dV on their way out. Its
 * stage of K and V is free when TMA has read what leaves by V's place; only dK waits, for dV, where it follows. */
struct TileBefore {
    Work work; /* index -1: there is none */
    bool leaving;
};

/* Queues dK and dV of the tile before. stage: its own. */
template <class C>
__device__ __forceinline__ void store_gradients(const KeyRows<C> &r, Hd64Shared<C> &shared, int stage,
                                                TileBefore &before, int warpgroup, const KernelArgs &args) {
    const int half = half_of<C>(warpgroup, stage), NH = args.base.NH;
    const int row0 = before.work.tile * C::TILE_ROWS + half * WG_ROWS;
    const uint32_t v = shared_address(shared.own[stage].v[half]);
    /* In tiles of 16 columns a warp's part of V's place has rows of the others, which must have multiplied by them. */
    if (C::ATOM_COLUMNS == SW32_COLUMNS) named_barrier_sync<WARPGROUP>(3 + warpgroup);
    queue_key_rows<C>(args.gradients, v, r.dv, C::DROPS ? args.dropout.kept_scale : 1.0f, 2, before.work,
                      row0, NH);
    if (!C::DK_HAS_PLACE) wait_stored();
    queue_key_rows<C>(args.gradients, C::DK_HAS_PLACE ? shared_address(shared.dk[warpgroup]) : v, r.dk,
                      args.base.scale, 1, before.work, row0, NH);
    before.leaving = true;
}

/* stage: of the tile before. */
template <class C>
__device__ __forceinline__ void release_stored(Hd64Shared<C> &shared, int stage, TileBefore &before) {
    if (!before.leaving) return;
    wait_stored();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.own_ring.empty[stage]));
    before.leaving = false;
}

/* A tile's first block of queries, with what is left to do of the tile before. */
template <class C>
__device__ __forceinline__ void open_tile(KeyRows<C> &r, Hd64Shared<C> &shared, KeyPlace<C> &place,
                                          Ring<C::STAGES> at, int stage, TileBefore &before,
                                          const KernelArgs &args) {
    const bool alone = before.work.index < 0;
    if (alone) {
        place.at = at;
        first_queries_block(r, shared.queries, place, args.base.scale_log2, args.dropout);
    } else {
        next_tile_block(r, shared.queries, place, at, args.base.scale_log2, args.dropout);
    }
    store_ds(r.ds, shared, place);
    if (alone) return;
    store_gradients(r, shared, stage ^ 1, before, place.warpgroup, args);
    clear_gradients(r);
}

/* Its other blocks. */
template <class C, bool RAGGED>
__device__ __forceinline__ void walk_queries(KeyRows<C> &r, Hd64Shared<C> &shared, KeyPlace<C> &place,
                                             int block, int stage, TileBefore &before,
                                             const KernelArgs &args) {
#pragma unroll 1
    for (; block < args.dq_sums.blocks; block++) {
        next_queries_block<C, RAGGED>(r, shared.queries, place, args.base.scale_log2, args.dropout);
        store_ds(r.ds, shared, place);
        release_stored(shared, stage ^ 1, before);
    }
    release_stored(shared, stage ^ 1, before); /* if there was no other block */
}

/* The tile before, where there is no next one to open. */
template <class C>
__device__ __forceinline__ void close_tile(KeyRows<C> &r, Hd64Shared<C> &shared, KeyPlace<C> &place,
                                           int stage, TileBefore &before, int warpgroup,
                                           const KernelArgs &args) {
    if (before.work.index < 0) return;
    last_gradients(r, shared.queries, place);
    store_gradients(r, shared, stage, before, warpgroup, args);
    release_stored(shared, stage, before);
    before.work.index = -1;
}

template <class C>
__device__ __forceinline__ void hd64_keys(Hd64Shared<C> &shared, const KernelArgs &args, int warpgroup) {
    const int T = args.base.T, blocks = args.dq_sums.blocks;
    static_assert(C::OWN == 2, "the stage of the tile before is the other one");
    Ring<C::OWN> own_at;
    Ring<C::STAGES> at; /* the next block of queries */
    KeyPlace<C> place;
    KeyRows<C> r;
    place.warpgroup = warpgroup;
    place.ds_blocks = 0;
    if constexpr (C::DROPS) place.mask.begin_thread();
    if (warpgroup == 1) pingpong_pass(place); /* the other is the first */
    TileBefore before = {{-1}, false};
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work[own_at.stage]);
        if (work.index < 0) break;
        const int stage = own_at.stage, half = half_of<C>(warpgroup, stage);
        const int row0 = work.tile * C::TILE_ROWS + half * WG_ROWS;
        const int first = first_queries<C>(row0, T), loaded = first_loaded<C>(work, T);
        if (first == blocks) { /* first the tile before: it holds a stage of queries that comes round again */
            close_tile(r, shared, place, stage ^ 1, before, warpgroup, args);
            skip_queries(shared, place, at, blocks - loaded);
            shared.own_ring.release(own_at);
            continue;
        }
        if (C::CLUSTER > 1 && first - loaded >= C::STAGES - 1) /* it comes round here, too */
            close_tile(r, shared, place, stage ^ 1, before, warpgroup, args);
        skip_queries(shared, place, at, first - loaded);
        place.k = shared_address(shared.own[stage].k[half]);
        place.ds = ds_row(shared, half);
        if constexpr (C::K_IN_REGISTERS) load_fragments(r.k, place.k);
        write_bias(r, row0, T);
        if constexpr (C::DROPS) place.mask.begin_tile(shared.masks[stage], row0, first * WG_ROWS);
        open_tile(r, shared, place, at, stage, before, args);
        if (C::CAUSAL || row0 + WG_ROWS <= T)
            walk_queries<C, false>(r, shared, place, first + 1, stage, before, args);
        else
            walk_queries<C, true>(r, shared, place, first + 1, stage, before, args);
        at = place.at.next();
        before.work = work;
    }
    close_tile(r, shared, place, own_at.stage ^ 1, before, warpgroup, args);
}

/* ---- the warpgroup that computes dQ ---- */

/* dQ of the block = dS K over the first K_STEPS * 16 keys. */
template <class C, int K_STEPS>
__device__ __forceinline__ void multiply_ds(float (&dq)[C::HD / 2], uint32_t ds, uint32_t k) {
    constexpr int ROW = C::ATOM_COLUMNS * 2; /* bytes */
    const uint64_t a = descriptor_mn_major(ds, 0),
                   b = descriptor_mn_major<C::ATOM_COLUMNS>(k, C::HD > C::ATOM_COLUMNS ? WG_ROWS * ROW : 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < K_STEPS; i++) {
        if (i == 0)
            wgmma<D_SET, B_MN_MAJOR, 1>(dq, a, b);
        else
            wgmma<D_ADD, B_MN_MAJOR, 1>(dq, a + i * (2048 >> 4),
                                        b + i / 4 * (C::TILE_BYTES >> 4) + i % 4 * (16 * ROW >> 4));
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(dq);
}

/* The same where masks decide which half of the tile's keys the block sees: both, or `half` alone. */
template <class C>
__device__ __forceinline__ void multiply_seen_ds(float (&dq)[C::HD / 2], uint32_t ds, uint32_t k, bool both,
                                                 int half) {
    if (both)
        multiply_ds<C, C::TILE_ROWS / 16>(dq, ds, k);
    else
        multiply_ds<C, WG_ROWS / 16>(dq, ds + half * (WG_ROWS * 128), k + half * C::TILE_BYTES);
}

/* Writes dQ of a block of queries. */
template <class C>
__device__ __forceinline__ void store_dq(const float (&dq)[C::HD / 2], const Work &work, int block,
                                         const BackwardArgs &args) {
    const int64_t stride = 3 * (int64_t)args.NH * C::HD;
    const float factor[2] = {args.scale, args.scale};
    const int row0 = block * WG_ROWS;
    store_rows(args.dqkv + ((int64_t)work.batch * args.T + row0) * stride + work.head * C::HD, stride,
               args.T - row0, dq, factor);
}

/* dQ of the block, from the own part of the tile that adds last and the sums of the others; partials: of all. */
template <class C>
__device__ __forceinline__ void finish_dq(Hd64Shared<C> &shared, DqRings<DQ_BUFFERS> &at,
                                          float (&dq)[C::HD / 2], const Work &work, int block, int partials,
                                          const KernelArgs &args) {
    if constexpr (C::DQ_BY_TMA) {
        const float scale[2] = {args.base.scale, args.base.scale};
        add_dq_sums(shared.dq_buffers, at, dq, partials);
        __syncwarp(); /* all lanes have read the sums where the result goes now */
        tma_store_rows<C::ATOM_COLUMNS>(&args.dq, shared_address(shared.dq_buffers.part(at.sums.stage)), dq,
                                        scale, block * WG_ROWS + threadIdx.x % WARPGROUP / 32 * 16, work.head,
                                        work.batch);
    } else {
        add_and_release_dq_sums(shared.dq_buffers, at, dq, partials);
        store_dq<C>(dq, work, block, args.base);
    }
}

/* Some time after finish_dq: TMA has read it, and the next sums may come. */
template <class C> __device__ __forceinline__ void dq_stored(Hd64Shared<C> &shared, DqRings<DQ_BUFFERS> &at) {
    if (!C::DQ_BY_TMA) return;
    wait_stored();
    release_dq_sums(shared.dq_buffers, at);
}

template <class C> __device__ __forceinline__ void hd64_dq(Hd64Shared<C> &shared, const KernelArgs &args) {
    const int T = args.base.T;
    Ring<C::OWN> own_at;
    Ring<2> at;
    DqRings<DQ_BUFFERS> dq_rings;
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work[own_at.stage]);
        if (work.index < 0) break;
        const int row0 = work.tile * C::TILE_ROWS, first = first_queries<C>(row0, T);
        const uint32_t k = shared_address(shared.own[own_at.stage].k);
#pragma unroll 1
        for (int block = first_loaded<C>(work, T); block < args.dq_sums.blocks; block++, at.advance()) {
            float dq[C::HD / 2];
            const uint32_t ds = shared_address(shared.ds[at.stage]);
            shared.ds_ring.wait(at);
            fence_proxy_async(); /* dS^T, which the other warpgroups have written */
            if (C::CLUSTER > 1 && block < first) {
                shared.ds_ring.release(at);
                continue;
            }
            if (work.tile == 0 && block > 0) dq_stored(shared, dq_rings);
            if ((C::CAUSAL && block == first) || row0 + WG_ROWS >= T) /* only the first warpgroup's keys */
                multiply_ds<C, WG_ROWS / 16>(dq, ds, k);
            else
                multiply_ds<C, C::TILE_ROWS / 16>(dq, ds, k);
            shared.ds_ring.release(at);
            if (work.tile == 0)
                finish_dq(shared, dq_rings, dq, work, block, partials_of<C>(args, work.tile, block), args);
            else
                publish_partial_dq(shared.dq_buffers, dq_rings, dq);
        }
        if (work.tile == 0) dq_stored(shared, dq_rings);
        shared.own_ring.release(own_at);
    }
}

/* ---- kernel and launch ---- */

template <class C> struct Hd64Kernel : C {
    typedef Hd64Shared<C> Shared;
    typedef KernelArgs Args;
    static constexpr int ASSISTANT_REGISTERS = C::DQ_REGISTERS;

    static __device__ __forceinline__ void write_constants(Shared &shared) {
        ::write_constants(shared.queries);
    }
    static __device__ __forceinline__ void init(Shared &shared) {
        shared.own_ring.init(4 * (C::WARPGROUPS + 1) + DQ_BUFFERS);
        shared.queries.ring.init(C::CLUSTER * 4 * C::WARPGROUPS);
        shared.ds_ring.init(4, 4 * C::WARPGROUPS);
        shared.dq_buffers.init();
        if (C::CLUSTER > 1) {
            shared.next.ring.init(C::CLUSTER);
            for (uint64_t &barrier : shared.pair_barriers) mbarrier_init(shared_address(&barrier), 1);
        }
    }
    static __device__ __forceinline__ void produce(Shared &shared, const Args &args, int warp) {
        if (warp == 0 && (C::CLUSTER == 1 || cluster_rank() == 0))
            produce_tiles<C>(shared, args, &hd64_tickets);
        if (C::CLUSTER > 1 && warp == 3) produce_keys<C>(shared, args, [](const Work &) {});
        if (warp >= 1 && warp <= DQ_BUFFERS)
            reduce_dq<C>(shared, shared.dq_buffers, warp - 1, 0, args, semaphore_of<C>(shared.pair_barriers));
    }
    static __device__ __forceinline__ void assist(Shared &shared, const Args &args) { hd64_dq(shared, args); }
    static __device__ __forceinline__ void consume(Shared &shared, const Args &args, int warpgroup) {
        hd64_keys(shared, args, warpgroup);
    }
};

template <bool CAUSAL, bool TMA, bool PAIRED, int HEAD>
__global__ void __launch_bounds__(Hd64Config<CAUSAL, TMA, PAIRED, HEAD>::THREADS, 1)
    sm90_backward_hd64_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd64Kernel<Hd64Config<CAUSAL, TMA, PAIRED, HEAD>>>(args);
}

template <bool CAUSAL, bool TMA, bool PAIRED, int HEAD = 64>
static void backward_hd64(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                          const float *lse, const float *d, void *scratch, int B, int T, int NH) {
    using C = Hd64Config<CAUSAL, TMA, PAIRED, HEAD>;
    const KernelArgs args =
        kernel_args<HEAD, false, C::ATOM_COLUMNS>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, CAUSAL);
    launch_one_pass<C, Hd64Shared<C>>("sm90_backward_hd64_kernel",
                                      sm90_backward_hd64_kernel<CAUSAL, TMA, PAIRED, HEAD>, args);
}
