/* What the kernels of rows.cuh share. Tiles of 64 rows or of a weight's rows, 64 columns each: sm90.cuh. */
#pragma once
#include "llmc/cuda/device/at_once.cuh"
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/sm90/sm90_common.cuh"
#include "rows.cuh"

enum {
    ROWS_THREADS = 2 * WARPGROUP,
    TILE_COLUMNS = SW128_COLUMNS,
    TILE_VALUES = ROWS_MAX * TILE_COLUMNS,
    TILE_BYTES = TILE_VALUES * 2,
    ROW_BYTES = TILE_COLUMNS * 2,
    ROWS_OF_BLOCK = ROWS_MAX / ROWS_BLOCKS
};

/* A template's instances for each number of heads that is served, 4, 8 and 12, and which of them is that of NH. */
#define FOR_HEADS(name)                                                                                      \
    { name<4>, name<8>, name<12> }
inline int heads_index(int NH) {
    return NH / 4 - 1;
}

/* Of a block's shared memory: a norm's block runs beside it. It begins at a multiple of 1024, as there is no other. */
enum { ROWS_SHARED_LIMIT = SM90_SHARED_LIMIT - 1408 };

/* The sequence of a row of a tile. */
__device__ __forceinline__ int sequence_of(int row) {
    return row % ROWS_OF_BLOCK * ROWS_BLOCKS + row / ROWS_OF_BLOCK;
}
__device__ __forceinline__ bool has_sequence(const RowsArgs &a, int row) {
    return sequence_of(row) < a.B;
}

__device__ __forceinline__ float2 pair_of(const bf16 *two) {
    const uint32_t bits = *reinterpret_cast<const uint32_t *>(two);
    return make_float2(bf16_low(bits), bf16_high(bits));
}

/* ---- weights, whose rows wait in shared memory as tiles of 64 columns ---- */

/* Starts to bring columns [0, 64 TILES) of ROWS rows, `stride` apart; row(i) is the place of the i-th in the weight. */
template <int ROWS, int TILES, typename F>
__device__ __forceinline__ void load_weight(char *tiles, const bf16 *weight, int64_t stride, F row) {
    constexpr int PIECES = ROWS * TILES * 8; /* of 16 bytes */
    static_assert(PIECES % ROWS_THREADS == 0, "each thread as many");
#pragma unroll 4
    for (int i = 0; i < PIECES / ROWS_THREADS; i++) {
        const int piece = i * ROWS_THREADS + threadIdx.x, column = piece % (TILES * 8),
                  r = piece / (TILES * 8);
        cp_async_16_once(shared_address(tiles) + column / 8 * ROWS * ROW_BYTES +
                             swizzled_at<TILE_COLUMNS>(r, column % 8),
                         weight + row(r) * stride + column * 8, true);
    }
    cp_async_commit();
}
/* All but the last PENDING of what each thread has asked for is there, for wgmma. */
template <int PENDING> __device__ __forceinline__ void wait_weights() {
    cp_async_wait<PENDING>();
    fence_proxy_async();
    __syncthreads();
}

/* ---- x, which all blocks of a cluster read ---- */

/* Readies the barriers of the tiles, by one thread: ROWS rows of each come. */
template <int NH, int ROWS> __device__ __forceinline__ void expect_x(uint64_t *full) {
    for (int tile = 0; tile < NH; tile++) {
        mbarrier_init(shared_address(&full[tile]), 1);
        mbarrier_arrive_expect_tx(shared_address(&full[tile]), ROWS * ROW_BYTES);
    }
}
/* Each block brings its share of the tiles, ROWS rows of each from `row` on, to all. */
template <int NH, int CLUSTER, int ROWS>
__device__ __forceinline__ void multicast_x(char *tiles, const bf16 *x, int row, uint64_t *full) {
    constexpr int BYTES = ROWS * ROW_BYTES;
    for (int tile = cluster_rank(); tile < NH; tile += CLUSTER)
        bulk_multicast(shared_address(tiles) + tile * BYTES, x + tile * TILE_VALUES + row * TILE_COLUMNS,
                       BYTES, shared_address(&full[tile]), (1 << CLUSTER) - 1);
}
/* d = x W^T by one warpgroup, as the tiles of x come; REGISTERS: half of the weight's rows. Tiles of fewer than 64 rows are
 * read into the next one: what comes of that is for nobody. */
