/* --profile: where the time of a training step goes, op by op, beside what the hardware could do.
 *
 * The ops know nothing of it: profile_ops() wraps a table so that the device notes the time before and after
 * every call (Device.timestamp). What a call must move and compute at the least is worked out from its arguments. */
#pragma once
#include <stdio.h>
#include "llmc/model/gpt2.h"
#include "llmc/model/op_cost.h"

/* One op at one size by one kernel, summed over its calls. */
typedef struct ProfileRow {
    char name[96];      /* "linear_forward 768->2304"; the table is as wide as the longest, 58 */
    const char *kernel; /* Ops.kernel_ran, or NULL */
    int64_t calls;
    double seconds;
    double flops; /* of its products; causal attention counts half of the square */
    double bytes; /* each input read once, each output written once */
} ProfileRow;

enum { PROFILE_MAX_ROWS = 64 };

typedef struct Profile {
    int n_rows; /* ops beyond PROFILE_MAX_ROWS share the last row, "other" */
    ProfileRow rows[PROFILE_MAX_ROWS];
    int64_t n_steps;   /* profiled */
    int64_t n_unnoted; /* calls beyond TIMESTAMPS_MAX / 2 in a step, summed over the steps: not in the rows */
    double seconds;    /* from the first op of a step to the end of its last, summed over the steps */
    double seconds_a_step; /* wall clock of a step that is not profiled */
} Profile;

/* Copies that are measured: 256 MiB, 64 MiB, ..., 64 KiB read, and as many written. */
enum { ROOF_SIZES = 7 };
static inline size_t roof_bytes(int i) {
    return ((size_t)256 << 20) >> (2 * i);
}

/* What the device can do at best. */
typedef struct Roofs {
    double flops; /* a second: Device.peak_flops */
    double bytes; /* a second, read and written, of a large copy; 0: no memory left to measure it */
    /* The same of a copy of roof_bytes(i) bytes, which a cache may hold; 0: not known. */
    double bytes_of[ROOF_SIZES];
    const char *flops_how; /* "measured" or "derived" */
} Roofs;

/* One call of an op in a step. */
typedef struct ProfileCall {
    char name[OP_LABEL];
    const char *kernel; /* Ops.kernel_ran, or NULL */
    OpCost cost;
    PassPlace at;
    /* By the device, seconds since the step's first call began; profile_collect fills them in. */
    double begin, end;
} ProfileCall;

/* `inner` with every op noted; one at a time, valid until the next call. Graphs are off. at: where the model is, or NULL. */
const Ops *profile_ops(const Ops *inner, const PassPlace *at);
/* Waits for the device and adds the calls since the last collection to the profile, as one step. */
void profile_collect(Profile *profile);
/* The calls that were collected last, n of them, valid until the next op. */
const ProfileCall *profile_calls(int *n);
/* Measures them (0.3 s) and raises those that are lower in `roofs`: what runs beside can only lower one. */
void profile_roofs(Roofs *roofs, const Ops *ops);
/* The rate of a large copy alone, which some milliseconds tell; 0: not known. */
double profile_copy_roof(const Ops *ops);
/* The table, longest rows first, means over the profiled steps. */
void profile_print(FILE *out, const Profile *profile, const Roofs *roofs);
