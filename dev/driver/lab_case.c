/* One case: inputs and reference, made once for all variants; and the check of one variant on it.
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
#include "dev/test/op_test.h"
#include "lab.h"

void *lab_malloc(size_t bytes) {
    void *p = malloc(bytes + 1);
    if (p) return p;
    fprintf(stderr, "error: lab: the reference needs %.1f GiB that are not free; hint: a smaller -T\n",
            (double)bytes / 1073741824.0);
    exit(EXIT_RUN);
}

float round_to_dtype(float x, DType dtype) {
    return round_to(dtype, x);
}

/* ---- inputs ---- */

static bool is_result(const Operand *o) {
    return (o->role == OUT || o->role == ADD) && o->elems > 0;
}

size_t operand_bytes(const Operand *o, DType dtype) {
    return o->role == SPACE ? 0 : (size_t)o->elems * (o->store == STORE_X ? dtype_bytes(dtype) : 4);
}

void encode_values(void *bytes, const float *values, int64_t n, Store store, DType dtype) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        if (store == STORE_I32)
            ((int32_t *)bytes)[i] = (int32_t)values[i];
        else if (store == STORE_X && dtype == DTYPE_BF16)
            ((uint16_t *)bytes)[i] = bf16_from_float(values[i]);
        else
            ((float *)bytes)[i] = values[i];
}

/* Sums over the columns of a tensor that was rounded first: what that adds to the exact ones. */
static void add_rounding_of_columns(double *sums, int64_t width, const double *rounded, const double *exact,
                                    int64_t n) {
    for (int64_t i = 0; i < n; i++) sums[i % width] += rounded[i] - exact[i];
}

/* want[] from the CPU's own op in fp32, plain[] the same, rounded. */
static void reference_on_cpu(Case *c) {
    Call call = {.ops = &ops_cpu, .s = c->s};
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if (o->role == SPACE) call.p[k] = lab_malloc(lab_scratch_bytes(NULL, &ops_cpu, &c->s));
        if (o->role == SPACE || o->elems == 0) continue;
        call.p[k] = lab_malloc(operand_bytes(o, DTYPE_F32));
        if (c->in[k]) encode_values(call.p[k], c->in[k], o->elems, o->store, DTYPE_F32);
    }
    c->op->run(&call);
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        const float *result = call.p[k];
        for (int64_t i = 0; is_result(o) && i < o->elems; i++) {
            c->want[k][i] = result[i];
            c->plain[k][i] = o->store == STORE_X ? round_to(c->dtype, result[i]) : result[i];
        }
        if (o->sums)
            add_rounding_of_columns(c->plain[k], o->elems, c->plain[0], c->want[0], c->operands[0].elems);
        free(call.p[k]);
    }
}

/* Tokens are as in text, heavy-tailed: the first takes about a sixth. */
float operand_value(const Operand *o, int k, int64_t i) {
    if (o->store != STORE_I32) return o->offset + o->scale * op_normal((uint64_t)k, i);
    const double u = (double)(op_mix((uint64_t)i) >> 40) * 0x1p-24;
    return (float)((int64_t)(30 * u * u / (1.0001 - u)) % (int64_t)o->offset);
}

void case_build(Case *c, const LabOp *op, const Sizes *s, DType dtype, const Fill *fill) {
    *c = (Case){.op = op, .s = *s, .dtype = dtype, .fill = fill};
    c->n = op->describe(c->operands, s);
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        if (is_result(o)) {
            c->want[k] = lab_malloc((size_t)o->elems * sizeof(double));
            c->plain[k] = lab_malloc((size_t)o->elems * sizeof(double));
        }
        if ((o->role != IN && o->role != ADD) || o->elems == 0) continue;
        float *in = c->in[k] = lab_malloc((size_t)o->elems * sizeof *in);
#pragma omp parallel for
        for (int64_t i = 0; i < o->elems; i++) in[i] = operand_value(o, k, i);
    }
    if (fill->apply) fill->apply(c);
    if (op->prepare) op->prepare(c);
    for (int k = 0; k < c->n; k++)
        for (int64_t i = 0; c->in[k] && c->operands[k].store == STORE_X && i < c->operands[k].elems; i++)
            c->in[k][i] = round_to(dtype, c->in[k][i]);
    if (op->reference)
        op->reference(c);
    else
        reference_on_cpu(c);
}

void case_free(Case *c) {
    for (int k = 0; k < c->n; k++) {
        free(c->in[k]);
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
    const Operand *o = &c->operands[k];
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
        hold(f, e.all, 2 * plain.all + o->limit, shown);
        say(f, " row %.1e", e.worst);
        hold(f, e.worst, 2 * plain.worst + o->limit, shown);
        if (was_ok && !f->ok) say_where(f, &parts[p], e.worst_row, got, c->want[k]);
    }
    return n;
}

/* ---- running ---- */

typedef struct Run {
    const Case *c;
    const Variant *v;
    Call call;
    Guarded device[MAX_OPERANDS];
    void *image[MAX_OPERANDS]; /* contents before a run: inputs as stored, NaN in results */
    void *first[MAX_OPERANDS]; /* results of the first run */
} Run;

