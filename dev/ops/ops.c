/* The ops, one by one: operands in the order of the call, the call, inputs that depend on each other, and the reference
 * where it is not the CPU's own op in fp32. */
#include <math.h>
#include "dev/test/limits.h"
#include "dev/test/op_test.h"
#include "operands.h"

/* fp32 sums of bf16 products on tensor cores: each of the n/16 additions truncates, up to 2^-23 of the sum and always
 * towards zero; with n up to 2048 that is 1.5e-5. Gradients rounded to bf16 on the way would be 2e-3 off. */
#define TENSOR_CORE_LIMIT 3e-5
/* Column sums of values as stored: each is off by up to 2^-9 of itself in bf16. */
#define ROUNDED_SUMS_LIMIT 4e-3

#define DESCRIBED(op_name, shown, ...)                                                                       \
    const Op op_##op_name = {.name = shown,                                                                  \
                             .id = OP_##op_name,                                                             \
                             .describe = describe_##op_name,                                                 \
                             .run = run_##op_name,                                                           \
                             __VA_ARGS__}

static bool has(const Sizes *s, int flag) {
    return s->flags & flag;
}

/* ---- embedding ---- */

/* Operand 1 or 3 of embedding, the last of the loss: any tokens, the first and last of the vocabulary among them; with
 * FILL_EQUAL one, with FILL_DISTINCT none twice. */
static void fill_tokens(OpCase *c, int k) {
    const int64_t n = c->operands[k].elems, V = c->s.V;
    float *token = c->in[k];
    if (c->s.fill == FILL_TEXT) return;
    for (int64_t i = 0; i < n; i++)
        token[i] = c->s.fill == FILL_EQUAL      ? (float)(V - 1)
                   : c->s.fill == FILL_DISTINCT ? (float)(i * 7919 % V) /* 7919 is prime */
                                                : (float)(op_mix((uint64_t)i) % (uint64_t)V);
    if (c->s.fill != FILL_NORMAL || n < 2) return;
    token[0] = 0;
    token[n - 1] = (float)(V - 1);
}

/* wpe has as many rows more than there are positions as sequences begin later. */
enum { LATEST_BEGIN = 5 };
static int describe_embedding_forward(Operand *o, const Sizes *s) {
    const int64_t N = (int64_t)s->B * s->T;
    OPERANDS(result("out", N * s->C, s->C), tokens("tokens", N, s->V),
             tokens("positions", has(s, BEGINS) ? s->B : 0, LATEST_BEGIN + 1),
             input("wte", (int64_t)s->V * s->C, 1, 0),
             input("wpe", (int64_t)(s->T + LATEST_BEGIN) * s->C, 1, 0));
}
static void prepare_embedding_forward(OpCase *c) {
    fill_tokens(c, 1);
    for (int b = 0; b < c->s.B && has(&c->s, BEGINS); b++) c->in[2][b] = (float)(LATEST_BEGIN - b % 6);
}
static void run_embedding_forward(const Call *c) {
    c->ops->embedding_forward(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], c->s.B, c->s.T, c->s.C);
}
DESCRIBED(embedding_forward, "embedding_forward", .prepare = prepare_embedding_forward, .shape = BY_ROWS,
          .teaches = "a gather: one row of 16-byte loads a token");

static int describe_embedding_backward(Operand *o, const Sizes *s) {
    const int64_t N = (int64_t)s->B * s->T;
    OPERANDS(sum_f32("dwte", (int64_t)s->V * s->C, s->C, 0),
             sum_f32("dwpe", (int64_t)(s->T + 2) * s->C, s->C, 0), input("dout", N * s->C, 1, 0),
             tokens("tokens", N, s->V), space());
}
static void prepare_embedding_backward(OpCase *c) {
    fill_tokens(c, 3);
}
static void run_embedding_backward(const Call *c) {
    c->ops->embedding_backward(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], c->s.B, c->s.T, c->s.C, c->s.V);
}
DESCRIBED(embedding_backward, "embedding_backward", .prepare = prepare_embedding_backward, .shape = BY_ROWS,
          .teaches = "tokens are sorted, so that sums need no atomics");

/* ---- layernorm ---- */

static int describe_layernorm_forward(Operand *o, const Sizes *s) {
    const int64_t NC = s->N * s->C;
    OPERANDS(result("out", NC, s->C), result_f32("mean", s->N), result_f32("rstd", s->N),
             input("x", NC, scale_of(s), 0.5f), input("weight", s->C, 0.3f, 1), input("bias", s->C, 0.3f, 0));
}
static void run_layernorm_forward(const Call *c) {
    c->ops->layernorm_forward(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], c->p[5], c->s.N, c->s.C);
}
DESCRIBED(layernorm_forward, "layernorm_forward", .shape = BY_ROWS,
          .teaches = "mean and variance of a row kept in registers");

