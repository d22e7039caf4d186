/* The MLP's first layer for sm_90a: pre_gelu = x W^T + b and out = gelu(pre_gelu) in one kernel.
 *
 * GELU of a tile and its way to memory take about half as long as its product. The library does one after the
 * other; here a warpgroup does them while the other one multiplies (linear_sm90.cuh): from its registers, sixteen
 * rows and 64 columns at a time, and both results leave by TMA. 574 us at 65536 x 768 -> 3072, for the library's 652. */
#include "kernels.cuh"
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/ops/gelu.cuh"
#include "linear_sm90.cuh"

using namespace product;

struct GeluArgs {
    Product product;           /* x (N,IC), W (OC,IC) */
    CUtensorMap out, pre_gelu; /* matrix_map, boxes of PIECE_ROWS */
    const bf16 *bias;          /* (OC) or NULL */
};

/* d = bias of the thread's columns, the same in both halves */
__device__ __forceinline__ void start_sums(Sums &d, const GeluArgs &args, int n) {
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i += 4) {
        const int column = n + i * 2 + thread_column();
        float2 pair = {0.0f, 0.0f};
        if (args.bias && column < args.product.N)
            pair = __bfloat1622float2(*(const __nv_bfloat162 *)&args.bias[column]);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            d[half][i] = d[half][i + 2] = pair.x;
            d[half][i + 1] = d[half][i + 3] = pair.y;
        }
    }
}

/* Of two packed bf16. */
__device__ __forceinline__ uint32_t gelu_pair(uint32_t x) {
    return cvt_bf16x2(gelu<bf16>(bf16_low(x)), gelu<bf16>(bf16_high(x)));
}

/* The warp's 16 x 64 sums from d on: rounded to pre_gelu, and gelu of that to out, at row m and column n. */
__device__ __forceinline__ void finish_piece(const GeluArgs &args, bf16 (*pieces)[PIECE_ROWS * BOX],
                                             const float *d, int m, int n) {
#pragma unroll
    for (int j = 0; j < BOX / 16; j++) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) r[i] = cvt_bf16x2(d[8 * j + 2 * i], d[8 * j + 2 * i + 1]);
        stmatrix_x4(piece_address(pieces[0], j), r);
#pragma unroll
        for (int i = 0; i < 4; i++) r[i] = gelu_pair(r[i]);
        stmatrix_x4(piece_address(pieces[1], j), r);
    }
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    tma_store_3d(&args.pre_gelu, 0, m, n / BOX, shared_address(pieces[0]));
    tma_store_3d(&args.out, 0, m, n / BOX, shared_address(pieces[1]));
    bulk_commit();
}

/* A warp waits for no other: its rows, its room for two pieces of pre_gelu and two of out. */
__device__ __forceinline__ void finish_tile(ProductShared &s, const GeluArgs &args, const Sums &d,
                                            Tile tile) {
    constexpr int ACROSS = TILE_N / BOX;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < HALVES * ACROSS; i++) {
        const int half = i / ACROSS, chunk = i % ACROSS;
        if (threadIdx.x % 32 == 0) bulk_wait_read<1>(); /* the last but one has left */
        __syncwarp();
        finish_piece(args, &s.pieces[warp][i % 2 * 2], &d[half][chunk * BOX / 2],
                     tile.m + half * WG_ROWS + warp % 4 * PIECE_ROWS, tile.n + chunk * BOX);
    }
}

__device__ __forceinline__ void consume_tiles(ProductShared &s, const GeluArgs &args, int group) {
    const Product &p = args.product;
    const int tiles = cluster_tiles(p.M, p.N);
    Tile tile = first_tile(p);
    Ring<STAGES> ring;
    Sums d;
    if (group == 1) {
        tile = later_tile(p, tile, 1);
        skip_tile(ring, p);
    }
    for (; tile.index < tiles; tile = later_tile(p, tile, CONSUMERS)) {
        start_sums(d, args, tile.n);
        multiply<B_K_MAJOR>(d, s, ring, p, tile, group);
        finish_tile(s, args, d, tile);
    }
    if (threadIdx.x % 32 == 0) bulk_wait<0>();
}

__global__ void __launch_bounds__(THREADS, 1) linear_gelu_kernel(const __grid_constant__ GeluArgs args) {
    run_kernel<ProductKernel<B_K_MAJOR, GeluArgs>>(args);
}

bool linear_gelu_sm90(const LinearCall *c) {
    if (!product_serves(c->y, c->x)) return false;
    const GeluArgs args = {product_of<B_K_MAJOR>(c->y, c->x, c->w), matrix_map(c->y, PIECE_ROWS),
                           matrix_map(c->pre_gelu, PIECE_ROWS), (const bf16 *)c->bias};
    launch_product("linear_gelu", linear_gelu_kernel, args, args.product);
    return true;
}
