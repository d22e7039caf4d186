#include "optimizer.h"

static const struct {
    OptimizerKind kind;
    float lr_factor, decay_factor; /* times UpdateArgs.lr and .weight_decay */
} groups[N_PARAMETER_GROUPS] = {
    [GROUP_EMBEDDINGS] = {OPTIMIZER_ADAMW, 1, 1},
    [GROUP_MATRICES] = {OPTIMIZER_ADAMW, 1, 1},
    [GROUP_VECTORS] = {OPTIMIZER_ADAMW, 1, 0},
};

const OptimizerState optimizer_states[N_STATES] = {
    [ADAMW_M] = {OPTIMIZER_ADAMW, "m"},
    [ADAMW_V] = {OPTIMIZER_ADAMW, "v"},
};

static void adamw_step(const Ops *ops, const OptimizerBuffers *buffers, const UpdateArgs *update) {
    AdamWArgs args = {
        .master = buffers->master,
        .m = buffers->states[ADAMW_M],
        .v = buffers->states[ADAMW_V],
        .weights = buffers->weights,
        .grads = buffers->grads,
        .stats = buffers->stats,
        .tile_groups = buffers->tile_groups,
        .n_tiles = buffers->n / PARAMETER_TILE,
        .continues = buffers->continues,
        .update = *update,
    };
    for (int i = 0; i < N_PARAMETER_GROUPS; i++)
        args.groups[i] = (AdamWGroup){groups[i].kind == OPTIMIZER_ADAMW, groups[i].lr_factor * update->lr,
                                      groups[i].decay_factor * update->weight_decay};
    ops->adamw(&args);
}

static const struct {
    const char *name;
    void (*step)(const Ops *ops, const OptimizerBuffers *buffers, const UpdateArgs *update);
} kinds[N_OPTIMIZERS] = {
    [OPTIMIZER_ADAMW] = {"AdamW", adamw_step},
};

const char *optimizer_name(OptimizerKind kind) {
    return kinds[kind].name;
}

static bool is_used(OptimizerKind kind) {
    for (int i = 0; i < N_PARAMETER_GROUPS; i++)
        if (groups[i].kind == kind) return true;
    return false;
}

size_t optimizer_state_bytes(StateId id, int64_t n) {
    return is_used(optimizer_states[id].kind) ? (size_t)n * sizeof(float) : 0;
}

void optimizer_step(const Ops *ops, const OptimizerBuffers *buffers, const UpdateArgs *update) {
    for (int kind = 0; kind < N_OPTIMIZERS; kind++)
        if (is_used((OptimizerKind)kind)) kinds[kind].step(ops, buffers, update);
}
