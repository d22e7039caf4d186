/* The kernel of attention forward for sm_90a. What it computes and why it is built so: sm90_forward.cu.
 *
 * Order of things in a consumer warpgroup, for each tile: skip the blocks of keys that its rows do not see;
 * queue the last P V of the tile before and the scores of the first block together; write the output of the
 * tile before while the scores are under way; then in each step queue P V of one block and the scores of the
 * next, and take exponentials. Which tile comes next it reads while the products of the second block are under
 * way, so that nothing but a wait for Q lies between the last exponentials of a tile and its last P V. */
#pragma once
#include "sm90_forward_tiles.cuh"

/* ---- consumers: what a thread holds ---- */

/* A thread's part of the warpgroup's rows. [half] is row thread_row() + 8 * half. */
template <class C> struct ForwardRows {
    float s[C::KEYS / 2]; /* scores q.k, then P */
    float o[C::HD / 2];
    uint32_t p[C::KEYS / 16][4]; /* P of the block before, as A operand */
    float shift[2];              /* log2 units: subtracted from scale_log2 * s */
    float max[2];                /* of s so far (running maximum) */
    float rescale[2];            /* of O and sums at this block (running maximum) */
    float sum[4]; /* of this thread's columns; [half] and [half + 2]: two chains of additions */
};

/* What a warpgroup knows of its place. */
template <class C> struct ForwardPlace {
    int warpgroup;
    Ring<C::Q_BUFFERS> q_at;
    Ring<C::STAGES> at;          /* the next block of keys */
    Ring<C::STAGES> v_at;        /* the block whose P is in r.p */
    Ring<C::Q_BUFFERS> q_before; /* the tile before, which waits for its last P V and its output */
    int rows_before;
    uint32_t k, v;                      /* low halves of the first stage's descriptors */
    FragmentMask<MASK_QUERY_ROWS> mask; /* only where C::DROPS: of the block at `at` */
    int left;                           /* only where C::SPARSE: blocks of the tile from `at` on */
};

/* A tile, as a warpgroup sees it. */
typedef struct ForwardTile {
    bool ends;      /* there is none */
    int rows, row0; /* which 64 rows of it are the warpgroup's own; their position */
    int seen, skip; /* blocks of keys that they see, and before those that they do not */
    /* Only where RANGES: the lowest block that is seen; blocks, from it up, that have keys which a row does not see;
     * blocks below it that are loaded for other rows; the sequence. */
    int lowest, partial, trail, batch;
    int blocks; /* only where SPARSE: that are loaded */
} ForwardTile;

template <class C>
__device__ __forceinline__ uint64_t k_tile(const ForwardPlace<C> &place, Ring<C::STAGES> at) {
    return swizzled(place.k + at.stage * (C::KV_BYTES >> 4));
}
template <class C>
__device__ __forceinline__ uint64_t v_tile(const ForwardPlace<C> &place, Ring<C::STAGES> at) {
    return swizzled(place.v + at.stage * (C::KV_BYTES >> 4));
}

/* With one ring K and V of a block come and go together, by k_ring: who waits for K has V, and V's release is K's. */
template <class C> __device__ __forceinline__ void wait_v(ForwardShared<C> &shared, Ring<C::STAGES> at) {
    if (!C::ONE_RING) shared.v_ring.wait(at);
}
template <class C> __device__ __forceinline__ void release_k(ForwardShared<C> &shared, Ring<C::STAGES> at) {
    if (!C::ONE_RING) release<C>(shared.k_ring, at);
}
template <class C> __device__ __forceinline__ void release_v(ForwardShared<C> &shared, Ring<C::STAGES> at) {
    release<C>(C::ONE_RING ? shared.k_ring : shared.v_ring, at);
}

/* Scores of all keys of the block, or of the first half (32 registers of 64). */
template <class C, int N> __device__ __forceinline__ void multiply_qk(float (&s)[N], uint64_t q, uint64_t k) {
#pragma unroll
    for (int i = 0; i < C::HD / 16; i++) {
        const uint64_t a = q + (i / 4) * (WG_ROWS * 128 >> 4) + i % 4 * 2,
                       b = k + (i / 4) * (C::KEYS * 128 >> 4) + i % 4 * 2;
        if (i == 0)
            wgmma<D_SET, B_K_MAJOR>(s, a, b);
        else
            wgmma<D_ADD, B_K_MAJOR>(s, a, b);
    }
    wgmma_commit();
}

