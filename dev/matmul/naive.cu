/* Matrix product, one thread an output.
 *
 * Teaches: the definition. Two loads for every multiply-add, so the load units are the limit long before memory is;
 * neighbouring threads walk along neighbouring rows of W, so a load of a warp touches 16 lines of W and uses a few
 * bytes of each at a time.
 *
 *   FLOP   2 N OC IC
 *   bytes  a block of 16 x 16 outputs reads 16 rows of x and of W, if L1 holds its 32 lines from one k to the next */
#include "matmul.cuh"

enum { SIDE = 16 };

template <typename X> static __global__ void naive_kernel(Linear<X> l) {
    const Corner corner = corner_of(l, SIDE, SIDE);
    const int64_t row = corner.row + threadIdx.x / SIDE;
    const int column = corner.column + threadIdx.x % SIDE;
    if (row >= l.N || column >= l.OC) return;
    const X *x = l.x + row * l.IC, *w = l.weight + (int64_t)column * l.IC;
    float sum[1] = {0};
    for (int k = 0; k < l.IC; k++) sum[0] += to_float(x[k]) * to_float(w[k]);
    finish(l, row, column, sum);
}

template <typename X> static void run(const Call *c) {
    const Linear<X> l = linear_of<X>(c);
    launch("naive_kernel", naive_kernel<X>, tiles_of(l, SIDE, SIDE), SIDE * SIDE, 0, l);
}
extern "C" void matmul_naive(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
extern "C" double matmul_naive_bytes(const Sizes *s, int elem) {
    return tile_bytes(s, elem, SIDE, SIDE);
}
