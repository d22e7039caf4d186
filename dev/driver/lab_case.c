/* One case: the reference, made once for all variants; and the check of one variant on it. Inputs and calls: dev/ops.
 *
 * A check runs the variant twice, outputs NaN before, scratch holding other bytes each time, every buffer
 * between guard bands. It fails if a part of a result is further from the exact one than twice a plain
 * computation of the same storage type, in all or in its worst row, if a value is not finite where the exact
 * one is (or the other way round), if an input or a guard band changed, or if the two runs differ in a bit. Of a row
 * that is inexact by design only the distance does not count. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dev/ops/op_run.h"
#include "dev/test/op_test.h"
#include "lab.h"

/* Error allowed beside that of rounding the result: fp32 sums in another order. */
#define ROUNDING 1e-4

void *lab_malloc(size_t bytes) {
    void *p = malloc(bytes + 1);
    if (p) return p;
    fprintf(stderr, "error: lab: the reference needs %.1f GiB that are not free; hint: a smaller -T\n",
            (double)bytes / 1073741824.0);
    exit(EXIT_RUN);
}

/* ---- inputs and results ---- */

static bool is_result(const Operand *o) {
    return (o->role == OUT || o->role == ADD) && o->elems > 0;
}

/* want[] from the reference of the tests, plain[] from the op's own plain computation, else the same, rounded. */
static void reference_of_tests(Case *c) {
    op_case_oracle(&c->o);
    op_case_plain(&c->o);
    for (int k = 0; k < c->o.n; k++) {
        const Operand *o = &c->o.operands[k];
        for (int64_t i = 0; is_result(o) && i < o->elems; i++) {
            c->want[k][i] = c->o.want[k][i];
            c->plain[k][i] = c->o.plain[k] ? c->o.plain[k][i] : c->o.want[k][i];
        }
    }
}

void case_build(Case *c, const LabOp *op, const Sizes *s, DType dtype, const Fill *fill) {
    *c = (Case){
        .op = op, .fill = fill, .o = {.op = op->op, .s = *s, .dtype = dtype}
    };
    op_case_build(&c->o);
    for (int k = 0; k < c->o.n; k++) {
        const Operand *o = &c->o.operands[k];
        if (!is_result(o)) continue;
        c->want[k] = lab_malloc((size_t)o->elems * sizeof(double));
        c->plain[k] = lab_malloc((size_t)o->elems * sizeof(double));
    }
    if (fill->apply) fill->apply(c);
    for (int k = 0; k < c->o.n; k++)
        if (c->o.in[k] && c->o.operands[k].store == STORE_X)
            op_round(c->o.in[k], dtype, c->o.operands[k].elems);
    if (op->reference)
        op->reference(c);
    else
        reference_of_tests(c);
}

void case_free(Case *c) {
    op_case_free(&c->o);
    for (int k = 0; k < c->o.n; k++) {
        free(c->want[k]);
        free(c->plain[k]);
        free(c->scores[k]);
    }
}

/* ---- comparison ---- */

typedef struct Errors {
    double all, worst; /* relative, of all rows together and of the worst row; inf: finite or not, wrongly */
    int64_t worst_row;
} Errors;

/* Squared error and squared reference of one row. */
static void row_error(const double *got, const double *want, int n, double *error, double *norm) {
    *error = *norm = 0;
    for (int i = 0; i < n; i++) {
        if (want[i] == ANYTHING) continue;
        if (!isfinite(want[i])) {
            const bool same = isnan(want[i]) ? !isfinite(got[i]) : got[i] == want[i];
            if (!same) *error = INFINITY;
            continue;
        }
        *error += isfinite(got[i]) ? (got[i] - want[i]) * (got[i] - want[i]) : INFINITY;
        *norm += want[i] * want[i];
    }
}

/* The first element of row r of a part. */
static int64_t row_start(const Part *part, int64_t r) {
    const int64_t per_line = part->width / part->row;
    return part->offset + r / per_line * part->stride + r % per_line * part->row;
}

/* A row's error is taken against its own norm plus a tenth of the mean norm plus 0.01 for each element (the
 * inputs are of order 1): a result that is exactly 0 has rounding errors too. */
