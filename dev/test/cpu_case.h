/* Help for the tests of the CPU backend, the oracle of all other tests, against independent truth: forward
 * ops against plain loops in double, backward ops against central differences of those loops. Every gradient
 * element counts: the derivative along random directions is compared, so one wrong element shows.
 *
 * Cases run with 1, 2 and 3 threads; the results must be the same bits. Buffers are poisoned with NaN, lie
 * between guard bands and start 16 bytes past an aligned address. */
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/parallel.h"
#include "llmc/model/ops.h"
#include "check.h"

static const Ops *const ops = &ops_cpu;
enum { GUARD = 20, MAX_BUFFERS = 64, MAX_SNAPSHOTS = 4096 };
#define TOLERANCE 1e-5
static const uint32_t SEED = 20240611;

/* ---- data: fp32 buffers that the ops see, each with a copy in double ---- */

typedef struct Buffer {
    float *f;
    double *d;
    int64_t n;
} Buffer;

static Buffer buffers[MAX_BUFFERS];
static int n_buffers;
/* Inputs have a stream of their own, so that every pass sees the same, whatever else it draws. */
static uint32_t input_stream, check_stream;

static double uniform(uint32_t *stream) { /* (-1, 1) */
    *stream = *stream * 1664525u + 1013904223u;
    return ((*stream >> 8) + 0.5) / (1 << 23) - 1;
}

static float guard_value(int64_t i) {
    return (float)(8000000 + i); /* exact */
}

/* n floats of NaN between guard bands; freed by end_case. */
static Buffer poisoned(int64_t n) {
    if (n_buffers == MAX_BUFFERS) abort();
    float *base = aligned_alloc(64, (sizeof(float) * (size_t)(n + 2 * GUARD) + 63) / 64 * 64);
    Buffer b = {base + GUARD, malloc(sizeof(double) * (size_t)n), n};
    if (!base || !b.d) abort();
    for (int64_t i = -GUARD; i < n + GUARD; i++) b.f[i] = i < 0 || i >= n ? guard_value(i) : NAN;
    return buffers[n_buffers++] = b;
}

static void to_double(Buffer b) {
    for (int64_t i = 0; i < b.n; i++) b.d[i] = b.f[i];
}

static Buffer filled(int64_t n, double scale, double offset) {
    Buffer b = poisoned(n);
    for (int64_t i = 0; i < n; i++) b.f[i] = (float)(offset + scale * uniform(&input_stream));
    to_double(b);
    return b;
}

static void end_case(const char *name) {
    for (int b = 0; b < n_buffers; b++) {
        bool whole = true;
        for (int64_t i = -GUARD; i < buffers[b].n + GUARD; i++)
            if (i < 0 || i >= buffers[b].n) whole = whole && buffers[b].f[i] == guard_value(i);
        CHECK(whole, "%s: guard band of buffer %d overwritten", name, b);
        free(buffers[b].f - GUARD);
        free(buffers[b].d);
    }
    n_buffers = 0;
}

/* ---- checks ---- */

static int pass; /* 0: references are computed and compared; later passes only compare bits with pass 0 */
static struct {
    float *data;
    int64_t n;
} snapshots[MAX_SNAPSHOTS];
static int n_snapshots;

/* The same op call gave the same bits in every pass. */
static void same_bits(const char *name, Buffer b) {
    if (n_snapshots == MAX_SNAPSHOTS) abort();
    size_t bytes = sizeof(float) * (size_t)b.n;
    if (pass == 0) {
        snapshots[n_snapshots].data = malloc(bytes);
        snapshots[n_snapshots].n = b.n;
        memcpy(snapshots[n_snapshots].data, b.f, bytes);
    } else {
        CHECK(memcmp(snapshots[n_snapshots].data, b.f, bytes) == 0, "%s: other bits with %d threads", name,
              cpu_thread_count());
    }
    n_snapshots++;
}

/* got equals want (doubles) to TOLERANCE of the largest |want|. A NaN on either side fails. */
static void close_to(const char *name, Buffer got, const double *want) {
    same_bits(name, got);
    if (pass > 0) return;
    double worst = 0, largest = 1e-30;
    for (int64_t i = 0; i < got.n; i++) {
        double error = fabs(got.f[i] - want[i]);
        worst = worse(worst, error);
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
    }
    CHECK(worst <= TOLERANCE * largest, "%s: error %g, largest value %g", name, worst, largest);
}

typedef double (*Objective)(const void *context);

static double central_difference(Objective objective, const void *context, Buffer x, const double *direction,
                                 double h) {
    double at[2];
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < x.n; i++) x.d[i] = x.f[i] + (side ? -h : h) * direction[i];
        at[side] = objective(context);
    }
    to_double(x);
    objective(context); /* leaves the results of the true inputs behind */
    return (at[0] - at[1]) / (2 * h);
}

/* grad - start is the gradient of the objective (double, reads x.d) with respect to x; start NULL means 0.
 * x must be of scale 1 or so: differences are taken 1e-3 apart. */
__attribute__((unused)) static void is_gradient(const char *name, Objective objective, const void *context,
                                                Buffer x, Buffer grad, const float *start) {
    same_bits(name, grad);
    if (pass > 0) return;
    double norm = 1e-30, *direction = malloc(sizeof(double) * (size_t)x.n);
    for (int64_t i = 0; i < x.n; i++) norm += pow(grad.f[i] - (start ? start[i] : 0), 2);
    norm = sqrt(norm);
    for (int trial = 0; trial < 2; trial++) {
        double length = 0, slope = 0;
        for (int64_t i = 0; i < x.n; i++)
            direction[i] = uniform(&check_stream), length += direction[i] * direction[i];
        for (int64_t i = 0; i < x.n; i++)
            slope += (grad.f[i] - (double)(start ? start[i] : 0)) * (direction[i] /= sqrt(length));
        double truth = central_difference(objective, context, x, direction, 1e-3);
        CHECK(fabs(slope - truth) <= TOLERANCE * norm, "%s: slope %.9g, truth %.9g, |gradient| %g", name,
              slope, truth, norm);
    }
    free(direction);
}

__attribute__((unused)) static double weighted_sum(Buffer weights, const double *values) {
    double sum = 0;
    for (int64_t i = 0; i < weights.n; i++) sum += weights.f[i] * values[i];
    return sum;
}

/* Runs all cases once with references and three times more for the bits; the exit code of main. */
static int check_cpu_cases(const char *name, void (*run_cases)(void)) {
    Error err = {0};
    if (!CHECK(ops->device->open(0, &err), "open: %s", err.text)) return check_finish(name);
    printf("%s: seed %u, %s\n", name, SEED, ops->device->name());
    static const int threads[] = {2, 1, 2, 3};
    for (pass = 0; pass < 4; pass++) {
        cpu_set_thread_count(threads[pass]);
        input_stream = check_stream = SEED;
        n_snapshots = 0;
        run_cases();
    }
    for (int i = 0; i < n_snapshots; i++) free(snapshots[i].data);
    return check_finish(name);
}