/* O = or += P V. */
template <WgmmaD D, class C> __device__ __forceinline__ void multiply_pv(ForwardRows<C> &r, uint64_t v) {
    wgmma<D, B_MN_MAJOR>(r.o, r.p[0], v);
#pragma unroll
    for (int i = 1; i < C::KEYS / 16; i++) wgmma<D_ADD, B_MN_MAJOR>(r.o, r.p[i], v + i * (2048 >> 4));
    wgmma_commit();
}

/* ---- consumers: dropout, where C::DROPS ---- */

/* Of a block. */
template <class C> struct ForwardMasks {
    MaskLine lines[2];
    uint32_t pairs[C::KEYS / 16][4]; /* of packed P */
};

/* Those of the block at place.at; then the mask is that of the block before. */
template <class C>
__device__ __forceinline__ void begin_masks(ForwardMasks<C> &masks, ForwardPlace<C> &place) {
    if constexpr (C::DROPS) {
        static_assert(C::KEYS == WG_ROWS, "a block of the mask");
        draw_lines(masks.lines, place.mask);
        place.mask.move(-1);
    }
}

/* A set's, behind its exponentials: all of them together the compiler leaves until the last exponential is on its way, which
 * takes 3 % more at head size 64. */
template <class C>
__device__ __forceinline__ void draw_set(ForwardMasks<C> &masks, const ForwardPlace<C> &place,
                                         const ForwardArgs &args, int set) {
    if constexpr (C::DROPS)
#pragma unroll
        for (int i = 0; i < 4; i++)
            masks.pairs[set][i] = kept_pair(masks.lines, set, i, place.mask, args.dropout.limit);
}

/* ---- consumers: softmax ---- */

template <int N> __device__ __forceinline__ void block_max(const float (&s)[N], float (&max)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        max[half] = s[2 * half];
#pragma unroll
        for (int i = 1; i < N / 2; i++) max[half] = fmaxf(max[half], s[i / 2 * 4 + 2 * half + i % 2]);
        max[half] = quad_max(max[half]);
    }
}

/* A row that has seen only -inf keeps shift 0: -inf - -inf would be NaN. */
template <class C, int N>
__device__ __forceinline__ void update_max(ForwardRows<C> &r, const float (&s)[N], float scale_log2) {
    float max[2];
    block_max(s, max);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float old = r.max[half];
        r.max[half] = fmaxf(old, max[half]);
        r.shift[half] = r.max[half] == -CUDART_INF_F ? 0.0f : r.max[half] * scale_log2;
        r.rescale[half] = ex2(fmaf(old, scale_log2, -r.shift[half]));
        r.sum[half] *= r.rescale[half];
        r.sum[half + 2] *= r.rescale[half];
    }
}

/* Of the first `seen` sets of 16 keys; the others' are 0. behind: done behind each set. */
template <class C, int N, class Behind>
__device__ __forceinline__ void exponentials(ForwardRows<C> &r, float (&s)[N], float scale_log2, int seen,
                                             Behind behind) {
#pragma unroll
    for (int set = 0; set < N / 8; set++) {
        if (set < seen) {
#pragma unroll
            for (int i = 8 * set; i < 8 * set + 8; i++) {
                const int half = i / 2 % 2;
                s[i] = ex2(fmaf(s[i], scale_log2, -r.shift[half]));
                r.sum[half + i % 2 * 2] += s[i];
            }
        } else {
#pragma unroll
            for (int i = 8 * set; i < 8 * set + 8; i++) s[i] = 0.0f;
        }
        behind(set);
    }
}

