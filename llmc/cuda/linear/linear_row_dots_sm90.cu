/* Back through attention's projection for sm_90a: dx = dout W and, for every row and head, the sum of dx * other over
 * the head's columns, in one kernel: D = rowsum(dO * O) of FlashAttention-2 (Dao 2023, Algorithm 2, line 4), without
 * reading dO again. See linear_backward_sm90.cuh for the kernel.
 *
 * A tile's columns are two heads of 64 or one of 128, so no sum leaves a warp. Heads of 80, 96 and 112 lie in one tile or
 * two, whose sums are added to 0: that has the same bits in either order. dx is rounded before it is multiplied: D is that of
 * the dO that attention reads. */
#include "linear_backward_sm90.cuh"

using namespace product;

template <int GROUP> constexpr bool IN_TILE = TILE_N % GROUP == 0; /* no head lies across tiles */

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
    if (row >= args.product.M || n >= args.product.N) return;
    float *to = args.row_dots + (int64_t)row * (args.product.N / GROUP) + n / GROUP;
    if (IN_TILE<GROUP>)
        *to = mine;
    else
        atomicAdd(to, mine);
}

template <int GROUP>
__device__ __forceinline__ void finish_tile(ProductShared &, const RowDotsArgs<GROUP> &args, const Sums &d,
                                            const WarpPieces &p, Tile, int) {
    float dot[HALVES][2] = {};
    const auto store = [&](int n) {
        store_dots(args, dot, p, n);
        dot[0][0] = dot[0][1] = dot[1][0] = dot[1][1] = 0.0f;
    };
    int column = IN_TILE<GROUP> ? 0 : p.n % GROUP; /* of a head */
#pragma unroll
    for (int box = 0; box < BOXES; box++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            dot_columns(dot, d, p, box, j);
            if (IN_TILE<GROUP>) continue;
            column += 16;
            if (column == GROUP || box * 4 + j == BOXES * 4 - 1) store(p.n + box * BOX + j * 16);
            if (column == GROUP) column = 0;
        }
        store_box(args.dx, p, box);
        if (IN_TILE<GROUP> && (box + 1) * BOX % GROUP == 0) store(p.n + box * BOX);
    }
}

template <int GROUP> static void launch(const BackwardProduct &base, float *row_dots) {
    const RowDotsArgs<GROUP> args = {base, row_dots};
    const int64_t n = (int64_t)base.product.M * (base.product.N / GROUP);
    static_assert(GROUP % 16 == 0 && GROUP <= TILE_N, "two tiles at most add to a sum");
    if (!IN_TILE<GROUP>) CUDA_CHECK(cudaMemsetAsync(row_dots, 0, n * sizeof *row_dots, main_stream));
    launch_product("linear_row_dots", linear_backward_kernel<RowDotsArgs<GROUP>>, args, base.product);
}

/* From two tiles an SM on: at 4096 x 768, with 1.5, product and attention's backward take 3 us more than without. */
bool linear_row_dots_sm90(const LinearCall *c) {
    static const struct {
        int group;
        void (*launch)(const BackwardProduct &, float *);
    } groups[] = {
        {64,  launch<64> },
        {80,  launch<80> },
        {96,  launch<96> },
        {112, launch<112>},
        {128, launch<128>}
    };
    for (const auto &of : groups)
        if (c->group == of.group && c->x.columns % c->group == 0 && product_serves(c->x, c->y, 2)) {
            of.launch(backward_product(c, c->other), c->row_dots);
            return true;
        }
    return false;
}
