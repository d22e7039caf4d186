/* A context shared out over ranks gives the loss and the gradients of a rank that has it whole: on the CPU, and on a
 * card that all ranks share. With --large GPT-2's 124M at 32,768 tokens on a card, and nothing else. */
#include "dev/test/forked_ranks.h"
#include "dev/test/tiny_model.h"
#include "llmc/base/parallel.h"
#include "llmc/model/sampler.h"

enum { MICRO_STEPS = 2 };

/* 6 heads of 8 channels */
static const GPT2Config small_config = {
    .max_seq_len = 40, .vocab_size = 250, .padded_vocab_size = 256, .n_layer = 2, .n_head = 6, .n_embd = 48};

typedef struct Case {
    const char *what;
    GPT2Config config;
    GPT2Options options;
    const Ops *ops;
    int seconds;
    float *results; /* by rank: loss, loss before the step, gradients */
    int64_t stride; /* floats of a rank */
} Case;

static int32_t *tokens, *targets;

static float weight_value(const Tensor *t, int seed, int64_t i) {
    const float x = tiny_value((uint64_t)seed, i);
    return t->init == INIT_ONE ? 1 + 0.3f * x : t->rank == 2 ? 1.7f * x / sqrtf((float)t->cols) : 0.1f * x;
}

/* Every weight has a part in the loss. */
static void fill(GPT2 *model) {
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++) {
            const Tensor *t = &model->tensors[id];
            const int64_t n = t->layer_elems, end = id == WTE ? model->config.vocab_size * t->cols : n;
            float *values = calloc((size_t)n, sizeof *values);
            if (!values) abort();
            for (int64_t i = 0; i < end; i++) values[i] = weight_value(t, 64 * id + layer, i);
            gpt2_set_weights(model, values, tensor_at(t, layer), n);
            free(values);
        }
}

/* The loss and the gradients of a step of two micro-batches, and the loss before it. */
static void step(const Case *c, Comm *context, float *result) {
    const UpdateArgs update = {.step = 1, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    const int B = c->options.B, T = c->options.T;
    GPT2Options options = c->options;
    GPT2 model;
    Error err = {0};
    options.training = true;
    options.context = context;
    if (!gpt2_open(&model, c->ops, &c->config, &options, &err)) die(&err);
    fill(&model);
    result[1] = gpt2_eval(&model, tokens, targets, B, T);
    gpt2_begin_step(&model, MICRO_STEPS);
    for (int i = 0; i < MICRO_STEPS; i++)
        gpt2_micro_step(&model, tokens + i, targets + i, B, T, 1.0f / MICRO_STEPS);
    c->ops->device->download(result + 2, model.grads, (size_t)model.n_elements * sizeof(float));
    gpt2_update(&model, &update);
    result[0] = gpt2_step_stats(&model).loss;
    gpt2_close(&model);
}

/* Through the host: the ranks' processes share one card. */
static void card_all_to_all(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    const Device *device = ops_cuda_bf16->device;
    const size_t all = (size_t)bytes * (size_t)comm->ranks.n_ranks;
    char *sent = malloc(all), *received = malloc(all);
    if (!sent || !received) abort();
    device->download(sent, in, all);
    forked_all_to_all(comm, stream, received, sent, bytes);
    device->upload(out, received, all);
    free(sent);
    free(received);
}

static void rank_step(Comm *context, void *user) {
    const Case *c = user;
    Error err = {0};
    alarm((unsigned)c->seconds);
    if (!c->ops->device->open(0, &err)) die(&err);
    if (c->ops != &ops_cpu) context->all_to_all = card_all_to_all;
    step(c, context->ranks.n_ranks > 1 ? context : NULL, c->results + context->ranks.rank * c->stride);
}

/* Of K ranks, one after the other in memory that the caller unmaps; the ranks' processes begin anew, as CUDA asks. */
static float *results_of(Case c, const Ops *ops, int K) {
    Tensor tensors[N_TENSORS];
    gpt2_tensors(tensors, &c.config, 1);
    c.ops = ops;
    c.stride = 2 + gpt2_n_elements(tensors);
    c.results = forked_memory((size_t)(K * c.stride) * sizeof(float));
    CHECK(forked_run(K, rank_step, &c), "%s, %s, %d ranks: one failed", ops->name, c.what, K);
    for (int r = 1; r < K; r++)
        for (int64_t i = 0; i < c.stride; i++) c.results[i] += c.results[r * c.stride + i];
    return c.results;
}

/* |a - b| / |b| of a tensor's gradients, by their norms. */
static double distance(const Tensor *t, int layer, const float *a, const float *b) {
    double difference = 0, norm = 1e-30;
    for (int64_t i = 2 + tensor_at(t, layer); i < 2 + tensor_at(t, layer) + t->layer_elems; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference / norm);
}

/* The sums of the ranks' gradients are those of `alone` up to the order of sums, or, where `exact` is given, no more than
 * twice as far from it as those are. */
static void compare(const Case *c, int K, const float *sums, const float *alone, const float *exact) {
    Tensor tensors[N_TENSORS];
    gpt2_tensors(tensors, &c->config, 1);
    double worst = 0;
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < tensors[id].n_layers; layer++) {
            const Tensor *t = &tensors[id];
            const double limit = exact ? 2 * distance(t, layer, alone, exact) + 1e-5 : 1e-5;
            const double off = distance(t, layer, sums, exact ? exact : alone) / limit;
            worst = worse(worst, off);
        }
    const double limit = exact ? 1e-3 : 1e-6;
    CHECK(worst < 1, "%s, %d ranks: gradients are off by %.2g of their limit", c->what, K, worst);
    for (int i = 0; i < 2; i++)
        CHECK(fabs((double)sums[i] - alone[i]) < limit * alone[i], "%s, %d ranks: loss %.8g, alone %.8g (%d)",
              c->what, K, (double)sums[i], (double)alone[i], i);
    CHECK(alone[0] > 3 && alone[0] < 20, "%s: loss %g", c->what, (double)alone[0]);
}

