/* How parameters follow their gradients: groups of parameters, kinds of optimizers, their states, a step.
 *
 * To add a kind: a name in OptimizerKind with its row in kinds (optimizer.c), and a name and a row for each of its
 * states; memory plan, reset and checkpoints loop over the states. A group takes the kind in its row. */
#pragma once
#include "ops.h"

typedef enum { OPTIMIZER_ADAMW, N_OPTIMIZERS } OptimizerKind;

/* What a kind keeps of each parameter from step to step: a buffer, fp32, 0 before the first. */
typedef enum { ADAMW_M, ADAMW_V, N_STATES } StateId;
typedef struct OptimizerState {
    OptimizerKind kind;
    const char *name; /* prefix in a checkpoint: "m" of "m.wte.weight" */
} OptimizerState;
extern const OptimizerState optimizer_states[N_STATES];

const char *optimizer_name(OptimizerKind kind); /* "AdamW" */
/* Bytes of a state of n parameters; 0 where no group takes its kind. */
size_t optimizer_state_bytes(StateId id, int64_t n);

/* Parameters that are updated alike. */
typedef enum { GROUP_EMBEDDINGS, GROUP_MATRICES, GROUP_VECTORS, N_PARAMETER_GROUPS } GroupId;

/* Elements [begin, end) of the flat buffers, whole tiles (PARAMETER_TILE). */
typedef struct ParameterRange {
    int64_t begin, end;
} ParameterRange;

/* What a step reads and writes, on the device: n elements each, whole tiles, but stats. */
typedef struct OptimizerBuffers {
    float *master;              /* += */
    floatX *weights;            /* = master rounded; in fp32 the same buffer */
    const float *grads;         /* read */
    float *states[N_STATES];    /* =; NULL where no group's optimizer has it */
    const int32_t *tile_groups; /* (n / PARAMETER_TILE) GroupId of each tile */
    const StepStats *stats;     /* of this step, read */
    int64_t n;
    bool continues; /* the step of the call before */
} OptimizerBuffers;

/* One step: each group by its optimizer. */
void optimizer_step(const Ops *ops, const OptimizerBuffers *buffers, const UpdateArgs *update);
