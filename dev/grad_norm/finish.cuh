/* The last step of every rung: from the sum of squares to stats. */
#pragma once
#include "dev/driver/launch.cuh"
#include "ladder.h"

enum { NORM_THREADS = 256 };

/* Operands: stats, grads (N), scratch. */
struct Norm {
    StepStats *stats;
    const float *grads;
    double *scratch;
    int64_t n;
};
static Norm norm_of(const Call *c) {
    return {(StepStats *)c->p[0], (const float *)c->p[1], (double *)c->p[2], c->s.N};
}

/* By one thread. A NaN or inf anywhere in the gradients ends here. */
__device__ inline void finish(StepStats *stats, double sum) {
    stats->grad_norm = (float)sqrt(sum);
    if (!isfinite(stats->grad_norm)) stats->bad = 1;
}
