/* Window and dropout of scores in the layout of mma.sync's accumulators (tile.cuh): element [b][n][i] of a lane is
 * row 16 b + 8 (i / 2) + lane/4 and column 8 n + 2 (lane % 4) + i % 2. */
#pragma once
#include "llmc/cuda/attention/mask.cuh"
#include "sm80_tile.cuh"

/* Where the mask's rows of a warp's queries begin; [b][h] is row 16 b + 8 h + lane/4. */
template <int BLOCKS> using MaskRows = DropoutRow[BLOCKS][2];

template <class Mask, int BLOCKS>
__device__ __forceinline__ void make_mask_rows(MaskRows<BLOCKS> &rows, const Mask &mask, int64_t first) {
    const uint64_t site = mask.site();
    if (!mask.drops()) return;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            rows[b][h] = dropout_row(site, first + 16 * b + 8 * h + threadIdx.x % 32 / 4);
}

/* Sets scores that a window hides to -inf; arguments as of mask_scores. */
template <bool TRANSPOSED, class Mask, int BLOCKS, int N8>
__device__ __forceinline__ void mask_beyond(float (&s)[BLOCKS][N8][4], const Mask &mask, int row,
                                            int column) {
    if constexpr (Mask::PLAIN) return;
    const int lane = threadIdx.x % 32, first_row = row + lane / 4, first_column = column + lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = first_row + 16 * b + 8 * (i / 2), c = first_column + 8 * n + i % 2;
                if (TRANSPOSED ? mask.beyond(c, r) : mask.beyond(r, c)) s[b][n][i] = -CUDART_INF_F;
            }
}

/* What dropout takes of 16 columns, `column` and on: bit 8 b + 4 n + i is element [b][n][i], n < 2. */
template <class Mask, int BLOCKS>
__device__ __forceinline__ uint32_t dropped_keys(const Mask &mask, const MaskRows<BLOCKS> &rows, int column) {
    uint32_t bits = 0;
    if (!mask.drops()) return bits;
    const int first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            bits |= (uint32_t)mask.dropped(rows[b][e % 4 / 2], first + e / 4 * 8 + e % 2) << (8 * b + e);
    return bits;
}

/* The same where columns are queries and rows are keys. mask_row: of column 0 in the mask; key: row 0. */
template <class Mask, int BLOCKS>
__device__ __forceinline__ uint32_t dropped_queries(const Mask &mask, uint64_t site, int64_t mask_row,
                                                    int key) {
    uint32_t bits = 0;
    if (!mask.drops()) return bits;
    const int lane = threadIdx.x % 32, first = key + lane / 4;
#pragma unroll
    for (int e = 0; e < 4; e++) { /* columns of this lane: n = e / 2, i % 2 = e % 2 */
        const DropoutRow row = dropout_row(site, mask_row + e / 2 * 8 + lane % 4 * 2 + e % 2);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                bits |= (uint32_t)mask.dropped(row, first + 16 * b + 8 * h)
                        << (8 * b + e / 2 * 4 + 2 * h + e % 2);
    }
    return bits;
}

__device__ __forceinline__ bool is_dropped(uint32_t bits, int b, int e) {
    return bits >> (8 * b + e) & 1;
}
