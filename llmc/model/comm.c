#include "comm.h"
#include <string.h>

/* A process alone has nothing to exchange. */
static void attach(Comm *comm, float *grads, int64_t n, void *weights, size_t bytes) {}
static void detach(Comm *comm) {}
static void end(Comm *comm, StreamId stream) {}
static void reduce_scatter(Comm *comm, StreamId stream, float *x, int64_t n) {}
static void all_gather(Comm *comm, StreamId stream, void *x, int64_t n, DType dtype) {}
static void all_to_all(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {}
static void sum_int64(Comm *comm, StreamId stream, int64_t *x, int64_t n) {}
static void sum_on_host(Comm *comm, double *values, int64_t n) {}
static void broadcast_on_host(Comm *comm, void *data, int64_t bytes) {}

static void gather_on_host(Comm *comm, void *out, const void *mine, int64_t bytes) {
    memcpy(out, mine, (size_t)bytes);
}

static bool agree(Comm *comm, bool ok, Error *err) {
    return ok;
}

static size_t attached_bytes(const Comm *comm, int64_t n) {
    return 0;
}

Comm comm_alone = {
    .ranks = {.rank = 0, .n_ranks = 1},
    .attach = attach,
    .detach = detach,
    .reduce_scatter = reduce_scatter,
    .reduce_scatter_end = end,
    .all_gather = all_gather,
    .all_gather_end = end,
    .all_to_all = all_to_all,
    .sum_int64 = sum_int64,
    .sum_on_host = sum_on_host,
    .gather_on_host = gather_on_host,
    .broadcast_on_host = broadcast_on_host,
    .agree = agree,
    .attached_bytes = attached_bytes,
};

Comm comm_planned(int n_ranks) {
    Comm comm = comm_alone;
    comm.ranks = (Ranks){.rank = 0, .n_ranks = n_ranks};
    return comm;
}
