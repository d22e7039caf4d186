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
#include "llmc/base/clock.h"
#include "llmc/model/ops.h"

enum { MAX_CALLS = 1000 };

typedef struct Row {
    const char *name;
    int64_t N; /* tokens */
    int OC, IC;
    enum { FORWARD, FORWARD_GELU, INPUT, WEIGHT, ATTENTION_FORWARD, ATTENTION_BACKWARD } op;
    int B, NH; /* attention only: N = B*T tokens, IC channels */
} Row;

/* To add a shape: a row. */
static const Row rows[] = {
    {"qkv forward",           768,  384,  128, FORWARD,            0,  0 },
    {"c_fc forward + GELU",   768,  512,  128, FORWARD_GELU,       0,  0 },
    {"c_proj input gradient", 768,  128,  512, INPUT,              0,  0 },
    {"c_fc weight gradient",  768,  512,  128, WEIGHT,             0,  0 },
    {"attention forward",     768,  0,    128, ATTENTION_FORWARD,  12, 4 },
    {"attention backward",    768,  0,    128, ATTENTION_BACKWARD, 12, 4 },
    {"qkv forward",           4096, 2304, 768, FORWARD,            0,  0 },
    {"c_fc forward + GELU",   4096, 3072, 768, FORWARD_GELU,       0,  0 },
    {"c_fc input gradient",   4096, 3072, 768, INPUT,              0,  0 },
    {"c_fc weight gradient",  4096, 3072, 768, WEIGHT,             0,  0 },
    {"attention forward",     4096, 0,    768, ATTENTION_FORWARD,  4,  12},
    {"attention backward",    4096, 0,    768, ATTENTION_BACKWARD, 4,  12},
};

/* n floats, uniform in [-0.5, 0.5). */
static float *random_floats(int64_t n) {
    float *x = ops_cpu.device->alloc((size_t)n * sizeof *x);
    if (!x) {
        fprintf(stderr, "error: out of memory for %lld floats\n", (long long)n);
        exit(EXIT_RUN);
    }
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f - 0.5f;
    return x;
}

typedef struct Buffers {
    float *x, *y, *pre, *weight, *dweight, *lse;
    void *scratch;
} Buffers;

static void call(const Row *r, const Buffers *b) {
    const int T = r->B ? (int)(r->N / r->B) : 0, HD = r->NH ? r->IC / r->NH : 0;
    const Matrix x = matrix(b->x, DTYPE_F32, r->N, r->IC), y = matrix(b->y, DTYPE_F32, r->N, r->OC);
    const Matrix weight = matrix(b->weight, DTYPE_F32, r->OC, r->IC), none = no_matrix();
    switch (r->op) {
    case FORWARD:
        ops_cpu.linear_forward(y, none, x, weight, NULL);
        break;
    case FORWARD_GELU:
        ops_cpu.linear_forward(y, matrix(b->pre, DTYPE_F32, r->N, r->OC), x, weight, NULL);
        break;
    case INPUT:
        ops_cpu.linear_backward_input(x, NULL, none, y, weight, none, b->scratch);
        break;
    case WEIGHT:
        ops_cpu.linear_backward_weight(matrix(b->dweight, DTYPE_F32, r->OC, r->IC), NULL, y, x, ACCUMULATE,
                                       b->scratch);
        break;
    case ATTENTION_FORWARD:
        ops_cpu.attention_forward(b->x, b->lse, b->y, &(AttentionMask){0}, r->B, T, r->NH, HD);
        break;
    case ATTENTION_BACKWARD:
        ops_cpu.attention_backward(b->pre, b->weight, b->x, b->y, b->lse, NULL, &(AttentionMask){0},
                                   b->scratch, r->B, T, r->NH, HD);
        break;
    }
}

static double flops(const Row *r) {
    if (r->op < ATTENTION_FORWARD) return 2.0 * (double)r->N * r->OC * r->IC;
    double forward = 4.0 * (double)r->N * (double)(r->N / r->B) * r->IC / 2;
    return r->op == ATTENTION_FORWARD ? forward : 2.5 * forward;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench(const Row *r, double peak) {
    const int64_t wide = r->N * 4 * (r->IC > r->OC ? r->IC : r->OC),
                  square = (int64_t)4 * r->IC * (r->OC + r->IC);
    const OpShape shape = {.B = r->B ? r->B : 1,
                           .T = r->B ? (int)(r->N / r->B) : (int)r->N,
                           .C = r->IC,
                           .NH = r->NH ? r->NH : 1,
                           .V = 256,
                           .Vp = 256,
                           .loss_rows = r->N};
    Buffers b = {random_floats(wide),
                 random_floats(wide),
                 random_floats(wide),
                 random_floats(square > wide ? square : wide),
                 random_floats(square),
                 random_floats(wide),
                 NULL};
    static double seconds[MAX_CALLS];
    b.scratch = ops_cpu.device->alloc(ops_cpu.scratch_bytes(&shape));
    int n = 0;
    call(r, &b);
    for (double end = clock_seconds() + 0.3; n < 5 || (clock_seconds() < end && n < MAX_CALLS); n++) {
        double begun = clock_seconds();
        call(r, &b);
        seconds[n] = clock_seconds() - begun;
    }
    qsort(seconds, (size_t)n, sizeof *seconds, ascending);
    double best = flops(r) / seconds[0] * 1e-9, median = flops(r) / seconds[n / 2] * 1e-9;
    printf("%-22s %5lld tokens %5d x %-4d %8.3f ms %7.0f %7.0f GFLOP/s %5.0f %%\n", r->name, (long long)r->N,
           r->OC ? r->OC : r->NH, r->OC ? r->IC : r->IC / r->NH, seconds[n / 2] * 1e3, median, best,
           1e11 * best / peak);
    void *all[] = {b.x, b.y, b.pre, b.weight, b.dweight, b.lse, b.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ops_cpu.device->free(all[i]);
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
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) bench(&rows[i], peak);
    return 0;
}