static int describe_residual_layernorm_forward(Operand *o, const Sizes *s) {
    const bool is_a = has(s, ALIAS_A), is_b = has(s, ALIAS_B);
    const int64_t NC = s->N * s->C;
    OPERANDS(with_role(result("residual", NC, s->C), is_a || is_b ? ADD : OUT), result("out", NC, s->C),
             result_f32("mean", s->N), result_f32("rstd", s->N), input("a", is_a ? 0 : NC, scale_of(s), 0.5f),
             input("b", is_b ? 0 : NC, scale_of(s), 0), input("weight", s->C, 0.3f, 1),
             input("bias", s->C, 0.3f, 0));
}
static void run_residual_layernorm_forward(const Call *c) {
    void *const *p = c->p, *a = has(&c->s, ALIAS_A) ? p[0] : p[4], *b = has(&c->s, ALIAS_B) ? p[0] : p[5];
    c->ops->residual_layernorm_forward(p[0], p[1], p[2], p[3], a, b, p[6], p[7], c->s.N, c->s.C);
}
/* The norm is of the residual as stored, so it is rounded in between. */
static void reference_residual_layernorm(void **p, const OpCase *c) {
    const Sizes *s = &c->s;
    const float *a = has(s, ALIAS_A) ? p[0] : p[4], *b = has(s, ALIAS_B) ? p[0] : p[5];
    float *sum = p[0];
    for (int64_t i = 0; i < s->N * s->C; i++) sum[i] = round_to(c->dtype, a[i] + b[i]);
    ops_cpu.layernorm_forward(p[1], p[2], p[3], sum, p[6], p[7], s->N, s->C);
}
DESCRIBED(residual_layernorm_forward, "residual_layernorm", .reference = reference_residual_layernorm,
          .shape = BY_ROWS, .teaches = "the residual sum never comes back from memory");

static int describe_layernorm_backward(Operand *o, const Sizes *s) {
    const bool alias = has(s, ALIAS_A);
    const int64_t NC = s->N * s->C, sums = has(s, NO_SUMS) ? 0 : s->C;
    OPERANDS(with_role(result("dx", NC, s->C), alias ? ADD : OUT), sum_f32("dweight", s->C, s->C, 0),
             sum_f32("dbias", s->C, s->C, 0), sum_f32("dx_sums", sums, s->C, ROUNDED_SUMS_LIMIT),
             input("dresidual", alias || has(s, NO_RESIDUAL) ? 0 : NC, 1, 0), input("dout", NC, 1, 0),
             input("x", NC, scale_of(s), 0.5f), input("weight", s->C, 0.3f, 1),
             input_f32("mean", s->N, 0.01f, 0.5f), input_f32("rstd", s->N, 0.01f, 1), space());
}
/* mean and rstd are x's. */
static void prepare_layernorm_backward(OpCase *c) {
    const int C = c->s.C;
    for (int64_t row = 0; row < c->s.N; row++) {
        const float *x = c->in[6] + row * C;
        double mean = 0, variance = 0;
        for (int i = 0; i < C; i++) mean += (double)x[i] / C;
        for (int i = 0; i < C; i++) variance += (x[i] - mean) * (x[i] - mean) / C;
        c->in[8][row] = (float)mean;
        c->in[9][row] = (float)(1 / sqrt(variance + 1e-5));
    }
}
static void run_layernorm_backward(const Call *c) {
    void *const *p = c->p, *dresidual = has(&c->s, ALIAS_A) ? p[0] : p[4];
    c->ops->layernorm_backward(p[0], p[1], p[2], p[3], dresidual, p[5], p[6], p[7], p[8], p[9], p[10], c->s.N,
                               c->s.C);
}
DESCRIBED(layernorm_backward, "layernorm_backward", .prepare = prepare_layernorm_backward, .shape = BY_ROWS,
          .teaches = "row sums for dx, column sums for weight and bias");

/* ---- dropout ---- */

enum { DROPOUT_SITE_OF_OPS = 3 };
static int describe_dropout(Operand *o, const Sizes *s) {
    const Operand key = {"key", IN, STORE_I32, 2, 1e8f, 0, .n_parts = 0};
    OPERANDS(result("out", s->N * s->C, s->C), input("x", s->N * s->C, 1, 0), key);
}
static void run_dropout(const Call *c) {
    const Dropout dropout = {c->p[2], DROPOUT_SITE_OF_OPS, c->s.p > 0 ? c->s.p : 0.1f};
    c->ops->dropout(c->p[0], c->p[1], &dropout, c->s.N, c->s.C);
}
DESCRIBED(dropout, "dropout", .shape = BY_ROWS, .teaches = "masks from a counter: nothing is stored");

/* ---- linear ---- */

/* Operand k as outputs (N,OC), inputs (N,IC), or weight (OC,IC) of the layer. */
static Matrix outputs(const Call *c, int k) {
    return matrix(c->p[k], c->ops->dtype, c->s.N, c->s.OC);
}
static Matrix inputs(const Call *c, int k) {
    return matrix(c->p[k], c->ops->dtype, c->s.N, c->s.IC);
}
static Matrix weight(const Call *c, int k, DType dtype) {
    return matrix(c->p[k], dtype, c->s.OC, c->s.IC);
}

