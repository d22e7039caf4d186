/* Softmax cross-entropy as it is defined, a pass over the row for each step.
 *
 * Algorithm, a block a row:
 *   1. max = max_i z_i
 *   2. sum = sum_i exp(z_i - max); the loss is log(sum) + max - z_target
 *   3. (backward) z_i = exp(z_i - max) / sum - [i = target]
 * Teaches: the maximum has to be known before the first exponential, so the row is read twice before the third
 * pass reads it again. A row of GPT-2 has 100 KB in bf16: the blocks of an SM together are far beyond its L1, and all
 * rows under way (50 MB) about fill L2, so later passes are not free.
 *
 *   FLOP   about 2 V exponentials a row
 *   bytes  forward: logits read twice. backward: read three times, written once */
#include "rows.cuh"

template <typename X> __device__ inline RowSums two_passes(const X *row, int V) {
    float max = -FLT_MAX, sum = 0;
    for (int i = threadIdx.x; i < V; i += blockDim.x) max = fmaxf(max, to_float(row[i]));
    max = block_max(max);
    for (int i = threadIdx.x; i < V; i += blockDim.x) sum += expf(to_float(row[i]) - max);
    return {max, block_sum(sum)};
}

template <bool BACKWARD> static void run(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run_rows<bf16, two_passes<bf16>, BACKWARD>("passes", c)
                                : run_rows<float, two_passes<float>, BACKWARD>("passes", c);
}
extern "C" void loss_passes_forward(const Call *c) {
    run<false>(c);
}
extern "C" void loss_passes_backward(const Call *c) {
    run<true>(c);
}
extern "C" double loss_passes_forward_bytes(const Sizes *s, int elem) {
    return 2.0 * elem * (double)s->N * s->Vp;
}
extern "C" double loss_passes_backward_bytes(const Sizes *s, int elem) {
    return 4.0 * elem * (double)s->N * s->Vp;
}