static Errors part_errors(const double *got, const double *want, const Part *part) {
    const int64_t n_rows = part->outer * (part->width / part->row);
    double *error = lab_malloc((size_t)n_rows * 2 * sizeof(double)), *norm = error + n_rows;
    double all_error = 0, all_norm = 0, worst = 0;
    int64_t worst_row = 0;
#pragma omp parallel for reduction(+ : all_error, all_norm)
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t at = row_start(part, r);
        row_error(got + at, want + at, part->row, &error[r], &norm[r]);
        all_error += error[r];
        all_norm += norm[r];
    }
    const double floor = 0.01 * sqrt((double)part->row) + 0.1 * sqrt(all_norm / (double)n_rows);
    for (int64_t r = 0; r < n_rows; r++) {
        const double e = sqrt(error[r]) / (sqrt(norm[r]) + floor);
        if (!(e > worst)) continue;
        worst = e;
        worst_row = r;
    }
    free(error);
    return (Errors){sqrt(all_error) / (sqrt(all_norm) + floor * sqrt((double)n_rows)), worst, worst_row};
}

static bool part_has_nan(const double *values, const Part *part) {
    for (int64_t r = 0; r < part->outer * (part->width / part->row); r++)
        for (int i = 0; i < part->row; i++)
            if (isnan(values[row_start(part, r) + i])) return true;
    return false;
}

/* What a variant wrote: as numbers, and as it is stored. */
typedef struct Result {
    const double *values;
    const void *bytes;
    size_t elem; /* bytes of one */
} Result;

static int parts_of(const Operand *o, Part *parts) {
    if (o->n_parts) {
        memcpy(parts, o->parts, sizeof o->parts);
        return o->n_parts;
    }
    const int row = o->row ? o->row : (int)o->elems;
    *parts = (Part){o->name, 0, o->elems / row, row, row, row};
    return 1;
}

static void say(Findings *f, const char *format, ...) {
    const size_t used = strlen(f->text);
    va_list args;
    va_start(args, format);
    vsnprintf(f->text + used, sizeof f->text - used, format, args);
    va_end(args);
}

/* shown: a larger error is shown and does not fail. */
static void hold(Findings *f, double error, double limit, bool shown) {
    const double ratio = error / limit;
    if (!(error <= limit)) {
        f->ok = f->ok && shown;
        say(f, " (limit %.1e)", limit);
    }
    if (ratio <= f->error / f->limit) return;
    f->error = error;
    f->limit = limit;
}

/* The largest |got - want| where both are finite. */
static double largest_difference(const double *got, const double *want, int64_t n) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(got[i]) && isfinite(want[i]) && want[i] != ANYTHING)
            largest = fmax(largest, fabs(got[i] - want[i]));
    return largest;
}

/* Of a row that failed: the element that is furthest off. Lines are what the part's stride parts: tokens, say. */
static void say_where(Findings *f, const Part *part, int64_t row, const Result *got, const double *want) {
    const int64_t per_line = part->width / part->row, at = row_start(part, row);
    double largest = -1;
    int element = 0;
    for (int i = 0; i < part->row; i++) {
        double error, norm;
        row_error(got->values + at + i, want + at + i, 1, &error, &norm);
        if (error > largest) largest = error, element = i;
    }
    const unsigned char *bytes = (const unsigned char *)got->bytes + (at + element) * (int64_t)got->elem;
    bool written = false;
    for (size_t i = 0; i < got->elem; i++) written = written || bytes[i] != POISON_VALUE;
    say(f, " [%s: line %lld, row %lld in it, element %d: ", part->name, (long long)(row / per_line),
        (long long)(row % per_line), element);
    if (written)
        say(f, "%g, expected %g]", got->values[at + element], want[at + element]);
    else
        say(f, "not written, expected %g]", want[at + element]);
}

