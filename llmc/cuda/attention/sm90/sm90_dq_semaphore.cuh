/* Ordered accumulation of dQ: the tiles of a head add their partial dQ in an order that never changes (dQ semaphore).
 *
 * In one-pass backward a tile is 128 keys. dQ of a block of 64 queries is the sum of the partial dQ of all tiles whose
 * keys the block sees. The tiles add in descending order of their keys:
 *
 *   the first stores its partial dQ as fp32 sums, in the order of the accumulators: nothing has to be cleared;
 *   the next ones add to them, by bulk reductions in L2;
 *   the last, tile 0, fetches the sums, adds its own part in registers, rounds and writes bf16 dQ.
 *
 * A block that only tile 0 sees never touches memory but for the result. Each block has a semaphore, the number of tiles
 * that have added. A tile waits until the number is its own place in the order; it adds one when its bulk copy, or tile
 * 0's fetch, is complete. Sums and semaphores lie in one of `slots` slots, which heads use one after another. Numbers run
 * on from head to head, so a head's first tile waits for the fetch of the head before it in the slot.
 *
 * 2-CTA clusters. At head size 64 each tile adds, and those of a pair hand over by a barrier (sm90_backward_tiles.cuh). At
 * 128 a pair adds once, C::ADDED_TILES tiles together; each of its two thread blocks does so for every second block of
 * queries (sm90_backward_hd128.cu).
 *
 * The wait is normally over when it begins: not waiting at all gains 3 % at most. Causal tiles start at their diagonal, two
 * blocks apart, so a tile reaches a block two blocks after the one before it. That is enough for a reduction, a fence and a
 * poll. A thread block draws a tile only when it is about to start it, the shortest first, so tiles start in the order in
 * which they add. Every wait is then for a tile drawn before, so nothing waits in a circle. (But for the last wave, `turned`
 * in sm90_backward_tiles.cuh, whose tiles all run at once.)
 *
 * L2 working set. Tiles start two query blocks apart, so between the oldest and the newest running tile there are 2 * SMs +
 * tiles query blocks whose Q, dO and sums must stay in L2: 33 MB at head size 128, T = 32768.
 *
 * The unit is 64 queries x the columns of a column block. Heads of 64 have one of 64 columns (16 KB), of 80 one of 80, of 96
 * two of 48, of 112 and 128 two of 64. Each has sums and semaphores of its own.
 * Its owner is the warpgroup that computes dQ; its reducers are one thread for each buffer. They share the buffers in two
 * rings: partial dQ from the owner, and sums that the reducer fetches for tile 0. A tile uses one of the two. Both can have
 * the same buffers, because a reducer has all of a buffer's copies in its own order, and every thread of the owner reads
 * and writes its own part. */
#pragma once
#include "llmc/cuda/device/at_once.cuh"
#include "sm90_keys.cuh"

typedef struct DqSums {
    float *sums;          /* (slots, column_blocks, blocks, 64 * columns of a column block) */
    unsigned *semaphores; /* (slots, column_blocks, blocks); 0 at launch */
    int slots;            /* head h of B*NH has slot h % slots */
    int column_blocks;    /* of a head */
    int blocks, tiles;    /* of a head: of 64 queries; that add, of 128 keys or pairs of such */
} DqSums;

/* Of one column block. A reduction (copy, fence, poll) may take as long as BUFFERS steps. SHARING threads have a contiguous part
 * of a buffer: where they are a warp, it can make the part a swizzled tile once it has read the sums there. */
template <int BUFFERS, int SHARING = WARPGROUP, int WIDTH = 64>
struct alignas(SHARING == WARPGROUP ? 128 : 1024) DqBuffers {
    enum {
        COUNT = BUFFERS,
        THREADS = SHARING,
        COLUMNS = WIDTH,
        FLOATS = WG_ROWS * COLUMNS,
        BYTES = FLOATS * 4
    };
    float dq[BUFFERS][FLOATS];
    RingBarriers<BUFFERS> partial, sums;

