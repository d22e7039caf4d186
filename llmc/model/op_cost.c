/* FLOP, bytes and labels of the ops: see op_cost.h. Weights and biases of a norm and statistics of a step are too small
 * to count. */
#include "op_cost.h"
#include <math.h>
#include <stdio.h>

#define OP_NAME(Type, name) #name,
static const char *const names[N_OPS] = {EACH_OP(OP_NAME)};
#undef OP_NAME

/* FLOP of one T x T product of all heads, the part of its causal half that a window or blocks leave. */
static double causal_product(const OpSizes *s) {
    const double T = s->T, w = s->window > 0 && s->window < s->T ? s->window / T : 1;
    if (s->sparse.window > 0) return 2 * sparse_pairs(s->sparse, s->T) * s->B * s->NH * s->HD;
    return (2 * w - w * w) * s->B * T * T * s->NH * s->HD;
}

static OpCost moves(double bytes) {
    return (OpCost){0, bytes};
}

/* x: bytes of an element in the storage type. */
static OpCost linear_cost(OpId op, const OpSizes *s, double x) {
    const double n = (double)s->N, in = n * s->IC, out = n * s->OC, weight = (double)s->OC * s->IC;
    const double pre_gelu = op == OP_linear_forward ? out : in;
    double bytes = x * (in + out + weight);
    if (op == OP_linear_backward_weight) bytes = x * (in + out) + (s->with & OVERWRITES ? 4 : 8) * weight;
    if (s->with & WITH_PRE_GELU) bytes += x * pre_gelu;
    if (s->with & WITH_GELU) bytes += x * in;
    if (s->with & WITH_ROW_DOTS) bytes += x * in + 4 * in / s->group;
    return (OpCost){2 * n * weight, bytes};
}

/* Of B sequences; flash reads and writes nothing of size T x T. */
static OpCost attention_cost(OpId op, const OpSizes *s, double x) {
    const double rows = (double)s->B * s->T * s->NH, head = rows * s->HD, square = rows * s->T;
    const OpSizes unmasked = {.B = s->B, .T = s->T, .NH = s->NH, .HD = s->HD};
    switch (op) {
    case OP_attention_forward:
        return (OpCost){2 * causal_product(s), x * 4 * head + 4 * rows};
    case OP_attention_backward: /* D takes the place of what it is made from */
        return (OpCost){5 * causal_product(s),
                        x * 7 * head + 4 * rows + (s->with & WITH_D ? 4 * rows : x * head)};
    case OP_attention_standard_forward:
        return (OpCost){2 * causal_product(&unmasked), x * (4 * head + square)};
    case OP_attention_standard_backward:
        return (OpCost){4 * causal_product(&unmasked), x * (7 * head + 2 * square)};
    default: /* decode: one query of each sequence against the keys and values of T positions */
        return (OpCost){4.0 * s->B * s->T * s->NH * s->HD, x * 2 * s->B * (s->T + 2.0) * s->NH * s->HD};
    }
}

/* Of N matrices (OC, IC), OC <= IC: three products a step, of which two give symmetric matrices. FLOP of the whole
 * products, though half of those two would do. Bytes: in and out. */
static OpCost orthogonalise_cost(const OpSizes *s, double x) {
    const double rows = s->OC, cols = s->IC, n = (double)s->N;
    return (OpCost){n * NEWTON_SCHULZ_STEPS * (4 * rows * rows * cols + 2 * rows * rows * rows),
                    2 * x * n * rows * cols};
}

/* What a step does with losses, gradients and weights. */
static OpCost update_cost(OpId op, const OpSizes *s, double x) {
    const double n = (double)s->N, weights = s->with & OWN_WEIGHTS ? x * n : 0;
    switch (op) {
    case OP_sum_gradients:
        return moves(12 * n);
    case OP_finish_stats:
        return moves(sizeof(StepSums));
    case OP_adamw: /* master, m, v: 8 each; gradients 4 */
        return moves(28 * n + weights);
    case OP_muon_momentum: /* gradients, momentum both ways, what passes on */
        return moves((12 + x) * n);
    case OP_orthogonalise:
        return orthogonalise_cost(s, x);
    case OP_muon_update:
        return moves((8 + x) * n + weights);
    case OP_weights_from_master:
        return moves((4 + x) * n);
    case OP_hash_bytes:
        return moves(n);
    default: /* loss_sum, sum_squares */
        return moves(4 * n);
    }
}

OpCost op_cost(OpId op, const OpSizes *s, DType dtype) {
    const double x = (double)dtype_bytes(dtype), n = (double)s->N, C = s->C, tokens = (double)s->B * s->T;
    switch (op) {
    case OP_embedding_forward:
        return moves(x * (2 * tokens * C + s->T * C) + 4 * tokens);
    case OP_embedding_backward: /* rows of dwte: no more than there are tokens */
        return moves(x * tokens * C + 4 * tokens + 8 * C * (fmin(tokens, s->V) + s->T));
    case OP_layernorm_forward:
        return moves(x * 2 * n * C + 8 * n);
    case OP_residual_layernorm_forward:
        return moves(x * 4 * n * C + 8 * n);
    case OP_layernorm_backward:
        return moves(x * (s->with & WITH_DRESIDUAL ? 4 : 3) * n * C + 8 * n);
    case OP_dropout:
    case OP_transpose_rows:
        return moves(x * 2 * n * C);
    case OP_linear_forward:
    case OP_linear_backward_input:
    case OP_linear_backward_input_row_dots:
    case OP_linear_backward_weight:
        return linear_cost(op, s, x);
    case OP_qkv_bias_backward: /* of dqkv the third that is dq */
        return (OpCost){2 * C * C, x * (n * C + C * C)};
    case OP_attention_forward:
    case OP_attention_backward:
    case OP_attention_standard_forward:
    case OP_attention_standard_backward:
    case OP_attention_decode:
        return attention_cost(op, s, x);
    case OP_cross_entropy_backward_inplace:
        return moves(x * 2 * n * s->Vp + 8 * n);
    case OP_cross_entropy_forward:
        return moves(x * n * s->Vp + 8 * n);
    case OP_draw_tokens:
        return moves(x * n * s->V);
    case OP_loss_sum:
    case OP_sum_gradients:
    case OP_sum_squares:
    case OP_finish_stats:
    case OP_adamw:
    case OP_muon_momentum:
    case OP_orthogonalise:
    case OP_muon_update:
    case OP_weights_from_master:
    case OP_hash_bytes:
        return update_cost(op, s, x);
    case N_OPS:
        break;
    }
    return moves(0);
}

void op_label(char label[OP_LABEL], OpId op, const OpSizes *s) {
    const bool dots = op == OP_linear_backward_input_row_dots; /* that product with an extra */
    char layer[32] = "";
    if (s->OC)
        snprintf(layer, sizeof layer, op == OP_orthogonalise ? " %d x %d" : " %d->%d",
                 op == OP_orthogonalise ? s->OC : s->IC, op == OP_orthogonalise ? s->IC : s->OC);
    snprintf(label, OP_LABEL, "%s%s%s%s%s%s%s", names[dots ? OP_linear_backward_input : op], layer,
             s->with & OVERWRITES ? " overwrite" : "", s->with & WITH_PRE_GELU ? " + gelu" : "",
             s->with & WITH_GELU ? " both ways" : "", s->with & WITH_SUMS ? " + sums" : "",
             s->with & WITH_ROW_DOTS ? " + dots" : "");
}
