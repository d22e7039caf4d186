/* The ops other than attention: operands, bytes, FLOP and sizes of each, and the shipped kernels as rows.
 *
 * Bytes and FLOP are the least that the contract needs (llmc/model/ops.h). Times are taken at the shapes of a d12
 * training step, 64 x 1024 tokens of 768 channels (4096 tokens on a CPU). The reference is the CPU's op in fp32. */
#include <math.h>
#include <string.h>
#include "dev/gelu/ladder.h"

/* Error allowed beside that of rounding the result: fp32 sums in another order. */
#define ROUNDING 1e-4

enum {
    WIDTH = 768,
    VOCABULARY = 50257,
    PADDED_VOCABULARY = 50304,
    HEAD_ROWS = 16384,
    GPT2_PARAMETERS = 124475904
};

#define OPERANDS(...)                                                                                        \
    const Operand operands[] = {__VA_ARGS__};                                                                \
    memcpy(o, operands, sizeof operands);                                                                    \
    return sizeof operands / sizeof *operands

/* One row of values is one row of the tensor. */
static Operand input(const char *name, int64_t elems, float scale, float offset) {
    return (Operand){.name = name, .role = IN, .elems = elems, .scale = scale, .offset = offset};
}
static Operand result(const char *name, int64_t elems, int row) {
    return (Operand){.name = name, .role = OUT, .elems = elems, .row = row, .limit = ROUNDING};
}
static Operand result_f32(const char *name, int64_t elems) {
    return (Operand){
        .name = name, .role = OUT, .store = STORE_F32, .elems = elems, .row = 1, .limit = ROUNDING};
}
/* += in fp32 */
static Operand sum_f32(const char *name, int64_t elems, int row) {
    return (Operand){.name = name,
                     .role = ADD,
                     .store = STORE_F32,
                     .elems = elems,
                     .scale = 1,
                     .row = row,
                     .limit = ROUNDING};
}
/* += the column sums of operand 0, which is rounded before */
static Operand column_sums_f32(const char *name, int columns) {
    Operand sums = sum_f32(name, columns, columns);
    sums.sums = true;
    return sums;
}
static Operand input_f32(const char *name, int64_t elems, float scale, float offset) {
    return (Operand){
        .name = name, .role = IN, .store = STORE_F32, .elems = elems, .scale = scale, .offset = offset};
}
static Operand tokens(const char *name, int64_t elems, int vocabulary) {
    return (Operand){
        .name = name, .role = IN, .store = STORE_I32, .elems = elems, .offset = (float)vocabulary};
}
static Operand space(void) {
    return (Operand){.name = "scratch", .role = SPACE};
}

/* ---- embedding ---- */

static int describe_embedding_forward(Operand *o, const Sizes *s) {
    OPERANDS(result("out", s->N * s->C, s->C), tokens("tokens", s->N, s->V),
             input("wte", (int64_t)s->V * s->C, 1, 0), input("wpe", (int64_t)s->T * s->C, 1, 0));
}
static void run_embedding_forward(const Call *c) {
    c->ops->embedding_forward(c->p[0], c->p[1], c->p[2], c->p[3], c->s.B, c->s.T, c->s.C);
}
static int describe_embedding_backward(Operand *o, const Sizes *s) {
    OPERANDS(sum_f32("dwte", (int64_t)s->V * s->C, s->C), sum_f32("dwpe", (int64_t)s->T * s->C, s->C),
             input("dout", s->N * s->C, 1, 0), tokens("tokens", s->N, s->V), space());
}
static void run_embedding_backward(const Call *c) {
    c->ops->embedding_backward(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], c->s.B, c->s.T, c->s.C, c->s.V);
}
/* The gradient is read once, and the rows that its tokens touch are a small part of the table. */
static double embedding_bytes(const Sizes *s, int elem) {
    return (double)elem * (double)s->N * s->C;
}

/* ---- layernorm, residual ---- */

