/* What the files of the model's passes share: gpt2*.c and sampler.c. For nobody else. */
#pragma once
#include "gpt2.h"

/* Keys and values of the sequences that are sampled, on the device. */
typedef struct KVCache {
    floatX *data; /* (n_layer,B,T,2,C) */
    int B, T;
} KVCache;

/* The rows that a pass works on. A micro-batch may be smaller than the model was opened for. */
typedef struct Batch {
    int B, T;      /* sequences, this rank's tokens of each */
    int64_t N;     /* B*T */
    Ranks context; /* T tokens are part context.rank of a context's n_ranks parts */
    int C, NH, HD;
    float dropout; /* 0 outside of training */
    /* In sampling alone: a sequence from its beginning, whose keys and values go into the cache as sequence `sequence`;
     * or, with positions (B) on the device, a new token of each sequence of the cache. */
    const KVCache *cache;
    int sequence;
    const int32_t *positions, *begins; /* begins (B): where the documents of the new tokens start, or NULL */
} Batch;

/* The ops that follow are of this phase of the micro-step; layer -1: of no layer. */
static inline void now_at(GPT2 *model, const char *phase, int layer) {
    model->at = (PassPlace){phase, (int)model->n_micro_steps, layer};
}

/* Among the ranks that share a sequence's tokens out; 0 of 1 where this one has them all. */
static inline Ranks context_ranks(const GPT2Options *options) {
    return options->context ? options->context->ranks : comm_alone.ranks;
}

/* T: of the whole context. */
Batch batch_of(const GPT2 *model, int B, int T);

/* Sizes of attention, which sees whole sequences. */
static inline int context_of(const Batch *b) {
    return b->T * b->context.n_ranks;
}
static inline int heads_of(const Batch *b) {
    return b->NH / b->context.n_ranks;
}
/* Of the micro-batch, all ranks'. */
static inline int64_t tokens_of(const Batch *b) {
    return b->N * b->context.n_ranks;
}
/* Of the micro-batch's first row in the context. */
static inline int position_of(const Batch *b) {
    return b->context.rank * b->T;
}

/* The side stream waits for what the main stream has so far; the main stream for what the side stream has. */
static inline void side_waits(const GPT2 *model, EventId event) {
    model->ops->device->event_record(event, STREAM_MAIN);
    model->ops->device->stream_wait(STREAM_SIDE, event);
}
static inline void main_waits(const GPT2 *model, EventId event) {
    model->ops->device->event_record(event, STREAM_SIDE);
    model->ops->device->stream_wait(STREAM_MAIN, event);
}

/* The rows of the table, without memory; L layers. */
void activation_table(Activation table[N_ACTIVATIONS], const Ops *ops, const OpShape *shape, int L,
                      const GPT2Options *options);
size_t activation_bytes(const Activation *a, const GPT2Options *options);

static inline float *activation_f32(const GPT2 *model, ActivationId id, int layer) {
    return (float *)gpt2_activation(model, id, layer);
}

/* Rows from `row` on of an (N, width) buffer of the storage type. */
static inline floatX *rows_from(const GPT2 *model, floatX *base, int64_t row, int64_t width) {
    return (char *)base + (size_t)(row * width) * dtype_bytes(model->ops->dtype);
}

/* ---- gradients that live in an activation's buffer, once nobody reads that activation any more ---- */

/* The residual stream's gradient, a buffer of its own: each branch adds its part on the way down. (B,T,C) */
static inline floatX *dresidual_of(const GPT2 *model) {
    return gpt2_activation(model, ACT_DRESIDUAL, 0);
}
/* The gradient of a norm's output, in the branch's scratch. (B,T,C) */
static inline floatX *dnorm_of(const GPT2 *model) {
    return gpt2_activation(model, ACT_BRANCH, 0);
}
/* The gradient of attention's output, in the same scratch, before that of ln_1's output. (B,T,C) */
static inline floatX *dattn_of(const GPT2 *model) {
    return gpt2_activation(model, ACT_BRANCH, 0);
}
/* (B,T,4C) in place of GELU's output. */
static inline floatX *dfch_of(const GPT2 *model, int layer) {
    return gpt2_activation(model, ACT_FCH_GELU, layer);
}
/* (B,T,3C) in place of GELU's input, of which it takes three quarters. */
static inline floatX *dqkv_of(const GPT2 *model, int layer) {
    return gpt2_activation(model, ACT_FCH, layer);
}
/* D = rowsum(dO * O) of attention, (B,T,NH) fp32, in the last quarter of dqkv's buffer. */
static inline float *attention_d_of(const GPT2 *model, const Batch *b, int layer) {
    return (float *)rows_from(model, dqkv_of(model, layer), b->N, 3 * b->C);
}

