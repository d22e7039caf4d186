/* Sampling: the draw of one token, and the cache against the whole forward pass. */
#include <stdlib.h>
#include <string.h>
#include "llmc/base/random.h"
#include "llmc/model/sampler.h"
#include "dev/test/check.h"

/* ---- one token ---- */

/* SplitMix64 from 1234567, as its authors' program gives it; of each number the upper 53 bits. */
static void test_generator(void) {
    const uint64_t published[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u};
    uint64_t state = 1234567;
    for (int i = 0; i < 3; i++) {
        const double number = random_uniform(&state), expected = (double)(published[i] >> 11) * 0x1p-53;
        CHECK(number == expected, "number %d: %.17g, expected %.17g", i, number, expected);
    }
}

static void test_greedy(void) {
    const float logits[] = {1, 5, -3, 5, 2};
    uint64_t rng = 7;
    CHECK(sample_token(logits, 5, 0, 0, &rng) == 1, "the largest, the lowest id among equals");
    CHECK(sample_token(logits, 5, 1, 1, &rng) == 1, "top-k 1");
    CHECK(sample_token(logits, 5, NAN, 0, &rng) == 1 && sample_token(logits, 5, -1, 0, &rng) == 1,
          "no temperature");
    CHECK(rng == 7, "greedy draws no random number");
    CHECK(sample_token(logits, 1, 1, 0, &rng) == 0, "a vocabulary of one");
}

static void test_not_finite(void) {
    uint64_t rng = 1;
    const float some[] = {NAN, 1, -INFINITY, NAN, 2, NAN}, none[] = {NAN, NAN, NAN},
                low[] = {-INFINITY, -INFINITY, NAN}, high[] = {1, INFINITY, NAN, INFINITY};
    int drawn[6] = {0};
    for (int i = 0; i < 2000; i++) {
        drawn[sample_token(some, 6, 1, 0, &rng)]++;
        drawn[sample_token(some, 6, 1, 3, &rng)]++;
        drawn[sample_token(some, 6, 1e30f, 5, &rng)]++;
        drawn[sample_token(some, 6, INFINITY, 0, &rng)]++;
    }
    CHECK(drawn[1] && drawn[4] && drawn[1] + drawn[4] == 8000, "only finite logits are drawn");
    CHECK(sample_token(some, 6, 0, 0, &rng) == 4, "greedy passes NaN by");
    CHECK(sample_token(some, 6, 1e-38f, 0, &rng) == 4, "a tiny temperature is greedy");
    for (int k = 0; k < 5; k++) {
        int a = sample_token(none, 3, 1, k, &rng), b = sample_token(low, 3, 1, k, &rng);
        CHECK(a >= 0 && a < 3 && b >= 0 && b < 3, "nothing to draw from: still an id, %d %d", a, b);
        CHECK(sample_token(high, 4, 1, k, &rng) == 1, "+inf is drawn");
    }
}

/* Draws many and compares each id's share with softmax over the ids in `kept`, within 5 standard deviations. */
static void check_distribution(const float *logits, int V, float temperature, int top_k, const bool *kept) {
    enum { DRAWS = 200000 };
    int drawn[8] = {0};
    double p[8], sum = 0;
    uint64_t rng = random_stream(11, (uint64_t)top_k);
    for (int i = 0; i < DRAWS; i++) drawn[sample_token(logits, V, temperature, top_k, &rng)]++;
    for (int i = 0; i < V; i++) sum += p[i] = kept[i] ? exp((double)logits[i] / temperature) : 0;
    for (int i = 0; i < V; i++) {
        double expected = DRAWS * p[i] / sum, deviation = sqrt(expected * (1 - p[i] / sum));
        CHECK(fabs(drawn[i] - expected) <= 5 * deviation,
              "id %d at temperature %g, top-k %d: %d, expected %.0f", i, (double)temperature, top_k, drawn[i],
              expected);
    }
}

