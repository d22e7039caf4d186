/* Attention backward for bf16 on mma.sync, head size 64 and 128 (FlashAttention-2, Dao 2023, Algorithm 2, split in two
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
 * ever passes through shared memory. */
#include "llmc/cuda/attention/paths.cuh"
#include "sm80_mask.cuh"

/* One row per head size for each pass. Results do not depend on a row's values beyond fp32 rounding. */
template <int HD> struct QueryConfig {
    static constexpr int WARPS = 4, BLOCKS = 2; /* BLOCKS: 16-row blocks of a warp */
    static constexpr int THREADS = WARPS * 32;
    static constexpr int ROWS = WARPS * BLOCKS * 16;   /* queries of a thread block */
    static constexpr int KEYS = HD == 64 ? 64 : 32;    /* of a tile */
    static constexpr int STEP = 32;                    /* keys whose scores are in registers */
    static constexpr bool HELD = HD == 64;             /* Q and dO in registers; at 128 they do not fit */
    static constexpr int ROWS_BYTES = ROWS * HD * 2;   /* of Q, of dO, of O */
    static constexpr int TILE_BYTES = KEYS * HD * 2;   /* of K, of V */
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES; /* K, then V */
    static constexpr int SHARED_BYTES = 2 * ROWS_BYTES + 2 * STAGE_BYTES;
    static_assert(THREADS == ROWS, "one thread computes D of one row");
    static_assert(KEYS % STEP == 0 && ROWS % KEYS == 0 && STEP == BLOCKS * 16,
                  "the diagonal of a warp is one step");
    static_assert(ROWS_BYTES <= 2 * STAGE_BYTES, "O passes through the stages");
    static_assert(SHARED_BYTES <= 99 * 1024, "fits sm_86 and sm_89, and twice an SM of sm_90");
};