/* P to the A operand; 0 for keys that were left out. */
template <class C, int N>
__device__ __forceinline__ void pack_p(ForwardRows<C> &r, const float (&s)[N], const ForwardMasks<C> &masks) {
#pragma unroll
    for (int i = 0; i < C::KEYS / 4; i++) {
        uint32_t &p = r.p[i / 4][i % 4];
        p = 2 * i < N ? cvt_bf16x2(s[2 * i % N], s[2 * i % N + 1]) : 0;
        if constexpr (C::DROPS)
            if (2 * i < N) p &= masks.pairs[i / 4][i % 4];
    }
}

template <class C> __device__ __forceinline__ void rescale(ForwardRows<C> &r) {
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.o[i] *= r.rescale[i / 2 % 2];
}

/* Keys before those that a row sees, in block `block` of the tile, counted from the lowest. */
template <class C, int N>
__device__ __forceinline__ void mask_partial(float (&s)[N], const ForwardTile &tile, int block,
                                             const ForwardArgs &args) {
    if constexpr (C::RANGES)
        if (block < tile.partial)
            mask_unseen(s, args.seen, tile.batch, tile.row0, (tile.lowest + block) * C::KEYS);
}

/* P of a tile's first block. Causal: its last 64 keys are those of the rows' own positions, so the mask is
 * the same triangle for every tile. The fixed maximum is that of its first 64 keys, of which every row sees
 * one or more. */
template <class C, int N>
__device__ __forceinline__ void first_probabilities(ForwardRows<C> &r, float (&s)[N], ForwardPlace<C> &place,
                                                    const ForwardTile &tile, const ForwardArgs &args) {
    const int block = tile.seen - 1;
#pragma unroll
    for (int i = 0; i < 4; i++) r.sum[i] = 0.0f;
    /* The 16 rows of warp w see w + 1 of the diagonal's four sets of 16 keys, the last of them in part. */
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x % WARPGROUP / 32, 0); /* known to be one for all */
    if (C::CAUSAL)
        mask_diagonal(s, C::WARP_DIAGONAL ? warp : 0);
    else
        mask_keys<C>(s, tile.row0, block * C::KEYS, args.T);
    mask_partial<C>(s, tile, block, args);
    if (C::SOFTMAX == SM90_FIXED_MAX) {
        if (C::CAUSAL)
            block_max(first<WG_ROWS / 2>(s), r.max);
        else
            block_max(s, r.max);
#pragma unroll
        for (int half = 0; half < 2; half++) r.shift[half] = r.max[half] * args.scale_log2;
    } else {
        r.max[0] = r.max[1] = -CUDART_INF_F;
        update_max(r, s, args.scale_log2);
    }
    ForwardMasks<C> masks;
    begin_masks(masks, place);
    exponentials(r, s, args.scale_log2, C::WARP_DIAGONAL ? N / 8 - 3 + warp : N / 8,
                 [&](int set) { draw_set(masks, place, args, set); });
    pack_p(r, s, masks);
}

/* ---- consumers: the steps ---- */

/* Ping-pong: warpgroup w may issue its products between pingpong_wait and pingpong_pass, then the next one may. Each does
 * so once for each block of keys, also for those that it skips. */
enum { PING_PONG_BARRIER = 1, FINISH_BARRIER = 5 /* ids of named barriers: one for each warpgroup */ };

template <class C> __device__ __forceinline__ void pingpong_wait(int warpgroup) {
    if (C::PING_PONG) named_barrier_sync<2 * WARPGROUP>(PING_PONG_BARRIER + warpgroup);
}
template <class C> __device__ __forceinline__ void pingpong_pass(int warpgroup) {
    if (C::PING_PONG)
        named_barrier_arrive<2 * WARPGROUP>(PING_PONG_BARRIER + (warpgroup + 1) % C::WARPGROUPS);
}

/* Blocks of keys of the tile that this warpgroup's rows do not see. */
template <class C>
__device__ __forceinline__ void skip_blocks(ForwardShared<C> &shared, ForwardPlace<C> &place, int n) {
    for (; n > 0; n--, place.at.advance()) {
        shared.k_ring.wait(place.at);
        wait_v(shared, place.at);
        release_k(shared, place.at);
        release_v(shared, place.at);
        pingpong_wait<C>(place.warpgroup);
        pingpong_pass<C>(place.warpgroup);
    }
}

