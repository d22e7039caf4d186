/* How results are compared: errors that a NaN cannot pass, and device buffers that notice unwritten elements
 * and writes past their ends. test_compare.c shows that each of these fails when it must. */
#pragma once
#include "llmc/model/ops.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bf16 on the host ---- */

static inline float bf16_to_float(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* To nearest, ties to even; a NaN stays a NaN. */
static inline uint16_t bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline float round_bf16(float value) {
    return bf16_to_float(bf16_from_float(value));
}

/* value as dtype stores it */
static inline float round_to(DType dtype, float value) {
    return dtype == DTYPE_BF16 ? round_bf16(value) : value;
}

/* ---- errors ---- */

typedef struct Deviation {
    double norm;   /* ||got - want|| / ||want|| */
    double max;    /* max |got - want| / max |want| */
    int64_t worst; /* element of the largest difference, or the first that is not finite where want is */
} Deviation;

/* Of n elements. A value that is not finite where `want` is makes both errors NaN; where want is all zero,
 * any difference makes them infinite. An expected NaN or inf must be met by the same. */
static inline Deviation compare_floats(const float *got, const float *want, int64_t n) {
    double sum = 0, want_sum = 0, max = 0, want_max = 0;
    Deviation result = {0, 0, 0};
    for (int64_t i = 0; i < n; i++) {
        if ((isnan(want[i]) && isnan(got[i])) || (isinf(want[i]) && got[i] == want[i])) continue;
        double difference = fabs((double)got[i] - want[i]), magnitude = fabs((double)want[i]);
        if (!isfinite(difference)) return (Deviation){NAN, NAN, i};
        if (difference > max) {
            max = difference;
            result.worst = i;
        }
        if (magnitude > want_max) want_max = magnitude;
        sum += difference * difference;
        want_sum += magnitude * magnitude;
    }
    result.norm = sum > 0 ? sqrt(sum / want_sum) : 0;
    result.max = max > 0 ? max / want_max : 0;
    return result;
}

typedef struct Limits {
    double norm, max; /* largest Deviation allowed */
} Limits;

/* False where either error is above its limit or NaN. */
static inline bool within(Deviation deviation, Limits limits) {
    return deviation.norm <= limits.norm && deviation.max <= limits.max;
}

/* ---- guarded device buffers ---- */

enum {
    GUARD_BYTES = 256,
    GUARD_VALUE = 0xA5,
    POISON_VALUE = 0xFF
}; /* 0xFF... is a NaN in fp32 and in bf16 */

typedef struct Guarded {
    const Ops *ops;
    char *base; /* GUARD_BYTES + shift, then the data, then GUARD_BYTES */
    char *data;
    size_t bytes, shift;
} Guarded;

static inline bool guarded_fill(const Ops *ops, void *dst, int value, size_t bytes) {
    char *host = malloc(bytes + 1);
    if (!host) return false;
    memset(host, value, bytes);
    ops->device->upload(dst, host, bytes);
    free(host);
    return true;
}

/* Poisoned data between two guard bands. shift is a multiple of 16 that moves the data off the 256-byte
 * alignment of allocations. False, with nothing allocated, if it does not fit. */
static inline bool guarded_alloc(Guarded *g, const Ops *ops, size_t bytes, size_t shift) {
    *g = (Guarded){.ops = ops, .bytes = bytes, .shift = shift};
    if (!(g->base = ops->device->alloc(bytes + shift + 2 * GUARD_BYTES))) return false;
    g->data = g->base + GUARD_BYTES + shift;
    return guarded_fill(ops, g->base, GUARD_VALUE, GUARD_BYTES + shift) &&
           guarded_fill(ops, g->data, POISON_VALUE, bytes) &&
           guarded_fill(ops, g->data + bytes, GUARD_VALUE, GUARD_BYTES);
}

static inline void guarded_free(Guarded *g) {
    if (g->base) g->ops->device->free(g->base);
    *g = (Guarded){0};
}

/* True while no byte of the bands before and after the data has changed. */
static inline bool guarded_intact(const Guarded *g) {
    unsigned char band[2 * GUARD_BYTES + 256];
    size_t before = GUARD_BYTES + g->shift;
    if (before + GUARD_BYTES > sizeof band) return false;
    g->ops->device->download(band, g->base, before);
    g->ops->device->download(band + before, g->data + g->bytes, GUARD_BYTES);
    for (size_t i = 0; i < before + GUARD_BYTES; i++)
        if (band[i] != GUARD_VALUE) return false;
    return true;
}

/* ---- floats to and from a device buffer of either type ---- */

/* n values, rounded to dtype */
static inline void upload_floats(const Ops *ops, void *dst, DType dtype, const float *src, int64_t n) {
    if (dtype == DTYPE_F32) {
        ops->device->upload(dst, src, (size_t)n * sizeof *src);
        return;
    }
    uint16_t *bits = malloc((size_t)n * sizeof *bits);
    if (!bits) abort();
    for (int64_t i = 0; i < n; i++) bits[i] = bf16_from_float(src[i]);
    ops->device->upload(dst, bits, (size_t)n * sizeof *bits);
    free(bits);
}

static inline void download_floats(const Ops *ops, float *dst, const void *src, DType dtype, int64_t n) {
    ops->device->download(dst, src, (size_t)n * dtype_bytes(dtype));
    if (dtype == DTYPE_F32) return;
    uint16_t *bits = (uint16_t *)(void *)dst; /* widened in place, from the last to the first */
    for (int64_t i = n - 1; i >= 0; i--) {
        float value = bf16_to_float(bits[i]);
        memcpy(&dst[i], &value, sizeof value);
    }
}
