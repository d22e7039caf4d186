/* Timing: random data, enough sets of buffers that L2 is cold, lasting load, the median of many groups of
 * calls.
 *
 * A card under load settles at its power limit within 100 ms, so a row is warmed up before it is measured and
 * the roofs are measured first, for a second; --burst shows what a cool card does for 50 ms. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/clock.h"
#include "lab.h"

enum { MAX_SETS = 16, MAX_GROUPS = 4096, PIECE = 1 << 20 };
static const double COLD_BYTES =
    192 << 20; /* a set is left alone until this much was touched: 3 x 60 MB of L2 */
static const double GROUP_SECONDS = 5e-3, BURST_SECONDS = 0.05;

/* ---- buffers ---- */

typedef struct Buffers {
    const Ops *ops;
    int n_sets;
    Call calls[MAX_SETS];
    void *scratch;
} Buffers;

/* Fills with `PIECE` values of operand k, over and over. */
static void fill_random(const Ops *ops, char *dst, const Operand *o, int k, DType dtype) {
    const int64_t n = o->elems < PIECE ? o->elems : PIECE;
    const size_t elem = operand_bytes(o, dtype) / (size_t)o->elems, bytes = operand_bytes(o, dtype);
    float *values = lab_malloc((size_t)n * sizeof *values);
    void *piece = lab_malloc((size_t)n * elem);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) values[i] = op_value(o, k, i);
    op_encode(piece, values, o->store, dtype, n);
    size_t done = (size_t)n * elem;
    ops->device->upload(dst, piece, done);
    while (done < bytes) {
        const size_t more = done < bytes - done ? done : bytes - done;
        ops->device->copy(dst + done, dst, more);
        done += more;
    }
    free(values);
    free(piece);
}

static void buffers_close(Buffers *b, int n_operands) {
    for (int i = 0; i < b->n_sets; i++)
        for (int k = 0; k < n_operands; k++)
            if (b->calls[i].p[k] != b->scratch) b->ops->device->free(b->calls[i].p[k]);
    b->ops->device->free(b->scratch);
}

/* False, with a line, if the device has too little memory. */
static bool buffers_open(Buffers *b, const LabOp *op, const Sizes *s, const Ops *ops, size_t scratch_bytes,
                         const Options *o) {
    Operand operands[MAX_OPERANDS];
    const int n = op->op->describe(operands, s);
    size_t bytes = 0, free_bytes, total_bytes;
    for (int k = 0; k < n; k++) bytes += operand_bytes(&operands[k], ops->dtype);
    ops->device->memory_info(&free_bytes, &total_bytes);
    *b = (Buffers){.ops = ops, .n_sets = (int)(COLD_BYTES / (double)bytes) + 1};
    if (b->n_sets > MAX_SETS) b->n_sets = MAX_SETS;
    if (o->once) b->n_sets = 1;
    if ((double)bytes * b->n_sets + (double)scratch_bytes > 0.95 * (double)free_bytes) {
        printf("skip %-22s %-34s needs %.1f GiB of %.1f GiB free\n", op->op->name, sizes_text(s),
               ((double)bytes * b->n_sets + (double)scratch_bytes) / 0x1p30, (double)free_bytes / 0x1p30);
        counts.left_out++;
        return false;
    }
    b->scratch = ops->device->alloc(scratch_bytes);
    for (int i = 0; i < b->n_sets; i++) {
        Call *call = &b->calls[i];
        *call = (Call){.ops = ops, .s = *s};
        for (int k = 0; k < n; k++) {
            const Operand *operand = &operands[k];
            if (operand->elems < 0) call->p[k] = b->scratch;
            if (operand->elems <= 0) continue;
            call->p[k] = ops->device->alloc(operand_bytes(operand, ops->dtype));
            if (!call->p[k]) die(&(Error){EXIT_RUN, "the device refuses memory that it reported as free"});
            fill_random(ops, call->p[k], operand, k, ops->dtype);
        }
        if (op->prepare_timing) op->prepare_timing(call);
    }
    ops->device->synchronize();
    return true;
}

/* ---- one row ---- */

typedef struct Timing {
    double seconds, spread; /* median of a call; half the distance of the quartiles, relative */
} Timing;

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void pause_seconds(double seconds) {
    const struct timespec t = {(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)};
    nanosleep(&t, NULL);
}

