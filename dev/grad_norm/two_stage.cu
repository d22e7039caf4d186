/* Global norm in two launches, without atomics.
 *
 * Teaches: a fixed number of blocks takes elements in turns and leaves one partial sum each; a second launch of
 * one block adds those in a fixed order. The same bits every time, and the grid fits the card at once. The
 * shipped kernel adds its partial sums as integers, so that no order shows at all.
 *
 *   FLOP   2 an element
 *   bytes  gradients read once; 8 KB of partial sums */
#include "finish.cuh"

enum { MAX_PARTIALS = 1024 };

/* scratch[block] = squares of the elements whose turn it is */
static __global__ void partial_squares_kernel(Norm norm) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    double sum = 0;
    for (int64_t i = thread_number(); i < norm.n; i += stride) sum += (double)norm.grads[i] * norm.grads[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) norm.scratch[blockIdx.x] = sum;
}
static __global__ void add_partials_kernel(Norm norm, int n_partials) {
    const double sum = block_sum(threadIdx.x < n_partials ? norm.scratch[threadIdx.x] : 0.0);
    if (threadIdx.x == 0) finish(norm.stats, sum);
}

extern "C" void grad_norm_two_stage(const Call *c) {
    const Norm norm = norm_of(c);
    const int64_t wanted = blocks_for(norm.n, NORM_THREADS);
    const int partials = wanted < MAX_PARTIALS ? (int)wanted : (int)MAX_PARTIALS;
    launch("partial_squares_kernel", partial_squares_kernel, partials, NORM_THREADS, 0, norm);
    launch("add_partials_kernel", add_partials_kernel, 1, MAX_PARTIALS, 0, norm, partials);
}
