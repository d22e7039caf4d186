/* The model's calls: one micro-step or evaluation at a time, figures out. The passes are in gpt2_forward.c and
 * gpt2_backward.c, the update in gpt2_ranks.c. */
#include "gpt2_pass.h"
#include "llmc/base/random.h"
#include <stdlib.h>

Batch batch_of(const GPT2 *model, int B, int T) {
    const GPT2Config *c = &model->config;
    const Ranks context = context_ranks(&model->options);
    return (Batch){
        .B = B,
        .T = T / context.n_ranks,
        .N = (int64_t)B * (T / context.n_ranks),
        .context = context,
        .C = c->n_embd,
        .NH = c->n_head,
        .HD = c->n_embd / c->n_head,
    };
}

floatX *gpt2_activation(const GPT2 *model, ActivationId id, int layer) {
    const Activation *a = &model->activations[id];
    return a->data ? a->data + (size_t)(a->stride * layer) * dtype_bytes(a->dtype) : NULL;
}

floatX *gpt2_weight(const GPT2 *model, TensorId id, int layer) {
    const Tensor *t = &model->tensors[id];
    return (char *)model->weights + (size_t)tensor_at(t, layer) * dtype_bytes(model->ops->dtype);
}

float *gpt2_grad(const GPT2 *model, TensorId id, int layer) {
    return model->grads + tensor_at(&model->tensors[id], layer);
}

/* Of (B,T) this rank's columns. */
static void upload_batch(GPT2 *model, const Batch *b, const int32_t *tokens, const int32_t *targets) {
    const int64_t T = context_of(b), own = position_of(b), rows = T == b->T ? 1 : b->B, n = b->N / rows;
    upload_documents(model, tokens, b->B, (int)T);
    for (int64_t row = 0; row < rows; row++) {
        model->ops->device->upload(model->tokens + row * n, tokens + row * T + own,
                                   (size_t)n * sizeof *tokens);
        model->ops->device->upload(model->targets + row * n, targets + row * T + own,
                                   (size_t)n * sizeof *targets);
    }
}

const float *gpt2_losses(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T) {
    const Batch b = batch_of(model, B, T);
    upload_batch(model, &b, tokens, targets);
    forward_pass(model, &b);
    for (int64_t row = 0; row < b.N && !gpt2_stops(model); row += model->shape.loss_rows) {
        Chunk c = head_forward(model, &b, row);
        model->ops->cross_entropy_forward(c.losses, c.logits, c.targets, c.n, model->config.vocab_size,
                                          model->config.padded_vocab_size);
    }
    return activation_f32(model, ACT_LOSSES, 0);
}

float gpt2_eval(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T) {
    const Batch b = batch_of(model, B, T);
    const float *on_device = gpt2_losses(model, tokens, targets, B, T);
    float *losses = must_allocate((size_t)b.N * sizeof *losses, "the losses of an evaluation");
    model->ops->device->download(losses, on_device, (size_t)b.N * sizeof *losses);
    double sum = 0;
    for (int64_t i = 0; i < b.N; i++) sum += losses[i];
    free(losses);
    return (float)(sum / (double)tokens_of(&b));
}

/* What an exchange has left behind a tensor's last element. */
static void zero_padding(GPT2 *model, const Tensor *t) {
    const int64_t n = t->padded - t->layer_elems;
    if (n > 0)
        model->ops->device->zero_rows(model->grads + t->offset + t->layer_elems, (size_t)n * sizeof(float),
                                      (size_t)t->stride * sizeof(float), t->n_layers);
}

/* Gradients that the step adds to; those between two that it overwrites, for all layers at once. Padding is among them,
 * because a sum over ranks leaves anything in the parts of others. */
static void zero_gradients(GPT2 *model) {
    for (int id = 0, next; id < N_TENSORS; id = next) {
        const Tensor *first = &model->tensors[id], *last = first;
        next = id + 1;
        if (first->overwritten) {
            if (model->n_parts > 1) zero_padding(model, first);
            continue;
        }
        for (; next < N_TENSORS && !last[1].overwritten && last[1].stride == first->stride; next++) last++;
        const int64_t n = last->offset + last->padded - first->offset;
        model->ops->device->zero_rows(model->grads + first->offset, (size_t)n * sizeof(float),
                                      (size_t)first->stride * sizeof(float), first->n_layers);
    }
}

static void begin_gradients(GPT2 *model) {
    zero_gradients(model);
    model->first = true;
}

