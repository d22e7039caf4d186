/* The batched products of Newton-Schulz for sm_90a: d = alpha a b + beta c in one launch for all matrices of a shape.
 *
 * Two of the three products give symmetric matrices. Of these the tiles below the diagonal are computed and leave twice,
 * as they are and transposed: half of the work, but for the diagonal. Tiles go by pairs of rows, a cluster's, so of most
 * pairs one tile above the diagonal is computed, too, and dropped. The product and its ping-pong: linear_sm90.cuh.
 *
 * On an H200, 48 matrices of 768 x 768: 51 us for the library's 64 of x x^T, 57 for 74 of the square. */
#include "gemm_batched.cuh"
#include "gemm.cuh"
#include "linear_sm90.cuh"

namespace product {

/* n products of (M,K) and (K,N), one behind the other in memory. */
template <bool SYMMETRIC> struct BatchedProduct {
    CUtensorMap a, b; /* batched_map, as Product has them */
    int M, N, K;
    int tiles, all_tiles; /* clusters' tiles of a matrix, of all */
};

template <bool SYMMETRIC> struct BatchedArgs {
    BatchedProduct<SYMMETRIC> product;
    CUtensorMap d, d_transposed; /* boxes of PIECE_ROWS rows, of TILE_N */
    const bf16 *c;               /* (n,M,N) or NULL */
    float alpha, beta;
};

/* ---- tiles ---- */

/* Rows of tiles go by pairs, of an odd number the first one alone, below a row that is not there: then a pair ends on the
 * diagonal. Pair p has columns 0 to 2 p + 1, or to 2 p; this many tiles are before it. */
static __host__ __device__ inline int symmetric_tiles_before(int pair, int across) {
    return pair * (pair + 1 - across % CLUSTER);
}
static int symmetric_tiles(int M) {
    const int across = ceil_div<int>(M, TILE_M);
    return symmetric_tiles_before(ceil_div<int>(across, CLUSTER), across);
}

template <bool SYMMETRIC>
__device__ __forceinline__ Tile tile_at(const BatchedProduct<SYMMETRIC> &p, int index) {
    const int batch = index / p.tiles, place = index % p.tiles, across = ceil_div<int>(p.N, TILE_N);
    int pair = SYMMETRIC ? 0 : place / across;
    if (SYMMETRIC)
        while (symmetric_tiles_before(pair + 1, across) <= place) pair++;
    const int before = SYMMETRIC ? symmetric_tiles_before(pair, across) : pair * across,
              row = pair * CLUSTER + (int)cluster_rank() - (SYMMETRIC ? across % CLUSTER : 0);
    return {index, row * TILE_M, (place - before) * TILE_N, batch};
}
template <bool SYMMETRIC> __device__ __forceinline__ int tiles_of(const BatchedProduct<SYMMETRIC> &p) {
    return p.all_tiles;
}

/* ---- producer ---- */

template <bool SYMMETRIC>
__device__ __forceinline__ void fetch_a(uint32_t a, const BatchedProduct<SYMMETRIC> &p, Tile tile, int k,
                                        uint32_t full) {
    tma_load_5d(a, &p.a, 0, tile.m, k / BOX, 0, tile.batch, full);
}
template <WgmmaB B, bool SYMMETRIC>
__device__ __forceinline__ void fetch_b(uint32_t b, const BatchedProduct<SYMMETRIC> &p, Tile tile, int k,
                                        uint32_t full) {
    constexpr uint16_t EVERY_BLOCK = (1 << CLUSTER) - 1;
    const int rank = (int)cluster_rank(), row_bytes = BOX * (int)sizeof(bf16);
    if (B == B_K_MAJOR)
        tma_multicast_5d(b + rank * B_ROWS * row_bytes, &p.b, 0, tile.n + rank * B_ROWS, k / BOX, 0,
                         tile.batch, full, EVERY_BLOCK);
    else
        for (int i = 0; i < TILE_N / BOX; i++)
            tma_multicast_5d(b + (i * TILE_K + rank * B_DEPTH) * row_bytes, &p.b, 0, k + rank * B_DEPTH,
                             tile.n / BOX + i, 0, tile.batch, full, EVERY_BLOCK);
}

/* ---- a tile's way out ---- */

/* d = alpha d + beta c */
template <bool SYMMETRIC>
__device__ __forceinline__ void combine(Sums &d, const BatchedArgs<SYMMETRIC> &args, Tile tile) {
    const int M = args.product.M, N = args.product.N;
    const bf16 *c = args.c + (int64_t)tile.batch * M * N;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int i = 0; i < TILE_N / 2; i += 2) {
            const int row = tile.m + half * WG_ROWS + thread_row() + i / 2 % 2 * 8,
                      column = tile.n + i / 4 * 8 + thread_column();
            uint32_t pair = 0;
            if (args.c && row < M && column < N)
                pair = *reinterpret_cast<const uint32_t *>(c + (int64_t)row * N + column);
            d[half][i] = args.alpha * d[half][i] + args.beta * bf16_low(pair);
            d[half][i + 1] = args.alpha * d[half][i + 1] + args.beta * bf16_high(pair);
        }
}

