/* Times the CPU's matrix products and attention: the shapes of the default CPU run (768 tokens, 128 channels)
 * and of GPT-2 124M.
 *
 *   make dev && build/bench_cpu
 *
 * Each op runs for at least 0.3 s after a warm-up; the median and the best call are printed, and the best
 * over the peak that a loop of fused multiply-adds reaches on all threads just before (ops_cpu.device->peak_flops).
 * Causal attention counts as half. */
#include <stdio.h>
#include <stdlib.h>
#include "dev/ops/op_run.h"
#include "dev/ops/operands.h"
#include "llmc/base/clock.h"

enum { MAX_CALLS = 1000 };

/* ---- attention of packed heads, whose description in dev/attention is the lab's ---- */

static int64_t channels_of(const Sizes *s) {
    return (int64_t)s->B * s->T * s->NH * s->HD;
}
static int describe_forward(Operand *o, const Sizes *s) {
    OPERANDS(result("out", channels_of(s), s->HD), result_f32("lse", (int64_t)s->B * s->NH * s->T),
             input("qkv", 3 * channels_of(s), 1, 0));
}
static void run_forward(const Call *c) {
    c->ops->attention_forward(c->p[0], c->p[1], c->p[2], &(AttentionMask){0}, c->s.B, c->s.T, c->s.NH,
                              c->s.HD);
}
static int describe_backward(Operand *o, const Sizes *s) {
    OPERANDS(result("dqkv", 3 * channels_of(s), s->HD), input("dout", channels_of(s), 1, 0),
             input("out", channels_of(s), 1, 0), input("qkv", 3 * channels_of(s), 1, 0),
             input_f32("lse", (int64_t)s->B * s->NH * s->T, 1, 5), space());
}
static void run_backward(const Call *c) {
    c->ops->attention_backward(c->p[0], c->p[1], c->p[2], c->p[3], c->p[4], NULL, &(AttentionMask){0},
                               c->p[5], c->s.B, c->s.T, c->s.NH, c->s.HD);
}
static const Op attention_forward = {
    .id = OP_attention_forward, .describe = describe_forward, .run = run_forward};
static const Op attention_backward = {
    .id = OP_attention_backward, .describe = describe_backward, .run = run_backward};

/* ---- the table ---- */

#define LINEAR(tokens, oc, ic, form)                                                                         \
    { .N = tokens, .OC = oc, .IC = ic, .flags = NO_BIAS | NO_SUMS | form }
#define ATTENTION(b, t, nh, hd)                                                                              \
    { .B = b, .T = t, .NH = nh, .HD = hd }

/* To add a shape: a row. */
static const struct {
    const char *name;
    const Op *op;
    Sizes s;
} rows[] = {
    {"qkv forward",           &op_linear_forward,         LINEAR(768,   384,  128, 0)   },
    {"c_fc forward + GELU",   &op_linear_forward,         LINEAR(768,   512,  128, GELU)},
    {"c_proj input gradient", &op_linear_backward_input,  LINEAR(768,   128,  512, 0)   },
    {"c_fc weight gradient",  &op_linear_backward_weight, LINEAR(768,   512,  128, 0)   },
    {"attention forward",     &attention_forward,         ATTENTION(12, 64,   4,   32)  },
    {"attention backward",    &attention_backward,        ATTENTION(12, 64,   4,   32)  },
    {"qkv forward",           &op_linear_forward,         LINEAR(4096,  2304, 768, 0)   },
    {"c_fc forward + GELU",   &op_linear_forward,         LINEAR(4096,  3072, 768, GELU)},
    {"c_fc input gradient",   &op_linear_backward_input,  LINEAR(4096,  3072, 768, 0)   },
    {"c_fc weight gradient",  &op_linear_backward_weight, LINEAR(4096,  3072, 768, 0)   },
    {"attention forward",     &attention_forward,         ATTENTION(4,  1024, 12,  64)  },
    {"attention backward",    &attention_backward,        ATTENTION(4,  1024, 12,  64)  },
};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench(const char *name, const Op *op, const Sizes *s, double peak) {
    static double seconds[MAX_CALLS];
    OpCase c = {.op = op, .s = *s, .dtype = DTYPE_F32};
    OpRun run;
    int n = 0;
    op_case_build(&c);
    if (!op_run_open(&run, &c, &ops_cpu, op_scratch_bytes(&ops_cpu, s), 0))
        die(&(Error){EXIT_RUN, "bench_cpu: out of memory"});
    op_run_fill(&run, 0);
    op->run(&run.call);
    for (double end = clock_seconds() + 0.3; n < 5 || (clock_seconds() < end && n < MAX_CALLS); n++) {
        double begun = clock_seconds();
        op->run(&run.call);
        seconds[n] = clock_seconds() - begun;
    }
    qsort(seconds, (size_t)n, sizeof *seconds, ascending);
    const double flops = op_case_cost(op, s, DTYPE_F32).flops, best = flops / seconds[0];
    printf("%-22s %5lld tokens %5d x %-4d %8.3f ms %7.0f %7.0f GFLOP/s %5.0f %%\n", name,
           (long long)(s->N ? s->N : s->B * s->T), s->OC ? s->OC : s->NH, s->OC ? s->IC : s->HD,
           seconds[n / 2] * 1e3, flops / seconds[n / 2] * 1e-9, best * 1e-9, 100 * best / peak);
    op_run_close(&run);
    op_case_free(&c);
}

int main(int argc, char **argv) {
    Error err = {0};
    const char *how;
    if (argc > 1) {
        fail(&err, EXIT_INPUT, "bench_cpu: expected no argument, found '%s'", argv[1]);
        die(&err);
    }
    if (!ops_cpu.device->open(0, &err)) die(&err);
    double peak = ops_cpu.device->peak_flops(ops_cpu.dtype, &how);
    printf("%s, peak %.0f GFLOP/s (%s)\n", ops_cpu.device->name(), peak * 1e-9, how);
    printf("%-22s %12s %12s %11s %7s %7s\n", "op", "", "shape", "median", "median", "best");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) bench(rows[i].name, rows[i].op, &rows[i].s, peak);
    return 0;
}