void gpt2_begin_step(GPT2 *model, int64_t n_micro_steps) {
    const int n_leaves = model->options.reproducible;
    model->at = (PassPlace){"begin", -1, -1};
    begin_gradients(model);
    model->kept = (SumTree){.n_leaves = n_leaves};
    if (n_leaves) model->leaf_micro_steps = n_micro_steps / sum_tree_leaves(n_leaves, model->comm->ranks);
    model->step++;
    model->n_micro_steps = 0;
    model->seen_pairs = 0;
    model->seen_tokens = 0;
    model->last_micro_step = n_micro_steps - 1;
    model->ops->device->zero(model->sums, sizeof *model->sums);
}

static void micro_step_ops(GPT2 *model, const Batch *b, float per_token) {
    forward_pass(model, b);
    backward_pass(model, b, per_token);
    model->ops->loss_sum(&model->sums->loss, activation_f32(model, ACT_LOSSES, 0), per_token, b->N);
}

static CapturedStep *captured_step(GPT2 *model) {
    return &model->captured[model->first][is_last_micro_step(model)];
}

/* True once there is a graph of this micro-step: the first run of a shape readies what its ops need, the second is
 * captured. A device that cannot is not asked again. */
static bool capture_micro_step(GPT2 *model, const Batch *b, float per_token) {
    CapturedStep *c = captured_step(model);
    if (c->B != b->B || c->T != b->T || c->weight != per_token) {
        model->ops->device->graph_free(c->graph);
        *c = (CapturedStep){.B = b->B, .T = b->T, .weight = per_token};
    }
    if (c->n_runs++ == 0 || !model->options.graph) return false;
    if (c->graph) return true;
    if (model->ops->device->capture_begin()) {
        micro_step_ops(model, b, per_token);
        c->graph = model->ops->device->capture_end();
    }
    model->options.graph = c->graph != NULL;
    return model->options.graph;
}

/* On the device, not among the ops' arguments: a captured micro-step draws anew as well. The key is that of the
 * micro-batch among all of the step: a rank has those behind the ranks' before it, as of the data. Ranks that share a
 * context have the same micro-batch, other rows and heads of it, and a key each. */
static void upload_dropout_key(GPT2 *model, Ranks context) {
    enum { STREAM_DROPOUT = 0x64726F70 }; /* "drop" */
    const uint64_t of_seed = random_stream(model->options.dropout_seed, STREAM_DROPOUT);
    const int64_t of_a_rank = model->last_micro_step + 1;
    const int64_t of_step = model->comm->ranks.rank / context.n_ranks * of_a_rank + model->n_micro_steps;
    uint64_t key = random_stream(of_seed + (uint64_t)model->step, (uint64_t)of_step);
    if (context.n_ranks > 1) key = random_stream(key, (uint64_t)context.rank);
    model->ops->device->upload(model->dropout_key, &key, sizeof key);
}

void gpt2_micro_step(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T, float weight) {
    Batch b = batch_of(model, B, T);
    const float per_token = weight / (float)tokens_of(&b);
    b.dropout = model->config.dropout;
    now_at(model, "data", -1);
    upload_batch(model, &b, tokens, targets);
    if (b.dropout > 0) upload_dropout_key(model, b.context);
    if (capture_micro_step(model, &b, per_token))
        model->ops->device->graph_launch(captured_step(model)->graph);
    else
        micro_step_ops(model, &b, per_token);
    model->first = false;
    if (leaf_is_done(model)) {
        leaf_keep(model);
        begin_gradients(model);
    }
    model->n_micro_steps++;
}

static void request(GPT2 *model, int64_t *what) {
    const int64_t yes = 1;
    model->ops->device->upload(what, &yes, sizeof yes);
}

void gpt2_request_stop(GPT2 *model) {
    request(model, &model->sums->stop);
}

void gpt2_request_save(GPT2 *model) {
    request(model, &model->sums->save);
}

StepStats gpt2_step_stats(GPT2 *model) {
    StepStats stats;
    model->ops->device->download(&stats, model->stats, sizeof stats);
    return stats;
}

/* On the side stream, so that the next step need not wait for it: only its own statistics do. */
void gpt2_queue_stats(GPT2 *model, int slot) {
    const Device *device = model->ops->device;
    side_waits(model, EVENT_STATS_FINAL);
    device->readback_begin(slot, STREAM_SIDE, model->stats, sizeof *model->stats);
    device->event_record(EVENT_STATS_READ, STREAM_SIDE);
}

StepStats gpt2_take_stats(GPT2 *model, int slot) {
    StepStats stats;
    model->ops->device->readback_end(slot, &stats, sizeof stats);
    return stats;
}
