/* One case of one op: a backend against the oracle. dev/ops/case.c makes it; here it runs twice, and every result must be
 * within its limit.
 *
 * Limits: fp32 outputs 1e-5. bf16 outputs, by norm, maximum, element and scale (limits.h), from a plain bf16
 * computation: the oracle's result rounded, or, where an op has intermediate values, Op.plain, which rounds these too
 * and says in slack[] what they may add up to. */
#pragma once
#include "dev/ops/op_run.h"
#include "limits.h"
#include "op_test.h"

/* fp32 noise of an element that is rounded to bf16, of the root mean square of its output; for each element of a long
 * sum on tensor cores 2^-23 / 16 more. */
#define NOISE_LIMIT 4e-5

static Limits op_limits(const OpCase *c, int k, const Expected *e) {
    const bool bf16 = c->ops->dtype == DTYPE_BF16;
    const Operand *o = &c->operands[k];
    double fp32 = bf16 && o->limit > 0 ? o->limit : FP32_LIMIT;
    if (c->s.fill >= FILL_FALLING) fp32 *= 32; /* fp32 itself is some 1e-5 off in a score of 200 */
    if (!bf16 || o->store != STORE_X) return (Limits){fp32, fp32};
    const double max = compare_floats(e->plain, e->want, e->n).max;
    return (Limits){2 * typical_norm(e) + FP32_LIMIT,
                    2 * fmax(max, e->few ? BF16_HALF_STEP : 0) + FP32_LIMIT};
}

/* What operand k allows, of n elements. */
static Expected op_expected(const OpCase *c, const float *want, const float *plain, const float *slack,
                            int64_t n) {
    const int terms[] = {c->s.OC, c->s.IC, c->s.T}; /* of products and of P V */
    int longest = 0;
    for (int i = 0; i < 3; i++)
        if (terms[i] > longest) longest = terms[i];
    const double noise = NOISE_LIMIT + longest * 0x1p-27 + c->approximate;
    return (Expected){want, plain, slack, n, noise, c->s.fill > FILL_EQUAL};
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
static void op_check_operand(const OpRun *run, int k, const void *bytes) {
    const OpCase *c = run->c;
    const Operand *o = &c->operands[k];
    const Guarded *g = &run->device[k];
    CHECK(guarded_intact(g), "%s: bytes before or after %s were written", c->label, o->name);
    if (o->role == SPACE) return;
    float *got = op_malloc((size_t)o->elems * sizeof *got);
    op_decode(got, bytes, o->store, c->dtype, o->elems);
    if (o->role == IN) {
        CHECK(memcmp(run->image[k], bytes, g->bytes) == 0, "%s: the input %s was changed", c->label, o->name);
    } else if (o->part > 0) {
        op_check_parts(c, k, got);
    } else {
        const Expected e = op_expected(c, c->want[k], c->plain[k], c->slack[k], o->elems);
        op_check_values(c, k, "", got, &e);
    }
    free(got);
}

/* Runs the case twice, with other scratch contents the second time. The kernel's name must begin with `kernel`, or be any
 * where that is NULL. */
static void op_check_device(OpRun *run, const char *kernel) {
    const OpCase *c = run->c;
    void *first[MAX_OPERANDS] = {0};
    op_run_fill(run, POISON_VALUE);
    c->ops->kernel_ran(); /* of the case before */
    c->op->run(&run->call);
    const char *ran = c->ops->kernel_ran();
    if (op_verbose && ran) printf("%-64s kernel %s\n", c->label, ran);
    if (kernel)
        CHECK(ran && strncmp(ran, kernel, strlen(kernel)) == 0, "%s: kernel %s ran, expected %s", c->label,
              ran ? ran : "without a name", kernel);
    for (int k = 0; k < c->n; k++) {
        if (!run->device[k].base) continue;
        first[k] = op_run_download(run, k);
        op_check_operand(run, k, first[k]);
    }
    op_run_fill(run, 0x11);
    c->op->run(&run->call);
    for (int k = 0; k < c->n; k++) {
        if (run->image[k]) {
            void *again = op_run_download(run, k);
            if (c->operands[k].role != IN)
                op_print_bits(c->label, c->operands[k].name, first[k], run->device[k].bytes);
            CHECK(memcmp(first[k], again, run->device[k].bytes) == 0, "%s: %s differs in a second run",
                  c->label, c->operands[k].name);
            free(again);
        }
        free(first[k]);
    }
}

static void op_case_label(OpCase *c) {
    const Sizes *d = &c->s;
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
        {"documents ", d->documents       },
        {"dropout % ", lroundf(100 * d->p)},
        {"sparse ",    d->blocks.window   },
        {"first ",     d->blocks.first    },
        {"random ",    d->blocks.random   },
    };
    int at = snprintf(c->label, sizeof c->label, "%s%s, %s", c->ops->name, op_path, c->op->name);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value && at < (int)sizeof c->label)
            at += snprintf(c->label + at, sizeof c->label - (size_t)at, " %s%lld", fields[i].name,
                           fields[i].value);
    if (at < (int)sizeof c->label - 1) strcpy(c->label + at, " "); /* so that "T129 " is no part of another */
}

/* The whole case, unless its op was not asked for, by a kernel whose name begins with `kernel` (NULL: by any). */
static void op_case_by(const Ops *ops, const Op *op, Sizes s, const char *kernel) {
    static int n_cases;
    OpCase c = {.op = op, .s = s, .dtype = ops->dtype, .ops = ops, .unaligned = op_small};
    op_case_label(&c);
    if (!op_wanted(op->name, c.label)) return;
    op_case_build(&c);
    op_case_oracle(&c);
    op_case_plain(&c);
    OpRun run;
    if (CHECK(op_run_open(&run, &c, ops, op_scratch_bytes(ops, &s), n_cases++ % 2 ? 16 : 0),
              "%s: device memory", c.label))
        op_check_device(&run, kernel);
    op_run_close(&run);
    op_case_free(&c);
}

static void op_case(const Ops *ops, const Op *op, Sizes s) {
    op_case_by(ops, op, s, NULL);
}
