#include "optimizer.h"

static const struct {
    OptimizerKind kind;
    float decay_factor; /* times UpdateArgs.weight_decay */
} groups[N_PARAMETER_GROUPS] = {
    [GROUP_EMBEDDINGS] = {OPTIMIZER_ADAMW, 1},
    [GROUP_MATRICES] = {OPTIMIZER_ADAMW, 1},
    [GROUP_VECTORS] = {OPTIMIZER_ADAMW, 0},
};

const OptimizerState optimizer_states[N_STATES] = {
    [ADAMW_M] = {OPTIMIZER_ADAMW, "m"},
    [ADAMW_V] = {OPTIMIZER_ADAMW, "v"},
};

static void adamw_step(const Ops *ops, const OptimizerBuffers *buffers, const ParameterRange *ranges,
                       int n_ranges, const UpdateArgs *update) {
    AdamWArgs args = {
        .master = buffers->master,
        .m = buffers->states[ADAMW_M],
        .v = buffers->states[ADAMW_V],
        .weights = buffers->weights,
        .grads = buffers->grads,
        .stats = buffers->stats,
        .update = *update,
        .n_ranges = n_ranges,
    };
    for (int i = 0; i < n_ranges; i++)
        args.ranges[i] = (AdamWRange){ranges[i].begin, ranges[i].end,
                                      groups[ranges[i].group].decay_factor * update->weight_decay};
    ops->adamw(&args);
}

static const struct {
    const char *name;
    void (*step)(const Ops *ops, const OptimizerBuffers *buffers, const ParameterRange *ranges, int n_ranges,
                 const UpdateArgs *update);
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

void optimizer_step(const Ops *ops, const OptimizerBuffers *buffers, const ParameterRange *ranges,
                    int n_ranges, const UpdateArgs *update) {
    for (int kind = 0; kind < N_OPTIMIZERS; kind++)
        if (is_used((OptimizerKind)kind)) kinds[kind].step(ops, buffers, ranges, n_ranges, update);
}
