/* Attention backward for bf16 on mma.sync, any head size up to 256 (FlashAttention-2, Dao 2023, Algorithm 2, split in two
 * passes). P and dP are recomputed tile by tile. With x = scale * q.k:
 *
 *     P  = exp(x - lse)         D  = rowsum(dO * O)
 *     dP = dO V^T               dS = P * (dP - D)
 *     dQ = scale * dS K         dK = scale * dS^T Q         dV = P^T dO
 *
 * dqkv is written (=).
 *
 * The dQ pass owns query rows and walks the keys. It computes D on the way and leaves it to the dK/dV pass, which owns
 * keys and walks the queries. Every sum stays in the registers of one warp, in one order: no atomics, the same bits
 * every run, no fp32 copy of dQ in memory. The price is 7 products a tile instead of 5. The dK/dV pass computes
 * S^T = K Q^T and dP^T = V dO^T, whose accumulators are already the left operands of dV and dK, so neither P nor dS
 * ever passes through shared memory. Above head size 128 dK and dV are too many registers for one warp: that pass is two
 * launches then, one for each, and S is computed once more. */
#include "llmc/cuda/attention/paths.cuh"
#include "sm80_mask.cuh"

/* For each pass; HD: columns of a tile. Results do not depend on these values beyond fp32 rounding. */
template <int HD> struct QueryConfig {
    static constexpr int WARPS = 4, BLOCKS = HD <= 128 ? 2 : 1; /* BLOCKS: 16-row blocks of a warp */
    static constexpr int THREADS = WARPS * 32;
    static constexpr int ROWS = WARPS * BLOCKS * 16;                 /* queries of a thread block */
    static constexpr int KEYS = HD <= 96 ? 64 : HD <= 192 ? 32 : 16; /* of a tile */
    static constexpr int STEP = KEYS < 32 ? KEYS : 32;               /* keys whose scores are in registers */
    static constexpr bool HELD = HD <= 64;             /* Q and dO in registers; at 128 they do not fit */
    static constexpr int ROWS_BYTES = ROWS * HD * 2;   /* of Q, of dO, of O */
    static constexpr int TILE_BYTES = KEYS * HD * 2;   /* of K, of V */
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES; /* K, then V */
    static constexpr int SHARED_BYTES = 2 * ROWS_BYTES + 2 * STAGE_BYTES;
    /* O lies at the end of the stages until D is known; the first tile is fetched beside it where there is room. */
    static constexpr int O_AT = SHARED_BYTES - ROWS_BYTES;
    static constexpr bool ROOM = ROWS_BYTES <= STAGE_BYTES;
    static_assert(BLOCKS <= 2, "one lane computes D of one row of its warp");
    static_assert(KEYS % STEP == 0 && ROWS % KEYS == 0 && STEP % (BLOCKS * 16) == 0,
                  "the diagonal of a warp is in one step");
    static_assert(ROWS_BYTES <= 2 * STAGE_BYTES, "O passes through the stages");
    static_assert(SHARED_BYTES <= 99 * 1024, "fits sm_86 and sm_89, and twice an SM of sm_90");
};

template <int HD> struct KeyConfig {
    static constexpr int WARPS = 4, BLOCKS = HD <= 64 ? 2 : 1; /* dK and dV of a warp fill 128 registers */
    static constexpr int THREADS = WARPS * 32;
    static constexpr int ROWS = WARPS * BLOCKS * 16;                     /* keys of a thread block */
    static constexpr int QUERIES = HD <= 128 ? 64 : HD <= 192 ? 32 : 16; /* of a tile */
    static constexpr int STEP = 16;                          /* queries whose scores are in registers */
    static constexpr bool HELD_K = true, HELD_V = HD <= 192; /* in registers */
    static constexpr int ROWS_BYTES = ROWS * HD * 2;         /* of K, of V */
    static constexpr int TILE_BYTES = QUERIES * HD * 2;      /* of Q, of dO */
    static constexpr int STAGE_BYTES =
        2 * TILE_BYTES + (QUERIES * (int)sizeof(RowStats) + 255) / 256 * 256; /* Q, dO, statistics */
    static constexpr int SHARED_BYTES = 2 * ROWS_BYTES + 2 * STAGE_BYTES;
    static_assert(QUERIES % STEP == 0 && ROWS % QUERIES == 0, "tiles from row0 + ROWS on need no mask");
    static_assert(STEP == 16, "a step is one A fragment of P and of dS");
    static_assert(QUERIES <= THREADS, "one thread copies one row's statistics");
    static_assert(STAGE_BYTES % 256 == 0, "tiles start at multiples of 256 bytes");
    static_assert(SHARED_BYTES <= 99 * 1024, "fits sm_86 and sm_89, and twice an SM of sm_90");
};

