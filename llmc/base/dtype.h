/* Storage types of weights and activations, and their values on the host. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum { DTYPE_F32, DTYPE_BF16 } DType;

static inline size_t dtype_bytes(DType dtype) {
    return dtype == DTYPE_F32 ? 4 : 2;
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
