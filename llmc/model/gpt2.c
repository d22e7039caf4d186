/* GPT-2 over the ops: forward, loss, backward, update. One call a line; backward mirrors forward.
 *
 * Gradients: every parameter gradient is fp32 and `+=` within a step, or (v's bias, qkv_bias_backward) made anew from
 * one that is; gpt2_begin_step zeroes all but the linear layers' and the head's weights, whose first product of a
 * step is `=`. Activation gradients are
 * `=`, but for dresidual, the gradient of the residual stream, which collects each branch on its way down.
 * The wide ones need no memory of their own: dfch takes the place of the layer's fch_gelu, dqkv that of its
 * fch, which nobody reads any more by then. */
#include "gpt2.h"
#include "llmc/base/random.h"
#include <stddef.h>
#include <stdlib.h>

/* Sizes of the micro-batch at hand, which may be smaller than the model was opened for. */
typedef struct Batch {
    int B, T;
    int64_t N; /* B*T */
    int C, NH, HD;
    float dropout; /* 0 outside of training */
} Batch;

static Batch batch_of(const GPT2 *model, int B, int T) {
    const GPT2Config *c = &model->config;
    return (Batch){B, T, (int64_t)B * T, c->n_embd, c->n_head, c->n_embd / c->n_head, 0};
}

floatX *gpt2_activation(const GPT2 *model, ActivationId id, int layer) {
    const Activation *a = &model->activations[id];
    return a->data ? a->data + (size_t)(a->stride * layer) * dtype_bytes(a->dtype) : NULL;
}

floatX *gpt2_weight(const GPT2 *model, TensorId id, int layer) {
    const Tensor *t = &model->tensors[id];
    return (char *)model->weights +
           (size_t)(t->offset + t->layer_elems * layer) * dtype_bytes(model->ops->dtype);
}

float *gpt2_grad(const GPT2 *model, TensorId id, int layer) {
    const Tensor *t = &model->tensors[id];
    return model->grads + t->offset + t->layer_elems * layer;
}

static float *activation_f32(const GPT2 *model, ActivationId id, int layer) {
    return (float *)gpt2_activation(model, id, layer);
}

/* Rows from `row` on of an (N, width) buffer of the storage type. */
static floatX *rows_from(const GPT2 *model, floatX *base, int64_t row, int64_t width) {
    return (char *)base + (size_t)(row * width) * dtype_bytes(model->ops->dtype);
}

/* ---- dropout ---- */

/* Where GPT-2 drops: attn_pdrop, resid_pdrop (twice a block), embd_pdrop. Each layer has a mask for each. */
typedef enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTN_PROJ, SITE_MLP_PROJ, N_SITES } DropoutSite;

static Dropout dropout_at(const GPT2 *model, const Batch *b, DropoutSite site, int l) {
    return (Dropout){model->dropout_key, (uint32_t)(l * N_SITES + site), b->dropout};
}

/* out = x, dropped; out may be x. (B,T,C), where there is dropout at all */
static void drop(GPT2 *model, const Batch *b, DropoutSite site, int l, floatX *out, const floatX *x) {
    const Dropout dropout = dropout_at(model, b, site, l);
    if (b->dropout > 0) model->ops->dropout(out, x, &dropout, b->N, b->C);
}

/* The gradient of a branch, from that of the residual stream that it joined: the same buffer, or its dropped copy
 * in `dropped`. */
static const floatX *branch_gradient(GPT2 *model, const Batch *b, DropoutSite site, int l, floatX *dropped) {
    const floatX *dresidual = gpt2_activation(model, ACT_DRESIDUAL, 0);
    drop(model, b, site, l, dropped, dresidual);
    return b->dropout > 0 ? dropped : dresidual;
}

static AttentionMask attention_mask(const GPT2 *model, const Batch *b, int l) {
    return (AttentionMask){model->config.window, dropout_at(model, b, SITE_ATTENTION, l)};
}

/* ---- forward ---- */

