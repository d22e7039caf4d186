/* A context shared out over ranks gives the loss and the gradients of a rank that has it whole. */
#include "dev/test/forked_ranks.h"
#include "dev/test/tiny_model.h"
#include "llmc/cpu/parallel.h"
#include "llmc/model/sampler.h"

enum { MAX_TOKENS = 256, MICRO_STEPS = 2 };

/* 6 heads of 8 channels */
static GPT2Config config = {
    .max_seq_len = 40, .vocab_size = 250, .padded_vocab_size = 256, .n_layer = 2, .n_head = 6, .n_embd = 48};
static int32_t tokens[MAX_TOKENS], targets[MAX_TOKENS];

/* What a rank leaves for the parent. */
typedef struct Result {
    float loss, eval;
    float grads[1 << 17];
} Result;

typedef struct Case {
    const char *what;
    GPT2Options options;
    int window;
    Result *results; /* by rank */
} Case;

static float weight_value(int64_t i) {
    return 0.3f * tiny_value(7, i);
}

static void fill(GPT2 *model) {
    TinyPiece pieces[4 + 2 * 12];
    const int n = tiny_pieces(model, pieces);
    for (const TinyPiece *p = pieces; p < pieces + n; p++) {
        float *values = malloc((size_t)p->n * sizeof *values);
        for (int64_t i = 0; i < p->n; i++) values[i] = i < p->padding ? weight_value(p->first + i) : 0;
        gpt2_set_weights(model, values, p->at, p->n);
        free(values);
    }
}