/* ---- dQ pass ---- */

/* What a warp needs of its rows; index [b][h] is row 16 b + 8 h + lane/4. */
template <int HD> struct QueryRows {
    RowOperand<HD, QueryConfig<HD>::BLOCKS, QueryConfig<HD>::HELD> q, dout;
    float neg_lse2[QueryConfig<HD>::BLOCKS][2], neg_d[QueryConfig<HD>::BLOCKS][2];
};

/* Row `row` of two tiles: sum of products. */
template <int HD> __device__ __forceinline__ float dot_rows(const uint8_t *a, const uint8_t *b, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < Tile<HD>::CHUNKS; chunk++) {
        const uint32_t at = Tile<HD>::offset(row, chunk);
        const Vec<bf16> x = load_vec(reinterpret_cast<const bf16 *>(a + at));
        const Vec<bf16> y = load_vec(reinterpret_cast<const bf16 *>(b + at));
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(to_float(x.v[i]), to_float(y.v[i]), sum);
    }
    return sum;
}

/* The row of the block whose D this thread computes: a warp's rows are those of its first lanes; where it has 16 rows,
 * the other lanes compute the same ones again. */
template <int HD> __device__ __forceinline__ int stats_row() {
    return QueryConfig<HD>::BLOCKS == 2 ? threadIdx.x : threadIdx.x / 32 * 16 + threadIdx.x % 16;
}

/* This thread has D of the block's row stats_row(): writes that row's statistics for the dK/dV pass, and
 * hands them to the lanes that hold the row's scores. */
template <int HD>
__device__ __forceinline__ void make_stats(QueryRows<HD> &rows, RowStats *stats, const float *lse, float d,
                                           int rows_valid) {
    const int lane = threadIdx.x % 32, row = stats_row<HD>();
    RowStats own = {0.0f, -d};
    if (row < rows_valid) {
        own.neg_lse2 = -LOG2E * lse[row];
        if (lane < QueryConfig<HD>::BLOCKS * 16) stats[row] = own;
    }
#pragma unroll
    for (int b = 0; b < QueryConfig<HD>::BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            rows.neg_lse2[b][h] = __shfl_sync(0xffffffffu, own.neg_lse2, 16 * b + 8 * h + lane / 4);
            rows.neg_d[b][h] = __shfl_sync(0xffffffffu, own.neg_d, 16 * b + 8 * h + lane / 4);
        }
}

/* dq += dS K for STEP keys of a stage, `first` and on. MASKED: some may come after a row; row, key: positions
 * of the warp's first row and of key `first`. */
template <int HD, bool MASKED, class Mask>
__device__ __forceinline__ void
query_step(float (&dq)[QueryConfig<HD>::BLOCKS][HD / 8][4], const QueryRows<HD> &rows, uint32_t stage,
           int first, int row, int key, float scale_log2, const Mask &mask, DropoutMatrix matrix) {
    using Config = QueryConfig<HD>;
    const int lane = threadIdx.x % 32;
    const uint32_t k = stage + first * Tile<HD>::ROW_BYTES, v = k + Config::TILE_BYTES;
    Scores<Config::BLOCKS, Config::STEP> s, ds;
    clear(s);
    multiply_rows(s, rows.q, Tile<HD>::by_columns(k, lane));
    if (MASKED) mask_scores<false>(s, row, key);
    mask_beyond<false>(s, mask, row, key);
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < Config::STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) ds[b][n][i] = rows.neg_d[b][i / 2];
    multiply_rows(ds, rows.dout, Tile<HD>::by_columns(v, lane)); /* dP - D */
#pragma unroll
    for (int j = 0; j < Config::STEP / 16; j++) {
        uint32_t packed[Config::BLOCKS][4];
        const uint32_t dropped =
            dropped_elements<false, Mask, Config::BLOCKS>(mask, matrix, row, key + 16 * j);
#pragma unroll
        for (int b = 0; b < Config::BLOCKS; b++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int n = 2 * j + i / 4;
                if (is_dropped(dropped, b, i)) ds[b][n][i % 4] = rows.neg_d[b][i % 4 / 2];
                ds[b][n][i % 4] *= ex2(fmaf(s[b][n][i % 4], scale_log2, rows.neg_lse2[b][i % 4 / 2]));
            }
            pack_fragment(packed[b], ds[b], j);
        }
        multiply_tile<HD>(dq, packed, Tile<HD>::by_rows(k, lane), 16 * j);
    }
}