template <int HD> struct KeyConfig {
    static constexpr int WARPS = 4, BLOCKS = HD == 64 ? 2 : 1; /* dK and dV of a warp fill 128 registers */
    static constexpr int THREADS = WARPS * 32;
    static constexpr int ROWS = WARPS * BLOCKS * 16;    /* keys of a thread block */
    static constexpr int QUERIES = 64;                  /* of a tile */
    static constexpr int STEP = 16;                     /* queries whose scores are in registers */
    static constexpr bool HELD_K = true, HELD_V = true; /* in registers */
    static constexpr int ROWS_BYTES = ROWS * HD * 2;    /* of K, of V */
    static constexpr int TILE_BYTES = QUERIES * HD * 2; /* of Q, of dO */
    static constexpr int STAGE_BYTES =
        2 * TILE_BYTES + QUERIES * (int)sizeof(RowStats); /* Q, dO, statistics */
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

/* This thread has D of the block's row threadIdx.x: writes that row's statistics for the dK/dV pass, and
 * hands them to the lanes that hold the row's scores; a warp's rows are those of its lanes. */
template <int HD>
__device__ __forceinline__ void make_stats(QueryRows<HD> &rows, RowStats *stats, const float *lse, float d,
                                           int rows_valid) {
    const int lane = threadIdx.x % 32;
    RowStats own = {0.0f, -d};
    if ((int)threadIdx.x < rows_valid) {
        own.neg_lse2 = -LOG2E * lse[threadIdx.x];
        stats[threadIdx.x] = own;
    }
#pragma unroll
    for (int b = 0; b < QueryConfig<HD>::BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            rows.neg_lse2[b][h] = __shfl_sync(0xffffffffu, own.neg_lse2, 16 * b + 8 * h + lane / 4);
            rows.neg_d[b][h] = __shfl_sync(0xffffffffu, own.neg_d, 16 * b + 8 * h + lane / 4);
        }
}

template <int HD> using QueryMaskRows = MaskRows<QueryConfig<HD>::BLOCKS>;

/* dq += dS K for STEP keys of a stage, `first` and on. MASKED: some may come after a row; row, key: positions
 * of the warp's first row and of key `first`. */
template <int HD, bool MASKED, class Mask>
__device__ __forceinline__ void query_step(float (&dq)[QueryConfig<HD>::BLOCKS][HD / 8][4],
                                           const QueryRows<HD> &rows, uint32_t stage, int first, int row,
                                           int key, float scale_log2, const Mask &mask,
                                           const QueryMaskRows<HD> &mask_rows) {
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
        const uint32_t dropped = dropped_keys<Mask, Config::BLOCKS>(mask, mask_rows, key + 16 * j);
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
template <int HD, class Mask>
__global__ void __launch_bounds__(QueryConfig<HD>::THREADS, 2)
    sm80_backward_dq_kernel(bf16 *dqkv, RowStats *stats, const bf16 *dout, const bf16 *out, const bf16 *qkv,
                            const float *lse, int T, int NH, float softmax_scale,
                            const __grid_constant__ TileOrder order, Mask mask) {
    using Config = QueryConfig<HD>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const BlockRows at = block_rows<true>(order, Config::ROWS, T, NH, HD);
    const int C = NH * HD, stride = 3 * C;
    const int64_t o_offset = at.token * C + at.column;

    const int warp_first = threadIdx.x / 32 * Config::BLOCKS * 16, warp_row = at.row0 + warp_first;
    const bool active = warp_row < T;
    const uint32_t base = shared_address(shared), warp_bytes = warp_first * Tile<HD>::ROW_BYTES;
    auto keys = key_tiles<HD, Config::KEYS, Config::THREADS>(qkv, base + 2 * Config::ROWS_BYTES, at,
                                                             Config::ROWS, T, C);
    /* O lies at the end of the stages until D is known; the first tile is fetched beside it where there is
     * room. */
    constexpr int O_AT = Config::SHARED_BYTES - Config::ROWS_BYTES;
    constexpr bool ROOM = Config::ROWS_BYTES <= Config::STAGE_BYTES;
    load_tile<HD, Config::ROWS, Config::THREADS>(base, qkv + at.token * stride + at.column, stride,
                                                 T - at.row0);
    load_tile<HD, Config::ROWS, Config::THREADS>(base + Config::ROWS_BYTES, dout + o_offset, C, T - at.row0);
    load_tile<HD, Config::ROWS, Config::THREADS>(base + O_AT, out + o_offset, C, T - at.row0);
    cp_async_commit();
    if (ROOM) keys.fetch(keys.stage, T - keys.tile * Config::KEYS);
    cp_async_wait<ROOM ? 1 : 0>();
    __syncthreads();

    QueryRows<HD> rows;
    const float d = dot_rows<HD>(shared + Config::ROWS_BYTES, shared + O_AT, threadIdx.x);
    make_stats(rows, stats + at.stat, lse + at.stat, d * mask.kept(), T - at.row0);
    hold_rows(rows.q, base + warp_bytes);
    hold_rows(rows.dout, base + Config::ROWS_BYTES + warp_bytes);
    if (!ROOM) {
        __syncthreads(); /* O has been read by all */
        keys.fetch(keys.stage, T - keys.tile * Config::KEYS);
    }

    float dq[Config::BLOCKS][HD / 8][4];
    clear(dq);
    const float scale_log2 = softmax_scale * LOG2E;
    QueryMaskRows<HD> mask_rows;
    make_mask_rows<Mask, Config::BLOCKS>(mask_rows, mask, at.stat + warp_first);
    const int last_tile = mask.first_key(at.row0) / Config::KEYS;
    for (; keys.tile * Config::KEYS >= at.row0; keys.end()) {
        keys.begin(last_tile);
#pragma unroll 1
        for (int i = 0; i < Config::KEYS; i += Config::STEP)
            if (active && keys.tile * Config::KEYS + i <= warp_row)
                query_step<HD, true>(dq, rows, keys.stage, i, warp_row, keys.tile * Config::KEYS + i,
                                     scale_log2, mask, mask_rows);
    }
    for (; keys.tile >= last_tile; keys.end()) {
        keys.begin(last_tile);
        if (active)
#pragma unroll 1
            for (int i = 0; i < Config::KEYS; i += Config::STEP)
                query_step<HD, false>(dq, rows, keys.stage, i, warp_row, keys.tile * Config::KEYS + i,
                                      scale_log2, mask, mask_rows);
    }
    if (!active) return;
    scale(dq, softmax_scale * mask.kept_scale());
    store_rows<HD, Config::BLOCKS>(dqkv + (at.token + warp_first) * stride + at.column, stride, T - warp_row,
                                   shared + warp_bytes, dq);
}

/* ---- dK/dV pass ---- */

template <int HD> struct KeyRows {
    RowOperand<HD, KeyConfig<HD>::BLOCKS, KeyConfig<HD>::HELD_K> k;
    RowOperand<HD, KeyConfig<HD>::BLOCKS, KeyConfig<HD>::HELD_V> v;
    float dk[KeyConfig<HD>::BLOCKS][HD / 8][4], dv[KeyConfig<HD>::BLOCKS][HD / 8][4];
};

/* dk += dS^T Q, dv += P^T dO for STEP queries of a stage, `first` and on. MASKED: some may come before a key;
 * key, query: positions of the warp's first key and of query `first`; mask_row: of that query in the mask. */
template <int HD, bool MASKED, class Mask>
__device__ __forceinline__ void key_step(KeyRows<HD> &rows, uint32_t stage, const RowStats *stage_stats,
                                         int first, int key, int query, float scale_log2, const Mask &mask,
                                         uint64_t mask_site, int64_t mask_row) {
    using Config = KeyConfig<HD>;
    const int lane = threadIdx.x % 32;
    const uint32_t q = stage + first * Tile<HD>::ROW_BYTES, dout = q + Config::TILE_BYTES;
    Scores<Config::BLOCKS, Config::STEP> p, ds;
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
    multiply_rows(ds, rows.v, Tile<HD>::by_columns(dout, lane)); /* dP - D */
    const uint32_t dropped = dropped_queries<Mask, Config::BLOCKS>(mask, mask_site, mask_row, key);
    uint32_t packed[Config::BLOCKS][4];
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++) {
        float kept[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++)
            kept[i / 4][i % 4] = is_dropped(dropped, b, i) ? 0.0f : p[b][i / 4][i % 4];
        pack_fragment(packed[b], kept, 0);
    }
    multiply_tile<HD>(rows.dv, packed, Tile<HD>::by_rows(dout, lane), 0);
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &x = ds[b][i / 4][i % 4];
            if (is_dropped(dropped, b, i)) x = stage_stats[first + i / 4 * 8 + lane % 4 * 2 + i % 2].neg_d;
            x *= p[b][i / 4][i % 4];
        }
        pack_fragment(packed[b], ds[b], 0);
    }
    multiply_tile<HD>(rows.dk, packed, Tile<HD>::by_rows(q, lane), 0);
}

