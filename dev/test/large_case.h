/* A model as wide as GPT-2 in bf16 against our own fp32, where the GPU takes other kernels than at the recorded sizes. */
#pragma once
#include "compare.h"
#include "reference_case.h"

/* Errors are about normal: of some thousand entries one is four standard deviations off, here of twice PyTorch's; twice
 * as much is allowed. */
#define BF16_ENTRY_LIMIT 16

static bool verbose;

/* The largest error of PyTorch's bf16 run on this gradient in any layer of a recorded model; 0: it has no record. */
static double recorded_error(const Reference *reference, const char *tensor) {
    double largest = 0;
    for (int layer = 0; layer < reference->header.n_layer; layer++) {
        char of_layer[64], name[80];
        snprintf(of_layer, sizeof of_layer, tensor, layer);
        snprintf(name, sizeof name, "grad/%s", of_layer);
        const int index = reference_find(reference, name);
        if (index >= 0) largest = fmax(largest, (double)reference->records[index].bf16_error);
    }
    return largest;
}

/* Gradients of one micro-step, and that another two, launched as a graph where the device can, leave the same bits. */
static bool large_gradients(Case *c, Snapshot *out, float *loss) {
    GPT2 model;
    if (!case_open_with(c, &model, &(GPT2Options){.graph = true})) return false;
    forward_backward(c, &model);
    *loss = loss_so_far(&model);
    *out = snapshot(&model);
    for (int i = 0; i < 2; i++) forward_backward(c, &model);
    check_same_bits(c, out, snapshot(&model), -1, "a micro-step again");
    gpt2_close(&model);
    return true;
}

static void compare_large(Case *c, const Snapshot *got, const Snapshot *want) {
    GPT2 shape;
    if (!case_open(c, &shape, RECOMPUTE_NONE, ATTENTION_FLASH)) return;
    const float *g = (const float *)(const void *)got->flat[GRADS],
                *w = (const float *)(const void *)want->flat[GRADS];
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *t = &shape.tensors[id];
        const double limit = 3 * recorded_error(c->reference, t->name);
        for (int layer = 0; layer < t->n_layers; layer++) {
            const int64_t at = tensor_at(t, layer);
            const Deviation d = compare_floats(g + at, w + at, t->layer_elems);
            CHECK(within(d, (Limits){limit, BF16_ENTRY_LIMIT * limit}),
                  "%s, large: gradient of %s, layer %d: error %.2e, limit %.2e; largest %.2e", c->ops->name,
                  t->name, layer, d.norm, limit, d.max);
            if (verbose)
                printf("%-9s large %-30s error %.1e  max %.1e  limit %.1e\n", c->ops->name, t->name, d.norm,
                       d.max, limit);
        }
    }
    gpt2_close(&shape);
}

/* 8 x 1024 tokens through two layers of 768 channels: there the products are large enough for linear layers with our own
 * epilogues and for gemm_choose's election. bf16 against our fp32, by three times PyTorch's error in d12. */
static void test_large(const Ops *bf16, const Ops *fp32) {
    Error err = {0};
    Reference reference;
    if (!CHECK(reference_load(&reference, "dev/reference/d12.ref", &err), "%s", err.text)) return;
    Case c = {.ops = fp32, .reference = &reference, .model = "large", .B = 8, .T = 1024};
    const int vocabulary = reference.header.vocab_size;
    c.config = (GPT2Config){.max_seq_len = 1024,
                            .vocab_size = vocabulary,
                            .padded_vocab_size = gpt2_pad_vocab(vocabulary),
                            .n_layer = 2,
                            .n_head = 12,
                            .n_embd = 768};
    c.tokens = hash_tokens(STREAM_TOKENS, (int64_t)c.B * c.T, vocabulary);
    c.targets = hash_tokens(STREAM_TARGETS, (int64_t)c.B * c.T, vocabulary);
    Snapshot want, got;
    float loss[2];
    if (fp32->device->open(0, &err) && large_gradients(&c, &want, &loss[0])) {
        c.ops = bf16;
        if (bf16->device->open(0, &err) && large_gradients(&c, &got, &loss[1])) {
            CHECK(fabsf(loss[1] - loss[0]) <= 2e-3f * loss[0], "%s, large: loss %g, in fp32 %g", bf16->name,
                  (double)loss[1], (double)loss[0]);
            compare_large(&c, &got, &want);
            snapshot_free(&got);
        }
        snapshot_free(&want);
    }
    free(c.tokens);
    free(c.targets);
    reference_free(&reference);
}
