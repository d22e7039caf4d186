/* One case of one op: a backend against the CPU oracle.
 *
 * The caller describes operands and how to call the op; this file does the rest: inputs from a fixed seed,
 * rounded to the backend's type first, so that the oracle sees the same values; outputs and scratch poisoned;
 * guard bands; data 16 bytes past the alignment of an allocation in every second case; inputs unchanged; a
 * second run with other scratch contents bitwise equal; every output within its limit.
 *
 * Limits: fp32 outputs 1e-5. bf16 outputs, by norm, maximum, element and scale (limits.h), from a plain bf16
 * computation: the oracle's result rounded, or, where an op has intermediate values, Op.plain, which rounds these too
 * and says in slack[] what they may add up to. */
#pragma once
#include "limits.h"
#include "op_test.h"

enum { MAX_OPERANDS = 12 };
/* fp32 sums of bf16 products on tensor cores: each of the n/16 additions truncates, up to 2^-23 of the sum
 * and always towards zero; with n up to 2048 that is 1.5e-5. Gradients rounded to bf16 on the way would be
 * 2e-3 off. */
#define TENSOR_CORE_LIMIT 3e-5
/* fp32 noise of an element that is rounded to bf16, of the root mean square of its output; for each element of a long
 * sum on tensor cores 2^-23 / 16 more. */
#define NOISE_LIMIT 4e-5
/* Column sums of values as stored: each is off by up to 2^-9 of itself in bf16. */
#define ROUNDED_SUMS_LIMIT 4e-3

typedef enum { IN, OUT, INOUT, SPACE } Role;          /* SPACE: scratch, not compared */
typedef enum { STORE_X, STORE_F32, STORE_I32 } Store; /* STORE_X: the backend's type */
typedef enum {
    FILL_NORMAL,
    FILL_EQUAL,
    FILL_GROWING,
    FILL_HUGE,
    FILL_DISTINCT,
    FILL_FALLING,
    FILL_PEAKS,
    FILL_STEP
} Fill;
enum { NO_BIAS = 1, GELU = 2, ALIAS_A = 4, ALIAS_B = 8, NO_RESIDUAL = 16, NO_SUMS = 32, FIRST = 64 };

/* Sizes of a case; an op reads those it knows, the others stay 0. */
typedef struct Dims {
    int B, T, NH, HD;
    int64_t N;
    int C, OC, IC, V, Vp;
    int flags; /* NO_BIAS, ... */
    Fill fill;
    float scale; /* standard deviation of the main input; 0 means 1 */
    int window;  /* of attention; 0: none */
    float p;     /* of dropout */
} Dims;

typedef struct Operand {
    const char *name;
    Role role;
    Store store;
    int64_t elems; /* 0: the op gets NULL; -1: ops->scratch_bytes() */
    float scale;   /* inputs are offset + scale * normal */
    float offset;
    double bf16_limit; /* of a STORE_F32 output of a bf16 backend; 0 means FP32_LIMIT */
    int64_t part; /* elements per part of (.., 3, part): q, k and v are compared one by one; 0: all at once */
} Operand;

struct OpCase;
/* To add an op: a row of this type, and rows of Dims for it. */
typedef struct Op {
    const char *name;
    int (*describe)(Operand *operands,
                    const Dims *d); /* fills operands, in the order of the call; their number */
    void (*run)(const Ops *ops, void **p, const Dims *d);
    /* The rest may be NULL. */
    void (*prepare)(struct OpCase *c);                   /* inputs that are not plain normal: in[] */
    void (*reference)(void **p, const struct OpCase *c); /* where the oracle is not run() on ops_cpu */
    void (*plain)(struct OpCase *c); /* a plain bf16 computation of the outputs: plain[], slack[] */
} Op;

