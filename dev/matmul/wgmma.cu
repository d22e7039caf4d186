/* Matrix product on Hopper: TMA fetches, wgmma multiplies, and they are different warps. bf16, sm_90a.
 *
 * Algorithm: a block owns 128 x 256 outputs. One thread, the producer, asks TMA for strips of 64 of k of x and W,
 * as far ahead as four stages of shared memory allow. Two warpgroups, 64 rows each, wait for a strip, multiply it
 * straight from shared memory into 128 registers a thread, and release it when the next one is under way. Two
 * barriers a stage carry that: `full`, which TMA completes, and `empty`, on which every consumer warp arrives.
 * Teaches: no thread computes an address or waits for a copy any more. What is left to the shipped kernels
 * (llmc/cuda/linear/linear_gelu_sm90.cu) is to keep the tensor cores busy while a tile is written: blocks that go on to
 * the next tile, and clusters that share what they fetch.
 *
 *   FLOP   2 N OC IC
 *   bytes  a block reads 128 rows of x and 256 of W */
#include "llmc/cuda/sm90/sm90_common.cuh"
#include "matmul.cuh"

enum {
    TILE_ROWS = 128,
    TILE_COLUMNS = 256,
    DEPTH = 64, /* a row of a strip: the 128 bytes that TMA's swizzle permutes */
    STAGES = 4,
    CONSUMERS = 2,
    THREADS = (CONSUMERS + 1) * WARPGROUP,
    CONSUMER_REGISTERS = 232,
    PRODUCER_REGISTERS = 40,
};
static_assert(CONSUMERS * CONSUMER_REGISTERS + PRODUCER_REGISTERS <= (CONSUMERS + 1) * 168, "setmaxnreg");
static_assert(TILE_ROWS == (int)CONSUMERS * WG_ROWS, "a warpgroup has 64 rows");

struct alignas(1024) Shared {
    bf16 x[STAGES][TILE_ROWS * DEPTH];
    bf16 w[STAGES][TILE_COLUMNS * DEPTH];
    RingBarriers<STAGES> ring;
};

struct Args {
    CUtensorMap x, weight;
    Linear<bf16> l;
};

/* One thread. Beyond the ends of the tensors TMA writes zeros, and counts them. */
__device__ __forceinline__ void produce(Shared &s, const Args &args, Corner corner) {
    Ring<STAGES> at;
    for (int k = 0; k < args.l.IC; k += DEPTH, at.advance()) {
        const uint32_t full = s.ring.acquire(at, sizeof s.x[0] + sizeof s.w[0]);
        tma_load_3d(shared_address(s.x[at.stage]), &args.x, k, (int)corner.row, 0, full);
        tma_load_3d(shared_address(s.w[at.stage]), &args.weight, k, corner.column, 0, full);
    }
}

/* d = the 64 rows of this warpgroup times W^T */
__device__ __forceinline__ void multiply(float (&d)[TILE_COLUMNS / 2], Shared &s, int group, int IC) {
    Ring<STAGES> at, previous;
#pragma unroll
    for (int i = 0; i < TILE_COLUMNS / 2; i++) d[i] = 0;
    for (int k = 0; k < IC; k += DEPTH, at.advance()) {
        s.ring.wait(at);
        const uint64_t x = descriptor_k_major(shared_address(s.x[at.stage] + group * WG_ROWS * DEPTH));
        const uint64_t w = descriptor_k_major(shared_address(s.w[at.stage]));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < DEPTH / 16; step++) /* 16 of k are 32 bytes, two units of a descriptor */
            wgmma<D_ADD, B_K_MAJOR>(d, x + step * 2, w + step * 2);
        wgmma_commit();
        wgmma_wait<1>(); /* the strip before has been read */
        if (k > 0) s.ring.release(previous);
        previous = at;
    }
    wgmma_wait<0>();
    wgmma_results(d);
}

__device__ __forceinline__ void write(const Linear<bf16> &l, const float (&d)[TILE_COLUMNS / 2], int64_t row,
                                      int column) {
#pragma unroll
    for (int i = 0; i < TILE_COLUMNS / 2; i += 2) {
        const float pair[2] = {d[i], d[i + 1]};
        finish(l, row + thread_row() + i / 2 % 2 * 8, column + i / 4 * 8 + thread_column(), pair);
    }
}

static __global__ void __launch_bounds__(THREADS, 1) wgmma_kernel(const __grid_constant__ Args args) {
#ifdef SM90_BODY
    Shared &s = shared_memory<Shared>();
    const Corner corner = corner_of(args.l, TILE_ROWS, TILE_COLUMNS);
    const int group = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        s.ring.init(CONSUMERS * 4);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (group < CONSUMERS) {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        float d[TILE_COLUMNS / 2];
        multiply(d, s, group, args.l.IC);
        write(args.l, d, corner.row + group * WG_ROWS, corner.column);
    } else {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % WARPGROUP == 0) produce(s, args, corner);
    }
#endif
}

/* A row-major (rows, columns) matrix; a box is 64 columns of box_rows rows. The third dimension has one element. */
static CUtensorMap matrix_map(const void *base, int64_t rows, int columns, int box_rows) {
    const cuuint64_t dims[3] = {(cuuint64_t)columns, (cuuint64_t)rows, 1};
    const cuuint64_t row_bytes = (cuuint64_t)columns * sizeof(bf16),
                     strides[2] = {row_bytes, row_bytes * dims[1]};
    const cuuint32_t box[3] = {DEPTH, (cuuint32_t)box_rows, 1};
    return encode_tiles(base, 3, dims, strides, box);
}

extern "C" void matmul_wgmma(const Call *c) {
    Args args = {};
    args.l = linear_of<bf16>(c);
    args.x = matrix_map(args.l.x, args.l.N, args.l.IC, TILE_ROWS);
    args.weight = matrix_map(args.l.weight, args.l.OC, args.l.IC, TILE_COLUMNS);
    launch("wgmma_kernel", wgmma_kernel, tiles_of(args.l, TILE_ROWS, TILE_COLUMNS), THREADS,
           shared_bytes<Shared>(), args);
}
extern "C" double matmul_wgmma_bytes(const Sizes *s, int elem) {
    return tile_bytes(s, elem, TILE_ROWS, TILE_COLUMNS);
}
