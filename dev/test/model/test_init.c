/* Initial weights: the spread that gpt2.h promises, zero padding, and values that depend on the seed alone. */
#include <stdlib.h>
#include <string.h>
#include "llmc/model/gpt2.h"
#include "dev/test/check.h"

static const GPT2Config config = {
    .max_seq_len = 32, .vocab_size = 300, .padded_vocab_size = 384, .n_layer = 8, .n_head = 4, .n_embd = 64};

/* A tensor's first element where tensors follow each other, each with all its layers. */
static int64_t first_element(const GPT2 *model, TensorId id) {
    int64_t first = 0;
    for (int i = 0; i < (int)id; i++) first += model->tensors[i].layer_elems * model->tensors[i].n_layers;
    return first;
}

/* The weights in that order. */
static float *initial_weights(GPT2 *model, uint64_t seed) {
    float *host = malloc((size_t)model->n_parameters * sizeof *host);
    if (!host) abort();
    gpt2_init(model, seed);
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++) {
            const Tensor *t = &model->tensors[id];
            model->ops->device->download(host + first_element(model, (TensorId)id) + layer * t->layer_elems,
                                         model->master + tensor_at(t, layer),
                                         (size_t)t->layer_elems * sizeof *host);
        }
    return host;
}

/* Mean and standard deviation of n values. */
static void moments(const float *x, int64_t n, double *mean, double *deviation) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *deviation = sqrt(squares / (double)n);
}

static void check_spread(const GPT2 *model, const float *weights, TensorId id, double expected) {
    const Tensor *t = &model->tensors[id];
    const int64_t n = id == WTE ? (int64_t)config.vocab_size * t->cols : t->layer_elems * t->n_layers;
    double mean, deviation;
    moments(weights + first_element(model, id), n, &mean, &deviation);
    /* five standard errors of n draws */
    CHECK(fabs(mean) <= 5 * expected / sqrt((double)n), "%s: mean %g of %g", t->name, mean, expected);
    CHECK(fabs(deviation / expected - 1) <= 5 / sqrt(2.0 * (double)n), "%s: deviation %g, expected %g",
          t->name, deviation, expected);
}

static void check_constant(const GPT2 *model, const float *weights, TensorId id, float expected) {
    const Tensor *t = &model->tensors[id];
    int64_t wrong = 0;
    for (int64_t i = 0; i < t->layer_elems * t->n_layers; i++)
        wrong += weights[first_element(model, id) + i] != expected;
    CHECK(wrong == 0, "%s: %lld elements are not %g", t->name, (long long)wrong, (double)expected);
}

static void test_values(const GPT2 *model, const float *weights) {
    const double projection = 0.02 / sqrt(2.0 * config.n_layer);
    const TensorId plain[] = {WTE, WPE, C_ATTN_W, C_FC_W}, projections[] = {ATTN_PROJ_W, MLP_PROJ_W};
    for (int i = 0; i < 4; i++) check_spread(model, weights, plain[i], 0.02);
    for (int i = 0; i < 2; i++) check_spread(model, weights, projections[i], projection);
    const TensorId zeros[] = {LN_1_B, C_ATTN_B, ATTN_PROJ_B, LN_2_B, C_FC_B, MLP_PROJ_B, LN_F_B};
    for (int i = 0; i < 7; i++) check_constant(model, weights, zeros[i], 0);
    const TensorId ones[] = {LN_1_W, LN_2_W, LN_F_W};
    for (int i = 0; i < 3; i++) check_constant(model, weights, ones[i], 1);
    const Tensor *wte = &model->tensors[WTE];
    int64_t padding = 0;
    for (int64_t i = (int64_t)config.vocab_size * wte->cols; i < wte->layer_elems; i++)
        padding += weights[i] != 0;
    CHECK(padding == 0, "%lld elements of wte's padding rows are not 0", (long long)padding);
}

/* The weights of a seed are the same for ever: an element of a tensor, from SplitMix64's finaliser and Box & Muller alone. */
static double expected_weight(uint64_t seed, TensorId id, int64_t element, double deviation) {
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    uint64_t x[2] = {seed * golden + (uint64_t)id + 1, (uint64_t)element * golden};
    for (int i = 0; i < 2; i++) {
        if (i == 1) x[1] += x[0];
        x[i] = (x[i] ^ x[i] >> 30) * 0xBF58476D1CE4E5B9u;
        x[i] = (x[i] ^ x[i] >> 27) * 0x94D049BB133111EBu;
        x[i] ^= x[i] >> 31;
    }
    const double u = (double)(x[1] >> 40) + 0.5, angle = (double)(uint32_t)x[1] / 0x1p32;
    return deviation * sqrt(-2 * log(u / 0x1p24)) * cos(2 * M_PI * angle);
}

static void test_elements(GPT2 *model, uint64_t seed) {
    const double projection = 0.02 / sqrt(2.0 * model->config.n_layer);
    float *weights = initial_weights(model, seed);
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *t = &model->tensors[id];
        if (t->rank == 1) continue;
        const int64_t n = id == WTE ? model->config.vocab_size * t->cols : t->layer_elems * t->n_layers;
        const int64_t at[] = {0, 1, n / 3, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, n - 1};
        for (int i = 0; i < 7; i++) {
            const double want = expected_weight(seed, (TensorId)id, at[i],
                                                id == ATTN_PROJ_W || id == MLP_PROJ_W ? projection : 0.02);
            if (at[i] < n)
                CHECK(fabs(weights[first_element(model, (TensorId)id) + at[i]] - want) <=
                          1e-6 * fabs(want) + 1e-9,
                      "%s: element %lld is %g, expected %g", t->name, (long long)at[i],
                      (double)weights[first_element(model, (TensorId)id) + at[i]], want);
        }
    }
    free(weights);
}

/* A tensor of more than the 2^22 elements that are made at a time. */
static void test_large(void) {
    const GPT2Config large = {.max_seq_len = 8,
                              .vocab_size = 132000,
                              .padded_vocab_size = 132096,
                              .n_layer = 1,
                              .n_head = 1,
                              .n_embd = 32};
    const GPT2Options options = {.B = 1, .T = 8};
    GPT2 model;
    Error err = {0};
    if (!CHECK(gpt2_open(&model, &ops_cpu, &large, &options, &err), "%s", err.text)) return;
    test_elements(&model, 3);
    gpt2_close(&model);
}

int main(void) {
    Error err = {0};
    const GPT2Options options = {.B = 1, .T = 8, .training = true};
    GPT2 model;
    if (CHECK(ops_cpu.device->open(0, &err) && gpt2_open(&model, &ops_cpu, &config, &options, &err), "%s",
              err.text)) {
        float *first = initial_weights(&model, 7), *again = initial_weights(&model, 7),
              *other = initial_weights(&model, 8);
        const size_t bytes = (size_t)model.n_parameters * sizeof *first;
        test_values(&model, first);
        CHECK(memcmp(first, again, bytes) == 0, "the same seed gives other weights");
        CHECK(memcmp(first, other, bytes) != 0, "another seed gives the same weights");
        free(first), free(again), free(other);
        test_elements(&model, 7);
        gpt2_close(&model);
        test_large();
    }
    return check_finish("init");
}
