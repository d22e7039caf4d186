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

enum { FORKED_MAX = 8, FORKED_BYTES = 4 << 20, FORKED_SECONDS = 60 };

typedef struct ForkedShared {
    pthread_barrier_t barrier;
    char sent[FORKED_MAX][FORKED_BYTES]; /* by each rank */
} ForkedShared;

typedef struct ForkedComm {
    Comm comm;
    ForkedShared *shared;
} ForkedComm;

/* Memory that forked processes share, zero. */
__attribute__((unused)) static void *forked_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

static void forked_all_to_all(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    ForkedShared *shared = ((ForkedComm *)comm)->shared;
    const Ranks ranks = comm->ranks;
    if (bytes * ranks.n_ranks > FORKED_BYTES) abort();
    memcpy(shared->sent[ranks.rank], in, (size_t)(bytes * ranks.n_ranks));
    pthread_barrier_wait(&shared->barrier);
    for (int r = 0; r < ranks.n_ranks; r++)
        memcpy((char *)out + r * bytes, shared->sent[r] + ranks.rank * bytes, (size_t)bytes);
    pthread_barrier_wait(&shared->barrier);
}

/* Runs rank(comm, user) in n processes; true where all return. */
__attribute__((unused)) static bool forked_run(int n, void (*rank)(Comm *comm, void *user), void *user) {
    ForkedShared *shared = forked_memory(sizeof *shared);
    pthread_barrierattr_t across;
    bool ok = true;
    pthread_barrierattr_init(&across);
    pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &across, (unsigned)n);
    for (int r = 0; r < n; r++) {
        if (fork() > 0) continue;
        alarm(FORKED_SECONDS);
        ForkedComm forked = {.comm = comm_planned(n), .shared = shared};
        forked.comm.ranks.rank = r;
        forked.comm.all_to_all = forked_all_to_all;
        rank(&forked.comm, user);
        _exit(check_failed > 0);
    }
    for (int r = 0, status; r < n; r++) ok = wait(&status) > 0 && status == 0 && ok;
    munmap(shared, sizeof *shared);
    return ok;
}