typedef struct OpCase {
    const Ops *ops;
    const Op *op;
    Dims d;
    char label[128];
    int n;
    Operand operands[MAX_OPERANDS];
    float *in[MAX_OPERANDS];    /* initial contents, as stored; NULL for OUT and SPACE */
    float *want[MAX_OPERANDS];  /* the oracle's contents afterwards; NULL for SPACE */
    float *plain[MAX_OPERANDS]; /* bf16 backend, STORE_X outputs */
    float *slack[MAX_OPERANDS]; /* of the same: what intermediate roundings may add up to, 0 at first */
    double approximate;         /* set by plain: more noise, where a library approximates a function */
    Guarded device[MAX_OPERANDS];
} OpCase;

/* ---- values ---- */

static size_t store_bytes(Store store, DType dtype) {
    return store == STORE_X ? dtype_bytes(dtype) : 4;
}

/* values as they lie in memory */
static void encode(void *bytes, const float *values, Store store, DType dtype, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        if (store == STORE_I32)
            ((int32_t *)bytes)[i] = (int32_t)values[i];
        else if (store == STORE_X && dtype == DTYPE_BF16)
            ((uint16_t *)bytes)[i] = bf16_from_float(values[i]);
        else
            ((float *)bytes)[i] = values[i];
}

static void decode(float *values, const void *bytes, Store store, DType dtype, int64_t n) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        if (store == STORE_I32)
            values[i] = (float)((const int32_t *)bytes)[i];
        else if (store == STORE_X && dtype == DTYPE_BF16)
            values[i] = bf16_to_float(((const uint16_t *)bytes)[i]);
        else
            values[i] = ((const float *)bytes)[i];
}

static void round_values(float *values, DType dtype, int64_t n) {
    if (dtype == DTYPE_F32) return;
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) values[i] = round_bf16(values[i]);
}

static void op_fill_inputs(OpCase *c) {
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if (o->role == OUT || o->role == SPACE || o->elems == 0) continue;
        float *in = c->in[k] = op_malloc((size_t)o->elems * sizeof *in);
#pragma omp parallel for
        for (int64_t i = 0; i < o->elems; i++) in[i] = o->offset + o->scale * op_normal((uint64_t)k, i);
        if (o->store == STORE_X) round_values(in, c->ops->dtype, o->elems);
    }
    if (c->op->prepare) c->op->prepare(c);
    for (int k = 0; k < c->n; k++)
        if (c->in[k] && c->operands[k].store == STORE_X)
            round_values(c->in[k], c->ops->dtype, c->operands[k].elems);
}

/* ---- oracle ---- */

static size_t op_scratch_bytes(const Ops *ops, const Dims *d) {
    int64_t tokens = d->N > (int64_t)d->B * d->T ? d->N : (int64_t)d->B * d->T;
    int widest = d->C > d->NH * d->HD ? d->C : d->NH * d->HD;
    if (d->OC > widest) widest = d->OC;
    if (d->IC > widest) widest = d->IC;
    OpShape shape = {.B = d->N ? 1 : d->B,
                     .T = (int)(d->N ? d->N : d->T),
                     .C = widest,
                     .NH = d->NH ? d->NH : 1,
                     .V = d->V > widest ? d->V : widest,
                     .Vp = d->Vp > widest ? d->Vp : widest,
                     .loss_rows = tokens};
    return ops->scratch_bytes(&shape);
}

static size_t operand_bytes(const OpCase *c, const Operand *o, const Ops *ops) {
    return o->elems < 0 ? op_scratch_bytes(ops, &c->d) : (size_t)o->elems * store_bytes(o->store, ops->dtype);
}

