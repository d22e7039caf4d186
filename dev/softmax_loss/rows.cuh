/* What the rungs share: a block of threads a row, and what is done with a row once its maximum and sum are known. */
#pragma once
#include "dev/driver/launch.cuh"
#include "ladder.h"

enum { LOSS_THREADS = 512 };

template <typename X> struct Logits {
    float *losses;
    X *logits; /* (N,Vp) */
    const int32_t *targets;
    int V, Vp;
};
template <typename X> static Logits<X> logits_of(const Call *c) {
    return {(float *)c->p[0], (X *)c->p[1], (const int32_t *)c->p[2], c->s.V, c->s.Vp};
}

/* Largest logit of a row and the sum of exp(z - max), in every thread of the block. */
struct RowSums {
    float max, sum;
};

/* loss = log(sum) + max - z_target, by one thread: exact for logits of any size. */
template <typename X> __device__ inline void write_loss(const Logits<X> &l, RowSums r, float z_target) {
    if (threadIdx.x == 0) l.losses[blockIdx.x] = logf(r.sum) + (r.max - z_target);
}

/* dlogits of column i, whose logit is z. */
template <typename X> __device__ inline X dlogit(const Logits<X> &l, RowSums r, int target, int i, float z) {
    return from_float<X>(i < l.V ? expf(z - r.max) / r.sum - (i == target) : 0);
}

/* The row in memory becomes its gradient, one element a thread at a time. */
template <typename X>
__device__ inline void write_gradient(const Logits<X> &l, RowSums r, X *row, int target) {
    for (int i = threadIdx.x; i < l.Vp; i += blockDim.x) row[i] = dlogit(l, r, target, i, to_float(row[i]));
}

/* A block a row: PASS reads the row for its maximum and sum; the loss, and BACKWARD the gradient, follow. */
template <typename X, RowSums (*PASS)(const X *row, int V), bool BACKWARD>
static __global__ void rows_kernel(Logits<X> l) {
    X *row = l.logits + (int64_t)blockIdx.x * l.Vp;
    const int target = l.targets[blockIdx.x];
    const float z_target = to_float(row[target]); /* before the gradient overwrites it */
    const RowSums r = PASS(row, l.V);
    write_loss(l, r, z_target);
    if (BACKWARD) write_gradient(l, r, row, target);
}
template <typename X, RowSums (*PASS)(const X *row, int V), bool BACKWARD>
static void run_rows(const char *name, const Call *c) {
    launch(name, rows_kernel<X, PASS, BACKWARD>, blocks_for(c->s.N, 1), LOSS_THREADS, 0, logits_of<X>(c));
}

template <typename X> static size_t row_bytes(const Logits<X> &l) {
    return (size_t)l.Vp * sizeof(X);
}
