/* What the transports share: the ranks of a group, and the calls that work on the host. */
#pragma once
#include "transport.h"

typedef struct GroupComm GroupComm;
struct GroupComm {
    Comm comm; /* its ranks count within the group */
    Rendezvous *rendezvous;
    int *members; /* (comm.ranks.n_ranks) ranks of the rendezvous */
    const char *description;
    void (*close)(GroupComm *group);
};

/* Fills ranks, members and the host's calls; the transport adds its own. */
bool group_open(GroupComm *group, Rendezvous *r, const int *members, int n, Error *err);
void group_free(GroupComm *group);
