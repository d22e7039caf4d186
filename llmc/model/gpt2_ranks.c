/* What ranks do together: sums of gradients, the update by parts, whole states for the files. A process alone has one
 * part, all of it, and its calls of Comm do nothing. */
#include "gpt2_pass.h"

/* Leaves have an exchange of their own. */
int64_t attached_gradients(const GPT2 *model) {
    return model->n_parts == 1 || leaves_exchange(model) ? 0 : model->n_elements;
}

void gpt2_attach(GPT2 *model) {
    const size_t bytes = (size_t)model->n_elements * dtype_bytes(model->ops->dtype);
    if (model->n_parts == 1) return;
    model->comm->attach(model->comm, model->grads, attached_gradients(model), model->weights, bytes);
    model->is_attached = true;
}

/* ---- gradients ---- */

/* With --reproducible: what came in of a layer, while the backward pass was at work on the one below. */
static void add_received(GPT2 *model, int layer) {
    if (layer > model->config.n_layer) return;
    main_waits(model, EVENT_GRADS_REDUCED);
    leaves_add_received(model, gpt2_layer_range(model->tensors, layer));
}

void grads_final(GPT2 *model, int layer) {
    const ParameterRange range = gpt2_layer_range(model->tensors, layer);
    if (!is_last_micro_step(model)) return;
    if (model->options.reproducible) leaves_join(model, range);
    if (model->n_parts == 1) return;
    if (leaves_exchange(model)) add_received(model, layer + 1);
    side_waits(model, EVENT_GRADS_FINAL);
    if (leaves_exchange(model))
        leaves_send(model, range);
    else
        model->comm->reduce_scatter(model->comm, STREAM_SIDE, model->grads + range.begin,
                                    range.n / model->n_parts);
}

void grads_reduced(GPT2 *model) {
    if (model->n_parts == 1 || !is_last_micro_step(model)) return;
    if (leaves_exchange(model)) {
        add_received(model, -1);
        return;
    }
    main_waits(model, EVENT_GRADS_REDUCED);
    model->comm->reduce_scatter_end(model->comm, STREAM_MAIN);
}

/* ---- update ---- */

/* The own parts, one at a time: by layer, or all at once where they are all there is, and alike. */
static int n_updates(const GPT2 *model) {
    return model->n_parts > 1 ? model->config.n_layer + 2 : 1;
}
static OwnSpan update_part(const GPT2 *model, int i) {
    return model->n_parts > 1 ? gpt2_own_part(model, i - 1) : (OwnSpan){0, model->n_elements, 0};
}

static void finish_stats(GPT2 *model) {
    const Device *device = model->ops->device;
    for (int i = 0; i < n_updates(model); i++) {
        const OwnSpan part = update_part(model, i);
        model->ops->sum_squares(&model->sums->squares, model->grads + part.begin, part.n);
    }
    model->comm->sum_int64(model->comm, STREAM_MAIN, (int64_t *)model->sums,
                           sizeof *model->sums / sizeof(int64_t));
    device->stream_wait(STREAM_MAIN, EVENT_STATS_READ); /* of the step before */
    model->ops->finish_stats(model->stats, model->sums);
}

/* On the side stream. */
static void gather_weights(GPT2 *model, int layer) {
    const ParameterRange range = gpt2_layer_range(model->tensors, layer);
    side_waits(model, EVENT_WEIGHTS_UPDATED);
    model->comm->all_gather(model->comm, STREAM_SIDE, rows_from(model, model->weights, range.begin, 1),
                            range.n / model->n_parts, model->ops->dtype);
}

float *master_of(const GPT2 *model, OwnSpan part) {
    return model->master + (gpt2_master_is_sharded(model) ? part.at : part.begin);
}

float *state_of(const GPT2 *model, StateId id, int layer) {
    OwnSpan spans[MAX_STATE_SPANS];
    const int n = state_spans(model, optimizer_states[id].kind, layer, spans);
    return n > 0 ? model->states[id] + spans[0].at : NULL;
}

/* AdamW's step for a part that begins in `layer`. */
static void update_with_adamw(GPT2 *model, OwnSpan part, int layer, const UpdateArgs *update) {
    const bool is_listed = model->block_tiles && layer >= 0 && layer < model->config.n_layer;
    AdamWArgs args = {
        .master = master_of(model, part),
        .m = state_of(model, ADAMW_M, layer),
        .v = state_of(model, ADAMW_V, layer),
        .weights = rows_from(model, model->weights, part.begin, 1),
        .grads = model->grads + part.begin,
        .stats = model->stats,
        .tile_groups = model->tile_groups + part.begin / PARAMETER_TILE,
        .tiles = is_listed ? model->block_tiles : NULL,
        .n_tiles = is_listed ? model->n_block_tiles[OPTIMIZER_ADAMW] : part.n / PARAMETER_TILE,
        .continues = layer >= 0,
        .update = *update,
    };
    for (int i = 0; i < N_PARAMETER_GROUPS; i++) args.groups[i] = optimizer_rates((GroupId)i, update);
    if (args.n_tiles > 0) model->ops->adamw(&args);
}

