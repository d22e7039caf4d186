/* The op contract: what every op computes, written once for all backends.
 *
 * A backend is one Ops table: ops_cpu (plain C, fp32), ops_cuda_bf16 and ops_cuda_fp32 (one CUDA source, two
 * storage types). The model, the tests and the lab call ops only through this table, so a backend or a dev/
 * variant adds only the how.
 *
 * Conventions
 *   floatX   storage type of weights, activations and their gradients: bf16 or fp32, as Ops.dtype says. All
 *            arithmetic and every sum is fp32 (or better), whatever the storage.
 *   shapes   row-major, slowest dimension first. N = B*T rows. C = NH*HD channels. Counts are 64-bit where
 *            they can pass 2^31. Any size >= 1 works; C, OC and IC are multiples of 8; pointers are 256-byte
 *            aligned (allocations) plus any multiple of 16 bytes; T, N and B are arbitrary.
 *   =, +=    "=" overwrites every element (outputs may hold NaN before), "+=" adds to what is there.
 *   order    arguments: outputs, inputs, scratch, sizes. All ops run in order; where the device is asynchronous
 *            (llmc/device/device.h) they return before they are done.
 *   scratch  at least scratch_bytes(shape) bytes, contents undefined before and after; one buffer serves all.
 *   aliases  buffers do not overlap except where an op says so.
 *   bits     same input, same bits: every op is deterministic on one device. No float atomics, no order that
 *            depends on timing.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "block_sparse.h"
#include "dropout.h"
#include "exact_sum.h"
#include "newton_schulz.h"
#include "llmc/base/dtype.h"
#include "llmc/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void floatX; /* float or bf16, see above */

/* attention_decode cuts a cache into at most so many pieces; each leaves HD sums, a maximum and a sum of weights. */
enum { ATTENTION_DECODE_PIECES = 64 };
static inline int64_t attention_decode_scratch(int B, int NH, int HD) {
    return (int64_t)B * ATTENTION_DECODE_PIECES * NH * (HD + 2);
}

/* Largest sizes a model will call the ops with; scratch is sized for them. */
typedef struct OpShape {
    int B, T;             /* micro-batch, context */
    int C, NH;            /* channels, heads */
    int V, Vp;            /* vocabulary, padded vocabulary */
    int64_t loss_rows;    /* tokens per chunk of the LM head */
    SparsePattern sparse; /* of attention */
} OpShape;

/* What a step adds up, on the device: int64 all, so that ranks add theirs number by number, and the order of nothing
 * shows. One step: zero, loss_sum per micro-step, sum_squares, finish_stats. */
typedef struct StepSums {
    ExactSum loss;    /* mean loss of the step in nats, by loss_sum */
    ExactSum squares; /* of the gradients, by sum_squares */
    int64_t stop;     /* not 0 where the run is to end behind this step, by gpt2_request_stop */
    int64_t save;     /* not 0 where a rank was asked to save, by gpt2_request_save */
} StepSums;

/* What a step was, on the device, by finish_stats. Design: a NaN or inf never reaches the weights, and no host sync is
 * needed to stop it. */
typedef struct StepStats {
    float loss;
    float grad_norm; /* global 2-norm of the gradients before clipping */
    int32_t bad;     /* not 0 where loss or grad_norm is NaN or inf */
    int32_t stop, save;
    int64_t n_skipped; /* steps left out because of `bad`, over the whole run */
    uint64_t hash;     /* of the weights, of a step with gpt2_hash_weights; else of an earlier one */
} StepStats;

/* One optimizer step, as flags and schedule have it. */
typedef struct UpdateArgs {
    int64_t step; /* from 1 */
    float lr, beta1, beta2, eps, weight_decay, clip;
    float momentum; /* Muon's, and its polynomial */
    PolynomialId polynomial;
} UpdateArgs;

/* Parameters lie in tiles: a tensor begins at one, and what is behind its last element in its last tile is 0 in every
 * buffer. So a tile is of one tensor, and of one group of parameters, which are updated alike. */
enum { PARAMETER_TILE = 1024, MAX_PARAMETER_GROUPS = 8 };

