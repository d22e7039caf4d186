/* The register tile: TILE_ROWS x TILE_COLS sums held in registers, the one inner loop of every matrix product
 * here.
 *
 * Per step of k it loads TILE_VECS vectors of b and broadcasts TILE_ROWS scalars of a, for TILE_ROWS *
 * TILE_VECS multiply-adds, so loads stay below one per multiply-add, and the sums are enough independent
 * chains to cover the latency of a multiply-add. 16 + 2 of 32 registers (AVX-512, NEON), 8 + 2 of 16 (AVX,
 * SSE). */
#pragma once
#include <stddef.h>
#include "vec.h"

#if defined(__AVX512F__) || defined(__ARM_NEON)
enum { TILE_ROWS = 8 };
#else
enum { TILE_ROWS = 4 };
#endif
enum { TILE_VECS = 2, TILE_COLS = TILE_VECS * VEC };

typedef struct TileSum {
    vec v[TILE_ROWS][TILE_VECS];
} TileSum;

/* sum[i][j] = sum over k < K of a[i*a_row + k*a_k] * b[k*b_row + j].  k runs in order: the bits do not depend
 * on where the tile stands. Reads TILE_ROWS rows of a and TILE_COLS columns of b, whole. */
static inline __attribute__((always_inline)) TileSum
tile_product(int64_t K, const float *a, ptrdiff_t a_row, ptrdiff_t a_k, const float *b, ptrdiff_t b_row) {
    TileSum sum;
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECS; j++) sum.v[i][j] = (vec){0};
    for (int64_t k = 0; k < K; k++) {
        vec b_k[TILE_VECS];
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECS; j++) b_k[j] = vec_load(b + k * b_row + j * VEC);
#pragma GCC unroll 16
        for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 4
            for (int j = 0; j < TILE_VECS; j++) sum.v[i][j] += a[i * a_row + k * a_k] * b_k[j];
    }
    return sum;
}

/* Transposes 4x4 floats: dst[j*dst_row + i] = src[i*src_row + j]. */
static inline void transpose_4x4(float *dst, int64_t dst_row, const float *src, int64_t src_row) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) dst[j * dst_row + i] = src[i * src_row + j];
}
