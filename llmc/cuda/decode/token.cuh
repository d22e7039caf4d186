/* The kernel of token.cu and what it is told. */
#pragma once
#include "steps.cuh"

/* Stages are what blocks do between two exchanges. */
enum {
    STAGE_ATTENTION = 1,
    STAGE_NORM = 2,
    STAGE_ADD = 4,
    STAGE_GELU = 8,
    STAGE_LOGITS = 16,
    STAGE_QKV = 32
};
typedef struct TokenStage {
    const bf16 *weight, *bias; /* attention: the layer's cache */
    const bf16 *norm_weight, *norm_bias;
    int flags, OC, IC;
    int in, out; /* where its input and its result lie among the messages */
} TokenStage;

typedef struct TokenArgs {
    const TokenStage *stages;
    uint64_t *messages;
    const int32_t *tokens, *positions, *begins;
    const bf16 *wte, *wpe;
    bf16 *logits;
    int n_stages, C, NH, T, window;
    uint32_t tag; /* of this launch's messages */
} TokenArgs;

enum { TOKEN_MAX_STAGES = 160, TOKEN_MAX_IC = 4096, TOKEN_MAX_C = 1024, TOKEN_MAX_PIECES = 8 };

/* A message is of two bf16 and a tag. */
static inline int messages_of(int n) {
    return n / 2;
}

void token_launch(const TokenArgs &args);
/* Whether all blocks run at once, with a cluster for each head. */
bool token_fits(int C, int NH);
