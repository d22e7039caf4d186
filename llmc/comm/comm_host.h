/* What the transports share: the ranks of a group, and the calls that work on the host. */
#pragma once
#include "transport.h"

typedef struct GroupComm GroupComm;
struct GroupComm {
    Comm comm; /* its ranks count within the group */
    Rendezvous *rendezvous;
    const char *description;
    void (*close)(GroupComm *group);
};

/* The rank of the run that is this member of the group. */
static inline int rank_of(const GroupComm *group, int member) {
    return group->rendezvous->ranks.rank - group->comm.ranks.rank + member;
}

/* Fills the ranks and the host's calls; the transport adds its own. */
void group_open(GroupComm *group, Rendezvous *r, int n);
