/* Attention forward for bf16 on mma.sync, any head size up to 256 (FlashAttention-2, Dao 2023, Algorithm 1).
 *
 * One block owns 128 query rows of one head, each of its 4 warps 32 of them, and walks the keys in tiles of
 * 64 from the diagonal down (64 rows and tiles of 32 where the head size is above 128). O, the running max and the running sum stay in registers; O and lse are the only
 * writes. out =, lse =.
 *
 * Why so: 32 rows a warp let every K or V fragment feed two products. With 16, reading fragments from shared
 * memory (128 B/clk) takes longer than multiplying them. Two blocks share an SM, so one multiplies while the
 * other takes exponentials. Starting at the diagonal makes the max of every row finite from its first tile
 * on. */
#include "llmc/cuda/attention/paths.cuh"
#include "sm80_mask.cuh"

/* HD: columns of a tile. Results do not depend on these values beyond fp32 rounding. */
template <int HD> struct ForwardConfig {
    static constexpr int WARPS = 4, BLOCKS = HD <= 128 ? 2 : 1; /* BLOCKS: 16-row blocks of a warp */
    static constexpr int ROWS = WARPS * BLOCKS * 16;            /* queries of a thread block */
    static constexpr int KEYS = HD <= 128 ? 64 : 32;            /* keys of a tile */
    static constexpr int THREADS = WARPS * 32;
    static constexpr bool Q_IN_REGISTERS = HD <= 64 || HD == 192; /* at 128 O alone takes 128 registers */
    static constexpr int Q_BYTES = ROWS * HD * 2, TILE_BYTES = KEYS * HD * 2;
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES; /* K, then V */
    static constexpr int SHARED_BYTES = Q_BYTES + 2 * STAGE_BYTES;
    static_assert(KEYS % (BLOCKS * 16) == 0, "the diagonal of a warp lies in one tile");
    static_assert(ROWS % KEYS == 0, "the tiles below row0 need no mask");
    static_assert(SHARED_BYTES <= 99 * 1024, "fits sm_86 and sm_89, and twice an SM of sm_90");
};

/* Rescaling O for every new max costs as much as the products' other register work. A stale max is as good as
 * the true one while 2^(x - max) stays far from overflow, so O is rescaled only when the max grew by more
 * than this. */
constexpr float MAX_GROWTH_LOG2 = 8.0f;

/* A warp's share of the result; index [b][h] is row 16 b + 8 h + lane/4. */
template <int HD> struct ForwardState {
    float o[ForwardConfig<HD>::BLOCKS][HD / 8][4];
    float row_max[ForwardConfig<HD>::BLOCKS]
                 [2]; /* log2 units: max of scale * q.k * log2(e), at most 8 stale */
    float row_sum[ForwardConfig<HD>::BLOCKS][2]; /* of this lane's columns only */
};

template <int HD> using ForwardScores = Scores<ForwardConfig<HD>::BLOCKS, ForwardConfig<HD>::KEYS>;
template <int HD> using QRows = RowOperand<HD, ForwardConfig<HD>::BLOCKS, ForwardConfig<HD>::Q_IN_REGISTERS>;

/* Moves the running max up, and O and the sums with it, where it grew too much. fmaxf drops NaNs, but 2^(NaN
 * - max) is NaN in the sum and in O all the same. */
template <int HD>
__device__ __forceinline__ void update_max(ForwardState<HD> &state, const ForwardScores<HD> &s,
                                           float scale_log2) {
    using Config = ForwardConfig<HD>;
    float tile_max[Config::BLOCKS][2];
    bool grew = false;
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = fmaxf(s[b][0][2 * h], s[b][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < Config::KEYS / 8; n++)
                m = fmaxf(m, fmaxf(s[b][n][2 * h], s[b][n][2 * h + 1]));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            tile_max[b][h] = m * scale_log2;
            grew |= tile_max[b][h] > state.row_max[b][h] + MAX_GROWTH_LOG2;
        }
    if (!__any_sync(0xffffffffu, grew)) return;
#pragma unroll
    for (int b = 0; b < Config::BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float m = fmaxf(state.row_max[b][h], tile_max[b][h]);
            const float shrink = ex2(state.row_max[b][h] - m);
            state.row_max[b][h] = m;
            state.row_sum[b][h] *= shrink;
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                state.o[b][n][2 * h] *= shrink;
                state.o[b][n][2 * h + 1] *= shrink;
            }
        }
}