typedef struct AdamWGroup {
    float lr, weight_decay;
} AdamWGroup;

/* One AdamW step over n_tiles tiles (Loshchilov & Hutter 2019, Algorithm 2, its bias correction):
 *
 *   g' = g * min(1, clip / grad_norm)                 clip <= 0: no clipping
 *   m  = beta1 m + (1-beta1) g'                       mhat = m / (1 - beta1^t)
 *   v  = beta2 v + (1-beta2) g'^2                     vhat = v / (1 - beta2^t)
 *   w -= lr * (mhat / (sqrt(vhat) + eps) + weight_decay * w)
 *
 * t = step - stats->n_skipped, step counting from 1. If stats->bad, nothing is changed. */
typedef struct AdamWArgs {
    float *master;      /* (n) fp32 weights, += */
    float *m, *v;       /* (n) moments, =; those of tile tiles[i] are tile i */
    floatX *weights;    /* (n) = master rounded to nearest even; may be the same buffer as master in fp32 */
    const float *grads; /* (n) */
    const StepStats *stats;     /* grad_norm, bad, n_skipped */
    const int32_t *tile_groups; /* which of groups, of each tile */
    const int32_t *tiles;       /* (n_tiles) the tiles that are updated; NULL: the first n_tiles */
    int64_t n_tiles;            /* n = n_tiles * PARAMETER_TILE */
    bool continues;    /* the step of the call before, with the same stats and update: other tiles of it */
    UpdateArgs update; /* lr and weight_decay are those of the groups */
    AdamWGroup groups[MAX_PARAMETER_GROUPS];
} AdamWArgs;

/* One step of Muon (Jordan et al. 2024) is muon_momentum, orthogonalise, muon_update:
 *
 *   g' = g * min(1, clip / grad_norm)                 clip <= 0: no clipping
 *   m  = momentum m + (1-momentum) g'
 *   x  = momentum m + (1-momentum) g'                 Nesterov's look ahead
 *   x  = 0.2 sqrt(max(rows, cols)) U V^T, nearly, of each matrix x = U S V^T
 *   w -= lr * (x + weight_decay * w)
 *
 * The factor makes an update as large as one of AdamW's (Liu et al. 2025), so that rates and decay are. If stats->bad,
 * nothing is changed but x. */
typedef struct MuonArgs {
    float *master;          /* fp32 weights, += */
    floatX *weights;        /* = master rounded to nearest even; may be the same buffer as master in fp32 */
    float *m;               /* (n_tiles * PARAMETER_TILE) momentum, =; that of tile tiles[i] is tile i */
    floatX *x;              /* laid out as the gradients: = by muon_momentum, read by muon_update */
    const float *grads;     /* laid out as the weights */
    const StepStats *stats; /* grad_norm, bad */
    const int32_t *tiles;   /* (n_tiles) the tiles that are updated */
    int64_t n_tiles;
    float lr, weight_decay, momentum, clip;
} MuonArgs;

/* Matrices of one shape, or transposed, in blocks that lie one behind the other. */
enum { MAX_BLOCK_MATRICES = 8 };
typedef struct OrthogonaliseArgs {
    floatX *x; /* (n_blocks, stride), each matrix in place; what is between them stays */
    int64_t n_blocks, stride;
    int n_matrices; /* of a block */
    int64_t offsets[MAX_BLOCK_MATRICES];
    bool transposed[MAX_BLOCK_MATRICES]; /* (cols, rows) in memory */
    int rows, cols;                      /* rows <= cols, multiples of 8 */
    float gain;
    const NewtonSchulz *polynomial;
    void *scratch; /* of at least one matrix: with more they are computed together, to the same bits */
    size_t scratch_bytes;
} OrthogonaliseArgs;

/* Bytes of scratch for a matrix: two of its shape, two of rows x rows, partial sums. A multiple of 256. */
enum { ORTHOGONALISE_PARTIALS = 64 };
static inline size_t orthogonalise_scratch_bytes(int rows, int cols, DType dtype) {
    const size_t elements = 2 * (size_t)rows * (size_t)(rows + cols);
    return (elements * dtype_bytes(dtype) + ORTHOGONALISE_PARTIALS * sizeof(double) + 1023) / 1024 * 1024;
}

