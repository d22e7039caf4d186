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
    [ADAMW_M] = {OPTIMIZER_ADAMW, "m"       },
    [ADAMW_V] = {OPTIMIZER_ADAMW, "v"       },
    [MUON_M] = {OPTIMIZER_MUON,  "momentum"},
};

static const char *const names[N_OPTIMIZERS] = {[OPTIMIZER_ADAMW] = "AdamW", [OPTIMIZER_MUON] = "Muon"};

const char *optimizer_name(OptimizerKind kind) {
    return names[kind];
}

OptimizerKind optimizer_of(OptimizerKind choice, GroupId group) {
    return groups[group].kind[choice];
}

bool optimizer_has(OptimizerKind choice, StateId id) {
    for (int i = 0; i < N_PARAMETER_GROUPS; i++)
        if (optimizer_of(choice, (GroupId)i) == optimizer_states[id].kind) return true;
    return false;
}

void optimizer_adamw(const Ops *ops, const OptimizerBuffers *buffers, const UpdateArgs *update) {
    const int32_t *tiles = buffers->tiles[OPTIMIZER_ADAMW];
    AdamWArgs args = {
        .master = buffers->master,
        .m = buffers->states[ADAMW_M],
        .v = buffers->states[ADAMW_V],
        .weights = buffers->weights,
        .grads = buffers->grads,
        .stats = buffers->stats,
        .tile_groups = buffers->tile_groups,
        .tiles = tiles,
        .n_tiles = tiles ? buffers->n_tiles[OPTIMIZER_ADAMW] : buffers->n / PARAMETER_TILE,
        .continues = buffers->continues,
        .update = *update,
    };
    for (int i = 0; i < N_PARAMETER_GROUPS; i++)
        args.groups[i] =
            (AdamWGroup){groups[i].lr_factor * update->lr, groups[i].decay_factor * update->weight_decay};
    if (args.n_tiles > 0) ops->adamw(&args);
}

MuonArgs optimizer_muon(const OptimizerBuffers *buffers, floatX *x, const UpdateArgs *update) {
    return (MuonArgs){
        .master = buffers->master,
        .weights = buffers->weights,
        .m = buffers->states[MUON_M],
        .x = x,
        .grads = buffers->grads,
        .stats = buffers->stats,
        .tiles = buffers->tiles[OPTIMIZER_MUON],
        .n_tiles = buffers->n_tiles[OPTIMIZER_MUON],
        .lr = groups[GROUP_MATRICES].lr_factor * update->lr,
        .weight_decay = groups[GROUP_MATRICES].decay_factor * update->weight_decay,
        .momentum = update->momentum,
        .clip = update->clip,
    };
}