    __device__ __forceinline__ void init() {
        partial.init(1, 4);   /* one reducer; the owner's four warps */
        sums.init(WARPGROUP); /* every thread of the owner: racecheck knows its reads by its own arrival */
    }
    __device__ __forceinline__ float *part(int stage) {
        return dq[stage] + threadIdx.x % WARPGROUP / THREADS * (FLOATS / WARPGROUP * THREADS);
    }
    __device__ __forceinline__ float4 *place(int stage) {
        return reinterpret_cast<float4 *>(part(stage)) + threadIdx.x % THREADS;
    }
};

/* Where the owner or a reducer is in the rings. */
template <int BUFFERS> struct DqRings { Ring<BUFFERS> partial, sums; };

/* Partial dQ that a block's dQ is the sum of: of tiles, or of C::ADDED_TILES tiles each. */
template <class C> __device__ __forceinline__ int partials_of(const DqSums &dq_sums, int block) {
    return C::CAUSAL ? block / (2 * C::ADDED_TILES) + 1 : dq_sums.tiles;
}

/* What a one-pass kernel is launched with. */
typedef struct KernelArgs {
    BackwardArgs base;
    DqSums dq_sums;
    CUtensorMap gradients, dq; /* boxes of 16 rows of dqkv: of a head; of a column block's columns */
    SeenKeys seen;             /* only where RANGES */
    DropoutArgs dropout;       /* only where DROPS; base.scale is then times kept_scale */
    CUtensorMap second_dq;     /* dQ's columns of the second warpgroup, where a head is no multiple of 64 */
    int last_wave;             /* so many tiles (or pairs) at the end are begun the longest first: turned */
    BlockSparse sparse;        /* only where SPARSE */
    CUtensorMap keys;          /* only where KEY_PAIRS: boxes of 64 rows of qkv, pairs (MapKey) */
} KernelArgs;

/* The same for the tile that adds last, tile 0 but where RANGES: there the lowest that the block sees. */
template <class C> __device__ __forceinline__ int partials_of(const KernelArgs &args, int tile, int block) {
    const int causal = partials_of<C>(args.dq_sums, block);
    return C::RANGES ? causal - tile / C::ADDED_TILES : causal;
}

/* Where RANGES: the blocks of queries that see keys of a tile, or of a pair that adds as one. Of a tile alone, those before
 * first_end see keys of its first half, those behind `first` of its second. Those from `last_from` on see no lower tile or
 * pair, so this one adds last. */
typedef struct TileQueries {
    int first, first_end, end, last_from;
} TileQueries;
template <class C>
__device__ __forceinline__ TileQueries tile_queries(const Work &work, const KernelArgs &args) {
    constexpr int ROWS = C::ADDED_TILES * C::TILE_ROWS;
    const int row0 = work.tile / C::ADDED_TILES * ROWS, blocks = args.dq_sums.blocks;
    return {row0 / WG_ROWS, end_queries<C>(args.seen, work.batch, row0, WG_ROWS, blocks),
            end_queries<C>(args.seen, work.batch, row0, ROWS, blocks),
            row0 == 0 ? 0 : ceil_div(args.seen.end_query(work.batch, row0 - 1), (int)WG_ROWS)};
}

/* ---- the owner: a warpgroup ---- */

/* Hands its partial dQ to the reducer. */
template <class Buffers>
__device__ __forceinline__ void publish_partial_dq(Buffers &buffers, DqRings<Buffers::COUNT> &at,
                                                   const float (&dq)[Buffers::COLUMNS / 2]) {
    float4 *to = buffers.place(at.partial.stage);
    buffers.partial.wait_free(at.partial);
#pragma unroll
    for (int i = 0; i < Buffers::COLUMNS / 8; i++)
        to[i * Buffers::THREADS] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    fence_proxy_async();
    __syncwarp(); /* lane 0's arrival then stands for the writes of all 32 */
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&buffers.partial.full[at.partial.stage]));
    at.partial.advance();
}