/* All parts of result k but those that the variant skips; returns the number of parts. */
static int check_values(const Case *c, int k, const Result *got, const Variant *v, unsigned skips,
                        Findings *f) {
    const Operand *o = &c->o.operands[k];
    const double limit = o->row_limit > 0 ? o->row_limit : fmax(o->limit, ROUNDING);
    const double *plain_values = v->flags & ROUNDS_SCORES && c->scores[k] ? c->scores[k] : c->plain[k];
    Part parts[MAX_PARTS];
    const int n = parts_of(o, parts);
    for (int p = 0; p < n; p++) {
        if (skips >> p & 1) continue;
        const bool was_ok = f->ok;
        const Errors e = part_errors(got->values, c->want[k], &parts[p]);
        const Errors plain = part_errors(plain_values, c->want[k], &parts[p]);
        /* wrong by design (`lite` has a lse of -inf where the last tile has no key for a row), but every value is
         * written, and none is NaN where inputs are finite */
        const bool shown =
            v->flags & INEXACT && (c->fill->not_finite || !part_has_nan(got->values, &parts[p]));
        say(f, "  %s %.1e", parts[p].name, e.all);
        hold(f, e.all, 2 * plain.all + limit, shown);
        say(f, " row %.1e", e.worst);
        hold(f, e.worst, 2 * plain.worst + limit, shown);
        if (was_ok && !f->ok) say_where(f, &parts[p], e.worst_row, got, c->want[k]);
    }
    return n;
}

/* ---- running ---- */

static double *decode(const void *bytes, const Operand *o, DType dtype) {
    double *values = lab_malloc((size_t)o->elems * sizeof *values);
#pragma omp parallel for
    for (int64_t i = 0; i < o->elems; i++)
        values[i] = o->store == STORE_X && dtype == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)bytes)[i])
                                                               : ((const float *)bytes)[i];
    return values;
}

static void run_once(OpRun *run, const Variant *v, int scratch) {
    op_run_fill(run, scratch);
    if (v->prepare) v->prepare(&run->call);
    v->run(&run->call);
}

/* Values of the first run, inputs and guard bands after it; first[] gets the results. */
static void check_first(const Case *c, const OpRun *run, const Variant *v, void **first, Findings *f) {
    unsigned skips = v->skips_parts;
    for (int k = 0; k < c->o.n; k++) {
        if (!run->device[k].base) continue;
        const Operand *o = &c->o.operands[k];
        const bool intact = guarded_intact(&run->device[k]);
        if (!intact) say(f, "  WROTE OUTSIDE %s", o->name);
        f->ok = f->ok && intact;
        if (o->role == SPACE) continue;
        first[k] = op_run_download(run, k);
        if (is_result(o)) {
            double *values = decode(first[k], o, c->o.dtype);
            const Result got = {values, first[k], run->device[k].bytes / (size_t)o->elems};
            skips >>= check_values(c, k, &got, v, skips, f);
            if (k == 0) f->largest = largest_difference(values, c->want[k], o->elems);
            free(values);
        } else if (memcmp(first[k], run->image[k], run->device[k].bytes)) {
            say(f, "  CHANGED ITS INPUT %s", o->name);
            f->ok = false;
        }
    }
}

/* True if the run just made gave the bits of the first. */
static bool same_bits(const OpRun *run, void *const *first) {
    bool same = true;
    for (int k = 0; k < run->c->n; k++) {
        if (!is_result(&run->c->operands[k])) continue;
        void *again = op_run_download(run, k);
        same = same && memcmp(first[k], again, run->device[k].bytes) == 0;
        free(again);
    }
    return same;
}

/* Every second run's buffers start 16 bytes past the alignment of an allocation. */
Findings case_check(const Case *c, const Variant *v, const Ops *ops, int repeat) {
    static int n_runs;
    Findings f = {.ok = true, .limit = 1};
    void *first[MAX_OPERANDS] = {0};
    OpRun run;
    if (op_run_open(&run, &c->o, ops, lab_scratch_bytes(v, ops, &c->o.s), n_runs++ % 2 ? 16 : 0)) {
        run_once(&run, v, POISON_VALUE);
        check_first(c, &run, v, first, &f);
        int different = 0;
        for (int i = 1; i < repeat; i++) {
            run_once(&run, v, 0x11);
            different += !same_bits(&run, first);
        }
        if (different) say(&f, "  %d of %d RUNS DIFFER", different, repeat);
        f.ok = f.ok && (!different || v->flags & NOT_BITWISE);
    } else {
        f.ok = false;
        say(&f, "  device memory does not suffice");
    }
    op_run_close(&run);
    for (int k = 0; k < c->o.n; k++) free(first[k]);
    return f;
}

size_t lab_scratch_bytes(const Variant *v, const Ops *ops, const Sizes *s) {
    return v->scratch_bytes ? v->scratch_bytes(s, (int)dtype_bytes(v->dtype)) : op_scratch_bytes(ops, s);
}
