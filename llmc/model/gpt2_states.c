/* Which optimizer states a rank has, and where: of its part of each layer, the tiles of a kind one behind the other. With
 * AdamW for everything they lie as the parts themselves. */
#include "gpt2_pass.h"
#include <stdlib.h>

static OwnSpan part_of(const GPT2 *model, int rank, int layer) {
    const ParameterRange range = gpt2_layer_range(model->tensors, layer);
    const int64_t n = range.n / model->n_parts;
    return (OwnSpan){range.begin + rank * n, n, range.begin / model->n_parts};
}

/* `at` is from the layer's first state on. */
static int layer_spans(const GPT2 *model, int rank, OptimizerKind kind, int layer,
                       OwnSpan spans[MAX_STATE_SPANS]) {
    const OwnSpan part = part_of(model, rank, layer);
    TensorId first, last;
    int64_t at = 0;
    int n_spans = 0;
    gpt2_layer_tensors(model->tensors, layer, &first, &last);
    for (int id = first; id <= (int)last; id++) {
        const Tensor *t = &model->tensors[id];
        const OwnSpan span = overlap(part, tensor_at(t, layer), t->padded);
        if (span.n <= 0 || optimizer_of(model->options.optimizer, t->group) != kind) continue;
        spans[n_spans++] = (OwnSpan){span.begin, span.n, at};
        at += span.n;
    }
    return n_spans;
}

static int64_t layer_elements(const GPT2 *model, int rank, OptimizerKind kind, int layer) {
    OwnSpan spans[MAX_STATE_SPANS];
    const int n = layer_spans(model, rank, kind, layer, spans);
    return n ? spans[n - 1].at + spans[n - 1].n : 0;
}

/* Elements of all layers before this one; those of a layer n_layer + 1 are all. */
static int64_t elements_before(const GPT2 *model, int rank, OptimizerKind kind, int layer) {
    int64_t n = 0;
    for (int before = -1; before < layer; before++) n += layer_elements(model, rank, kind, before);
    return n;
}

OwnSpan gpt2_own_part(const GPT2 *model, int layer) {
    return part_of(model, own_rank(model), layer);
}

int state_spans(const GPT2 *model, OptimizerKind kind, int layer, OwnSpan spans[MAX_STATE_SPANS]) {
    const int n = layer_spans(model, own_rank(model), kind, layer, spans);
    const int64_t before = elements_before(model, own_rank(model), kind, layer);
    for (int i = 0; i < n; i++) spans[i].at += before;
    return n;
}

int64_t gpt2_state_elements(const GPT2 *model, OptimizerKind kind) {
    int64_t most = 0;
    for (int rank = 0; rank < model->n_parts; rank++) {
        const int64_t n = elements_before(model, rank, kind, model->config.n_layer + 1);
        if (n > most) most = n;
    }
    return most;
}

/* Tiles are counted from the start of the rank's part of a block. */
void open_block_tiles(GPT2 *model) {
    const OwnSpan part = gpt2_own_part(model, 0);
    const size_t bytes = (size_t)part.n / PARAMETER_TILE * sizeof(int32_t);
    int32_t *tiles = must_allocate(bytes, "the tiles of a block's parameters");
    int64_t n_tiles = 0;
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        OwnSpan spans[MAX_STATE_SPANS];
        const int n = state_spans(model, (OptimizerKind)kind, 0, spans);
        const int64_t before = n_tiles;
        for (int i = 0; i < n; i++)
            for (int64_t k = 0; k < spans[i].n; k += PARAMETER_TILE)
                tiles[n_tiles++] = (int32_t)((spans[i].begin + k - part.begin) / PARAMETER_TILE);
        model->n_block_tiles[kind] = n_tiles - before;
    }
    model->ops->device->upload(model->block_tiles, tiles, bytes);
    free(tiles);
}
