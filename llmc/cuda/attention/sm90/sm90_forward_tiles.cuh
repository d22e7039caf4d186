/* Tiles of attention forward for sm_90a: shapes, shared memory, arguments, and the producer that fetches them. What
 * the kernel computes and why it is built so: sm90_forward.cu. */
#pragma once
#include "sm90_dropout.cuh"

/* Shapes of tiles, named after their rows and the keys of a block. columns: the latter. flag: the products of a step are
 * queued scores first and the exponentials start when the scores are done (else when both are). */
/* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
inline constexpr Sm90Shape TILES_192_128 = {3, 128, 4, 3, 160, 32, false};
inline constexpr Sm90Shape TILES_192_64 = {3, 64, 4, 2, 160, 32, true};
inline constexpr Sm90Shape TILES_256_64 = {4, 64, 8, 3, 112, 32, false};
inline constexpr Sm90Shape TILES_128_64 = {2, 64, 2, 1, 240, 24, true};

typedef enum Sm90Softmax {
    SM90_ONLINE_MAX, /* the classic running max, O rescaled at every tile of keys */
    SM90_FIXED_MAX, /* the max of the first tile stays; tiles that it does not suit are done again with SM90_ONLINE_MAX */
} Sm90Softmax;

typedef enum Sm90Order {
    SM90_FREE,      /* warpgroups issue their products when they are ready */
    SM90_PING_PONG, /* one after the other, so that one multiplies while the others take exponentials */
} Sm90Order;

/* PAIRED: a cluster of two blocks owns a pair of tiles and loads K and V once for both. */
template <int HEAD, bool IS_CAUSAL, const Sm90Shape &TILES, Sm90Softmax SOFT, Sm90Order ORDER, bool PAIRED>
struct ForwardConfig : Sm90Roles {
    static constexpr Sm90Shape SHAPE = TILES;
    static constexpr int HD = HEAD, KEYS = SHAPE.columns, WARPGROUPS = SHAPE.warpgroups,
                         STAGES = SHAPE.stages, Q_BUFFERS = SHAPE.own_buffers;
    static constexpr bool CAUSAL = IS_CAUSAL, SCORES_FIRST = SHAPE.flag, PING_PONG = ORDER == SM90_PING_PONG;
    static constexpr bool DROPS = false; /* WithDropout */
    static constexpr Sm90Softmax SOFTMAX = SOFT;
    static constexpr int CLUSTER = PAIRED ? 2 : 1,
                         ROW_BLOCKS = CLUSTER * WARPGROUPS /* of 64 rows, of a pair */;
    /* Blocks of keys that are skipped at most while the V of the tile before is held. */
    static constexpr int MOST_SKIPPED = PAIRED ? 1 : (WARPGROUPS - 1) * WG_ROWS / KEYS;
    /* One barrier for K and V of a block: 11 instructions fewer a step, but K is held a step longer, which costs 1 % at
     * head size 128, where there are four small blocks. */
    static constexpr bool ONE_RING = HD == 64;
    /* Of the diagonal a warp takes exponentials only of the keys that its rows see: 2 % fewer clocks with four
     * warpgroups, 1 to 2 % more with three. */
    static constexpr bool WARP_DIAGONAL = CAUSAL && WARPGROUPS == 4;
    static constexpr bool ROTATES = true;            /* warpgroup w owns other 64 rows in each tile */
    static constexpr bool PIPELINED = Q_BUFFERS > 1; /* the next tile begins before a tile ends */
    static constexpr bool RANGES = false;            /* a mask: blocks of keys end before 0 */
    static constexpr bool SPARSE = false;            /* a mask: a list of blocks of keys */
    static constexpr int THREADS = sm90_threads(SHAPE);
    static constexpr int COLUMNS = tile_columns(HD); /* of Q, K and V in shared memory */
    static constexpr int Q_BYTES = WG_ROWS * COLUMNS * 2 /* of a warpgroup */, KV_BYTES = KEYS * COLUMNS * 2;
    static_assert(KEYS == 64 || KEYS == 128, "wgmma N of the scores; 64 rows' diagonal is in one block");
    static_assert(STAGES > MOST_SKIPPED + ONE_RING, "what follows must not wait for that V");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
    static_assert(WARPGROUPS <= 4, "ids of named barriers");
};

