/* Dropout (Srivastava et al. 2014, section 4, with the scale at training time): an element becomes 0 with
 * probability p, else x / (1 - p).
 *
 * A mask is a matrix of bits that depend on (key, site, row, column) alone: a counter-based generator in integer
 * arithmetic, so forward, backward, recomputation, every backend and a resumed run draw the same bits, in any
 * order, and nothing is stored. Two words a row, made with full 64-bit mixing, feed two multiplications an element:
 * one word alone would let two of a million rows start at the same place. */
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define DROPOUT_FUNCTION static __host__ __device__ __forceinline__
#else
#define DROPOUT_FUNCTION static inline
#endif

typedef struct Dropout {
    const uint64_t *key; /* device memory: which masks, new for every micro-step; not read where p is 0 */
    uint32_t site;       /* which of the masks of one key */
    float p;             /* probability of 0, in [0, 1) */
} Dropout;

/* Where a row of a mask begins. */
typedef struct DropoutRow {
    uint32_t start, twist;
} DropoutRow;

/* SplitMix64's finaliser (Steele, Lea & Flood 2014, figure 16), as random_mix, here for the device as well. */
DROPOUT_FUNCTION uint64_t dropout_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* All masks of a site: mix this with a row. */
DROPOUT_FUNCTION uint64_t dropout_site(uint64_t key, uint32_t site) {
    return dropout_mix(key + 0x9e3779b97f4a7c15u * ((uint64_t)site + 1));
}

DROPOUT_FUNCTION DropoutRow dropout_row(uint64_t site, int64_t row) {
    const uint64_t bits = dropout_mix(site + 0x9e3779b97f4a7c15u * (uint64_t)row);
    const DropoutRow result = {(uint32_t)bits, (uint32_t)(bits >> 32)};
    return result;
}

/* 32 uniform bits. The rounds of a 32-bit mixer (shift, multiply), the row's second word between them; a last shift
 * would change low bits only, which a comparison hardly sees. */
DROPOUT_FUNCTION uint32_t dropout_bits(DropoutRow row, uint32_t column) {
    uint32_t x = row.start + column * 0x9e3779b9u;
    x = (x ^ (x >> 16)) * 0x7feb352du ^ row.twist;
    return (x ^ (x >> 15)) * 0x846ca68bu;
}

/* An element is 0 where its bits are below this. */
DROPOUT_FUNCTION uint32_t dropout_threshold(float p) {
    return (uint32_t)((double)p * 4294967296.0);
}

/* What the others are multiplied with. */
DROPOUT_FUNCTION float dropout_scale(float p) {
    return 1.0f / (1.0f - p);
}
