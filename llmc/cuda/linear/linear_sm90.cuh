/* The product of linear layers whose epilogue is our own on Hopper: out (M,N) = A (M,K) B of bf16, fp32 sums;
 * B lies as (N,K), B_K_MAJOR, or as (K,N), B_MN_MAJOR.
 *
 * Two consumer warpgroups play ping-pong: each has tiles of its own and multiplies all of one while the other, from
 * its registers, does what comes after the product, so that the tensor cores wait for no epilogue. One producer
 * thread fetches A and B by TMA into a ring of shared memory, in the order of the tiles. Blocks are persistent.
 *
 * Two blocks form a cluster: neighbours in rows that share the columns, so each fetches half of B for both. */
#pragma once
#include "llmc/cuda/sm90/sm90_frame.cuh"

namespace product {

enum {
    TILE_M = 128,
    TILE_N = 128,
    TILE_K = 64,
    STAGES = 5,
    CLUSTER = 2,
    CONSUMERS = 2, /* warpgroups, in ping-pong */
    HALVES = TILE_M / WG_ROWS,
    BOX = 64, /* columns of a swizzled tile */
    THREADS = (CONSUMERS + 1) * WARPGROUP,
    PIECE_ROWS = 16,                /* a tile leaves in pieces of 16 x 64, the rows being those of a warp */
    PIECES = HALVES * TILE_N / BOX, /* of a warp */
};
/* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
constexpr Sm90Shape PRODUCT_SHAPE = {CONSUMERS, TILE_N, STAGES, 1, 240, 24, false};
static_assert(sm90_registers_fit(PRODUCT_SHAPE), "setmaxnreg");

/* Rows of 64 bf16, swizzled by TMA (ptx/sm90.cuh). A stage of b: TILE_N rows of 64 of k, or (B_MN_MAJOR) 64 rows of k for
 * each 64 columns. */
struct alignas(1024) ProductShared {
    bf16 a[STAGES][TILE_M * TILE_K];
    bf16 b[STAGES][TILE_N * TILE_K];
    bf16 pieces[CONSUMERS * 4][PIECES][PIECE_ROWS * BOX]; /* on their way out, each warp's own */
    uint64_t full[STAGES], empty[STAGES];
    uint64_t fetched[CONSUMERS * 4]; /* backward: what the epilogue reads is in the warp's pieces */
    float sums[CONSUMERS][TILE_N];   /* backward: of columns, over the rows of the warps so far */
};

struct Product {
    CUtensorMap a, b; /* matrix_map, boxes of TILE_M and of B_ROWS (or, B_MN_MAJOR, B_DEPTH) rows */
    int M, N, K;
};

enum { B_ROWS = TILE_N / CLUSTER, B_DEPTH = TILE_K / CLUSTER }; /* of b, what each block fetches for both */

/* ---- tiles ---- */

/* A tile of this block. All roles walk through the same list, of which the warpgroups take every other tile. The
 * blocks of a cluster take neighbours in rows; tiles of the same rows follow one another, so A comes from HBM once
 * and B stays in L2. */
struct Tile {
    int index, m, n; /* first row and column */
    int batch;       /* of many products: which */
};
__device__ __forceinline__ Tile tile_at(const Product &p, int index) {
    const int across = ceil_div<int>(p.N, TILE_N);
    return {index, (index / across * CLUSTER + (int)cluster_rank()) * TILE_M, index % across * TILE_N, 0};
}
__device__ __forceinline__ int clusters() {
    return gridDim.x / CLUSTER;
}
template <class P> __device__ __forceinline__ Tile first_tile(const P &p) {
    return tile_at(p, blockIdx.x / CLUSTER);
}
template <class P> __device__ __forceinline__ Tile later_tile(const P &p, Tile tile, int tiles) {
    return tile_at(p, tile.index + tiles * clusters());
}
static __host__ __device__ inline int cluster_tiles(int M, int N) {
    return ceil_div<int>(M, TILE_M * CLUSTER) * ceil_div<int>(N, TILE_N);
}
__device__ __forceinline__ int tiles_of(const Product &p) {
    return cluster_tiles(p.M, p.N);
}

/* ---- producer ---- */

__device__ __forceinline__ void fetch_a(uint32_t a, const Product &p, Tile tile, int k, uint32_t full) {
    tma_load_3d(a, &p.a, 0, tile.m, k / BOX, full);
}
/* This block's share of a stage of b, for both. */
template <WgmmaB B>
__device__ __forceinline__ void fetch_b(uint32_t b, const Product &p, Tile tile, int k, uint32_t full) {
    const int n = tile.n;
    constexpr uint16_t EVERY_BLOCK = (1 << CLUSTER) - 1;
    const int rank = (int)cluster_rank(), row_bytes = BOX * (int)sizeof(bf16);
    if (B == B_K_MAJOR)
        tma_multicast_3d(b + rank * B_ROWS * row_bytes, &p.b, 0, n + rank * B_ROWS, k / BOX, full,
                         EVERY_BLOCK);
    else
        for (int i = 0; i < TILE_N / BOX; i++)
            tma_multicast_3d(b + (i * TILE_K + rank * B_DEPTH) * row_bytes, &p.b, 0, k + rank * B_DEPTH,
                             n / BOX + i, full, EVERY_BLOCK);
}

/* One thread. A stage is free once a warpgroup of each block has left it, because both blocks write into it. */
template <WgmmaB B, class P> __device__ __forceinline__ void produce(ProductShared &s, const P &p) {
    const int tiles = tiles_of(p);
    Ring<STAGES> ring;
    for (Tile tile = first_tile(p); tile.index < tiles; tile = later_tile(p, tile, 1)) {
        for (int k = 0; k < p.K; k += TILE_K, ring.advance()) {
            const uint32_t full = shared_address(&s.full[ring.stage]);
            mbarrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
            mbarrier_arrive_expect_tx(full, sizeof s.a[0] + sizeof s.b[0]);
            fetch_a(shared_address(s.a[ring.stage]), p, tile, k, full);
            fetch_b<B>(shared_address(s.b[ring.stage]), p, tile, k, full);
        }
    }
}

/* ---- consumers ---- */

typedef float Sums[HALVES][TILE_N / 2]; /* a thread's, of 64 rows each (fragments: sm90_common.cuh) */

__device__ __forceinline__ void results(Sums &d) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) wgmma_results(d[half]);
}