static void test_distribution(void) {
    const float logits[6] = {0.5f, 2, -1, 2, 1, 0.25f};
    const bool all[6] = {1, 1, 1, 1, 1, 1}, three[6] = {0, 1, 0, 1, 1, 0}, five[6] = {1, 1, 0, 1, 1, 1};
    const float temperatures[] = {0.5f, 1, 2};
    for (int i = 0; i < 3; i++) {
        check_distribution(logits, 6, temperatures[i], 0, all);
        check_distribution(logits, 6, temperatures[i], 6, all);
        check_distribution(logits, 6, temperatures[i], 100, all);
        check_distribution(logits, 6, temperatures[i], 3, three);
        check_distribution(logits, 6, temperatures[i], 5, five);
    }
    const float equal[6] = {1, 1, 1, 1, 1, 1};
    const bool first[6] = {1, 1, 0, 0, 0, 0};
    check_distribution(equal, 6, 1, 2, first); /* exactly k stay, the lowest ids among equals */
}

/* top-k of a real vocabulary against a sort. */
static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void test_top_k(void) {
    enum { V = 50257 };
    float *logits = malloc(V * sizeof *logits), *sorted = malloc(V * sizeof *sorted);
    uint64_t rng = 5;
    for (int i = 0; i < V; i++)
        logits[i] = (float)(random_uniform(&rng) - 0.5) * 0.01f; /* of both signs, close */
    memcpy(sorted, logits, V * sizeof *logits);
    qsort(sorted, V, sizeof *sorted, descending);
    const int ks[] = {2, 10, 200, 50256};
    for (int i = 0; i < 4; i++) {
        bool inside = true;
        for (int draw = 0; draw < 50; draw++)
            inside = inside && logits[sample_token(logits, V, 1, ks[i], &rng)] >= sorted[ks[i] - 1];
        CHECK(inside, "top-k %d", ks[i]);
    }
    free(logits);
    free(sorted);
}

/* ---- the model ---- */

static Ops ops; /* ops_cpu, with its allocations counted and, past `limit`, refused */
static Device device;
static int allocated, limit = 1 << 20;

static void *counted_alloc(size_t bytes) {
    if (allocated >= limit) return NULL;
    allocated++;
    return device_cpu.alloc(bytes);
}

static void counted_free(void *p) {
    allocated -= p != NULL;
    device_cpu.free(p);
}

enum { T = 160, MAX_TOKENS = 600 }; /* more keys than the CPU decodes in one piece */

/* Weights so large that the next token depends on all that stands before it. Embeddings and biases are small,
 * else the tied head repeats one token for ever. */
static void fill_weights(GPT2 *model) {
    float *weights = calloc((size_t)model->n_elements, sizeof *weights);
    uint64_t rng = 3;
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *t = &model->tensors[id];
        const bool norm = id == LN_1_W || id == LN_2_W || id == LN_F_W, embedding = id == WTE || id == WPE;
        const float scale = t->rank == 2 && !embedding ? 1 : 0.1f;
        for (int layer = 0; layer < t->n_layers; layer++)
            for (int64_t i = 0; i < t->layer_elems; i++)
                weights[tensor_at(t, layer) + i] =
                    (norm ? 1.0f : 0.0f) + scale * (float)(random_uniform(&rng) - 0.5);
    }
    gpt2_set_weights(model, weights, 0, model->n_elements);
    free(weights);
}

static bool open_model(GPT2 *model, int V) {
    const GPT2Config config = {.max_seq_len = T,
                               .vocab_size = V,
                               .padded_vocab_size = gpt2_pad_vocab(V),
                               .n_layer = 2,
                               .n_head = 2,
                               .n_embd = 32};
    const GPT2Options options = {.B = 1, .T = T, .training = false};
    Error err = {0};
    if (!CHECK(gpt2_open(model, &ops, &config, &options, &err), "%s", err.text)) return false;
    fill_weights(model);
    return true;
}

/* The tokens of a sample, read from its text "12 7 60 ". */
typedef struct Tokens {
    int n, ids[MAX_TOKENS];
} Tokens;

static void take_id(const char *bytes, size_t n, void *user) {
    Tokens *tokens = user;
    char text[16] = "";
    memcpy(text, bytes, n < 15 ? n : 15);
    if (tokens->n < MAX_TOKENS) tokens->ids[tokens->n++] = atoi(text);
}

