#include "comm.h"

static void reduce_begin(Comm *comm, float *x, int64_t n) {
    (void)comm, (void)x, (void)n;
}

static void reduce_wait(Comm *comm) {
    (void)comm;
}

static void gather(Comm *comm, floatX *x, int64_t n, DType dtype) {
    (void)comm, (void)x, (void)n, (void)dtype;
}

static void sum_stats(Comm *comm, StepStats *stats) {
    (void)comm, (void)stats;
}

static void sum_on_host(Comm *comm, double *values, int64_t n) {
    (void)comm, (void)values, (void)n;
}

Comm comm_alone = {
    .ranks = {.rank = 0, .n_ranks = 1},
    .reduce_begin = reduce_begin,
    .reduce_wait = reduce_wait,
    .gather = gather,
    .sum_stats = sum_stats,
    .sum_on_host = sum_on_host,
};
