/* Where this process stands among those that the launcher started: from the environment alone, before anything is
 * opened. torchrun, srun, Open MPI, MPICH and Intel MPI, and our own --gpus. */
#pragma once
#include "llmc/base/error.h"
#include "llmc/base/ranks.h"

typedef struct Place {
    Ranks ranks;
    int local_rank, n_local; /* among the processes of this host: the index of the device */
    const char *launcher;    /* "torchrun", "srun", ...; NULL: none, alone */
    char address[256];       /* of rank 0's host; "" where the launcher does not say */
    int port;                /* where rank 0 listens; 0: not said */
    int listening;           /* rank 0 under --gpus: the socket, open already; else -1 */
} Place;

/* Exit 2 with a line for variables that contradict each other or are no numbers. Ranks {0, 1} where no launcher is. */
bool place_find(Place *place, Error *err);
