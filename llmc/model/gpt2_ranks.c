/* What ranks do together: sums of gradients, the update by parts, whole states for the files. A process alone has one
 * part, all of it, and its calls of Comm do nothing. */
#include "gpt2_pass.h"

OwnPart gpt2_own_part(const GPT2 *model, int layer) {
    const ParameterRange range = gpt2_layer_range(model->tensors, layer);
    const int64_t n = (range.end - range.begin) / model->n_parts;
    const int rank = model->n_parts > 1 ? model->comm->ranks.rank : 0;
    return (OwnPart){range.begin + rank * n, n, range.begin / model->n_parts};
}

/* What of elements [begin, begin + n) is in the own part of a layer; n <= 0: nothing. */
static OwnPart own_overlap(const GPT2 *model, int layer, int64_t begin, int64_t n) {
    const OwnPart part = gpt2_own_part(model, layer);
    const int64_t first = begin > part.begin ? begin : part.begin;
    const int64_t end = begin + n < part.begin + part.n ? begin + n : part.begin + part.n;
    return (OwnPart){first, end - first, part.at + first - part.begin};
}

/* Leaves have an exchange of their own. */
int64_t attached_gradients(const GPT2 *model) {
    return model->n_parts == 1 || leaves_exchange(model) ? 0 : model->n_elements;
}

bool gpt2_attach(GPT2 *model, Error *err) {
    const size_t bytes = (size_t)model->n_elements * dtype_bytes(model->ops->dtype);
    if (model->n_parts == 1) return true;
    model->is_attached =
        model->comm->attach(model->comm, model->grads, attached_gradients(model), model->weights, bytes, err);
    return model->is_attached;
}

/* ---- gradients ---- */

/* The main stream waits for what the side stream has to do. */
static void wait_for_exchange(const GPT2 *model) {
    const Device *device = model->ops->device;
    device->event_record(EVENT_GRADS_REDUCED, STREAM_SIDE);
    device->stream_wait(STREAM_MAIN, EVENT_GRADS_REDUCED);
}

/* With --reproducible: what came in of a layer, while the backward pass was at work on the one below. */
static void add_received(GPT2 *model, int layer) {
    if (layer > model->config.n_layer) return;
    wait_for_exchange(model);
    leaves_add_received(model, gpt2_layer_range(model->tensors, layer));
}

void grads_final(GPT2 *model, int layer) {
    const Device *device = model->ops->device;
    const ParameterRange range = gpt2_layer_range(model->tensors, layer);
    if (!is_last_micro_step(model)) return;
    if (model->options.reproducible) leaves_join(model, range);
    if (model->n_parts == 1) return;
    if (leaves_exchange(model)) add_received(model, layer + 1);
    device->event_record(EVENT_GRADS_FINAL, STREAM_MAIN);
    device->stream_wait(STREAM_SIDE, EVENT_GRADS_FINAL);
    if (leaves_exchange(model))
        leaves_send(model, range);
    else
        model->comm->reduce_scatter(model->comm, STREAM_SIDE, model->grads + range.begin,
                                    (range.end - range.begin) / model->n_parts);
}

void grads_reduced(GPT2 *model) {
    if (model->n_parts == 1 || !is_last_micro_step(model)) return;
    if (leaves_exchange(model)) {
        add_received(model, -1);
        return;
    }
    wait_for_exchange(model);
    model->comm->reduce_scatter_end(model->comm, STREAM_MAIN);
}

/* ---- update ---- */

/* The own parts, one at a time: by layer, or all at once where they are all there is. */
static int n_updates(const GPT2 *model) {
    return model->n_parts > 1 ? model->config.n_layer + 2 : 1;
}
static OwnPart update_part(const GPT2 *model, int i) {
    return model->n_parts > 1 ? gpt2_own_part(model, i - 1) : (OwnPart){0, model->n_elements, 0};
}

static void finish_stats(GPT2 *model) {
    const Device *device = model->ops->device;
    for (int i = 0; i < n_updates(model); i++) {
        const OwnPart part = update_part(model, i);
        model->ops->sum_squares(&model->sums->squares, model->grads + part.begin, part.n);
    }
    model->comm->sum_int64(model->comm, STREAM_MAIN, (int64_t *)model->sums,
                           sizeof *model->sums / sizeof(int64_t));
    device->stream_wait(STREAM_MAIN, EVENT_STATS_READ); /* of the step before */
    model->ops->finish_stats(model->stats, model->sums);
}