/* fp32 against itself; bf16, by its distance from fp32. */
static void test_step(const Case c, const Ops *ops, const Ops *fp32, int K) {
    Tensor tensors[N_TENSORS];
    gpt2_tensors(tensors, &c.config, 1);
    const size_t bytes = (size_t)(2 + gpt2_n_elements(tensors)) * sizeof(float);
    float *exact = ops == fp32 ? NULL : results_of(c, fp32, 1), *alone = results_of(c, ops, 1),
          *sums = results_of(c, ops, K);
    compare(&c, K, sums, alone, exact);
    if (exact) munmap(exact, bytes);
    munmap(alone, bytes);
    munmap(sums, bytes * (size_t)K);
}

static void test_small(int K, const char *what, int window, GPT2Options options) {
    Case c = {.what = what, .config = small_config, .options = options, .seconds = FORKED_SECONDS};
    c.config.window = window;
    test_step(c, &ops_cpu, &ops_cpu, K);
}

static void test_steps(void) {
    test_small(2, "one sequence", 0, (GPT2Options){.B = 1, .T = 12});
    test_small(6, "a token a rank", 0, (GPT2Options){.B = 1, .T = 6});
    test_small(2, "three sequences", 0, (GPT2Options){.B = 3, .T = 30});
    test_small(3, "odd parts", 0, (GPT2Options){.B = 3, .T = 15});
    test_small(3, "a window", 7, (GPT2Options){.B = 2, .T = 36});
    Case documents = {
        .what = "documents", .config = small_config, .options = {.B = 2, .T = 36},
                .seconds = FORKED_SECONDS
    };
    documents.config.documents = true;
    documents.config.end_of_text = 3;
    test_step(documents, &ops_cpu, &ops_cpu, 3);
    Case blocks = {
        .what = "blocks", .config = small_config, .options = {.B = 1, .T = 210},
                .seconds = FORKED_SECONDS
    };
    blocks.config.max_seq_len = 300;
    blocks.config.sparse = (SparsePattern){1, 0, 1};
    test_step(blocks, &ops_cpu, &ops_cpu, 3);
    test_small(3, "standard", 0, (GPT2Options){.B = 2, .T = 12, .attention = ATTENTION_STANDARD});
    for (int level = RECOMPUTE_GELU; level <= RECOMPUTE_BLOCK; level++) {
        test_small(2, "recompute", 0, (GPT2Options){.B = 1, .T = 12, .recompute = (Recompute)level});
        test_small(3, "recompute", 5, (GPT2Options){.B = 3, .T = 12, .recompute = (Recompute)level});
    }
}