/* What attention leaves out beside the keys behind a query. All 0: plain causal attention. */
typedef struct AttentionMask {
    int window;      /* a query sees its last `window` positions, itself among them; 0: all */
    Dropout dropout; /* of the probabilities: a matrix for each of B*NH heads, row query, column key */
    /* (B,T) in device memory: the first position of the document that a position is of, and the one behind its last. A query
     * sees its own document. NULL: a sequence is one document. */
    const int32_t *starts, *ends;
    /* Its tables in device memory, those of the layer. Without a window and documents: it says what is seen alone. */
    BlockSparse sparse;
} AttentionMask;

/* Of T positions, how many a query sees at most: a window as long as T is none. */
static inline int attention_window(const AttentionMask *mask, int T) {
    return mask->window > 0 && mask->window < T ? mask->window : T;
}

/* A row-major matrix on the device, an operand of the linear ops. data NULL: there is none. */
typedef struct Matrix {
    void *data;
    DType dtype;
    int64_t rows;
    int columns;
    const float *scale; /* for fp8, elements = data * scale[0]: no kernel takes one yet, always NULL */
} Matrix;

static inline Matrix matrix(const void *data, DType dtype, int64_t rows, int64_t columns) {
    const Matrix m = {(void *)data, dtype, rows, (int)columns, NULL};
    return m;
}
static inline Matrix no_matrix(void) {
    return matrix(NULL, DTYPE_F32, 0, 0);
}

typedef enum WriteMode { ACCUMULATE, OVERWRITE } WriteMode; /* += or = */

/* ---- embedding ---- */
/* out = wte[token] + wpe[positions[b] + t].   out (B,T,C) =, tokens (B,T) in [0,V), wte (V,C), wpe (>=positions+T,C);
 * positions (B): where each sequence begins, or NULL: at 0 */
typedef void EmbeddingForward(floatX *out, const int32_t *tokens, const int32_t *positions, const floatX *wte,
                              const floatX *wpe, int B, int T, int C);
/* dwte[v] += sum of dout over tokens equal v; dwpe[t] += sum of dout over the batch.  dwte (V,C), dwpe (>=T,C) fp32 */
typedef void EmbeddingBackward(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens,
                               void *scratch, int B, int T, int C, int V);

/* ---- layernorm (Ba et al. 2016): biased variance, eps 1e-5 ---- */
/* out = (x - mean) * rstd * weight + bias.   out, x (N,C); mean, rstd (N) fp32 =; weight, bias (C) */
typedef void LayernormForward(floatX *out, float *mean, float *rstd, const floatX *x, const floatX *weight,
                              const floatX *bias, int64_t N, int C);
/* residual = a + b (rounded to floatX), then layernorm of the rounded residual.  residual may be a or b. */
typedef void ResidualLayernormForward(floatX *residual, floatX *out, float *mean, float *rstd,
                                      const floatX *a, const floatX *b, const floatX *weight,
                                      const floatX *bias, int64_t N, int C);
/* dx = dresidual + gradient through the norm; dweight += , dbias +=; dx_sums += column sums of dx, or
 * dx_sums NULL: the bias gradient of a linear layer that ends in x, while dx is at hand.
 * dx (N,C) may be dresidual; dresidual may be NULL, meaning 0; dout, x (N,C); dweight, dbias, dx_sums (C) fp32 */
typedef void LayernormBackward(floatX *dx, float *dweight, float *dbias, float *dx_sums,
                               const floatX *dresidual, const floatX *dout, const floatX *x,
                               const floatX *weight, const float *mean, const float *rstd, void *scratch,
                               int64_t N, int C);

/* ---- dropout ---- */
/* out = x where the mask of `dropout` keeps it, times 1/(1-p), else 0; p > 0, as dropout.h rounds it.   out, x
 * (rows,columns); out may be x. Its own backward: call it on the gradient. columns < 2^31. Rows are those of one matrix of
 * the mask, or of several of DROPOUT_MATRIX_ROWS each */