/* Seconds a call of n calls back to back. */
static double time_group(const Buffers *b, void (*run)(const Call *call), int n) {
    static int next_set;
    const double start = clock_seconds();
    for (int i = 0; i < n; i++) run(&b->calls[next_set++ % b->n_sets]);
    b->ops->device->synchronize();
    return (clock_seconds() - start) / n;
}

/* A call that takes as long as a row may is a warm-up and a sample by itself: three of them are made, two count. */
static Timing time_calls(const Buffers *b, void (*run)(const Call *call), const Options *o) {
    static double groups[MAX_GROUPS];
    time_group(b, run, 1); /* plans, first launches */
    const double once = time_group(b, run, 1);
    const int calls = once < GROUP_SECONDS / 200 ? 200
                      : once < GROUP_SECONDS     ? (int)(GROUP_SECONDS / once)
                                                 : 1;
    const bool slow = once >= o->seconds;
    int n = 0;
    if (slow) groups[n++] = once;
    if (o->burst) pause_seconds(1.5);
    for (double end = clock_seconds() + (o->burst || slow ? 0 : o->seconds / 2); clock_seconds() < end;)
        time_group(b, run, calls);
    for (double end = clock_seconds() + (o->burst ? BURST_SECONDS : o->seconds);
         n < MAX_GROUPS && (n < (slow ? 2 : 3) || clock_seconds() < end);)
        groups[n++] = time_group(b, run, calls);
    qsort(groups, (size_t)n, sizeof *groups, ascending);
    const double median = groups[n / 2];
    return (Timing){median, (groups[n * 3 / 4] - groups[n / 4]) / 2 / median};
}

/* ---- roofs ---- */

typedef struct Roofs {
    const Ops *ops;
    double bytes, flops; /* a second */
} Roofs;

enum { COPY_BYTES = 1 << 28, GEMM = 8192 };

static void copy(const Call *c) {
    c->ops->device->copy(c->p[0], c->p[1], COPY_BYTES);
}
static void gemm(const Call *c) {
    const DType dtype = c->ops->dtype;
    c->ops->linear_forward(matrix(c->p[0], dtype, GEMM, GEMM), no_matrix(),
                           matrix(c->p[1], dtype, GEMM, GEMM), matrix(c->p[2], dtype, GEMM, GEMM), NULL);
}

static double time_roof(const Ops *ops, void (*run)(const Call *c), int64_t elems, const Options *o) {
    Buffers b = {.ops = ops, .n_sets = 1};
    Options longer = *o;
    const Operand operand = {.elems = elems, .scale = 1};
    for (int k = 0; k < 3; k++) {
        b.calls[0].p[k] = ops->device->alloc(operand_bytes(&operand, ops->dtype));
        if (!b.calls[0].p[k]) die(&(Error){EXIT_RUN, "too little memory to measure the roofs"});
        fill_random(ops, b.calls[0].p[k], &operand, k, ops->dtype);
    }
    b.calls[0].ops = ops;
    longer.seconds = o->quick ? 0.3 : 0.7;
    const Timing t = time_calls(&b, run, &longer);
    buffers_close(&b, 3);
    return t.seconds;
}

/* A line of --roofs' file, "cuda bf16: 4.2e+12 bytes/s, 7.1e+14 FLOP/s"; false if it is none. */
static bool roofs_line(const char *line, char name[64], double *bytes, double *flops) {
    return sscanf(line, "%63[^:]: %lf bytes/s, %lf FLOP/s", name, bytes, flops) == 3;
}

bool roofs_open(const Options *o, Error *err) {
    char line[256], name[64];
    double bytes, flops;
    bool ok = true;
    if (!*o->roofs) return true;
    FILE *file = fopen(o->roofs, "a+");
    if (!file) return fail(err, EXIT_INPUT, "--roofs: %s: %s", o->roofs, strerror(errno));
    for (int n = 1; ok && fgets(line, sizeof line, file); n++)
        if (!roofs_line(line, name, &bytes, &flops))
            ok = fail(err, EXIT_INPUT,
                      "--roofs: %s:%d: expected a line that --roofs wrote; hint: a file of its own", o->roofs,
                      n);
    fclose(file);
    return ok;
}

/* True if --roofs' file has the table's. */
static bool roofs_known(Roofs *r, const char *path) {
    FILE *file = *path ? fopen(path, "r") : NULL;
    char line[256], name[64];
    double bytes, flops;
    bool found = false;
    while (file && fgets(line, sizeof line, file))
        if (roofs_line(line, name, &bytes, &flops) && strcmp(name, r->ops->name) == 0) {
            r->bytes = bytes;
            r->flops = flops;
            found = true;
        }
    if (file) fclose(file);
    return found;
}