static Tokens draw_ids(GPT2 *model, int n, float temperature, int top_k, uint64_t seed) {
    Tokens tokens = {0};
    Error err = {0};
    const SampleOptions options = {.n_tokens = n, .temperature = temperature, .top_k = top_k, .seed = seed};
    CHECK(sample(model, NULL, &options, take_id, &tokens, &err), "%s", err.text);
    CHECK(tokens.n == n, "%d tokens asked, %d drawn", n, tokens.n);
    return tokens;
}

/* Greedy tokens with no cache: the whole window through the model's own forward pass for each. */
static void greedy_without_cache(GPT2 *model, int32_t *window, int n, int *ids, int n_ids) {
    const int V = model->config.vocab_size;
    float *logits = malloc((size_t)V * sizeof *logits);
    uint64_t rng = 0;
    for (int i = 0; i < n_ids; i++) {
        gpt2_eval(model, window, window, 1, n);
        gpt2_logits(model, logits, n - 1, 1);
        ids[i] = window[n++] = sample_token(logits, V, 0, 0, &rng);
        if (n > T) {
            memmove(window, window + n - T / 2, T / 2 * sizeof *window);
            n = T / 2;
        }
    }
    free(logits);
}

static void test_cache(GPT2 *model) {
    enum { N = 500 }; /* the window slides 5 times */
    int32_t window[T + 1] = {0};
    int expected[N], seen[256] = {0}, different = 0, first_wrong = -1;
    Tokens tokens = draw_ids(model, N, 0, 0, 1);
    greedy_without_cache(model, window, 1, expected, N);
    for (int i = N - 1; i >= 0; i--)
        if (tokens.ids[i] != expected[i]) first_wrong = i;
    CHECK(first_wrong < 0, "cached and recomputed greedy text part at token %d", first_wrong);
    for (int i = 0; i < N; i++) different += !seen[expected[i]]++;
    CHECK(different > 10, "the text is no loop over %d tokens, so it shows a wrong cache", different);
    Tokens top_1 = draw_ids(model, N, 1, 1, 2);
    CHECK(memcmp(top_1.ids, tokens.ids, sizeof expected) == 0, "top-k 1 is greedy");
}

static void test_seed(GPT2 *model) {
    Tokens a = draw_ids(model, 100, 1, 0, 5), b = draw_ids(model, 100, 1, 0, 5),
           c = draw_ids(model, 100, 1, 0, 6);
    CHECK(memcmp(a.ids, b.ids, sizeof a.ids) == 0, "the same seed gives the same text");
    CHECK(memcmp(a.ids, c.ids, sizeof a.ids) != 0, "another seed gives another");
    Tokens none = draw_ids(model, 0, 1, 0, 5);
    CHECK(none.n == 0, "no tokens asked, none drawn");
    bool inside = true;
    for (int i = 0; i < a.n; i++) inside = inside && a.ids[i] >= 0 && a.ids[i] < model->config.vocab_size;
    CHECK(inside, "no padding of the vocabulary is drawn");
}

/* Sampling in the middle of training leaves what a step keeps on the device as it is. */
static void test_untouched(GPT2 *model) {
    enum { WIDTH = T * 32 };
    int32_t tokens[T] = {1, 2, 3};
    float before[WIDTH], after[WIDTH];
    gpt2_eval(model, tokens, tokens, 1, T);
    ops.device->download(before, gpt2_activation(model, ACT_LN_F, 0), sizeof before);
    draw_ids(model, 50, 1, 0, 1);
    ops.device->download(after, gpt2_activation(model, ACT_LN_F, 0), sizeof after);
    CHECK(memcmp(before, after, sizeof before) == 0, "activations changed");
}

static void test_out_of_memory(GPT2 *model) {
    Tokens tokens = {0};
    Error err = {0};
    const SampleOptions options = {.n_tokens = 5};
    limit = allocated;
    CHECK(!sample(model, NULL, &options, take_id, &tokens, &err), "sampled without memory");
    CHECK(err.exit_code == EXIT_RUN && strstr(err.text, "MiB"), "%s", err.text);
    CHECK(tokens.n == 0, "nothing was drawn");
    limit = 1 << 20;
}

