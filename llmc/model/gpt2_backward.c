/* GPT-2's backward pass over the ops; it mirrors gpt2_forward.c.
 *
 * Parameter gradients are fp32 and sums over the micro-steps of a step: every op adds to them. Two do not. The step's
 * first product for a linear layer's weight overwrites, so that nobody need zero it (gpt2_begin_step). The gradient of
 * v's bias is computed anew each time, from the sum in the projection's bias (qkv_bias_backward).
 *
 * Gradients of activations overwrite, but for dresidual. gpt2_pass.h says which of them share a buffer. */
#include "gpt2_pass.h"

/* A linear layer's bias gradient is the column sums of its output's gradient. The op that writes that gradient takes
 * them: linear_backward_input those of dfch, layernorm_backward those of dresidual. With dropout, what reaches the
 * linear layer is not dresidual; then its weight gradient takes them, and this is NULL. For qkv see
 * attention_backward. */
static float *bias_gradient(GPT2 *model, const Batch *b, TensorId bias, int l) {
    return b->dropout > 0 ? NULL : gpt2_grad(model, bias, l);
}

/* The gradient of a branch's output: dresidual where nothing is dropped, else its dropped copy, in `dropped`. */
static const floatX *branch_gradient(GPT2 *model, const Batch *b, DropoutSite site, int l, floatX *dropped) {
    drop(model, b, site, l, dropped, dresidual_of(model));
    return b->dropout > 0 ? dropped : dresidual_of(model);
}

/* dresidual = dresidual (or 0, of_loss: the first to write it) + the gradient through the norm of x; `dx_sums`, if not
 * NULL, += its column sums. */
static void norm_backward(GPT2 *model, const Batch *b, Norm norm, const floatX *x, float *dx_sums,
                          bool of_loss) {
    const int l = norm.layer;
    floatX *dresidual = dresidual_of(model);
    model->ops->layernorm_backward(dresidual, gpt2_grad(model, norm.weight, l),
                                   gpt2_grad(model, norm.weight + 1, l), dx_sums, of_loss ? NULL : dresidual,
                                   dnorm_of(model), x, gpt2_weight(model, norm.weight, l),
                                   activation_f32(model, norm.out + 1, l),
                                   activation_f32(model, norm.out + 2, l), model->scratch, b->N, b->C);
}

/* losses =, wte's gradient, dnorm = the gradient of ln_f */
static void head_backward(GPT2 *model, const Batch *b, float dloss) {
    const int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    for (int64_t row = 0; row < b->N && !gpt2_stops(model); row += model->shape.loss_rows) {
        Chunk c = head_forward(model, b, row);
        if (gpt2_stops(model)) return;
        model->ops->cross_entropy_backward_inplace(c.losses, c.logits, c.targets, dloss, c.n, V, Vp);
        linear_input_gradient(model, WTE, 0, rows_from(model, dnorm_of(model), row, b->C), c.logits, NULL,
                              c.n);
        linear_weight_gradient(model, WTE, 0, c.logits, c.ln_f, c.n, false,
                               row == 0 ? write_mode(model) : ACCUMULATE);
    }
}

/* dout -> dfch and c_fc's bias gradient; gelu = GELU of fch, or NULL */
static void dfch_backward(GPT2 *model, const Batch *b, int l, floatX *gelu, const floatX *dout) {
    const GeluBackward through = {gpt2_activation(model, ACT_FCH, l), gelu, gpt2_grad(model, C_FC_B, l)};
    linear_input_gradient(model, MLP_PROJ_W, l, dfch_of(model, l), dout, &through, b->N);
}

/* dout -> c_proj's weight gradient, which reads GELU's output, and dfch, which takes that output's place. Where only
 * GELU's input fch was saved, dfch comes first: it reads fch anyway, and leaves GELU's output in fch's place. */
static void mlp_proj_backward(GPT2 *model, const Batch *b, int l, const floatX *dout) {
    const bool saved = model->options.recompute != RECOMPUTE_GELU;
    floatX *gelu = gpt2_activation(model, saved ? ACT_FCH_GELU : ACT_FCH, l);
    if (!saved) dfch_backward(model, b, l, gelu, dout);
    linear_weight_gradient(model, MLP_PROJ_W, l, dout, gelu, b->N, b->dropout > 0, write_mode(model));
    if (saved) dfch_backward(model, b, l, NULL, dout);
}

/* dresidual: gradient of residual_3 -> gradient of residual_2 */
static void mlp_backward(GPT2 *model, const Batch *b, int l) {
    const floatX *dfch = dfch_of(model, l);
    mlp_proj_backward(model, b, l,
                      branch_gradient(model, b, SITE_MLP_PROJ, l, gpt2_activation(model, ACT_BRANCH, 0)));
    linear_weight_gradient(model, C_FC_W, l, dfch, gpt2_activation(model, ACT_LN_2, l), b->N, false,
                           write_mode(model));
    linear_input_gradient(model, C_FC_W, l, dnorm_of(model), dfch, NULL, b->N);
    norm_backward(model, b, ln_2_of(l), gpt2_activation(model, ACT_RESIDUAL_2, l),
                  bias_gradient(model, b, ATTN_PROJ_B, l), false);
}

