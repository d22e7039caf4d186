/* The kernel of token.cu and what it is told. */
#pragma once
#include "steps.cuh"

/* A layer's weights, and its cache (T,2,C). */
typedef struct TokenLayer {
    const bf16 *ln_1_weight, *ln_1_bias, *qkv_weight, *qkv_bias, *attn_proj_weight, *attn_proj_bias;
    const bf16 *ln_2_weight, *ln_2_bias, *fc_weight, *fc_bias, *mlp_proj_weight, *mlp_proj_bias;
    bf16 *cache;
} TokenLayer;

typedef struct TokenArgs {
    const TokenLayer *layers;
    uint64_t *sums; /* token_sums(n_layers, C); 0 before the first launch */
    const int32_t *tokens, *positions, *begins;
    const bf16 *wte, *wpe, *ln_f_weight, *ln_f_bias, *head_weight;
    bf16 *logits; /* (V), padding and all */
    int n_layers, C, NH, V, window;
    uint32_t launch; /* how many there were, with this one */
} TokenArgs;

enum { TOKEN_HD = 64, TOKEN_MAX_LAYERS = 48, TOKEN_MAX_NH = 16, TOKEN_MAX_T = 1024 };

/* Two sets, for launches in turn, each with C words for both sums of a layer. */
__host__ __device__ inline int64_t token_sums(int n_layers, int C) {
    return (int64_t)2 * 2 * n_layers * C;
}

void token_launch(const TokenArgs &args);
/* Whether all blocks run at once, with a cluster for each head. */
bool token_fits(int NH);