/* What enters block `layer`: the embedding, or the block below. (B,T,C) */
static floatX *block_input(const GPT2 *model, int layer) {
    return layer == 0 ? gpt2_activation(model, ACT_ENCODED, 0)
                      : gpt2_activation(model, ACT_RESIDUAL_3, layer - 1);
}

/* ln_1 -> qkv */
static void qkv_forward(GPT2 *model, const Batch *b, int l) {
    model->ops->linear_forward(gpt2_activation(model, ACT_QKV, l), NULL, gpt2_activation(model, ACT_LN_1, l),
                               gpt2_weight(model, C_ATTN_W, l), gpt2_weight(model, C_ATTN_B, l), b->N,
                               3 * b->C, b->C);
}

/* qkv -> attn */
static void attention_forward(GPT2 *model, const Batch *b, int l) {
    const Ops *ops = model->ops;
    floatX *qkv = gpt2_activation(model, ACT_QKV, l), *attn = gpt2_activation(model, ACT_ATTN, l);
    const AttentionMask mask = attention_mask(model, b, l);
    if (model->options.attention == ATTENTION_STANDARD)
        ops->attention_standard_forward(attn, gpt2_activation(model, ACT_PROBS, l),
                                        gpt2_activation(model, ACT_DPROBS, 0), qkv, &mask, b->B, b->T, b->NH,
                                        b->HD);
    else
        ops->attention_forward(attn, activation_f32(model, ACT_LSE, l), qkv, &mask, b->B, b->T, b->NH, b->HD);
}

/* attn, block input -> residual_2, ln_2, fch, fch_gelu */
static void mlp_hidden_forward(GPT2 *model, const Batch *b, int l) {
    const Ops *ops = model->ops;
    floatX *branch = gpt2_activation(model, ACT_BRANCH, 0), *ln_2 = gpt2_activation(model, ACT_LN_2, l);
    ops->linear_forward(branch, NULL, gpt2_activation(model, ACT_ATTN, l), gpt2_weight(model, ATTN_PROJ_W, l),
                        gpt2_weight(model, ATTN_PROJ_B, l), b->N, b->C, b->C);
    drop(model, b, SITE_ATTN_PROJ, l, branch, branch);
    ops->residual_layernorm_forward(gpt2_activation(model, ACT_RESIDUAL_2, l), ln_2,
                                    activation_f32(model, ACT_LN_2_MEAN, l),
                                    activation_f32(model, ACT_LN_2_RSTD, l), block_input(model, l), branch,
                                    gpt2_weight(model, LN_2_W, l), gpt2_weight(model, LN_2_B, l), b->N, b->C);
    ops->linear_forward(gpt2_activation(model, ACT_FCH_GELU, l), gpt2_activation(model, ACT_FCH, l), ln_2,
                        gpt2_weight(model, C_FC_W, l), gpt2_weight(model, C_FC_B, l), b->N, 4 * b->C, b->C);
}

/* residual_2 + branch -> residual_3, and the norm that follows it: the next block's ln_1, or ln_f. */
static void block_output_forward(GPT2 *model, const Batch *b, int l) {
    const bool last = l == model->config.n_layer - 1;
    const int next = last ? 0 : l + 1;
    floatX *branch = gpt2_activation(model, ACT_BRANCH, 0);
    model->ops->linear_forward(branch, NULL, gpt2_activation(model, ACT_FCH_GELU, l),
                               gpt2_weight(model, MLP_PROJ_W, l), gpt2_weight(model, MLP_PROJ_B, l), b->N,
                               b->C, 4 * b->C);
    drop(model, b, SITE_MLP_PROJ, l, branch, branch);
    model->ops->residual_layernorm_forward(
        gpt2_activation(model, ACT_RESIDUAL_3, l), gpt2_activation(model, last ? ACT_LN_F : ACT_LN_1, next),
        activation_f32(model, last ? ACT_LN_F_MEAN : ACT_LN_1_MEAN, next),
        activation_f32(model, last ? ACT_LN_F_RSTD : ACT_LN_1_RSTD, next),
        gpt2_activation(model, ACT_RESIDUAL_2, l), branch, gpt2_weight(model, last ? LN_F_W : LN_1_W, next),
        gpt2_weight(model, last ? LN_F_B : LN_1_B, next), b->N, b->C);
}

