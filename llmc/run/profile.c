/* The table of --profile, and the rates that it compares with. */
#include "profile.h"
#include <math.h>
#include <stdlib.h>
#include "llmc/base/format.h"
#include "llmc/base/terminal.h"

/* Bytes a second of n copies of `bytes` in a buffer of twice that, behind one that is not timed. */
static double copy_rate(const Ops *ops, char *buffer, size_t bytes, int n) {
    enum { FIRST, LAST };
    ops->device->copy(buffer, buffer + bytes, bytes);
    ops->device->timestamp(FIRST);
    for (int i = 0; i < n; i++) ops->device->copy(buffer, buffer + bytes, bytes);
    ops->device->timestamp(LAST);
    return n * 2.0 * (double)bytes / ops->device->seconds_between(FIRST, LAST);
}

void profile_roofs(Roofs *roofs, const Ops *ops) {
    roofs->flops = fmax(roofs->flops, ops->device->peak_flops(ops->dtype, &roofs->flops_how));
    int first = 0;
    char *buffer = NULL;
    while (first < ROOF_SIZES && !(buffer = ops->device->alloc(2 * roof_bytes(first)))) first++;
    if (!buffer) return;
    ops->device->zero(buffer, 2 * roof_bytes(first));
    for (int i = first; i < ROOF_SIZES; i++) {
        const int n = (int)(((size_t)1280 << 20) / roof_bytes(i)); /* small copies are over soon */
        const double rate = copy_rate(ops, buffer, roof_bytes(i), n < 8 ? 8 : n > 400 ? 400 : n);
        roofs->bytes_of[i] = fmax(roofs->bytes_of[i], rate);
    }
    roofs->bytes = fmax(roofs->bytes, roofs->bytes_of[first]);
    ops->device->free(buffer);
}

double profile_copy_roof(const Ops *ops) {
    enum { TIMES = 4 };
    const size_t bytes = (size_t)(ops->device->is_async ? 128 : 16) << 20; /* beyond the caches */
    char *buffer = ops->device->alloc(2 * bytes);
    double best = 0;
    if (!buffer) return 0;
    ops->device->zero(buffer, 2 * bytes);
    for (int i = 0; i < TIMES; i++) best = fmax(best, copy_rate(ops, buffer, bytes, 1));
    ops->device->free(buffer);
    return best;
}

/* The copy rate for a call that moves so many bytes: the best at its size and above, and at the size below, whose cache
 * may hold a part of them. */
static double bytes_roof(const Roofs *roofs, double bytes) {
    double best = roofs->bytes;
    for (int i = 0; i < ROOF_SIZES; i++)
        if (8.0 * (double)roof_bytes(i) >= bytes) best = fmax(best, roofs->bytes_of[i]);
    return best;
}

/* What an op does most of, beside its roof: the roof that would hold it longest. */
typedef struct Bound {
    double work; /* FLOP or bytes */
    bool is_flops;
    double seconds; /* at the roof; 0: not known */
} Bound;

static Bound bound_of(const ProfileRow *row, const Roofs *roofs) {
    const double compute = row->flops / roofs->flops;
    const double copy = bytes_roof(roofs, row->bytes / (double)row->calls);
    const double traffic = copy > 0 ? row->bytes / copy : 0;
    Bound bound =
        compute > traffic ? (Bound){row->flops, true, compute} : (Bound){row->bytes, false, traffic};
    /* No op is beyond its roof: one that seems so shows that the roof, as it was measured, is too low. */
    bound.seconds = fmin(bound.seconds, row->seconds);
    return bound;
}

static int by_seconds(const void *a, const void *b) {
    const double x = ((const ProfileRow *)a)->seconds, y = ((const ProfileRow *)b)->seconds;
    return (x < y) - (x > y);
}

/* "650.1 TFLOP/s", "512.4 GFLOP/s", "4210.0 GB/s" */
static const char *rate_text(char *buffer, double rate, bool is_flops) {
    if (is_flops && rate >= 1e12)
        snprintf(buffer, FORMAT_NUMBER, "%.1f TFLOP/s", rate * 1e-12);
    else
        snprintf(buffer, FORMAT_NUMBER, "%.1f %s/s", rate * 1e-9, is_flops ? "GFLOP" : "GB");
    return buffer;
}

static void print_row(FILE *out, const ProfileRow *row, const Profile *profile, const Roofs *roofs,
                      double all_seconds) {
    const Bound bound = bound_of(row, roofs);
    const double steps = (double)profile->n_steps;
    char work[FORMAT_NUMBER], rate[FORMAT_NUMBER], roof[FORMAT_NUMBER] = "-";
    if (bound.seconds > 0) snprintf(roof, sizeof roof, "%.1f %%", 100 * bound.seconds / row->seconds);
    print_line(out, "  %-58s %7.0f %10.3f %6.1f %% %10s%-4s %15s %8s%s%s", row->name,
               (double)row->calls / steps, 1e3 * row->seconds / steps, 100 * row->seconds / all_seconds,
               format_count(work, bound.work / steps), bound.is_flops ? "FLOP" : "B",
               rate_text(rate, bound.work / row->seconds, bound.is_flops), roof, row->kernel ? "  " : "",
               row->kernel ? row->kernel : "");
}

void profile_print(FILE *out, const Profile *profile, const Roofs *roofs) {
    Profile sorted = *profile;
    char flops[FORMAT_NUMBER], bytes[FORMAT_NUMBER];
    double sum = 0, calls = 0;
    const double steps = (double)profile->n_steps;
    qsort(sorted.rows, (size_t)sorted.n_rows, sizeof *sorted.rows, by_seconds);
    for (int i = 0; i < sorted.n_rows; i++) {
        sum += sorted.rows[i].seconds;
        calls += (double)sorted.rows[i].calls;
    }
    print_line(out, "profile: means of %lld steps; roofs: %s (%s), %s (a copy, measured)",
               (long long)profile->n_steps, rate_text(flops, roofs->flops, true), roofs->flops_how,
               rate_text(bytes, roofs->bytes, false));
    print_line(out, "  %-58s %7s %10s %8s %14s %15s %8s  kernel", "op", "calls", "ms", "share", "work",
               "rate", "of roof");
    for (int i = 0; i < sorted.n_rows; i++) print_row(out, &sorted.rows[i], profile, roofs, sum);
    print_line(out, "  %-58s %7.0f %10.3f", "all ops", calls / steps, 1e3 * sum / steps);
    print_line(out, "  %-58s %7s %10.3f", "between ops", "", 1e3 * (profile->seconds - sum) / steps);
    print(out, "  %-58s %7s %10.3f", "a step without the profile, wall clock", "",
          1e3 * profile->seconds_a_step);
    if (profile->n_unnoted)
        print_line(out, "  %.0f more calls were not timed; hint: a smaller --tokens-per-step",
                   (double)profile->n_unnoted / steps);
    else
        print_line(out, "  the ops are %.1f %% of it", 100 * sum / steps / profile->seconds_a_step);
    print_flush(out);
}
