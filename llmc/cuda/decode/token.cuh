/* The kernels of a token, and what they are told. */
#pragma once
#include "layer.cuh"
#include "llmc/cuda/ops/draw_tokens.cuh"
#include "steps.cuh"

typedef struct TokenArgs {
    const DecodeLayer *layers;
    uint64_t *sums; /* token_sums(n_layers, C); 0 before the first launch */
    const int32_t *tokens, *positions, *begins;
    const bf16 *wte, *wpe, *ln_f_weight, *ln_f_bias, *head_weight;
    bf16 *logits;      /* (V), of the vocabulary without its padding */
    uint64_t *largest; /* (MAX_WORDS) LargestArgs' words; token.cu's alone */
    int n_layers, C, NH, V, window;
    uint32_t launch; /* how many there were, with this one */
} TokenArgs;

/* Heads that token.cu and token_wide.cu serve; where the card has room for both, the first is taken. */
enum { TOKEN_MAX_NH = 16, WIDE_MIN_NH = 13, WIDE_MAX_NH = 28 };

/* Two sets, for launches in turn, each with C words for both sums of a layer. */
__host__ __device__ inline int64_t token_sums(int n_layers, int C) {
    return (int64_t)2 * 2 * n_layers * C;
}

/* token.cu: how many clusters of 8 blocks run at once; 0: not one for each head. */
int token_clusters(int NH);
/* Returns what draw_largest needs. */
LargestArgs token_launch(const TokenArgs &args, int n_clusters);

/* token_wide.cu: whether a cluster of 4 blocks for each head runs at once. */
bool token_wide_fits(int NH);
void token_wide_launch(const TokenArgs &args);
