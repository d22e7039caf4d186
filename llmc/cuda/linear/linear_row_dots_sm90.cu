/* Back through attention's projection for sm_90a: dx = dout W and, for every row and head, the sum of dx * other over
 * the head's columns, in one kernel: D = rowsum(dO * O) of FlashAttention-2 (Dao 2023, Algorithm 2, line 4), without
 * reading dO again. See linear_backward_sm90.cuh for the kernel.
 *
 * A tile's columns are two heads of 64 or one of 128, so no sum leaves a warp. dx is rounded before it is multiplied: D
 * is that of the dO that attention reads. */
#include "linear_backward_sm90.cuh"

using namespace product;

template <int GROUP> struct RowDotsArgs : BackwardProduct { float *row_dots; /* (M, N / GROUP) */ };

/* Columns 16 j .. 16 j + 15 of a box: dx to the place of `other`; dot: of the thread's rows, 8 apart in each half */
__device__ __forceinline__ void dot_columns(float (&dot)[HALVES][2], const Sums &d, const WarpPieces &p,
                                            int box, int j) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const uint32_t place = piece_address(p.at[half * BOXES + box], j);
        uint32_t dx[4], other[4];
        ldmatrix_x4(other, place);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &d[half][(box * 4 + j) * 8 + 2 * i];
            dx[i] = cvt_bf16x2(x[0], x[1]);
            dot[half][i % 2] += bf16_low(dx[i]) * bf16_low(other[i]);
            dot[half][i % 2] += bf16_high(dx[i]) * bf16_high(other[i]);
        }
        stmatrix_x4(place, dx);
    }
}

/* Sums over the four lanes of a row; each of them then writes one of their four rows. */
template <int GROUP>
__device__ __forceinline__ void store_dots(const RowDotsArgs<GROUP> &args, const float (&dot)[HALVES][2],
                                           const WarpPieces &p, int n) {
    const int lane = threadIdx.x % 4, row = p.m + threadIdx.x % 32 / 4 + lane / 2 * WG_ROWS + lane % 2 * 8;
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float sum = quad_sum(dot[i / 2][i % 2]);
        if (i == lane) mine = sum;
    }
    if (row < args.product.M && n < args.product.N)
        args.row_dots[(int64_t)row * (args.product.N / GROUP) + n / GROUP] = mine;
}

template <int GROUP>
__device__ __forceinline__ void finish_tile(ProductShared &, const RowDotsArgs<GROUP> &args, const Sums &d,
                                            const WarpPieces &p, Tile, int) {
    float dot[HALVES][2] = {};
#pragma unroll
    for (int box = 0; box < BOXES; box++) {
#pragma unroll
        for (int j = 0; j < 4; j++) dot_columns(dot, d, p, box, j);
        store_box(args.dx, p, box);
        if ((box + 1) * BOX % GROUP != 0) continue;
        store_dots(args, dot, p, p.n + box * BOX);
        dot[0][0] = dot[0][1] = dot[1][0] = dot[1][1] = 0.0f;
    }
}

template <int GROUP> static void launch(const BackwardProduct &base, float *row_dots) {
    const RowDotsArgs<GROUP> args = {base, row_dots};
    launch_product("linear_row_dots", linear_backward_kernel<RowDotsArgs<GROUP>>, args, base.product);
}

/* From two tiles an SM on: at 4096 x 768, with 1.5, product and attention's backward take 3 us more than without. */
bool linear_row_dots_sm90(const LinearCall *c) {
    const bool group_fits = (c->group == 64 || c->group == 128) && c->x.columns % c->group == 0;
    if (!group_fits || !product_serves(c->x, c->y, 2)) return false;
    const BackwardProduct base = backward_product(c, c->other);
    if (c->group == 64)
        launch<64>(base, c->row_dots);
    else
        launch<128>(base, c->row_dots);
    return true;
}