/* Of a pattern: goes on to the next block that the warpgroup's rows see. There is one, and it has come. */
template <class C>
__device__ __forceinline__ void pass_unseen(ForwardShared<C> &shared, ForwardPlace<C> &place) {
    if constexpr (C::SPARSE)
        for (;; place.at.advance()) {
            int seers = 0;
            shared.k_ring.wait(place.at);
            place.left--;
            if (threadIdx.x % 32 == 0) seers = shared.seers[place.at.stage];
            if (__shfl_sync(0xffffffffu, seers, 0) >> place.warpgroup & 1) return;
            wait_v(shared, place.at);
            release_k(shared, place.at);
            release_v(shared, place.at);
        }
}

/* O / sum and lse of the tile before; one whose fixed maximum did not do goes on the redo list. Its other
 * warpgroups may find it there (or, rarely, list it twice: it is then done twice, with the same result). */
template <class C>
__device__ __forceinline__ void finish_rows(const ForwardRows<C> &r, ForwardShared<C> &shared,
                                            const ForwardPlace<C> &place, const ForwardArgs &args) {
    const Work work = read_work(shared.work[place.q_before.stage]);
    const int warp = threadIdx.x % WARPGROUP / 32;
    const int row_block =
        row_blocks_of<C>(args, work.tile).first + row_block_of<C>(work.tile, place.rows_before);
    const int row0 = row_block * WG_ROWS;
    float *lse = args.lse + ((int64_t)work.batch * args.NH + work.head) * args.T;
    float sum[2], inverse[2];
    bool bad = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = quad_sum(r.sum[half] + r.sum[half + 2]);
        inverse[half] = rcp(sum[half]);
        if (C::DROPS) inverse[half] *= args.dropout.kept_scale;
        bad |= !(sum[half] <= 0x1p64f);
    }
    named_barrier_sync<WARPGROUP>(FINISH_BARRIER + place.warpgroup); /* all its scores are done with Q */
    tma_store_rows(&args.out,
                   shared_address(shared.q[place.q_before.stage][place.rows_before]) + warp * C::Q_BYTES / 4,
                   r.o, inverse, row0 + warp * 16, work.head, work.batch);
#pragma unroll
    for (int half = 0; half < 2; half++) { /* behind the output, whose fence would wait for these stores */
        const int row = row0 + thread_row() + 8 * half;
        if (threadIdx.x % 4 == 0 && row < args.T) lse[row] = (r.shift[half] + lg2(sum[half])) * LN2;
    }
    if (C::SOFTMAX == SM90_FIXED_MAX && __any_sync(0xffffffffu, bad) && threadIdx.x % 32 == 0 &&
        atomicExch(&shared.listed, work.index) != work.index) {
        const int slot = atomicAdd(&redo_list.count, 1);
        if (slot < REDO_MAX) redo_list.tiles[slot] = work.index;
    }
}

/* Q's buffer of the tile before is free once the output has left it. */
template <class C>
__device__ __forceinline__ void release_q(ForwardShared<C> &shared, const ForwardPlace<C> &place) {
    if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
    release<C>(shared.q_ring, place.q_before);
}

/* The last P V of the tile before and its output, where no tile follows at once. */
template <class C>
__device__ __forceinline__ void finish_tile(ForwardRows<C> &r, ForwardShared<C> &shared,
                                            ForwardPlace<C> &place, const ForwardArgs &args) {
    wait_v(shared, place.v_at);
    wgmma_fence();
    multiply_pv<D_ADD>(r, v_tile(place, place.v_at));
    wgmma_wait<0>();
    wgmma_results(r.o);
    wgmma_results(r.p);
    release_v(shared, place.v_at);
    finish_rows<C>(r, shared, place, args);
    release_q(shared, place);
}

/* The first N registers of scores of a tile's first block. PENDING: behind the last P V of the tile before,
 * whose output is written while the scores are under way. */
