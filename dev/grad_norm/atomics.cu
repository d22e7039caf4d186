/* Global norm by atomic additions: from every thread, and from every block.
 *
 * Teaches: additions to one address wait for each other. Every element by itself makes 124 million of them and
 * takes as long as that queue, not as long as reading; a sum over the block first leaves one in 256.
 * Either way the order of the additions is that of arrival, so the last bits change from run to run; in fp32
 * instead of double the small squares would also be lost in the growing sum.
 *
 *   FLOP   2 an element
 *   bytes  gradients read once */
#include "finish.cuh"

/* The sum in memory, scratch[0], += squares of all. */
template <bool BLOCK_FIRST> static __global__ void add_squares_kernel(Norm norm) {
    const int64_t i = thread_number();
    const double x = i < norm.n ? norm.grads[i] : 0;
    const double sum = BLOCK_FIRST ? block_sum(x * x) : x * x;
    if (!BLOCK_FIRST || threadIdx.x == 0) atomicAdd(norm.scratch, sum);
}
static __global__ void finish_kernel(Norm norm) {
    finish(norm.stats, norm.scratch[0]);
}

template <bool BLOCK_FIRST> static void run(const Call *c) {
    const Norm norm = norm_of(c);
    CUDA_CHECK(cudaMemsetAsync(norm.scratch, 0, sizeof *norm.scratch, main_stream));
    launch("add_squares_kernel", add_squares_kernel<BLOCK_FIRST>, blocks_for(norm.n, NORM_THREADS),
           NORM_THREADS, 0, norm);
    launch("finish_kernel", finish_kernel, 1, 1, 0, norm);
}
extern "C" void grad_norm_atomics(const Call *c) {
    run<false>(c);
}
extern "C" void grad_norm_block_atomics(const Call *c) {
    run<true>(c);
}