/* The same for queries that do not see all keys before them. Rows do not rotate: the lowest see as many keys as the
 * highest, and what a warpgroup skips at the end of a tile and at the start of the next is then always the same. */
template <class C> struct ForwardRanges : C { static constexpr bool RANGES = true, ROTATES = false; };

/* The same for a pattern of blocks. A tile's blocks come in this order: those of the window, from the diagonal down; random
 * ones, one of each 64 rows at a time, the highest rows first; those at the start. So a warpgroup passes few blocks between
 * two that its rows see, though each has random blocks of its own: MOST_SKIPPED, where near the start of the sequence the
 * higher rows have more random ones. */
template <class C> struct ForwardSparse : C {
    static constexpr bool SPARSE = true, ROTATES = false;
    static constexpr int MOST_SKIPPED = C::WARPGROUPS * (C::WARPGROUPS - 1) / 2;
    static_assert(C::KEYS == MASK_BLOCK && C::CLUSTER == 1, "a block is seen whole, or not");
    static_assert(C::STAGES > MOST_SKIPPED + C::ONE_RING,
                  "what follows must not wait for the V that is held");
};

template <class C> struct alignas(1024) ForwardShared {
    uint8_t q[C::Q_BUFFERS][C::WARPGROUPS][C::Q_BYTES];
    uint8_t k[C::STAGES][C::KV_BYTES], v[C::STAGES][C::KV_BYTES];
    RingBarriers<C::Q_BUFFERS> q_ring;
    RingBarriers<C::STAGES> k_ring, v_ring;           /* v_ring: unless K and V have one */
    Work work[C::Q_BUFFERS];                          /* of the tile whose Q is in the buffer */
    Work next[C::Q_BUFFERS];                          /* of the tile after it */
    int listed;                                       /* the tile that was last put on the redo list */
    DropoutMatrix masks[C::DROPS ? C::Q_BUFFERS : 0]; /* of that tile's head */
    int seers[C::SPARSE ? C::STAGES : 0];             /* bit w: warpgroup w's rows see the block */
};

/* Tiles to be done again with the running maximum. If there are more than fit, all are done again. */
enum { REDO_MAX = 1 << 16 };
typedef struct RedoList {
    int count;
    int tiles[REDO_MAX];
} RedoList;
__device__ RedoList redo_list;
__device__ unsigned forward_tickets, redo_tickets;

typedef struct ForwardArgs {
    CUtensorMap q, kv; /* boxes of 64 and of KEYS rows of qkv */
    CUtensorMap out;   /* boxes of 16 rows */
    float *lse;
    int T, NH;
    int missing;     /* row_blocks (64 rows) by which the tiles could hold more than T: 0 to ROW_BLOCKS - 1 */
    TileOrder order; /* of tiles, or of pairs */
    float scale_log2; /* log2(e) / sqrt(HD) */
    bool redo;        /* tiles come from redo_list; the launch may begin before the one that fills it ends */
    SeenKeys seen;    /* only where RANGES */
    DropoutArgs dropout; /* only where C::DROPS */
    BlockSparse sparse;  /* only where C::SPARSE */
} ForwardArgs;

/* The first block of 64 rows of a tile or pair. Causal: the missing ones are all missed at the start, where a tile is
 * short. Else the first tiles have one less each: two warpgroups keep the tensor cores busy, one does not. */
template <class C> __device__ __forceinline__ int first_row_block(const ForwardArgs &args, int tile) {
    const int row_block = tile * C::ROW_BLOCKS;
    return C::CAUSAL ? max(0, row_block - args.missing) : row_block - min(C::CLUSTER * tile, args.missing);
}