/* 16 columns of a warp's 16 rows, packed as stmatrix takes them. */
__device__ __forceinline__ void pack_columns(uint32_t (&r)[4], const float *d) {
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = cvt_bf16x2(d[2 * i], d[2 * i + 1]);
}

/* As it is: each warp its rows, in pieces of its own. */
template <bool SYMMETRIC>
__device__ __forceinline__ void store_tile(bf16 (*pieces)[PIECE_ROWS * BOX],
                                           const BatchedArgs<SYMMETRIC> &args, const Sums &d, Tile tile) {
    constexpr int ACROSS = TILE_N / BOX;
    const int row = tile.m + threadIdx.x % WARPGROUP / 32 * PIECE_ROWS;
#pragma unroll
    for (int i = 0; i < HALVES * ACROSS; i++) {
#pragma unroll
        for (int j = 0; j < BOX / 16; j++) {
            uint32_t r[4];
            pack_columns(r, &d[i / ACROSS][(i % ACROSS * (BOX / 16) + j) * 8]);
            stmatrix_x4(piece_address(pieces[i], j), r);
        }
    }
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    for (int i = 0; i < HALVES * ACROSS; i++)
        tma_store_5d(&args.d, 0, row + i / ACROSS * WG_ROWS, tile.n / BOX + i % ACROSS, 0, tile.batch,
                     shared_address(pieces[i]));
    bulk_commit();
}

/* Transposed: the warpgroup together, for a warp's 16 rows become 16 of the 64 columns of a box. A box: TILE_N rows. */
template <bool SYMMETRIC>
__device__ __forceinline__ void store_transposed(bf16 *boxes, const BatchedArgs<SYMMETRIC> &args,
                                                 const Sums &d, Tile tile, int group) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
    const int of_eight = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int j = 0; j < TILE_N / 16; j++) {
            const int row = j * 16 + of_eight;
            uint32_t r[4];
            pack_columns(r, &d[half][j * 8]);
            stmatrix_x4_trans(shared_address(boxes + half * TILE_N * BOX + row * BOX + (chunk ^ row % 8) * 8),
                              r);
        }
    fence_proxy_async();
    named_barrier_sync<WARPGROUP>(3 + group);
    if (threadIdx.x % WARPGROUP != 0) return;
    for (int half = 0; half < HALVES; half++)
        tma_store_5d(&args.d_transposed, 0, tile.n, tile.m / BOX + half, 0, tile.batch,
                     shared_address(boxes + half * TILE_N * BOX));
    bulk_commit();
}

/* The warps' pieces, and the boxes that take their place, are free once what they held has left. */
__device__ __forceinline__ void wait_for_pieces(bool together, int group) {
    if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
    if (together)
        named_barrier_sync<WARPGROUP>(3 + group);
    else
        __syncwarp();
}

template <bool SYMMETRIC>
__device__ __forceinline__ void finish_tile(ProductShared &s, const BatchedArgs<SYMMETRIC> &args, Sums &d,
                                            Tile tile, int group) {
    const int warp = threadIdx.x / 32;
    if (SYMMETRIC ? tile.n > tile.m : tile.m >= args.product.M) return;
    combine(d, args, tile);
    wait_for_pieces(SYMMETRIC, group);
    store_tile(s.pieces[warp], args, d, tile);
    if (!SYMMETRIC || tile.n == tile.m) return;
    wait_for_pieces(true, group);
    store_transposed(s.pieces[group * 4][0], args, d, tile, group);
}

/* ---- kernel and launch ---- */

