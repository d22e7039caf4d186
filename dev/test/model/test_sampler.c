/* Sampling: the cache against the whole forward pass, samples beside each other, where a text ends. The draw of a token:
 * test_ops_draw.c. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "dev/test/sampled_model.h"
#include "dev/test/logits.h"
#include "dev/test/small_vocabulary.h"

/* ---- random numbers ---- */

/* SplitMix64 from 1234567, as its authors' program gives it; of each number the upper 53 bits. */
static void test_generator(void) {
    const uint64_t published[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u};
    uint64_t state = 1234567;
    for (int i = 0; i < 3; i++) {
        const double number = random_uniform(&state), expected = (double)(published[i] >> 11) * 0x1p-53;
        CHECK(number == expected, "number %d: %.17g, expected %.17g", i, number, expected);
    }
}

/* ---- the model ---- */

static Ops ops; /* ops_cpu, with its allocations counted and, past `limit`, refused */
static Device device;
static int allocated, limit = 1 << 20;
static size_t last_bytes;

static void *counted_alloc(size_t bytes) {
    last_bytes = bytes;
    if (allocated >= limit) return NULL;
    allocated++;
    return device_cpu.alloc(bytes);
}

static void counted_free(void *p) {
    allocated -= p != NULL;
    device_cpu.free(p);
}

enum { T = 160 }; /* more keys than the CPU decodes in one piece */

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

/* Of several samples beside each other. */
static void draw_samples(GPT2 *model, Tokens *tokens, int n_samples, int n, float temperature, int top_k,
                         uint64_t seed) {
    Error err = {0};
    const SampleOptions options = {.n_samples = n_samples,
                                   .n_tokens = n,
                                   .temperature = temperature,
                                   .top_k = top_k,
                                   .top_p = 1,
                                   .seed = seed};
    memset(tokens, 0, (size_t)n_samples * sizeof *tokens);
    CHECK(sample(model, NULL, &options, take_id, tokens, NULL, &err), "%s", err.text);
    for (int i = 0; i < n_samples; i++) CHECK(tokens[i].n == n, "%d tokens asked, %d drawn", n, tokens[i].n);
}

/* What is planned is what is allocated: few samples, many, and a window that slides. */
static void test_memory(GPT2 *model) {
    static const int n_samples[] = {1, 5, 3}, n_tokens[] = {20, 40, T + 30};
    for (int i = 0; i < 3; i++) {
        const SampleOptions options = {.n_samples = n_samples[i], .n_tokens = n_tokens[i]};
        Tokens tokens[5];
        draw_samples(model, tokens, n_samples[i], n_tokens[i], 0, 0, 1);
        const size_t planned = sample_bytes(&ops, &model->config, &options, 1);
        CHECK(last_bytes == planned, "%d samples: %zu bytes planned, %zu asked", n_samples[i], planned,
              last_bytes);
    }
}

static Tokens draw_ids(GPT2 *model, int n, float temperature, int top_k, uint64_t seed) {
    Tokens tokens;
    draw_samples(model, &tokens, 1, n, temperature, top_k, seed);
    return tokens;
}