/* ---- linear layers: output and input channels are the weight's rows and columns ---- */

/* out = x W^T + bias (the head has no bias). With pre_gelu: pre_gelu = x W^T + bias, out = its GELU.
 * out, pre_gelu (N,rows), x (N,columns) */
void linear_forward(GPT2 *model, TensorId weight, int layer, floatX *out, floatX *pre_gelu, const floatX *x,
                    int64_t N);
/* What a layer's input gradient goes through where GELU made its input. */
typedef struct GeluBackward {
    const floatX *pre_gelu; /* (N,columns) */
    floatX *gelu;           /* = GELU of pre_gelu, or NULL; may be pre_gelu */
    float *dx_sums;         /* += column sums of dx */
} GeluBackward;
/* dx = dout W, times GELU's derivative where through != NULL.   dx (N,columns), dout (N,rows) */
void linear_input_gradient(GPT2 *model, TensorId weight, int layer, floatX *dx, const floatX *dout,
                           const GeluBackward *through, int64_t N);
/* dx = dout W, and whether D came with it: row_dots (N, columns / group) fp32 = sums of dx * other over `group` columns. */
bool linear_input_gradient_row_dots(GPT2 *model, TensorId weight, int layer, floatX *dx, float *row_dots,
                                    const floatX *dout, const floatX *other, int group, int64_t N);
/* The weight's gradient from dout and x, in the mode of write_mode; with_bias, the bias's += column sums of dout. */
void linear_weight_gradient(GPT2 *model, TensorId weight, int layer, const floatX *dout, const floatX *x,
                            int64_t N, bool with_bias, WriteMode mode);
/* A step's first product for a weight overwrites its gradient. */
static inline WriteMode write_mode(const GPT2 *model) {
    return model->first ? OVERWRITE : ACCUMULATE;
}

/* ---- norms ---- */

typedef struct Norm {
    TensorId weight;  /* the bias is the next tensor */
    ActivationId out; /* mean and rstd are the next activations */
    int layer;
} Norm;
static inline Norm ln_1_of(int layer) {
    return (Norm){LN_1_W, ACT_LN_1, layer};
}
static inline Norm ln_2_of(int layer) {
    return (Norm){LN_2_W, ACT_LN_2, layer};
}
/* The norm that follows block `layer`: the next block's ln_1, or ln_f. */
static inline Norm norm_after(const GPT2 *model, int layer) {
    const bool last = layer == model->config.n_layer - 1;
    return last ? (Norm){LN_F_W, ACT_LN_F, 0} : ln_1_of(layer + 1);
}

/* ---- dropout ---- */

/* Where GPT-2 drops: attn_pdrop, resid_pdrop (twice a block), embd_pdrop. Each layer has a mask for each. */
typedef enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTN_PROJ, SITE_MLP_PROJ, N_SITES } DropoutSite;
/* out = x, dropped, where there is dropout at all; out may be x. (B,T,C) */
void drop(GPT2 *model, const Batch *b, DropoutSite site, int layer, floatX *out, const floatX *x);
/* Bounds of the documents in tokens (B,T) on the host, whole sequences, for mask_of. */
void upload_documents(GPT2 *model, const int32_t *tokens, int B, int T);
AttentionMask mask_of(const GPT2 *model, const Batch *b, int layer);
/* Of a layer's table of the blocks that attention sees; 0: it has no pattern. */
static inline size_t sparse_words(const GPT2 *model) {
    const SparsePattern p = model->config.sparse;
    return p.window ? sparse_table_words(p, model->sparse_T, model->config.max_seq_len) : 0;
}

/* ---- a context shared out over ranks: gpt2_context.c ---- */

/* x (B,T,parts,NH,HD), all heads of this rank's tokens, becomes (B,context,parts,heads,HD), its heads of all tokens;
 * `parts` is 3 for qkv, else 1. packed, received: scratch of x's size. With whole sequences all of this does nothing. */
void heads_from_tokens(GPT2 *model, const Batch *b, floatX *x, int parts, floatX *packed, floatX *received);
/* The way back: out (B,T,parts,NH,HD) from x (B,context,parts,heads,HD); out may be x. */
void tokens_from_heads(GPT2 *model, const Batch *b, floatX *out, const floatX *x, int parts, floatX *packed,
                       floatX *received);

