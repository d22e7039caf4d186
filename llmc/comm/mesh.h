/* TCP connections between every two ranks of a group, for CPU ranks. */
#pragma once
#include "comm_host.h"

/* sockets (n) by member, non-blocking; its own is left as it is. All ranks of the rendezvous call it together, each for its
 * group; where one fails all have its err. Those that are open then are in `sockets`, which begins with -1. */
bool mesh_open(const GroupComm *group, int *sockets, Error *err);
