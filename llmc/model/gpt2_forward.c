/* GPT-2's forward pass over the ops, one call a line. */
#include <stdlib.h>
#include "documents.h"
#include "gpt2_pass.h"

floatX *block_input(const GPT2 *model, int layer) {
    return layer == 0 ? gpt2_activation(model, ACT_ENCODED, 0)
                      : gpt2_activation(model, ACT_RESIDUAL_3, layer - 1);
}

/* ---- dropout and masks ---- */

static Dropout dropout_at(const GPT2 *model, const Batch *b, DropoutSite site, int l) {
    return (Dropout){model->dropout_key, (uint32_t)(l * N_SITES + site), b->dropout};
}

void drop(GPT2 *model, const Batch *b, DropoutSite site, int l, floatX *out, const floatX *x) {
    const Dropout dropout = dropout_at(model, b, site, l);
    if (b->dropout > 0) model->ops->dropout(out, x, &dropout, b->N, b->C);
}

void upload_documents(GPT2 *model, const int32_t *tokens, int B, int T) {
    const size_t n = (size_t)B * (size_t)T;
    if (!model->config.documents) return;
    int32_t *bounds = must_allocate(2 * n * sizeof *bounds, "the bounds of documents");
    document_bounds(bounds, bounds + n, tokens, B, T, model->config.end_of_text);
    model->seen_pairs += document_pairs(bounds, bounds + n, (int64_t)n, model->config.window);
    model->seen_tokens += (int64_t)n;
    model->ops->device->upload(model->starts, bounds, n * sizeof *bounds);
    model->ops->device->upload(model->ends, bounds + n, n * sizeof *bounds);
    free(bounds);
}

static BlockSparse sparse_of_layer(const GPT2 *model, int l) {
    const GPT2Config *c = &model->config;
    if (c->sparse.window == 0) return (BlockSparse){0};
    return sparse_of(c->sparse, model->sparse_tables + (size_t)l * sparse_words(model), model->sparse_T,
                     c->max_seq_len);
}

AttentionMask mask_of(const GPT2 *model, const Batch *b, int l) {
    return (AttentionMask){model->config.window, dropout_at(model, b, SITE_ATTENTION, l), model->starts,
                           model->ends, sparse_of_layer(model, l)};
}

/* ---- norms ---- */

static void norm_forward(GPT2 *model, const Batch *b, Norm norm, const floatX *x) {
    const int l = norm.layer;
    model->ops->layernorm_forward(gpt2_activation(model, norm.out, l), activation_f32(model, norm.out + 1, l),
                                  activation_f32(model, norm.out + 2, l), x,
                                  gpt2_weight(model, norm.weight, l), gpt2_weight(model, norm.weight + 1, l),
                                  b->N, b->C);
}

/* residual = x + branch, and the norm of it. */
static void residual_norm_forward(GPT2 *model, const Batch *b, Norm norm, floatX *residual, const floatX *x,
                                  const floatX *branch) {
    const int l = norm.layer;
    model->ops->residual_layernorm_forward(
        residual, gpt2_activation(model, norm.out, l), activation_f32(model, norm.out + 1, l),
        activation_f32(model, norm.out + 2, l), x, branch, gpt2_weight(model, norm.weight, l),
        gpt2_weight(model, norm.weight + 1, l), b->N, b->C);
}

/* ---- the block ---- */

/* ln_1 -> qkv. fch and fch_gelu, to exchange it, are still to be made. */
static void qkv_forward(GPT2 *model, const Batch *b, int l) {
    floatX *qkv = gpt2_activation(model, ACT_QKV, l);
    linear_forward(model, C_ATTN_W, l, qkv, NULL, gpt2_activation(model, ACT_LN_1, l), b->N);
    heads_from_tokens(model, b, qkv, 3, gpt2_activation(model, ACT_FCH, l),
                      gpt2_activation(model, ACT_FCH_GELU, l));
}

/* Where the keys and values of layer l, of sequences from b->sequence on, are kept. */
static floatX *cache_of(const GPT2 *model, const Batch *b, int l) {
    const KVCache *cache = b->cache;
    const int64_t sequence = (int64_t)l * cache->B + b->sequence;
    return rows_from(model, cache->data, sequence * cache->T, 2 * b->C);
}

/* k and v of qkv's rows into the cache. */
static void fill_cache(const GPT2 *model, const Batch *b, int l) {
    const size_t channels = (size_t)b->C * dtype_bytes(model->ops->dtype);
    const char *qkv = gpt2_activation(model, ACT_QKV, l);
    model->ops->device->copy_rows(cache_of(model, b, l), 2 * channels, qkv + channels, 3 * channels,
                                  2 * channels, b->N);
}

