/* A copy of the weights and the optimizer's states in the host's memory: a checkpoint is written from it while training
 * goes on. The device copies by itself, beside forward and backward; what changes the originals, the next update, waits
 * for it on the device (EVENT_SNAPSHOT_TAKEN). */
#pragma once
#include "pieces.h"

typedef struct Snapshot {
    const Device *device;
    int n;
    int ids[MAX_BUFFERS];
    float *data[MAX_BUFFERS]; /* (n_elements) each, on the host; NULL: not open */
} Snapshot;

/* Bytes of the snapshot of a model of that config. */
size_t snapshot_bytes(const GPT2Config *config, OptimizerKind optimizer, bool model_only, int n_parts);
/* False where the host's memory has no room for it and as much again. */
bool snapshot_open(Snapshot *snapshot, const GPT2 *model, bool model_only);
void snapshot_close(Snapshot *snapshot); /* fine on one that is not open */
static inline bool snapshot_is_open(const Snapshot *snapshot) {
    return snapshot->data[0] != NULL;
}

/* Queues the copies, behind all work that the main stream has. All ranks make the call, between two steps: each brings its
 * parts, and rank 0, whose snapshot is open, has the whole. There, gradients are lost where buffers are sharded. */
void snapshot_take(const Snapshot *snapshot, GPT2 *model, bool model_only);
/* On any thread: returns once the copies are there. */
void snapshot_wait(const Snapshot *snapshot);
/* A whole buffer, (n_elements). */
const float *snapshot_buffer(const Snapshot *snapshot, int id);