static int describe_layernorm_forward(Operand *o, const Sizes *s) {
    OPERANDS(result("out", s->N * s->C, s->C), result_f32("mean", s->N), result_f32("rstd", s->N),
             input("x", s->N * s->C, 1, 0.5f), input("weight", s->C, 0.3f, 1), input("bias", s->C, 0.3f, 0));
}
static void run_layernorm_forward(const Call *c) {
    c->ops->layernorm_forward(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], c->p[5], c->s.N, c->s.C);
}
static double two_tensors(const Sizes *s, int elem) {
    return 2.0 * elem * (double)s->N * (s->C ? s->C : 1);
}
static int describe_residual_layernorm(Operand *o, const Sizes *s) {
    OPERANDS(result("residual", s->N * s->C, s->C), result("out", s->N * s->C, s->C),
             result_f32("mean", s->N), result_f32("rstd", s->N), input("a", s->N * s->C, 1, 0.5f),
             input("b", s->N * s->C, 1, 0), input("weight", s->C, 0.3f, 1), input("bias", s->C, 0.3f, 0));
}
static void run_residual_layernorm(const Call *c) {
    void *const *p = c->p;
    c->ops->residual_layernorm_forward(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], c->s.N, c->s.C);
}
/* The contract rounds the residual before it is normalised: inputs on a grid of 1/16 have sums that bf16 holds. */
static void prepare_residual_layernorm(Case *c) {
    for (int k = 4; k < 6; k++)
        for (int64_t i = 0; i < c->operands[k].elems; i++)
            c->in[k][i] = roundf(fminf(fmaxf(c->in[k][i], -7), 7) * 16) / 16;
}
static double four_tensors(const Sizes *s, int elem) {
    return 2 * two_tensors(s, elem);
}
static int describe_layernorm_backward(Operand *o, const Sizes *s) {
    OPERANDS(result("dx", s->N * s->C, s->C), sum_f32("dweight", s->C, s->C), sum_f32("dbias", s->C, s->C),
             column_sums_f32("dx_sums", s->C), input("dresidual", s->N * s->C, 1, 0),
             input("dout", s->N * s->C, 1, 0), input("x", s->N * s->C, 1, 0.5f),
             input("weight", s->C, 0.3f, 1), input_f32("mean", s->N, 0.01f, 0.5f),
             input_f32("rstd", s->N, 0.01f, 1), space());
}
static void run_layernorm_backward(const Call *c) {
    void *const *p = c->p;
    c->ops->layernorm_backward(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], c->s.N,
                               c->s.C);
}
static double three_tensors(const Sizes *s, int elem) {
    return 1.5 * two_tensors(s, elem);
}

/* ---- linear, GELU ---- */

static int describe_linear_forward(Operand *o, const Sizes *s) {
    const int64_t out = s->N * s->OC;
    OPERANDS(result("out", out, s->OC), result("pre_gelu", s->gelu ? out : 0, s->OC),
             input("x", s->N * s->IC, 1, 0),
             input("weight", (int64_t)s->OC * s->IC, 1 / sqrtf((float)s->IC), 0),
             input("bias", s->OC, 0.5f, 0));
}
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
static void run_linear_forward(const Call *c) {
    c->ops->linear_forward(outputs(c, 0), outputs(c, 1), inputs(c, 2), weight(c, 3, c->ops->dtype), c->p[4]);
}
static int describe_linear_backward_input(Operand *o, const Sizes *s) {
    const int64_t in = s->N * s->IC;
    OPERANDS(result("dx", in, s->IC), column_sums_f32("dx_sums", s->IC), input("dout", s->N * s->OC, 1, 0),
             input("weight", (int64_t)s->OC * s->IC, 1 / sqrtf((float)s->OC), 0),
             input("pre_gelu", s->gelu ? in : 0, 1.5f, 0), space());
}
static void run_linear_backward_input(const Call *c) {
    c->ops->linear_backward_input(inputs(c, 0), c->p[1], no_matrix(), outputs(c, 2),
                                  weight(c, 3, c->ops->dtype), inputs(c, 4), c->p[5]);
}
static int describe_linear_backward_weight(Operand *o, const Sizes *s) {
    OPERANDS(sum_f32("dweight", (int64_t)s->OC * s->IC, s->IC), sum_f32("dbias", s->OC, s->OC),
             input("dout", s->N * s->OC, 1, 0), input("x", s->N * s->IC, 1, 0), space());
}
static void run_linear_backward_weight(const Call *c) {
    c->ops->linear_backward_weight(weight(c, 0, DTYPE_F32), c->p[1], outputs(c, 2), inputs(c, 3), ACCUMULATE,
                                   c->p[4]);
}
static double linear_flops(const Sizes *s) {
    return 2.0 * (double)s->N * s->OC * s->IC;
}
static double linear_bytes(const Sizes *s, int elem) {
    return elem * ((double)s->N * (s->OC + s->IC) + (double)s->OC * s->IC);
}
static int describe_gelu_forward(Operand *o, const Sizes *s) {
    OPERANDS(result("out", s->N * s->C, s->C), input("x", s->N * s->C, 1.5f, 0));
}
/* dx in place: read, then overwritten. */
static int describe_gelu_backward(Operand *o, const Sizes *s) {
    Operand dx = result("dx", s->N * s->C, s->C);
    dx.role = ADD;
    dx.scale = 1;
    OPERANDS(dx, input("pre_gelu", s->N * s->C, 1.5f, 0), space());
}

