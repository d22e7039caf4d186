/* A model whose text shows a wrong cache, and samples of it as token ids. */
#pragma once
#include <stdlib.h>
#include <string.h>
#include "llmc/base/random.h"
#include "llmc/model/sampler.h"
#include "check.h"

enum { MAX_TOKENS = 1100 };

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

/* The tokens of a sample, read from its text "12 7 60 ". */
typedef struct Tokens {
    int n, ids[MAX_TOKENS];
} Tokens;

static void take_id(int sample, const char *bytes, size_t n, void *user) {
    Tokens *tokens = (Tokens *)user + sample;
    char text[16] = "";
    memcpy(text, bytes, n < 15 ? n : 15);
    if (n > 0 && tokens->n < MAX_TOKENS) tokens->ids[tokens->n++] = atoi(text);
}
