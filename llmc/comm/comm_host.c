/* The calls of a Comm that work on the host: over the rendezvous' connections, in both transports. */
#include "comm_host.h"
#include <stdlib.h>
#include "llmc/base/integers.h"

enum { PIECE_BYTES = 1 << 16 }; /* of a rank, at once in a sum */

static Rendezvous *rendezvous_of(const Comm *comm) {
    return ((const GroupComm *)comm)->rendezvous;
}

static void gather_on_host(Comm *comm, void *out, const void *mine, int64_t bytes) {
    rendezvous_gather(rendezvous_of(comm), out, mine, (size_t)bytes);
}

static void broadcast_on_host(Comm *comm, void *data, int64_t bytes) {
    rendezvous_broadcast(rendezvous_of(comm), data, (size_t)bytes);
}

/* Rank 0 adds, so that every rank receives the sum alone: the terms of n ranks to n ranks would be n^2 pieces. */
static void sum_piece(Comm *comm, double *values, int64_t n) {
    Rendezvous *r = rendezvous_of(comm);
    const size_t bytes = (size_t)n * sizeof *values;
    const int n_ranks = comm->ranks.n_ranks;
    double *all = NULL;
    if (ranks_leads(comm->ranks)) all = must_allocate((size_t)n_ranks * bytes, "sums of ranks");
    rendezvous_collect(r, all, values, bytes);
    for (int rank = 1; all && rank < n_ranks; rank++)
        for (int64_t i = 0; i < n; i++) values[i] += all[rank * n + i];
    free(all);
    rendezvous_broadcast(r, values, bytes);
}

static void sum_on_host(Comm *comm, double *values, int64_t n) {
    const int64_t most = PIECE_BYTES / (int64_t)sizeof *values;
    for (int64_t i = 0; i < n; i += most) sum_piece(comm, values + i, min_i64(n - i, most));
}

static bool agree(Comm *comm, bool ok, Error *err) {
    return ranks_agree(rendezvous_of(comm), ok, err);
}

void group_open(GroupComm *group, Rendezvous *r, int n) {
    const bool of_all = n == r->ranks.n_ranks;
    group->rendezvous = r;
    group->comm = comm_alone; /* has what a transport leaves out: attach, ends */
    group->comm.ranks = ranks_of_context(r->ranks, n);
    group->comm.sum_on_host = of_all ? sum_on_host : NULL;
    group->comm.gather_on_host = of_all ? gather_on_host : NULL;
    group->comm.broadcast_on_host = of_all ? broadcast_on_host : NULL;
    group->comm.agree = of_all ? agree : NULL;
}

const char *comm_description(const Comm *comm) {
    return ((const GroupComm *)comm)->description;
}

void comm_close(Comm *comm) {
    if (comm && comm != &comm_alone) ((GroupComm *)comm)->close((GroupComm *)comm);
}
