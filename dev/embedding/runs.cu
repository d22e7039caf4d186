/* The embedding's gradient, one block a run of equal tokens.
 *
 * Teaches: sorting makes the distinct tokens independent of one another, so each gets a block, and rows are read
 * by whole warps. But text is heavy-tailed: the block of the most frequent token walks over a sixth of all
 * positions while the card waits for it. The shipped kernel cuts runs into chunks of equal length.
 *
 *   FLOP   2 N C
 *   bytes  dout read twice (dwte, dwpe); dwte read and written once for every distinct token */
#include "operands.cuh"

enum { THREADS = 256 };

/* Block i belongs to the sorted position i, and does nothing unless a run begins there. */
template <typename X> static __global__ void runs_kernel(Embedding<X> e, SortedTokens sorted) {
    const int64_t begin = blockIdx.x;
    const int32_t token = sorted.tokens[begin];
    if (begin > 0 && sorted.tokens[begin - 1] == token) return;
    for (int c = threadIdx.x; c < e.C; c += blockDim.x) {
        float sum = 0;
        for (int64_t i = begin; i < e.N && sorted.tokens[i] == token; i++)
            sum += to_float(e.dout[(int64_t)sorted.positions[i] * e.C + c]);
        e.dwte[(int64_t)token * e.C + c] += sum;
    }
}

template <typename X> static void run(const Call *c) {
    const Embedding<X> e = operands_of<X>(c);
    const SortedTokens sorted = sort_tokens(e.tokens, c->p[4], e.N, c->s.V);
    launch("runs_kernel", runs_kernel<X>, blocks_for(e.N, 1), THREADS, 0, e, sorted);
    add_positions(e);
}
extern "C" void embedding_runs(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
