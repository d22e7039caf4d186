/* What a call of an op computes and moves at the least: FLOP of its products, and bytes, each input read once, each
 * output written once, `+=` both. Read by --profile (llmc/run/profile_ops.c) and by the lab (dev/driver). */
#pragma once
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* OP_layernorm_forward and so on. */
#define OP_ID(Type, name) OP_##name,
typedef enum OpId { EACH_OP(OP_ID) N_OPS } OpId;
#undef OP_ID

/* Optional operands and forms of a call. */
enum {
    WITH_DRESIDUAL = 1, /* backward of a norm */
    WITH_SUMS = 2,      /* dx_sums, or dbias of linear_backward_weight */
    WITH_PRE_GELU = 4,  /* linear_forward, linear_backward_input */
    WITH_GELU = 8,      /* linear_backward_input: gelu as well */
    WITH_ROW_DOTS = 16, /* linear_backward_input_row_dots: they came */
    OVERWRITES = 32,    /* linear_backward_weight */
    WITH_D = 64,        /* attention_backward */
    OWN_WEIGHTS = 128,  /* adamw, muon_update: weights are not master */
};

/* Sizes of a call; an op reads those it knows, the others stay 0. */
typedef struct OpSizes {
    int B, T, NH, HD; /* attention_decode: T keys */
    int64_t N;        /* rows, or elements */
    int C, OC, IC, V, Vp;
    int group;  /* of row_dots */
    int window; /* of attention; 0: none */
    SparsePattern sparse;
    int with; /* WITH_SUMS, ... */
} OpSizes;

typedef struct OpCost {
    double flops; /* causal attention counts half of the square */
    double bytes;
} OpCost;

OpCost op_cost(OpId op, const OpSizes *s, DType dtype);

enum { OP_LABEL = 96 };
/* "linear_forward 768->2304 + gelu" */
void op_label(char label[OP_LABEL], OpId op, const OpSizes *s);

#ifdef __cplusplus
}
#endif
