/* Ranks for tests: processes forked from this one, and a Comm between them over memory that they share. Every rank adds
 * up what it is given in the order of the ranks. The CPU's threads must not have started: call
 * cpu_set_thread_count(1) first. */
#pragma once
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "llmc/model/comm.h"
#include "check.h"

enum { FORKED_MAX = 8, FORKED_BYTES = 256 << 20, FORKED_SECONDS = 600 /* should a rank hang */ };

typedef struct ForkedShared {
    pthread_barrier_t barrier;
    char sent[FORKED_MAX][FORKED_BYTES]; /* by each rank */
} ForkedShared;

typedef struct ForkedComm {
    Comm comm;
    ForkedShared *shared;
} ForkedComm;

/* Memory that forked processes share, zero; there is none until it is written. */
__attribute__((unused)) static void *forked_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

/* What all ranks send, each `bytes`, until forked_done. */
static ForkedShared *forked_send(Comm *comm, const void *data, int64_t bytes) {
    ForkedShared *shared = ((ForkedComm *)comm)->shared;
    if (bytes > FORKED_BYTES) abort();
    memcpy(shared->sent[comm->ranks.rank], data, (size_t)bytes);
    pthread_barrier_wait(&shared->barrier);
    return shared;
}
static void forked_done(ForkedShared *shared) {
    pthread_barrier_wait(&shared->barrier);
}

/* The parts of others become NaN, as they are undefined. */
static void forked_reduce_scatter(Comm *comm, StreamId stream, float *x, int64_t n) {
    const Ranks ranks = comm->ranks;
    const int64_t begin = ranks.rank * n;
    ForkedShared *shared = forked_send(comm, x, ranks.n_ranks * n * (int64_t)sizeof *x);
    for (int64_t i = 0; i < ranks.n_ranks * n; i++) x[i] = i / n == ranks.rank ? 0 : NAN;
    for (int r = 0; r < ranks.n_ranks; r++)
        for (int64_t i = begin; i < begin + n; i++) x[i] += ((const float *)(void *)shared->sent[r])[i];
    forked_done(shared);
}

static void forked_all_gather(Comm *comm, StreamId stream, void *x, int64_t n, DType dtype) {
    const int64_t bytes = n * (int64_t)dtype_bytes(dtype);
    ForkedShared *shared = forked_send(comm, (char *)x + comm->ranks.rank * bytes, bytes);
    for (int r = 0; r < comm->ranks.n_ranks; r++)
        memcpy((char *)x + r * bytes, shared->sent[r], (size_t)bytes);
    forked_done(shared);
}

static void forked_all_to_all(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    const Ranks ranks = comm->ranks;
    ForkedShared *shared = forked_send(comm, in, bytes * ranks.n_ranks);
    for (int r = 0; r < ranks.n_ranks; r++)
        memcpy((char *)out + r * bytes, shared->sent[r] + ranks.rank * bytes, (size_t)bytes);
    forked_done(shared);
}

static void forked_sum_int64(Comm *comm, StreamId stream, int64_t *x, int64_t n) {
    ForkedShared *shared = forked_send(comm, x, n * (int64_t)sizeof *x);
    memset(x, 0, (size_t)n * sizeof *x);
    for (int r = 0; r < comm->ranks.n_ranks; r++)
        for (int64_t i = 0; i < n; i++) x[i] += ((const int64_t *)(void *)shared->sent[r])[i];
    forked_done(shared);
}

static void forked_sum_on_host(Comm *comm, double *values, int64_t n) {
    ForkedShared *shared = forked_send(comm, values, n * (int64_t)sizeof *values);
    memset(values, 0, (size_t)n * sizeof *values);
    for (int r = 0; r < comm->ranks.n_ranks; r++)
        for (int64_t i = 0; i < n; i++) values[i] += ((const double *)(void *)shared->sent[r])[i];
    forked_done(shared);
}

static void forked_gather_on_host(Comm *comm, void *out, const void *mine, int64_t bytes) {
    ForkedShared *shared = forked_send(comm, mine, bytes);
    for (int r = 0; r < comm->ranks.n_ranks; r++)
        memcpy((char *)out + r * bytes, shared->sent[r], (size_t)bytes);
    forked_done(shared);
}

static void forked_broadcast_on_host(Comm *comm, void *data, int64_t bytes) {
    ForkedShared *shared = forked_send(comm, data, bytes);
    memcpy(data, shared->sent[0], (size_t)bytes);
    forked_done(shared);
}

/* Runs rank(comm, user) in n processes; true where all return and no check in them fails. */
__attribute__((unused)) static bool forked_run(int n, void (*rank)(Comm *comm, void *user), void *user) {
    ForkedShared *shared = forked_memory(sizeof *shared);
    pthread_barrierattr_t across;
    bool ok = true;
    pthread_barrierattr_init(&across);
    pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &across, (unsigned)n);
    fflush(stdout);
    for (int r = 0; r < n; r++) {
        if (fork() > 0) continue;
        alarm(FORKED_SECONDS);
        ForkedComm forked = {.comm = comm_planned(n), .shared = shared};
        forked.comm.ranks.rank = r;
        forked.comm.reduce_scatter = forked_reduce_scatter;
        forked.comm.all_gather = forked_all_gather;
        forked.comm.all_to_all = forked_all_to_all;
        forked.comm.sum_int64 = forked_sum_int64;
        forked.comm.sum_on_host = forked_sum_on_host;
        forked.comm.gather_on_host = forked_gather_on_host;
        forked.comm.broadcast_on_host = forked_broadcast_on_host;
        check_failed = 0;
        rank(&forked.comm, user);
        fflush(stdout);
        _exit(check_failed > 0);
    }
    for (int r = 0, status; r < n; r++) ok = wait(&status) > 0 && status == 0 && ok;
    munmap(shared, sizeof *shared);
    return ok;
}
