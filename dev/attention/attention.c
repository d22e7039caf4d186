/* The lab's two attention ops: operands, cost, sizes, inputs, reference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dev/test/compare.h"
#include "ladder.h"
#include "reference_rows.h"

/* ---- operands ---- */

/* q, k and v (or their gradients) as parts of one operand. */
static void describe_qkv_parts(Operand *o, const Sizes *s) {
    const AttentionLayout l = attention_layout(s);
    const int64_t C = (int64_t)s->NH * s->HD, V = (int64_t)s->NH * s->DV;
    const int64_t queries = (int64_t)s->B * s->T, keys = (int64_t)s->B * s->Tk;
    const Part parts[] = {
        {"dq", l.q, queries, l.q_stride, C, s->HD},
        {"dk", l.k, keys,    l.k_stride, C, s->HD},
        {"dv", l.v, keys,    l.v_stride, V, s->DV},
    };
    o->n_parts = 3;
    memcpy(o->parts, parts, sizeof parts);
}

/* lse in fp32, as log2 and back */
#define LSE_ROUNDING 2e-5

static int describe_forward(Operand *o, const Sizes *s) {
    const Operand operands[] = {
        {.name = "out",                         .role = OUT, .elems = attention_out_elems(s),                  .row = s->DV},
        {.name = "lse",
         .role = OUT,
         .store = STORE_F32,
         .elems = (int64_t)s->B * s->NH * s->T,
         .row = 1,
         .row_limit = LSE_ROUNDING},
        {.name = "qkv", .role = IN,                                           .elems = attention_qkv_elems(s),                                                                            .scale = 1},
        {.name = "scratch",                         .role = SPACE,                          .elems = -1},
    };
    memcpy(o, operands, sizeof operands);
    return 4;
}

/* out and lse are inputs here: the reference's, rounded. */
static int describe_backward(Operand *o, const Sizes *s) {
    const Operand operands[] = {
        {.name = "dqkv",                   .role = OUT, .elems = attention_qkv_elems(s),               .row = s->HD},
        {.name = "dout",                                .role = IN,                              .elems = attention_out_elems(s),                                  .scale = 1},
        {.name = "out",                      .role = IN,                                 .elems = attention_out_elems(s)                                },
        {.name = "qkv", .role = IN,.elems = attention_qkv_elems(s),.scale = 1},
        {.name = "lse", .role = IN,                       .store = STORE_F32,                                                                                        .elems = (int64_t)s->B * s->NH * s->T},
        {.name = "scratch",                      .role = SPACE,.elems = -1},
    };
    memcpy(o, operands, sizeof operands);
    describe_qkv_parts(&o[BACKWARD_DQKV], s);
    return 6;
}

/* ---- cost ---- */

/* Q K^T and P V */
static double forward_flops(const Sizes *s) {
    return attention_pairs(s) * 2 * (s->HD + s->DV);
}
/* Q K^T, dO V^T, P^T dO, dS K, dS^T Q: the five products of FlashAttention-2 */
static double backward_flops(const Sizes *s) {
    return attention_pairs(s) * 2 * (3 * s->HD + 2 * s->DV);
}
static double lse_bytes(const Sizes *s) {
    return 4.0 * s->B * s->NH * s->T;
}
static double forward_bytes(const Sizes *s, int elem) {
    return (double)elem * (attention_qkv_elems(s) + attention_out_elems(s)) + lse_bytes(s);
}
static double backward_bytes(const Sizes *s, int elem) {
    return (double)elem * 2 * (attention_qkv_elems(s) + attention_out_elems(s)) + lse_bytes(s);
}

/* ---- sizes ---- */

static const int HEAD_SIZES[] = {64, 128};

/* Calls add() for every head size and mask that the options allow. */
static int each_form(Sizes *list, const Options *o,
                     int (*add)(Sizes *list, const Options *o, int HD, bool causal)) {
    int n = 0;
    const int *head_sizes = o->n_head_sizes ? o->head_sizes : HEAD_SIZES;
    const int n_head_sizes = o->n_head_sizes ? o->n_head_sizes : 2;
    for (int h = 0; h < n_head_sizes; h++)
        for (int causal = 1; causal >= 0; causal--)
            if (o->causal < 0 || o->causal == causal) n += add(list + n, o, head_sizes[h], causal);
    return n;
}

