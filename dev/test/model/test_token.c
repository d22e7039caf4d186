/* A step of decoding as one kernel. Its sums have another order than those of the launches that it takes the place of, so
 * texts part where two logits are as good as equal: each token is held to the logits of the training forward pass, which
 * has no cache. Needs a card of Hopper's kind. */
#include <math.h>
#include "dev/test/sampled_model.h"
#include "dev/test/logits.h"

/* one_kernel: whether the kernel serves it. */
static const struct {
    GPT2Config config;
    int n_tokens;
    bool one_kernel;
} rows[] = {
    {{.max_seq_len = 64, .vocab_size = 61, .n_layer = 1, .n_head = 1, .n_embd = 64},                   60,  true },
    {{.max_seq_len = 64, .vocab_size = 61, .n_layer = 2, .n_head = 2, .n_embd = 128},                  200, true }, /* slides */
    {{.max_seq_len = 600, .vocab_size = 300, .n_layer = 2, .n_head = 3, .n_embd = 192},
     590,                                                                                                   true }, /* five pieces */
    {{.max_seq_len = 400, .vocab_size = 300, .n_layer = 2, .n_head = 2, .n_embd = 128, .window = 150},
     390,                                                                                                   true },
    {{.max_seq_len = 400,
      .vocab_size = 300,
      .n_layer = 2,
      .n_head = 2,
      .n_embd = 128,
      .documents = true,
      .end_of_text = 299},
     390,                                                                                                   true },
    {{.max_seq_len = 200, .vocab_size = 50257, .n_layer = 2, .n_head = 12, .n_embd = 768},             190, true },
    {{.max_seq_len = 1024, .vocab_size = 4000, .n_layer = 1, .n_head = 15, .n_embd = 960},             300, true },
    {{.max_seq_len = 1024, .vocab_size = 500, .n_layer = 3, .n_head = 5, .n_embd = 320},
     1023,                                                                                                  true }, /* all keys */
    {{.max_seq_len = 1024, .vocab_size = 1000, .n_layer = 1, .n_head = 25, .n_embd = 1600},
     800,                                                                                                   false}, /* more heads than clusters */
    {{.max_seq_len = 64, .vocab_size = 61, .n_layer = 1, .n_head = 2, .n_embd = 64},
     60,                                                                                                    false}, /* head size 32 */
    {{.max_seq_len = 1200, .vocab_size = 61, .n_layer = 1, .n_head = 1, .n_embd = 64},
     1050,                                                                                                  false}, /* nine pieces */
};

enum { TOP_K = 5 };

static void draw_text(GPT2 *model, Tokens *tokens, int n, bool graph, float temperature) {
    const SampleOptions options = {.n_samples = 1,
                                   .n_tokens = n,
                                   .temperature = temperature,
                                   .top_k = TOP_K,
                                   .top_p = 1,
                                   .seed = 4,
                                   .graph = graph};
    Error err = {0};
    *tokens = (Tokens){0};
    CHECK(sample(model, NULL, &options, take_id, tokens, NULL, &err), "%s", err.text);
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

static void test_text(const Ops *ops, size_t i, float temperature) {
    GPT2Config config = rows[i].config;
    const GPT2Options options = {.B = 1, .T = config.max_seq_len};
    const int k = temperature > 0 ? TOP_K : 1;
    Tokens one, again, many;
    GPT2 model;
    Error err = {0};
    float largest = 0;
    config.padded_vocab_size = gpt2_pad_vocab(config.vocab_size);
    if (!CHECK(gpt2_open(&model, ops, &config, &options, &err), "%s", err.text)) return;
    fill_weights(&model);
    draw_text(&model, &many, rows[i].n_tokens, false, temperature);
    draw_text(&model, &one, rows[i].n_tokens, true, temperature);
    const char *kernel = ops->kernel_ran();
    const bool by_one = kernel && !strcmp(kernel, "token_kernel");
    CHECK(by_one == rows[i].one_kernel, "row %zu: the last kernel was %s", i, kernel ? kernel : "none");
    CHECK(one.n == rows[i].n_tokens && many.n == rows[i].n_tokens, "row %zu: %d and %d of %d tokens", i,
          one.n, many.n, rows[i].n_tokens);
    draw_text(&model, &again, rows[i].n_tokens, true, temperature);
    CHECK(one.n == again.n && !memcmp(one.ids, again.ids, sizeof one.ids),
          "row %zu: another text the second time", i);
    const float by_launches = worst_of_text(&model, &many, k, &largest),
                by_kernel = worst_of_text(&model, &one, k, &largest),
                rounding = largest / 128; /* to bf16, twice */
    CHECK(isfinite(largest), "row %zu: logits are not finite", i);
    CHECK(by_kernel <= 2 * by_launches + rounding,
          "row %zu, temperature %g: a token is %g below the best ones, by launches %g, rounding explains %g",
          i, (double)temperature, (double)by_kernel, (double)by_launches, (double)rounding);
    gpt2_close(&model);
}

int main(void) {
    Error err = {0};
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
        test_text(ops_cuda_bf16, i, 0);
        test_text(ops_cuda_bf16, i, 1);
    }
    return check_finish("token");
}
