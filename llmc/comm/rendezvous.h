/* How ranks find each other: TCP connections to rank 0, two a rank. One carries what the hosts say to each other in the
 * middle of their work; the other belongs to the watchdog. A star: rank 0 holds 2 (n - 1) sockets, 2046 for 1,024
 * ranks. */
#pragma once
#include <stddef.h>
#include "place.h"

enum { HOST_NAME = 64 };

typedef struct Rendezvous {
    Ranks ranks;
    Place place;              /* with local_rank and n_local counted where the launcher did not say them */
    int *work;                /* rank 0: (n_ranks) by rank, its own -1; else one, to rank 0 */
    int *watch;               /* the same for the watchdog */
    char (*hosts)[HOST_NAME]; /* (n_ranks) names, for messages; on every rank */
    int n_hosts;              /* different ones */
} Rendezvous;

enum { RANK_NAME_BYTES = 96 };
/* "rank 1 (node7)"; without a rendezvous "rank 1". Returns name. */
const char *rank_name(char name[RANK_NAME_BYTES], const Rendezvous *r, int rank);

/* A process of n ranks may have as many files open as it takes: raises its limit. False with a line where the system does
 * not let it. */
bool rendezvous_room(int n_ranks, Error *err);

/* Waits until all ranks are there, at most `seconds`. False with one line: who is missing, where rank 0 should be, a port in
 * use. *rank_0_knows: rank 0 has the same failure and prints it; the others need not. */
bool rendezvous_open(Rendezvous *r, const Place *place, double seconds, bool *rank_0_knows, Error *err);
void rendezvous_close(Rendezvous *r); /* fine on one that is zero, and twice */

/* Over the work connections; all ranks make the same calls. They wait. A lost connection ends the process: the watchdog
 * has a moment to say why, else a line of its own; exit 1. */
/* out (n_ranks x bytes) on rank 0 = the ranks' `mine`, by rank; the others need none. */
void rendezvous_collect(Rendezvous *r, void *out, const void *mine, size_t bytes);
/* The same on every rank: n_ranks^2 x bytes pass rank 0. */
void rendezvous_gather(Rendezvous *r, void *out, const void *mine, size_t bytes);
/* data on every rank = rank 0's. */
void rendezvous_broadcast(Rendezvous *r, void *data, size_t bytes);

/* True where all ranks are well. Else every rank gets the first failure, by rank, in err; its text names the rank. */
bool ranks_agree(Rendezvous *r, bool ok, Error *err);
/* Whether `text` is the same on all ranks, one "name value" a line. Else all have the same err: the first line that differs,
 * of the first such rank, exit 2. */
bool ranks_have_same(Rendezvous *r, const char *text, Error *err);