/* The loss and the gradients of a step of two micro-batches, and the loss before it. */
static void step(const Case *c, Comm *context, Result *result) {
    const UpdateArgs update = {.step = 1, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    const int B = c->options.B, T = c->options.T;
    GPT2Options options = c->options;
    GPT2 model;
    Error err = {0};
    config.window = c->window;
    options.training = true;
    options.context = context;
    if (!gpt2_open(&model, &ops_cpu, &config, &options, &err)) die(&err);
    fill(&model);
    result->eval = gpt2_eval(&model, tokens, targets, B, T);
    gpt2_begin_step(&model, MICRO_STEPS);
    for (int i = 0; i < MICRO_STEPS; i++)
        gpt2_micro_step(&model, tokens + i, targets + i, B, T, 1.0f / MICRO_STEPS);
    REQUIRE((size_t)model.n_elements <= sizeof result->grads / sizeof *result->grads, "a larger model");
    memcpy(result->grads, model.grads, (size_t)model.n_elements * sizeof(float));
    gpt2_update(&model, &update);
    result->loss = gpt2_step_stats(&model).loss;
    gpt2_close(&model);
}

static void rank_step(Comm *context, void *user) {
    const Case *c = user;
    step(c, context, &c->results[context->ranks.rank]);
}

/* How far the ranks' gradients of a tensor, added up, are from those of one, of its largest. */
static double error_of(const TinyPiece *p, const Result *alone, const Result *ranks, int K) {
    double worst = 0, largest = 1e-30;
    for (int64_t i = p->at; i < p->at + p->n; i++) {
        double sum = 0;
        for (int r = 0; r < K; r++) sum += ranks[r].grads[i];
        worst = worse(worst, fabs(sum - alone->grads[i]));
        largest = fmax(largest, fabs(alone->grads[i]));
    }
    return worst / largest;
}

static void test_step(Case c, int K) {
    Result *alone = calloc(1, sizeof *alone);
    TinyPiece pieces[4 + 2 * 12];
    GPT2 shape = {.config = config};
    double loss = 0, eval = 0, worst = 0;
    c.results = forked_memory((size_t)K * sizeof *c.results);
    step(&c, NULL, alone);
    CHECK(forked_run(K, rank_step, &c), "%s, %d ranks: one failed", c.what, K);
    gpt2_tensors(shape.tensors, &config, 1);
    const int n = tiny_pieces(&shape, pieces);
    for (int i = 0; i < n; i++) worst = worse(worst, error_of(&pieces[i], alone, c.results, K));
    for (int r = 0; r < K; r++) loss += c.results[r].loss, eval += c.results[r].eval;
    CHECK(worst < 1e-5, "%s, %d ranks: gradients are off by %.2g", c.what, K, worst);
    CHECK(fabs(loss - alone->loss) < 1e-6 * loss, "%s, %d ranks: loss %.8g, alone %.8g", c.what, K, loss,
          (double)alone->loss);
    CHECK(fabs(eval - alone->eval) < 1e-6 * eval, "%s, %d ranks: loss before %.8g, alone %.8g", c.what, K,
          eval, (double)alone->eval);
    CHECK(alone->loss > 3 && alone->loss < 20, "%s: loss %g", c.what, (double)alone->loss);
    munmap(c.results, (size_t)K * sizeof *c.results);
    free(alone);
}

static void test_steps(void) {
    test_step(
        (Case){
            "one sequence", {.B = 1, .T = 12},
             0, NULL
    },
        2);
    test_step(
        (Case){
            "a token a rank", {.B = 1, .T = 6},
             0, NULL
    },
        6);
    test_step(
        (Case){
            "three sequences", {.B = 3, .T = 30},
             0, NULL
    },
        2);
    test_step(
        (Case){
            "odd parts", {.B = 3, .T = 15},
             0, NULL
    },
        3);
    test_step(
        (Case){
            "a window", {.B = 2, .T = 36},
             7, NULL
    },
        3);
    test_step(
        (Case){
            "standard", {.B = 2, .T = 12, .attention = ATTENTION_STANDARD},
             0, NULL
    },
        3);
    for (int level = RECOMPUTE_GELU; level <= RECOMPUTE_BLOCK; level++) {
        test_step(
            (Case){
                "recompute", {.B = 1, .T = 12, .recompute = (Recompute)level},
                 0, NULL
        },
            2);
        test_step(
            (Case){
                "recompute", {.B = 3, .T = 12, .recompute = (Recompute)level},
                 5, NULL
        },
            3);
    }
}

static void refuses(int K, int T, const char *part) {
    GPT2Options options = {.B = 1, .T = T, .training = true};
    Comm context = comm_planned(K);
    GPT2 model;
    Error err = {0};
    options.context = &context;
    CHECK(!gpt2_open(&model, &ops_cpu, &config, &options, &err), "%d ranks share %d tokens", K, T);
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
    gpt2_memory_plan(&part, &ops_cpu, &config, &options);
    options.context = NULL;
    options.T = 12;
    gpt2_memory_plan(&whole, &ops_cpu, &config, &options);
    CHECK(part.n_rows == whole.n_rows, "%d rows, of a third of the context %d", part.n_rows, whole.n_rows);
    CHECK(bytes_of(&part, "activations") == bytes_of(&whole, "activations"),
          "%zu bytes, of a third of the context %zu", bytes_of(&part, "activations"),
          bytes_of(&whole, "activations"));
}

static void no_exchange(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    CHECK(false, "sampling exchanges with other ranks");
}

static void append(const char *bytes, size_t n, void *user) {
    strncat(user, bytes, n);
}

/* One rank samples, and no other takes part. */
static void test_sample(void) {
    char text[2][400] = {"", ""};
    for (int shared = 0; shared < 2; shared++) {
        GPT2Options options = {.B = 1, .T = 12};
        Comm context = comm_planned(2);
        GPT2 model;
        Error err = {0};
        context.ranks.rank = 1;
        context.all_to_all = no_exchange;
        if (shared) options.context = &context;
        if (!gpt2_open(&model, &ops_cpu, &config, &options, &err)) die(&err);
        fill(&model);
        CHECK(sample(&model, NULL, &(SampleOptions){.n_tokens = 60, .temperature = 1, .seed = 3}, append,
                     text[shared], &err),
              "%s", err.text);
        gpt2_close(&model);
    }
    CHECK(text[0][0] && !strcmp(text[0], text[1]), "'%s', alone '%s'", text[1], text[0]);
}

int main(void) {
    Error err = {0};
    cpu_set_thread_count(1);
    if (!ops_cpu.device->open(0, &err)) die(&err);
    for (int i = 0; i < MAX_TOKENS; i++) tokens[i] = i * i * 7 % 250, targets[i] = (i * 5 + 2) % 250;
    test_steps();
    refuses(4, 12, "--context-gpus 4 does not divide the model's 6 heads");
    refuses(2, 13, "--context-gpus 2 does not divide --seq 13");
    test_plan();
    config.window = 0;
    test_sample();
    return check_finish("context");
}