/* dq += the sums of all tiles but tile 0. partials: of the block; with one there are no sums. The buffer stays the
 * owner's until release_dq_sums. */
template <class Buffers>
__device__ __forceinline__ void add_dq_sums(Buffers &buffers, DqRings<Buffers::COUNT> &at,
                                            float (&dq)[Buffers::COLUMNS / 2], int partials) {
    const float4 *from = buffers.place(at.sums.stage);
    buffers.sums.wait(at.sums);
    if (partials > 1) {
#pragma unroll
        for (int i = 0; i < Buffers::COLUMNS / 8; i++) {
            const float4 x = from[i * Buffers::THREADS];
            dq[4 * i] += x.x;
            dq[4 * i + 1] += x.y;
            dq[4 * i + 2] += x.z;
            dq[4 * i + 3] += x.w;
        }
    }
}
template <class Buffers>
__device__ __forceinline__ void release_dq_sums(Buffers &buffers, DqRings<Buffers::COUNT> &at) {
    mbarrier_arrive(shared_address(&buffers.sums.empty[at.sums.stage]));
    at.sums.advance();
}

template <class Buffers>
__device__ __forceinline__ void add_and_release_dq_sums(Buffers &buffers, DqRings<Buffers::COUNT> &at,
                                                        float (&dq)[Buffers::COLUMNS / 2], int partials) {
    add_dq_sums(buffers, at, dq, partials);
    release_dq_sums(buffers, at);
}

/* ---- reducers: one thread each ---- */

__device__ __forceinline__ void wait_semaphore(const unsigned *semaphore_at, unsigned value) {
#ifdef BOUNDED_WAIT
    for (int tries = 0; (int)(load_acquire(semaphore_at) - value) < 0; tries++)
        if (tries == 1 << 22) *(volatile int *)0 = 0;
#else
    while ((int)(load_acquire(semaphore_at) - value) < 0) {
    }
#endif
    fence_proxy_async_global(); /* the copies that follow are not ordinary accesses */
}

/* How a reducer waits until it may add to a block, and lets the next one add; or leaves the block to another reducer: by
 * the block's semaphore in device memory. is_first: no tile has added before. */
struct GlobalSemaphore {
    __device__ __forceinline__ void wait(const unsigned *semaphore_at, unsigned value, bool is_first) {
        wait_semaphore(semaphore_at, value);
    }
    __device__ __forceinline__ void signal(unsigned *semaphore_at, bool is_first) {
        add_release(semaphore_at, 1);
    }
    __device__ __forceinline__ void skip(bool is_first) {}
};

/* Adds a partial dQ to the sums, or stores it if it is the first. */
template <class Buffers>
__device__ __forceinline__ void reduce_partial(Buffers &buffers, int buffer, float *sums, bool is_first) {
    const uint32_t partial = shared_address(buffers.dq[buffer]);
    if (is_first)
        bulk_store(sums, partial, Buffers::BYTES);
    else
        bulk_add_f32(sums, partial, Buffers::BYTES);
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(shared_address(&buffers.partial.empty[buffer]));
    bulk_wait<0>();
}

/* A tile: its head has `rounds` heads before it in the slot; first_semaphore: index of the head's first. */
typedef struct DqTile {
    int64_t first_semaphore;
    int rounds, tile, first_block;
} DqTile;

/* All partial dQ of a tile that is not 0, as far as it passes through `buffer`. */
template <class C, class Semaphore, class Buffers>
__device__ __forceinline__ void reduce_partials(Buffers &buffers, Ring<Buffers::COUNT> &at, int buffer,
                                                const DqSums &dq_sums, const DqTile &mine,
                                                Semaphore &semaphore) {
    for (int block = mine.first_block; block < dq_sums.blocks; block += C::ADDED_TILES, at.advance()) {
        const int partials = partials_of<C>(dq_sums, block);
        const bool is_first = mine.tile == partials - 1;
        if (at.stage != buffer) {
            semaphore.skip(is_first);
            continue;
        }
        unsigned *semaphore_at = dq_sums.semaphores + mine.first_semaphore + block;
        semaphore.wait(semaphore_at, mine.rounds * partials + partials - 1 - mine.tile, is_first);
        mbarrier_wait(shared_address(&buffers.partial.full[buffer]), at.parity);
        reduce_partial(buffers, buffer, dq_sums.sums + (mine.first_semaphore + block) * Buffers::FLOATS,
                       is_first);
        semaphore.signal(semaphore_at, is_first);
    }
}