typedef struct RowBlocks {
    int first, count; /* of a tile, or of the pair that it is of */
} RowBlocks;
template <class C> __device__ __forceinline__ RowBlocks row_blocks_of(const ForwardArgs &args, int tile) {
    const int pair = tile / (unsigned)C::CLUSTER, first = first_row_block<C>(args, pair);
    return {first, first_row_block<C>(args, pair + 1) - first};
}
/* Which of them the 64 rows `rows` of a tile are. Those of a pair alternate between its tiles, 2p and 2p + 1. */
template <class C> __device__ __forceinline__ int row_block_of(int tile, int rows) {
    return C::CLUSTER * rows + tile % (unsigned)C::CLUSTER;
}

/* The first block of keys that the rows from row0 on see; of a pattern, in the window. */
template <class C> __device__ __forceinline__ int lowest_block(const ForwardArgs &args, int batch, int row0) {
    if (C::SPARSE) return max(0, row0 / (int)MASK_BLOCK - args.sparse.pattern.window);
    return C::RANGES ? args.seen.first_key(batch, row0) / C::KEYS : 0;
}

/* ---- producer: one thread, for all blocks of the cluster ---- */

/* Writes the tile of each block of the cluster, ahead of the expect of the stage that it goes with. Returns the bytes
 * by which the latter's bytes_elsewhere grow. */
template <class C, int STAGES>
__device__ __forceinline__ uint32_t give_work(Work &to, const Work &work, RingBarriers<STAGES> &ring,
                                              Ring<STAGES> at) {
    to = work;
    if (C::CLUSTER > 1)
        store_async_16(cluster_address(shared_address(&to), 1),
                       make_int4(work.index, work.tile + 1, work.head, work.batch),
                       cluster_address(shared_address(&ring.full[at.stage]), 1));
    return sizeof(Work);
}

/* Q of a tile, or of both tiles of a pair, and which they are. */
template <class C>
__device__ __forceinline__ void load_queries(ForwardShared<C> &shared, const ForwardArgs &args,
                                             const Work &work, RowBlocks row_blocks, Ring<C::Q_BUFFERS> at) {
    shared.q_ring.wait_free(at);
    if constexpr (C::DROPS)
        shared.masks[at.stage] = head_mask(args.dropout, work.batch * args.NH + work.head);
    const uint32_t work_bytes = give_work<C>(shared.work[at.stage], work, shared.q_ring, at);
    const uint32_t bytes = (row_blocks.count + C::CLUSTER - 1) / C::CLUSTER * C::Q_BYTES;
    const uint32_t fewer = row_blocks.count % C::CLUSTER * C::Q_BYTES; /* of the second tile */
    const uint32_t full = expect<C>(shared.q_ring, at, bytes, bytes - fewer + work_bytes);
#pragma unroll 1 /* or the compiler would want more registers than a producer has */
    for (int i = 0; i < row_blocks.count; i++)
        load_rows<C>(shared.q[at.stage][i / C::CLUSTER], args.q, (row_blocks.first + i) * WG_ROWS, work.head,
                     work.batch, full, WG_ROWS, 1 << i % C::CLUSTER);
}

/* K's stage is free. work_bytes: of the work that goes with K. */
template <class C>
__device__ __forceinline__ void load_keys(ForwardShared<C> &shared, const ForwardArgs &args, const Work &work,
                                          int block, Ring<C::STAGES> at, uint32_t work_bytes) {
    const uint32_t bytes = C::ONE_RING ? 2 * C::KV_BYTES : C::KV_BYTES;
    const uint32_t k_full = expect<C>(shared.k_ring, at, bytes, bytes + work_bytes);
    load_rows<C>(shared.k[at.stage], args.kv, block * C::KEYS, args.NH + work.head, work.batch, k_full,
                 C::KEYS);
    const uint32_t v_full = C::ONE_RING ? k_full : acquire<C>(shared.v_ring, at, C::KV_BYTES);
    load_rows<C>(shared.v[at.stage], args.kv, block * C::KEYS, 2 * args.NH + work.head, work.batch, v_full,
                 C::KEYS);
}