/* ---- text ---- */

typedef struct Text {
    size_t n;
    char bytes[2048];
} Text;

static void take_bytes(const char *bytes, size_t n, void *user) {
    Text *text = user;
    if (text->n + n < sizeof text->bytes) memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
}

/* Behind both prompts stands the same text. */
static void check_same(GPT2 *model, const Tokenizer *tokenizer, const char *a, const char *b,
                       const char *what) {
    const char *prompts[2] = {a, b};
    Text texts[2] = {0};
    Error err = {0};
    for (int i = 0; i < 2; i++) {
        const SampleOptions options = {.prompt = prompts[i], .n_tokens = 40, .temperature = 1, .seed = 9};
        CHECK(sample(model, tokenizer, &options, take_bytes, &texts[i], &err), "%s", err.text);
    }
    CHECK(memcmp(texts[0].bytes + strlen(a), texts[1].bytes + strlen(b), 40) == 0, "%s", what);
}

static void test_text(void) {
    GPT2 model;
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    if (!CHECK(bytes, "%s", err.text) || !open_model(&model, 256)) return;
    char long_prompt[1000];
    for (int i = 0; i < 999; i++) long_prompt[i] = (char)('a' + i * i / 7 % 26);
    long_prompt[sizeof long_prompt - 1] = '\0';
    const char *prompts[] = {NULL, "", "ROMEO:", "caf\xc3", long_prompt};
    for (int i = 0; i < 5; i++) {
        Text text = {0}, again = {0};
        const SampleOptions options = {.prompt = prompts[i], .n_tokens = 80, .temperature = 1, .seed = 9};
        size_t prompt_length = prompts[i] ? strlen(prompts[i]) : 0;
        CHECK(sample(&model, bytes, &options, take_bytes, &text, &err), "%s", err.text);
        CHECK(text.n == prompt_length + 80, "prompt %d: one byte a token after the prompt: %zu", i, text.n);
        CHECK(memcmp(text.bytes, prompts[i] ? prompts[i] : "", prompt_length) == 0, "prompt %d stands first",
              i);
        CHECK(sample(&model, bytes, &options, take_bytes, &again, &err), "%s", err.text);
        CHECK(text.n == again.n && memcmp(text.bytes, again.bytes, text.n) == 0, "prompt %d: the same text",
              i);
    }
    check_same(&model, bytes, long_prompt, long_prompt + 999 - model.config.max_seq_len,
               "of a long prompt the end counts");
    check_same(&model, bytes, "", "\n", "no prompt begins a line");
    const SampleOptions prompted = {.prompt = "x", .n_tokens = 5};
    Text text = {0};
    CHECK(!sample(&model, NULL, &prompted, take_bytes, &text, &err) && strstr(err.text, "--tokenizer"),
          "a prompt needs a tokenizer: %s", err.text);
    gpt2_close(&model);
    if (open_model(&model, 61)) {
        CHECK(!sample(&model, bytes, &prompted, take_bytes, &text, &err) && err.exit_code == EXIT_INPUT &&
                  strstr(err.text, "token 120"),
              "a prompt beyond the vocabulary: %s", err.text);
        CHECK(text.n == 0, "nothing was printed");
        gpt2_close(&model);
    }
    tokenizer_close(bytes);
}

int main(void) {
    GPT2 model;
    Error err = {0};
    test_generator();
    test_greedy();
    test_not_finite();
    test_distribution();
    test_top_k();
    ops = ops_cpu;
    device = device_cpu;
    device.alloc = counted_alloc;
    device.free = counted_free;
    ops.device = &device;
    if (CHECK(ops.device->open(0, &err), "%s", err.text) && open_model(&model, 61)) {
        test_cache(&model);
        model.config.window = 5; /* shorter than the context, so that the cache begins later and later */
        test_cache(&model);
        model.config.window = 0;
        test_seed(&model);
        test_untouched(&model);
        test_out_of_memory(&model);
        gpt2_close(&model);
        test_text();
        CHECK(allocated == 0, "%d device allocations were not released", allocated);
    }
    return check_finish("sampler");
}
