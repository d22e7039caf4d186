/* A step of 2 to 64 sequences: three kernels for a layer's two halves and the norms between them, in a CUDA graph.
 *
 * Eight blocks are to a layer what a rank is in tensor parallelism (Shoeybi et al. 2019, section 3): they have a head's rows
 * of c_attn, that head's attention and columns of the projection behind it, 256 hidden channels of the MLP and their columns of
 * the second projection. What a head adds to the residual stream, its part, goes through L2; the norm adds the parts. All else
 * goes from block to block of a cluster through shared memory.
 *
 * A row's sums do not depend on the rows beside it, nor on how many there are. Sequence b is row tile_row(b) of a tile of 64: a
 * block has eight rows' attention, and few sequences are spread over the blocks. */
#pragma once
#include <cuda_fp16.h>
#include "layer.cuh"

/* Of two sequences of 1,000 tokens launches are as fast, 9.2 k tokens/s; of 400 they make 9.2 k for 10.0 k. */
enum { ROWS_MIN = 2, ROWS_MAX = 64, ROWS_BLOCKS = 8 /* of a head */, ROWS_MAX_NH = 12 };

__host__ __device__ inline int tile_row(int b) {
    return b % ROWS_BLOCKS * (ROWS_MAX / ROWS_BLOCKS) + b / ROWS_BLOCKS;
}

/* What a head adds, times PART_UNIT: to 11 bits from 2^-10 up to 2^20. Tensor parallelism sends such parts in bf16, to 8. With
 * fp32 norms read twice as much: 64 sequences 172 k tokens/s for 178 k, 8 34.6 k for 37.2 k. */
typedef __half HeadPart;
static constexpr float PART_UNIT = 1.0f / 16;

typedef struct RowsArgs {
    int B, T, NH, window;
    const int32_t *positions, *begins;
    bf16 *residual;  /* (B,C) */
    bf16 *x;         /* what a norm makes: C / 64 tiles of (ROWS_MAX,64) in SWIZZLE_128B */
    HeadPart *parts; /* (NH,ROWS_MAX,C), rows in tile order */
} RowsArgs;

/* residual += the sum of the parts + part_bias, rounded as a linear layer's output is; part_bias NULL: there are none. The
 * norm of that to x, or to out (B,C) where it is not NULL. */
void rows_norm(const RowsArgs &a, const bf16 *part_bias, const bf16 *weight, const bf16 *bias, bf16 *out);
/* x -> parts: attention and the projection behind it; the MLP. */
void rows_attention(const RowsArgs &a, const DecodeLayer &layer);
void rows_mlp(const RowsArgs &a, const DecodeLayer &layer);

/* Whether all blocks run at once; NH: 4, 8 or 12. */
bool rows_attention_fits(int NH);
bool rows_mlp_fits(int NH);

/* Whether there are kernels for so many sequences and heads. An H200 has room for 120 blocks in clusters of four and of eight, 16
 * heads are 128: with them 16 sequences of 256 tokens are 18.2 k tokens/s for 22.5 k by launches, 64 sequences 58.3 k for 57.0 k. */
inline bool rows_fit(int64_t B, int NH) {
    return cuda_compute_capability() == 90 && B >= ROWS_MIN && B <= ROWS_MAX && NH % 4 == 0 &&
           NH <= ROWS_MAX_NH && rows_attention_fits(NH) && rows_mlp_fits(NH);
}