/* dout -> dattn. True where D came with it. */
static bool attn_proj_backward(GPT2 *model, const Batch *b, int l, bool want_d, const floatX *dout) {
    if (want_d)
        return linear_input_gradient_row_dots(model, ATTN_PROJ_W, l, dattn_of(model),
                                              attention_d_of(model, b, l), dout,
                                              gpt2_activation(model, ACT_ATTN, l), b->HD, b->N);
    linear_input_gradient(model, ATTN_PROJ_W, l, dattn_of(model), dout, NULL, b->N);
    return false;
}

/* dout -> dattn -> dqkv. What ranks exchange: dattn and attn, with fch and fch_gelu as scratch, which dqkv has not taken
 * yet; then dqkv, with fch_gelu and qkv. */
static void attention_core_backward(GPT2 *model, const Batch *b, int l, const floatX *dout) {
    const Ops *ops = model->ops;
    floatX *qkv = gpt2_activation(model, ACT_QKV, l), *attn = gpt2_activation(model, ACT_ATTN, l);
    floatX *dqkv = dqkv_of(model, l), *spare = gpt2_activation(model, ACT_FCH_GELU, l);
    const int T = context_of(b), NH = heads_of(b);
    const AttentionMask mask = mask_of(model, b, l);
    const bool flash = model->options.attention == ATTENTION_FLASH;
    const bool has_d = attn_proj_backward(model, b, l, flash && b->context.n_ranks == 1, dout);
    heads_from_tokens(model, b, dattn_of(model), 1, dqkv, spare);
    heads_from_tokens(model, b, attn, 1, dqkv, spare);
    if (flash)
        ops->attention_backward(dqkv, dattn_of(model), attn, qkv, activation_f32(model, ACT_LSE, l),
                                has_d ? attention_d_of(model, b, l) : NULL, &mask, model->scratch, b->B, T,
                                NH, b->HD);
    else
        ops->attention_standard_backward(dqkv, gpt2_activation(model, ACT_DPROBS, 0), dattn_of(model),
                                         gpt2_activation(model, ACT_PROBS, l), qkv, &mask, b->B, T, NH,
                                         b->HD);
    tokens_from_heads(model, b, dqkv, dqkv, 3, spare, qkv);
}

/* dresidual: gradient of residual_2 -> gradient of the block's input. Where attention drops nothing, qkv's bias
 * gradient needs the column sums of dq alone: those of dk are 0, those of dv follow from ATTN_PROJ_B's gradient. */
static void attention_backward(GPT2 *model, const Batch *b, int l) {
    const floatX *dqkv = dqkv_of(model, l);
    floatX *dropped = gpt2_activation(model, ACT_FCH_GELU, l); /* dfch was read for the last time */
    const floatX *dout = branch_gradient(model, b, SITE_ATTN_PROJ, l, dropped);
    linear_weight_gradient(model, ATTN_PROJ_W, l, dout, gpt2_activation(model, ACT_ATTN, l), b->N,
                           b->dropout > 0, write_mode(model));
    attention_core_backward(model, b, l, dout);
    if (b->dropout == 0)
        model->ops->qkv_bias_backward(gpt2_grad(model, C_ATTN_B, l), dqkv, gpt2_grad(model, ATTN_PROJ_B, l),
                                      gpt2_weight(model, ATTN_PROJ_W, l), model->scratch, b->N, b->C);
    linear_weight_gradient(model, C_ATTN_W, l, dqkv, gpt2_activation(model, ACT_LN_1, l), b->N,
                           b->dropout > 0, write_mode(model));
    linear_input_gradient(model, C_ATTN_W, l, dnorm_of(model), dqkv, NULL, b->N);
    norm_backward(model, b, ln_1_of(l), block_input(model, l),
                  l > 0 ? bias_gradient(model, b, MLP_PROJ_B, l - 1) : NULL, false);
}

/* A block's gradients are final behind its attention: MLP_PROJ_B's came with the norm above, the others since. Those of
 * the embeddings are so at the very end, because wte's get what the head and what the embedding adds. */
void backward_pass(GPT2 *model, const Batch *b, float dloss) {
    const int L = model->config.n_layer;
    floatX *dresidual = dresidual_of(model);
    head_backward(model, b, dloss);
    now_at(model, "backward", -1);
    norm_backward(model, b, norm_after(model, L - 1), gpt2_activation(model, ACT_RESIDUAL_3, L - 1),
                  bias_gradient(model, b, MLP_PROJ_B, L - 1), true);
    grads_final(model, L);
    for (int l = L - 1; l >= 0 && !gpt2_stops(model); l--) {
        recompute_block(model, b, l);
        if (gpt2_stops(model)) return;
        now_at(model, "backward", l);
        mlp_backward(model, b, l);
        if (gpt2_stops(model)) return;
        attention_backward(model, b, l);
        grads_final(model, l);
    }
    if (gpt2_stops(model)) return;
    now_at(model, "backward", -1);
    drop(model, b, SITE_EMBEDDING, 0, dresidual, dresidual);
    float *positions = gpt2_grad(model, WPE, 0) + (int64_t)position_of(b) * b->C;
    model->ops->embedding_backward(gpt2_grad(model, WTE, 0), positions, dresidual, model->tokens,
                                   model->scratch, b->B, b->T, b->C, model->config.vocab_size);
    grads_final(model, -1);
    grads_reduced(model);
}