static Sizes packed_sizes(int B, int T, int NH, int HD, bool causal) {
    return (Sizes){.B = B, .T = T, .Tk = T, .NH = NH, .HD = HD, .DV = HD, .causal = causal};
}

/* Around the tiles' borders, one long sequence, many heads (with 168 of T = 320, a tile of 64 keys comes after full
 * ones: one-pass backward once waited for itself there); then forms that only some variants take. */
static int add_checks(Sizes *list, const Options *o, int HD, bool causal) {
    static const struct {
        int B, T, NH, Tk, DV; /* Tk, DV 0: T, HD */
        bool sparse, dropout;
        int window;
        SparsePattern blocks;
    } shapes[] = {
        {1,  1,    1,  0,    0,  false, false, 0,   {0}      },
        {2,  63,   2,  0,    0,  false, false, 0,   {0}      },
        {1,  64,   1,  0,    0,  false, false, 0,   {0}      },
        {1,  65,   3,  0,    0,  false, false, 0,   {0}      },
        {1,  192,  2,  0,    0,  false, false, 0,   {0}      },
        {2,  200,  2,  0,    0,  false, false, 0,   {0}      },
        {1,  1000, 2,  0,    0,  false, false, 0,   {0}      },
        {1,  1023, 1,  0,    0,  false, false, 0,   {0}      },
        {2,  1024, 12, 0,    0,  false, false, 0,   {0}      },
        {1,  4096, 2,  0,    0,  false, false, 0,   {0}      },
        {25, 250,  24, 0,    0,  false, false, 0,   {0}      },
        {7,  320,  24, 0,    0,  false, false, 0,   {0}      },
        {2,  70,   2,  133,  0,  false, false, 0,   {0}      },
        {1,  133,  2,  70,   0,  false, false, 0,   {0}      },
        {2,  1,    3,  4000, 0,  false, false, 0,   {0}      },
        {1,  100,  2,  0,    32, false, false, 0,   {0}      },
        {1,  200,  2,  0,    0,  false, true,  0,   {0}      },
        {1,  700,  2,  0,    0,  true,  false, 0,   {0}      },
        {1,  200,  2,  0,    0,  false, true,  70,  {0}      },
        {1,  700,  2,  0,    0,  false, false, 128, {0}      },
        {1,  700,  2,  0,    0,  false, false, 0,   {2, 1, 2}},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (o->n_T || ((shapes[i].window || shapes[i].blocks.window) && !causal) ||
            (o->quick && (shapes[i].B * shapes[i].T > 400 || shapes[i].Tk > 1000)))
            continue;
        Sizes *s = &list[n++];
        *s = packed_sizes(shapes[i].B, shapes[i].T, shapes[i].NH, HD, causal);
        if (shapes[i].Tk) s->Tk = shapes[i].Tk;
        if (shapes[i].DV) s->DV = shapes[i].DV;
        s->sparse = shapes[i].sparse;
        s->dropout = shapes[i].dropout;
        s->window = shapes[i].window;
        s->blocks = shapes[i].blocks;
        s->adversarial = (s->T == 200 && s->B == 2) || s->T == 1000;
    }
    for (int i = 0; i < o->n_T; i++) {
        list[n] = packed_sizes(1, o->T[i], 2, HD, causal);
        list[n++].adversarial = o->T[i] >= 100 && o->T[i] <= 2048;
    }
    return n;
}

/* B*T = batch_tokens, NH*HD = channels: every T moves the same bytes. With --queries, B*Tk = batch_tokens. */
static int add_timings(Sizes *list, const Options *o, int HD, bool causal) {
    const int NH = o->channels / HD > 0 ? o->channels / HD : 1;
    for (int i = 0; i < o->n_T; i++) {
        const int64_t B = o->batch_tokens / o->T[i];
        list[i] = packed_sizes(B > 0 ? (int)B : 1, o->T[i], NH, HD, causal);
        if (o->queries) list[i].T = o->queries;
        list[i].sparse = o->sparse;
        list[i].dropout = o->dropout;
        list[i].window = causal ? o->window : 0;
        if (causal) list[i].blocks = o->pattern;
    }
    return o->n_T;
}

static int check_sizes(Sizes *list, const Options *o) {
    return each_form(list, o, add_checks);
}

