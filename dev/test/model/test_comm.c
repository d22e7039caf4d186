/* What ranks share out among them in a step, with ranks that are pretended. */
#include <stdlib.h>
#include <string.h>
#include "dev/test/check.h"
#include "dev/test/tiny_model.h"

enum { T = 8 };
static int32_t tokens[T], targets[T];

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
        Comm comm = comm_planned(N_RANKS);
        comm.ranks.rank = rank;
        open_model(&model, (GPT2Options){.dropout_seed = 5}, 0.1f, &comm);
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
    test_dropout_keys();
    return check_finish("comm");
}
