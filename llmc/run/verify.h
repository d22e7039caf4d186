/* Checks against silent corruption, by a card, a link or its memory: what must be equal bit for bit is compared. Each is
 * cheap, and a sample: the weights of one step in HASH_EVERY, the gradients of one in --verify-every. */
#pragma once
#include "llmc/comm/rendezvous.h"
#include "llmc/model/gpt2.h"

enum { HASH_EVERY = 100 };

/* Whether this step's weights are compared over ranks: one in HASH_EVERY, and the run's first, whose weights come from
 * each rank's own files. A process alone has nobody to compare with. */
bool verify_weights_due(Ranks ranks, int64_t step, bool first);
/* All ranks call it with the hash of their weights in that step; false on all of them where one differs, and err names
 * it as r does. */
bool verify_weights(Comm *comm, const Rendezvous *r, uint64_t hash, int64_t step, Error *err);