/* The same for tile 0, which is the last at every block. */
template <class C, class Semaphore, class Buffers>
__device__ __forceinline__ void fetch_dq_sums(Buffers &buffers, Ring<Buffers::COUNT> &at, int buffer,
                                              const DqSums &dq_sums, const DqTile &mine,
                                              Semaphore &semaphore) {
    const uint32_t full = shared_address(&buffers.sums.full[buffer]);
    for (int block = mine.first_block; block < dq_sums.blocks; block += C::ADDED_TILES, at.advance()) {
        const int partials = partials_of<C>(dq_sums, block);
        if (at.stage != buffer) {
            semaphore.skip(partials == 1);
            continue;
        }
        unsigned *semaphore_at = dq_sums.semaphores + mine.first_semaphore + block;
        buffers.sums.wait_free(at);
        if (partials == 1) {
            mbarrier_arrive(full);
            continue;
        }
        semaphore.wait(semaphore_at, mine.rounds * partials + partials - 1, false);
        mbarrier_arrive_expect_tx(full, Buffers::BYTES);
        bulk_load(shared_address(buffers.dq[buffer]),
                  dq_sums.sums + (mine.first_semaphore + block) * Buffers::FLOATS, Buffers::BYTES, full);
        mbarrier_wait(full, at.parity);
        semaphore.signal(semaphore_at, false);
    }
}

/* A reducer's part in a tile, or pair: every C::ADDED_TILES-th block from first_block on. head: of B*NH. */
template <class C, class Semaphore, class Buffers>
__device__ __forceinline__ void reduce_tile(Buffers &buffers, DqRings<Buffers::COUNT> &at, int buffer,
                                            const DqSums &dq_sums, int head, int column_block, int tile,
                                            int first_block, Semaphore &semaphore) {
    const DqTile mine = {((int64_t)(head % dq_sums.slots) * dq_sums.column_blocks + column_block) *
                             dq_sums.blocks,
                         head / dq_sums.slots, tile, first_block};
    if (tile == 0)
        fetch_dq_sums<C>(buffers, at.sums, buffer, dq_sums, mine, semaphore);
    else
        reduce_partials<C>(buffers, at.partial, buffer, dq_sums, mine, semaphore);
}

/* A block's sums and semaphore, those of a reducer's column block of a head. */
typedef struct DqPlace {
    int64_t first_semaphore;
    unsigned begin; /* what its semaphores are when the head begins */
} DqPlace;
__device__ __forceinline__ DqPlace dq_place(const DqSums &dq_sums, int head, int column_block) {
    return {((int64_t)(head % dq_sums.slots) * dq_sums.column_blocks + column_block) * dq_sums.blocks,
            (unsigned)(head / dq_sums.slots * dq_sums.tiles)};
}

/* Where tiles are not the last to add to all blocks, or to none: a reducer's part in one block, to which `before` tiles add
 * before. As blocks of different sequences may see different numbers of tiles, a head moves each semaphore on by
 * dq_sums.tiles: the last to add, which has fetched, adds what is missing. */
