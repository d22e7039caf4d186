/* How far a result in bf16 may be from the oracle's, in three ways; a result must pass all of them.
 *
 * Norm and maximum: twice the error of a plain bf16 computation (compare.h).
 * Element by element: half a step of bf16 for the rounding of the result (at most 2^-8 of it), plus `slack`: what the
 * intermediate roundings that a kernel may make can add up to in that element, plus fp32 noise of the whole. A lone
 * wrong element has nowhere to hide, however large the others are.
 * Scale: what the errors have in common with the result itself. Roundings to nearest go both ways and average out; a
 * conversion that truncates, or a factor that is 0.3 % off, does not, and shows long before it shows in the norm. */
#pragma once
#include "compare.h"

#define BF16_HALF_STEP 0x1p-8 /* of a value, at most */

/* What the expected values of an output allow. */
typedef struct Expected {
    const float *want, *plain, *slack; /* slack: NULL for none */
    int64_t n;
    double noise; /* of fp32, of the root mean square of want */
    bool few; /* one P of a row is nearly all of it, and 1 in a plain computation, which then has no error */
} Expected;

/* The largest |got - want| in units of what its element allows, and where; NaN as in compare_floats. */
typedef struct Excess {
    double ratio;
    int64_t worst;
} Excess;

static inline double mean_square(const float *values, int64_t n) {
    double sum = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(values[i])) sum += (double)values[i] * values[i], finite++;
    return finite ? sum / (double)finite : 0;
}

static inline Excess element_excess(const float *got, const Expected *e) {
    const double floor = e->noise * sqrt(mean_square(e->want, e->n)) + 1e-38;
    Excess result = {0, 0};
    for (int64_t i = 0; i < e->n; i++) {
        const float want = e->want[i];
        if ((isnan(want) && isnan(got[i])) || (isinf(want) && got[i] == want)) continue;
        const double difference = fabs((double)got[i] - want);
        if (!isfinite(difference)) return (Excess){NAN, i};
        const double limit = fabs((double)want) * BF16_HALF_STEP + (e->slack ? e->slack[i] : 0) + floor;
        if (difference > limit * result.ratio) result = (Excess){difference / limit, i};
    }
    return result;
}

/* sum (got - want) want / sum want^2: 0.003 where all of got is 0.3 % too large. */
static inline double scale_error(const float *got, const float *want, int64_t n) {
    double common = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) || !isfinite(got[i])) continue;
        common += ((double)got[i] - want[i]) * want[i];
        square += (double)want[i] * want[i];
    }
    return square > 0 ? common / square : 0;
}

/* How many runs of 64 elements make up the sum of squares: fewer than there are where some are far larger. */
static inline double effective_runs(const float *want, int64_t n) {
    double sum = 0, squares = 0;
    for (int64_t begin = 0; begin < n; begin += 64) {
        const int64_t length = n - begin < 64 ? n - begin : 64;
        const double run = mean_square(want + begin, length) * (double)length;
        sum += run;
        squares += run * run;
    }
    return squares > 0 ? sum * sum / squares : 1;
}

/* The relative error, in all, that a right result may well have: that of the plain computation, or a third of slack, what
 * a rounding is off on average. */
static inline double typical_norm(const Expected *e) {
    const double plain = compare_floats(e->plain, e->want, e->n).norm;
    const double square = mean_square(e->want, e->n);
    if (!e->few || !e->slack || square == 0) return plain;
    return fmax(plain, sqrt(mean_square(e->slack, e->n) / square) / 3);
}

/* Twice the plain computation's own, and what errors may have in common by chance: they come in runs of some 64 that
 * share the rounding of a P, and four standard deviations of their mean are allowed. */
static inline double scale_limit(const Expected *e) {
    const double own = fabs(scale_error(e->plain, e->want, e->n));
    return 2 * own + 4 * typical_norm(e) / sqrt(effective_runs(e->want, e->n)) + e->noise;
}

/* slack = six times the root mean square of a plain computation's errors, in a run of 64 elements or in all of them,
 * whichever is larger: where the roundings on the way are too many to be followed one by one. */
static inline void slack_of_plain(float *slack, const float *plain, const float *want, int64_t n) {
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += pow((double)plain[i] - want[i], 2) / (double)n;
    for (int64_t begin = 0; begin < n; begin += 64) {
        const int64_t end = begin + 64 < n ? begin + 64 : n;
        double run = 0;
        for (int64_t i = begin; i < end; i++)
            run += pow((double)plain[i] - want[i], 2) / (double)(end - begin);
        for (int64_t i = begin; i < end; i++) slack[i] = (float)(6 * sqrt(run > all ? run : all));
    }
}