/* Where the command line leaves them open: the peers' table on a GPU, GPT-2 124M at short contexts on a CPU. */
static int time_sizes(Sizes *list, const Options *o, Needs needs) {
    static const int gpu[] = {1024, 2048, 4096, 8192, 16384, 32768}, cpu[] = {64, 256, 1024};
    Options filled = *o;
    const bool on_cpu = needs == NEEDS_CPU;
    if (!o->n_T) {
        filled.n_T = on_cpu ? 3 : o->quick ? 5 : 6;
        memcpy(filled.T, on_cpu ? cpu : gpu, sizeof(int) * (size_t)filled.n_T);
    }
    if (!o->batch_tokens) filled.batch_tokens = on_cpu ? 4096 : 65536;
    if (!o->channels) filled.channels = on_cpu ? 768 : 1536;
    return each_form(list, &filled, add_timings);
}

/* ---- inputs ---- */

static float *qkv_of(Case *c) {
    return c->o.in[c->op == &attention_forward_op ? (int)FORWARD_QKV : (int)BACKWARD_QKV];
}

/* Element 0 of every query is q; of key j it is k(j, T) (of the first sequence's first head the rest stays
 * normal too). Scores are then q * k / sqrt(HD) beside normal noise. */
static void set_scores(Case *c, float q, float (*k)(int j, const Sizes *s)) {
    const Sizes *s = &c->o.s;
    const AttentionLayout l = attention_layout(s);
    float *qkv = qkv_of(c);
    for (int64_t b = 0; b < s->B; b++)
        for (int h = 0; h < s->NH; h++) {
            for (int i = 0; i < s->T; i++) qkv[l.q + (b * s->T + i) * l.q_stride + h * s->HD] = q;
            for (int j = 0; j < s->Tk; j++)
                qkv[l.k + (b * s->Tk + j) * l.k_stride + h * s->HD] = k(j, s) * sqrtf((float)s->HD) / q;
        }
}

static float growing_score(int j, const Sizes *s) {
    return 160.0f * (float)j / (float)s->Tk; /* nats: 231 in log2 */
}
static float huge_early_score(int j, const Sizes *s) {
    return j == (s->Tk > 3 ? 3 : 0) ? 200.0f : 0;
}
static float huge_late_score(int j, const Sizes *s) {
    return j == s->Tk - 2 ? 200.0f : 0;
}
/* The first 70 keys and two of three others: rows below 70 see nothing else. */
static float masked_score(int j, const Sizes *s) {
    return j < 70 || j % 3 ? -500.0f : 0;
}
static void fill_growing(Case *c) {
    set_scores(c, 8, growing_score);
}
static void fill_huge_early(Case *c) {
    set_scores(c, 8, huge_early_score);
}
static void fill_huge_late(Case *c) {
    set_scores(c, 8, huge_late_score);
}
static void fill_masked(Case *c) {
    set_scores(c, 8, masked_score);
}

/* All scores 0: every row is the mean of the values that it sees. */
static void fill_equal(Case *c) {
    const Sizes *s = &c->o.s;
    const AttentionLayout l = attention_layout(s);
    for (int64_t i = 0; i < (int64_t)s->B * s->T; i++)
        memset(qkv_of(c) + l.q + i * l.q_stride, 0, sizeof(float) * (size_t)(s->NH * s->HD));
}

/* A value that is not finite, in the first head of the first sequence, at a position away from both ends. */
static int fault_position(const Sizes *s) {
    return s->T * 3 / 5;
}
static void fill_nan_query(Case *c) {
    const AttentionLayout l = attention_layout(&c->o.s);
    qkv_of(c)[l.q + fault_position(&c->o.s) * l.q_stride + 3] = NAN;
}
static void fill_nan_key(Case *c) {
    const AttentionLayout l = attention_layout(&c->o.s);
    qkv_of(c)[l.k + fault_position(&c->o.s) * l.k_stride + 3] = NAN;
}
static void fill_inf_key(Case *c) {
    const AttentionLayout l = attention_layout(&c->o.s);
    qkv_of(c)[l.k + fault_position(&c->o.s) * l.k_stride + 3] = INFINITY;
}
static void fill_nan_value(Case *c) {
    const AttentionLayout l = attention_layout(&c->o.s);
    qkv_of(c)[l.v + fault_position(&c->o.s) * l.v_stride + 3] = NAN;
}
static void fill_nan_dout(Case *c) {
    const AttentionLayout l = attention_layout(&c->o.s);
    c->o.in[BACKWARD_DOUT][fault_position(&c->o.s) * l.out_stride + 3] = NAN;
}