static void ln_1_forward(GPT2 *model, const Batch *b, int l) {
    model->ops->layernorm_forward(gpt2_activation(model, ACT_LN_1, l),
                                  activation_f32(model, ACT_LN_1_MEAN, l),
                                  activation_f32(model, ACT_LN_1_RSTD, l), block_input(model, l),
                                  gpt2_weight(model, LN_1_W, l), gpt2_weight(model, LN_1_B, l), b->N, b->C);
}

static void upload_batch(GPT2 *model, const Batch *b, const int32_t *tokens, const int32_t *targets) {
    model->ops->upload(model->tokens, tokens, (size_t)b->N * sizeof *tokens);
    model->ops->upload(model->targets, targets, (size_t)b->N * sizeof *targets);
}

/* tokens -> ln_f */
static void forward(GPT2 *model, const Batch *b) {
    const Ops *ops = model->ops;
    floatX *encoded = gpt2_activation(model, ACT_ENCODED, 0);
    ops->embedding_forward(encoded, model->tokens, gpt2_weight(model, WTE, 0), gpt2_weight(model, WPE, 0),
                           b->B, b->T, b->C);
    drop(model, b, SITE_EMBEDDING, 0, encoded, encoded);
    ln_1_forward(model, b, 0);
    for (int l = 0; l < model->config.n_layer && !gpt2_stops(model); l++) {
        qkv_forward(model, b, l);
        attention_forward(model, b, l);
        if (gpt2_stops(model)) return;
        mlp_hidden_forward(model, b, l);
        block_output_forward(model, b, l);
    }
}

/* ---- gradients of the linear layers' weights ---- */

/* dweight and, with_bias, dbias of a layer; `first`: the step's first product for this weight. */
static void weight_gradient(GPT2 *model, TensorId weight, bool with_bias, bool first, int l,
                            const floatX *dout, const floatX *x, int64_t N, int OC, int IC) {
    float *dweight = gpt2_grad(model, weight, l), *dbias = with_bias ? gpt2_grad(model, weight + 1, l) : NULL;
    const Ops *ops = model->ops;
    (first ? ops->linear_backward_weight_first : ops->linear_backward_weight)(dweight, dbias, dout, x,
                                                                              model->scratch, N, OC, IC);
}

/* ---- LM head and loss, in chunks of tokens, so that logits (B*T, Vp) never exist ---- */

typedef struct Chunk {
    int64_t row, n;
    floatX *ln_f, *logits;
    float *losses;
    const int32_t *targets;
} Chunk;

/* Logits of the chunk that starts at `row`, into ACT_LOGITS. */
static Chunk head_forward(GPT2 *model, const Batch *b, int64_t row) {
    const int64_t left = b->N - row, limit = model->shape.loss_rows;
    Chunk c = {
        .row = row,
        .n = left < limit ? left : limit,
        .ln_f = rows_from(model, gpt2_activation(model, ACT_LN_F, 0), row, b->C),
        .logits = gpt2_activation(model, ACT_LOGITS, 0),
        .losses = activation_f32(model, ACT_LOSSES, 0) + row,
        .targets = model->targets + row,
    };
    model->ops->linear_forward(c.logits, NULL, c.ln_f, gpt2_weight(model, WTE, 0), NULL, c.n,
                               model->config.padded_vocab_size, b->C);
    return c;
}

/* losses =, dwte +=, and the gradient of ln_f into BRANCH */
static void head_backward(GPT2 *model, const Batch *b, float dloss) {
    const Ops *ops = model->ops;
    const int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    floatX *dln_f = gpt2_activation(model, ACT_BRANCH, 0);
    for (int64_t row = 0; row < b->N && !gpt2_stops(model); row += model->shape.loss_rows) {
        Chunk c = head_forward(model, b, row);
        if (gpt2_stops(model)) return;
        ops->cross_entropy_backward_inplace(c.losses, c.logits, c.targets, dloss, c.n, V, Vp);
        ops->linear_backward_input(rows_from(model, dln_f, row, b->C), NULL, NULL, c.logits,
                                   gpt2_weight(model, WTE, 0), NULL, model->scratch, c.n, Vp, b->C);
        weight_gradient(model, WTE, false, model->first && row == 0, 0, c.logits, c.ln_f, c.n, Vp, b->C);
    }
}

