/* Ranks of one host whose devices reach each other's memory (device.h, PeerMemory): gradients and weights go by the copy
 * engines, straight to where they are needed.
 *
 *   reduce  rank s sends its gradients of part r to rank r, into a place of their own, and raises a flag for each call;
 *           behind backward rank r waits for the flags and adds the ranks' terms in the order of the ranks
 *   gather  behind a barrier of flags rank r sends its part of the weights to all, in place, and raises a flag at the end
 *
 * What was received is read before the next call of another kind, and that waits for all ranks: so nobody sends into
 * memory that is still read. */
#pragma once
#include "comm_host.h"

typedef struct Peers Peers;

/* All ranks of the group together. NULL on all where one of them does not reach another: that is no error. */
Peers *peers_open(const GroupComm *group, const Device *device, float *grads, int64_t n, void *weights,
                  size_t bytes);
void peers_close(Peers *peers); /* waits for the other ranks; NULL is fine */
/* Bytes of device memory for n gradients. */
size_t peers_bytes(Ranks ranks, int64_t n);

/* Whether reduce takes x, and gather: it is of the gradients, of the weights. */
bool peers_have_gradients(const Peers *peers, const float *x);
bool peers_have_weights(const Peers *peers, const void *x);
void peers_reduce(Peers *peers, StreamId stream, float *x, int64_t n);
void peers_reduce_end(Peers *peers, StreamId stream);
void peers_gather(Peers *peers, StreamId stream, void *x, size_t bytes);
void peers_gather_end(Peers *peers, StreamId stream);