template <class Buffers>
__device__ __forceinline__ void reduce_block(Buffers &buffers, DqRings<Buffers::COUNT> &at, int buffer,
                                             const DqSums &dq_sums, const DqPlace &place, int block,
                                             int before, bool is_last) {
    unsigned *semaphore_at = dq_sums.semaphores + place.first_semaphore + block;
    float *sums = dq_sums.sums + (place.first_semaphore + block) * Buffers::FLOATS;
    if (!is_last) {
        if (at.partial.stage == buffer) {
            wait_semaphore(semaphore_at, place.begin + before);
            mbarrier_wait(shared_address(&buffers.partial.full[buffer]), at.partial.parity);
            reduce_partial(buffers, buffer, sums, before == 0);
            add_release(semaphore_at, 1);
        }
        at.partial.advance();
        return;
    }
    if (at.sums.stage == buffer) {
        const uint32_t full = shared_address(&buffers.sums.full[buffer]);
        buffers.sums.wait_free(at.sums);
        if (before == 0) {
            mbarrier_arrive(full);
            wait_semaphore(semaphore_at, place.begin);
        } else {
            wait_semaphore(semaphore_at, place.begin + before);
            mbarrier_arrive_expect_tx(full, Buffers::BYTES);
            bulk_load(shared_address(buffers.dq[buffer]), sums, Buffers::BYTES, full);
            mbarrier_wait(full, at.sums.parity);
        }
        add_release(semaphore_at, dq_sums.tiles - before);
    }
    at.sums.advance();
}

/* Where RANGES: a reducer's part in a tile. */
template <class C, class Buffers>
__device__ __forceinline__ void reduce_range(Buffers &buffers, DqRings<Buffers::COUNT> &at, int buffer,
                                             const KernelArgs &args, const Work &work, const DqPlace &place) {
    const TileQueries queries = tile_queries<C>(work, args);
    const int tile = work.tile / C::ADDED_TILES;
    for (int block = queries.first + work.tile % C::ADDED_TILES; block < queries.end; block += C::ADDED_TILES)
        reduce_block(buffers, at, buffer, args.dq_sums, place, block, block / (2 * C::ADDED_TILES) - tile,
                     block >= queries.last_from);
}

/* Where SPARSE. */
template <class Buffers>
__device__ __forceinline__ void reduce_visits(Buffers &buffers, DqRings<Buffers::COUNT> &at, int buffer,
                                              const KernelArgs &args, const Work &work,
                                              const DqPlace &place) {
    const TileVisits visits = tile_visits(args.sparse, work.tile);
#pragma unroll 1
    for (int v = visits.begin; v < visits.end; v++) {
        const SparseVisit visit = args.sparse.visits[v];
        reduce_block(buffers, at, buffer, args.dq_sums, place, visit.block, visit.before,
                     visit.flags & ADDS_LAST);
    }
}

/* ---- D and the semaphores, before the pass ---- */

/* LseDRow of 64 queries of one head, D = rowsum(dO * O), and the semaphores. grid (NH, blocks, B): neighbours
 * read the same rows of dO and O. 256 threads. DROPS: D times `kept`, and that of neighbours. */
template <int HD, bool DROPS>
__global__ void __launch_bounds__(256)
    sm90_lse_d_kernel(LseDRow *lse_d, DqSums dq_sums, const bf16 *dout, const bf16 *out, const float *lse,
                      int T, float inverse_scale, float kept) {
#ifdef SM90_BODY
    enum { LANES = tile_columns(HD) / 8 /* of a row */, STEP = 256 / LANES, N = WG_ROWS / STEP };
    launch_dependents(); /* the pass may be made ready meanwhile */
    const int NH = gridDim.x, lane = threadIdx.x % LANES, row0 = blockIdx.y * WG_ROWS + threadIdx.x / LANES;
    const int64_t head = (int64_t)blockIdx.z * NH + blockIdx.x;
    const int64_t at = (((int64_t)blockIdx.z * T + row0) * NH + blockIdx.x) * HD + lane * 8;
    Vec<bf16> x[N], y[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const bool inside = row0 + i * STEP < T && (HD % 64 == 0 || lane * 8 < HD);
        x[i] = inside ? load_vec(out + at + (int64_t)i * STEP * NH * HD) : Vec<bf16>{};
        y[i] = inside ? load_vec(dout + at + (int64_t)i * STEP * NH * HD) : Vec<bf16>{};
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int row = row0 + i * STEP;
        float d = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) d += to_float(x[i].v[j]) * to_float(y[i].v[j]);
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2)
            d += __shfl_xor_sync(0xffffffffu, d, distance);
        if (DROPS) d *= kept;
        const uint32_t neighbours = DROPS ? neighbours_d(-d, row, LANES) : 0;
        if (lane == 0)
            lse_d[head * padded_rows(T) + row] =
                row < T ? lse_d_row(-lse[head * T + row] * inverse_scale, -d, neighbours) : LseDRow{};
    }
    if (threadIdx.x < dq_sums.column_blocks && head < dq_sums.slots)
        dq_sums.semaphores[(head * dq_sums.column_blocks + threadIdx.x) * dq_sums.blocks + blockIdx.y] = 0;