template <class C, int N, bool PENDING>
__device__ __forceinline__ void first_scores(ForwardRows<C> &r, ForwardShared<C> &shared,
                                             ForwardPlace<C> &place, uint64_t q, const ForwardArgs &args) {
    if constexpr (C::SPARSE)
        pass_unseen(shared, place);
    else
        shared.k_ring.wait(place.at);
    if (PENDING) wait_v(shared, place.v_at);
    pingpong_wait<C>(place.warpgroup);
    wgmma_fence();
    if (PENDING) multiply_pv<D_ADD>(r, v_tile(place, place.v_at));
    multiply_qk<C>(first<N>(r.s), q, k_tile(place, place.at));
    pingpong_pass<C>(place.warpgroup);
    if (PENDING) {
        wgmma_wait<1>();
        wgmma_results(r.o);
        wgmma_results(r.p);
        release_v(shared, place.v_at);
        finish_rows<C>(r, shared, place, args);
    }
    wgmma_wait<0>();
    wgmma_results(r.s);
}

/* The first block that the rows see, of which they see the first 2N keys; P is left in r.p. */
template <class C, int N, bool PENDING>
__device__ __forceinline__ void first_block(ForwardRows<C> &r, ForwardShared<C> &shared,
                                            ForwardPlace<C> &place, uint64_t q, const ForwardTile &tile,
                                            const ForwardArgs &args) {
    first_scores<C, N, PENDING>(r, shared, place, q, args);
    release_k(shared, place.at);
    first_probabilities<C>(r, first<N>(r.s), place, tile, args);
    if (PENDING) release_q(shared, place);
    place.v_at = place.at;
    place.at.advance();
}

/* One step of the main loop: O = or += P V of one block, then P of the next. The two products are queued
 * together; `meanwhile` is done while they are under way. block: of the tile, counted from the lowest. */
template <class C, WgmmaD D, class Meanwhile>
__device__ __forceinline__ void next_block(ForwardRows<C> &r, ForwardShared<C> &shared,
                                           ForwardPlace<C> &place, uint64_t q, const ForwardTile &tile,
                                           int block, const ForwardArgs &args, Meanwhile meanwhile) {
    pass_unseen(shared, place);
    const uint64_t k = k_tile(place, place.at), v = v_tile(place, place.v_at);
    wait_v(shared, place.v_at);
    if (!C::SPARSE) shared.k_ring.wait(place.at);
    pingpong_wait<C>(place.warpgroup);
    wgmma_fence();
    if (C::SCORES_FIRST) {
        multiply_qk<C>(r.s, q, k);
        multiply_pv<D>(r, v);
    } else {
        multiply_pv<D>(r, v);
        multiply_qk<C>(r.s, q, k);
    }
    pingpong_pass<C>(place.warpgroup);
    meanwhile();
    wgmma_wait<C::SCORES_FIRST ? 1 : 0>();
    wgmma_results(r.s);
    release_k(shared, place.at);
    if (!C::SCORES_FIRST) {
        wgmma_results(r.o);
        wgmma_results(r.p);
        release_v(shared, place.v_at);
    }
    mask_partial<C>(r.s, tile, block, args);
    if (C::SOFTMAX == SM90_ONLINE_MAX) update_max(r, r.s, args.scale_log2);
    ForwardMasks<C> masks;
    begin_masks(masks, place);
    exponentials(r, r.s, args.scale_log2, C::KEYS / 16, [&](int set) { draw_set(masks, place, args, set); });
    if (C::SCORES_FIRST) {
        wgmma_wait<0>();
        wgmma_results(r.o);
        wgmma_results(r.p);
        release_v(shared, place.v_at);
    }
    if (C::SOFTMAX == SM90_ONLINE_MAX) rescale(r);
    pack_p(r, r.s, masks);
    place.v_at = place.at;
    place.at.advance();
}

/* ---- consumers: the tiles ---- */

/* Of a pattern: blocks that 64 rows see; that are loaded for a tile. */
__device__ __forceinline__ int n_seen(SparsePattern pattern, int row_block) {
    return min(row_block, pattern.window + pattern.first) + sparse_n_chosen(pattern, row_block) + 1;
}
__device__ __forceinline__ int n_blocks(SparsePattern pattern, RowBlocks rows) {
    const int lowest = max(0, rows.first - pattern.window);
    int n = rows.first + rows.count - lowest + min(pattern.first, lowest);
    for (int i = 0; i < rows.count; i++) n += sparse_n_chosen(pattern, rows.first + i);
    return n;
}

