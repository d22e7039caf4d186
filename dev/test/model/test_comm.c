/* What a step asks of the ranks, with a second rank that is pretended: it has the same tokens and weights, so every sum
 * over ranks is twice what is here. On the CPU, where a call is done when it returns. */
#include <stdlib.h>
#include <string.h>
#include "dev/test/check.h"
#include "dev/test/tiny_model.h"

enum { T = 8 };
static int32_t tokens[T], targets[T];

typedef struct Pretended {
    Comm comm;
    int64_t n_reduced; /* gradients */
    int n_ranges, n_waits, n_gathers, n_sums;
    bool in_order; /* all reduced, waited for, statistics summed, then gathered */
} Pretended;

static void reduce_begin(Comm *comm, float *x, int64_t n) {
    Pretended *p = (Pretended *)comm;
    p->n_ranges++;
    p->n_reduced += n;
    for (int64_t i = 0; i < n; i++) x[i] *= 2;
}

static void reduce_wait(Comm *comm) {
    ((Pretended *)comm)->n_waits++;
}

static void gather(Comm *comm, floatX *x, int64_t n, DType dtype) {
    Pretended *p = (Pretended *)comm;
    p->n_gathers++;
    p->in_order = p->n_ranges && p->n_waits == 1 && p->n_sums == 1;
}

static void sum_stats(Comm *comm, StepStats *stats) {
    Pretended *p = (Pretended *)comm;
    p->n_sums++;
    stats->loss *= 2;
    stats->sum_squares *= 2;
    stats->bad *= 2;
    stats->stop *= 2;
}

static Pretended pretended_ranks(Ranks ranks) {
    return (Pretended){
        .comm = {.ranks = ranks,
                 .reduce_begin = reduce_begin,
                 .reduce_wait = reduce_wait,
                 .gather = gather,
                 .sum_stats = sum_stats}
    };
}

static void open_model(GPT2 *model, GPT2Options options, float dropout, Comm *comm) {
    GPT2Config config = tiny_config;
    Error err = {0};
    config.dropout = dropout;
    options.B = 1;
    options.T = T;
    options.training = true;
    options.comm = comm;
    if (!gpt2_open(model, &ops_cpu, &config, &options, &err)) die(&err);
    tiny_fill(model, 3);
}

static void micro_steps(GPT2 *model, int n) {
    gpt2_begin_step(model, n);
    for (int i = 0; i < n; i++) gpt2_micro_step(model, tokens, targets, 1, T, 0.25f);
}

/* Doubled when it is said to be final, a gradient is twice what it is alone only where that came once, in the last
 * micro-step, and nothing was added or written behind it. */
static void test_final(GPT2Options options, float dropout, const char *what) {
    const UpdateArgs update = {.step = 1, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    Pretended p = pretended_ranks((Ranks){0, 1}); /* the masks of a process alone */
    GPT2 alone, model;
    int64_t wrong = 0;
    open_model(&alone, options, dropout, NULL);
    open_model(&model, options, dropout, &p.comm);
    micro_steps(&alone, 3);
    micro_steps(&model, 3);
    for (int64_t i = 0; i < model.n_elements; i++) wrong += model.grads[i] != 2 * alone.grads[i];
    CHECK(wrong == 0, "%s: %lld gradients are not twice what they are alone", what, (long long)wrong);
    CHECK(p.n_reduced == model.n_elements && p.n_waits == 0, "%s: %lld of %lld gradients reduced", what,
          (long long)p.n_reduced, (long long)model.n_elements);
    gpt2_update(&alone, &update);
    gpt2_update(&model, &update);
    const StepStats one = gpt2_step_stats(&alone), two = gpt2_step_stats(&model);
    CHECK(p.in_order && p.n_gathers == 1, "%s: %d waits, %d sums, %d gathers", what, p.n_waits, p.n_sums,
          p.n_gathers);
    CHECK(two.loss == 2 * one.loss && fabsf(two.grad_norm - sqrtf(8) * one.grad_norm) < 1e-5f * two.grad_norm,
          "%s: loss %g, norm %g; alone %g, %g", what, (double)two.loss, (double)two.grad_norm,
          (double)one.loss, (double)one.grad_norm);
    gpt2_close(&alone);
    gpt2_close(&model);
}

/* A bad step of two ranks is one step left out; a stop that one rank asks for reaches all. */
static void test_bad_and_stop(void) {
    const UpdateArgs update = {.step = 1, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    Pretended p = pretended_ranks((Ranks){0, 2});
    GPT2 model;
    open_model(&model, (GPT2Options){0}, 0, &p.comm);
    model.master[0] = NAN;
    tokens[0] = 0; /* the row of that weight */
    micro_steps(&model, 1);
    gpt2_request_stop(&model);
    gpt2_update(&model, &update);
    const StepStats stats = gpt2_step_stats(&model);
    CHECK(stats.bad && stats.n_skipped == 1, "bad %d, %lld steps left out", (int)stats.bad,
          (long long)stats.n_skipped);
    CHECK(stats.stop, "the stop is lost");
    gpt2_begin_step(&model, 1);
    CHECK(!gpt2_step_stats(&model).stop, "a stop is asked for again");
    gpt2_close(&model);
}

/* Ranks share out a step's micro-batches: the masks of rank r's micro-step i are those of a process alone in its
 * micro-step i * ranks + r. */
static void test_dropout_keys(void) {
    enum { N_RANKS = 3, N_MICRO = 2 };
    uint64_t keys[N_RANKS * N_MICRO];
    GPT2 model;
    open_model(&model, (GPT2Options){.dropout_seed = 5}, 0.1f, NULL);
    gpt2_begin_step(&model, N_RANKS * N_MICRO);
    for (int i = 0; i < N_RANKS * N_MICRO; i++) {
        gpt2_micro_step(&model, tokens, targets, 1, T, 1);
        keys[i] = *model.dropout_key;
        for (int k = 0; k < i; k++) CHECK(keys[k] != keys[i], "micro-steps %d and %d drop the same", k, i);
    }
    gpt2_close(&model);
    for (int rank = 0; rank < N_RANKS; rank++) {
        Pretended p = pretended_ranks((Ranks){rank, N_RANKS});
        open_model(&model, (GPT2Options){.dropout_seed = 5}, 0.1f, &p.comm);
        gpt2_begin_step(&model, N_MICRO);
        for (int i = 0; i < N_MICRO; i++) {
            gpt2_micro_step(&model, tokens, targets, 1, T, 1);
            CHECK(*model.dropout_key == keys[i * N_RANKS + rank], "rank %d, micro-step %d", rank, i);
        }
        gpt2_close(&model);
    }
}

int main(void) {
    for (int i = 0; i < T; i++) tokens[i] = 7 * i + 1, targets[i] = 5 * i + 2;
    test_final((GPT2Options){.recompute = RECOMPUTE_NONE}, 0, "all saved");
    test_final((GPT2Options){.recompute = RECOMPUTE_BLOCK}, 0, "recompute block");
    test_final((GPT2Options){.attention = ATTENTION_STANDARD}, 0, "attention standard");
    test_final((GPT2Options){.dropout_seed = 1}, 0.2f, "dropout");
    test_bad_and_stop();
    test_dropout_keys();
    return check_finish("comm");
}