typedef void ApplyDropout(floatX *out, const floatX *x, const Dropout *dropout, int64_t rows, int columns);

/* ---- linear: weight (OC,IC) row-major, y = x W^T + b ---- */
/* out (N,OC) =, x (N,IC), bias (OC) or NULL. With pre_gelu: pre_gelu (N,OC) = x W^T + b and out = gelu(pre_gelu), in one
 * pass over the output: gelu(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, the tanh
 * form). */
typedef void LinearForward(Matrix out, Matrix pre_gelu, Matrix x, Matrix weight, const floatX *bias);
/* dx = dout W; with pre_gelu (N,IC): dx = (dout W) * gelu'(pre_gelu).   dx (N,IC) =, dout (N,OC);
 * dx_sums (IC) fp32 += column sums of dx, or dx_sums NULL: the bias gradient of the layer below;
 * with gelu (N,IC): gelu = gelu(pre_gelu), for a layer that kept pre_gelu alone; gelu may be pre_gelu */
typedef void LinearBackwardInput(Matrix dx, float *dx_sums, Matrix gelu, Matrix dout, Matrix weight,
                                 Matrix pre_gelu, void *scratch);
/* dx = dout W; returns whether row_dots came with it: (N, IC / group) fp32 = sums of dx * other, as stored, over
 * `group` columns at a time. They do where the backend has them for less than a pass over dx and other; else
 * row_dots is left alone.   dx, other (N,IC), dout (N,OC) */
typedef bool LinearBackwardInputRowDots(Matrix dx, float *row_dots, Matrix dout, Matrix weight, Matrix other,
                                        void *scratch, int group);
/* dweight += dout^T x, or = with OVERWRITE: for the first product of a step, which neither zeroes nor reads it. dbias
 * += column sums of dout in either mode, or dbias NULL.   dweight (OC,IC), dbias (OC) fp32 */
typedef void LinearBackwardWeight(Matrix dweight, float *dbias, Matrix dout, Matrix x, WriteMode mode,
                                  void *scratch);
/* Bias gradients of the layer that makes q, k and v, where attention drops nothing; dk and dv need not be read.
 * Rows of P sum to 1, so the column sums of dV = P^T dO are dO's, and dO = dproj W has those of dproj times W.
 * Rows of dS = P*(dP - D) sum to 0, D being rowsum(P*dP), so the columns of dK = dS^T Q do, too: a constant added
 * to all keys adds the same to all scores of a row, which a softmax does not see. True of causal and window masks.
 * dbias (3,C) fp32: q's += column sums of dq, k's stay, v's = dproj_bias W.   dqkv (N,3,C); dproj_bias (C) fp32:
 * the gradient, so far, of the bias of the linear layer behind attention; proj_weight (C,C): that layer's W */
typedef void QkvBiasBackward(float *dbias, const floatX *dqkv, const float *dproj_bias,
                             const floatX *proj_weight, void *scratch, int64_t N, int C);

/* ---- causal self-attention on packed qkv (B,T,3,NH,HD), scale 1/sqrt(HD), HD a multiple of 8 up to 256 ---- */
/* FlashAttention-2 (Dao 2023, Algorithms 1 and 2): nothing of size T*T exists.
 * out (B,T,NH,HD) = (P o M) V, lse (B,NH,T) fp32 = logsumexp_j(scale q_i.k_j) in nats. P is the softmax over the mask's
 * window and documents, or its blocks, before dropout, and lse is its; M is the dropout's mask times 1/(1-p). Key tiles that
 * nobody sees are not visited. A mask that leaves nothing out ({0}) is plain causal attention; NULL is not allowed. */
typedef void AttentionForward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                              int T, int NH, int HD);
/* Recomputes P = exp(S - lse) tile by tile; dP = (dO V^T) o M, D = rowsum(dout*out), dS = P*(dP - D), dV = (P o M)^T dO.
 * dqkv (B,T,3,NH,HD) =; d (B,T,NH) fp32: D of each head where it is known, or NULL; a backend may compute it all the
 * same. */
