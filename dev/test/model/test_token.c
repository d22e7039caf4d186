/* A step of decoding as kernels of its own, for one sequence (token.cu) and for more (rows.cuh). Their sums have another order
 * than those of the launches that they take the place of, so texts part where two logits are as good as equal: each token is
 * held to the logits of the training forward pass, which has no cache. Needs a card of Hopper's kind. */
#include <math.h>
#include "dev/test/bits.h"
#include "dev/test/sampled_model.h"
#include "dev/test/logits.h"

enum { MAX_SAMPLES = 64 };

#define ONE "token_kernel"
#define WIDE "token_wide_kernel"
#define ROWS "rows_attention"

/* What is drawn from which model, and the last kernel that runs; NULL: one of the launches. document_end: the token between
 * documents, which ends a sample; NONE: there are no documents. A text begins with token 0. large, where it is not 0: how many
 * times as large attn_proj's weights are, so that what a head adds to a sum is up to 2^18 to 2^19, of which 2^19 is the limit. */
enum { NONE = -1 };
static const struct {
    int T, V, layers, heads, C, window, document_end, n_tokens, n_samples, large;
    const char *kernel;
} rows[] = {
  /*T   V      layers, heads  C    window, end      tokens, samples, large */
    {64,   61,    1, 1,  64,   0,   NONE, 60,   1,  0,    ONE },
    {64,   61,    2, 2,  128,  0,   NONE, 200,  1,  0,    ONE }, /* slides */
    {600,  300,   2, 3,  192,  0,   NONE, 590,  1,  0,    ONE },
    {400,  300,   2, 2,  128,  150, NONE, 390,  1,  0,    ONE },
    {400,  300,   2, 2,  128,  0,   0,    390,  1,  0,    ONE }, /* the first key is of another document */
    {200,  50257, 2, 12, 768,  0,   NONE, 190,  1,  0,    ONE },
    {1024, 4000,  1, 15, 960,  0,   NONE, 300,  1,  0,    ONE },
    {1024, 500,   3, 5,  320,  0,   NONE, 1023, 1,  0,    ONE }, /* all keys */
    {200,  50257, 1, 14, 896,  0,   NONE, 190,  1,  0,    ONE }, /* an odd number of layers, many tiles of the head */
    {128,  300,   3, 16, 1024, 0,   NONE, 500,  1,  0,    WIDE}, /* more heads than clusters of eight; slides */
    {400,  300,   2, 17, 1088, 150, NONE, 390,  1,  0,    WIDE},
    {400,  300,   2, 20, 1280, 0,   0,    390,  1,  0,    WIDE},
    {300,  300,   2, 23, 1472, 0,   NONE, 290,  1,  0,    WIDE},
    {1024, 1000,  3, 25, 1600, 0,   NONE, 1023, 1,  0,    WIDE}, /* all keys */
    {200,  50257, 1, 28, 1792, 0,   NONE, 190,  1,  0,    WIDE},
    {128,  300,   2, 12, 768,  0,   NONE, 100,  1,  3100, ONE },
    {128,  300,   2, 25, 1600, 0,   NONE, 100,  1,  2300, WIDE},
    {64,   61,    1, 29, 1856, 0,   NONE, 60,   1,  0,    NULL}, /* more heads than are served */
    {64,   61,    1, 2,  64,   0,   NONE, 60,   1,  0,    NULL}, /* head size 32 */
    {1200, 61,    1, 1,  64,   0,   NONE, 1050, 1,  0,    NULL}, /* nine pieces */
    {64,   61,    2, 4,  256,  0,   NONE, 150,  9,  0,    ROWS}, /* slides */
    {600,  300,   2, 8,  512,  0,   NONE, 590,  3,  0,    ROWS}, /* four warps have a row */
    {300,  300,   2, 4,  256,  150, NONE, 290,  17, 0,    ROWS},
    {300,  300,   2, 8,  512,  0,   0,    290,  40, 0,    ROWS},
    {200,  50257, 2, 12, 768,  0,   NONE, 190,  64, 0,    ROWS},
    {1024, 500,   2, 12, 768,  0,   NONE, 1023, 33, 0,    ROWS}, /* all keys */
    {128,  300,   1, 12, 768,  0,   NONE, 120,  63, 0,    ROWS},
    {128,  300,   2, 12, 768,  0,   NONE, 100,  5,  3100, ROWS},
    {64,   61,    2, 4,  256,  0,   NONE, 60,   2,  0,    ROWS},
    {64,   61,    1, 6,  384,  0,   NONE, 60,   16, 0,    NULL}, /* no kernel for six heads */
    {64,   61,    1, 16, 1024, 0,   NONE, 60,   16, 0,    NULL}, /* more blocks than run at once */
    {1200, 61,    1, 4,  256,  0,   NONE, 1050, 16, 0,    NULL}, /* too long a cache */
};

