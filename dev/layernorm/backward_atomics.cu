/* Layernorm backward, one warp a row, sums over columns by atomic additions.
 *
 * Teaches: one launch and no scratch, but every row adds to the same 3 C sums: N additions to each address, which
 * L2 performs one after the other, in an order that depends on timing.
 *
 *   FLOP   about 20 an element
 *   bytes  dresidual, dout and x read, dx written; 3 N C additions in L2 */
#include "backward.cuh"

template <typename X> static __global__ void atomics_kernel(NormBackward<X> b) {
    const int64_t row = thread_number() / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    if (row >= b.N) return;
    const RowMeans means = warp_means(b, row);
    for (int c = lane; c < b.C; c += WARP_SIZE) {
        const NormElement e = element(b, row, c);
        const float dx = dx_of(b, e, means, row, c);
        b.dx[row * b.C + c] = from_float<X>(dx);
        atomicAdd(&b.dweight[c], e.dout * e.n);
        atomicAdd(&b.dbias[c], e.dout);
        if (b.dx_sums) atomicAdd(&b.dx_sums[c], dx);
    }
}

template <typename X> static void run(const Call *c) {
    launch("atomics_kernel", atomics_kernel<X>, blocks_for(c->s.N, NORM_WARPS), NORM_THREADS, 0,
           backward_of<X>(c));
}
extern "C" void norm_backward_atomics(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
