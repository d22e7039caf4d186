/* Window and dropout of scores in the layout of mma.sync's accumulators (sm80_tile.cuh): element [b][n][i] of a lane is
 * row 16 b + 8 (i / 2) + lane/4 and column 8 n + 2 (lane % 4) + i % 2. */
#pragma once
#include "llmc/cuda/attention/mask.cuh"
#include "sm80_tile.cuh"

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

/* What dropout takes of 16 columns, `column` and on, of rows from `row` on, both multiples of 16: bit 8 b + 4 n + i is
 * element [b][n][i], n < 2. TRANSPOSED: columns are queries, rows are keys; else a word of the mask has two neighbours. */
template <bool TRANSPOSED, class Mask, int BLOCKS>
__device__ __forceinline__ uint32_t dropped_elements(const Mask &mask, DropoutMatrix matrix, int row,
                                                     int column) {
    uint32_t bits = 0;
    if (!mask.drops()) return bits;
    const int lane = threadIdx.x % 32, first_row = row + lane / 4, first_column = column + lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int e = 0; e < 4; e++) { /* n = e / 2, the row 8 (e % 2) further on */
            const int r = first_row + 16 * b + e % 2 * 8, c = first_column + e / 2 * 8;
            uint32_t word = TRANSPOSED ? dropout_word(matrix, c, r) : dropout_word(matrix, r, c);
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                if (TRANSPOSED && odd) word = dropout_word(matrix, c + 1, r);
                const bool dropped = mask.dropped_by(word, TRANSPOSED ? r : odd);
                bits |= (uint32_t)dropped << (8 * b + e / 2 * 4 + e % 2 * 2 + odd);
            }
        }
    return bits;
}

__device__ __forceinline__ bool is_dropped(uint32_t bits, int b, int e) {
    return bits >> (8 * b + e) & 1;
}