/* The tile as the warpgroup sees it that owns the 64 rows `rows` of it. */
template <class C>
__device__ __forceinline__ ForwardTile tile_of(const Work &work, int rows, const ForwardArgs &args) {
    const RowBlocks row_blocks = row_blocks_of<C>(args, work.tile);
    const int row_block = row_block_of<C>(work.tile, rows);
    ForwardTile tile;
    tile.ends = work.index < 0;
    tile.rows = rows;
    tile.row0 = (row_blocks.first + row_block) * WG_ROWS;
    tile.seen = row_block < row_blocks.count && !tile.ends ? key_blocks<C>(tile.row0, WG_ROWS, args.T) : 0;
    tile.skip = key_blocks<C>(row_blocks.first * WG_ROWS, row_blocks.count * WG_ROWS, args.T) - tile.seen;
    if constexpr (C::RANGES) {
        const int lowest = lowest_block<C>(args, work.batch, row_blocks.first * WG_ROWS);
        tile.batch = work.batch;
        if (tile.seen == 0) { /* of the pair's or tile's blocks none */
            tile.skip -= lowest;
            tile.trail = 0;
        } else {
            tile.lowest = lowest_block<C>(args, work.batch, tile.row0);
            tile.partial =
                ceil_div(args.seen.first_key(work.batch, tile.row0 + WG_ROWS - 1), C::KEYS) - tile.lowest;
            tile.trail = tile.lowest - lowest;
            tile.seen -= tile.lowest;
        }
    }
    if constexpr (C::SPARSE) {
        tile.blocks = n_blocks(args.sparse.pattern, row_blocks);
        if (tile.seen == 0)
            tile.skip = tile.blocks;
        else
            tile.seen = n_seen(args.sparse.pattern, tile.row0 / (int)MASK_BLOCK);
    }
    return tile;
}

/* The tile after the one at q_at, of which the warpgroup owns the 64 rows `rows`. */
template <class C>
__device__ __forceinline__ ForwardTile next_tile(const ForwardShared<C> &shared, const ForwardPlace<C> &place,
                                                 int rows, const ForwardArgs &args) {
    const int next_rows = !C::ROTATES ? rows : rows == C::WARPGROUPS - 1 ? 0 : rows + 1;
    return tile_of<C>(read_work(shared.next[place.q_at.stage]), next_rows, args);
}

/* Waits for Q and does the first block of the tile that is seen. Returns Q's descriptor. */
template <class C, bool PENDING>
__device__ __forceinline__ uint64_t begin_tile(ForwardRows<C> &r, ForwardShared<C> &shared,
                                               ForwardPlace<C> &place, const ForwardTile &tile,
                                               const ForwardArgs &args) {
    shared.q_ring.wait(place.q_at);
    const uint64_t q = descriptor_k_major(shared_address(shared.q[place.q_at.stage][tile.rows]));
    if constexpr (C::DROPS)
        place.mask.begin_tile(shared.masks[place.q_at.stage], tile.row0, (tile.seen - 1) * C::KEYS);
    if (C::SPARSE)
        place.left = tile.blocks;
    else
        skip_blocks(shared, place, tile.skip);
    if (C::CAUSAL && C::KEYS > WG_ROWS && tile.row0 % C::KEYS == 0) /* of the first block half is seen */
        first_block<C, WG_ROWS / 2, PENDING>(r, shared, place, q, tile, args);
    else
        first_block<C, C::KEYS / 2, PENDING>(r, shared, place, q, tile, args);
    return q;
}

/* Tiles one after another, up to the first of which this warpgroup sees nothing (returned). O is set by the first
 * P V, not cleared before: that took 110 instructions where every warpgroup waits. */
