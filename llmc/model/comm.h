/* What the ranks of a run do together. Every step makes every call, also where a process is alone: then there is
 * nothing to do, and nothing waits.
 *
 * All ranks make the same calls in the same order, with the same sizes. What is computed is the same on every rank, bit
 * for bit, and the same in every run.
 *
 * Calls with a stream work on device memory, queued on that stream behind what it has (events put the streams in order),
 * and may be captured into a graph; where the device is not asynchronous they wait. The others work on the host and wait
 * for the other ranks; a Comm of some ranks alone, which share sequences out, has none of them, and is not attached. A
 * rank that is lost ends the process from within the call (llmc/comm/watchdog.h says so to the user). */
#pragma once
#include "llmc/base/ranks.h"
#include "ops.h"

typedef struct Comm Comm;
struct Comm {
    Ranks ranks;

    /* Says where gradients (n fp32 elements) and weights (bytes) lie, both of alloc(), for reduce_scatter and all_gather to
     * work on: ranks that reach each other's memory then write there. detach before they are freed. Both wait for the
     * other ranks; without them all memory is served, by the slower way. */
    void (*attach)(Comm *comm, float *grads, int64_t n, void *weights, size_t bytes);
    void (*detach)(Comm *comm);

    /* x: n_ranks parts of n fp32 elements. This rank's part = the sum of the ranks' parts of its number; the other
     * parts are undefined afterwards. The sums are there behind reduce_scatter_end, for all calls since the last; between
     * it and the next call the stream passes a call of another kind. */
    void (*reduce_scatter)(Comm *comm, StreamId stream, float *x, int64_t n);
    void (*reduce_scatter_end)(Comm *comm, StreamId stream);
    /* x: n_ranks parts of n elements. Every part = what the rank of its number has there: behind all_gather_end. */
    void (*all_gather)(Comm *comm, StreamId stream, void *x, int64_t n, DType dtype);
    void (*all_gather_end)(Comm *comm, StreamId stream);
    /* out, in: n_ranks parts of `bytes`. out's part r = part `rank` of what rank r has in `in`. */
    void (*all_to_all)(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes);
    /* x (n) = its sum over ranks. */
    void (*sum_int64)(Comm *comm, StreamId stream, int64_t *x, int64_t n);

    /* values (n) on the host = their sums over ranks, added in the order of the ranks. */
    void (*sum_on_host)(Comm *comm, double *values, int64_t n);
    /* out (n_ranks x bytes) on the host = the ranks' `mine`, by rank. */
    void (*gather_on_host)(Comm *comm, void *out, const void *mine, int64_t bytes);
    /* data (bytes) on the host = rank 0's. */
    void (*broadcast_on_host)(Comm *comm, void *data, int64_t bytes);
    /* True where all ranks are well. Else every rank gets the first failure, by rank, in err; its text names the rank. */
    bool (*agree)(Comm *comm, bool ok, Error *err);
    /* Bytes of device memory that the calls take for themselves, for the memory plan: at once, and from attach on where
     * n gradients are attached. */
    size_t fixed_bytes;
    size_t (*attached_bytes)(const Comm *comm, int64_t n);
};

/* Rank 0 of 1. */
extern Comm comm_alone;
/* The same for a plan: it says how many ranks there will be, and no call may be made. */
Comm comm_planned(int n_ranks);
