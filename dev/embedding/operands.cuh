/* The operands, typed, and the gradient of the positions, which all rungs but the atomic one share. */
#pragma once
#include "llmc/cuda/cuda_ops.cuh"
#include "dev/driver/launch.cuh"
#include "ladder.h"

template <typename X> struct Embedding {
    float *dwte, *dwpe;
    const X *dout;
    const int32_t *tokens;
    int64_t N; /* B*T */
    int B, T, C;
};
template <typename X> static Embedding<X> operands_of(const Call *c) {
    const Sizes *s = &c->s;
    return {(float *)c->p[0],
            (float *)c->p[1],
            (const X *)c->p[2],
            (const int32_t *)c->p[3],
            s->N,
            s->B,
            s->T,
            s->C};
}

/* dwpe[t][c] += sum over the batch, a thread for each t and c: T*C of them, enough for any card. */
template <typename X> static __global__ void positions_kernel(Embedding<X> e) {
    const int64_t i = thread_number(), columns = (int64_t)e.T * e.C;
    if (i >= columns) return;
    float sum = 0;
    for (int b = 0; b < e.B; b++) sum += to_float(e.dout[b * columns + i]);
    e.dwpe[i] += sum;
}
template <typename X> static void add_positions(const Embedding<X> &e) {
    enum { THREADS = 256 };
    launch("positions_kernel", positions_kernel<X>, blocks_for((int64_t)e.T * e.C, THREADS), THREADS, 0, e);
}