static int largest(const float *logits, int V) {
    int best = 0;
    for (int i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* A window of n tokens and one more; what is longer than the context keeps its last half. The new n. */
static int slide_on(int32_t *window, int n, int id) {
    window[n++] = id;
    if (n <= T) return n;
    memmove(window, window + n - T / 2, T / 2 * sizeof *window);
    return T / 2;
}

/* Greedy tokens with no cache: the whole window through the model's own forward pass for each. */
static void greedy_without_cache(GPT2 *model, int32_t *window, int n, int *ids, int n_ids) {
    const int V = model->config.vocab_size;
    float *logits = malloc((size_t)V * sizeof *logits);
    for (int i = 0; i < n_ids; i++) {
        gpt2_eval(model, window, window, 1, n);
        logits_of(model, logits, n - 1, 1);
        ids[i] = largest(logits, V);
        n = slide_on(window, n, ids[i]);
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

/* Sample i is the same whatever stands beside it, past the groups that are decoded together and past the context; and
 * no two are alike. */
static void test_beside(GPT2 *model) {
    enum { N = 70, LENGTH = T + 60 };
    Tokens *all = malloc(N * sizeof *all), *few = malloc(3 * sizeof *few);
    draw_samples(model, all, N, LENGTH, 1, 20, 5);
    draw_samples(model, few, 3, LENGTH, 1, 20, 5);
    CHECK(memcmp(all, few, 3 * sizeof *few) == 0, "three samples are not the first of %d", N);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++)
            CHECK(memcmp(all[i].ids, all[j].ids, sizeof all[i].ids) != 0, "samples %d and %d are alike", i,
                  j);
    free(all);
    free(few);
}

/* Each sample goes on from its own text, past the context as well. */
static void test_own_text(GPT2 *model) {
    enum { N = 3, LENGTH = T + 60, TOP = 3 };
    const int V = model->config.vocab_size;
    Tokens *samples = malloc(N * sizeof *samples);
    float *logits = malloc((size_t)V * sizeof *logits);
    draw_samples(model, samples, N, LENGTH, 1, TOP, 5);
    for (int b = 0; b < N; b++) {
        int32_t window[T + 1] = {0};
        int n = 1, strange = 0;
        for (int i = 0; i < LENGTH; i++) {
            const int id = samples[b].ids[i];
            int larger = 0;
            gpt2_eval(model, window, window, 1, n);
            logits_of(model, logits, n - 1, 1);
            for (int v = 0; v < V; v++) larger += logits[v] > logits[id] + 1e-4f;
            strange += larger >= TOP;
            n = slide_on(window, n, id);
        }
        CHECK(strange == 0, "%d tokens of sample %d are not of the %d likeliest behind its text", strange, b,
              TOP);
    }
    free(logits);
    free(samples);
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
    const SampleOptions options = {.n_samples = 1, .n_tokens = 5, .top_p = 1};
    limit = allocated;
    CHECK(!sample(model, NULL, &options, take_id, &tokens, NULL, &err), "sampled without memory");
    CHECK(err.exit_code == EXIT_RUN && strstr(err.text, "MiB"), "%s", err.text);
    CHECK(tokens.n == 0, "nothing was drawn");
    limit = 1 << 20;
}

/* Bytes that RLIMIT_DATA counts; 0: the system does not say. */
static size_t data_bytes(void) {
    char line[128];
    size_t kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "VmData: %zu", &kilobytes) != 1) continue;
    if (file) fclose(file);
    return kilobytes * 1024;
}

/* The host's memory runs out, too, and training goes on: 64 windows of a long context are 256 MB, of which there are 64. */
static void test_no_host_memory(void) {
#ifndef __SANITIZE_ADDRESS__ /* which needs more memory than a limit leaves it */
    const GPT2Config config = {.max_seq_len = 1 << 20,
                               .vocab_size = 61,
                               .padded_vocab_size = 128,
                               .n_layer = 1,
                               .n_head = 1,
                               .n_embd = 8};
    const GPT2Options options = {.B = 1, .T = 8, .training = false};
    const SampleOptions samples = {.n_samples = 64, .n_tokens = 2, .top_p = 1};
    static Tokens tokens[64];
    struct rlimit before, low;
    GPT2 model;
    Error err = {0};
    if (!REQUIRE(gpt2_open(&model, &ops, &config, &options, &err), "%s", err.text)) return;
    const int held = allocated;
    getrlimit(RLIMIT_DATA, &before);
    low = before;
    low.rlim_cur = data_bytes() + ((rlim_t)64 << 20);
    setrlimit(RLIMIT_DATA, &low);
    const bool ok = sample(&model, NULL, &samples, take_id, tokens, NULL, &err);
    setrlimit(RLIMIT_DATA, &before);
    CHECK(!ok &&
              strcmp(err.text, "sampling: out of memory: 1048576 positions of 64 samples on the host") == 0,
          "windows without memory: '%s'", err.text);
    CHECK(allocated == held, "%d device allocations were not released", allocated - held);
    gpt2_close(&model);
#endif
}

/* ---- text ---- */

typedef struct Text {
    size_t n;
    int n_ends;
    char bytes[2048];
} Text;

static void take_bytes(int sample, const char *bytes, size_t n, void *user) {
    Text *text = (Text *)user + sample;
    text->n_ends += n == 0;
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
        const SampleOptions options = {
            .prompt = prompts[i], .n_samples = 1, .n_tokens = 40, .temperature = 1, .top_p = 1, .seed = 9};
        CHECK(sample(model, tokenizer, &options, take_bytes, &texts[i], NULL, &err), "%s", err.text);
    }
    CHECK(memcmp(texts[0].bytes + strlen(a), texts[1].bytes + strlen(b), 40) == 0, "%s", what);
}