/* ---- loss ---- */

static int describe_cross_entropy_forward(Operand *o, const Sizes *s) {
    OPERANDS(result_f32("losses", s->N), input("logits", s->N * s->Vp, 1, 0), tokens("targets", s->N, s->V));
}
static void run_cross_entropy_forward(const Call *c) {
    c->ops->cross_entropy_forward(c->p[0], c->p[1], c->p[2], c->s.N, c->s.V, c->s.Vp);
}
/* dloss = 1: the gradients are of the order of the probabilities. */
static int describe_cross_entropy_backward(Operand *o, const Sizes *s) {
    Operand logits = result("logits", s->N * s->Vp, s->Vp);
    logits.role = ADD; /* read, then overwritten */
    logits.scale = 1;
    OPERANDS(result_f32("losses", s->N), logits, tokens("targets", s->N, s->V));
}
static void run_cross_entropy_backward(const Call *c) {
    c->ops->cross_entropy_backward_inplace(c->p[0], c->p[1], c->p[2], 1, c->s.N, c->s.V, c->s.Vp);
}
static double logits_read(const Sizes *s, int elem) {
    return (double)elem * (double)s->N * s->Vp;
}
static double logits_read_and_written(const Sizes *s, int elem) {
    return 2 * logits_read(s, elem);
}

/* ---- update ---- */

enum { STATS_FLOATS = sizeof(StepStats) / sizeof(float) };

static int describe_grad_norm(Operand *o, const Sizes *s) {
    Operand stats = sum_f32("stats", STATS_FLOATS, STATS_FLOATS);
    stats.scale = 0;
    OPERANDS(stats, input_f32("grads", s->N, 0.01f, 0), space());
}
static void run_grad_norm(const Call *c) {
    c->ops->sum_squares(c->p[0], c->p[1], c->p[2], c->s.N);
    c->ops->grad_norm(c->p[0]);
}
static double grads_read(const Sizes *s, int elem) {
    (void)elem;
    return 4.0 * (double)s->N;
}
static int describe_adamw(Operand *o, const Sizes *s) {
    Operand stats = sum_f32("stats", STATS_FLOATS, STATS_FLOATS), v = sum_f32("v", s->N, 1024);
    stats.scale = v.scale = 0; /* a norm of 0: nothing is clipped; v must not be negative */
    OPERANDS(sum_f32("master", s->N, 1024), sum_f32("m", s->N, 1024), v, result("weights", s->N, 1024), stats,
             input_f32("grads", s->N, 0.01f, 0), tokens("tile_groups", s->N / PARAMETER_TILE, 2));
}
AdamWArgs lab_adamw_args(const Call *c) {
    AdamWArgs args = {
        .master = c->p[0],
        .m = c->p[1],
        .v = c->p[2],
        .weights = c->p[3],
        .stats = c->p[4],
        .grads = c->p[5],
        .tile_groups = c->p[6],
        .n_tiles = c->s.N / PARAMETER_TILE,
        .groups = {{true, 1e-6f, 0.1f}, {true, 1e-6f, 0}}
    };
    args.update = (UpdateArgs){1000, 1e-6f, 0.9f, 0.95f, 1e-8f, 0, 1};
    return args;
}
static void run_adamw(const Call *c) {
    const AdamWArgs args = lab_adamw_args(c);
    c->ops->adamw(&args);
}
/* master, m and v read and written, gradients read, weights written */
static double adamw_bytes(const Sizes *s, int elem) {
    return (28.0 + elem) * (double)s->N;
}

/* ---- sizes ---- */