/* ---- backward ---- */

/* Brings back what block `l` did not keep, but for a GELU alone, which mlp_proj_backward brings. The last block's
 * buffers still hold its own forward. */
static void recompute_block(GPT2 *model, const Batch *b, int l) {
    const Recompute level = model->options.recompute;
    if (level < RECOMPUTE_LINEAR || l == model->config.n_layer - 1) return;
    ln_1_forward(model, b, l);
    qkv_forward(model, b, l);
    if (level == RECOMPUTE_BLOCK) attention_forward(model, b, l);
    mlp_hidden_forward(model, b, l);
}

/* Bias gradients are column sums of a gradient, taken by the op that writes it: dfch's by linear_backward_input,
 * dresidual's by layernorm_backward; where dropout stands between dresidual and the branch, by the branch's
 * weight_gradient. Where attention drops nothing, only dq is summed: dk's sums are 0, and dv's follow from the
 * gradient of ATTN_PROJ_B (qkv_bias_backward). */
static float *bias_gradient(GPT2 *model, const Batch *b, TensorId bias, int l) {
    return b->dropout > 0 ? NULL : gpt2_grad(model, bias, l);
}

/* dfch =, the bias gradient of c_fc +=; gelu = GELU of fch, or NULL */
static void fch_backward(GPT2 *model, const Batch *b, int l, floatX *dfch, floatX *gelu, const floatX *dout) {
    model->ops->linear_backward_input(dfch, gpt2_grad(model, C_FC_B, l), gelu, dout,
                                      gpt2_weight(model, MLP_PROJ_W, l), gpt2_activation(model, ACT_FCH, l),
                                      model->scratch, b->N, b->C, 4 * b->C);
}

/* c_proj's weight gradient from GELU and dout, then dfch in the place of GELU. A GELU that was not kept takes the
 * place of fch when dfch is computed, which reads fch anyway: there dfch comes first. */
static void mlp_proj_backward(GPT2 *model, const Batch *b, int l, const floatX *dout) {
    const bool recompute = model->options.recompute == RECOMPUTE_GELU;
    floatX *fch = gpt2_activation(model, ACT_FCH, l), *fch_gelu = gpt2_activation(model, ACT_FCH_GELU, l);
    if (recompute) fch_backward(model, b, l, fch_gelu, fch, dout);
    weight_gradient(model, MLP_PROJ_W, b->dropout > 0, model->first, l, dout, recompute ? fch : fch_gelu,
                    b->N, b->C, 4 * b->C);
    if (!recompute) fch_backward(model, b, l, fch_gelu, NULL, dout);
}

/* dresidual: gradient of residual_3 -> gradient of residual_2 */
static void mlp_backward(GPT2 *model, const Batch *b, int l) {
    const Ops *ops = model->ops;
    floatX *dresidual = gpt2_activation(model, ACT_DRESIDUAL, 0),
           *dbranch = gpt2_activation(model, ACT_BRANCH, 0);
    const floatX *dfch = gpt2_activation(model, ACT_FCH_GELU, l);
    mlp_proj_backward(model, b, l, branch_gradient(model, b, SITE_MLP_PROJ, l, dbranch));
    weight_gradient(model, C_FC_W, false, model->first, l, dfch, gpt2_activation(model, ACT_LN_2, l), b->N,
                    4 * b->C, b->C);
    ops->linear_backward_input(dbranch, NULL, NULL, dfch, gpt2_weight(model, C_FC_W, l), NULL, model->scratch,
                               b->N, 4 * b->C, b->C);
    ops->layernorm_backward(dresidual, gpt2_grad(model, LN_2_W, l), gpt2_grad(model, LN_2_B, l),
                            bias_gradient(model, b, ATTN_PROJ_B, l), dresidual, dbranch,
                            gpt2_activation(model, ACT_RESIDUAL_2, l), gpt2_weight(model, LN_2_W, l),
                            activation_f32(model, ACT_LN_2_MEAN, l), activation_f32(model, ACT_LN_2_RSTD, l),
                            model->scratch, b->N, b->C);
}