#else
    __trap(); /* as in the kernels of the pass */
#endif
}

/* The same of all heads where D (B,T,NH) is known. grid (blocks, B). */
template <bool DROPS>
static __global__ void __launch_bounds__(256)
    sm90_lse_known_d_kernel(LseDRow *lse_d, DqSums dq_sums, const float *d, const float *lse, int T, int NH,
                            float inverse_scale, float kept) {
#ifdef SM90_BODY
    launch_dependents();
    const int64_t first_head = (int64_t)blockIdx.y * NH;
    for (int i = threadIdx.x; i < NH * WG_ROWS; i += blockDim.x) {
        const int64_t head = first_head + i / WG_ROWS;
        const int row = blockIdx.x * WG_ROWS + i % WG_ROWS;
        float of_row = row < T ? d[((int64_t)blockIdx.y * T + row) * NH + i / WG_ROWS] : 0.0f;
        if (DROPS) of_row *= kept;
        const uint32_t neighbours = DROPS ? neighbours_d(-of_row, row, 1) : 0;
        lse_d[head * padded_rows(T) + row] =
            row < T ? lse_d_row(-lse[head * T + row] * inverse_scale, -of_row, neighbours) : LseDRow{};
    }
    for (int i = threadIdx.x; i < NH * dq_sums.column_blocks; i += blockDim.x)
        if (first_head + i / dq_sums.column_blocks < dq_sums.slots)
            dq_sums.semaphores[(first_head * dq_sums.column_blocks + i) * dq_sums.blocks + blockIdx.x] = 0;
#else
    __trap();
#endif
}

/* ---- host ---- */

/* From here on HD is tile_columns of the head size. At 80, which has no padding, it is 128 for the plan alone. */

/* The shortest tiles first, in head groups whose Q, dO and sums fit L2. Causal tiles of head size 128 take small
 * groups: at T = 1024 DRAM traffic of a launch fell from 2.33 to 1.88 GB, +3 % in speed, +5 % at 2048. Non-causal tiles of
 * a head start at the same block and must be drawn far apart, or they wait for each other: that takes many heads (small
 * groups at T = 4096: -4 %); head size 64 gains nothing, and at T = 16384 loses 2 %. */
static inline TileOrder backward_order(int B, int T, int NH, int HD, bool causal) {
    const int64_t group_bytes = causal && HD == 128 ? SM90_SMALL_GROUP_BYTES : SM90_GROUP_BYTES;
    return tile_order(B, T, NH, 2 * WG_ROWS, 2 * HD * 2 + sizeof(LseDRow) + HD * 4, true, group_bytes);
}

enum { MOST_SMS = 132 }; /* of any card with these kernels: the plan must not depend on the device */

/* Slots for as many head groups as run at once, three at least: a head that finds its slot taken waits, and with it all
 * that are drawn later. In steps, one for each block of a tile: MOST_SMS draw a causal group in `period`. Its tiles 0 are
 * drawn last; they walk 2 * tiles blocks more, at up to 1.4 steps a block. At head size 64 three groups suffice; the small
 * groups of 128 take four to seven up to T = 16384. */
