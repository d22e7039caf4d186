/* The calls of a Comm that work on the host: over the rendezvous' connections, in both transports.
 *
 * All ranks of the rendezvous make them together, those of every group: what is gathered comes from all ranks, and each
 * takes what is of its group. So groups need no connections of their own for them. */
#include "comm_host.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 16 }; /* of a rank, gathered at once */

static const char said[] = "what ranks say to each other";

/* What all ranks have in `mine`, by rank; freed by the caller. */
static void *gather(const GroupComm *group, const void *mine, size_t bytes) {
    void *all = must_allocate((size_t)group->rendezvous->ranks.n_ranks * bytes, said);
    rendezvous_gather(group->rendezvous, all, mine, bytes);
    return all;
}

/* ---- what the members have ---- */

static void gather_on_host(Comm *comm, void *out, const void *mine, int64_t bytes) {
    const GroupComm *group = (GroupComm *)comm;
    char *all = gather(group, mine, (size_t)bytes);
    for (int member = 0; member < comm->ranks.n_ranks; member++)
        memcpy((char *)out + member * bytes, all + group->members[member] * bytes, (size_t)bytes);
    free(all);
}

static void sum_piece(const GroupComm *group, double *values, int64_t n) {
    double *all = gather(group, values, (size_t)n * sizeof *values);
    memset(values, 0, (size_t)n * sizeof *values);
    for (int member = 0; member < group->comm.ranks.n_ranks; member++) {
        const double *theirs = all + group->members[member] * n;
        for (int64_t i = 0; i < n; i++) values[i] = member == 0 ? theirs[i] : values[i] + theirs[i];
    }
    free(all);
}

static void sum_on_host(Comm *comm, double *values, int64_t n) {
    const int64_t most = PIECE_BYTES / (int64_t)sizeof *values;
    for (int64_t i = 0; i < n; i += most)
        sum_piece((GroupComm *)comm, values + i, n - i < most ? n - i : most);
}

static void broadcast_on_host(Comm *comm, void *data, int64_t bytes) {
    const GroupComm *group = (GroupComm *)comm;
    if (comm->ranks.n_ranks == group->rendezvous->ranks.n_ranks && group->members[0] == 0) {
        rendezvous_broadcast(group->rendezvous, data, (size_t)bytes);
        return;
    }
    for (int64_t done = 0; done < bytes; done += PIECE_BYTES) {
        const size_t piece = bytes - done < PIECE_BYTES ? (size_t)(bytes - done) : PIECE_BYTES;
        char *all = gather(group, (char *)data + done, piece);
        memcpy((char *)data + done, all + (size_t)group->members[0] * piece, piece);
        free(all);
    }
}

/* ---- agreement ---- */

/* Of the ranks `members` (n; NULL: the first n), the first that failed; -1: none. */
static int first_failure(const char *all_ok, const int *members, int n) {
    for (int i = 0; i < n; i++) {
        const int rank = members ? members[i] : i;
        if (!all_ok[rank]) return rank;
    }
    return -1;
}

/* The texts go around only where a rank of any group failed. */
static bool agree_among(Rendezvous *r, const int *members, int n, bool ok, Error *err) {
    const char mine = ok;
    char *all_ok = must_allocate((size_t)r->ranks.n_ranks, said);
    rendezvous_gather(r, all_ok, &mine, 1);
    const int failed = first_failure(all_ok, members, n);
    const bool all_well = first_failure(all_ok, NULL, r->ranks.n_ranks) < 0;
    free(all_ok);
    if (all_well) return true;
    Error own = {0}, *errors = must_allocate((size_t)r->ranks.n_ranks * sizeof own, said);
    if (!ok) own = *err;
    rendezvous_gather(r, errors, &own, sizeof own);
    if (failed >= 0) {
        char name[RANK_NAME_BYTES];
        fail(err, errors[failed].exit_code, "%s: %s", rank_name(name, r, failed), errors[failed].text);
    }
    free(errors);
    return failed < 0;
}

static bool agree(Comm *comm, bool ok, Error *err) {
    const GroupComm *group = (GroupComm *)comm;
    return agree_among(group->rendezvous, group->members, comm->ranks.n_ranks, ok, err);
}

bool ranks_agree(Rendezvous *r, bool ok, Error *err) {
    return agree_among(r, NULL, r->ranks.n_ranks, ok, err);
}

/* ---- groups ---- */

bool group_open(GroupComm *group, Rendezvous *r, const int *members, int n, Error *err) {
    int place = -1;
    for (int i = 0; i < n; i++)
        if (members[i] == r->ranks.rank) place = i;
    if (place < 0) return fail(err, EXIT_RUN, "rank %d is not in its own group", r->ranks.rank);
    group->members = malloc((size_t)n * sizeof *members);
    if (!group->members) return fail(err, EXIT_RUN, "no memory for a group of %d ranks", n);
    memcpy(group->members, members, (size_t)n * sizeof *members);
    group->rendezvous = r;
    group->comm = comm_alone; /* has what a transport leaves out: attach, ends */
    group->comm.ranks = (Ranks){.rank = place, .n_ranks = n};
    group->comm.sum_on_host = sum_on_host;
    group->comm.gather_on_host = gather_on_host;
    group->comm.broadcast_on_host = broadcast_on_host;
    group->comm.agree = agree;
    return true;
}

void group_free(GroupComm *group) {
    free(group->members);
    free(group);
}

const char *comm_description(const Comm *comm) {
    return ((const GroupComm *)comm)->description;
}

void comm_close(Comm *comm) {
    if (comm && comm != &comm_alone) ((GroupComm *)comm)->close((GroupComm *)comm);
}
