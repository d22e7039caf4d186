/* Dropout (Srivastava et al. 2014, section 4, with the scale at training time): an element becomes 0 with
 * probability p, else x / (1 - p). p is a multiple of 1/256: the one nearest to what was asked for, and neither 0 nor 1.
 *
 * A mask is a matrix of decisions that depend on (key, site, matrix, row, column) alone: a counter-based generator in
 * integer arithmetic, so forward, backward, recomputation, every backend and a resumed run draw the same, in any order,
 * and nothing is stored.
 *
 * One 32-bit word decides about two elements, half of it each: an even column of a row and the odd one behind it. In a block of 64
 * x 64 elements the words of rows with the same row % 8 / 2 and of columns with the same column % 8 / 2 have their seeds
 * s, s', t and t' in common, of two rounds, each of which is one multiplication to 64 bits. These are what one thread has of the
 * accumulators of a product of tensor cores, or of its transpose (mma and wgmma), so forward and backward of attention
 * each make seeds once for 32 elements. A row has a factor U among 16 and a pair of columns a factor V among 8, and
 *
 *   word = (s U + t) V + s' U + t'
 *
 * so who keeps the row, or the columns, makes a word with one multiplication to 32 bits. (With one to 64 for four elements
 * dropout cost forward of attention twice as much: such products and those of tensor cores are in each other's way.) Two
 * factors differ by at most 8 times an odd number, so any two words are independent but for their last bits, which decide
 * nothing.
 *
 * Each matrix has 64 bits of its own: where its counter starts and what is mixed in between the rounds. The counter has
 * room for 1048576 rows and columns; beyond, elements so far apart share their decisions. */
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

/* By how much the counter differs from `start`. */
DROPOUT_FUNCTION uint32_t dropout_counter(uint32_t row, uint32_t column) {
    const uint32_t of_row = row / 64 * 4 + row % 8 / 2, of_column = column / 64 * 4 + column % 8 / 2;
    return 0x9e3779b9u * (of_row * 65536u + of_column);
}

/* The factors of the rounds. */
#define DROPOUT_ROUND_1 0xd2511f53u
#define DROPOUT_ROUND_2 0xcd9e8d57u

/* U and V. */
DROPOUT_FUNCTION uint32_t dropout_row_factor(uint32_t row) {
    const uint32_t n = row % 64 / 16 * 4 + row / 8 % 2 * 2 + row % 2;
    return 0x85ebca6bu + n * (0xc2b2ae35u + n * 0x27d4eb2eu);
}
DROPOUT_FUNCTION uint32_t dropout_column_factor(uint32_t column) {
    const uint32_t n = column % 64 / 16 * 2 + column / 8 % 2;
    return 0xa3d5c9e5u + n * (0x165667b1u + n * 0x2545f492u);
}

/* The word of an element. */
DROPOUT_FUNCTION uint32_t dropout_word(DropoutMatrix matrix, uint32_t row, uint32_t column) {
    const uint32_t counter = matrix.start + dropout_counter(row, column), u = dropout_row_factor(row);
    const uint64_t first = (uint64_t)counter * DROPOUT_ROUND_1;
    const uint32_t t2 = (uint32_t)(first >> 32), t = (uint32_t)first ^ t2 ^ matrix.twist;
    const uint64_t second = (uint64_t)t * DROPOUT_ROUND_2;
    const uint32_t s2 = (uint32_t)(second >> 32), s = (uint32_t)second ^ s2;
    return (s * u + t) * dropout_column_factor(column) + s2 * u + t2;
}

/* An element is 0 where its half of the word, as bf16, is among the 256 * threshold largest: numbers from infinity down to 0,
 * negative ones from -0 down, and last, where no threshold comes, NaN with a plus sign. One comparison of pairs of
 * bf16 finds them. */
DROPOUT_FUNCTION int dropout_dropped_by(uint32_t word, uint32_t column, uint32_t threshold) {
    const uint32_t half = word >> column % 2 * 16 & 0xffff;
    const uint32_t larger = (half & 0x8000 ? half - 0x7f : 0x7f80 - half) & 0xffff;
    return larger < threshold * 256;
}
DROPOUT_FUNCTION int dropout_drops(DropoutMatrix matrix, uint32_t row, uint32_t column, uint32_t threshold) {
    return dropout_dropped_by(dropout_word(matrix, row, column), column, threshold);
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