/* Back through attention's projection, whose output's gradient is dout, to dattn, and through attention, either way, to
 * dqkv. D of plain attention lies behind dqkv, which takes three quarters of its buffer. */
static void attention_core_backward(GPT2 *model, const Batch *b, int l, floatX *dqkv, floatX *dattn,
                                    const floatX *dout) {
    const Ops *ops = model->ops;
    const floatX *qkv = gpt2_activation(model, ACT_QKV, l), *attn = gpt2_activation(model, ACT_ATTN, l);
    const floatX *weight = gpt2_weight(model, ATTN_PROJ_W, l);
    const AttentionMask mask = attention_mask(model, b, l);
    const bool flash = model->options.attention == ATTENTION_FLASH;
    const bool plain = flash && attention_is_plain(&mask, b->T);
    float *d = (float *)rows_from(model, dqkv, b->N, 3 * b->C);
    const bool d_known = plain && ops->linear_backward_input_row_dots(
                                      dattn, d, dout, weight, attn, model->scratch, b->N, b->C, b->C, b->HD);
    if (!plain)
        ops->linear_backward_input(dattn, NULL, NULL, dout, weight, NULL, model->scratch, b->N, b->C, b->C);
    if (!flash)
        ops->attention_standard_backward(dqkv, gpt2_activation(model, ACT_DPROBS, 0), dattn,
                                         gpt2_activation(model, ACT_PROBS, l), qkv, &mask, b->B, b->T, b->NH,
                                         b->HD);
    else
        ops->attention_backward(dqkv, dattn, attn, qkv, activation_f32(model, ACT_LSE, l), d_known ? d : NULL,
                                &mask, model->scratch, b->B, b->T, b->NH, b->HD);
}

/* dresidual: gradient of residual_2 -> gradient of the block's input */
static void attention_backward(GPT2 *model, const Batch *b, int l) {
    const Ops *ops = model->ops;
    floatX *dresidual = gpt2_activation(model, ACT_DRESIDUAL, 0),
           *dbranch = gpt2_activation(model, ACT_BRANCH, 0);
    floatX *dqkv = gpt2_activation(model, ACT_FCH, l);
    /* nobody reads dfch any more */
    const floatX *dout =
        branch_gradient(model, b, SITE_ATTN_PROJ, l, gpt2_activation(model, ACT_FCH_GELU, l));
    weight_gradient(model, ATTN_PROJ_W, b->dropout > 0, model->first, l, dout,
                    gpt2_activation(model, ACT_ATTN, l), b->N, b->C, b->C);
    attention_core_backward(model, b, l, dqkv, dbranch, dout);
    if (b->dropout == 0)
        ops->qkv_bias_backward(gpt2_grad(model, C_ATTN_B, l), dqkv, gpt2_grad(model, ATTN_PROJ_B, l),
                               gpt2_weight(model, ATTN_PROJ_W, l), model->scratch, b->N, b->C);
    weight_gradient(model, C_ATTN_W, b->dropout > 0, model->first, l, dqkv,
                    gpt2_activation(model, ACT_LN_1, l), b->N, 3 * b->C, b->C);
    ops->linear_backward_input(dbranch, NULL, NULL, dqkv, gpt2_weight(model, C_ATTN_W, l), NULL,
                               model->scratch, b->N, 3 * b->C, b->C);
    ops->layernorm_backward(dresidual, gpt2_grad(model, LN_1_W, l), gpt2_grad(model, LN_1_B, l),
                            l > 0 ? bias_gradient(model, b, MLP_PROJ_B, l - 1) : NULL, dresidual, dbranch,
                            block_input(model, l), gpt2_weight(model, LN_1_W, l),
                            activation_f32(model, ACT_LN_1_MEAN, l), activation_f32(model, ACT_LN_1_RSTD, l),
                            model->scratch, b->N, b->C);
}

