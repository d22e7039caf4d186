/* Layernorm forward, one warp a row, one element a lane at a time.
 *
 * Teaches: coalescing. The same three passes, but a load of the warp is one piece of memory, and sums over the row
 * are five shuffles. A row of 1.5 KB stays in L1 between the passes.
 *
 *   FLOP   about 8 an element
 *   bytes  x read, out written (the second and third pass read from L1) */
#include "forward.cuh"

template <typename X> static __global__ void row_a_warp_kernel(Norm<X> n) {
    const int64_t row = warp_row();
    const int lane = threadIdx.x % WARP_SIZE;
    if (row >= n.N) return;
    const X *x = n.x + row * n.C;
    float sum = 0, squares = 0;
    for (int c = lane; c < n.C; c += WARP_SIZE) sum += to_float(x[c]);
    const float mean = warp_sum(sum) / (float)n.C;
    for (int c = lane; c < n.C; c += WARP_SIZE) squares += squared(to_float(x[c]) - mean);
    const float rstd = rstd_of(warp_sum(squares), n.C);
    for (int c = lane; c < n.C; c += WARP_SIZE) n.out[row * n.C + c] = normed(n, x[c], mean, rstd, c);
    if (lane != 0) return;
    n.mean[row] = mean;
    n.rstd[row] = rstd;
}

template <typename X> static void run(const Call *c) {
    launch("row_a_warp_kernel", row_a_warp_kernel<X>, blocks_for(c->s.N, NORM_WARPS), NORM_THREADS, 0,
           norm_of<X>(c));
}
extern "C" void norm_row_a_warp(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