/* A text without the prompt, and what it took. */
static SampleRates draw_text_of(GPT2 *model, const Tokenizer *tokenizer, Text *texts, int n_samples,
                                int top_k, const char *stop) {
    Error err = {0};
    SampleRates rates;
    const SampleOptions options = {.prompt = "a b",
                                   .text_alone = true,
                                   .n_samples = n_samples,
                                   .n_tokens = 120,
                                   .temperature = 1,
                                   .top_k = top_k,
                                   .top_p = 1,
                                   .seed = 9,
                                   .stop = stop};
    memset(texts, 0, (size_t)n_samples * sizeof *texts);
    CHECK(sample(model, tokenizer, &options, take_bytes, texts, &rates, &err), "%s", err.text);
    for (int i = 0; i < n_samples; i++)
        CHECK(texts[i].n_ends == 1, "sample %d ended %d times", i, texts[i].n_ends);
    return rates;
}

static SampleRates draw_text(GPT2 *model, const Tokenizer *tokenizer, Text *texts, int n_samples,
                             const char *stop) {
    return draw_text_of(model, tokenizer, texts, n_samples, 0, stop);
}

/* Every piece of a text as the stop text, each longer than a token: the text ends before the first place of it. And one
 * that comes at no place, and one that the text's end leaves half done. */
static void test_stop(GPT2 *model, const Tokenizer *bytes) {
    Text whole[3], cut[3];
    SampleRates rates = draw_text(model, bytes, whole, 3, NULL);
    CHECK(rates.n_tokens == 360 && rates.n_steps == 119 && rates.step_bytes > 0 && rates.first_seconds > 0,
          "%lld tokens, %lld steps", (long long)rates.n_tokens, (long long)rates.n_steps);
    for (size_t at = 0; at < 110; at += 9)
        for (size_t length = 1; length <= 4; length += 1) {
            char stop[8] = "";
            memcpy(stop, whole[0].bytes + at, length);
            if (strlen(stop) < length) continue;
            draw_text(model, bytes, cut, 3, stop);
            for (int i = 0; i < 3; i++) {
                const char *found = memmem(whole[i].bytes, whole[i].n, stop, length);
                const size_t expected = found ? (size_t)(found - whole[i].bytes) : whole[i].n;
                CHECK(cut[i].n == expected && memcmp(cut[i].bytes, whole[i].bytes, expected) == 0,
                      "sample %d, stop at %zu, %zu bytes: %zu of %zu bytes came", i, at, length, cut[i].n,
                      expected);
            }
        }
    char last[4] = {whole[0].bytes[118], whole[0].bytes[119], 'x', 0};
    draw_text(model, bytes, cut, 1, last);
    CHECK(cut[0].n == 120 || memmem(whole[0].bytes, 120, last, 3), "the half of a stop text is text: %zu",
          cut[0].n);
}

/* One of which the text has a beginning just before it: "ab" in "aab". The most probable two tokens give some. */
static void test_overlapping_stop(GPT2 *model, const Tokenizer *bytes) {
    Text whole, cut;
    int n_tried = 0;
    draw_text_of(model, bytes, &whole, 1, 2, NULL);
    for (size_t i = 0; i + 3 <= whole.n; i++) {
        const char *w = whole.bytes + i, stop[] = {w[1], w[2], '\0'};
        if (strlen(stop) < 2 || w[0] != w[1] || w[1] == w[2]) continue;
        draw_text_of(model, bytes, &cut, 1, 2, stop);
        const char *found = memmem(whole.bytes, whole.n, stop, 2);
        CHECK(cut.n == (size_t)(found - whole.bytes), "a stop text at %zu that begins before: %zu bytes", i,
              cut.n);
        n_tried++;
    }
    CHECK(n_tried > 2, "%d places in the text", n_tried);
}