/* want[] = what the oracle leaves; OUT operands start as NaN there too. */
static void op_oracle(OpCase *c) {
    Guarded host[MAX_OPERANDS] = {0};
    void *p[MAX_OPERANDS] = {0};
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if (o->elems == 0) continue;
        if (!guarded_alloc(&host[k], &ops_cpu, operand_bytes(c, o, &ops_cpu), 0)) abort();
        p[k] = host[k].data;
        if (c->in[k]) encode(host[k].data, c->in[k], o->store, DTYPE_F32, o->elems);
    }
    if (c->op->reference)
        c->op->reference(p, c);
    else
        c->op->run(&ops_cpu, p, &c->d);
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if (o->role != SPACE && o->elems > 0) {
            c->want[k] = op_malloc((size_t)o->elems * sizeof(float));
            decode(c->want[k], host[k].data, o->store, DTYPE_F32, o->elems);
        }
        guarded_free(&host[k]);
    }
}

/* plain[] = want[] rounded and slack[] = 0, then Op.plain's own. */
static void op_plain(OpCase *c) {
    if (c->ops->dtype != DTYPE_BF16) return;
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if ((o->role != OUT && o->role != INOUT) || o->store != STORE_X || o->elems == 0) continue;
        c->plain[k] = op_malloc((size_t)o->elems * sizeof(float));
        memcpy(c->plain[k], c->want[k], (size_t)o->elems * sizeof(float));
        round_values(c->plain[k], DTYPE_BF16, o->elems);
        c->slack[k] = op_malloc((size_t)o->elems * sizeof(float));
        memset(c->slack[k], 0, (size_t)o->elems * sizeof(float));
    }
    if (c->op->plain) c->op->plain(c);
}

/* ---- device ---- */

/* Contents before a run: inputs, NaN in outputs, `scratch` in every byte of scratch. False if it does not
 * fit. */
static bool op_fill_device(OpCase *c, int scratch) {
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if (o->elems == 0) continue;
        if (!c->in[k]) {
            if (!guarded_fill(c->ops, c->device[k].data, o->role == SPACE ? scratch : POISON_VALUE,
                              c->device[k].bytes))
                return false;
            continue;
        }
        void *bytes = op_malloc(c->device[k].bytes);
        encode(bytes, c->in[k], o->store, c->ops->dtype, o->elems);
        c->ops->device->upload(c->device[k].data, bytes, c->device[k].bytes);
        free(bytes);
    }
    return true;
}

static bool op_alloc_device(OpCase *c, size_t shift) {
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        size_t bytes = operand_bytes(c, o, c->ops);
        if (o->elems != 0 && !guarded_alloc(&c->device[k], c->ops, bytes, o->elems < 0 ? 0 : shift))
            return false;
    }
    return true;
}

static void op_run_device(OpCase *c) {
    void *p[MAX_OPERANDS] = {0};
    for (int k = 0; k < c->n; k++) p[k] = c->device[k].data;
    c->op->run(c->ops, p, &c->d);
}

static void *op_download(OpCase *c, int k) {
    void *bytes = op_malloc(c->device[k].bytes);
    c->ops->device->download(bytes, c->device[k].data, c->device[k].bytes);
    return bytes;
}

/* ---- checks ---- */

static Limits op_limits(const OpCase *c, int k, const Expected *e) {
    const bool bf16 = c->ops->dtype == DTYPE_BF16;
    const Operand *o = &c->operands[k];
    double fp32 = bf16 && o->bf16_limit > 0 ? o->bf16_limit : FP32_LIMIT;
    if (c->d.fill >= FILL_FALLING) fp32 *= 32; /* fp32 itself is some 1e-5 off in a score of 200 */
    if (!bf16 || o->store != STORE_X) return (Limits){fp32, fp32};
    const double max = compare_floats(e->plain, e->want, e->n).max;
    return (Limits){2 * typical_norm(e) + FP32_LIMIT,
                    2 * fmax(max, e->few ? BF16_HALF_STEP : 0) + FP32_LIMIT};
}

/* What operand k allows, of n elements. */
static Expected op_expected(const OpCase *c, const float *want, const float *plain, const float *slack,
                            int64_t n) {
    const int terms[] = {c->d.OC, c->d.IC, c->d.T}; /* of products and of P V */
    int longest = 0;
    for (int i = 0; i < 3; i++)
        if (terms[i] > longest) longest = terms[i];
    const double noise = NOISE_LIMIT + longest * 0x1p-27 + c->approximate;
    return (Expected){want, plain, slack, n, noise, c->d.fill > FILL_EQUAL};
}