/* ---- forward ---- */

/* What enters block `layer`: the embedding, or the output of the block below. (B,T,C) */
floatX *block_input(const GPT2 *model, int layer);
/* tokens -> ln_f */
void forward_pass(GPT2 *model, const Batch *b);
/* Brings back the activations of block `layer` that --recompute did not keep, but for GELU's output. */
void recompute_block(GPT2 *model, const Batch *b, int layer);

/* The LM head and the loss work on chunks of tokens, so that logits (B*T, Vp) never exist. */
typedef struct Chunk {
    int64_t row, n;
    floatX *ln_f, *logits;
    float *losses;
    const int32_t *targets;
} Chunk;
/* Logits of the chunk that starts at `row`, into ACT_LOGITS. */
Chunk head_forward(GPT2 *model, const Batch *b, int64_t row);

/* ---- update ---- */

/* Among the ranks whose parts a layer's parameters are. */
static inline int own_rank(const GPT2 *model) {
    return model->n_parts > 1 ? model->comm->ranks.rank : 0;
}
/* What of a span lies in elements [begin, begin + n); n <= 0: nothing. */
static inline OwnSpan overlap(OwnSpan span, int64_t begin, int64_t n) {
    const int64_t first = begin > span.begin ? begin : span.begin;
    const int64_t end = begin + n < span.begin + span.n ? begin + n : span.begin + span.n;
    return (OwnSpan){first, end - first, span.at + first - span.begin};
}
enum { MAX_STATE_SPANS = MLP_PROJ_B - LN_1_W + 1 };
/* What of the own part of a layer has states of this kind, and where these lie, in the order of the flat buffers; returns how
 * many spans. */
int state_spans(const GPT2 *model, OptimizerKind kind, int layer, OwnSpan spans[MAX_STATE_SPANS]);
/* model->block_tiles, and its numbers of tiles. */
void open_block_tiles(GPT2 *model);

/* The master weights of a rank's part, and its states of a layer (-1 to n_layer); NULL: it has none of that kind there. */
float *master_of(const GPT2 *model, OwnSpan part);
float *state_of(const GPT2 *model, StateId id, int layer);
/* AdamW's step for what it has in the rank's part of a layer; then the part goes to the other ranks, on the side stream
 * beside the next part's update. Layers rise. */
void update_layer(GPT2 *model, int layer, const UpdateArgs *update);
/* The blocks' part of a step with Muon: gpt2_muon.c. Works in the logits' buffer, whose values nobody reads any more;
 * that needs at least so many bytes. 0 where the optimizer is another. */
void update_blocks_with_muon(GPT2 *model, const UpdateArgs *args);
size_t muon_workspace_bytes(const GPT2 *model);

/* ---- backward ---- */

/* The micro-step at hand is the step's last. */
static inline bool is_last_micro_step(const GPT2 *model) {
    return model->n_micro_steps == model->last_micro_step;
}

/* This step adds nothing more to the gradients of `layer` (gpt2_layer_range): their sum over ranks begins, on the side
 * stream, in the last micro-step. Behind all of them grads_reduced: the main stream waits for the sums. */
void grads_final(GPT2 *model, int layer);
void grads_reduced(GPT2 *model);
/* How many of them Comm.attach is told of: those that reduce_scatter works on. */
int64_t attached_gradients(const GPT2 *model);

/* ---- --reproducible: gpt2_leaves.c ---- */

/* The micro-step at hand is the last of a leaf, but not of the step. Behind it leaf_keep: its gradients join the kept sums,
 * and the next leaf's begin anew. */
bool leaf_is_done(const GPT2 *model);
void leaf_keep(GPT2 *model);
/* In the step's last micro-step, over a range: the kept sums join the gradients, as far as this rank has them. */
void leaves_join(GPT2 *model, ParameterRange range);
/* The ranks' sums are added in the order of the tree, so not by reduce_scatter. */
bool leaves_exchange(const GPT2 *model);
/* What is left of a range goes to those whose parts it is, on the side stream; what came in is added to the own part on
 * the main stream, and the next range may be sent. */
void leaves_send(GPT2 *model, ParameterRange range);
void leaves_add_received(GPT2 *model, ParameterRange range);

/* losses =, parameter gradients, from ln_f down to the embedding; dloss: of each token's loss. */
void backward_pass(GPT2 *model, const Batch *b, float dloss);