static int describe_linear_forward(Operand *o, const Sizes *s) {
    const int64_t out = s->N * s->OC;
    OPERANDS(result("out", out, s->OC), result("pre_gelu", has(s, GELU) ? out : 0, s->OC),
             input("x", s->N * s->IC, scale_of(s), 0),
             input("weight", (int64_t)s->OC * s->IC, 1 / sqrtf((float)s->IC), 0),
             input("bias", has(s, NO_BIAS) ? 0 : s->OC, 0.5f, 0));
}
static void run_linear_forward(const Call *c) {
    c->ops->linear_forward(outputs(c, 0), outputs(c, 1), inputs(c, 2), weight(c, 3, c->ops->dtype), c->p[4]);
}
static double gelu(double x) {
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_derivative(double x) {
    double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* Whether GELU comes with the product in a kernel of ours, N x columns: on Hopper, from a tile an SM on. The library's
 * GELU elsewhere is an approximation, of which only a plain computation's errors are known. */
static bool is_ours(const OpCase *c, int columns) {
    const int64_t tiles = (c->s.N + 255) / 256 * 2 * ((columns + 127) / 128);
    return !c->unaligned && c->s.OC % 64 == 0 && c->s.IC % 64 == 0 && tiles >= 132 &&
           strstr(c->ops->device->name(), "compute capability 9.0");
}

/* Of the library's GELU and its derivative, by tanh.approx: 2^-11 relative. */
#define LIBRARY_GELU 1e-3

/* The library's kernels for operands at any address (c->unaligned) round the product before they add the bias; those for
 * some small shapes may. */
static void slack_of_bias(OpCase *c, int out) {
    for (int64_t i = 0; i < c->operands[out].elems; i++)
        c->slack[out][i] = (float)BF16_HALF_STEP * fabsf(c->want[out][i] - c->in[4][i % c->s.OC]);
}

static void plain_linear_bias(OpCase *c, int out) {
    const int64_t n = c->operands[out].elems;
    run_linear_forward(&(Call){
        .ops = &ops_cpu, .s = c->s, .p = {c->plain[out], NULL, c->in[2], c->in[3], NULL}
    });
    for (int64_t i = 0; i < n; i++)
        c->plain[out][i] = round_bf16(round_bf16(c->plain[out][i]) + c->in[4][i % c->s.OC]);
}

/* GELU of the stored pre_gelu */
static void plain_linear_forward(OpCase *c) {
    const bool ours = c->s.flags & GELU && is_ours(c, c->s.OC);
    const int sum = c->s.flags & GELU ? 1 : 0;
    if (c->unaligned && !(c->s.flags & NO_BIAS)) plain_linear_bias(c, sum);
    if (!ours && !(c->s.flags & NO_BIAS)) slack_of_bias(c, sum);
    if (!(c->s.flags & GELU)) return;
    if (!ours) c->approximate = LIBRARY_GELU;
    const int64_t n = c->operands[0].elems;
    for (int64_t i = 0; i < n; i++) c->plain[0][i] = round_bf16((float)gelu((double)c->plain[1][i]));
    if (!ours) slack_of_plain(c->slack[0], c->plain[0], c->want[0], n);
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)c->want[1][i], of_x = fabs(x) * BF16_HALF_STEP + (double)c->slack[1][i];
        c->slack[0][i] += (float)(fabs(gelu_derivative(x)) * of_x + of_x * of_x);
    }
}
DESCRIBED(linear_forward, "linear_forward", .plain = plain_linear_forward, .shape = LINEAR_FORWARD,
          .teaches = "a matrix product with bias and GELU in its epilogue");

/* gelu in a buffer of its own with GELU_TOO, in the place of pre_gelu with GELU_IN_PLACE */
static int describe_linear_backward_input(Operand *o, const Sizes *s) {
    const int64_t in = s->N * s->IC, sums = has(s, NO_SUMS) ? 0 : s->IC;
    Operand pre_gelu = input("pre_gelu", has(s, GELU) ? in : 0, 1.5f * scale_of(s), 0);
    if (has(s, GELU_IN_PLACE)) pre_gelu.role = ADD;
    pre_gelu.row = s->IC;
    OPERANDS(result("dx", in, s->IC), sum_f32("dx_sums", sums, s->IC, ROUNDED_SUMS_LIMIT),
             input("dout", s->N * s->OC, 1, 0),
             input("weight", (int64_t)s->OC * s->IC, 1 / sqrtf((float)s->OC), 0), pre_gelu, space(),
             result("gelu", has(s, GELU_TOO) ? in : 0, s->IC));
}
static void run_linear_backward_input(const Call *c) {
    c->ops->linear_backward_input(inputs(c, 0), c->p[1], inputs(c, has(&c->s, GELU_IN_PLACE) ? 4 : 6),
                                  outputs(c, 2), weight(c, 3, c->ops->dtype), inputs(c, 4), c->p[5]);
}
/* dout W rounded, then times gelu' */
static void plain_linear_backward_input(OpCase *c) {
    Sizes product = c->s; /* alone */
    if (!(c->s.flags & GELU)) return;
    product.flags = NO_SUMS;
    run_linear_backward_input(&(Call){
        .ops = &ops_cpu, .s = product, .p = {c->plain[0], NULL, c->in[2], c->in[3], NULL, NULL}
    });
    const int64_t n = c->operands[0].elems;
    float *of_product = op_malloc((size_t)n * sizeof *of_product);
    for (int64_t i = 0; i < n; i++) {
        const float slope = (float)gelu_derivative((double)c->in[4][i]);
        of_product[i] = (float)BF16_HALF_STEP * fabsf(c->plain[0][i] * slope);
        c->plain[0][i] = round_bf16(round_bf16(c->plain[0][i]) * slope);
    }
    if (!is_ours(c, c->s.IC)) {
        slack_of_plain(c->slack[0], c->plain[0], c->want[0], n);
        c->approximate = LIBRARY_GELU;
    }
    for (int64_t i = 0; i < n; i++) c->slack[0][i] += of_product[i];
    free(of_product);
}
DESCRIBED(linear_backward_input, "linear_backward_input", .plain = plain_linear_backward_input,
          .shape = LINEAR_BACKWARD, .teaches = "dout W, times GELU's slope");