/* Tiles of QUERIES queries of one head in two stages of shared memory, from the block's first key on: while one is used,
 * the next is under way. All threads of the block call all functions. */
template <int HD> struct QueryTiles {
    using Config = KeyConfig<HD>;
    uint8_t *shared;
    uint32_t base, stage;           /* address of shared; offset of the tile in it: Q, dO, statistics */
    const bf16 *next_q, *next_dout; /* first rows of the tile to fetch next */
    const RowStats *next_stats;
    int C, query; /* first of the tile at `stage` */

    __device__ __forceinline__ uint32_t other() const {
        return 4 * Config::ROWS_BYTES + Config::STAGE_BYTES - stage;
    }
    __device__ __forceinline__ const RowStats *stats() const {
        return reinterpret_cast<const RowStats *>(shared + stage + 2 * Config::TILE_BYTES);
    }
    __device__ __forceinline__ void fetch(uint32_t to, int rows_valid) {
        load_tile<HD, Config::QUERIES, Config::THREADS>(base + to, next_q, 3 * C, rows_valid);
        load_tile<HD, Config::QUERIES, Config::THREADS>(base + to + Config::TILE_BYTES, next_dout, C,
                                                        rows_valid);
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

/* grid: order.total blocks of THREADS. stats (B,NH,T), the K and V parts of dqkv =. */
template <int HD, class Mask>
__global__ void __launch_bounds__(KeyConfig<HD>::THREADS, 2)
    sm80_backward_dkv_kernel(bf16 *dqkv, const RowStats *stats, const bf16 *dout, const bf16 *qkv, int T,
                             int NH, float softmax_scale, const __grid_constant__ TileOrder order,
                             Mask mask) {
    using Config = KeyConfig<HD>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const BlockRows at = block_rows<false>(order, Config::ROWS, T, NH, HD);
    const int C = NH * HD, stride = 3 * C;
    const bf16 *q = qkv + at.token * stride + at.column;
    const int warp_first = threadIdx.x / 32 * Config::BLOCKS * 16, warp_row = at.row0 + warp_first;
    const bool active = warp_row < T;
    const uint32_t base = shared_address(shared), warp_bytes = warp_first * Tile<HD>::ROW_BYTES;
    QueryTiles<HD> tiles = {
        shared, base,   2 * Config::ROWS_BYTES, q, dout + at.token * C + at.column, stats + at.stat,
        C,      at.row0};
    load_tile<HD, Config::ROWS, Config::THREADS>(base, q + C, stride, T - at.row0);
    load_tile<HD, Config::ROWS, Config::THREADS>(base + Config::ROWS_BYTES, q + 2 * C, stride, T - at.row0);
    tiles.fetch(tiles.stage, T - at.row0);
    cp_async_wait<0>();
    __syncthreads();
    KeyRows<HD> rows;
    hold_rows(rows.k, base + warp_bytes);
    hold_rows(rows.v, base + Config::ROWS_BYTES + warp_bytes);
    clear(rows.dk);
    clear(rows.dv);

    const int end = mask.end_query(at.row0 + Config::ROWS, T);
    const uint64_t mask_site = mask.site();
    const int64_t mask_row0 = at.stat - at.row0; /* of query 0 */
    const float scale_log2 = softmax_scale * LOG2E;
    for (; tiles.query < min(at.row0 + Config::ROWS, T); tiles.end()) {
        tiles.begin(end, T);
#pragma unroll 1
        for (int i = 0; i < Config::QUERIES; i += Config::STEP)
            if (active && tiles.query + i + Config::STEP > warp_row)
                key_step<HD, true>(rows, base + tiles.stage, tiles.stats(), i, warp_row, tiles.query + i,
                                   scale_log2, mask, mask_site, mask_row0 + tiles.query + i);
    }
    for (; tiles.query < end; tiles.end()) {
        tiles.begin(end, T);
        if (active)
#pragma unroll 1
            for (int i = 0; i < Config::QUERIES; i += Config::STEP)
                key_step<HD, false>(rows, base + tiles.stage, tiles.stats(), i, warp_row, tiles.query + i,
                                    scale_log2, mask, mask_site, mask_row0 + tiles.query + i);
    }
    if (!active) return;
    scale(rows.dk, softmax_scale * mask.kept_scale());
    if constexpr (!Mask::PLAIN) scale(rows.dv, mask.kept_scale());
    bf16 *dk = dqkv + (at.token + warp_first) * stride + C + at.column;
    store_rows<HD, Config::BLOCKS>(dk, stride, T - warp_row, shared + warp_bytes, rows.dk);
    store_rows<HD, Config::BLOCKS>(dk + C, stride, T - warp_row, shared + Config::ROWS_BYTES + warp_bytes,
                                   rows.dv);
}

template <int HD, class Mask>
static void launch(bf16 *dqkv, const bf16 *dout, const bf16 *out, const bf16 *qkv, const float *lse,
                   RowStats *stats, Mask mask, int B, int T, int NH) {
    using Query = QueryConfig<HD>;
    using Key = KeyConfig<HD>;
    const float scale = 1.0f / sqrtf(HD);
    const TileOrder query_order =
        tile_order(B, T, NH, Query::ROWS, 2 * HD * sizeof(bf16), true, HEAD_GROUP_BYTES);
    allow_shared_bytes<sm80_backward_dq_kernel<HD, Mask>>(Query::SHARED_BYTES);
    sm80_backward_dq_kernel<HD, Mask>
        <<<query_order.total, Query::THREADS, Query::SHARED_BYTES, main_stream>>>(
            dqkv, stats, dout, out, qkv, lse, T, NH, scale, query_order, mask);
    launch_check("sm80_backward_dq_kernel");
    const TileOrder key_order =
        tile_order(B, T, NH, Key::ROWS, 2 * HD * sizeof(bf16) + sizeof(RowStats), false, HEAD_GROUP_BYTES);
    allow_shared_bytes<sm80_backward_dkv_kernel<HD, Mask>>(Key::SHARED_BYTES);
    sm80_backward_dkv_kernel<HD, Mask><<<key_order.total, Key::THREADS, Key::SHARED_BYTES, main_stream>>>(
        dqkv, stats, dout, qkv, T, NH, scale, key_order, mask);
    launch_check("sm80_backward_dkv_kernel");
}

void sm80_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    (HD == 64 ? launch<64, PlainMask> : launch<128, PlainMask>)((bf16 *)dqkv, (const bf16 *)dout,
                                                                (const bf16 *)out, (const bf16 *)qkv, lse,
                                                                (RowStats *)scratch, PlainMask(), B, T, NH);
}

void sm80_masked_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, const AttentionMask *mask, void *scratch, int B, int T,
                                    int NH, int HD) {
    (HD == 64 ? launch<64, GeneralMask> : launch<128, GeneralMask>)((bf16 *)dqkv, (const bf16 *)dout,
                                                                    (const bf16 *)out, (const bf16 *)qkv, lse,
                                                                    (RowStats *)scratch,
                                                                    general_mask(mask, T), B, T, NH);
}