static double *decode(const void *bytes, const Operand *o, DType dtype) {
    double *values = lab_malloc((size_t)o->elems * sizeof *values);
#pragma omp parallel for
    for (int64_t i = 0; i < o->elems; i++)
        values[i] = o->store == STORE_X && dtype == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)bytes)[i])
                                                               : ((const float *)bytes)[i];
    return values;
}

/* Every second run's buffers start 16 bytes past the alignment of an allocation. */
static bool run_open(Run *run, const Case *c, const Variant *v, const Ops *ops) {
    static int n_runs;
    const size_t shift = n_runs++ % 2 ? 16 : 0;
    *run = (Run){
        .c = c, .v = v, .call = {.ops = ops, .s = c->s}
    };
    for (int k = 0; k < c->n; k++) {
        const Operand *o = &c->operands[k];
        const size_t bytes = o->role == SPACE ? lab_scratch_bytes(v, ops, &c->s) : operand_bytes(o, c->dtype);
        if (bytes == 0) continue;
        if (!guarded_alloc(&run->device[k], ops, bytes, o->role == SPACE ? 0 : shift)) return false;
        run->call.p[k] = run->device[k].data;
        if (o->role == SPACE) continue;
        run->image[k] = lab_malloc(bytes);
        memset(run->image[k], POISON_VALUE, bytes);
        if (c->in[k]) encode_values(run->image[k], c->in[k], o->elems, o->store, c->dtype);
    }
    return true;
}

static void run_close(Run *run) {
    for (int k = 0; k < run->c->n; k++) {
        guarded_free(&run->device[k]);
        free(run->image[k]);
        free(run->first[k]);
    }
}

static void run_once(Run *run, int scratch_value) {
    for (int k = 0; k < run->c->n; k++) {
        if (run->image[k])
            run->call.ops->device->upload(run->device[k].data, run->image[k], run->device[k].bytes);
        else if (run->device[k].base)
            guarded_fill(run->call.ops, run->device[k].data, scratch_value, run->device[k].bytes);
    }
    if (run->v->prepare) run->v->prepare(&run->call);
    run->v->run(&run->call);
}

static void *fetch(const Run *run, int k) {
    void *bytes = lab_malloc(run->device[k].bytes);
    run->call.ops->device->download(bytes, run->device[k].data, run->device[k].bytes);
    return bytes;
}

/* Values of the first run, inputs and guard bands after it. */
static void check_first(Run *run, Findings *f) {
    const Case *c = run->c;
    unsigned skips = run->v->skips_parts;
    for (int k = 0; k < c->n; k++) {
        if (!run->device[k].base) continue;
        const Operand *o = &c->operands[k];
        const bool intact = guarded_intact(&run->device[k]);
        if (!intact) say(f, "  WROTE OUTSIDE %s", o->name);
        f->ok = f->ok && intact;
        if (o->role == SPACE) continue;
        run->first[k] = fetch(run, k);
        if (is_result(o)) {
            double *values = decode(run->first[k], o, c->dtype);
            const Result got = {values, run->first[k], run->device[k].bytes / (size_t)o->elems};
            skips >>= check_values(c, k, &got, run->v, skips, f);
            if (k == 0) f->largest = largest_difference(values, c->want[k], o->elems);
            free(values);
        } else if (memcmp(run->first[k], run->image[k], run->device[k].bytes)) {
            say(f, "  CHANGED ITS INPUT %s", o->name);
            f->ok = false;
        }
    }
}

/* True if the run just made gave the bits of the first. */
static bool same_bits(const Run *run) {
    bool same = true;
    for (int k = 0; k < run->c->n; k++) {
        if (!is_result(&run->c->operands[k])) continue;
        void *again = fetch(run, k);
        same = same && memcmp(run->first[k], again, run->device[k].bytes) == 0;
        free(again);
    }
    return same;
}

Findings case_check(const Case *c, const Variant *v, const Ops *ops, int repeat) {
    Findings f = {.ok = true, .limit = 1};
    Run run;
    if (run_open(&run, c, v, ops)) {
        run_once(&run, POISON_VALUE);
        check_first(&run, &f);
        int different = 0;
        for (int i = 1; i < repeat; i++) {
            run_once(&run, 0x11);
            different += !same_bits(&run);
        }
        if (different) say(&f, "  %d of %d RUNS DIFFER", different, repeat);
        f.ok = f.ok && (!different || v->flags & NOT_BITWISE);
    } else {
        f.ok = false;
        say(&f, "  device memory does not suffice");
    }
    run_close(&run);
    return f;
}

size_t lab_scratch_bytes(const Variant *v, const Ops *ops, const Sizes *s) {
    if (v && v->scratch_bytes) return v->scratch_bytes(s, (int)dtype_bytes(v->dtype));
    const int64_t tokens = s->N ? s->N : (int64_t)s->B * s->T;
    int widest = s->NH * s->HD;
    const int widths[] = {s->C, s->OC, s->IC};
    for (int i = 0; i < 3; i++)
        if (widths[i] > widest) widest = widths[i];
    const OpShape shape = {.B = s->N ? 1 : s->B,
                           .T = (int)(s->N ? tokens : s->T),
                           .C = widest,
                           .NH = s->NH ? s->NH : 1,
                           .V = s->V ? s->V : widest,
                           .Vp = s->Vp ? s->Vp : widest,
                           .loss_rows = tokens};
    return ops->scratch_bytes(&shape);
}