typedef void AttentionBackward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                               const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                               int B, int T, int NH, int HD);
/* The textbook form, for comparison only: probs (B,NH,T,T) = softmax of the masked scores before dropout, kept for
 * backward; dropped (B,NH,T,T) is scratch of that shape, NULL where there is no dropout */
typedef void AttentionStandardForward(floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                      const AttentionMask *mask, int B, int T, int NH, int HD);
/* dqkv =; dprobs (B,NH,T,T) is scratch of that shape */
typedef void AttentionStandardBackward(floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                       const floatX *qkv, const AttentionMask *mask, int B, int T, int NH,
                                       int HD);
/* A new token of each of B sequences against the keys and values of the tokens before it. qkv (B,3,NH,HD) is of the new
 * tokens, positions (B), each < T, say where they stand. k and v go into the cache (B,T,2,NH,HD) there; out (B,NH,HD) =
 * attention over what the mask's window or blocks leave, the new one among it, from begins (B) on (NULL: 0). Of the mask
 * nothing else is read; blocks and begins do not join. A sequence's result depends on B in no bit. scratch:
 * attention_decode_scratch(B, NH, HD) values. */
typedef void AttentionDecode(floatX *out, floatX *cache, const floatX *qkv, const int32_t *positions,
                             const int32_t *begins, float *scratch, const AttentionMask *mask, int B, int T,
                             int NH, int HD);

/* ---- layouts ---- */
/* out (b,a,width) = in (a,b,width): rows of `width` elements, a multiple of 8, as they are. out is not in */
typedef void TransposeRows(floatX *out, const floatX *in, int64_t a, int64_t b, int64_t width);

/* ---- loss: loss_i = logsumexp(z_i) - z_i[target], fp32, over the V real columns of Vp ---- */
/* losses (N) fp32 =; logits (N,Vp) in place become dlogits = (softmax - onehot) * dloss, padding columns 0 */
typedef void CrossEntropyBackwardInplace(float *losses, floatX *logits, const int32_t *targets, float dloss,
                                         int64_t N, int V, int Vp);
/* losses (N) =; logits are only read */
typedef void CrossEntropyForward(float *losses, const floatX *logits, const int32_t *targets, int64_t N,
                                 int V, int Vp);
/* sum += scale * sum(losses).   losses (N) fp32. As sum_squares it takes PARAMETER_TILE values at a time: a double in
 * a fixed order, the same on all backends. Those are added without rounding. */
typedef void LossSum(ExactSum *sum, const float *losses, float scale, int64_t N);

/* ---- sampling ---- */
/* Draws the next token of each of B sequences: softmax(logits / temperature) over what top_k, top_p and min_p leave.
 *
 *   top_k   the top_k largest logits (0: all)
 *   top_p   of those, in falling order, the first whose probabilities add up to top_p (1: all)
 *   min_p   of those, which are at least min_p times as probable as the largest (0: all)
 *
 * Among equal logits at the edge the first in the order of DRAW_COLUMNS stay: ids by id % DRAW_COLUMNS, then by id. The
 * same order takes the cumulated probabilities to the random number. temperature 0 or top_k 1: the largest, of equals
 * the lowest id, and rng stays as it is; else rng advances once. NaN and -inf are never drawn while there is a finite
 * logit; +inf always is. */
enum { DRAW_COLUMNS = 1024, DRAWN_ROWS = 64 };
typedef struct DrawArgs {
    int32_t *tokens;    /* (B) =, in [0,V) */
    int32_t *positions; /* (B) += 1 */
    /* (DRAWN_ROWS,B): row positions % DRAWN_ROWS, after the addition, = the token; where logits are NaN or infinite, minus
     * their number */
    int32_t *drawn;
    uint64_t *rng;        /* (B) random_uniform's states */
    const floatX *logits; /* (B,Vp) */
    float temperature, top_p, min_p;
    int top_k, B, V, Vp;
} DrawArgs;
typedef void DrawTokens(const DrawArgs *args);

