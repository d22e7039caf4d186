/* The embedding's gradient by atomic additions, a thread for each position and column.
 *
 * Teaches: the shortest form, and the two things that are wrong with it. Additions arrive in an order that depends
 * on timing, so two runs differ in the last bits; and text repeats itself (the most frequent token is a sixth of
 * the lab's input), so additions to its row queue up.
 *
 *   FLOP   2 N C
 *   bytes  dout read once; 2 N C additions of 4 bytes, performed by L2, of which memory sees the rows touched */
#include "operands.cuh"

enum { THREADS = 256 };

template <typename X> static __global__ void atomics_kernel(Embedding<X> e) {
    const int64_t i = thread_number();
    if (i >= e.N * e.C) return;
    const int64_t position = i / e.C;
    const int c = (int)(i % e.C);
    const float grad = to_float(e.dout[i]);
    atomicAdd(&e.dwte[(int64_t)e.tokens[position] * e.C + c], grad);
    atomicAdd(&e.dwpe[position % e.T * e.C + c], grad);
}

template <typename X> static void run(const Call *c) {
    const Embedding<X> e = operands_of<X>(c);
    launch("atomics_kernel", atomics_kernel<X>, blocks_for(e.N * e.C, THREADS), THREADS, 0, e);
}
extern "C" void embedding_atomics(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