template <WgmmaB B, bool SYMMETRIC>
__device__ __forceinline__ void consume_batched(ProductShared &s, const BatchedArgs<SYMMETRIC> &args,
                                                int group) {
    const auto &p = args.product;
    const int tiles = tiles_of(p);
    Tile tile = first_tile(p);
    Ring<STAGES> ring;
    Sums d;
    if (group == 1) {
        tile = later_tile(p, tile, 1);
        skip_tile(ring, p);
    }
    for (; tile.index < tiles; tile = later_tile(p, tile, CONSUMERS)) {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < TILE_N / 2; i++) d[half][i] = 0.0f;
        multiply<B>(d, s, ring, p, tile, group);
        finish_tile(s, args, d, tile, group);
    }
    if (threadIdx.x % 32 == 0) bulk_wait<0>();
}

template <WgmmaB B, bool SYMMETRIC> struct BatchedKernel : ProductKernel<B, BatchedArgs<SYMMETRIC>> {
    typedef BatchedArgs<SYMMETRIC> Args;
    static __device__ __forceinline__ void produce(ProductShared &s, const Args &args, int warp) {
        if (warp == 0) product::produce<B>(s, args.product);
    }
    static __device__ __forceinline__ void consume(ProductShared &s, const Args &args, int group) {
        consume_batched<B, SYMMETRIC>(s, args, group);
    }
};

template <WgmmaB B, bool SYMMETRIC>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_batched_kernel(const __grid_constant__ BatchedArgs<SYMMETRIC> args) {
    run_kernel<BatchedKernel<B, SYMMETRIC>>(args);
}

/* n row-major matrices as (n, 1, cols / 64, rows, 64); a box is 64 columns of box_rows rows. What is past a matrix's last
 * row is read as 0, and not written. */
static CUtensorMap batched_map(const bf16 *data, int n, int rows, int cols, int box_rows) {
    const cuuint64_t row = (cuuint64_t)cols * sizeof(bf16), all = row * (cuuint64_t)rows;
    const cuuint64_t dims[5] = {BOX, (cuuint64_t)rows, (cuuint64_t)cols / BOX, 1, (cuuint64_t)n};
    const cuuint64_t strides[4] = {row, BOX * sizeof(bf16), all, all};
    const cuuint32_t box[5] = {BOX, (cuuint32_t)box_rows, 1, 1, 1};
    return encode_tiles(data, 5, dims, strides, box);
}

/* a (n,M,K); b (n,N,K), or (n,K,N) where it is MN-major. */
template <WgmmaB B, bool SYMMETRIC>
static void launch(bf16 *d, const bf16 *a, const bf16 *b, const bf16 *c, float alpha, float beta, int M,
                   int N, int K, int n) {
    const int tiles = SYMMETRIC ? symmetric_tiles(M) : cluster_tiles(M, N);
    BatchedArgs<SYMMETRIC> args = {};
    args.product.a = batched_map(a, n, M, K, TILE_M);
    args.product.b = B == B_K_MAJOR ? batched_map(b, n, N, K, B_ROWS) : batched_map(b, n, K, N, B_DEPTH);
    args.product.M = M;
    args.product.N = N;
    args.product.K = K;
    args.product.tiles = tiles;
    args.product.all_tiles = tiles * n;
    args.d = batched_map(d, n, M, N, PIECE_ROWS);
    args.d_transposed = batched_map(d, n, M, N, TILE_N);
    args.c = c;
    args.alpha = alpha;
    args.beta = beta;
    launch_persistent("gemm_batched", gemm_batched_kernel<B, SYMMETRIC>, args, CLUSTER * tiles * n, THREADS,
                      shared_bytes<ProductShared>(), START_AFTER, CLUSTER);
}
} /* namespace product */

using namespace product;

/* Whole matrices pay where their tiles do: of 1600 x 6400, a tenth larger in tiles, the library is a tenth faster; of
 * 1024 x 4096 by a sixth slower. */
static bool wasted(int rows, int cols) {
    const double tiles = (double)CLUSTER * cluster_tiles(rows, cols) * TILE_M * TILE_N;
    return tiles > 1.1 * rows * cols;
}

bool gemm_batched_sm90(BatchedKind kind, bf16 *d, const bf16 *a, const bf16 *b, const bf16 *c, float alpha,
                       float beta, int rows, int cols, int n) {
    if (cuda_compute_capability() != 90 || gemm_alignment_limit() < 16 || rows % BOX || cols % BOX)
        return false;
    if (kind == BATCHED_LEFT && wasted(rows, cols)) return false;
    if (kind == BATCHED_LEFT)
        launch<B_MN_MAJOR, false>(d, a, b, c, alpha, beta, rows, cols, rows, n);
    else
        launch<B_K_MAJOR, true>(d, a, b, c, alpha, beta, rows, rows, cols, n);
    return true;
}
