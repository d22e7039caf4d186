/* The two ways to carry what ranks exchange. Both fill a Comm (llmc/model/comm.h); its host calls are over the
 * rendezvous' connections in both. */
#pragma once
#include "llmc/model/comm.h"
#include "rendezvous.h"

/* CPU ranks: sockets between every two. `members` (n) are the ranks of the group in their order, this one among them:
 * the Comm's ranks count within it. All ranks of the rendezvous call it together, each with its own group. */
Comm *comm_sockets_open(Rendezvous *r, const int *members, int n, Error *err);
/* GPUs: NCCL, opened at run time; the device is open. */
Comm *comm_nccl_open(Rendezvous *r, const Device *device, const int *members, int n, Error *err);
/* Their Comm.fixed_bytes and .attached_bytes, for a plan without a Comm, too. */
size_t comm_sockets_fixed_bytes(const Comm *comm);
size_t comm_nccl_fixed_bytes(const Comm *comm);
size_t comm_nccl_attached_bytes(const Comm *comm, int64_t n);
/* All ranks get a Comm, or none does and all have the same err: both calls end with ranks_agree. */
bool ranks_agree(Rendezvous *r, bool ok, Error *err); /* as Comm.agree, where there is no Comm yet */
void comm_close(Comm *comm);                          /* NULL and comm_alone are fine */
/* What carries the data, for the header: "TCP", "NCCL 2.28.9, /usr/lib/libnccl.so.2", and more once memory is
 * attached. Not of comm_alone or a planned Comm. */
const char *comm_description(const Comm *comm);
/* Where NCCL was found and its version. */
const char *comm_nccl_description(void);
