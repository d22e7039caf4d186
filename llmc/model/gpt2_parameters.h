/* The parameter table: every tensor's shape, its place in the flat buffers, and what each property of it decides. */
#pragma once
#include "optimizer.h"

typedef struct GPT2Config GPT2Config;

/* The 16 parameter tensors. In memory: embeddings, the blocks one after the other, the final norm. In llm.c's files: in
 * this order, each for all layers in turn. */
typedef enum {
    WTE,
    WPE,
    LN_1_W,
    LN_1_B,
    C_ATTN_W,
    C_ATTN_B,
    ATTN_PROJ_W,
    ATTN_PROJ_B,
    LN_2_W,
    LN_2_B,
    C_FC_W,
    C_FC_B,
    MLP_PROJ_W,
    MLP_PROJ_B,
    LN_F_W,
    LN_F_B,
    N_TENSORS
} TensorId;

/* gpt2_init says the deviations. */
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL } TensorInit;

typedef struct Tensor {
    const char *name; /* Hugging Face name without "transformer.": "wte.weight", "h.%d.attn.c_attn.weight" */
    int64_t rows, cols; /* of one layer's tensor, (out, in) for matrices; vectors have rows = 1 */
    int n_layers;       /* n_layer for tensors of the blocks, else 1 */
    int rank;           /* in files: 2, or 1 */
    bool transposed;    /* in Hugging Face's files: (cols, rows), as Conv1D has it */
    bool overwritten;   /* a step's first product is `=` its gradient, which nobody zeroes */
    TensorInit init;
    GroupId group;
    int64_t offset, stride; /* elements from the start of the flat buffers; from one layer's to the next's */
    int64_t layer_elems;    /* rows * cols */
    /* To the next tensor: whole tiles; the last of a layer ends where the layer has n_parts equal parts. */
    int64_t padded;
} Tensor;

/* Fills table[N_TENSORS]; returns the number of parameters (padding rows of wte counted). Every gpt2_layer_range is a
 * multiple of n_parts tiles. Host arithmetic only. */
int64_t gpt2_tensors(Tensor table[N_TENSORS], const GPT2Config *config, int n_parts);
/* The number without the padding rows, as others count it. */
int64_t gpt2_n_parameters(const GPT2Config *config);

/* Where a layer's tensor begins in the flat buffers. */
static inline int64_t tensor_at(const Tensor *t, int layer) {
    return t->offset + t->stride * layer;
}

/* What lies together: layer -1 the embeddings, 0 to n_layer - 1 the blocks, n_layer the final norm, in this order
 * and without holes. */
ParameterRange gpt2_layer_range(const Tensor table[N_TENSORS], int layer);
/* Elements of a flat buffer. */
int64_t gpt2_n_elements(const Tensor table[N_TENSORS]);
/* Its first and last tensor. */
void gpt2_layer_tensors(const Tensor table[N_TENSORS], int layer, TensorId *first, TensorId *last);
/* out (n_elements / PARAMETER_TILE) = the GroupId of each tile */
void gpt2_tile_groups(int32_t *out, const Tensor table[N_TENSORS]);