/* On the side stream, beside the next part's update. */
static void gather_weights(GPT2 *model, int layer) {
    const Device *device = model->ops->device;
    const ParameterRange range = gpt2_layer_range(model->tensors, layer);
    device->event_record(EVENT_WEIGHTS_UPDATED, STREAM_MAIN);
    device->stream_wait(STREAM_SIDE, EVENT_WEIGHTS_UPDATED);
    model->comm->all_gather(model->comm, STREAM_SIDE, rows_from(model, model->weights, range.begin, 1),
                            (range.end - range.begin) / model->n_parts, model->ops->dtype);
}

static OptimizerBuffers optimizer_buffers_of(const GPT2 *model, int update) {
    const OwnPart part = update_part(model, update);
    OptimizerBuffers buffers = {
        .continues = update > 0,
        .master = model->master + (gpt2_master_is_sharded(model) ? part.at : part.begin),
        .weights = rows_from(model, model->weights, part.begin, 1),
        .grads = model->grads + part.begin,
        .tile_groups = model->tile_groups + part.begin / PARAMETER_TILE,
        .stats = model->stats,
        .n = part.n,
    };
    for (int i = 0; i < N_STATES; i++)
        if (model->states[i]) buffers.states[i] = model->states[i] + part.at;
    return buffers;
}

void gpt2_update(GPT2 *model, const UpdateArgs *args) {
    const Device *device = model->ops->device;
    device->stream_wait(STREAM_MAIN, EVENT_SNAPSHOT_TAKEN);
    finish_stats(model);
    for (int i = 0; i < n_updates(model); i++) {
        const OptimizerBuffers buffers = optimizer_buffers_of(model, i);
        optimizer_step(model->ops, &buffers, args);
        if (model->n_parts > 1) gather_weights(model, i - 1);
    }
    if (model->n_parts == 1) return;
    model->comm->all_gather_end(model->comm, STREAM_SIDE);
    device->event_record(EVENT_WEIGHTS_GATHERED, STREAM_SIDE);
    device->stream_wait(STREAM_MAIN, EVENT_WEIGHTS_GATHERED);
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
        const OwnPart part = update_part(model, i);
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
        const OwnPart part = own_overlap(model, layer, begin, n);
        if (part.n > 0)
            device->copy(model->master + part.at, whole + part.begin, (size_t)part.n * sizeof(float));
    }
}

void gpt2_set_state(GPT2 *model, StateId id, const float *host, int64_t begin, int64_t n) {
    for (int layer = -1; layer <= model->config.n_layer; layer++) {
        const OwnPart part = own_overlap(model, layer, begin, n);
        if (part.n > 0)
            model->ops->device->upload(model->states[id] + part.at, host + part.begin - begin,
                                       (size_t)part.n * sizeof(float));
    }
}

/* The own parts into their places, then everybody's. */
static const float *gather(GPT2 *model, const float *own) {
    for (int layer = -1; layer <= model->config.n_layer; layer++) {
        const ParameterRange range = gpt2_layer_range(model->tensors, layer);
        const OwnPart part = gpt2_own_part(model, layer);
        model->ops->device->copy(model->grads + part.begin, own + part.at, (size_t)part.n * sizeof(float));
        model->comm->all_gather(model->comm, STREAM_MAIN, model->grads + range.begin, part.n, DTYPE_F32);
    }
    model->comm->all_gather_end(model->comm, STREAM_MAIN);
    return model->grads;
}

const float *gpt2_gather_master(GPT2 *model) {
    return gpt2_master_is_sharded(model) ? gather(model, model->master) : model->master;
}

const float *gpt2_gather_state(GPT2 *model, StateId id) {
    return model->n_parts > 1 ? gather(model, model->states[id]) : model->states[id];
}

void gpt2_reset_optimizer(GPT2 *model) {
    for (int i = 0; i < N_STATES; i++)
        if (model->states[i])
            model->ops->device->zero(model->states[i], optimizer_state_bytes((StateId)i, model->n_own));
}