/* clang-format off */
#define FORWARD_FILLS                      \
    {"normal",     NULL,            false}, \
    {"equal",      fill_equal,      false}, \
    {"growing",    fill_growing,    false}, \
    {"huge early", fill_huge_early, false}, \
    {"huge late",  fill_huge_late,  false}, \
    {"masked",     fill_masked,     false}, \
    {"nan query",  fill_nan_query,  true},  \
    {"nan key",    fill_nan_key,    true},  \
    {"inf key",    fill_inf_key,    true},  \
    {"nan value",  fill_nan_value,  true}
/* clang-format on */
static const Fill fills[] = {
    FORWARD_FILLS, {NULL, NULL, false}
};
static const Fill backward_fills[] = {
    FORWARD_FILLS, {"nan dout", fill_nan_dout, true },
     {NULL,       NULL,          false}
};

/* ---- reference ---- */

void attention_reference_cpu(const AttentionReference *host) {
    AttentionReference r = *host;
    const Stage stages[] = {STAGE_FORWARD, STAGE_D, STAGE_QUERIES, STAGE_KEYS};
    r.d = lab_malloc(sizeof(double) * (size_t)stage_rows(&r.s, STAGE_D));
    for (int i = r.dqkv ? 1 : 0; i < (r.dqkv ? 4 : 1); i++) {
        const int64_t rows = stage_rows(&r.s, stages[i]);
#pragma omp parallel for schedule(dynamic, 16)
        for (int64_t row = 0; row < rows; row++) stage_row(&r, stages[i], row);
    }
    free(r.d);
}

static void run_reference(const AttentionReference *r) {
    if (lab_compute_capability())
        attention_reference_gpu(r);
    else
        attention_reference_cpu(r);
}

static Precision plain_precision(const Case *c) {
    return c->o.dtype == DTYPE_BF16 ? PLAIN_BF16 : PLAIN_F32;
}

/* Storage types that round scores have a third result: makes room for it. */
static bool rounds_scores(Case *c) {
    for (int k = 0; k < c->o.n && c->o.dtype == DTYPE_BF16; k++)
        if (c->plain[k] && !c->scores[k])
            c->scores[k] = lab_malloc((size_t)c->o.operands[k].elems * sizeof(double));
    return c->o.dtype == DTYPE_BF16;
}

/* Positions beside the fault within which a masked 0 may meet it in a tile's product: 0 * NaN. */
enum { TILE_REACH = 256 };

/* In rows of the first head of the first sequence, positions [begin, end), what is finite may be anything. */
static void accept_rows(double *want, int64_t offset, int64_t stride, int width, int begin, int end,
                        int length) {
    for (int t = begin > 0 ? begin : 0; t < (end < length ? end : length); t++)
        for (int d = 0; d < width; d++)
            if (isfinite(want[offset + t * stride + d])) want[offset + t * stride + d] = ANYTHING;
}

static void reference_forward(Case *c) {
    const Sizes *s = &c->o.s;
    const AttentionLayout l = attention_layout(s);
    const Precision precisions[] = {EXACT, plain_precision(c), PLAIN_BF16_SCORES};
    double **const results[] = {c->want, c->plain, c->scores};
    for (int i = 0; i < (rounds_scores(c) ? 3 : 2); i++) {
        double **to = results[i];
        const AttentionReference r = {.s = *s,
                                      .precision = precisions[i],
                                      .qkv = c->o.in[FORWARD_QKV],
                                      .out = to[FORWARD_OUT],
                                      .lse = to[FORWARD_LSE]};
        run_reference(&r);
    }
    const int at = fault_position(s);
    if (c->fill->apply == fill_nan_value)
        accept_rows(c->want[FORWARD_OUT], 0, l.out_stride, s->DV, at - TILE_REACH, at, s->T);
}

