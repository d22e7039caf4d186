/* The optimizer: which tensors decay, and that a step made in parts, as ranks with a shard each make it, is the step. */
#include "dev/test/tiny_model.h"

static const UpdateArgs args = {
    .step = 1, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.5f, .clip = 0.01f};

/* The weights of seed 3, moments 0, and the gradients of eight tokens. */
static void open_with_gradients(GPT2 *model) {
    int32_t tokens[9];
    for (int i = 0; i < 9; i++) tokens[i] = 7 * i;
    tiny_open(model, &tiny_config);
    tiny_fill(model, 3);
    gpt2_reset_optimizer(model);
    gpt2_begin_step(model, 1);
    gpt2_micro_step(model, tokens, tokens + 1, 1, 8, 1);
}

/* Without a gradient, matrices and embeddings decay, and norms and biases stay. */
static void test_decay(void) {
    GPT2 model;
    TinyPiece pieces[4 + 2 * 12], *piece = pieces;
    open_with_gradients(&model);
    memset(model.grads, 0, (size_t)model.n_elements * sizeof(float));
    gpt2_update(&model, &args);
    tiny_pieces(&model, pieces);
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model.tensors[id].n_layers; layer++, piece++) {
            const float factor = model.tensors[id].rank == 2 ? 1 - 0.01f * 0.5f : 1;
            int64_t wrong = 0;
            for (int64_t i = 0; i < piece->n; i++) {
                const float before = tiny_element(piece, 3, 0, i);
                wrong += fabsf(model.master[piece->at + i] - factor * before) > 1e-6f * fabsf(before);
            }
            CHECK(wrong == 0, "%s, layer %d: %lld elements are not %g of what they were",
                  model.tensors[id].name, layer, (long long)wrong, (double)factor);
        }
    gpt2_close(&model);
}

/* Sums and steps layer by layer, in another order, leave the bits of one call for all. */
static void test_parts(void) {
    GPT2 whole, parts;
    open_with_gradients(&whole);
    open_with_gradients(&parts);
    gpt2_update(&whole, &args);
    const Ops *ops = parts.ops;
    for (int layer = parts.config.n_layer; layer >= -1; layer--) {
        const ParameterRange r = gpt2_layer_range(parts.tensors, layer);
        ops->sum_squares(&parts.sums->squares, parts.grads + r.begin, r.end - r.begin);
    }
    ops->finish_stats(parts.stats, parts.sums);
    for (int layer = -1; layer <= parts.config.n_layer; layer++) {
        const ParameterRange r = gpt2_layer_range(parts.tensors, layer);
        const OptimizerBuffers buffers = {
            .master = parts.master + r.begin,
            .weights = (float *)parts.weights + r.begin,
            .grads = parts.grads + r.begin,
            .states = {parts.states[ADAMW_M] + r.begin, parts.states[ADAMW_V] + r.begin},
            .tile_groups = parts.tile_groups + r.begin / PARAMETER_TILE,
            .stats = parts.stats,
            .n = r.end - r.begin,
        };
        optimizer_step(ops, &buffers, &args);
    }
    const size_t bytes = (size_t)whole.n_elements * sizeof(float);
    for (int k = 0; k < 3; k++)
        CHECK(memcmp(tiny_buffer(&whole, k), tiny_buffer(&parts, k), bytes) == 0, "%s differ",
              k == 0 ? "weights" : optimizer_states[k - 1].name);
    CHECK(gpt2_step_stats(&whole).grad_norm > args.clip, "nothing is clipped");
    gpt2_close(&whole);
    gpt2_close(&parts);
}

int main(void) {
    test_decay();
    test_parts();
    return check_finish("optimizer");
}