/* A bf16 output by element and by scale (limits.h). */
static void op_check_bf16(const OpCase *c, int k, const char *part, const float *got, const Expected *e) {
    const char *name = c->operands[k].name;
    const Excess excess = element_excess(got, e);
    const int64_t at = excess.worst;
    CHECK(excess.ratio <= 1, "%s: %s%s: element %lld is %g, expected %g: %.3g times as far off as it may be",
          c->label, name, part, (long long)at, (double)got[at], (double)e->want[at], excess.ratio);
    const double scale = scale_error(got, e->want, e->n), limit = scale_limit(e);
    CHECK(fabs(scale) <= limit, "%s: %s%s: all of it is %.2e too large, limit %.2e", c->label, name, part,
          scale, limit);
    if (op_verbose)
        printf("%-64s %-9s%-3s element %.2f of its limit  scale %.1e limit %.1e\n", c->label, name, part,
               excess.ratio, scale, limit);
}

static void op_check_values(const OpCase *c, int k, const char *part, const float *got, const Expected *e) {
    Deviation d = compare_floats(got, e->want, e->n);
    Limits limits = op_limits(c, k, e);
    const char *name = c->operands[k].name;
    CHECK(within(d, limits),
          "%s: %s%s: error %.2e, limit %.2e; largest %.2e, limit %.2e, at %lld: %g, expected %g", c->label,
          name, part, d.norm, limits.norm, d.max, limits.max, (long long)d.worst, (double)got[d.worst],
          (double)e->want[d.worst]);
    if (op_verbose)
        printf("%-64s %-9s%-3s error %.1e limit %.1e  largest %.1e limit %.1e\n", c->label, name, part,
               d.norm, limits.norm, d.max, limits.max);
    if (e->plain) op_check_bf16(c, k, part, got, e);
}

/* q, k and v of (.., 3, part) one by one: dv, the largest, must not hide an error in dq. */
static void op_check_parts(const OpCase *c, int k, const float *got) {
    static const char *const names[3] = {" q", " k", " v"};
    const Operand *o = &c->operands[k];
    const int64_t n = o->elems / 3;
    const float *from[4] = {got, c->want[k], c->plain[k], c->slack[k]};
    float *to[4];
    for (int p = 0; p < 3; p++) {
        for (int s = 0; s < 4; s++) {
            to[s] = from[s] ? op_malloc((size_t)n * sizeof(float)) : NULL;
            for (int64_t i = 0; from[s] && i < n; i++)
                to[s][i] = from[s][(i / o->part * 3 + p) * o->part + i % o->part];
        }
        const Expected e = op_expected(c, to[1], to[2], to[3], n);
        op_check_values(c, k, names[p], to[0], &e);
        for (int s = 0; s < 4; s++) free(to[s]);
    }
}

/* Everything that a run must have done, and not done, to operand k; bytes is what it holds now. */
static void op_check_operand(OpCase *c, int k, const void *bytes) {
    const Operand *o = &c->operands[k];
    CHECK(guarded_intact(&c->device[k]), "%s: bytes before or after %s were written", c->label, o->name);
    if (o->role == SPACE) return;
    float *got = op_malloc((size_t)o->elems * sizeof *got);
    decode(got, bytes, o->store, c->ops->dtype, o->elems);
    if (o->role == IN) {
        void *before = op_malloc(c->device[k].bytes);
        encode(before, c->in[k], o->store, c->ops->dtype, o->elems);
        CHECK(memcmp(before, bytes, c->device[k].bytes) == 0, "%s: the input %s was changed", c->label,
              o->name);
        free(before);
    } else if (o->part > 0) {
        op_check_parts(c, k, got);
    } else {
        const Expected e = op_expected(c, c->want[k], c->plain[k], c->slack[k], o->elems);
        op_check_values(c, k, "", got, &e);
    }
    free(got);
}