/* Row dots come where the backend has them for little: test_ops_attention_projection.c holds them. */
static int group_of(const Sizes *s) {
    return s->IC % 64 ? 8 : 64;
}
static int describe_linear_backward_input_row_dots(Operand *o, const Sizes *s) {
    const int64_t in = s->N * s->IC;
    const Operand row_dots = {"row_dots", SPACE, STORE_F32, in / group_of(s), .n_parts = 0};
    OPERANDS(result("dx", in, s->IC), row_dots, input("dout", s->N * s->OC, 1, 0),
             input("weight", (int64_t)s->OC * s->IC, 1 / sqrtf((float)s->OC), 0), input("other", in, 1, 0),
             space());
}
static void run_linear_backward_input_row_dots(const Call *c) {
    c->ops->linear_backward_input_row_dots(inputs(c, 0), c->p[1], outputs(c, 2), weight(c, 3, c->ops->dtype),
                                           inputs(c, 4), c->p[5], group_of(&c->s));
}
DESCRIBED(linear_backward_input_row_dots, "linear_row_dots", .shape = LINEAR_PROJ,
          .teaches = "dout W, with D of attention's backward where that is cheap");

static int describe_linear_backward_weight(Operand *o, const Sizes *s) {
    const Operand dweight = sum_f32("dweight", (int64_t)s->OC * s->IC, s->IC, TENSOR_CORE_LIMIT);
    OPERANDS(with_role(dweight, has(s, FIRST) ? OUT : ADD),
             sum_f32("dbias", has(s, NO_BIAS) ? 0 : s->OC, s->OC, 0), input("dout", s->N * s->OC, 1, 0),
             input("x", s->N * s->IC, 1, 0), space());
}
static void run_linear_backward_weight(const Call *c) {
    c->ops->linear_backward_weight(weight(c, 0, DTYPE_F32), c->p[1], outputs(c, 2), inputs(c, 3),
                                   has(&c->s, FIRST) ? OVERWRITE : ACCUMULATE, c->p[4]);
}
DESCRIBED(linear_backward_weight, "linear_backward_weight", .shape = LINEAR_WEIGHT,
          .teaches = "dout^T x added in fp32, and bias sums");

static int describe_qkv_bias_backward(Operand *o, const Sizes *s) {
    OPERANDS(sum_f32("dbias", 3 * (int64_t)s->C, s->C, 0), input("dqkv", s->N * 3 * s->C, 1, 0),
             input_f32("dproj_bias", s->C, 1, 0), input("proj_weight", (int64_t)s->C * s->C, 1, 0), space());
}
static void run_qkv_bias_backward(const Call *c) {
    c->ops->qkv_bias_backward(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], c->s.N, c->s.C);
}
DESCRIBED(qkv_bias_backward, "qkv_bias_backward", .shape = BY_ROWS,
          .teaches = "sums that need not be taken, because they are known");

/* ---- decoding: the last row of attention; forward and backward are described in dev/attention ---- */

static AttentionMask decode_mask(const Sizes *s, const int32_t *table) {
    return (AttentionMask){.window = s->window, .sparse = sparse_of(s->blocks, table, s->T, s->T)};
}

