/* Initial weights: the spread that gpt2.h promises, zero padding, and values that depend on the seed alone.
 */
#include <stdlib.h>
#include <string.h>
#include "../../llmc/gpt2.h"
#include "check.h"

static const GPT2Config config = {
    .max_seq_len = 32, .vocab_size = 300, .padded_vocab_size = 384, .n_layer = 8, .n_head = 4, .n_embd = 64};

static float *initial_weights(GPT2 *model, uint64_t seed) {
    float *host = malloc((size_t)model->n_parameters * sizeof *host);
    if (!host) abort();
    gpt2_init(model, seed);
    model->ops->download(host, model->master, (size_t)model->n_parameters * sizeof *host);
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
    moments(weights + t->offset, n, &mean, &deviation);
    /* five standard errors of n draws */
    CHECK(fabs(mean) <= 5 * expected / sqrt((double)n), "%s: mean %g of %g", t->name, mean, expected);
    CHECK(fabs(deviation / expected - 1) <= 5 / sqrt(2.0 * (double)n), "%s: deviation %g, expected %g",
          t->name, deviation, expected);
}

static void check_constant(const GPT2 *model, const float *weights, TensorId id, float expected) {
    const Tensor *t = &model->tensors[id];
    int64_t wrong = 0;
    for (int64_t i = 0; i < t->layer_elems * t->n_layers; i++) wrong += weights[t->offset + i] != expected;
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
        padding += weights[wte->offset + i] != 0;
    CHECK(padding == 0, "%lld elements of wte's padding rows are not 0", (long long)padding);
}

int main(void) {
    Error err = {0};
    const GPT2Options options = {.B = 1, .T = 8, .training = true};
    GPT2 model;
    if (CHECK(ops_cpu.open(&err) && gpt2_open(&model, &ops_cpu, &config, &options, &err), "%s", err.text)) {
        float *first = initial_weights(&model, 7), *again = initial_weights(&model, 7),
              *other = initial_weights(&model, 8);
        const size_t bytes = (size_t)model.n_parameters * sizeof *first;
        test_values(&model, first);
        CHECK(memcmp(first, again, bytes) == 0, "the same seed gives other weights");
        CHECK(memcmp(first, other, bytes) != 0, "another seed gives the same weights");
        free(first), free(again), free(other);
        gpt2_close(&model);
    }
    return check_finish("init");
}
