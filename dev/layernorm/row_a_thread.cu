/* Layernorm forward, one thread a row.
 *
 * Teaches: why neighbouring threads must read neighbouring addresses. The 32 threads of a warp are C elements
 * apart, so each load touches 32 lines for 2 bytes of each; the rest of a line is used by later iterations only if
 * it is still in a cache, and 65536 rows have 512 warps, 4 an SM: little to hide latency with.
 *
 *   FLOP   about 8 an element
 *   bytes  x read and out written, if every line survived until it is used up; x is read three times */
#include "forward.cuh"

template <typename X> static __global__ void row_a_thread_kernel(Norm<X> n) {
    const int64_t row = thread_number();
    if (row >= n.N) return;
    const X *x = n.x + row * n.C;
    float sum = 0, squares = 0;
    for (int c = 0; c < n.C; c++) sum += to_float(x[c]);
    const float mean = sum / (float)n.C;
    for (int c = 0; c < n.C; c++) squares += squared(to_float(x[c]) - mean);
    const float rstd = rstd_of(squares, n.C);
    for (int c = 0; c < n.C; c++) n.out[row * n.C + c] = normed(n, x[c], mean, rstd, c);
    n.mean[row] = mean;
    n.rstd[row] = rstd;
}

template <typename X> static void run(const Call *c) {
    launch("row_a_thread_kernel", row_a_thread_kernel<X>, blocks_for(c->s.N, NORM_THREADS), NORM_THREADS, 0,
           norm_of<X>(c));
}
extern "C" void norm_row_a_thread(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