/* The cache holds numbers behind the new token, too: nobody may read them. */
static int describe_attention_decode(Operand *o, const Sizes *s) {
    const int C = s->NH * s->HD;
    const Operand pieces = {"scratch", SPACE, STORE_F32, attention_decode_scratch(s->B, s->NH, s->HD),
                            .n_parts = 0};
    Operand cache = with_role(result("cache", (int64_t)s->B * s->T * 2 * C, C), ADD);
    cache.scale = scale_of(s);
    OPERANDS(result("out", (int64_t)s->B * C, s->HD), cache,
             input("qkv", (int64_t)s->B * 3 * C, scale_of(s), 0), tokens("positions", s->B, s->T),
             tokens("begins", has(s, BEGINS) ? s->B : 0, s->T), pieces, seen_blocks(s));
}
/* The first sequence ends where the cache does, the next ones half and a quarter of it earlier. */
static void prepare_attention_decode(OpCase *c) {
    for (int b = 0; b < c->s.B; b++)
        c->in[3][b] = (float)(b % 3 == 0 ? c->s.T - 1 : c->s.T - 1 - c->s.T / (2 * (b % 3)));
    for (int b = 0; b < c->s.B && has(&c->s, BEGINS); b++)
        c->in[4][b] = floorf(c->in[3][b] * (float)(b % 4) / 3);
    fill_seen_blocks(c->in[6], &c->s);
}
static void run_attention_decode(const Call *c) {
    const AttentionMask mask = decode_mask(&c->s, c->p[6]);
    c->ops->attention_decode(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], c->p[5], &mask, c->s.B, c->s.T,
                             c->s.NH, c->s.HD);
}
/* The last row of a forward pass, of one sequence: packed is (T,3,C) of its cache with the new token in place. */
static void reference_of_sequence(float *out, const float *packed, const Sizes *s, const AttentionMask *mask,
                                  int n) {
    const size_t C = (size_t)s->NH * (size_t)s->HD, rows = (size_t)n;
    float *all = op_malloc(rows * C * sizeof *all), *lse = op_malloc(rows * (size_t)s->NH * sizeof *lse);
    ops_cpu.attention_forward(all, lse, packed, mask, 1, n, s->NH, s->HD);
    memcpy(out, all + (rows - 1) * C, C * sizeof *out);
    free(all);
    free(lse);
}
/* Of a cache so long that it would take minutes, the CPU's own decoding. */
static void reference_decode(void **p, const OpCase *c) {
    const Sizes *s = &c->s;
    const size_t C = (size_t)s->NH * (size_t)s->HD, T = (size_t)s->T;
    const int32_t *positions = p[3];
    const AttentionMask mask = decode_mask(s, p[6]);
    float *packed = op_malloc(T * 3 * C * sizeof *packed);
    if (T > 4096)
        ops_cpu.attention_decode(p[0], p[1], p[2], positions, p[4], p[5], &mask, s->B, s->T, s->NH, s->HD);
    for (size_t b = 0; b < (size_t)s->B && T <= 4096; b++) {
        float *cache = (float *)p[1] + b * T * 2 * C, *qkv = (float *)p[2] + b * 3 * C;
        const size_t n = (size_t)positions[b] + 1;
        memcpy(cache + (n - 1) * 2 * C, qkv + C, 2 * C * sizeof *cache);
        for (size_t t = 0; t < n; t++) {
            memcpy(packed + t * 3 * C, qkv, C * sizeof *packed); /* of other rows any q */
            memcpy(packed + t * 3 * C + C, cache + t * 2 * C, 2 * C * sizeof *packed);
        }
        const size_t begin = p[4] ? (size_t)((const int32_t *)p[4])[b] : 0;
        reference_of_sequence((float *)p[0] + b * C, packed + begin * 3 * C, s, &mask, (int)(n - begin));
    }
    free(packed);
}
DESCRIBED(attention_decode, "attention_decode", .prepare = prepare_attention_decode,
          .reference = reference_decode, .shape = CACHE,
          .teaches = "one query: the keys in pieces, or most of the card is idle");

/* ---- layouts ---- */

/* B x T rows of C. */
static int describe_transpose_rows(Operand *o, const Sizes *s) {
    const int64_t n = (int64_t)s->B * s->T * s->C;
    OPERANDS(result("out", n, s->C), input("in", n, 1, 0));
}
static void run_transpose_rows(const Call *c) {
    c->ops->transpose_rows(c->p[0], c->p[1], c->s.B, c->s.T, c->s.C);
}
DESCRIBED(transpose_rows, "transpose_rows", .shape = BY_ROWS, .teaches = "a copy: whole rows change places");

/* ---- loss ---- */

static int describe_cross_entropy_forward(Operand *o, const Sizes *s) {
    OPERANDS(result_f32("losses", s->N), input("logits", s->N * s->Vp, scale_of(s), 0),
             tokens("targets", s->N, s->V));
}
static void run_cross_entropy_forward(const Call *c) {
    c->ops->cross_entropy_forward(c->p[0], c->p[1], c->p[2], c->s.N, c->s.V, c->s.Vp);
}
/* Padding columns hold NaN (but for FILL_TEXT: the ladder's kernels read them); FILL_EQUAL: all logits of a row alike; FILL_HUGE: one logit of 1e4 a row, the target in every
 * second row, so that losses are 0 and about 1e4. */