static void backward(GPT2 *model, const Batch *b, float dloss) {
    const Ops *ops = model->ops;
    const int L = model->config.n_layer;
    floatX *dresidual = gpt2_activation(model, ACT_DRESIDUAL, 0);
    head_backward(model, b, dloss);
    ops->layernorm_backward(dresidual, gpt2_grad(model, LN_F_W, 0), gpt2_grad(model, LN_F_B, 0),
                            bias_gradient(model, b, MLP_PROJ_B, L - 1), NULL,
                            gpt2_activation(model, ACT_BRANCH, 0),
                            gpt2_activation(model, ACT_RESIDUAL_3, L - 1), gpt2_weight(model, LN_F_W, 0),
                            activation_f32(model, ACT_LN_F_MEAN, 0), activation_f32(model, ACT_LN_F_RSTD, 0),
                            model->scratch, b->N, b->C);
    for (int l = L - 1; l >= 0 && !gpt2_stops(model); l--) {
        recompute_block(model, b, l);
        if (gpt2_stops(model)) return;
        mlp_backward(model, b, l);
        if (gpt2_stops(model)) return;
        attention_backward(model, b, l);
    }
    if (gpt2_stops(model)) return;
    drop(model, b, SITE_EMBEDDING, 0, dresidual, dresidual);
    ops->embedding_backward(gpt2_grad(model, WTE, 0), gpt2_grad(model, WPE, 0), dresidual, model->tokens,
                            model->scratch, b->B, b->T, b->C, model->config.vocab_size);
}

/* ---- the calls of gpt2.h ---- */

void gpt2_set_weights(GPT2 *model, const float *host, int64_t begin, int64_t n) {
    const Ops *ops = model->ops;
    ops->upload(model->master + begin, host, (size_t)n * sizeof *host);
    if (model->weights != model->master)
        ops->weights_from_master(rows_from(model, model->weights, begin, 1), model->master + begin, n);
}

void gpt2_reset_optimizer(GPT2 *model) {
    for (int i = 0; i < N_STATES; i++)
        model->ops->zero(model->states[i], optimizer_state_bytes((StateId)i, model->n_parameters));
}

float gpt2_eval(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T) {
    const Batch b = batch_of(model, B, T);
    upload_batch(model, &b, tokens, targets);
    forward(model, &b);
    for (int64_t row = 0; row < b.N && !gpt2_stops(model); row += model->shape.loss_rows) {
        Chunk c = head_forward(model, &b, row);
        model->ops->cross_entropy_forward(c.losses, c.logits, c.targets, c.n, model->config.vocab_size,
                                          model->config.padded_vocab_size);
    }
    float *losses = malloc((size_t)b.N * sizeof *losses);
    if (!losses) abort();
    model->ops->download(losses, activation_f32(model, ACT_LOSSES, 0), (size_t)b.N * sizeof *losses);
    double sum = 0;
    for (int64_t i = 0; i < b.N; i++) sum += losses[i];
    free(losses);
    return (float)(sum / (double)b.N);
}

void gpt2_begin_step(GPT2 *model) {
    int64_t begin = 0; /* of what is to be zeroed and was not yet */
    for (int id = 0; id <= N_TENSORS; id++) {
        const bool overwritten = id < N_TENSORS && model->tensors[id].overwritten;
        if (!overwritten && id < N_TENSORS) continue;
        const int64_t end = id < N_TENSORS ? model->tensors[id].offset : model->n_parameters;
        if (end > begin) model->ops->zero(model->grads + begin, (size_t)(end - begin) * sizeof(float));
        if (id < N_TENSORS) begin = end + model->tensors[id].layer_elems * model->tensors[id].n_layers;
    }
    model->first = true;
    model->step++;
    model->n_micro_steps = 0;
    model->ops->zero(model->stats, offsetof(StepStats, n_skipped));
}