/* ---- dropout ---- */

/* The masks of forward, backward and recomputation are the same ones, whatever is exchanged in between. */
static void test_dropout(int K, GPT2Options options) {
    Case c = {.what = "dropout", .config = small_config, .options = options, .seconds = FORKED_SECONDS};
    float *plain = results_of(c, &ops_cpu, K);
    const size_t bytes = (size_t)c.stride * sizeof(float);
    c.config.dropout = 0.2f;
    float *saved = results_of(c, &ops_cpu, K);
    c.options.recompute = RECOMPUTE_BLOCK;
    float *recomputed = results_of(c, &ops_cpu, K);
    CHECK(memcmp(saved, recomputed, bytes) == 0, "%d ranks: recomputed, other bits", K);
    CHECK(saved[1] == plain[1], "%d ranks: an evaluation drops: loss %g, %g", K, (double)saved[1],
          (double)plain[1]);
    CHECK(saved[0] != plain[0] && fabsf(saved[0] - plain[0]) < 0.5f * plain[0], "%d ranks: loss %g, plain %g",
          K, (double)saved[0], (double)plain[0]);
}

/* A key for each part of a context and each micro-batch; all of them from the micro-batch's number in the step. */
static void test_dropout_keys(void) {
    enum { N_RANKS = 4, K = 2, N = N_RANKS * MICRO_STEPS };
    uint64_t keys[N_RANKS][MICRO_STEPS], of_two[K];
    for (int rank = 0; rank < N_RANKS + K; rank++) {
        const bool two = rank >= N_RANKS; /* ranks of one group, which has all micro-batches */
        const int own = two ? N / K : MICRO_STEPS;
        GPT2Options options = {.B = 1, .T = 12, .training = true, .dropout_seed = 5};
        GPT2Config config = small_config;
        Comm comm = comm_planned(two ? K : N_RANKS), context = comm_planned(K);
        GPT2 model;
        Error err = {0};
        config.dropout = 0.1f;
        comm.ranks.rank = rank % N_RANKS;
        context.ranks.rank = rank % K;
        options.comm = &comm;
        options.context = &context;
        if (!gpt2_open(&model, &ops_cpu, &config, &options, &err)) die(&err);
        gpt2_begin_step(&model, own);
        for (int i = 0; i < own; i++) {
            gpt2_micro_step(&model, tokens, targets, 1, 12, 1);
            if (!two) keys[rank][i] = *model.dropout_key;
            if (two && i == MICRO_STEPS) of_two[rank - N_RANKS] = *model.dropout_key;
        }
        gpt2_close(&model);
    }
    const uint64_t *all = keys[0];
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++) CHECK(all[i] != all[k], "keys %d and %d are the same", k, i);
    for (int part = 0; part < K; part++)
        CHECK(keys[K + part][0] == of_two[part], "part %d: the second group's data drop as other data", part);
}

/* ---- on a card ---- */

static void look_for_card(Comm *comm, void *user) {
    (void)comm;
    *(bool *)user = cuda_available();
}

static bool has_card(void) {
    bool *found = forked_memory(sizeof *found);
    const bool ok = ops_cuda_bf16 && forked_run(1, look_for_card, found) && *found;
    munmap(found, sizeof *found);
    return ok;
}

static void test_card(bool large) {
    const GPT2Config medium = {.max_seq_len = 2048,
                               .vocab_size = 250,
                               .padded_vocab_size = 256,
                               .n_layer = 2,
                               .n_head = 4,
                               .n_embd = 256},
                     gpt2 = {.max_seq_len = 32768,
                             .vocab_size = 50257,
                             .padded_vocab_size = 50304,
                             .n_layer = 12,
                             .n_head = 12,
                             .n_embd = 768};
    if (!has_card()) {
        SKIP("ranks on a card: %s", ops_cuda_bf16 ? "there is none" : "built without CUDA");
        return;
    }
    if (large) {
        const Case c = {
            .what = "32,768 tokens", .config = gpt2, .options = {.B = 1, .T = 32768},
                    .seconds = 500
        };
        test_step(c, ops_cuda_bf16, ops_cuda_fp32, 2);
        return;
    }
    Case c = {
        .what = "a card", .config = medium, .options = {.B = 1, .T = 2048},
                .seconds = FORKED_SECONDS
    };
    test_step(c, ops_cuda_fp32, ops_cuda_fp32, 2);
    test_step(c, ops_cuda_bf16, ops_cuda_fp32, 2);
    c.options = (GPT2Options){.B = 3, .T = 516, .recompute = RECOMPUTE_BLOCK};
    test_step(c, ops_cuda_bf16, ops_cuda_fp32, 4);
}