/* grid: order.total blocks of THREADS. stats (B,NH,T) =, the Q part of dqkv =. */
template <int HD, bool PADDED, class Mask>
__global__ void __launch_bounds__(QueryConfig<HD>::THREADS, 2)
    sm80_backward_dq_kernel(bf16 *dqkv, RowStats *stats, const bf16 *dout, const bf16 *out, const bf16 *qkv,
                            const float *lse, int T, int NH, float softmax_scale,
                            const __grid_constant__ TileOrder order, Mask mask, HeadSize<HD, PADDED> size) {
    using Config = QueryConfig<HD>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const BlockRows at = block_rows<true>(order, Config::ROWS, T, NH, size.columns());
    mask.enter_sequence((int)((at.token - at.row0) / T));
    const int C = NH * size.columns(), stride = 3 * C;
    const int64_t o_offset = at.token * C + at.column;

    const int warp_first = threadIdx.x / 32 * Config::BLOCKS * 16, warp_row = at.row0 + warp_first;
    const bool active = warp_row < T;
    const uint32_t base = shared_address(shared), warp_bytes = warp_first * Tile<HD>::ROW_BYTES;
    auto keys = key_tiles<Config::KEYS, Config::THREADS>(qkv, base + 2 * Config::ROWS_BYTES, at, Config::ROWS,
                                                         T, C, size);
    const auto load = [&](uint32_t to, const bf16 *from, int from_stride) {
        load_tile<Config::ROWS, Config::THREADS>(base + to, from, from_stride, T - at.row0, size);
    };
    load(0, qkv + at.token * stride + at.column, stride);
    load(Config::ROWS_BYTES, dout + o_offset, C);
    load(Config::O_AT, out + o_offset, C);
    cp_async_commit();
    if (Config::ROOM) keys.fetch(keys.stage, T - keys.tile * Config::KEYS);
    cp_async_wait<Config::ROOM ? 1 : 0>();
    __syncthreads();

    QueryRows<HD> rows;
    const float d = dot_rows<HD>(shared + Config::ROWS_BYTES, shared + Config::O_AT, stats_row<HD>());
    make_stats(rows, stats + at.stat, lse + at.stat, d * mask.kept(), T - at.row0);
    hold_rows(rows.q, base + warp_bytes);
    hold_rows(rows.dout, base + Config::ROWS_BYTES + warp_bytes);
    if (!Config::ROOM) {
        __syncthreads(); /* O has been read by all */
        keys.fetch(keys.stage, T - keys.tile * Config::KEYS);
    }

    float dq[Config::BLOCKS][HD / 8][4];
    clear(dq);
    const float scale_log2 = softmax_scale * LOG2E;
    const DropoutMatrix matrix = mask.matrix(at.head);
    const int last_tile = mask.first_key(at.row0) / Config::KEYS;
    for (; keys.tile * Config::KEYS >= at.row0; keys.end()) {
        keys.begin(last_tile);
#pragma unroll 1
        for (int i = 0; i < Config::KEYS; i += Config::STEP)
            if (active && keys.tile * Config::KEYS + i <= warp_row &&
                !mask.hides_block(warp_row, keys.tile * Config::KEYS))
                query_step<HD, true>(dq, rows, keys.stage, i, warp_row, keys.tile * Config::KEYS + i,
                                     scale_log2, mask, matrix);
    }
    for (; keys.tile >= last_tile; keys.end()) {
        keys.begin(last_tile);
        if (active && !mask.hides_block(warp_row, keys.tile * Config::KEYS))
#pragma unroll 1
            for (int i = 0; i < Config::KEYS; i += Config::STEP)
                query_step<HD, false>(dq, rows, keys.stage, i, warp_row, keys.tile * Config::KEYS + i,
                                      scale_log2, mask, matrix);
    }
    if (!active) return;
    scale(dq, softmax_scale * mask.kept_scale());
    store_rows(dqkv + (at.token + warp_first) * stride + at.column, stride, T - warp_row, shared + warp_bytes,
               dq, size);
}

/* ---- dK/dV pass ---- */

/* What a launch computes. */
typedef enum KeyPart { PART_DK = 1, PART_DV = 2, PART_BOTH = 3 } KeyPart;