static void micro_step_ops(GPT2 *model, const Batch *b, float per_token) {
    forward(model, b);
    backward(model, b, per_token);
    model->ops->loss_sum(model->stats, activation_f32(model, ACT_LOSSES, 0), per_token, model->scratch, b->N);
}

/* True once there is a recording of this micro-step: the first run of a shape readies what its ops need, the
 * second is noted. A backend that cannot is not asked again. */
static bool record_micro_step(GPT2 *model, const Batch *b, float per_token) {
    RecordedStep *r = &model->recorded[model->first];
    if (r->B != b->B || r->T != b->T || r->weight != per_token) {
        model->ops->recording_release(r->ops);
        *r = (RecordedStep){.B = b->B, .T = b->T, .weight = per_token};
    }
    if (r->n_runs++ == 0 || !model->options.graph) return false;
    if (r->ops) return true;
    if (model->ops->record_begin()) {
        micro_step_ops(model, b, per_token);
        r->ops = model->ops->record_end();
    }
    model->options.graph = r->ops != NULL;
    return model->options.graph;
}

/* On the device, not among the ops' arguments: a replayed micro-step draws anew as well. */
static void upload_dropout_key(GPT2 *model) {
    enum { STREAM_DROPOUT = 0x64726F70 }; /* "drop" */
    const uint64_t of_seed = random_stream(model->options.dropout_seed, STREAM_DROPOUT);
    const uint64_t key = random_stream(of_seed + (uint64_t)model->step, (uint64_t)model->n_micro_steps);
    model->ops->upload(model->dropout_key, &key, sizeof key);
}

void gpt2_micro_step(GPT2 *model, const int32_t *tokens, const int32_t *targets, int B, int T, float weight) {
    Batch b = batch_of(model, B, T);
    const float per_token = weight / (float)b.N;
    b.dropout = model->config.dropout;
    upload_batch(model, &b, tokens, targets);
    if (b.dropout > 0) upload_dropout_key(model);
    if (record_micro_step(model, &b, per_token))
        model->ops->replay(model->recorded[model->first].ops);
    else
        micro_step_ops(model, &b, per_token);
    model->first = false;
    model->n_micro_steps++;
}

void gpt2_update(GPT2 *model, const UpdateArgs *args) {
    const OptimizerBuffers buffers = {model->master, model->weights, model->grads, model->states,
                                      model->stats};
    ParameterRange ranges[N_TENSORS];
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *t = &model->tensors[id];
        ranges[id] = (ParameterRange){t->offset, t->offset + t->layer_elems * t->n_layers, t->group};
    }
    model->ops->grad_norm(model->stats, model->grads, model->scratch, model->n_parameters);
    optimizer_step(model->ops, &buffers, ranges, N_TENSORS, args);
}

StepStats gpt2_step_stats(GPT2 *model) {
    StepStats stats;
    model->ops->download(&stats, model->stats, sizeof stats);
    return stats;
}

void gpt2_queue_stats(GPT2 *model, int slot) {
    model->ops->fetch_begin(slot, model->stats, sizeof *model->stats);
}

StepStats gpt2_take_stats(GPT2 *model, int slot) {
    StepStats stats;
    model->ops->fetch_end(slot, &stats, sizeof stats);
    return stats;
}

void gpt2_logits(GPT2 *model, float *host, int64_t first_row, int64_t rows) {
    const int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    Batch b = batch_of(model, 1, 1);
    for (int64_t done = 0; done < rows;) {
        b.N = first_row + rows; /* head_forward stops there */
        Chunk c = head_forward(model, &b, first_row + done);
        size_t bytes = (size_t)(c.n * Vp) * dtype_bytes(model->ops->dtype);
        char *stage = malloc(bytes);
        if (!stage) abort();
        model->ops->download(stage, c.logits, bytes);
        for (int64_t i = 0; i < c.n; i++)
            floats_from_storage(host + (done + i) * V, rows_from(model, stage, i, Vp), V, model->ops->dtype);
        free(stage);
        done += c.n;
    }
}