/* Odd sizes, and a size of the model's widths; the fields that an op does not know stay unread. */
static int check_sizes(Sizes *list, const Options *o) {
    static const Sizes sizes[] = {
        {.B = 1,    .T = 1,   .N = 1,    .C = 8,     .OC = 16,  .IC = 8,    .V = 211,     .Vp = 216},
        {      .B = 3,  .T = 65, .N = 195,   .C = 40,   .OC = 24,  .IC = 72,  .V = 1000,   .Vp = 1024         },
        { .B = 2, .T = 127, .N = 254, .C = 768, .OC = 768, .IC = 3072, .V = 5003, .Vp = 5008,          .gelu = true},
    };
    const int n = o->quick ? 2 : 3;
    memcpy(list, sizes, sizeof *sizes * (size_t)n);
    return n;
}
/* A multiple of 1024 elements, so that rows of 1024 divide it. */
static int check_sizes_flat(Sizes *list, const Options *o) {
    list[0] = (Sizes){.N = 1024};
    list[1] = (Sizes){.N = 1024 * 1001};
    return o->quick ? 1 : 2;
}

static int64_t rows_of(const Options *o, Needs needs) {
    return o->batch_tokens ? o->batch_tokens : needs == NEEDS_CPU ? 4096 : 65536;
}
static int width_of(const Options *o) {
    return o->channels ? o->channels : WIDTH;
}
static int time_sizes(Sizes *list, const Options *o, Needs needs) {
    const int64_t N = rows_of(o, needs);
    const int T = N % 1024 ? 1 : 1024;
    list[0] = (Sizes){.B = (int)(N / T), .T = T, .N = N, .C = width_of(o), .V = VOCABULARY};
    return 1;
}
static int time_sizes_wide(Sizes *list, const Options *o, Needs needs) {
    list[0] = (Sizes){.N = rows_of(o, needs), .C = 4 * width_of(o)};
    return 1;
}
static int time_sizes_loss(Sizes *list, const Options *o, Needs needs) {
    list[0] = (Sizes){.N = needs == NEEDS_CPU ? 256 : HEAD_ROWS, .V = VOCABULARY, .Vp = PADDED_VOCABULARY};
    return 1;
}
static int time_sizes_parameters(Sizes *list, const Options *o, Needs needs) {
    list[0] =
        (Sizes){.N = needs == NEEDS_CPU ? GPT2_PARAMETERS / 8 / 1024 * 1024 : GPT2_PARAMETERS / 1024 * 1024};
    return 1;
}

/* The linear layers of a block, and the head in its chunk; GELU follows fc (forward) or precedes fcproj (backward). */
static int time_sizes_linear(Sizes *list, const Options *o, Needs needs, bool backward) {
    const int64_t N = rows_of(o, needs);
    const int C = width_of(o);
    list[0] = (Sizes){.what = "qkv", .N = N, .OC = 3 * C, .IC = C};
    list[1] = (Sizes){.what = "proj", .N = N, .OC = C, .IC = C};
    list[2] = (Sizes){.what = "fc", .N = N, .OC = 4 * C, .IC = C, .gelu = !backward};
    list[3] = (Sizes){.what = "fcproj", .N = N, .OC = C, .IC = 4 * C, .gelu = backward};
    list[4] = (Sizes){.what = "head", .N = HEAD_ROWS, .OC = PADDED_VOCABULARY, .IC = C};
    return needs == NEEDS_CPU ? 4 : 5;
}
static int time_sizes_linear_forward(Sizes *list, const Options *o, Needs needs) {
    return time_sizes_linear(list, o, needs, false);
}
static int time_sizes_linear_backward(Sizes *list, const Options *o, Needs needs) {
    return time_sizes_linear(list, o, needs, true);
}

/* ---- the tables ---- */

static const Fill fills[] = {
    {"normal", NULL, false},
    {NULL,     NULL, false}
};