static void prepare_cross_entropy(OpCase *c) {
    const int V = c->s.V, Vp = c->s.Vp;
    fill_tokens(c, 2);
    for (int64_t row = 0; row < c->s.N; row++) {
        float *z = c->in[1] + row * Vp;
        if (c->s.fill == FILL_EQUAL)
            for (int i = 0; i < V; i++) z[i] = z[0];
        if (c->s.fill == FILL_HUGE) z[row % 2 ? (int)c->in[2][row] : (int)(row % V)] = 1e4f;
        for (int i = V; i < Vp && c->s.fill != FILL_TEXT; i++) z[i] = NAN;
    }
}
DESCRIBED(cross_entropy_forward, "cross_entropy_forward", .prepare = prepare_cross_entropy, .shape = LOGITS,
          .teaches = "logsumexp minus the target's logit, one pass");

static int describe_cross_entropy_backward_inplace(Operand *o, const Sizes *s) {
    Operand logits = with_role(result("logits", s->N * s->Vp, s->Vp), ADD); /* read, then overwritten */
    logits.scale = scale_of(s);
    OPERANDS(result_f32("losses", s->N), logits, tokens("targets", s->N, s->V));
}
/* With FILL_TEXT dloss is 1, as in the ladder's kernels. */
static void run_cross_entropy_backward_inplace(const Call *c) {
    const float dloss = c->s.fill == FILL_TEXT ? 1 : 1 / (float)c->s.N;
    c->ops->cross_entropy_backward_inplace(c->p[0], c->p[1], c->p[2], dloss, c->s.N, c->s.V, c->s.Vp);
}
DESCRIBED(cross_entropy_backward_inplace, "cross_entropy_backward", .prepare = prepare_cross_entropy,
          .shape = LOGITS, .teaches = "and the gradient in place of the logits");

/* ---- statistics and update: all zero before, so that nothing is clipped ---- */

static Operand statistics(void) {
    const int n = sizeof(StepStats) / sizeof(float);
    return (Operand){.name = "stats", .role = ADD, .store = STORE_F32, .elems = n, .row = n};
}
/* The sums: what comes of them is compared. */
static Operand sums_space(void) {
    const int64_t n = (int64_t)(sizeof(StepSums) / sizeof(float));
    return (Operand){.name = "sums", .role = SPACE, .store = STORE_F32, .elems = n, .row = n};
}
static StepSums *sums_of(const Call *c) {
    c->ops->device->zero(c->p[2], sizeof(StepSums));
    return c->p[2];
}
static int describe_loss_sum(Operand *o, const Sizes *s) {
    OPERANDS(statistics(), input_f32("losses", s->N, 1, 3), sums_space());
}
static void run_loss_sum(const Call *c) {
    StepSums *sums = sums_of(c);
    c->ops->loss_sum(&sums->loss, c->p[1], 0.5f, c->s.N);
    c->ops->finish_stats(c->p[0], sums);
}
DESCRIBED(loss_sum, "loss_sum", .shape = PARAMETERS,
          .teaches = "a sum on the device that depends on no order");

/* out may be a (ALIAS_A) or b (ALIAS_B). */
static int describe_sum_gradients(Operand *o, const Sizes *s) {
    const bool is_a = has(s, ALIAS_A), is_b = has(s, ALIAS_B);
    OPERANDS(is_a || is_b ? sum_f32("out", s->N, 1024, 0) : result_f32("out", s->N),
             input_f32("a", is_a ? 0 : s->N, 1, 0), input_f32("b", is_b ? 0 : s->N, 1, 0));
}
static void run_sum_gradients(const Call *c) {
    void *const *p = c->p;
    c->ops->sum_gradients(p[0], has(&c->s, ALIAS_A) ? p[0] : p[1], has(&c->s, ALIAS_B) ? p[0] : p[2], c->s.N);
}
DESCRIBED(sum_gradients, "sum_gradients", .shape = PARAMETERS,
          .teaches = "two streams in, one out: a roof of fp32 sums");

/* Both halves: the sum of squares, and its root. */
static int describe_grad_norm(Operand *o, const Sizes *s) {
    OPERANDS(statistics(), input_f32("grads", s->N, 0.01f, 0), sums_space());
}
static void run_grad_norm(const Call *c) {
    StepSums *sums = sums_of(c);
    c->ops->sum_squares(&sums->squares, c->p[1], c->s.N);
    c->ops->finish_stats(c->p[0], sums);
}
const Op op_grad_norm = {.name = "grad_norm",
                         .id = OP_sum_squares,
                         .describe = describe_grad_norm,
                         .run = run_grad_norm,
                         .shape = PARAMETERS,
                         .teaches = "a sum of squares that depends on no order"};