/* A stop text that a sample is about to make when its end-of-text comes: what had come of it is text. */
static void test_stop_before_end_of_text(GPT2 *model, const Tokenizer *tokenizer, const Text *whole, int n) {
    static Text again[64];
    int n_tried = 0;
    for (int i = 0; i < n && n_tried < 3; i++) {
        if (whole[i].n == 0 || whole[i].n >= 100) continue;
        const char stop[] = {whole[i].bytes[whole[i].n - 1], '\1', '\0'};
        draw_text(model, tokenizer, again, n, stop);
        CHECK(again[i].n == whole[i].n, "sample %d: %zu of %zu bytes came", i, again[i].n, whole[i].n);
        n_tried++;
    }
    CHECK(n_tried > 0, "no sample ended early with a text");
}

/* The tokenizer's end-of-text ends a sample, and is no text. */
static void test_end_of_text(void) {
    enum { N = 60 };
    GPT2 model;
    static Text texts[N];
    char number[16];
    int n_short = 0;
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp")) return;
    Tokenizer *small = open_small();
    snprintf(number, sizeof number, "[%d]", EOT);
    if (open_model(&model, N_TOKENS)) {
        const SampleRates rates = draw_text(&model, small, texts, N, NULL);
        for (int i = 0; i < N; i++) {
            CHECK(!memmem(texts[i].bytes, texts[i].n, number, strlen(number)) &&
                      !memmem(texts[i].bytes, texts[i].n, "<|endoftext|>", 13),
                  "sample %d has an end of text in it", i);
            n_short += texts[i].n < 100;
        }
        CHECK(n_short > 0 && rates.n_tokens < N * 120, "%d samples ended early, %lld tokens", n_short,
              (long long)rates.n_tokens);
        test_stop_before_end_of_text(&model, small, texts, N);
        gpt2_close(&model);
    }
    tokenizer_close(small);
    empty_folder();
    rmdir(folder);
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
        const SampleOptions options = {
            .prompt = prompts[i], .n_samples = 1, .n_tokens = 80, .temperature = 1, .top_p = 1, .seed = 9};
        size_t prompt_length = prompts[i] ? strlen(prompts[i]) : 0;
        CHECK(sample(&model, bytes, &options, take_bytes, &text, NULL, &err), "%s", err.text);
        CHECK(text.n == prompt_length + 80, "prompt %d: one byte a token after the prompt: %zu", i, text.n);
        CHECK(memcmp(text.bytes, prompts[i] ? prompts[i] : "", prompt_length) == 0, "prompt %d stands first",
              i);
        CHECK(sample(&model, bytes, &options, take_bytes, &again, NULL, &err), "%s", err.text);
        CHECK(text.n == again.n && memcmp(text.bytes, again.bytes, text.n) == 0, "prompt %d: the same text",
              i);
    }
    check_same(&model, bytes, long_prompt, long_prompt + 999 - model.config.max_seq_len,
               "of a long prompt the end counts");
    check_same(&model, bytes, "", "\n", "no prompt begins a line");
    test_stop(&model, bytes);
    test_overlapping_stop(&model, bytes);
    const SampleOptions prompted = {.prompt = "x", .n_samples = 1, .n_tokens = 5, .top_p = 1};
    Text text = {0};
    CHECK(!sample(&model, NULL, &prompted, take_bytes, &text, NULL, &err) && strstr(err.text, "--tokenizer"),
          "a prompt needs a tokenizer: %s", err.text);
    gpt2_close(&model);
    if (open_model(&model, 61)) {
        CHECK(!sample(&model, bytes, &prompted, take_bytes, &text, NULL, &err) &&
                  err.exit_code == EXIT_INPUT && strstr(err.text, "token 120"),
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
    ops = ops_cpu;
    device = device_cpu;
    device.alloc = counted_alloc;
    device.free = counted_free;
    ops.device = &device;
    if (CHECK(ops.device->open(0, &err), "%s", err.text) && open_model(&model, 61)) {
        test_memory(&model);
        test_cache(&model);
        model.config.window = 5; /* shorter than the context, so that the cache begins later and later */
        test_cache(&model);
        model.config.window = 0;
        test_seed(&model);
        test_beside(&model);
        test_own_text(&model);
        test_untouched(&model);
        test_out_of_memory(&model);
        gpt2_close(&model);
        test_text();
        test_end_of_text();
        test_no_host_memory();
        CHECK(allocated == 0, "%d device allocations were not released", allocated);
    }
    return check_finish("sampler");
}