/* P = 2^(s * scale_log2 - max), sums += P, O += P V, 16 keys at a time: the exponentials of the next 16 run
 * beside the products of these. row, key: positions of s[0]'s first row and column. */
template <int HD, class Mask>
__device__ __forceinline__ void multiply_pv(ForwardState<HD> &state, ForwardScores<HD> &s, uint32_t v_lane,
                                            float scale_log2, const Mask &mask, DropoutMatrix matrix, int row,
                                            int key) {
    using Config = ForwardConfig<HD>;
#pragma unroll
    for (int k = 0; k < Config::KEYS / 16; k++) {
        uint32_t p[Config::BLOCKS][4];
        const uint32_t dropped =
            dropped_elements<false, Mask, Config::BLOCKS>(mask, matrix, row, key + 16 * k);
#pragma unroll
        for (int b = 0; b < Config::BLOCKS; b++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int n = 2 * k + i / 4, h = i % 4 / 2;
                float &x = s[b][n][i % 4];
                x = ex2(fmaf(x, scale_log2, -state.row_max[b][h]));
                state.row_sum[b][h] += x;
                if (is_dropped(dropped, b, i)) x = 0.0f;
            }
            pack_fragment(p[b], s[b], k);
        }
        multiply_tile<HD>(state.o, p, v_lane, 16 * k);
    }
}

/* One warp's work on one tile of keys at `stage`. MASKED: the tile may hold keys after a row; row, key: the
 * first of the warp's rows and of the tile. */
template <int HD, bool MASKED, class Mask>
__device__ __forceinline__ void forward_tile(ForwardState<HD> &state, const QRows<HD> &q, uint32_t stage,
                                             int row, int key, float scale_log2, const Mask &mask,
                                             DropoutMatrix matrix) {
    const int lane = threadIdx.x % 32;
    ForwardScores<HD> s;
    clear(s);
    multiply_rows(s, q, Tile<HD>::by_columns(stage, lane));
    if (MASKED) mask_scores<false>(s, row, key);
    mask_beyond<false>(s, mask, row, key);
    update_max<HD>(state, s, scale_log2);
    multiply_pv<HD>(state, s, Tile<HD>::by_rows(stage + ForwardConfig<HD>::TILE_BYTES, lane), scale_log2,
                    mask, matrix, row, key);
}

/* No key seen yet. */
template <int HD> __device__ __forceinline__ void start(ForwardState<HD> &state) {
    clear(state.o);
#pragma unroll
    for (int b = 0; b < ForwardConfig<HD>::BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            state.row_max[b][h] = -CUDART_INF_F;
            state.row_sum[b][h] = 0.0f;
        }
}

/* Writes O = o * kept_scale / sum and lse = (max + log2(sum)) * ln 2 of the warp's rows. q_rows: the warp's rows of Q's
 * tile. */
template <int HD, bool PADDED>
__device__ __forceinline__ void store_forward(bf16 *out, float *lse, int stride, int rows_valid,
                                              uint8_t *q_rows, ForwardState<HD> &state, float kept_scale,
                                              HeadSize<HD, PADDED> size) {
    constexpr int BLOCKS = ForwardConfig<HD>::BLOCKS;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = state.row_sum[b][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int row = 16 * b + 8 * h + lane / 4;
            if (lane % 4 == 0 && row < rows_valid) lse[row] = (state.row_max[b][h] + log2f(sum)) * LN2;
            const float inverse = kept_scale / sum;
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                state.o[b][n][2 * h] *= inverse;
                state.o[b][n][2 * h + 1] *= inverse;
            }
        }
    store_rows(out, stride, rows_valid, q_rows, state.o, size);
}

