/* Storage types of weights and activations, and their values on the host. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum { DTYPE_F32, DTYPE_BF16 } DType;

static inline size_t dtype_bytes(DType dtype) {
    return dtype == DTYPE_F32 ? 4 : 2;
}

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* Rounded to nearest, ties to even; a NaN stays one. */
static inline uint16_t bf16_from_f32(float value) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* IEEE 754 binary16 (1 sign, 5 exponent bits of bias 15, 10 mantissa bits), rounded to nearest, ties to even; past its
 * largest, 65504, infinity. */
static inline uint16_t f16_from_f32(float value) {
    const uint32_t bits = float_bits(value), magnitude = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    if (magnitude < 0x38800000) { /* below 2^-14: multiples of 2^-24, the step of numbers from 0.5 on */
        float scaled;
        memcpy(&scaled, &magnitude, 4);
        return sign | (uint16_t)(float_bits(scaled + 0.5f) - float_bits(0.5f));
    }
    return sign | (uint16_t)((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

/* Host copies of device data: n elements of the storage type to fp32. */
static inline void floats_from_storage(float *out, const void *in, int64_t n, DType dtype) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        if (dtype == DTYPE_F32)
            memcpy(&bits, (const char *)in + i * 4, 4);
        else
            bits = (uint32_t)((const uint16_t *)in)[i] << 16;
        memcpy(out + i, &bits, 4);
    }
}