static void roofs_keep(const Roofs *r, const char *path) {
    if (!*path) return;
    FILE *file = fopen(path, "a");
    Error err;
    const bool written =
        file && fprintf(file, "%s: %.6g bytes/s, %.6g FLOP/s\n", r->ops->name, r->bytes, r->flops) > 0;
    if ((file && fclose(file)) || !written)
        fail(&err, EXIT_INPUT, "--roofs: %s: %s", path, strerror(errno)), die(&err);
}

static void roofs_measure(Roofs *r, const Options *o) {
    const Ops *ops = r->ops;
    const char *how;
    r->bytes = 2.0 * COPY_BYTES / time_roof(ops, copy, COPY_BYTES / (int64_t)dtype_bytes(ops->dtype), o);
    r->flops = ops == &ops_cpu ? ops->device->peak_flops(ops->dtype, &how)
                               : 2.0 * GEMM * GEMM * GEMM / time_roof(ops, gemm, (int64_t)GEMM * GEMM, o);
}

/* Of the table's device: a copy, read and written bytes counted, and an 8192^3 product; of a CPU its own
 * measure of multiply-adds. Measured once, printed. */
static const Roofs *roofs_of(const Ops *ops, const Options *o) {
    static Roofs known[3];
    Roofs *r = known;
    for (; r->ops; r++)
        if (r->ops == ops) return r;
    char line[256];
    r->ops = ops;
    if (!roofs_known(r, o->roofs)) {
        roofs_measure(r, o);
        roofs_keep(r, o->roofs);
    }
    snprintf(line, sizeof line, "%s, %s: copy %.0f GB/s, %s %.2f TFLOP/s = 100 %%", ops->device->name(),
             ops->name, r->bytes * 1e-9, ops == &ops_cpu ? "multiply-adds" : "GEMM 8192^3", r->flops * 1e-12);
    report_comment(line);
    return r;
}

/* ---- the table ---- */

/* Seconds a FLOP (or a byte, for ops without products) of a variant at the size timed last: what it will take
 * at the next. */
static double *pace_of(const Variant *v) {
    static struct {
        const Variant *v;
        double pace;
    } paces[256];
    int i = 0;
    while (i < 255 && paces[i].v && paces[i].v != v) i++;
    paces[i].v = v;
    return &paces[i].pace;
}

static OpCost cost_of(const LabOp *op, const Sizes *s, DType dtype) {
    OpCost cost = op_case_cost(op->op, s, dtype);
    if (op->flops) cost.flops = op->flops(s);
    if (op->bytes) cost.bytes = op->bytes(s, (int)dtype_bytes(dtype));
    return cost;
}

/* roofs NULL: of a call that was not timed, only what its formulas give. */
static void report(const LabOp *op, const Variant *v, const Sizes *s, Timing t, const Roofs *roofs) {
    const int elem = (int)dtype_bytes(v->dtype);
    const OpCost cost = cost_of(op, s, v->dtype);
    const double bytes = cost.bytes, own_flops = v->flops ? v->flops(s) : cost.flops;
    const double flops = v->skips_parts || cost.flops == 0 ? own_flops : cost.flops;
    const double own_bytes = v->bytes ? v->bytes(s, elem) : bytes;
    const double percent =
        roofs ? 100 * fmax(flops / t.seconds / roofs->flops, bytes / t.seconds / roofs->bytes) : NAN;
    char rate[32] = "", moved[48] = "";
    if (flops > 0)
        snprintf(rate, sizeof rate, "%8.4g TFLOP/s", flops / t.seconds * 1e-12);
    else
        snprintf(rate, sizeof rate, "%8.0f GB/s   ", bytes / t.seconds * 1e-9);
    if (v->bytes || v->flops || !roofs)
        snprintf(moved, sizeof moved, "  %.4g GFLOP, %.4g MB", own_flops * 1e-9, own_bytes * 1e-6);
    if (roofs)
        printf("time %-22s %-22s %-34s %10.4f ms +-%4.1f %% %s %5.1f %%%s\n", op->op->name, v->name,
               sizes_text(s), t.seconds * 1e3, 100 * t.spread, rate, percent, moved);
    else
        printf("once %-22s %-22s %-34s%s\n", op->op->name, v->name, sizes_text(s), moved);
    fflush(stdout);
    CsvRow row = csv_row(roofs ? "time" : "once", "ok");
    row.ms = t.seconds * 1e3;
    row.spread = t.spread;
    row.tflops = flops / t.seconds * 1e-12;
    row.gbytes = bytes / t.seconds * 1e-9;
    row.percent = percent;
    row.gflop = own_flops * 1e-9;
    row.mbytes = own_bytes * 1e-6;
    row.density = op->density ? op->density(s) : 1;
    row.scratch_mbytes = v->scratch_bytes ? (double)v->scratch_bytes(s, elem) * 1e-6 : 0;
    report_csv(v, s, &row);
    counts.timed++;
}