void update_layer(GPT2 *model, int layer, const UpdateArgs *update) {
    update_with_adamw(model, gpt2_own_part(model, layer), layer, update);
    if (model->n_parts > 1) gather_weights(model, layer);
}

void gpt2_update(GPT2 *model, const UpdateArgs *update) {
    const bool muon = model->options.optimizer == OPTIMIZER_MUON;
    const int L = model->config.n_layer;
    model->at = (PassPlace){"update", -1, -1};
    model->ops->device->stream_wait(STREAM_MAIN, EVENT_SNAPSHOT_TAKEN);
    finish_stats(model);
    if (model->n_parts == 1 && !muon) {
        update_with_adamw(model, update_part(model, 0), -1, update);
        return;
    }
    update_layer(model, -1, update);
    if (muon) update_blocks_with_muon(model, update);
    for (int layer = muon ? L : 0; layer <= L; layer++) update_layer(model, layer, update);
    if (model->n_parts == 1) return;
    model->comm->all_gather_end(model->comm, STREAM_SIDE);
    main_waits(model, EVENT_WEIGHTS_GATHERED);
}

/* ---- hashes ---- */

/* Behind the reading of the statistics of the step before. */
static void begin_hash(GPT2 *model) {
    const Device *device = model->ops->device;
    device->stream_wait(STREAM_MAIN, EVENT_STATS_READ);
    device->zero(&model->stats->hash, sizeof model->stats->hash);
}

void gpt2_hash_weights(GPT2 *model) {
    begin_hash(model);
    model->ops->hash_bytes(&model->stats->hash, model->weights,
                           model->n_elements * (int64_t)dtype_bytes(model->ops->dtype));
}

uint64_t gpt2_hash_gradients(GPT2 *model) {
    begin_hash(model);
    for (int i = 0; i < n_updates(model); i++) {
        const OwnSpan part = update_part(model, i);
        model->ops->hash_bytes(&model->stats->hash, model->grads + part.begin,
                               part.n * (int64_t)sizeof(float));
    }
    return gpt2_step_stats(model).hash;
}

/* ---- whole buffers in, whole buffers out ---- */

/* Sharded master weights keep the own parts; the gradients' buffer has room for all until they are rounded. */
void gpt2_set_weights(GPT2 *model, const float *host, int64_t begin, int64_t n) {
    const Device *device = model->ops->device;
    const bool sharded = gpt2_master_is_sharded(model);
    float *whole = sharded ? model->grads : model->master;
    device->upload(whole + begin, host, (size_t)n * sizeof *host);
    if (model->weights != model->master)
        model->ops->weights_from_master(rows_from(model, model->weights, begin, 1), whole + begin, n);
    for (int layer = -1; sharded && layer <= model->config.n_layer; layer++) {
        const OwnSpan part = overlap(gpt2_own_part(model, layer), begin, n);
        if (part.n > 0)
            device->copy(model->master + part.at, whole + part.begin, (size_t)part.n * sizeof(float));
    }
}

void gpt2_set_state(GPT2 *model, StateId id, const float *host, int64_t begin, int64_t n) {
    for (int layer = -1; layer <= model->config.n_layer; layer++) {
        OwnSpan spans[MAX_STATE_SPANS];
        const int n_spans = state_spans(model, optimizer_states[id].kind, layer, spans);
        for (int i = 0; i < n_spans; i++) {
            const OwnSpan s = overlap(spans[i], begin, n);
            if (s.n > 0)
                model->ops->device->upload(model->states[id] + s.at, host + s.begin - begin,
                                           (size_t)s.n * sizeof(float));
        }
    }
}

/* All ranks' parts of a layer in the gradients' buffer, the own one already there. */
static void gather_layer(GPT2 *model, int layer) {
    const ParameterRange range = gpt2_layer_range(model->tensors, layer);
    model->comm->all_gather(model->comm, STREAM_MAIN, model->grads + range.begin, range.n / model->n_parts,
                            DTYPE_F32);
}

const float *gpt2_gather_master(GPT2 *model) {
    if (!gpt2_master_is_sharded(model)) return model->master;
    for (int layer = -1; layer <= model->config.n_layer; layer++) {
        const OwnSpan part = gpt2_own_part(model, layer);
        model->ops->device->copy(model->grads + part.begin, model->master + part.at,
                                 (size_t)part.n * sizeof(float));
        gather_layer(model, layer);
    }
    model->comm->all_gather_end(model->comm, STREAM_MAIN);
    return model->grads;
}

const float *gpt2_gather_state(GPT2 *model, StateId id) {
    if (model->n_parts == 1 && model->options.optimizer == OPTIMIZER_ADAMW) return model->states[id];
    for (int layer = -1; layer <= model->config.n_layer; layer++) {
        OwnSpan spans[MAX_STATE_SPANS];
        const int n = state_spans(model, optimizer_states[id].kind, layer, spans);
        for (const OwnSpan *s = spans; s < spans + n; s++)
            model->ops->device->copy(model->grads + s->begin, model->states[id] + s->at,
                                     (size_t)s->n * sizeof(float));
        if (model->n_parts > 1) gather_layer(model, layer);
    }
    if (model->n_parts > 1) model->comm->all_gather_end(model->comm, STREAM_MAIN);
    return model->grads;
}
