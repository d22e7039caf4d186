/* What the ranks of a run do together. Every step makes every call, also where a process is alone: then there is
 * nothing to do, and nothing waits.
 *
 * All ranks make the same calls in the same order. Those on device memory are queued behind the main stream's work and
 * may be captured into a graph; what is computed is the same on every rank, bit for bit. */
#pragma once
#include "llmc/base/ranks.h"
#include "ops.h"

typedef struct Comm Comm;
struct Comm {
    Ranks ranks;
    /* x (n) = its sum over ranks. It may run beside what the main stream does next, which leaves x alone until
     * reduce_wait: what is queued there from then on sees all sums that were begun. */
    void (*reduce_begin)(Comm *comm, float *x, int64_t n);
    void (*reduce_wait)(Comm *comm);
    /* x (n) of the storage type: a rank brings the part that it updates, and gets the others'. */
    void (*gather)(Comm *comm, floatX *x, int64_t n, DType dtype);
    /* loss, sum_squares, bad and stop = their sums over ranks. */
    void (*sum_stats)(Comm *comm, StepStats *stats);
    /* values (n) on the host = their sums over ranks; waits. */
    void (*sum_on_host)(Comm *comm, double *values, int64_t n);
};

/* Rank 0 of 1. */
extern Comm comm_alone;