/* grid: order.total blocks of THREADS. Shapes as in ops.h. */
template <int HD, bool PADDED, class Mask>
__global__ void __launch_bounds__(ForwardConfig<HD>::THREADS, 2)
    sm80_forward_kernel(bf16 *out, float *lse, const bf16 *qkv, int T, int NH, float scale_log2,
                        const __grid_constant__ TileOrder order, Mask mask, HeadSize<HD, PADDED> size) {
    using Config = ForwardConfig<HD>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const BlockRows at = block_rows<true>(order, Config::ROWS, T, NH, size.columns());
    mask.enter_sequence((int)((at.token - at.row0) / T));
    const int C = NH * size.columns();

    const int warp_first = threadIdx.x / 32 * Config::BLOCKS * 16, warp_row = at.row0 + warp_first;
    const bool active = warp_row < T;
    const uint32_t base = shared_address(shared), warp_bytes = warp_first * Tile<HD>::ROW_BYTES;

    auto keys =
        key_tiles<Config::KEYS, Config::THREADS>(qkv, base + Config::Q_BYTES, at, Config::ROWS, T, C, size);
    load_tile<Config::ROWS, Config::THREADS>(base, qkv + at.token * 3 * C + at.column, 3 * C, T - at.row0,
                                             size);
    keys.fetch(keys.stage, T - keys.tile * Config::KEYS);

    ForwardState<HD> state;
    start(state);
    cp_async_wait<0>();
    __syncthreads();
    QRows<HD> q_held;
    hold_rows(q_held, base + warp_bytes);
    const DropoutMatrix matrix = mask.matrix(at.head);

    const int last_tile = mask.first_key(at.row0) / Config::KEYS;
    for (; keys.tile * Config::KEYS >= at.row0; keys.end()) {
        keys.begin(last_tile);
        if (active && keys.tile * Config::KEYS <= warp_row &&
            !mask.hides_block(warp_row, keys.tile * Config::KEYS))
            forward_tile<HD, true>(state, q_held, keys.stage, warp_row, keys.tile * Config::KEYS, scale_log2,
                                   mask, matrix);
    }
    for (; keys.tile >= last_tile; keys.end()) {
        keys.begin(last_tile);
        if (active && !mask.hides_block(warp_row, keys.tile * Config::KEYS))
            forward_tile<HD, false>(state, q_held, keys.stage, warp_row, keys.tile * Config::KEYS, scale_log2,
                                    mask, matrix);
    }
    if (active)
        store_forward(out + (at.token + warp_first) * C + at.column, lse + at.stat + warp_first, C,
                      T - warp_row, shared + warp_bytes, state, mask.kept_scale(), size);
}

template <int HD, bool PADDED, class Mask>
static void launch(bf16 *out, float *lse, const bf16 *qkv, Mask mask, int B, int T, int NH, int head_size) {
    using Config = ForwardConfig<HD>;
    const TileOrder order =
        tile_order(B, T, NH, Config::ROWS, 2 * head_size * sizeof(bf16), true, HEAD_GROUP_BYTES);
    allow_shared_bytes<sm80_forward_kernel<HD, PADDED, Mask>>(Config::SHARED_BYTES);
    sm80_forward_kernel<HD, PADDED, Mask>
        <<<order.total, Config::THREADS, Config::SHARED_BYTES, main_stream>>>(
            out, lse, qkv, T, NH, LOG2E / sqrtf(head_size), order, mask, {head_size});
    launch_check("sm80_forward_kernel");
}

template <class Mask>
static void any_forward(floatX *out, float *lse, const floatX *qkv, Mask mask, int B, int T, int NH, int HD) {
    typedef void Launch(bf16 *, float *, const bf16 *, Mask, int, int, int, int);
    static const Sm80HeadSizes<Launch> launches = SM80_HEAD_SIZES(launch);
    launches.of(HD)((bf16 *)out, lse, (const bf16 *)qkv, mask, B, T, NH, HD);
}

void sm80_attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    any_forward(out, lse, qkv, PlainMask(), B, T, NH, HD);
}

void sm80_masked_attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask,
                                   int B, int T, int NH, int HD) {
    any_forward(out, lse, qkv, general_mask(mask, T), B, T, NH, HD);
}