template <int NH, int ROWS, int REGISTERS>
__device__ __forceinline__ void multiply_x(float (&d)[REGISTERS], const char *x, const char *w,
                                           uint64_t *full) {
    constexpr int X_BYTES = ROWS * ROW_BYTES, W_BYTES = 2 * REGISTERS * ROW_BYTES;
    const uint32_t x0 = uniform_descriptor(shared_address(x)), w0 = uniform_descriptor(shared_address(w));
#pragma unroll
    for (int i = 0; i < REGISTERS; i++) d[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int tile = 0; tile < NH; tile++) {
        mbarrier_wait(shared_address(&full[tile]), 0);
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma<D_ADD, B_K_MAJOR>(d, swizzled(x0 + tile * (X_BYTES >> 4) + 2 * k),
                                    swizzled(w0 + tile * (W_BYTES >> 4) + 2 * k));
        wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_results(d);
}

/* ---- between the blocks of a cluster ---- */

/* Starts to copy from this block's shared memory to a place in another's, and reports there. */
__device__ __forceinline__ void copy_to_block(const void *to, const void *from, uint32_t bytes,
                                              const uint64_t *full, int block) {
    bulk_copy_cluster(cluster_address(shared_address(to), block), shared_address(from), bytes,
                      cluster_address(shared_address(full), block));
}
/* The i-th of the other blocks. */
template <int CLUSTER> __device__ __forceinline__ int other_block(int i) {
    return ((int)cluster_rank() + 1 + i) % CLUSTER;
}

/* ---- the projections, of a cluster that has ROWS rows, from `row` on, and some channels of a sum over heads ---- */

/* The block's channels of a product, a warpgroup's half in d: to the head's part, through shared memory, as whole lines. A row
 * has 16 bytes more there, so that eight rows are in different banks. */
template <int NH, int CLUSTER, int ROWS, int REGISTERS>
__device__ __forceinline__ void store_part(const RowsArgs &a, const float (&d)[REGISTERS], HeadPart *stage,
                                           int head, int row0) {
    constexpr int C = NH * DECODE_HD, OWN = C / CLUSTER, STRIDE = OWN + 8, PIECES = OWN / 8 /* of 16 bytes */,
                  N = ROWS * PIECES / ROWS_THREADS;
    static_assert(REGISTERS == OWN / 4 && N * ROWS_THREADS == ROWS * PIECES,
                  "half of the channels, 64 rows; each thread as many");
    HeadPart *to = stage + thread_row() * STRIDE + threadIdx.x / WARPGROUP * (OWN / 2) + thread_column();
    if (thread_row() < ROWS)
#pragma unroll
        for (int i = 0; i < REGISTERS / 2; i++)
            *reinterpret_cast<__half2 *>(to + i % 2 * 8 * STRIDE + i / 2 * 8) =
                __floats2half2_rn(d[2 * i] * PART_UNIT, d[2 * i + 1] * PART_UNIT);
    __syncthreads();
    HeadPart *part = a.parts + ((int64_t)head * ROWS_MAX + row0) * C + cluster_rank() * OWN;
    int4 pieces[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int piece = i * ROWS_THREADS + threadIdx.x;
        pieces[i] = *reinterpret_cast<const int4 *>(stage + piece / PIECES * STRIDE + piece % PIECES * 8);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int piece = i * ROWS_THREADS + threadIdx.x, r = piece / PIECES;
        if (has_sequence(a, row0 + r))
            *reinterpret_cast<int4 *>(part + r * C + piece % PIECES * 8) = pieces[i];
    }
}
/* What the cluster has of its K channels, by the block's rows of the weight; input(k): the descriptor of the 16 channels from
 * 16 k on. stage: room that is free, of other than the operands. */
template <int NH, int CLUSTER, int ROWS, int K, typename F>
__device__ __forceinline__ void multiply_part(const RowsArgs &a, const char *weight, char *stage, int head,
                                              int row, F input) {
    constexpr int OWN = NH * DECODE_HD / CLUSTER / 2, /* channels of a warpgroup */
        BYTES = OWN * ROW_BYTES;                      /* in a tile */
    const uint32_t w0 = uniform_descriptor(shared_address(weight) + threadIdx.x / WARPGROUP * BYTES);
    float d[OWN / 2];
#pragma unroll
    for (int i = 0; i < OWN / 2; i++) d[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        wgmma<D_ADD, B_K_MAJOR>(d, input(k), swizzled(w0 + k / 4 * (2 * BYTES >> 4) + k % 4 * 2));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(d);
    store_part<NH, CLUSTER, ROWS>(a, d, reinterpret_cast<HeadPart *>(stage), head, row);
}

/* ---- the launch ---- */

/* Eight blocks a head, in clusters. */
typedef struct RowsLaunch {
    void (*kernel)(RowsArgs, DecodeLayer);
    int cluster, bytes;
} RowsLaunch;

/* Also lets the kernel have its shared memory. launches: FOR_HEADS. */
inline bool run_at_once(const RowsLaunch *launches, int NH) {
    const RowsLaunch &of = launches[heads_index(NH)];
    return clusters_at_once(of.kernel, of.cluster, ROWS_THREADS, of.bytes) * of.cluster >= NH * ROWS_BLOCKS;
}
inline void launch_rows(const char *name, const RowsLaunch *launches, const RowsArgs &a,
                        const DecodeLayer &layer) {
    const RowsLaunch &of = launches[heads_index(a.NH)];
    launch_early(name, of.kernel, dim3(1, a.NH * ROWS_BLOCKS), ROWS_THREADS, of.bytes, of.cluster, a, layer);
}
