/* Matrix product on the tensor cores of sm_80 and later: mma.sync, ldmatrix, cp.async. bf16.
 *
 * Algorithm: a block of 8 warps owns 128 x 128 outputs, a warp 64 x 32 of them in 64 registers a thread. Strips of
 * 32 of k of x and W come by cp.async, without registers, four strips ahead. In a strip a warp takes 16 of k at a
 * time: four ldmatrix for its rows of x, two for its rows of W, and 16 mma of 16 x 8 x 16.
 * Teaches: one instruction of a warp is 4096 FLOP, so everything else has to be cheap: operands go from memory to
 * shared memory behind the arithmetic, and from there to registers in the layout that mma wants, conflict-free
 * because 16-byte chunks are permuted by row.
 *
 *   FLOP   2 N OC IC
 *   bytes  a block reads 128 rows of x and of W */
#include "llmc/cuda/ptx/sm80.cuh"
#include "matmul.cuh"

enum {
    SIDE = 128,
    DEPTH = 32,
    CHUNKS = DEPTH / 8, /* of 16 bytes in a row of a strip */
    STAGES = 4,
    THREADS = 256,
    WARP_ROWS = 64,
    WARP_COLUMNS = 32,
    ROW_TILES = WARP_ROWS / 16,
    COLUMN_TILES = WARP_COLUMNS / 8,
};

typedef bf16 Strip[SIDE * DEPTH];
struct Shared {
    Strip x[STAGES], w[STAGES];
};

/* A chunk of a row. Two rows fill the 128 bytes of the banks: 8 rows of the same chunk, which ldmatrix reads
 * together, lie in 8 different places modulo 128. */
__device__ inline uint32_t chunk_address(const Strip &strip, int row, int chunk) {
    return shared_address(strip) + (row * CHUNKS + (chunk ^ row / 2 % CHUNKS)) * 16;
}

/* Starts the copy of rows from src on, `rows` of them valid, elements [k, k + DEPTH); 0 outside. */
__device__ inline void fetch(const Strip &strip, const bf16 *src, int64_t rows, int IC, int k) {
#pragma unroll
    for (int i = threadIdx.x; i < SIDE * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, at = k + chunk * 8;
        const bool inside = row < rows && at < IC;
        cp_async_16(chunk_address(strip, row, chunk), inside ? src + (int64_t)row * IC + at : src, inside);
    }
}

/* sum[m][n] += 16 x 8 outputs; the fragment maps are those of ptx/sm80.cuh. row, column: the warp's first. */
typedef float Sums[ROW_TILES][COLUMN_TILES][4];
__device__ inline void multiply(Sums &sum, const Strip &x, const Strip &w, int row, int column) {
    const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int k = 0; k < CHUNKS; k += 2) {
        uint32_t a[ROW_TILES][4], b[COLUMN_TILES / 2][4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) /* rows 0-7, 8-15 of chunk k, then of k + 1 */
            ldmatrix_x4(a[m], chunk_address(x, row + m * 16 + lane % 16, k + lane / 16));
#pragma unroll
        for (int n = 0; n < COLUMN_TILES / 2; n++) /* chunks k, k + 1 of 8 rows of W, then of the next 8 */
            ldmatrix_x4(b[n], chunk_address(w, column + n * 16 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++)
                mma_m16n8k16(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

__device__ inline void write(const Linear<bf16> &l, const Sums &sum, int64_t row, int column) {
    const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float pair[2] = {sum[m][n][2 * half], sum[m][n][2 * half + 1]};
                finish(l, row + m * 16 + half * 8 + lane / 4, column + n * 8 + lane % 4 * 2, pair);
            }
}

static __global__ void __launch_bounds__(THREADS) mma_kernel(Linear<bf16> l) {
    extern __shared__ int4 memory[];
    Shared &s = *(Shared *)memory;
    const Corner corner = corner_of(l, SIDE, SIDE);
    const bf16 *from_x = l.x + corner.row * l.IC, *from_w = l.weight + (int64_t)corner.column * l.IC;
    const int64_t rows = l.N - corner.row;
    const int columns = l.OC - corner.column, strips = ceil_div<int>(l.IC, DEPTH),
              warp = threadIdx.x / WARP_SIZE;
    const int row = warp / 4 * WARP_ROWS, column = warp % 4 * WARP_COLUMNS;
    Sums sum = {};
    for (int i = -(STAGES - 1); i < strips; i++) {
        const int ahead = i + STAGES - 1;
        if (i >= 0) {
            cp_async_wait<STAGES - 2>(); /* strip i is here */
            __syncthreads(); /* for all; and nobody reads strip i - 1, whose place is taken next */
        }
        if (ahead < strips) {
            fetch(s.x[ahead % STAGES], from_x, rows, l.IC, ahead * DEPTH);
            fetch(s.w[ahead % STAGES], from_w, columns, l.IC, ahead * DEPTH);
        }
        cp_async_commit(); /* an empty group at the end, so that the count stays right */
        if (i >= 0) multiply(sum, s.x[i % STAGES], s.w[i % STAGES], row, column);
    }
    write(l, sum, corner.row + row, corner.column + column);
}

extern "C" void matmul_mma(const Call *c) {
    const Linear<bf16> l = linear_of<bf16>(c);
    launch("mma_kernel", mma_kernel, tiles_of(l, SIDE, SIDE), THREADS, sizeof(Shared), l);
}
extern "C" double matmul_mma_bytes(const Sizes *s, int elem) {
    return tile_bytes(s, elem, SIDE, SIDE);
}
