/* Layernorm backward in two launches: sums over columns first, rows second.
 *
 * Algorithm: 1. a warp a row leaves mean_c(g) and mean_c(g n) in scratch. 2. a thread a column walks down all
 * rows, computes dx, writes it and keeps the three sums in registers.
 * Teaches: an owner for every sum, so no atomics and the same bits always; but C threads are 24 warps of GPT-2
 * where a card holds 8000, and each waits for memory N times.
 *
 *   FLOP   about 30 an element
 *   bytes  dout and x read twice, dresidual read, dx written; 8 a row of scratch written and read */
#include "backward.cuh"

enum { COLUMN_THREADS = 32 }; /* so that the few warps are spread over as many SMs */

template <typename X> static __global__ void row_means_kernel(NormBackward<X> b) {
    const int64_t row = thread_number() / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    if (row >= b.N) return;
    const RowMeans means = warp_means(b, row);
    if (lane == 0) ((RowMeans *)b.scratch)[row] = means;
}

template <typename X> static __global__ void columns_kernel(NormBackward<X> b) {
    const RowMeans *means = (const RowMeans *)b.scratch;
    const int c = (int)thread_number();
    if (c >= b.C) return;
    float dweight = 0, dbias = 0, dx_sum = 0;
    for (int64_t row = 0; row < b.N; row++) {
        const NormElement e = element(b, row, c);
        const float dx = dx_of(b, e, means[row], row, c);
        b.dx[row * b.C + c] = from_float<X>(dx);
        dweight += e.dout * e.n;
        dbias += e.dout;
        dx_sum += dx;
    }
    b.dweight[c] += dweight;
    b.dbias[c] += dbias;
    if (b.dx_sums) b.dx_sums[c] += dx_sum;
}

template <typename X> static void run(const Call *c) {
    const NormBackward<X> b = backward_of<X>(c);
    launch("row_means_kernel", row_means_kernel<X>, blocks_for(b.N, NORM_WARPS), NORM_THREADS, 0, b);
    launch("columns_kernel", columns_kernel<X>, blocks_for(b.C, COLUMN_THREADS), COLUMN_THREADS, 0, b);
}
extern "C" void norm_backward_columns(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
extern "C" size_t norm_backward_columns_scratch(const Sizes *s, int elem) {
    return (size_t)s->N * sizeof(RowMeans);
}
extern "C" double norm_backward_columns_bytes(const Sizes *s, int elem) {
    return (double)s->N * (6.0 * elem * s->C + 2 * sizeof(RowMeans));
}