/* ---- refusals, memory, sampling ---- */

static void refuses(int K, int T, const char *part) {
    GPT2Options options = {.B = 1, .T = T, .training = true};
    Comm context = comm_planned(K);
    GPT2 model;
    Error err = {0};
    options.context = &context;
    CHECK(!gpt2_open(&model, &ops_cpu, &small_config, &options, &err), "%d ranks share %d tokens", K, T);
    CHECK(err.exit_code == EXIT_INPUT && strstr(err.text, part), "'%s' lacks '%s'", err.text, part);
}

static size_t bytes_of(const MemoryPlan *plan, const char *category) {
    size_t bytes = 0;
    for (int i = 0; i < plan->n_rows; i++)
        if (!strcmp(plan->rows[i].category, category)) bytes += plan->rows[i].bytes;
    return bytes;
}

/* The activations of a rank are those of its tokens; no buffer is there for the exchange alone. */
static void test_plan(void) {
    GPT2Options options = {.B = 2, .T = 36, .training = true};
    Comm context = comm_planned(3);
    MemoryPlan whole, part;
    options.context = &context;
    gpt2_memory_plan(&part, &ops_cpu, &small_config, &options);
    options.context = NULL;
    options.T = 12;
    gpt2_memory_plan(&whole, &ops_cpu, &small_config, &options);
    CHECK(part.n_rows == whole.n_rows, "%d rows, of a third of the context %d", part.n_rows, whole.n_rows);
    CHECK(bytes_of(&part, "activations") == bytes_of(&whole, "activations"),
          "%zu bytes, of a third of the context %zu", bytes_of(&part, "activations"),
          bytes_of(&whole, "activations"));
}

static void no_exchange(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    CHECK(false, "sampling exchanges with other ranks");
}

static void append(int sample_number, const char *bytes, size_t n, void *user) {
    (void)sample_number;
    strncat(user, bytes, n);
}

/* One rank samples, and no other takes part. */
static void test_sample(void) {
    char text[2][400] = {"", ""};
    for (int shared = 0; shared < 2; shared++) {
        const SampleOptions options = {
            .n_samples = 1, .n_tokens = 60, .temperature = 1, .top_p = 1, .seed = 3};
        GPT2Options model_options = {.B = 1, .T = 12};
        Comm context = comm_planned(2);
        GPT2 model;
        Error err = {0};
        context.ranks.rank = 1;
        context.all_to_all = no_exchange;
        if (shared) model_options.context = &context;
        if (!gpt2_open(&model, &ops_cpu, &small_config, &model_options, &err)) die(&err);
        fill(&model);
        CHECK(sample(&model, NULL, &options, append, text[shared], NULL, &err), "%s", err.text);
        gpt2_close(&model);
    }
    CHECK(text[0][0] && !strcmp(text[0], text[1]), "'%s', alone '%s'", text[1], text[0]);
}

int main(int argc, char **argv) {
    enum { TOKENS = 32768 + MICRO_STEPS };
    const bool large = argc > 1 && !strcmp(argv[1], "--large");
    Error err = {0};
    cpu_set_thread_count(1);
    tokens = malloc(TOKENS * sizeof *tokens);
    targets = malloc(TOKENS * sizeof *targets);
    for (int64_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(i * i * 7 % 250), targets[i] = (int32_t)((i * 5 + 2) % 250);
    test_card(large);
    if (large) return check_finish("context");
    test_steps();
    test_dropout(2, (GPT2Options){.B = 3, .T = 12, .dropout_seed = 5});
    test_dropout(3, (GPT2Options){.B = 1, .T = 12, .dropout_seed = 5, .attention = ATTENTION_STANDARD});
    if (!ops_cpu.device->open(0, &err)) die(&err);
    refuses(4, 12, "--context-gpus 4 does not divide the model's 6 heads");
    refuses(2, 13, "--context-gpus 2 does not divide --seq 13");
    test_dropout_keys();
    test_plan();
    test_sample();
    return check_finish("context");
}