static void op_check_device(OpCase *c) {
    void *first[MAX_OPERANDS] = {0};
    if (!op_fill_device(c, POISON_VALUE)) abort();
    op_run_device(c);
    for (int k = 0; k < c->n; k++) {
        if (c->operands[k].elems == 0) continue;
        first[k] = op_download(c, k);
        op_check_operand(c, k, first[k]);
    }
    if (!op_fill_device(c, 0x11)) abort();
    op_run_device(c);
    for (int k = 0; k < c->n; k++) {
        if (c->operands[k].elems != 0 && c->operands[k].role != SPACE) {
            void *again = op_download(c, k);
            if (c->operands[k].role != IN)
                op_print_bits(c->label, c->operands[k].name, first[k], c->device[k].bytes);
            CHECK(memcmp(first[k], again, c->device[k].bytes) == 0, "%s: %s differs in a second run",
                  c->label, c->operands[k].name);
            free(again);
        }
        free(first[k]);
    }
}

static void op_label(OpCase *c) {
    const Dims *d = &c->d;
    const struct {
        const char *name;
        long long value;
    } fields[] = {
        {"B",          d->B               },
        {"T",          d->T               },
        {"NH",         d->NH              },
        {"HD",         d->HD              },
        {"N",          d->N               },
        {"C",          d->C               },
        {"OC",         d->OC              },
        {"IC",         d->IC              },
        {"V",          d->V               },
        {"Vp",         d->Vp              },
        {"flags ",     d->flags           },
        {"fill ",      d->fill            },
        {"window ",    d->window          },
        {"dropout % ", lroundf(100 * d->p)}
    };
    int at = snprintf(c->label, sizeof c->label, "%s%s, %s", c->ops->name, op_path, c->op->name);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value && at < (int)sizeof c->label)
            at += snprintf(c->label + at, sizeof c->label - (size_t)at, " %s%lld", fields[i].name,
                           fields[i].value);
    if (at < (int)sizeof c->label - 1) strcpy(c->label + at, " "); /* so that "T129 " is no part of another */
}

/* The whole case, unless its op was not asked for. */
static void op_case(const Ops *ops, const Op *op, Dims d) {
    static int n_cases;
    OpCase c = {.ops = ops, .op = op, .d = d};
    if (c.d.scale == 0) c.d.scale = 1;
    op_label(&c);
    if (!op_wanted(op->name, c.label)) return;
    c.n = op->describe(c.operands, &c.d);
    op_fill_inputs(&c);
    op_oracle(&c);
    op_plain(&c);
    if (CHECK(op_alloc_device(&c, n_cases++ % 2 ? 16 : 0), "%s: device memory", c.label)) op_check_device(&c);
    for (int k = 0; k < c.n; k++) {
        guarded_free(&c.device[k]);
        free(c.in[k]);
        free(c.want[k]);
        free(c.plain[k]);
        free(c.slack[k]);
    }
}

/* Fills operand 1 with tokens below V. FILL_NORMAL: any, the first and last of the vocabulary among them;
 * FILL_EQUAL: one; FILL_DISTINCT: none twice. */
static inline void op_prepare_tokens(OpCase *c) {
    const int64_t n = c->operands[1].elems;
    for (int64_t i = 0; i < n; i++) {
        uint64_t any = op_mix((uint64_t)i) % (uint64_t)c->d.V;
        c->in[1][i] = c->d.fill == FILL_EQUAL      ? (float)(c->d.V - 1)
                      : c->d.fill == FILL_DISTINCT ? (float)(i * 7919 % c->d.V) /* 7919 is prime */
                                                   : (float)any;
    }
    if (c->d.fill == FILL_NORMAL && n > 1) {
        c->in[1][0] = 0;
        c->in[1][n - 1] = (float)(c->d.V - 1);
    }
}
