/* How parameters follow their gradients: groups of parameters, kinds of optimizers, their states.
 *
 * A run chooses an optimizer; the table of groups (optimizer.c) says of which kind each group then is. To add a kind: a name
 * in OptimizerKind and in OPTIMIZER_FLAGS, its column in groups, and a name and a row for each of its states;
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
    const char *name;  /* prefix in a checkpoint: "m" of "m.wte.weight" */
    const char *title; /* "AdamW m" */
} OptimizerState;
extern const OptimizerState optimizer_states[N_STATES];

/* Parameters that are updated alike. */
typedef enum { GROUP_EMBEDDINGS, GROUP_MATRICES, GROUP_VECTORS, N_PARAMETER_GROUPS } GroupId;
/* The kind that a group has where the run chose `choice`: with Muon, what is no matrix of a block has AdamW. */
OptimizerKind optimizer_of(OptimizerKind choice, GroupId group);
/* What the parameters of a group learn and decay with in a step. */
AdamWGroup optimizer_rates(GroupId group, const UpdateArgs *update);
/* Whether any parameter has this state then. */
bool optimizer_has(OptimizerKind choice, StateId id);

/* n elements of the flat buffers, whole tiles (PARAMETER_TILE). */
typedef struct ParameterRange {
    int64_t begin, n;
} ParameterRange;