/* qkv -> attn, through the branch's scratch where it is exchanged */
static void attention_forward(GPT2 *model, const Batch *b, int l) {
    const Ops *ops = model->ops;
    const floatX *qkv = gpt2_activation(model, ACT_QKV, l);
    const bool whole = b->context.n_ranks == 1;
    floatX *attn = gpt2_activation(model, ACT_ATTN, l),
           *heads = whole ? attn : gpt2_activation(model, ACT_BRANCH, 0);
    const int T = context_of(b), NH = heads_of(b);
    const AttentionMask mask = mask_of(model, b, l);
    if (b->positions)
        ops->attention_decode(attn, cache_of(model, b, l), qkv, b->positions, b->begins, model->scratch,
                              &mask, b->B, b->cache->T, b->NH, b->HD);
    else if (model->options.attention == ATTENTION_STANDARD)
        ops->attention_standard_forward(heads, gpt2_activation(model, ACT_PROBS, l),
                                        gpt2_activation(model, ACT_DPROBS, 0), qkv, &mask, b->B, T, NH,
                                        b->HD);
    else
        ops->attention_forward(heads, activation_f32(model, ACT_LSE, l), qkv, &mask, b->B, T, NH, b->HD);
    if (b->cache && !b->positions) fill_cache(model, b, l);
    tokens_from_heads(model, b, attn, heads, 1, gpt2_activation(model, ACT_FCH, l),
                      gpt2_activation(model, ACT_FCH_GELU, l));
}

/* attn, block input -> residual_2, ln_2, fch, fch_gelu */
static void mlp_hidden_forward(GPT2 *model, const Batch *b, int l) {
    floatX *branch = gpt2_activation(model, ACT_BRANCH, 0);
    linear_forward(model, ATTN_PROJ_W, l, branch, NULL, gpt2_activation(model, ACT_ATTN, l), b->N);
    drop(model, b, SITE_ATTN_PROJ, l, branch, branch);
    residual_norm_forward(model, b, ln_2_of(l), gpt2_activation(model, ACT_RESIDUAL_2, l),
                          block_input(model, l), branch);
    linear_forward(model, C_FC_W, l, gpt2_activation(model, ACT_FCH_GELU, l),
                   gpt2_activation(model, ACT_FCH, l), gpt2_activation(model, ACT_LN_2, l), b->N);
}

/* fch_gelu, residual_2 -> residual_3, and the norm that follows it */
static void block_output_forward(GPT2 *model, const Batch *b, int l) {
    floatX *branch = gpt2_activation(model, ACT_BRANCH, 0);
    linear_forward(model, MLP_PROJ_W, l, branch, NULL, gpt2_activation(model, ACT_FCH_GELU, l), b->N);
    drop(model, b, SITE_MLP_PROJ, l, branch, branch);
    residual_norm_forward(model, b, norm_after(model, l), gpt2_activation(model, ACT_RESIDUAL_3, l),
                          gpt2_activation(model, ACT_RESIDUAL_2, l), branch);
}

void forward_pass(GPT2 *model, const Batch *b) {
    floatX *encoded = gpt2_activation(model, ACT_ENCODED, 0);
    const floatX *positions = rows_from(model, gpt2_weight(model, WPE, 0), position_of(b), b->C);
    now_at(model, "forward", -1);
    model->ops->embedding_forward(encoded, model->tokens, b->positions, gpt2_weight(model, WTE, 0), positions,
                                  b->B, b->T, b->C);
    drop(model, b, SITE_EMBEDDING, 0, encoded, encoded);
    norm_forward(model, b, ln_1_of(0), encoded);
    for (int l = 0; l < model->config.n_layer && !gpt2_stops(model); l++) {
        now_at(model, "forward", l);
        qkv_forward(model, b, l);
        attention_forward(model, b, l);
        if (gpt2_stops(model)) return;
        mlp_hidden_forward(model, b, l);
        block_output_forward(model, b, l);
    }
}

/* The last block's buffers still hold its own forward. GELU's output alone comes back with mlp_proj_backward. */
void recompute_block(GPT2 *model, const Batch *b, int l) {
    const Recompute level = model->options.recompute;
    if (level < RECOMPUTE_LINEAR || l == model->config.n_layer - 1) return;
    now_at(model, "recompute", l);
    norm_forward(model, b, ln_1_of(l), block_input(model, l));
    qkv_forward(model, b, l);
    if (level == RECOMPUTE_BLOCK) attention_forward(model, b, l);
    mlp_hidden_forward(model, b, l);
}

Chunk head_forward(GPT2 *model, const Batch *b, int64_t row) {
    const int64_t left = b->N - row, limit = model->shape.loss_rows;
    Chunk c = {
        .row = row,
        .n = left < limit ? left : limit,
        .ln_f = rows_from(model, gpt2_activation(model, ACT_LN_F, 0), row, b->C),
        .logits = gpt2_activation(model, ACT_LOGITS, 0),
        .losses = activation_f32(model, ACT_LOSSES, 0) + row,
        .targets = model->targets + row,
    };
    now_at(model, "head", -1);
    linear_forward(model, WTE, 0, c.logits, NULL, c.ln_f, c.n);
    return c;
}