template <int HD> struct KeyRows {
    RowOperand<HD, KeyConfig<HD>::BLOCKS, KeyConfig<HD>::HELD_K> k;
    RowOperand<HD, KeyConfig<HD>::BLOCKS, KeyConfig<HD>::HELD_V> v;
    float dk[KeyConfig<HD>::BLOCKS][HD / 8][4], dv[KeyConfig<HD>::BLOCKS][HD / 8][4];
};

template <int HD> using KeyScores = Scores<KeyConfig<HD>::BLOCKS, KeyConfig<HD>::STEP>;

/* dv += P^T dO for STEP queries. dout: their rows; dropped: bits as is_dropped wants them. */
template <int HD>
__device__ __forceinline__ void add_dv(KeyRows<HD> &rows, const KeyScores<HD> &p, uint32_t dout,
                                       uint32_t dropped) {
    using Config = KeyConfig<HD>;
    uint32_t packed[Config::BLOCKS][4];
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++) {
        float kept[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++)
            kept[i / 4][i % 4] = is_dropped(dropped, b, i) ? 0.0f : p[b][i / 4][i % 4];
        pack_fragment(packed[b], kept, 0);
    }
    multiply_tile<HD>(rows.dv, packed, Tile<HD>::by_rows(dout, threadIdx.x % 32), 0);
}

/* dk += dS^T Q. ds: dP - D; q: the rows; stats: theirs. */
template <int HD>
__device__ __forceinline__ void add_dk(KeyRows<HD> &rows, KeyScores<HD> &ds, const KeyScores<HD> &p,
                                       uint32_t q, const RowStats *stats, uint32_t dropped) {
    using Config = KeyConfig<HD>;
    const int lane = threadIdx.x % 32;
    uint32_t packed[Config::BLOCKS][4];
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &x = ds[b][i / 4][i % 4];
            if (is_dropped(dropped, b, i)) x = stats[i / 4 * 8 + lane % 4 * 2 + i % 2].neg_d;
            x *= p[b][i / 4][i % 4];
        }
        pack_fragment(packed[b], ds[b], 0);
    }
    multiply_tile<HD>(rows.dk, packed, Tile<HD>::by_rows(q, lane), 0);
}

/* dk += dS^T Q, dv += P^T dO for STEP queries of a stage, `first` and on. MASKED: some may come before a key;
 * key, query: positions of the warp's first key and of query `first`. */
template <int HD, KeyPart PART, bool MASKED, class Mask>
__device__ __forceinline__ void key_step(KeyRows<HD> &rows, uint32_t stage, const RowStats *stage_stats,
                                         int first, int key, int query, float scale_log2, const Mask &mask,
                                         DropoutMatrix matrix) {
    using Config = KeyConfig<HD>;
    const int lane = threadIdx.x % 32;
    const uint32_t q = stage + first * Tile<HD>::ROW_BYTES, dout = q + Config::TILE_BYTES;
    KeyScores<HD> p, ds;
    clear(p);
    multiply_rows(p, rows.k, Tile<HD>::by_columns(q, lane));
#pragma unroll
    for (int n = 0; n < Config::STEP / 8; n++) {
        /* of this lane's two columns: {-lse2, -D, -lse2, -D} */
        const float4 stats = *reinterpret_cast<const float4 *>(stage_stats + first + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int b = 0; b < Config::BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[b][n][i] = fmaf(p[b][n][i], scale_log2, i % 2 ? stats.z : stats.x);
                ds[b][n][i] = i % 2 ? stats.w : stats.y;
            }
    }
    /* Once lse is subtracted: where it is NaN, -inf would not stay -inf, and dV of keys not seen would be NaN. */
    if (MASKED) mask_scores<true>(p, key, query);
    mask_beyond<true>(p, mask, key, query);
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < Config::STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) p[b][n][i] = ex2(p[b][n][i]);
    if constexpr ((PART & PART_DK) != 0)
        multiply_rows(ds, rows.v, Tile<HD>::by_columns(dout, lane)); /* dP - D */
    const uint32_t dropped = dropped_elements<true, Mask, Config::BLOCKS>(mask, matrix, key, query);
    if constexpr ((PART & PART_DV) != 0) add_dv(rows, p, dout, dropped);
    if constexpr ((PART & PART_DK) != 0) add_dk(rows, ds, p, q, stage_stats + first, dropped);
}

/* Tiles of QUERIES queries of one head in two stages of shared memory, from the block's first key on: while one is used,
 * the next is under way. All threads of the block call all functions. */
