/* The two ways to carry what ranks exchange. Both fill a Comm (llmc/model/comm.h); its host calls are over the
 * rendezvous' connections in both. */
#pragma once
#include "llmc/model/comm.h"
#include "rendezvous.h"

/* A Comm is of all ranks of the rendezvous, or of a group of n neighbours, n a divisor of all: its ranks count within the
 * group. All ranks open it together: they all get one, or none does and all have the same err. CPU ranks: sockets between
 * every two. */
Comm *comm_sockets_open(Rendezvous *r, int n, Error *err);
/* What NCCL carries. Light: where gradients and weights go by copies, sums and what saves gather; few CTAs then do, which
 * take less memory. Where they do not, or all_to_all is called: heavy. */
typedef enum { NCCL_LIGHT, NCCL_HEAVY } NcclLoad;
/* GPUs: NCCL, opened at run time; the device is open. A light Comm whose ranks do not reach each other's memory becomes a
 * heavy one when memory is attached. */
Comm *comm_nccl_open(Rendezvous *r, const Device *device, int n, NcclLoad load, Error *err);
/* Light where it was asked for and copies are not known to be impossible. */
NcclLoad comm_nccl_load(NcclLoad asked, bool one_host);
/* Their Comm.fixed_bytes and .attached_bytes, for a plan without a Comm, too. The first Comm loads NCCL's kernels. */
size_t comm_sockets_fixed_bytes(void);
size_t comm_nccl_fixed_bytes(NcclLoad load, bool first);
size_t comm_nccl_attached_bytes(const Comm *comm, int64_t n);
void comm_close(Comm *comm); /* NULL and comm_alone are fine */
/* What carries the data, for the header: "TCP", "NCCL 2.28.9, /usr/lib/libnccl.so.2", and more once memory is
 * attached. Not of comm_alone or a planned Comm. */
const char *comm_description(const Comm *comm);
/* Where NCCL was found and its version. */
const char *comm_nccl_description(void);