/* out and lse, which backward reads, are those of the exact forward, rounded. */
static void reference_backward(Case *c) {
    const Sizes *s = &c->o.s;
    const AttentionLayout l = attention_layout(s);
    const int64_t n_out = attention_out_elems(s), n_lse = (int64_t)s->B * s->NH * s->T;
    AttentionReference r = {.s = *s, .precision = EXACT, .qkv = c->o.in[BACKWARD_QKV]};
    r.out = lab_malloc(sizeof(double) * (size_t)n_out);
    r.lse = lab_malloc(sizeof(double) * (size_t)n_lse);
    run_reference(&r);
    for (int64_t i = 0; i < n_out; i++) c->o.in[BACKWARD_OUT][i] = round_to(c->o.dtype, (float)r.out[i]);
    for (int64_t i = 0; i < n_lse; i++) c->o.in[BACKWARD_LSE][i] = (float)r.lse[i];
    r.dout = c->o.in[BACKWARD_DOUT];
    r.dqkv = c->want[BACKWARD_DQKV];
    run_reference(&r);
    for (int64_t i = 0; i < n_out; i++) r.out[i] = c->o.in[BACKWARD_OUT][i];
    for (int64_t i = 0; i < n_lse; i++) r.lse[i] = c->o.in[BACKWARD_LSE][i];
    r.precision = plain_precision(c);
    r.dqkv = c->plain[BACKWARD_DQKV];
    run_reference(&r);
    if (rounds_scores(c)) { /* such a computation has the P of its own forward */
        r.precision = PLAIN_BF16_SCORES;
        r.dqkv = NULL;
        run_reference(&r);
        r.dqkv = c->scores[BACKWARD_DQKV];
        run_reference(&r);
    }
    free(r.out);
    free(r.lse);
    if (!c->fill->not_finite) return;
    /* Among the last keys, rows that an infinite key has spoiled meet their masked zeros, too. And a kernel may fold
     * D into the products, so that a D that is NaN (from V or dO) spoils P, and with it dV, of the whole head. */
    const int at = fault_position(s), last = s->Tk - TILE_REACH;
    const bool spoils_d = c->fill->apply == fill_nan_value || c->fill->apply == fill_nan_dout;
    double *want = c->want[BACKWARD_DQKV];
    accept_rows(want, l.q, l.q_stride, s->HD, at - TILE_REACH, at, s->T);
    accept_rows(want, l.k, l.k_stride, s->HD, at + 1, at + TILE_REACH, s->Tk);
    accept_rows(want, l.k, l.k_stride, s->HD, last, s->Tk, s->Tk);
    accept_rows(want, l.v, l.v_stride, s->DV, spoils_d ? 0 : at + 1, spoils_d ? s->Tk : at + TILE_REACH,
                s->Tk);
}

/* ---- ops ---- */

/* Timed backward calls read the results of a forward row of the same device: with any other lse, P would not
 * be probabilities. */
static void forward_before_backward(const Call *call) {
    const Call forward = {
        .ops = call->ops,
        .s = call->s,
        .p = {call->p[BACKWARD_OUT], call->p[BACKWARD_LSE], call->p[BACKWARD_QKV]}
    };
    for (const Variant *v = call->ops == &ops_cpu ? cpu_variants : cuda_variants; v->name; v++)
        if (!strcmp(v->op, "attention_forward") && lab_table(v->needs, v->dtype) == call->ops &&
            !(v->flags & INEXACT) && !v->scratch_bytes && !v->prepare && !variant_refuses(v, &call->s)) {
            v->run(&forward);
            return;
        }
}

static const Op forward = {
    .name = "attention_forward", .id = OP_attention_forward, .describe = describe_forward};
static const Op backward = {
    .name = "attention_backward", .id = OP_attention_backward, .describe = describe_backward};

const LabOp attention_forward_op = {
    .op = &forward,
    .reference = reference_forward,
    .flops = forward_flops,
    .bytes = forward_bytes,
    .density = attention_density,
    .check_sizes = check_sizes,
    .time_sizes = time_sizes,
    .fills = fills,
};
const LabOp attention_backward_op = {
    .op = &backward,
    .reference = reference_backward,
    .flops = backward_flops,
    .bytes = backward_bytes,
    .density = attention_density,
    .check_sizes = check_sizes,
    .time_sizes = time_sizes,
    .fills = backward_fills,
    .prepare_timing = forward_before_backward,
};
