/* Layernorm backward with partial sums: a block takes rows in turns, and a second launch adds what blocks found.
 *
 * Algorithm: 1. a block reduces a row, writes its dx, and adds the row to three sums a column in shared memory;
 * each column belongs to one thread, so no barrier guards them. At the end they go to scratch. 2. a thread a
 * column adds the blocks' sums in order.
 * Teaches: parallel over rows, and still deterministic, for a few MB of scratch. The number of blocks is fixed and
 * not the card's, so two cards give the same bits. What the shipped kernel adds: wider loads, and sums in registers.
 *
 *   FLOP   about 20 an element
 *   bytes  dresidual, dout and x read, dx written (the second look at a row is served by L1); 24 C for each block */
#include "backward.cuh"

enum { MAX_BLOCKS = 528, KINDS = 3 }; /* four blocks for each of 132 SMs */

static int64_t blocks_of(int64_t N) {
    return N < MAX_BLOCKS ? N : (int64_t)MAX_BLOCKS;
}

/* One row: dx, and the three sums of the columns that belong to this thread. Every thread must come here. */
template <typename X> __device__ inline void take_row(const NormBackward<X> &b, float *sums, int64_t row) {
    float g = 0, gn = 0;
    for (int c = threadIdx.x; c < b.C; c += blockDim.x) {
        const NormElement e = element(b, row, c);
        g += e.g;
        gn += e.g * e.n;
    }
    const float mean_g = block_sum(g) / (float)b.C, mean_gn = block_sum(gn) / (float)b.C;
    const RowMeans means = {mean_g, mean_gn};
    for (int c = threadIdx.x; c < b.C; c += blockDim.x) {
        const NormElement e = element(b, row, c);
        const float dx = dx_of(b, e, means, row, c);
        b.dx[row * b.C + c] = from_float<X>(dx);
        sums[c] += e.dout * e.n;
        sums[b.C + c] += e.dout;
        sums[2 * b.C + c] += dx;
    }
}

/* scratch (gridDim.x, KINDS, C) */
template <typename X> static __global__ void partials_kernel(NormBackward<X> b) {
    extern __shared__ float sums[]; /* (KINDS, C); column c belongs to thread c % blockDim.x */
    for (int c = threadIdx.x; c < b.C; c += blockDim.x)
        for (int kind = 0; kind < KINDS; kind++) sums[kind * b.C + c] = 0;
    for (int64_t row = blockIdx.x; row < b.N; row += gridDim.x) take_row(b, sums, row);
    float *partial = (float *)b.scratch + (int64_t)blockIdx.x * KINDS * b.C;
    for (int c = threadIdx.x; c < b.C; c += blockDim.x)
        for (int kind = 0; kind < KINDS; kind++) partial[kind * b.C + c] = sums[kind * b.C + c];
}

/* Thread i of KINDS * C. */
template <typename X> static __global__ void add_partials_kernel(NormBackward<X> b, int64_t n_partials) {
    float *const out[KINDS] = {b.dweight, b.dbias, b.dx_sums};
    const int i = (int)thread_number(), kind = i / b.C;
    if (kind >= KINDS || !out[kind]) return;
    float sum = 0;
    for (int64_t k = 0; k < n_partials; k++) sum += ((const float *)b.scratch)[k * KINDS * b.C + i];
    out[kind][i % b.C] += sum;
}

template <typename X> static void run(const Call *c) {
    const NormBackward<X> b = backward_of<X>(c);
    const int64_t blocks = blocks_of(b.N);
    launch("partials_kernel", partials_kernel<X>, (unsigned)blocks, NORM_THREADS,
           KINDS * (size_t)b.C * sizeof(float), b);
    launch("add_partials_kernel", add_partials_kernel<X>, blocks_for((int64_t)KINDS * b.C, NORM_THREADS),
           NORM_THREADS, 0, b, blocks);
}
extern "C" void norm_backward_partials(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
extern "C" size_t norm_backward_partials_scratch(const Sizes *s, int elem) {
    return (size_t)blocks_of(s->N) * KINDS * (size_t)s->C * sizeof(float);
}
