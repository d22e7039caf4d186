/* Matrix product over tiles in shared memory, one thread an output.
 *
 * Algorithm: a block owns 32 x 32 outputs. For every 32 of k its 1024 threads fetch a tile of x and one of W, one
 * element each, coalesced; then each thread multiplies a row of the one with a row of the other.
 * Teaches: every element that is fetched is used 32 times. The limit moves from L1 to shared memory: still two
 * loads for every multiply-add, now of 4 bytes each from 32 banks.
 *
 *   FLOP   2 N OC IC
 *   bytes  a block reads 32 rows of x and of W */
#include "matmul.cuh"

enum { SIDE = 32 };

/* A tile of `rows` valid rows from row-major src, 0 outside. Padded by one, so that a column has 32 banks. */
template <typename X>
__device__ inline void fetch(float (&tile)[SIDE][SIDE + 1], const X *src, int64_t rows, int IC, int k) {
    const int row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
    const bool inside = row < rows && k + column < IC;
    tile[row][column] = inside ? to_float(src[(int64_t)row * IC + k + column]) : 0;
}

template <typename X> static __global__ void __launch_bounds__(SIDE *SIDE) tiled_kernel(Linear<X> l) {
    __shared__ float x[SIDE][SIDE + 1], w[SIDE][SIDE + 1];
    const Corner corner = corner_of(l, SIDE, SIDE);
    const int row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
    float sum[1] = {0};
    for (int k = 0; k < l.IC; k += SIDE) {
        fetch(x, l.x + corner.row * l.IC, l.N - corner.row, l.IC, k);
        fetch(w, l.weight + (int64_t)corner.column * l.IC, l.OC - corner.column, l.IC, k);
        __syncthreads();
        for (int i = 0; i < SIDE; i++) sum[0] += x[row][i] * w[column][i];
        __syncthreads(); /* nobody fetches into a tile that others still read */
    }
    finish(l, corner.row + row, corner.column + column, sum);
}

template <typename X> static void run(const Call *c) {
    const Linear<X> l = linear_of<X>(c);
    launch("tiled_kernel", tiled_kernel<X>, tiles_of(l, SIDE, SIDE), SIDE * SIDE, 0, l);
}
extern "C" void matmul_tiled(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
extern "C" double matmul_tiled_bytes(const Sizes *s, int elem) {
    return tile_bytes(s, elem, SIDE, SIDE);
}
