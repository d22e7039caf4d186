/* Dropout (Srivastava et al. 2014, section 4, with the scale at training time): an element becomes 0 with
 * probability p, else x / (1 - p). p is a multiple of 1/256: the one nearest to what was asked for, and neither 0 nor 1.
 *
 * A mask is a matrix of decisions that depend on (key, site, matrix, row, column) alone: a counter-based generator in
 * integer arithmetic, so forward, backward, recomputation, every backend and a resumed run draw the same, in any order,
 * and nothing is stored.
 *
 * One 32-bit word decides about four elements, a byte each: (row, column), those 8 rows and 8 columns further, and both,
 * in each tile of 16 x 16. The four are one thread's both in the accumulators of a product of tensor cores and in those
 * of its transpose (mma and wgmma), so forward and backward of attention make a word once. The words of two
 * neighbouring rows and columns share the first of their two rounds.
 *
 * A round is one multiplication to 64 bits whose halves are added without carry. Each matrix has 64 bits of its own: where
 * its counter starts and what is mixed in between the rounds. The counter has room for 262144 rows and columns; beyond,
 * elements so far apart share their decisions. */
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

/* Where the mask of a matrix begins. */
typedef struct DropoutMatrix {
    uint32_t start, twist;
} DropoutMatrix;

/* A matrix with more rows is one mask after another. Of attention a matrix is a head's, whatever its rows. */
enum { DROPOUT_MATRIX_ROWS = 65536 };

/* SplitMix64's finaliser (Steele, Lea & Flood 2014, figure 16), as random_mix, here for the device as well. */
DROPOUT_FUNCTION uint64_t dropout_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* All masks of a site: mix this with a matrix. */
DROPOUT_FUNCTION uint64_t dropout_site(uint64_t key, uint32_t site) {
    return dropout_mix(key + 0x9e3779b97f4a7c15u * ((uint64_t)site + 1));
}

DROPOUT_FUNCTION DropoutMatrix dropout_matrix(uint64_t site, int64_t matrix) {
    const uint64_t bits = dropout_mix(site + 0x9e3779b97f4a7c15u * (uint64_t)matrix);
    const DropoutMatrix result = {(uint32_t)bits, (uint32_t)(bits >> 32)};
    return result;
}

/* By how much the counter differs from `start`: the words of rows and columns 2n and 2n + 1 of a half tile have one. */
DROPOUT_FUNCTION uint32_t dropout_counter(uint32_t row, uint32_t column) {
    const uint32_t of_row = row / 16 * 4 + row % 8 / 2, of_column = column / 16 * 4 + column % 8 / 2;
    return 0x9e3779b9u * (of_row * 65536u + of_column);
}

DROPOUT_FUNCTION uint64_t dropout_product(uint32_t x, uint32_t factor) {
    return (uint64_t)x * factor;
}
DROPOUT_FUNCTION uint32_t dropout_fold(uint64_t product) {
    return (uint32_t)product ^ (uint32_t)(product >> 32);
}
/* The first round, of a counter, and its factor. */
#define DROPOUT_FACTOR 0xd2511f53u
DROPOUT_FUNCTION uint32_t dropout_shared(uint32_t counter, uint32_t twist) {
    return dropout_fold(dropout_product(counter, DROPOUT_FACTOR)) ^ twist;
}
/* The factor of the second. */
DROPOUT_FUNCTION uint32_t dropout_factor(uint32_t row, uint32_t column) {
    return row % 2 ? (column % 2 ? 0xa3d5c9e5u : 0x27d4eb2fu) : (column % 2 ? 0xc2b2ae35u : 0x85ebca6bu);
}

/* The word of an element. */
DROPOUT_FUNCTION uint32_t dropout_word(DropoutMatrix matrix, uint32_t row, uint32_t column) {
    const uint32_t shared = dropout_shared(matrix.start + dropout_counter(row, column), matrix.twist);
    return dropout_fold(dropout_product(shared, dropout_factor(row, column)));
}

/* An element is 0 where its byte of the word is below the threshold. */
DROPOUT_FUNCTION uint32_t dropout_byte(uint32_t word, uint32_t row, uint32_t column) {
    return word >> (row / 8 % 2 * 16 + column / 8 % 2 * 8) & 255;
}
DROPOUT_FUNCTION int dropout_drops(DropoutMatrix matrix, uint32_t row, uint32_t column, uint32_t threshold) {
    return dropout_byte(dropout_word(matrix, row, column), row, column) < threshold;
}

/* 256 p; 0 where there is no dropout. */
DROPOUT_FUNCTION uint32_t dropout_threshold(float p) {
    const uint32_t nearest = (uint32_t)(p * 256.0f + 0.5f);
    return p <= 0.0f ? 0 : nearest < 1 ? 1 : nearest > 255 ? 255 : nearest;
}
/* The probability of 0 that this is. */
DROPOUT_FUNCTION float dropout_p(uint32_t threshold) {
    return (float)threshold / 256.0f;
}
/* What the others are multiplied with. */
DROPOUT_FUNCTION float dropout_scale(uint32_t threshold) {
    return 256.0f / (float)(256 - threshold);
}
