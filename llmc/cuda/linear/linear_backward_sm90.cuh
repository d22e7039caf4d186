/* Back through a linear layer for sm_90a, where the gradient meets another matrix of its shape on its way out:
 * dx = finish(dout W, other), for linear_gelu_backward_sm90.cu and linear_row_dots_sm90.cu. See linear_sm90.cuh for the
 * product.
 *
 * The tile of `other` comes by TMA beside the tile's products, into the pieces of shared memory through which dx will
 * leave: a thread finds in them the places of its own sums. A warp's pieces are its own from there to the stores. */
#pragma once
#include "kernels.cuh"
#include "linear_sm90.cuh"

namespace product {

enum { BOXES = TILE_N / BOX };
static_assert(HALVES * BOXES == PIECES, "a warp's pieces of a tile are there together");

struct BackwardProduct {
    Product product;       /* dout, W */
    CUtensorMap dx, other; /* matrix_map of pieces */
};

/* ---- a warp's pieces of a tile ---- */

struct WarpPieces {
    bf16 (*at)[PIECE_ROWS * BOX]; /* half * BOXES + box */
    int m, n;                     /* where the first begins in dx */
};

/* `other` of the next tile, once what the pieces held last has left. */
__device__ __forceinline__ void fetch_other(const BackwardProduct &args, const WarpPieces &p,
                                            uint64_t &fetched) {
    if (threadIdx.x % 32 != 0) return;
    bulk_wait_read<0>();
    mbarrier_arrive_expect_tx(shared_address(&fetched), HALVES * BOXES * sizeof *p.at);
    for (int i = 0; i < HALVES * BOXES; i++)
        tma_load_3d(shared_address(p.at[i]), &args.other, 0, p.m + i / BOXES * WG_ROWS, p.n / BOX + i % BOXES,
                    shared_address(&fetched));
}

/* One box of 64 columns, of both halves. */
__device__ __forceinline__ void store_box(const CUtensorMap &map, const WarpPieces &p, int box) {
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    for (int half = 0; half < HALVES; half++)
        tma_store_3d(&map, 0, p.m + half * WG_ROWS, p.n / BOX + box,
                     shared_address(p.at[half * BOXES + box]));
    bulk_commit();
}

/* ---- kernel ---- */

/* Args: a BackwardProduct and what finish_tile needs besides: finish_tile(s, args, d, p, tile, group) takes the sums
 * to dx in the warp's pieces, where `other` is, and stores them. */
template <class Args>
__device__ __forceinline__ void consume_tiles(ProductShared &s, const Args &args, int group) {
    const Product &product = args.product;
    const int tiles = cluster_tiles(product.M, product.N), warp = threadIdx.x / 32;
    Ring<STAGES> ring;
    Ring<1> pieces;
    Tile tile = first_tile(product);
    if (group == 1) {
        tile = later_tile(product, tile, 1);
        skip_tile(ring, product);
    }
    for (; tile.index < tiles; tile = later_tile(product, tile, CONSUMERS), pieces.advance()) {
        const WarpPieces p = {s.pieces[warp], tile.m + warp % 4 * PIECE_ROWS, tile.n};
        Sums d = {};
        fetch_other(args, p, s.fetched[warp]);
        multiply<B_MN_MAJOR>(d, s, ring, product, tile, group);
        mbarrier_wait(shared_address(&s.fetched[warp]), pieces.parity);
        finish_tile(s, args, d, p, tile, group);
    }
    if (threadIdx.x % 32 == 0) bulk_wait<0>();
}

template <class Args>
__global__ void __launch_bounds__(THREADS, 1) linear_backward_kernel(const __grid_constant__ Args args) {
    run_kernel<ProductKernel<B_MN_MAJOR, Args>>(args);
}

static BackwardProduct backward_product(const LinearCall *c, const Matrix &other) {
    return {product_of<B_MN_MAJOR>(c->x, c->y, c->w), matrix_map(c->x, PIECE_ROWS),
            matrix_map(other, PIECE_ROWS)};
}
} /* namespace product */
