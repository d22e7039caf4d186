/* How parameters follow their gradients: groups of parameters, kinds of optimizers, their states, a step.
 *
 * A run chooses an optimizer; the table of groups (optimizer.c) says of which kind each group then is. To add a kind: a name
 * in OptimizerKind, in OPTIMIZER_FLAGS and in names, its column in groups, and a name and a row for each of its states;
 * memory plan, reset and checkpoints loop over the states. */
#pragma once
#include "ops.h"

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON, N_OPTIMIZERS } OptimizerKind;
/* As --optimizer and a checkpoint's flags have them. */
#define OPTIMIZER_FLAGS                                                                                      \
    { "adamw", "muon" }

/* What a kind keeps of each parameter from step to step: a buffer, fp32, 0 before the first. */
typedef enum { ADAMW_M, ADAMW_V, MUON_M, N_STATES } StateId;
typedef struct OptimizerState {
    OptimizerKind kind;
    const char *name; /* prefix in a checkpoint: "m" of "m.wte.weight" */
} OptimizerState;
extern const OptimizerState optimizer_states[N_STATES];

const char *optimizer_name(OptimizerKind kind); /* "AdamW" */

/* Parameters that are updated alike. */
typedef enum { GROUP_EMBEDDINGS, GROUP_MATRICES, GROUP_VECTORS, N_PARAMETER_GROUPS } GroupId;
/* The kind that a group has where the run chose `choice`: with Muon, what is no matrix of a block has AdamW. */
OptimizerKind optimizer_of(OptimizerKind choice, GroupId group);
/* Whether any parameter has this state then. */
bool optimizer_has(OptimizerKind choice, StateId id);

/* Elements [begin, end) of the flat buffers, whole tiles (PARAMETER_TILE). */
typedef struct ParameterRange {
    int64_t begin, end;
} ParameterRange;

/* What a step reads and writes, on the device: n elements each, whole tiles, but stats. */
typedef struct OptimizerBuffers {
    float *master;              /* += */
    floatX *weights;            /* = master rounded; in fp32 the same buffer */
    const float *grads;         /* read */
    float *states[N_STATES];    /* =, of the tiles of their kind, one behind the other; NULL: there is none */
    const int32_t *tile_groups; /* (n / PARAMETER_TILE) GroupId of each tile */
    const int32_t *tiles[N_OPTIMIZERS]; /* (n_tiles) those of a kind; NULL for AdamW: all */
    int64_t n_tiles[N_OPTIMIZERS];      /* read where there is a list */
    const StepStats *stats;             /* of this step, read */
    int64_t n;
    bool continues; /* the step of the call before */
} OptimizerBuffers;

/* AdamW's step for its tiles. */
void optimizer_adamw(const Ops *ops, const OptimizerBuffers *buffers, const UpdateArgs *update);
/* Muon's is of whole matrices: what its ops get for its tiles of these buffers. x (n): where the matrices pass. */
MuonArgs optimizer_muon(const OptimizerBuffers *buffers, floatX *x, const UpdateArgs *update);