/* ---- update ---- */
/* out = a + b, n gradients, each sum rounded once; out may be a or b. For sums over micro-batches in an order of their own. */
typedef void SumGradients(float *out, const float *a, const float *b, int64_t n);
/* sum += sum grads^2, of n gradients */
typedef void SumSquares(ExactSum *sum, const float *grads, int64_t n);
/* Once a step, behind all sums: loss, grad_norm = sqrt(squares) and stop =; bad = one of the two is not finite;
 * n_skipped += bad */
typedef void FinishStats(StepStats *stats, const StepSums *sums);
typedef void AdamWStep(const AdamWArgs *args);
typedef void MuonMomentum(const MuonArgs *args);
/* x = gain * the polynomial (newton_schulz.h) of each matrix x; 0 stays 0. In bf16 x, x x^T and b A + c A A are rounded
 * in each step. */
typedef void Orthogonalise(const OrthogonaliseArgs *args);
typedef void MuonUpdate(const MuonArgs *args);
/* weights = master rounded to nearest even, n elements */
typedef void WeightsFromMaster(floatX *weights, const float *master, int64_t n);
/* hash += the hash (hash.h) of n_bytes, a multiple of 16 */
typedef void HashBytes(uint64_t *hash, const void *x, int64_t n_bytes);

/* Every op that computes: its type, its name. The table, cpu.h, cuda_ops.cuh and the backends' tables are made of this
 * list, so an op that a backend lacks does not link. */
/* clang-format off */
#define EACH_OP(OP) \
    OP(EmbeddingForward, embedding_forward) \
    OP(EmbeddingBackward, embedding_backward) \
    OP(LayernormForward, layernorm_forward) \
    OP(ResidualLayernormForward, residual_layernorm_forward) \
    OP(LayernormBackward, layernorm_backward) \
    OP(ApplyDropout, dropout) \
    OP(LinearForward, linear_forward) \
    OP(LinearBackwardInput, linear_backward_input) \
    OP(LinearBackwardInputRowDots, linear_backward_input_row_dots) \
    OP(LinearBackwardWeight, linear_backward_weight) \
    OP(QkvBiasBackward, qkv_bias_backward) \
    OP(AttentionForward, attention_forward) \
    OP(AttentionBackward, attention_backward) \
    OP(AttentionStandardForward, attention_standard_forward) \
    OP(AttentionStandardBackward, attention_standard_backward) \
    OP(AttentionDecode, attention_decode) \
    OP(TransposeRows, transpose_rows) \
    OP(CrossEntropyBackwardInplace, cross_entropy_backward_inplace) \
    OP(CrossEntropyForward, cross_entropy_forward) \
    OP(LossSum, loss_sum) \
    OP(DrawTokens, draw_tokens) \
    OP(SumGradients, sum_gradients) \
    OP(SumSquares, sum_squares) \
    OP(FinishStats, finish_stats) \
    OP(AdamWStep, adamw) \
    OP(MuonMomentum, muon_momentum) \
    OP(Orthogonalise, orthogonalise) \
    OP(MuonUpdate, muon_update) \
    OP(WeightsFromMaster, weights_from_master) \
    OP(HashBytes, hash_bytes)
/* clang-format on */

typedef struct Ops {
    const char *name; /* "cpu fp32", "cuda bf16", "cuda fp32" */
    DType dtype;
    const Device *device; /* whose memory the operands lie in */
    /* Bytes of the scratch buffer for these sizes; host arithmetic only, callable before open(). */
    size_t (*scratch_bytes)(const OpShape *shape);
    /* Which kernel the last op took, where its backend has several for it; else NULL. Asked once: then NULL again. */
    const char *(*kernel_ran)(void);

    /* ---- math: a member for each of EACH_OP ---- */
#define MEMBER(Type, name) Type *name;
    EACH_OP(MEMBER)
#undef MEMBER
} Ops;

extern const Ops ops_cpu;
/* NULL where the program was built without CUDA (train_gpt2). */
extern const Ops *const ops_cuda_bf16, *const ops_cuda_fp32;

/* Whether attention of this head size runs on kernels of this card's kind, forward and backward, as head size 64 does
 * (bf16, no window, no dropout). */
bool cuda_attention_tuned(int HD);

#ifdef __cplusplus
}
#endif