/* To add an op: a row here, and its variants below. */
const LabOp plain_ops[] = {
    {.name = "embedding_forward",
     .describe = describe_embedding_forward,
     .run = run_embedding_forward,
     .bytes = embedding_bytes,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes,
     .fills = fills},
    {.name = "embedding_backward",
     .describe = describe_embedding_backward,
     .run = run_embedding_backward,
     .bytes = embedding_bytes,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes,
     .fills = fills},
    {.name = "layernorm_forward",
     .describe = describe_layernorm_forward,
     .run = run_layernorm_forward,
     .bytes = two_tensors,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes,
     .fills = fills},
    {.name = "residual_layernorm",
     .describe = describe_residual_layernorm,
     .prepare = prepare_residual_layernorm,
     .run = run_residual_layernorm,
     .bytes = four_tensors,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes,
     .fills = fills},
    {.name = "layernorm_backward",
     .describe = describe_layernorm_backward,
     .run = run_layernorm_backward,
     .bytes = four_tensors,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes,
     .fills = fills},
    {.name = "gelu_forward",
     .describe = describe_gelu_forward,
     .reference = gelu_forward_reference,
     .bytes = two_tensors,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes_wide,
     .fills = fills},
    {.name = "gelu_backward",
     .describe = describe_gelu_backward,
     .reference = gelu_backward_reference,
     .bytes = three_tensors,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes_wide,
     .fills = fills},
    {.name = "linear_forward",
     .describe = describe_linear_forward,
     .run = run_linear_forward,
     .flops = linear_flops,
     .bytes = linear_bytes,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes_linear_forward,
     .fills = fills},
    {.name = "linear_backward_input",
     .describe = describe_linear_backward_input,
     .run = run_linear_backward_input,
     .flops = linear_flops,
     .bytes = linear_bytes,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes_linear_backward,
     .fills = fills},
    {.name = "linear_backward_weight",
     .describe = describe_linear_backward_weight,
     .run = run_linear_backward_weight,
     .flops = linear_flops,
     .bytes = linear_bytes,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes_linear_backward,
     .fills = fills},
    {.name = "cross_entropy_forward",
     .describe = describe_cross_entropy_forward,
     .run = run_cross_entropy_forward,
     .bytes = logits_read,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes_loss,
     .fills = fills},
    {.name = "cross_entropy_backward",
     .describe = describe_cross_entropy_backward,
     .run = run_cross_entropy_backward,
     .bytes = logits_read_and_written,
     .check_sizes = check_sizes,
     .time_sizes = time_sizes_loss,
     .fills = fills},
    {.name = "grad_norm",
     .describe = describe_grad_norm,
     .run = run_grad_norm,
     .bytes = grads_read,
     .check_sizes = check_sizes_flat,
     .time_sizes = time_sizes_parameters,
     .fills = fills},
    {.name = "adamw",
     .describe = describe_adamw,
     .run = run_adamw,
     .bytes = adamw_bytes,
     .check_sizes = check_sizes_flat,
     .time_sizes = time_sizes_parameters,
     .fills = fills},
    {.name = NULL                },
};

/* The shipped kernel of an op in the three tables. */
#define SHIPPED(op_name, call, text)                                                                         \
    {.op = op_name, .name = "cpu", .run = call, .needs = NEEDS_CPU, .dtype = DTYPE_F32, .teaches = text},    \
        {.op = op_name,                                                                                      \
         .name = "cuda",                                                                                     \
         .run = call,                                                                                        \
         .needs = NEEDS_GPU,                                                                                 \
         .dtype = DTYPE_BF16,                                                                                \
         .teaches = text},                                                                                   \
    {                                                                                                        \
        .op = op_name, .name = "cuda_fp32", .run = call, .needs = NEEDS_GPU, .dtype = DTYPE_F32,             \
        .teaches = text                                                                                      \
    }

/* clang-format off */
const Variant plain_variants[] = {
    SHIPPED("embedding_forward", run_embedding_forward, "a gather: one row of 16-byte loads a token"),
    SHIPPED("embedding_backward", run_embedding_backward, "tokens are sorted, so that sums need no atomics"),
    SHIPPED("layernorm_forward", run_layernorm_forward, "mean and variance of a row kept in registers"),
    SHIPPED("residual_layernorm", run_residual_layernorm, "the residual sum never comes back from memory"),
    SHIPPED("layernorm_backward", run_layernorm_backward, "row sums for dx, column sums for weight and bias"),
    SHIPPED("linear_forward", run_linear_forward, "a matrix product with bias and GELU in its epilogue"),
    SHIPPED("linear_backward_input", run_linear_backward_input, "dout W, times GELU's slope"),
    SHIPPED("linear_backward_weight", run_linear_backward_weight, "dout^T x added in fp32, and bias sums"),
    SHIPPED("cross_entropy_forward", run_cross_entropy_forward,
            "logsumexp minus the target's logit, one pass"),
    SHIPPED("cross_entropy_backward", run_cross_entropy_backward, "and the gradient in place of the logits"),
    SHIPPED("grad_norm", run_grad_norm, "a reduction whose order does not depend on timing"),
    SHIPPED("adamw", run_adamw, "all tensors in one launch, a NaN never reaches a weight"),
    {.op = "gelu_forward", .name = "textbook", .run = gelu_textbook_forward, .teaches = "plain C: a loop over tanhf"},
    {.op = "gelu_backward", .name = "textbook", .run = gelu_textbook_backward,
     .teaches = "plain C: the derivative of the tanh form"},
    {.name = NULL},
};
/* clang-format on */