/* v must not be negative */
static int describe_adamw(Operand *o, const Sizes *s) {
    Operand v = sum_f32("v", s->N, 1024, 0);
    v.scale = 0;
    OPERANDS(sum_f32("master", s->N, 1024, 0), sum_f32("m", s->N, 1024, 0), v, result("weights", s->N, 1024),
             statistics(), input_f32("grads", s->N, 0.01f, 0),
             tokens("tile_groups", s->N / PARAMETER_TILE, 2));
}
AdamWArgs op_adamw_args(const Call *c) {
    AdamWArgs args = {
        .master = c->p[0],
        .m = c->p[1],
        .v = c->p[2],
        .weights = c->p[3],
        .stats = c->p[4],
        .grads = c->p[5],
        .tile_groups = c->p[6],
        .n_tiles = c->s.N / PARAMETER_TILE,
        .groups = {{1e-6f, 0.1f}, {1e-6f, 0}}
    };
    args.update =
        (UpdateArgs){.step = 1000, .lr = 1e-6f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1};
    return args;
}
static void run_adamw(const Call *c) {
    const AdamWArgs args = op_adamw_args(c);
    c->ops->adamw(&args);
}
DESCRIBED(adamw, "adamw", .shape = PARAMETERS,
          .teaches = "all tensors in one launch, a NaN never reaches a weight");

/* The tiles are listed backwards: those of momentum are not those of the gradients. */
static int describe_muon_momentum(Operand *o, const Sizes *s) {
    OPERANDS(sum_f32("m", s->N, 1024, 0), result("x", s->N, 1024), statistics(),
             input_f32("grads", s->N, 0.01f, 0), tokens("tiles", s->N / PARAMETER_TILE, 2));
}
static void list_tiles(OpCase *c) {
    const int k = c->n - 1;
    for (int64_t i = 0; i < c->operands[k].elems; i++) c->in[k][i] = (float)(c->operands[k].elems - 1 - i);
}
static void run_muon_momentum(const Call *c) {
    const MuonArgs args = {.m = c->p[0],
                           .x = c->p[1],
                           .stats = c->p[2],
                           .grads = c->p[3],
                           .tiles = c->p[4],
                           .n_tiles = c->s.N / PARAMETER_TILE,
                           .momentum = 0.95f,
                           .clip = 1};
    c->ops->muon_momentum(&args);
}
DESCRIBED(muon_momentum, "muon_momentum", .prepare = list_tiles, .shape = PARAMETERS,
          .teaches = "Nesterov's momentum, in the type that the products take");

static int describe_muon_update(Operand *o, const Sizes *s) {
    OPERANDS(sum_f32("master", s->N, 1024, 0), result("weights", s->N, 1024), statistics(),
             input("x", s->N, 0.2f, 0), tokens("tiles", s->N / PARAMETER_TILE, 2));
}
static void run_muon_update(const Call *c) {
    const MuonArgs args = {.master = c->p[0],
                           .weights = c->p[1],
                           .stats = c->p[2],
                           .x = c->p[3],
                           .tiles = c->p[4],
                           .n_tiles = c->s.N / PARAMETER_TILE,
                           .lr = 0.02f,
                           .weight_decay = 0.1f};
    c->ops->muon_update(&args);
}
DESCRIBED(muon_update, "muon_update", .prepare = list_tiles, .shape = PARAMETERS,
          .teaches = "decay, update, rounding in one pass");

/* N blocks: of square matrices four, else two, the first of them transposed; 64 elements behind each matrix are no
 * matrix's. Scratch for three, so that more come in several batches. */
enum { BETWEEN_MATRICES = 64, MATRICES_IN_SCRATCH = 3 };
static int matrices_of(const Sizes *s) {
    return s->OC == s->IC ? 4 : 2;
}
static int64_t matrix_stride(const Sizes *s) {
    return (int64_t)s->OC * s->IC + BETWEEN_MATRICES;
}
static int describe_orthogonalise(Operand *o, const Sizes *s) {
    Operand x = with_role(result("x", s->N * matrices_of(s) * matrix_stride(s), s->IC), ADD),
            scratch = space();
    scratch.store = STORE_F32;
    const int64_t fit = s->fill == FILL_TEXT ? s->N * matrices_of(s) : MATRICES_IN_SCRATCH;
    scratch.elems = fit * (int64_t)orthogonalise_scratch_bytes(s->OC, s->IC, DTYPE_F32) / 4;
    OPERANDS(x, scratch);
}
static OrthogonaliseArgs orthogonalise_args(const Sizes *s, void *x, void *scratch, DType dtype) {
    const int n = matrices_of(s);
    const int fit = s->fill == FILL_TEXT ? (int)s->N * n : MATRICES_IN_SCRATCH;
    OrthogonaliseArgs args = {.x = x,
                              .n_blocks = s->N,
                              .stride = n * matrix_stride(s),
                              .n_matrices = n,
                              .rows = s->OC,
                              .cols = s->IC,
                              .gain = 0.2f * sqrtf((float)s->IC),
                              .polynomial = &newton_schulz[has(s, FIRST) ? JORDAN : POLAR_EXPRESS],
                              .scratch = scratch,
                              .scratch_bytes =
                                  (size_t)fit * orthogonalise_scratch_bytes(s->OC, s->IC, dtype)};
    for (int i = 0; i < n; i++) {
        args.offsets[i] = i * matrix_stride(s);
        args.transposed[i] = n == 2 && i == 0;
    }
    return args;
}
OrthogonaliseArgs op_orthogonalise_args(const Call *c) {
    return orthogonalise_args(&c->s, c->p[0], c->p[1], c->ops->dtype);
}
static void run_orthogonalise(const Call *c) {
    const OrthogonaliseArgs args = op_orthogonalise_args(c);
    c->ops->orthogonalise(&args);
}