/* Ping-pong: a warpgroup multiplies once the other, with the tile before, has issued its last wgmma. */
__device__ __forceinline__ void pingpong_wait(Tile tile, int group) {
    if (tile.index >= clusters()) named_barrier_sync<CONSUMERS * WARPGROUP>(1 + group);
}
template <class P> __device__ __forceinline__ void pingpong_pass(const P &p, Tile tile, int group) {
    if (tile.index + clusters() < tiles_of(p)) named_barrier_arrive<CONSUMERS * WARPGROUP>(1 + (group ^ 1));
}

/* Passes over the other warpgroup's tile. */
template <class P> __device__ __forceinline__ void skip_tile(Ring<STAGES> &ring, const P &p) {
    const int stage = ring.stage + p.K / TILE_K;
    ring.parity ^= stage / STAGES & 1;
    ring.stage = stage % STAGES;
}

/* Every warp tells the producers of both blocks. */
__device__ __forceinline__ void release_stage(ProductShared &s, int stage) {
    __syncwarp();
    if (threadIdx.x % 32 < CLUSTER)
        mbarrier_arrive_cluster(shared_address(&s.empty[stage]), threadIdx.x % 32);
}

/* d += the tile's product, over all of K, ascending. (do-while: ptxas moves all of d where the loop might not run.) */
template <WgmmaB B, class P>
__device__ __forceinline__ void multiply(Sums &d, ProductShared &s, Ring<STAGES> &ring, const P &p, Tile tile,
                                         int group) {
    constexpr int HALF = WG_ROWS * BOX * (int)sizeof(bf16) / 16; /* 64 rows of a, in a descriptor's units */
    constexpr int STEP = (B == B_K_MAJOR ? 32 : 16 * BOX * (int)sizeof(bf16)) / 16; /* 16 of k of b */
    int previous = -1;
    pingpong_wait(tile, group);
    int k = 0;
    do {
        mbarrier_wait(shared_address(&s.full[ring.stage]), ring.parity);
        const uint64_t a = swizzled(uniform_descriptor(shared_address(s.a[ring.stage])));
        const uint64_t b = swizzled(uniform_descriptor(shared_address(s.b[ring.stage]))) |
                           (B == B_K_MAJOR ? 0 : HALF << 16); /* from 64 columns to the next */
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < TILE_K / 16; step++) /* 16 of k of a are 32 bytes */
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                wgmma<D_ADD, B>(d[half], a + half * HALF + step * 2, b + step * STEP);
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0) release_stage(s, previous);
        previous = ring.stage;
        ring.advance();
    } while ((k += TILE_K) < p.K);
    pingpong_pass(p, tile, group);
    wgmma_wait<0>();
    results(d);
    release_stage(s, previous);
    skip_tile(ring, p);
}