static inline int dq_slots(const TileOrder &order) {
    const int64_t steps = (int64_t)order.group_heads * order.tiles * (order.tiles + 1);
    const int period = (int)(steps / MOST_SMS) + 1, last = 14 * order.tiles / 5;
    const int groups = 1 + ceil_div(last, period);
    const int slots = (groups < 3 ? 3 : groups) * order.group_heads;
    return slots < order.heads ? slots : order.heads;
}

/* Of a pattern of blocks. A tile at the start of the sequence walks over all blocks of queries, tens of times as many as
 * others, so many heads must be under way: in small groups and few slots, as above, 48 heads of 16k took 2.7 ms for 1.2. The
 * tiles at the start, which are drawn first, never wait for a tile of their group, each of whose heads has a slot. */
static inline TileOrder sparse_order(int B, int T, int NH, int HD) {
    enum { HEADS = 64 };
    TileOrder order = backward_order(B, T, NH, HD, true);
    order.group_heads = order.heads < HEADS ? order.heads : (int)HEADS;
    order.last_head = (ceil_div(order.heads, order.group_heads) - 1) * order.group_heads;
    return order;
}
static inline int sparse_slots(const TileOrder &order) {
    return min(2 * order.group_heads, order.heads);
}

static inline size_t semaphore_bytes(int slots, int T, int HD) {
    return align_256((size_t)slots * (HD / 64) * ceil_div(T, (int)WG_ROWS) * sizeof(unsigned));
}

static inline size_t lse_d_bytes(int B, int T, int NH) {
    return align_256((size_t)B * NH * padded_rows(T) * sizeof(LseDRow));
}

/* The scratch of a one-pass backward: LseDRow, semaphores, sums. Causal or not: the plan does not know. */
static inline size_t backward_scratch_bytes(int B, int T, int NH, int HD, bool sparse = false) {
    const int slots = sparse ? sparse_slots(sparse_order(B, T, NH, HD))
                             : max(dq_slots(backward_order(B, T, NH, HD, false)),
                                   dq_slots(backward_order(B, T, NH, HD, true)));
    return lse_d_bytes(B, T, NH) + semaphore_bytes(slots, T, HD) +
           (size_t)slots * padded_rows(T) * HD * sizeof(float);
}

static inline DqSums dq_sums_in(void *scratch, const TileOrder &order, int slots, int B, int T, int NH,
                                int HD) {
    uint8_t *base = (uint8_t *)scratch + lse_d_bytes(B, T, NH);
    DqSums dq_sums;
    dq_sums.slots = slots;
    dq_sums.semaphores = (unsigned *)base;
    dq_sums.sums = (float *)(base + semaphore_bytes(dq_sums.slots, T, HD));
    dq_sums.column_blocks = HD / 64;
    dq_sums.blocks = ceil_div(T, (int)WG_ROWS);
    dq_sums.tiles = order.tiles;
    return dq_sums;
}

template <int HD, bool DROPS>
static void launch_lse_d(const BackwardArgs &args, const DqSums &dq_sums, const floatX *dout,
                         const floatX *out, const float *lse, const float *d, int B, float kept) {
    if (d)
        sm90_lse_known_d_kernel<DROPS><<<dim3(dq_sums.blocks, B), 256, 0, main_stream>>>(
            args.lse_d, dq_sums, d, lse, args.T, args.NH, args.inverse_scale, kept);
    else
        sm90_lse_d_kernel<HD, DROPS><<<dim3(args.NH, dq_sums.blocks, B), 256, 0, main_stream>>>(
            args.lse_d, dq_sums, (const bf16 *)dout, (const bf16 *)out, lse, args.T, args.inverse_scale,
            kept);
    launch_check("sm90_lse_d_kernel");
}

/* Columns of dQ that the first of two warpgroups computes. 96: half of them. */
constexpr int first_columns(int head_size) {
    return head_size == 96 ? 48 : 64;
}

/* dQ in boxes of 64 columns: of heads of 64, two of them in place of one of 128; or of the two warpgroups' columns of heads
 * as they are (MapKey). */
