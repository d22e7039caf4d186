/* Where this process stands among those that the launcher started: from the environment alone, before anything is
 * opened. torchrun, srun, Open MPI, MPICH and Intel MPI, and our own --gpus. */
#pragma once
#include <stdint.h>
#include "llmc/base/error.h"
#include "llmc/base/ranks.h"

/* Set by our own --gpus for each rank: the open listening socket's number for rank 0, -1 for the others. */
#define PLACE_LISTENING "LLMC_RENDEZVOUS_FD"
/* Exit codes of such a rank, for --gpus and --restarts alone. UNSAID: it left the last line to another, which may be stopped;
 * --gpus sees whether there was one. DIVERGED: the same steps would come to the same end. */
enum { PLACE_UNSAID = 3, PLACE_DIVERGED = 4 };

typedef struct Place {
    Ranks ranks;
    /* Among the processes of this host: the index of the device. -1, 0: the launcher does not say, the rendezvous
     * counts them. */
    int local_rank, n_local;
    const char *launcher; /* "torchrun", "srun", ...; NULL: none, alone */
    bool is_own;          /* --gpus started this process */
    char address[256];    /* of rank 0's host */
    int port;             /* where rank 0 listens */
    int listening;        /* rank 0 under --gpus: the socket, open already; else -1 */
    uint64_t run;         /* the same for all ranks of a run, another for most other runs */
} Place;

/* The exit code of a run whose weights have diverged. */
static inline int place_diverged(const Place *place) {
    return place->is_own ? PLACE_DIVERGED : EXIT_RUN;
}

/* Exit 2 with a line for variables that contradict each other or are no numbers. Ranks {0, 1} where no launcher is. */
bool place_find(Place *place, Error *err);
