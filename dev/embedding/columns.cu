/* The embedding's gradient, one thread a column walking over all tokens: as they come, and sorted.
 *
 * Teaches: an owner for every sum makes it deterministic without atomics. As tokens come, the walk reads and
 * writes dwte at every step, and each step waits for the memory's latency; sorted, equal tokens follow one another
 * and their sum stays in a register. Both have C threads where a card wants 200,000: what the chunks of the
 * shipped kernel are for.
 *
 *   FLOP   2 N C
 *   bytes  dout read twice (dwte, dwpe); dwte read and written at every token, or at every distinct token */
#include "operands.cuh"

enum { THREADS = 32 }; /* C columns make few warps: better on many SMs than together on one */

template <typename X> static __global__ void columns_kernel(Embedding<X> e) {
    const int c = (int)thread_number();
    if (c >= e.C) return;
    for (int64_t i = 0; i < e.N; i++) e.dwte[(int64_t)e.tokens[i] * e.C + c] += to_float(e.dout[i * e.C + c]);
}

template <typename X> static __global__ void sorted_columns_kernel(Embedding<X> e, SortedTokens sorted) {
    const int c = (int)thread_number();
    if (c >= e.C) return;
    float sum = 0;
    for (int64_t i = 0; i < e.N; i++) {
        const int32_t token = sorted.tokens[i];
        sum += to_float(e.dout[(int64_t)sorted.positions[i] * e.C + c]);
        if (i + 1 < e.N && sorted.tokens[i + 1] == token) continue;
        e.dwte[(int64_t)token * e.C + c] += sum;
        sum = 0;
    }
}

template <typename X> static void run(const Call *c) {
    const Embedding<X> e = operands_of<X>(c);
    launch("columns_kernel", columns_kernel<X>, blocks_for(e.C, THREADS), THREADS, 0, e);
    add_positions(e);
}
template <typename X> static void run_sorted(const Call *c) {
    const Embedding<X> e = operands_of<X>(c);
    const SortedTokens sorted = sort_tokens(e.tokens, c->p[4], e.N, c->s.V);
    launch("sorted_columns_kernel", sorted_columns_kernel<X>, blocks_for(e.C, THREADS), THREADS, 0, e,
           sorted);
    add_positions(e);
}

extern "C" void embedding_columns(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
extern "C" void embedding_sorted_columns(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run_sorted<bf16>(c) : run_sorted<float>(c);
}
