/* TCP connections between every two ranks of a group, for CPU ranks. */
#pragma once
#include "comm_host.h"

typedef struct Mesh Mesh;
Mesh *mesh_listen(const GroupComm *group, Error *err);
/* sockets (n) by member, non-blocking; its own is left as it is. Addresses go around by the rendezvous, so all ranks call
 * it together, each for its group. On failure those that are open are in `sockets`, which begins with -1. */
bool mesh_connect(Mesh *mesh, const GroupComm *group, int *sockets, Error *err);
void mesh_free(Mesh *mesh); /* NULL is fine */
