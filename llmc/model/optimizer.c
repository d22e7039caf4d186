#include "optimizer.h"

static const struct {
    OptimizerKind kind[N_OPTIMIZERS]; /* by the run's choice */
    float lr_factor, decay_factor;    /* times UpdateArgs.lr and .weight_decay */
} groups[N_PARAMETER_GROUPS] = {
    [GROUP_EMBEDDINGS] = {{OPTIMIZER_ADAMW, OPTIMIZER_ADAMW}, 1, 1},
    [GROUP_MATRICES] = {{OPTIMIZER_ADAMW, OPTIMIZER_MUON},  1, 1},
    [GROUP_VECTORS] = {{OPTIMIZER_ADAMW, OPTIMIZER_ADAMW}, 1, 0},
};

const OptimizerState optimizer_states[N_STATES] = {
    [ADAMW_M] = {OPTIMIZER_ADAMW, "m",        "AdamW m"      },
    [ADAMW_V] = {OPTIMIZER_ADAMW, "v",        "AdamW v"      },
    [MUON_M] = {OPTIMIZER_MUON,  "momentum", "Muon momentum"},
};

OptimizerKind optimizer_of(OptimizerKind choice, GroupId group) {
    return groups[group].kind[choice];
}

bool optimizer_has(OptimizerKind choice, StateId id) {
    for (int i = 0; i < N_PARAMETER_GROUPS; i++)
        if (optimizer_of(choice, (GroupId)i) == optimizer_states[id].kind) return true;
    return false;
}

AdamWGroup optimizer_rates(GroupId group, const UpdateArgs *update) {
    return (AdamWGroup){groups[group].lr_factor * update->lr,
                        groups[group].decay_factor * update->weight_decay};
}
