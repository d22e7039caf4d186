/* Back through the MLP's second layer for sm_90a: dx = (dout W) gelu'(pre_gelu), its column sums and, where asked,
 * gelu(pre_gelu), in one kernel. See linear_backward_sm90.cuh for the kernel.
 *
 * `other` is pre_gelu, and its pieces are those through which first dx and then gelu leave. But for the column sums no
 * warp waits for another.
 *
 * The product is rounded before it meets gelu', as where a pass of its own does that (column_sums.cu): equal bits. */
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/ops/gelu.cuh"
#include "linear_backward_sm90.cuh"

using namespace product;

enum {
    THREAD_COLUMNS = TILE_N / 4, /* columns whose sums a thread has, over its four rows */
    LANE_COLUMNS = TILE_N / 32,  /* of them after the 8 lanes that share columns have shared the work */
};

template <bool FORWARD> struct GeluBackwardArgs : BackwardProduct { /* other: pre_gelu */
    CUtensorMap gelu;                                               /* matrix_map of pieces; FORWARD alone */
    float *partials; /* (ceil(M / TILE_M), N) column sums of a tile's dx, or NULL */
};

/* ---- GELU ---- */

/* Two neighbours: returns x gelu'(pre), and pre becomes gelu(pre). */
__device__ __forceinline__ uint32_t pair_through_gelu(float x0, float x1, uint32_t &pre) {
    const uint32_t x = cvt_bf16x2(x0, x1);
    float low = bf16_low(x), high = bf16_high(x), pre_low = bf16_low(pre), pre_high = bf16_high(pre);
    through_gelu<bf16>(low, pre_low);
    through_gelu<bf16>(high, pre_high);
    pre = cvt_bf16x2(pre_low, pre_high);
    return cvt_bf16x2(low, high);
}

/* Columns 16 j .. 16 j + 15 of a box: dx to the place of pre_gelu; gelu stays in registers; sum: of the thread's four
 * columns */
__device__ __forceinline__ void finish_columns(float *sum, uint32_t (&gelu)[HALVES][4], const Sums &d,
                                               const WarpPieces &p, int box, int j) {
    uint32_t dx[HALVES][4];
#pragma unroll
    for (int half = 0; half < HALVES; half++)
        ldmatrix_x4(gelu[half], piece_address(p.at[half * BOXES + box], j));
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &d[half][(box * 4 + j) * 8 + 2 * i];
            dx[half][i] = pair_through_gelu(x[0], x[1], gelu[half][i]);
            sum[i / 2 * 2] += bf16_low(dx[half][i]);
            sum[i / 2 * 2 + 1] += bf16_high(dx[half][i]);
        }
#pragma unroll
    for (int half = 0; half < HALVES; half++)
        stmatrix_x4(piece_address(p.at[half * BOXES + box], j), dx[half]);
}

/* ---- column sums ---- */

/* Lanes that are `distance` apart share 2 N sums: each keeps half of them, and sends the other half. */
template <int N> __device__ __forceinline__ void halve_sums(float (&sum)[THREAD_COLUMNS], int distance) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float sent = upper ? sum[i] : sum[i + N], kept = upper ? sum[i + N] : sum[i];
        sum[i] = kept + __shfl_xor_sync(0xffffffffu, sent, distance);
    }
}

/* Column sums of the tile: each warp's 8 lanes that share columns, then the four warps in order, through `sums`.
 * sum[i]: of column i / 2 * 8 + i % 2 from the thread's first. */
__device__ __forceinline__ void store_partials(const Product &product, float *partials, float *sums,
                                               float (&sum)[THREAD_COLUMNS], Tile tile, int group) {
    if (!partials) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32, N = product.N;
    halve_sums<THREAD_COLUMNS / 2>(sum, 16);
    halve_sums<THREAD_COLUMNS / 4>(sum, 8);
    halve_sums<LANE_COLUMNS>(sum, 4); /* now sum lane / 4 * LANE_COLUMNS + i */
    partials += (int64_t)(tile.m / TILE_M) * N + tile.n;
    for (int turn = 0; turn < 4; turn++) {
#pragma unroll
        for (int i = 0; i < LANE_COLUMNS / 2; i++) {
            if (turn != warp) break;
            const int column = (lane / 4 * (LANE_COLUMNS / 2) + i) * 8 + thread_column();
            float2 total = make_float2(sum[2 * i], sum[2 * i + 1]);
            if (turn > 0) {
                const float2 before = *reinterpret_cast<const float2 *>(sums + column);
                total = make_float2(before.x + total.x, before.y + total.y);
            }
            if (turn < 3)
                *reinterpret_cast<float2 *>(sums + column) = total;
            else if (tile.m < product.M && tile.n + column < N)
                *reinterpret_cast<float2 *>(partials + column) = total;
        }
        named_barrier_sync<WARPGROUP>(1 + CONSUMERS + group);
    }
}

/* ---- a tile ---- */

template <bool FORWARD>
__device__ __forceinline__ void finish_tile(ProductShared &s, const GeluBackwardArgs<FORWARD> &args,
                                            const Sums &d, const WarpPieces &p, Tile tile, int group) {
    uint32_t gelu[BOXES][4][HALVES][4];
    float sum[THREAD_COLUMNS] = {};
#pragma unroll
    for (int box = 0; box < BOXES; box++) {
#pragma unroll
        for (int j = 0; j < 4; j++) finish_columns(&sum[(box * 4 + j) * 4], gelu[box][j], d, p, box, j);
        store_box(args.dx, p, box);
    }
    store_partials(args.product, args.partials, s.sums[group], sum, tile, group);
#pragma unroll
    for (int box = 0; FORWARD && box < BOXES; box++) {
        if (threadIdx.x % 32 == 0) bulk_wait_read<BOXES - 1>(); /* dx of this box has left */
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4 * HALVES; i++)
            stmatrix_x4(piece_address(p.at[i % HALVES * BOXES + box], i / HALVES),
                        gelu[box][i / HALVES][i % HALVES]);
        store_box(args.gelu, p, box);
    }
}

/* ---- launch ---- */

size_t linear_gelu_backward_sm90_scratch_bytes(int64_t N, int IC) {
    return (size_t)ceil_div<int64_t>(N, TILE_M) * IC * sizeof(float);
}

bool linear_gelu_backward_sm90(const LinearCall *c) {
    if (!product_serves(c->x, c->y)) return false;
    const int tiles = (int)ceil_div<int64_t>(c->x.rows, TILE_M);
    float *partials = c->sums ? (float *)c->scratch : NULL;
    const BackwardProduct base = backward_product(c, c->pre_gelu);
    if (c->gelu.data) {
        const GeluBackwardArgs<true> args = {base, matrix_map(c->gelu, PIECE_ROWS), partials};
        launch_product("linear_gelu_backward", linear_backward_kernel<GeluBackwardArgs<true>>, args,
                       base.product);
    } else {
        const GeluBackwardArgs<false> args = {base, {}, partials};
        launch_product("linear_gelu_backward", linear_backward_kernel<GeluBackwardArgs<false>>, args,
                       base.product);
    }
    if (c->sums) add_partial_rows(PartialSums{{c->sums}, 1, 1}, partials, tiles, c->x.columns);
    return true;
}