template <int HD, bool PADDED> struct QueryTiles {
    using Config = KeyConfig<HD>;
    uint8_t *shared;
    uint32_t base, stage;           /* address of shared; offset of the tile in it: Q, dO, statistics */
    const bf16 *next_q, *next_dout; /* first rows of the tile to fetch next */
    const RowStats *next_stats;
    int C, query; /* first of the tile at `stage` */
    HeadSize<HD, PADDED> size;

    __device__ __forceinline__ uint32_t other() const {
        return 4 * Config::ROWS_BYTES + Config::STAGE_BYTES - stage;
    }
    __device__ __forceinline__ const RowStats *stats() const {
        return reinterpret_cast<const RowStats *>(shared + stage + 2 * Config::TILE_BYTES);
    }
    __device__ __forceinline__ void fetch(uint32_t to, int rows_valid) {
        load_tile<Config::QUERIES, Config::THREADS>(base + to, next_q, 3 * C, rows_valid, size);
        load_tile<Config::QUERIES, Config::THREADS>(base + to + Config::TILE_BYTES, next_dout, C, rows_valid,
                                                    size);
        if (threadIdx.x < Config::QUERIES)
            cp_async_8(base + to + 2 * Config::TILE_BYTES + threadIdx.x * sizeof(RowStats),
                       next_stats + threadIdx.x, (int)threadIdx.x < rows_valid);
        cp_async_commit();
        next_q += Config::QUERIES * 3 * C;
        next_dout += Config::QUERIES * C;
        next_stats += Config::QUERIES;
    }
    /* The tile has landed and nobody reads the other stage any more: fetches the next tile into it. */
    __device__ __forceinline__ void begin(int end, int T) {
        cp_async_wait<0>();
        __syncthreads();
        if (query + Config::QUERIES < end) fetch(other(), T - query - Config::QUERIES);
    }
    __device__ __forceinline__ void end() {
        stage = other();
        query += Config::QUERIES;
    }
};

/* grid: order.total blocks of THREADS. stats (B,NH,T); the K part of dqkv =, or its V part, or both. */
template <int HD, bool PADDED, KeyPart PART, class Mask>
__global__ void __launch_bounds__(KeyConfig<HD>::THREADS, 2)
    sm80_backward_dkv_kernel(bf16 *dqkv, const RowStats *stats, const bf16 *dout, const bf16 *qkv, int T,
                             int NH, float softmax_scale, const __grid_constant__ TileOrder order, Mask mask,
                             HeadSize<HD, PADDED> size) {
    using Config = KeyConfig<HD>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const BlockRows at = block_rows<false>(order, Config::ROWS, T, NH, size.columns());
    mask.enter_sequence((int)((at.token - at.row0) / T));
    const int C = NH * size.columns(), stride = 3 * C;
    const bf16 *q = qkv + at.token * stride + at.column;
    const int warp_first = threadIdx.x / 32 * Config::BLOCKS * 16, warp_row = at.row0 + warp_first;
    const bool active = warp_row < T;
    const uint32_t base = shared_address(shared), warp_bytes = warp_first * Tile<HD>::ROW_BYTES;
    QueryTiles<HD, PADDED> tiles = {
        shared,  base, 2 * Config::ROWS_BYTES, q, dout + at.token * C + at.column, stats + at.stat, C,
        at.row0, size};
    load_tile<Config::ROWS, Config::THREADS>(base, q + C, stride, T - at.row0, size);
    load_tile<Config::ROWS, Config::THREADS>(base + Config::ROWS_BYTES, q + 2 * C, stride, T - at.row0, size);
    tiles.fetch(tiles.stage, T - at.row0);
    cp_async_wait<0>();
    __syncthreads();
    KeyRows<HD> rows;
    hold_rows(rows.k, base + warp_bytes);
    hold_rows(rows.v, base + Config::ROWS_BYTES + warp_bytes);
    clear(rows.dk);
    clear(rows.dv);

    const int end = mask.end_query(at.row0 + Config::ROWS, T);
    const DropoutMatrix matrix = mask.matrix(at.head);
    const float scale_log2 = softmax_scale * LOG2E;
    for (; tiles.query < min(at.row0 + Config::ROWS, T); tiles.end()) {
        tiles.begin(end, T);
#pragma unroll 1
        for (int i = 0; i < Config::QUERIES; i += Config::STEP)
            if (active && tiles.query + i + Config::STEP > warp_row &&
                !mask.hides_block(tiles.query, warp_row))
                key_step<HD, PART, true>(rows, base + tiles.stage, tiles.stats(), i, warp_row,
                                         tiles.query + i, scale_log2, mask, matrix);
    }
    for (; tiles.query < end; tiles.end()) {
        tiles.begin(end, T);
        if (active && !mask.hides_block(tiles.query, warp_row))
#pragma unroll 1
            for (int i = 0; i < Config::QUERIES; i += Config::STEP)
                key_step<HD, PART, false>(rows, base + tiles.stage, tiles.stats(), i, warp_row,
                                          tiles.query + i, scale_log2, mask, matrix);
    }
    if (!active) return;
    scale(rows.dk, softmax_scale * mask.kept_scale());
    if constexpr (!Mask::PLAIN) scale(rows.dv, mask.kept_scale());
    bf16 *dk = dqkv + (at.token + warp_first) * stride + C + at.column;
    if (PART & PART_DK) store_rows(dk, stride, T - warp_row, shared + warp_bytes, rows.dk, size);
    if (PART & PART_DV)
        store_rows(dk + C, stride, T - warp_row, shared + Config::ROWS_BYTES + warp_bytes, rows.dv, size);
}