/* ---- a tile's way out ---- */

/* The lane's address for stmatrix, of columns 16 j to 16 j + 15 of a piece. */
__device__ __forceinline__ uint32_t piece_address(const bf16 *piece, int j) {
    const int lane = threadIdx.x % 32, row = lane % 16, chunk = j * 2 + lane / 16;
    return shared_address(piece + row * BOX + (chunk ^ row % 8) * 8);
}

/* ---- kernel and launch ---- */

/* Roles of a kernel whose Args have a Product; consume_tiles(s, args, group) is the kernel's own: a consumer's tiles. */
template <WgmmaB B, class KernelArgs> struct ProductKernel : Sm90Roles {
    typedef ProductShared Shared;
    typedef KernelArgs Args;
    static constexpr Sm90Shape SHAPE = PRODUCT_SHAPE;
    static constexpr int WARPGROUPS = CONSUMERS, THREADS = product::THREADS, CLUSTER = product::CLUSTER;
    static constexpr bool UNIFORM_SHARED = B == B_MN_MAJOR;

    static __device__ __forceinline__ void init(ProductShared &s) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(shared_address(&s.full[i]), 1);
            mbarrier_init(shared_address(&s.empty[i]), CLUSTER * 4);
        }
        for (int i = 0; i < CONSUMERS * 4; i++) mbarrier_init(shared_address(&s.fetched[i]), 1);
    }
    static __device__ __forceinline__ void produce(ProductShared &s, const Args &args, int warp) {
        if (warp == 0) product::produce<B>(s, args.product);
    }
    static __device__ __forceinline__ void consume(ProductShared &s, const Args &args, int group) {
        consume_tiles(s, args, group);
    }
};

/* A row-major matrix as (columns / 64, rows, 64); a box is 64 columns of box_rows rows. */
static CUtensorMap matrix_map(const Matrix &m, int box_rows) {
    const cuuint64_t dims[3] = {BOX, (cuuint64_t)m.rows, (cuuint64_t)m.columns / BOX};
    const cuuint64_t strides[2] = {(cuuint64_t)m.columns * sizeof(bf16), BOX * sizeof(bf16)};
    const cuuint32_t box[3] = {BOX, (cuuint32_t)box_rows, 1};
    return encode_tiles(m.data, 3, dims, strides, box);
}

/* out (M,N), a (M,K), b as B says. */
template <WgmmaB B> static Product product_of(const Matrix &out, const Matrix &a, const Matrix &b) {
    return {matrix_map(a, TILE_M), matrix_map(b, B == B_K_MAJOR ? B_ROWS : B_DEPTH), (int)out.rows,
            out.columns, a.columns};
}

/* Whole boxes, and `tiles` of the output for every SM. */
static bool product_serves(const Matrix &out, const Matrix &a, int tiles = 1) {
    return out.columns % BOX == 0 && a.columns % TILE_K == 0 && out.rows <= INT32_MAX / 2 &&
           CLUSTER * cluster_tiles((int)out.rows, out.columns) >= tiles * cuda_sm_count();
}

template <typename Args>
static void launch_product(const char *name, void (*kernel)(Args), const Args &args, const Product &p) {
    launch_persistent(name, kernel, args, CLUSTER * cluster_tiles(p.M, p.N), THREADS,
                      shared_bytes<ProductShared>(), START_AFTER, CLUSTER);
}
} /* namespace product */