template <class C>
__device__ __forceinline__ ForwardTile walk_tiles(ForwardRows<C> &r, ForwardShared<C> &shared,
                                                  ForwardPlace<C> &place, ForwardTile tile,
                                                  const ForwardArgs &args) {
    uint64_t q = begin_tile<C, false>(r, shared, place, tile, args);
    int trail;
    for (;;) {
        ForwardTile next;
        const auto look_ahead = [&]() { next = next_tile(shared, place, tile.rows, args); };
        if (tile.seen > 1) {
            next_block<C, D_SET>(r, shared, place, q, tile, tile.seen - 2, args, look_ahead);
        } else {
            /* the next tile comes with this one's second block */
            if (C::RANGES && tile.trail > 0) shared.k_ring.wait(place.at);
#pragma unroll
            for (int i = 0; i < C::HD / 2; i++) r.o[i] = 0.0f;
            look_ahead();
        }
#pragma unroll 1
        for (int block = tile.seen - 3; block >= 0; block--)
            next_block<C, D_ADD>(r, shared, place, q, tile, block, args, []() {});
        place.q_before = place.q_at;
        place.rows_before = tile.rows;
        place.q_at.advance();
        trail = C::RANGES ? tile.trail : C::SPARSE ? place.left : 0;
        tile = next;
        if (tile.seen == 0 || !C::PIPELINED || (C::CLUSTER > 1 && tile.skip > C::MOST_SKIPPED) ||
            ((C::RANGES || C::SPARSE) && trail + tile.skip > C::MOST_SKIPPED))
            break;
        if (C::RANGES || C::SPARSE) skip_blocks(shared, place, trail);
        q = begin_tile<C, true>(r, shared, place, tile, args);
    }
    finish_tile(r, shared, place, args);
    if (C::RANGES || C::SPARSE) skip_blocks(shared, place, trail);
    return tile;
}

template <class C>
__device__ __forceinline__ void forward_consumer(ForwardShared<C> &shared, const ForwardArgs &args,
                                                 int warpgroup) {
    ForwardPlace<C> place;
    place.warpgroup = warpgroup;
    place.k = uniform_descriptor(shared_address(shared.k));
    place.v =
        uniform_descriptor(shared_address(shared.v)) + (C::KEYS * 128 >> 4 << 16); /* to the next columns */
    ForwardRows<C> r;
    if constexpr (C::DROPS) place.mask.begin_thread();
    if (warpgroup == C::WARPGROUPS - 1) pingpong_pass<C>(warpgroup); /* warpgroup 0 is first */
    shared.q_ring.wait(place.q_at);
    ForwardTile tile = tile_of<C>(read_work(shared.work[0]), warpgroup, args);
    while (!tile.ends) {
        if (tile.seen > 0) {
            tile = walk_tiles(r, shared, place, tile, args);
            continue;
        }
        shared.q_ring.wait(place.q_at);
        skip_blocks(shared, place, tile.skip);
        const ForwardTile next = next_tile(shared, place, tile.rows, args);
        release<C>(shared.q_ring, place.q_at);
        place.q_at.advance();
        tile = next;
    }
    if (warpgroup == 0) pingpong_wait<C>(0); /* nobody needs it: no barrier is left half full */
}

template <class C> struct ForwardKernel : C {
    typedef ForwardShared<C> Shared;
    typedef ForwardArgs Args;
    static constexpr bool EARLY_NEXT = true; /* the launch that does tiles again */

    static __device__ __forceinline__ void init(Shared &shared) {
        shared.q_ring.init(4 * C::ROW_BLOCKS);
        shared.k_ring.init(4 * C::ROW_BLOCKS);
        shared.v_ring.init(4 * C::ROW_BLOCKS);
        shared.listed = -1;
    }
    static __device__ __forceinline__ void produce(Shared &shared, const Args &args, int warp) {
        if (warp == 0 && (C::CLUSTER == 1 || cluster_rank() == 0)) forward_producer(shared, args);
    }
    static __device__ __forceinline__ void consume(Shared &shared, const Args &args, int warpgroup) {
        forward_consumer<C>(shared, args, warpgroup);
    }
};

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    sm90_forward_kernel(const __grid_constant__ ForwardArgs args) {
    run_kernel<ForwardKernel<C>>(args);
}