template <int HD, bool PADDED, KeyPart PART, class Mask>
static void launch_dkv(bf16 *dqkv, const bf16 *dout, const bf16 *qkv, const RowStats *stats, Mask mask, int B,
                       int T, int NH, int head_size) {
    using Key = KeyConfig<HD>;
    const TileOrder order = tile_order(B, T, NH, Key::ROWS, 2 * head_size * sizeof(bf16) + sizeof(RowStats),
                                       false, HEAD_GROUP_BYTES);
    allow_shared_bytes<sm80_backward_dkv_kernel<HD, PADDED, PART, Mask>>(Key::SHARED_BYTES);
    sm80_backward_dkv_kernel<HD, PADDED, PART, Mask>
        <<<order.total, Key::THREADS, Key::SHARED_BYTES, main_stream>>>(
            dqkv, stats, dout, qkv, T, NH, 1.0f / sqrtf(head_size), order, mask, {head_size});
    launch_check("sm80_backward_dkv_kernel");
}

template <int HD, bool PADDED, class Mask>
static void launch(bf16 *dqkv, const bf16 *dout, const bf16 *out, const bf16 *qkv, const float *lse,
                   RowStats *stats, Mask mask, int B, int T, int NH, int head_size) {
    using Query = QueryConfig<HD>;
    const TileOrder order =
        tile_order(B, T, NH, Query::ROWS, 2 * head_size * sizeof(bf16), true, HEAD_GROUP_BYTES);
    allow_shared_bytes<sm80_backward_dq_kernel<HD, PADDED, Mask>>(Query::SHARED_BYTES);
    sm80_backward_dq_kernel<HD, PADDED, Mask>
        <<<order.total, Query::THREADS, Query::SHARED_BYTES, main_stream>>>(
            dqkv, stats, dout, out, qkv, lse, T, NH, 1.0f / sqrtf(head_size), order, mask, {head_size});
    launch_check("sm80_backward_dq_kernel");
    if constexpr (HD <= 128) {
        launch_dkv<HD, PADDED, PART_BOTH>(dqkv, dout, qkv, stats, mask, B, T, NH, head_size);
    } else {
        launch_dkv<HD, PADDED, PART_DK>(dqkv, dout, qkv, stats, mask, B, T, NH, head_size);
        launch_dkv<HD, PADDED, PART_DV>(dqkv, dout, qkv, stats, mask, B, T, NH, head_size);
    }
}

template <class Mask>
static void any_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                         const float *lse, void *scratch, Mask mask, int B, int T, int NH, int HD) {
    typedef void Launch(bf16 *, const bf16 *, const bf16 *, const bf16 *, const float *, RowStats *, Mask,
                        int, int, int, int);
    static const Sm80HeadSizes<Launch> launches = SM80_HEAD_SIZES(launch);
    launches.of(HD)((bf16 *)dqkv, (const bf16 *)dout, (const bf16 *)out, (const bf16 *)qkv, lse,
                    (RowStats *)scratch, mask, B, T, NH, HD);
}

void sm80_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    any_backward(dqkv, dout, out, qkv, lse, scratch, PlainMask(), B, T, NH, HD);
}

void sm80_masked_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, const float *d, const AttentionMask *mask,
                                    void *scratch, int B, int T, int NH, int HD) {
    any_backward(dqkv, dout, out, qkv, lse, scratch, general_mask(mask, T), B, T, NH, HD);
}