static inline void make_dq_maps(KernelArgs &args, floatX *dqkv, int B, int T, int NH, int head_size,
                                int box_rows) {
    const int columns = first_columns(head_size);
    if (head_size % 64 == 0) {
        args.dq = tensor_map(dqkv, B, T, 3 * NH * (head_size / 64), 64, box_rows);
        return;
    }
    args.dq = part_map(dqkv, B, T, 3 * NH, head_size, box_rows, columns);
    args.second_dq = part_map((bf16 *)dqkv + columns, B, T, 3 * NH, head_size, box_rows, head_size - columns);
}

/* Fills in the arguments and queues the lse and D kernel that goes before. */
template <int HEAD, bool DROPS = false, int ATOM_COLUMNS = SW128_COLUMNS, bool KEY_PAIRS = false>
static KernelArgs kernel_args(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                              const float *lse, const float *d, void *scratch, int B, int T, int NH,
                              bool causal, const SeenKeys &seen = {}, const DropoutArgs &dropout = {},
                              const BlockSparse &sparse = {}) {
    constexpr int HD = tile_columns(HEAD);
    const bool lists = sparse.pattern.window > 0;
    KernelArgs args = {};
    args.dropout = dropout;
    args.base = backward_args(dqkv, dout, qkv, scratch, B, T, NH, HEAD, ATOM_COLUMNS);
    if (DROPS) args.base.scale *= dropout.kept_scale;
    args.base.order = lists ? sparse_order(B, T, NH, HD) : backward_order(B, T, NH, HD, causal);
    args.dq_sums =
        dq_sums_in(scratch, args.base.order,
                   lists ? sparse_slots(args.base.order) : dq_slots(args.base.order), B, T, NH, HD);
    args.gradients = tensor_map(dqkv, B, T, 3 * NH, HEAD, 16, ATOM_COLUMNS);
    if (ATOM_COLUMNS == SW32_COLUMNS) { /* a head is one column block */
        args.dq_sums.column_blocks = 1;
        args.dq = args.gradients;
    } else {
        make_dq_maps(args, dqkv, B, T, NH, HEAD, 16);
    }
    if (KEY_PAIRS) args.keys = tensor_map(qkv, B, T, 3 * NH, HEAD, WG_ROWS, SW128_COLUMNS, true);
    args.seen = seen;
    args.sparse = sparse;
    launch_lse_d<HEAD, DROPS>(args.base, args.dq_sums, dout, out, lse, d, B, dropout.kept);
    return args;
}

/* TURNS: the last wave, one pair for each cluster, where a head has more than run at once, so that the last ones differ in
 * length as much as they can. (Measured without a mask, launches by themselves: 3 % at T = 32768; 2 % slower at 16384.) All must
 * run at once, and each cluster has had another pair before. */
template <class C, class Shared> static int last_wave(void (*kernel)(KernelArgs), const TileOrder &order) {
    static int at_once = -1; /* of this kernel: C is its own */
    const int clusters = cuda_sm_count() / (int)C::CLUSTER;
    if (!C::TURNS || order.tiles < clusters * 3 / 2 || order.total < 2 * clusters) return 0;
    if (at_once < 0) at_once = clusters_at_once(kernel, C::CLUSTER, C::THREADS, shared_bytes<Shared>());
    return at_once < clusters ? 0 : clusters;
}

/* Launches a one-pass kernel, right behind the lse and D kernel: it starts early: 637 to 634 us (64 sequences of
 * 1024 with 12 heads of 64). args.base.order: of tiles, of which clusters draw C::CLUSTER at a time. */
template <class C, class Shared>
static void launch_one_pass(const char *name, void (*kernel)(KernelArgs), KernelArgs args) {
    TileOrder &order = args.base.order;
    order.tiles = ceil_div(order.tiles, (int)C::CLUSTER);
    order.total = order.heads * order.tiles;
    args.last_wave = last_wave<C, Shared>(kernel, order);
    launch_persistent(name, kernel, args, order.total * C::CLUSTER, C::THREADS, shared_bytes<Shared>(),
                      START_EARLY, C::CLUSTER);
}