/* out (rows, cols) = alpha a b + beta c, rounded; b_transposed: b is (cols, k). */
static void rounded_product(float *out, const float *a, const float *b, bool b_transposed, const float *c,
                            float alpha, float beta, int rows, int cols, int k) {
#pragma omp parallel for
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[(int64_t)i * k + l] * b[b_transposed ? (int64_t)j * k + l : (int64_t)l * cols + j];
            out[(int64_t)i * cols + j] = round_bf16(alpha * sum + (c ? beta * c[(int64_t)i * cols + j] : 0));
        }
}
/* One matrix, as a kernel rounds it on the way. */
static void plain_matrix(float *matrix, const OrthogonaliseArgs *args, bool transposed) {
    const int R = args->rows, C = args->cols;
    const int64_t n = (int64_t)R * C;
    float *x = op_malloc((size_t)(2 * n + 2 * (int64_t)R * R) * sizeof *x), *y = x + n, *gram = y + n,
          *square = gram + (int64_t)R * R, *const memory = x;
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)matrix[i] * matrix[i];
    const float scale = (float)(1 / ((double)args->polynomial->margin * sqrt(squares)));
    for (int64_t i = 0; i < n; i++) x[i] = round_bf16(scale * matrix[transposed ? i % C * R + i / C : i]);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const float *of = args->polynomial->steps[step];
        rounded_product(gram, x, x, true, NULL, 1, 0, R, R, C);
        rounded_product(square, gram, gram, false, gram, of[2], of[1], R, R, R);
        rounded_product(y, square, x, false, x, 1, of[0], R, C, R);
        float *const next = y;
        y = x;
        x = next;
    }
    for (int64_t i = 0; i < n; i++)
        matrix[transposed ? i % C * R + i / C : i] = round_bf16(args->gain * x[i]);
    free(memory);
}
static void plain_orthogonalise(OpCase *c) {
    const int64_t n = c->operands[0].elems;
    memcpy(c->plain[0], c->in[0], (size_t)n * sizeof(float));
    const OrthogonaliseArgs args = orthogonalise_args(&c->s, c->plain[0], NULL, DTYPE_BF16);
    for (int64_t m = 0; m < c->s.N * args.n_matrices; m++)
        plain_matrix(c->plain[0] + m * matrix_stride(&c->s), &args, args.transposed[m % args.n_matrices]);
    slack_of_plain(c->slack[0], c->plain[0], c->want[0], n);
    for (int64_t i = 0; i < n; i++)
        c->slack[0][i] *= 1.5f; /* the steps make of one rounding an error of many elements */
}
DESCRIBED(orthogonalise, "orthogonalise", .plain = plain_orthogonalise, .shape = MATRICES,
          .teaches = "Newton-Schulz: three strided batched products a step");

static int describe_weights_from_master(Operand *o, const Sizes *s) {
    OPERANDS(result("weights", s->N, 1024), input_f32("master", s->N, 1, 0));
}
static void run_weights_from_master(const Call *c) {
    c->ops->weights_from_master(c->p[0], c->p[1], c->s.N);
}
DESCRIBED(weights_from_master, "weights_from_master", .shape = PARAMETERS,
          .teaches = "a cast: a roof of element-wise ops");

/* To add an op: its description above, and its name here. */
const Op *const described_ops[] = {
    &op_embedding_forward,
    &op_embedding_backward,
    &op_layernorm_forward,
    &op_residual_layernorm_forward,
    &op_layernorm_backward,
    &op_dropout,
    &op_linear_forward,
    &op_linear_backward_input,
    &op_linear_backward_input_row_dots,
    &op_linear_backward_weight,
    &op_qkv_bias_backward,
    &op_attention_decode,
    &op_transpose_rows,
    &op_cross_entropy_forward,
    &op_cross_entropy_backward_inplace,
    &op_loss_sum,
    &op_sum_gradients,
    &op_grad_norm,
    &op_adamw,
    &op_muon_momentum,
    &op_orthogonalise,
    &op_muon_update,
    &op_weights_from_master,
    NULL,
};

/* ---- cost ---- */

OpCost op_case_cost(const Op *op, const Sizes *s, DType dtype) {
    OpSizes z = {s->B,  s->T, s->NH, s->HD,       s->N,      s->C,      s->OC,
                 s->IC, s->V, s->Vp, group_of(s), s->window, s->blocks, OWN_WEIGHTS};
    if (op->id == OP_orthogonalise) z.N *= matrices_of(s);
    if (!has(s, NO_RESIDUAL)) z.with |= WITH_DRESIDUAL;
    if (has(s, GELU)) z.with |= WITH_PRE_GELU;
    if (has(s, GELU_TOO | GELU_IN_PLACE)) z.with |= WITH_GELU;
    if (has(s, FIRST)) z.with |= OVERWRITES;
    return op_cost(op->id, &z, dtype);
}
