/* The optimizer: which tensors decay, and that a step made in parts, as ranks with a shard each make it, is the step. */
#include "dev/test/tiny_model.h"
#include "llmc/model/gpt2_pass.h"

static const UpdateArgs args = {
    .step = 1, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.5f, .clip = 0.01f};

/* The weights of seed 3, moments 0, and the gradients of eight tokens. */
static void open_with_gradients(GPT2 *model) {
    int32_t tokens[9];
    for (int i = 0; i < 9; i++) tokens[i] = 7 * i;
    tiny_open(model, &tiny_config);
    tiny_fill(model, 3);
    tiny_zero_states(model);
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
        ops->sum_squares(&parts.sums->squares, parts.grads + r.begin, r.n);
    }
    ops->finish_stats(parts.stats, parts.sums);
    for (int layer = -1; layer <= parts.config.n_layer; layer++) update_layer(&parts, layer, &args);
    const size_t bytes = (size_t)whole.n_elements * sizeof(float);
    for (int k = 0; k < 3; k++)
        CHECK(memcmp(tiny_buffer(&whole, k), tiny_buffer(&parts, k), bytes) == 0, "%s differ",
              k == 0 ? "weights" : optimizer_states[k - 1].name);
    CHECK(gpt2_step_stats(&whole).grad_norm > args.clip, "nothing is clipped");
    gpt2_close(&whole);
    gpt2_close(&parts);
}

/* Bytes of a row of the plan whose name begins so; 0: there is none. */
static size_t planned(OptimizerKind optimizer, int n_ranks, const char *name) {
    Comm comm = comm_planned(n_ranks);
    const GPT2Options options = {.B = 1, .T = 8, .training = true, .optimizer = optimizer, .comm = &comm};
    MemoryPlan plan;
    gpt2_memory_plan(&plan, &ops_cpu, &tiny_config, &options);
    for (int i = 0; i < plan.n_rows; i++)
        if (strncmp(plan.rows[i].name, name, strlen(name)) == 0) return plan.rows[i].bytes;
    return 0;
}

/* Muon keeps one value of each of a block's matrix elements, AdamW two of every other element; padding is counted. */
static void test_memory(void) {
    Tensor tensors[N_TENSORS];
    int64_t matrices = 0, others = 0;
    gpt2_tensors(tensors, &tiny_config, 1);
    for (int id = 0; id < N_TENSORS; id++)
        *(tensors[id].group == GROUP_MATRICES ? &matrices : &others) +=
            tensors[id].padded * tensors[id].n_layers;
    CHECK(planned(OPTIMIZER_ADAMW, 1, "AdamW v") == (size_t)(4 * (matrices + others)) &&
              planned(OPTIMIZER_ADAMW, 1, "Muon") == 0,
          "AdamW's v takes %zu bytes", planned(OPTIMIZER_ADAMW, 1, "AdamW v"));
    CHECK(planned(OPTIMIZER_MUON, 1, "AdamW m") == (size_t)(4 * others) &&
              planned(OPTIMIZER_MUON, 1, "AdamW v") == (size_t)(4 * others) &&
              planned(OPTIMIZER_MUON, 1, "Muon momentum") == (size_t)(4 * matrices),
          "with Muon: AdamW's m %zu bytes, momentum %zu of %lld parameters",
          planned(OPTIMIZER_MUON, 1, "AdamW m"), planned(OPTIMIZER_MUON, 1, "Muon momentum"),
          (long long)matrices);
    CHECK(planned(OPTIMIZER_MUON, 1, "logits") >= 2 * (size_t)(4 * matrices) / tiny_config.n_layer,
          "with Muon: no room for a block in the logits' %zu bytes", planned(OPTIMIZER_MUON, 1, "logits"));
    const size_t of_two = planned(OPTIMIZER_MUON, 2, "Muon momentum"), all = (size_t)(4 * matrices);
    CHECK(of_two >= all / 2 && of_two < all, "of two ranks: momentum %zu bytes of %zu", of_two, all);
}

enum { UNTOUCHED = 0x5a };

static size_t logits_bytes(const GPT2 *model) {
    return activation_bytes(&model->activations[ACT_LOGITS], &model->options);
}

/* Two blocks at once no more; what lies behind is marked. */
static void halve_workspace(GPT2 *model) {
    Activation *logits = &model->activations[ACT_LOGITS];
    logits->elems /= 2;
    memset(logits->data + logits_bytes(model), UNTOUCHED, logits_bytes(model));
}

static bool is_untouched(const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n && bytes[i] == UNTOUCHED) i++;
    return i == n;
}

/* With Muon a step is the same however few blocks the workspace holds at a time, and nothing is written behind it. */
static void test_rounds(void) {
    GPT2Options options = {.B = 1, .T = 8, .training = true, .optimizer = OPTIMIZER_MUON};
    int32_t tokens[9];
    GPT2 models[2];
    Error err = {0};
    for (int i = 0; i < 9; i++) tokens[i] = 7 * i;
    for (int i = 0; i < 2; i++) {
        UpdateArgs update = args;
        update.momentum = 0.95f;
        REQUIRE(gpt2_open(&models[i], &ops_cpu, &tiny_config, &options, &err), "%s", err.text);
        tiny_fill(&models[i], 3);
        tiny_zero_states(&models[i]);
        gpt2_begin_step(&models[i], 1);
        gpt2_micro_step(&models[i], tokens, tokens + 1, 1, 8, 1);
        if (i == 1) halve_workspace(&models[i]);
        gpt2_update(&models[i], &update);
    }
    CHECK(memcmp(models[0].master, models[1].master, (size_t)models[0].n_elements * sizeof(float)) == 0,
          "Muon: one block at a time has other bits than two");
    const Activation *logits = &models[1].activations[ACT_LOGITS];
    CHECK(is_untouched(logits->data + logits_bytes(&models[1]), logits_bytes(&models[1])),
          "Muon: a step writes behind its workspace");
    for (int i = 0; i < 2; i++) gpt2_close(&models[i]);
}

int main(void) {
    test_memory();
    test_rounds();
    test_decay();
    test_parts();
    return check_finish("optimizer");
}
