/* A recorded model on one backend: weights, tokens and steps as the record has them, and what a model holds. */
#pragma once
#include "llmc/model/gpt2.h"
#include "dev/reference/reference.h"
#include "check.h"

/* One recorded model on one backend. */
typedef struct Case {
    const Ops *ops;
    const Reference *reference;
    const char *model; /* "hd24" */
    GPT2Config config;
    int B, T;
    int32_t *tokens, *targets;              /* (B,T) */
    int n_compared;                         /* records compared so far */
    double square_error, square_bf16_error; /* sums over the records compared: ours, PyTorch's in bf16 */
} Case;

/* ---- what the hash gives ---- */

static void set_hash_weights(GPT2 *model, const ReferenceHeader *h) {
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *t = &model->tensors[id];
        float *host = malloc((size_t)t->layer_elems * sizeof *host);
        if (!host) abort();
        for (int layer = 0; layer < t->n_layers; layer++) {
            hash_tensor(host, (TensorId)id, layer, t, h);
            gpt2_set_weights(model, host, tensor_at(t, layer), t->layer_elems);
        }
        free(host);
    }
}

/* B, T and training are the case's. */
static bool case_open_with(Case *c, GPT2 *model, const GPT2Options *with) {
    Error err = {0};
    GPT2Options options = *with;
    options.B = c->B;
    options.T = c->T;
    options.training = true;
    options.dropout_seed = REFERENCE_DROPOUT_SEED;
    options.optimizer = (OptimizerKind)c->reference->header.optimizer;
    if (!CHECK(gpt2_open(model, c->ops, &c->config, &options, &err), "%s: %s", c->model, err.text))
        return false;
    set_hash_weights(model, &c->reference->header);
    return true;
}

static bool case_open(Case *c, GPT2 *model, Recompute recompute, AttentionKind attention) {
    return case_open_with(c, model, &(GPT2Options){.recompute = recompute, .attention = attention});
}

/* ---- one step, and what a model holds ---- */

static void forward_backward(Case *c, GPT2 *model) {
    gpt2_begin_step(model, 1);
    gpt2_micro_step(model, c->tokens, c->targets, c->B, c->T, 1.0f);
}

/* Of the step's micro-steps so far; the update would say it of the whole step. */
static float loss_so_far(GPT2 *model) {
    model->ops->finish_stats(model->stats, model->sums);
    return gpt2_step_stats(model).loss;
}

static void update(Case *c, GPT2 *model, int64_t step) {
    const ReferenceHeader *h = &c->reference->header;
    UpdateArgs args = {step, h->lr, h->beta1, h->beta2, h->eps, h->weight_decay, h->clip, .momentum = 0.95f};
    gpt2_update(model, &args);
}

typedef enum { MASTER, WEIGHTS, GRADS, STATES, N_FLAT = STATES + N_STATES } FlatId;
static const char *const flat_names[N_FLAT] = {"master weights", "weights", "gradients", "m", "v",
                                               "momentum"}; /* the states in their order */

/* The flat buffers on the host, as bytes. */
typedef struct Snapshot {
    char *flat[N_FLAT];
    size_t bytes[N_FLAT];
} Snapshot;

static Snapshot snapshot(const GPT2 *model) {
    const void *device[N_FLAT] = {model->master, model->weights, model->grads};
    int64_t n[N_FLAT] = {model->n_elements, model->n_elements, model->n_elements};
    Snapshot s;
    for (int i = 0; i < N_STATES; i++) {
        device[STATES + i] = model->states[i];
        n[STATES + i] = gpt2_state_elements(model, optimizer_states[i].kind);
    }
    for (int i = 0; i < N_FLAT; i++) {
        s.bytes[i] = (size_t)n[i] * (i == WEIGHTS ? dtype_bytes(model->ops->dtype) : sizeof(float));
        if (!(s.flat[i] = malloc(s.bytes[i] + 1))) abort();
        if (s.bytes[i] == 0) continue;
        model->ops->device->download(s.flat[i], device[i], s.bytes[i]);
    }
    return s;
}

static void snapshot_free(Snapshot *s) {
    for (int i = 0; i < N_FLAT; i++) free(s->flat[i]);
}

/* Frees b. True where every buffer but `except` (-1: none) is bitwise the same. */
static void check_same_bits(const Case *c, const Snapshot *a, Snapshot b, int except, const char *what) {
    for (int i = 0; i < N_FLAT; i++)
        if (i != except)
            CHECK(memcmp(a->flat[i], b.flat[i], a->bytes[i]) == 0, "%s, %s: %s: %s differ in some bits",
                  c->ops->name, c->model, what, flat_names[i]);
    snapshot_free(&b);
}