/* Of a pattern: which 64 rows of a tile see a block of the window of any of them. */
__device__ __forceinline__ int window_seers(SparsePattern pattern, RowBlocks rows, int block) {
    const int first = max(0, block - rows.first), last = block - rows.first + pattern.window;
    const int seers = (1 << rows.count) - (1 << first);
    return block < pattern.first || last >= rows.count ? seers : seers & ((2 << last) - 1);
}

/* The blocks of a pattern beside those of the window, which end at `lowest`. */
template <class C>
__device__ __forceinline__ void load_far_keys(ForwardShared<C> &shared, const ForwardArgs &args,
                                              const Work &work, RowBlocks rows, int lowest,
                                              Ring<C::STAGES> &at) {
    const BlockSparse &sparse = args.sparse;
    const auto load = [&](int block, int seers) {
        shared.k_ring.wait_free(at);
        shared.seers[at.stage] = seers;
        load_keys(shared, args, work, block, at, 0);
        at.advance();
    };
    const int last = rows.first + rows.count - 1, rounds = sparse_n_chosen(sparse.pattern, last);
#pragma unroll 1
    for (int round = 0; round < rounds; round++)
#pragma unroll 1
        for (int row = last; row >= rows.first && round < sparse_n_chosen(sparse.pattern, row); row--)
            load(sparse.chosen[(int64_t)row * sparse.pattern.random + round], 1 << (row - rows.first));
#pragma unroll 1
    for (int block = min(sparse.pattern.first, lowest) - 1; block >= 0; block--)
        load(block, (1 << rows.count) - 1);
}

/* The next tile is drawn when a tile begins, so that the block which is free first gets the longest, and published
 * with the tile's second block of keys (or its only one): consumers know it long before they come to it. */
template <class C>
__device__ __forceinline__ void forward_producer(ForwardShared<C> &shared, const ForwardArgs &args) {
    const int count = args.redo ? redo_list.count : 0;
    const bool listed = args.redo && count <= REDO_MAX;
    const int total = listed ? count : args.order.total;
    const auto work_of = [&](int index) {
        Work work = {-1, 0, 0, 0};
        if (index < total) work = work_at(args.order, listed ? redo_list.tiles[index] : index);
        work.tile *= C::CLUSTER; /* of a pair the first */
        return work;
    };
    Ring<C::Q_BUFFERS> q_at;
    Ring<C::STAGES> at;
    const int clusters = gridDim.x / C::CLUSTER;
    Work work = work_of(blockIdx.x / C::CLUSTER);
    if (work.index < 0)
        expect<C>(shared.q_ring, q_at, 0, give_work<C>(shared.work[0], work, shared.q_ring, q_at));
    for (; work.index >= 0; q_at.advance()) {
        const int drawn = draw_tile(args.redo ? &redo_tickets : &forward_tickets, total) -
                          (int)gridDim.x; /* of those after the first of each cluster */
        const RowBlocks row_blocks = row_blocks_of<C>(args, work.tile);
        const int last = key_blocks<C>(row_blocks.first * WG_ROWS, row_blocks.count * WG_ROWS, args.T) - 1;
        const int lowest = lowest_block<C>(args, work.batch, row_blocks.first * WG_ROWS);
        load_queries(shared, args, work, row_blocks, q_at);
        for (int block = last; block >= lowest; block--, at.advance()) {
            uint32_t work_bytes = 0;
            shared.k_ring.wait_free(at);
            if constexpr (C::SPARSE)
                shared.seers[at.stage] = window_seers(args.sparse.pattern, row_blocks, block);
            if (block == max(lowest, last - 1)) {
                work_bytes =
                    give_work<C>(shared.next[q_at.stage], work_of(clusters + drawn), shared.k_ring, at);
                if (args.redo && drawn == total - 1) redo_list.count = 0; /* nobody will look again */
            }
            load_keys(shared, args, work, block, at, work_bytes);
        }
        if constexpr (C::SPARSE) load_far_keys(shared, args, work, row_blocks, lowest, at);
        work = shared.next[q_at.stage]; /* not kept in registers: a producer has few */
    }
}