enum { TOP_K = 5, SMALL_C = 128 };

/* Values of [-scale / 2, scale / 2) for n elements from `at` on. */
static void set_random(GPT2 *model, int64_t at, int64_t n, float scale, uint64_t *rng) {
    float *values = calloc((size_t)n, sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = scale * (float)(random_uniform(rng) - 0.5);
    gpt2_set_weights(model, values, at, n);
    free(values);
}
/* The same for every layer of a tensor. */
static void set_random_layers(GPT2 *model, int id, float scale, uint64_t *rng) {
    const Tensor *t = &model->tensors[id];
    for (int layer = 0; layer < t->n_layers; layer++)
        set_random(model, tensor_at(t, layer), t->layer_elems, scale, rng);
}
/* Biases that the sums beside them do not hide; and token 0, between documents, is never among the best. large: as in a row. */
static void fill_biases(GPT2 *model, int large) {
    static const struct {
        int id;
        float scale;
    } biases[] = {
        {LN_1_B,      1},
        {C_ATTN_B,    8},
        {ATTN_PROJ_B, 8},
        {LN_2_B,      1},
        {C_FC_B,      2},
        {MLP_PROJ_B,  8},
        {LN_F_B,      1},
    };
    uint64_t rng = 5;
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        set_random_layers(model, biases[i].id, biases[i].scale, &rng);
    if (large) set_random_layers(model, ATTN_PROJ_W, (float)large, &rng);
    set_random(model, tensor_at(&model->tensors[WTE], 0), model->config.n_embd, 0, &rng);
}

/* tokens: of each sample. */
static void draw_texts(GPT2 *model, Tokens *tokens, int n_samples, int n, bool graph, float temperature) {
    const SampleOptions options = {.n_samples = n_samples,
                                   .n_tokens = n,
                                   .temperature = temperature,
                                   .top_k = TOP_K,
                                   .top_p = 1,
                                   .seed = 4,
                                   .graph = graph};
    Error err = {0};
    memset(tokens, 0, (size_t)n_samples * sizeof *tokens);
    CHECK(sample(model, NULL, &options, take_id, tokens, NULL, &err), "%s", err.text);
}
static bool same_texts(const Tokens *a, const Tokens *b, int n) {
    return !memcmp(a, b, (size_t)n * sizeof *a);
}

/* The largest of n, in falling order. */
static void find_top(float (*top)[TOP_K], const float *x, int n) {
    float *best = *top;
    for (int at = 0; at < TOP_K; at++) best[at] = -INFINITY;
    for (int i = 0; i < n; i++)
        for (int at = 0; at < TOP_K; at++)
            if (x[i] > best[at]) {
                memmove(best + at + 1, best + at, (size_t)(TOP_K - at - 1) * sizeof *best);
                best[at] = x[i];
                break;
            }
}

/* Of logits in [row, row + n) of the last forward pass: how far that of ids[i] lies below the k-th largest, at most. */
static float worst_of_rows(GPT2 *model, const int *ids, int row, int n, int k, float *largest) {
    const int V = model->config.vocab_size;
    float *logits = malloc((size_t)n * (size_t)V * sizeof *logits), worst = 0;
    logits_of(model, logits, row, n);
    for (int i = 0; i < n; i++) {
        const float *own = logits + (size_t)i * (size_t)V;
        float top[TOP_K];
        find_top(&top, own, V);
        const float gap = top[k - 1] - own[ids[i]];
        if (!(gap <= worst)) worst = isnan(gap) ? INFINITY : gap;
        *largest = fmaxf(*largest, fabsf(top[0]));
    }
    free(logits);
    return worst;
}

/* The same of a whole text, which begins as the sampler's; a window that is full keeps its last half. */
static float worst_of_text(GPT2 *model, const Tokens *text, int k, float *largest) {
    const int T = model->config.max_seq_len;
    int32_t *window = calloc((size_t)T + 1, sizeof *window);
    float worst = 0;
    window[0] = GPT2_EOT < model->config.vocab_size ? GPT2_EOT : 0;
    for (int at = 0, n = 1; at < text->n; n = T / 2) {
        const int left = text->n - at, room = T + 1 - n, come = left < room ? left : room;
        for (int i = 0; i < come; i++) window[n + i] = text->ids[at + i];
        gpt2_eval(model, window, window, 1, n + come - 1);
        const float of_rows = worst_of_rows(model, text->ids + at, n - 1, come, k, largest);
        if (!(of_rows <= worst)) worst = of_rows;
        at += come;
        if (come == room) memmove(window, window + n + come - T / 2, (size_t)(T / 2) * sizeof *window);
    }
    free(window);
    return worst;
}

/* The same of several texts; of a large vocabulary of four of them, the first and the last among them. */
static float worst_of_texts(GPT2 *model, const Tokens *texts, int n, int k, float *largest) {
    const int apart = model->config.vocab_size > 10000 && n > 4 ? (n - 1) / 3 : 1;
    float worst = 0;
    for (int i = 0; i < n; i += apart) {
        const float of_text = worst_of_text(model, &texts[i], k, largest);
        if (!(of_text <= worst)) worst = of_text;
    }
    return worst;
}

/* What a sample is must not depend on how many are beside it, with the same kernels. */
static void test_alone(GPT2 *model, const Tokens *texts, size_t i, float temperature) {
    enum { FEWEST = 2 };
    static Tokens few[FEWEST];
    draw_texts(model, few, FEWEST, rows[i].n_tokens, true, temperature);
    CHECK(same_texts(texts, few, FEWEST), "row %zu, temperature %g: other texts beside fewer", i,
          (double)temperature);
    for (int b = 1; b < rows[i].n_samples && temperature == 0; b++)
        CHECK(same_texts(texts, &texts[b], 1), "row %zu: sample %d is another text than the first", i, b);
}

/* worst: how far a token lies below the best ones by launches, at most, also at another temperature. */
static void test_text(const Ops *ops, size_t i, float temperature, float *worst) {
    static Tokens texts[MAX_SAMPLES], again[MAX_SAMPLES], launches[MAX_SAMPLES];
    GPT2Config config = {.max_seq_len = rows[i].T,
                         .vocab_size = rows[i].V,
                         .padded_vocab_size = gpt2_pad_vocab(rows[i].V),
                         .n_layer = rows[i].layers,
                         .n_head = rows[i].heads,
                         .n_embd = rows[i].C,
                         .window = rows[i].window,
                         .documents = rows[i].document_end != NONE,
                         .end_of_text = rows[i].document_end != NONE ? rows[i].document_end : 0};
    const GPT2Options options = {.B = 1, .T = rows[i].T};
    const int k = temperature > 0 ? TOP_K : 1, n = rows[i].n_samples, length = rows[i].n_tokens;
    GPT2 model;
    Error err = {0};
    float largest = 0;
    if (!CHECK(gpt2_open(&model, ops, &config, &options, &err), "%s", err.text)) return;
    fill_weights(&model);
    fill_biases(&model, rows[i].large);
    draw_texts(&model, launches, n, length, false, temperature);
    draw_texts(&model, texts, n, length, true, temperature);
    const char *const last = ops->kernel_ran(), *ran = last ? last : "none";
    const bool is_own = !strcmp(ran, ONE) || !strcmp(ran, WIDE) || !strcmp(ran, ROWS);
    if (strstr(ops->device->name(), "H200"))
        CHECK(rows[i].kernel ? !strcmp(ran, rows[i].kernel) : !is_own, "row %zu: the last kernel was %s", i,
              ran);
    else
        SKIP("row %zu: which kernel this card has room for is not known; %s ran", i, ran);
    for (int b = 0; b < n; b++)
        CHECK(texts[b].n == length && launches[b].n == length, "row %zu: %d and %d of %d tokens", i,
              texts[b].n, launches[b].n, length);
    char label[64];
    snprintf(label, sizeof label, "row %zu, temperature %g", i, (double)temperature);
    op_print_bits(label, "", texts, (size_t)n * sizeof *texts);
    draw_texts(&model, again, n, length, true, temperature);
    CHECK(same_texts(texts, again, n), "row %zu: other texts the second time", i);
    if (rows[i].kernel && n > 1) test_alone(&model, texts, i, temperature);
    *worst = fmaxf(*worst, worst_of_texts(&model, launches, n, k, &largest));
    const float by_kernels = worst_of_texts(&model, texts, n, k, &largest),
                rounding = largest / 128; /* to bf16, twice */
    CHECK(isfinite(largest), "row %zu: logits are not finite", i);
    CHECK(by_kernels <= 2 * *worst + rounding,
          "row %zu, temperature %g: a token is %g below the best ones, by launches %g, rounding explains %g",
          i, (double)temperature, (double)by_kernels, (double)*worst, (double)rounding);
    gpt2_close(&model);
}

static void open_small(GPT2 *model, const Ops *ops, int V) {
    enum { T = 64 };
    GPT2Config config = {.max_seq_len = T,
                         .vocab_size = V,
                         .padded_vocab_size = gpt2_pad_vocab(V),
                         .n_layer = 2,
                         .n_head = 2,
                         .n_embd = SMALL_C};
    const GPT2Options options = {.B = 1, .T = T};
    Error err = {0};
    CHECK(gpt2_open(model, ops, &config, &options, &err), "%s", err.text);
    fill_weights(model);
}

/* Of equal logits the lowest id is drawn: a third of the rows is the others', negative, so it is id 0 or V / 3. */
static void test_equal(const Ops *ops, int V) {
    static Tokens text, launches;
    GPT2 model;
    open_small(&model, ops, V);
    float *weights = malloc((size_t)V * SMALL_C * sizeof *weights);
    for (int64_t i = 0; i < (int64_t)V * SMALL_C; i++) {
        const float weight = (float)(i % SMALL_C) / SMALL_C;
        weights[i] = i / SMALL_C < V / 3 ? -weight : weight;
    }
    gpt2_set_weights(&model, weights, tensor_at(&model.tensors[WTE], 0), (int64_t)V * SMALL_C);
    free(weights);
    draw_texts(&model, &text, 1, 10, true, 0);
    draw_texts(&model, &launches, 1, 10, false, 0);
    CHECK(same_texts(&text, &launches, 1), "of equal logits others are drawn than by launches");
    for (int i = 0; i < text.n; i++)
        CHECK(text.ids[i] == 0 || text.ids[i] == V / 3, "of %d equal logits that of id %d is drawn", V,
              text.ids[i]);
    gpt2_close(&model);
}

/* The error of a greedy text. */
static void bad_text(GPT2 *model, bool graph, Error *err) {
    static Tokens text;
    const SampleOptions options = {.n_samples = 1, .n_tokens = 20, .top_p = 1, .graph = graph};
    memset(&text, 0, sizeof text);
    CHECK(!sample(model, NULL, &options, take_id, &text, NULL, err), "logits that are NaN are drawn from");
}
/* Logits that are not finite from a position on are counted and told, as the launches do. of_all: NaN in all; or -inf of one id:
 * its logit is 3.3e38 times a channel of the last norm, -0.5 but for a little, there -1.2. */
static void test_bad(const Ops *ops, int V, bool of_all) {
    enum { POSITION = 5 };
    const float nan = NAN, far = -1e4f, scale = 0.06f, shift = -0.5f, row[SMALL_C] = {3.3e38f};
    GPT2 model;
    Error by_launches = {0}, by_kernels = {0};
    open_small(&model, ops, V);
    const int64_t at = tensor_at(&model.tensors[WPE], 0) + POSITION * SMALL_C;
    if (of_all) {
        gpt2_set_weights(&model, &nan, at, 1);
    } else {
        gpt2_set_weights(&model, &far, at, 1);
        gpt2_set_weights(&model, &scale, tensor_at(&model.tensors[LN_F_W], 0), 1);
        gpt2_set_weights(&model, &shift, tensor_at(&model.tensors[LN_F_B], 0), 1);
        /* The last id may be the one that a text begins with. */
        gpt2_set_weights(&model, row, tensor_at(&model.tensors[WTE], 0) + (int64_t)(V - 2) * SMALL_C,
                         SMALL_C);
    }
    bad_text(&model, false, &by_launches);
    bad_text(&model, true, &by_kernels);
    char n[64];
    snprintf(n, sizeof n, ": %d of the %d logits of token %d ", of_all ? V : 1, V, POSITION + 1);
    CHECK(strstr(by_kernels.text, n) && !strcmp(by_kernels.text, by_launches.text),
          "of %d logits: \"%s\", by launches \"%s\"", V, by_kernels.text, by_launches.text);
    gpt2_close(&model);
}

/* TEST [bits]: a line for the texts of a row. */
int main(int argc, char **argv) {
    Error err = {0};
    op_bits = argc > 1 && !strcmp(argv[1], "bits");
    if (!cuda_available() || !ops_cuda_bf16) {
        SKIP("no CUDA device");
        return check_finish("token");
    }
    if (!CHECK(ops_cuda_bf16->device->open(0, &err), "%s", err.text)) return check_finish("token");
    if (!strstr(ops_cuda_bf16->device->name(), "compute capability 9.0")) {
        SKIP("the card is not of Hopper's kind");
        return check_finish("token");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float worst = 0;
        test_text(ops_cuda_bf16, i, 1, &worst);
        test_text(ops_cuda_bf16, i, 0, &worst);
    }
    for (int i = 0; i < 2; i++) {
        const int V = i ? 50257 : 61;
        test_equal(ops_cuda_bf16, V);
        test_bad(ops_cuda_bf16, V, false);
        test_bad(ops_cuda_bf16, V, true);
    }
    return check_finish("token");
}
