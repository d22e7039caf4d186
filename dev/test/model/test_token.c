/* A step of decoding as one kernel: the same text as by the launches that it takes the place of. Needs a card of
 * Hopper's kind. */
#include "dev/test/sampled_model.h"

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
    {{.max_seq_len = 1024, .vocab_size = 1000, .n_layer = 1, .n_head = 25, .n_embd = 1600},
     800,                                                                                                   false}, /* more heads than clusters */
    {{.max_seq_len = 64, .vocab_size = 61, .n_layer = 1, .n_head = 2, .n_embd = 64},
     60,                                                                                                    false}, /* head size 32 */
    {{.max_seq_len = 1200, .vocab_size = 61, .n_layer = 1, .n_head = 1, .n_embd = 64},
     1050,                                                                                                  false}, /* nine pieces */
};

static void draw_text(GPT2 *model, Tokens *tokens, int n, bool graph, float temperature) {
    const SampleOptions options = {.n_samples = 1,
                                   .n_tokens = n,
                                   .temperature = temperature,
                                   .top_k = 5,
                                   .top_p = 1,
                                   .seed = 4,
                                   .graph = graph};
    Error err = {0};
    *tokens = (Tokens){0};
    CHECK(sample(model, NULL, &options, take_id, tokens, NULL, &err), "%s", err.text);
}

static void test_text(const Ops *ops, size_t i, float temperature) {
    GPT2Config config = rows[i].config;
    const GPT2Options options = {.B = 1, .T = 1};
    Tokens one, many;
    GPT2 model;
    Error err = {0};
    config.padded_vocab_size = gpt2_pad_vocab(config.vocab_size);
    if (!CHECK(gpt2_open(&model, ops, &config, &options, &err), "%s", err.text)) return;
    fill_weights(&model);
    draw_text(&model, &many, rows[i].n_tokens, false, temperature);
    draw_text(&model, &one, rows[i].n_tokens, true, temperature);
    const char *kernel = ops->kernel_ran();
    const bool by_one = kernel && !strcmp(kernel, "token_kernel");
    CHECK(by_one == rows[i].one_kernel || many.n < 3, "row %zu: the last kernel was %s", i,
          kernel ? kernel : "none");
    int at = 0;
    while (at < many.n && one.ids[at] == many.ids[at]) at++;
    CHECK(one.n == many.n && at == many.n, "row %zu, temperature %g: %d and %d tokens, the texts part at %d",
          i, (double)temperature, one.n, many.n, at);
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
