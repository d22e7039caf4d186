/* A GPT-2 of 2 layers on the CPU for tests of files: every parameter and moment has a value of its own. */
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/checkpoint/checkpoint.h"
#include "folder.h"

/* 250 tokens, so that wte has 6 padding rows. */
static const GPT2Config tiny_config = {
    .max_seq_len = 16, .vocab_size = 250, .padded_vocab_size = 256, .n_layer = 2, .n_head = 2, .n_embd = 32};

/* Opens a model of that config, all 0; exits the test if that fails. */
__attribute__((unused)) static void tiny_open(GPT2 *model, const GPT2Config *config) {
    const GPT2Options options = {.B = 1, .T = 8, .training = true};
    Error err = {0};
    if (ops_cpu.device->open(0, &err) && gpt2_open(model, &ops_cpu, config, &options, &err)) return;
    fprintf(stderr, "tiny_open: %s\n", err.text);
    exit(1);
}

static float tiny_value(uint64_t seed, int64_t i) {
    uint64_t x = (seed << 40) + (uint64_t)i;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)(int32_t)(x >> 32) * 0x1p-31f;
}

/* Weights, m and v: k = 0, 1, 2. */
static float *tiny_buffer(const GPT2 *model, int k) {
    return k == 0 ? model->master : model->states[k - 1];
}

/* A layer's tensor: n elements from `at` of the flat buffers, from `first` of all parameters as llm.c counts them; of wte
 * the padding rows begin at element `padding`. */
typedef struct TinyPiece {
    int64_t at, n, first, padding;
    int id; /* TensorId */
} TinyPiece;

/* All of them; returns how many. */
static int tiny_pieces(const GPT2 *model, TinyPiece pieces[4 + 2 * 12]) {
    int64_t first = 0;
    int n = 0;
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++) {
            const Tensor *t = &model->tensors[id];
            const int64_t padding = id == WTE ? model->config.vocab_size * t->cols : t->layer_elems;
            pieces[n++] = (TinyPiece){tensor_at(t, layer), t->layer_elems, first, padding, id};
            first += t->layer_elems;
        }
    return n;
}

/* Element i of a piece after tiny_fill(seed). */
static float tiny_element(const TinyPiece *piece, uint64_t seed, int k, int64_t i) {
    return i >= piece->padding ? 0 : tiny_value(3 * seed + (uint64_t)k, piece->first + i);
}

/* Weights and, as far as the model has them, m and v from the seed; padding rows of wte 0. */
__attribute__((unused)) static void tiny_fill(GPT2 *model, uint64_t seed) {
    TinyPiece pieces[4 + 2 * 12];
    const int n_pieces = tiny_pieces(model, pieces);
    for (int k = 0; k < 3; k++)
        for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++) {
            float *values = malloc((size_t)p->n * sizeof *values);
            for (int64_t i = 0; i < p->n; i++) values[i] = tiny_element(p, seed, k, i);
            if (k == 0) gpt2_set_weights(model, values, p->at, p->n);
            if (k > 0 && model->states[k - 1]) gpt2_set_state(model, (StateId)(k - 1), values, p->at, p->n);
            free(values);
        }
}

/* As they are behind gpt2_open. */
__attribute__((unused)) static void tiny_zero_states(GPT2 *model) {
    for (int i = 0; i < N_STATES; i++)
        if (model->states[i])
            memset(model->states[i], 0,
                   (size_t)gpt2_state_elements(model, optimizer_states[i].kind) * sizeof(float));
}

/* Sets every value to NaN, so that what a load leaves out shows. */
__attribute__((unused)) static void tiny_poison(GPT2 *model) {
    TinyPiece pieces[4 + 2 * 12];
    const int n_pieces = tiny_pieces(model, pieces);
    for (int k = 0; k < 3; k++)
        for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++)
            memset(tiny_buffer(model, k) + p->at, 0xff, (size_t)p->n * sizeof(float));
}

/* True if weights (and, with moments, m and v) are those of tiny_fill(seed), bit for bit. */
__attribute__((unused)) static bool tiny_equals(const GPT2 *model, uint64_t seed, bool moments) {
    TinyPiece pieces[4 + 2 * 12];
    const int n_pieces = tiny_pieces(model, pieces);
    for (int k = 0; k < (moments ? 3 : 1); k++)
        for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++)
            for (int64_t i = 0; i < p->n; i++) {
                const float expected = tiny_element(p, seed, k, i);
                if (memcmp(&tiny_buffer(model, k)[p->at + i], &expected, sizeof expected)) return false;
            }
    return true;
}

/* Fills the model from the seed and saves it, with the byte tokenizer. */
__attribute__((unused)) static bool tiny_save(GPT2 *model, const char *out, uint64_t seed,
                                              const TrainerState *state, int keep, bool model_only,
                                              Error *err) {
    Tokenizer *tokenizer = tokenizer_open("bytes", err);
    tiny_fill(model, seed);
    const SaveOptions options = {.keep = keep, .model_only = model_only};
    bool ok = tokenizer && checkpoint_save(out, model, tokenizer, state, &options, err);
    tokenizer_close(tokenizer);
    return ok;
}

/* Loading the weights fails as bad input with this in the message. */
__attribute__((unused)) static void load_refuses(GPT2 *model, const char *path, const char *part) {
    Error err = {0};
    CHECK(!checkpoint_load_weights(path, model, &err) && err.exit_code == EXIT_INPUT, "%s: loaded", part);
    CHECK(strstr(err.text, part), "message '%s' lacks '%s'", err.text, part);
}

/* The weights of tiny_fill(seed) load into the poisoned model. */
__attribute__((unused)) static void load_accepts(GPT2 *model, const char *path, uint64_t seed) {
    Error err = {0};
    tiny_poison(model);
    CHECK(checkpoint_load_weights(path, model, &err), "%s", err.text);
    CHECK(tiny_equals(model, seed, false), "%s: the weights differ", path);
}