/* What takes time, in a unit of the op. */
static double work_of(const LabOp *op, const Sizes *s) {
    const OpCost cost = cost_of(op, s, DTYPE_F32);
    return cost.flops > 0 ? cost.flops : cost.bytes;
}

static void call_once(const Buffers *b, void (*run)(const Call *call)) {
    b->ops->device->synchronize();
    lab_profile(true);
    run(&b->calls[0]);
    b->ops->device->synchronize();
    lab_profile(false);
}

static void time_variant(const LabOp *op, const Variant *v, const Buffers *b, const Options *o) {
    const Sizes *s = &b->calls[0].s;
    Timing t = {NAN, NAN};
    for (int i = 0; v->prepare && i < b->n_sets; i++) v->prepare(&b->calls[i]);
    watch_begin(v, s);
    if (o->once)
        call_once(b, v->run);
    else
        t = time_calls(b, v->run, o);
    watch_end();
    const char *refused = lab_refused();
    if (refused) {
        printf("skip %-22s %-22s %-34s %s\n", op->op->name, v->name, sizes_text(s), refused);
        counts.left_out++;
        return;
    }
    if (!o->once) *pace_of(v) = t.seconds / work_of(op, s);
    report(op, v, s, t, o->once ? NULL : roofs_of(b->ops, o));
}

/* False, with a line, if a call would take longer than --longest, by what it took at the size before. */
static bool in_time(const LabOp *op, const Variant *v, const Sizes *s, const Options *o) {
    const double seconds = *pace_of(v) * work_of(op, s);
    if (seconds <= o->longest) return true;
    printf("skip %-22s %-22s %-34s a call would take about %.2g s\n", op->op->name, v->name, sizes_text(s),
           seconds);
    counts.left_out++;
    return false;
}

/* The variants that are in time and whose scratch leaves half of the free memory to the operands; the most scratch
 * they need. */
static int fitting(const Variant **fit, const LabOp *op, const Sizes *s, const Variant *const *variants,
                   int n, const Ops *ops, size_t *scratch_bytes, const Options *o) {
    size_t free_bytes, total_bytes;
    int n_fit = 0;
    ops->device->memory_info(&free_bytes, &total_bytes);
    *scratch_bytes = 0;
    for (int i = 0; i < n; i++) {
        const size_t bytes = lab_scratch_bytes(variants[i], ops, s);
        if (!in_time(op, variants[i], s, o)) continue;
        if (bytes > free_bytes / 2) {
            printf("skip %-22s %-22s %-34s scratch of %.1f GiB, %.1f GiB free\n", op->op->name,
                   variants[i]->name, sizes_text(s), (double)bytes / 0x1p30, (double)free_bytes / 0x1p30);
            counts.left_out++;
            continue;
        }
        if (bytes > *scratch_bytes) *scratch_bytes = bytes;
        fit[n_fit++] = variants[i];
    }
    return n_fit;
}

void time_variants(const LabOp *op, const Sizes *s, const Variant *const *variants, int n, const Options *o) {
    const Ops *ops = lab_table(variants[0]->needs, variants[0]->dtype);
    const Variant *fit[MAX_VARIANTS];
    Operand operands[MAX_OPERANDS];
    size_t scratch_bytes;
    Buffers b;
    if (!o->once) roofs_of(ops, o);
    const int n_fit = fitting(fit, op, s, variants, n, ops, &scratch_bytes, o);
    if (n_fit == 0 || !buffers_open(&b, op, s, ops, scratch_bytes, o)) return;
    for (int i = 0; i < n_fit; i++) time_variant(op, fit[i], &b, o);
    buffers_close(&b, op->op->describe(operands, s));
}
