/* Attention backward for sm_90a, bf16, head sizes 64 to 128 (FlashAttention-2, Dao 2023, Algorithm 2), dqkv =, in one
 * pass of five products: what its two kernels share (sm90_backward_hd64.cuh, sm90_backward_hd128.cuh).
 *
 * No additions in an order left to chance: the same inputs give the same bits. P = exp(scale * Q K^T - lse), D =
 * rowsum(dO * O) and dS = P * (dO V^T - D). A warpgroup owns 64 keys and walks the blocks of 64 queries. Scores are
 * computed transposed (S^T = K Q^T), so that P^T and dS^T are in registers as the products need them: dV = P^T dO, dK
 * = scale * dS^T Q. dQ = scale * dS K is summed over the tiles of keys in a fixed order (sm90_dq_semaphore.cuh).
 *
 * lse and D belong to the columns of an accumulator: fetching them for each column costs 20-25 %. They go into
 * the products instead, as 16 more of k (augmented k): A is 1 there and B holds -lse / scale and -D, each as a sum of three bf16,
 * exact to fp32. S^T - lse / scale and dP^T - D then come out of wgmma. */
#pragma once
#include "sm90_dropout.cuh"

/* What the pass needs of a query: bf16 {-lse / scale in three parts, -D in three parts, 0, 0}, one for
 * each of (B, NH, T rounded up to 64); zeros beyond T. */
typedef uint4 LseDRow;

__host__ __device__ __forceinline__ int64_t padded_rows(int T) {
    return ceil_div(T, (int)WG_ROWS) * (int64_t)WG_ROWS;
}

typedef struct BackwardArgs {
    CUtensorMap rows; /* boxes of 64 rows of qkv */
    CUtensorMap dout; /* boxes of 64 rows */
    bf16 *dqkv;
    LseDRow *lse_d;
    int T, NH;
    TileOrder order;
    float scale, inverse_scale, scale_log2; /* 1 / sqrt(HD), sqrt(HD), log2(e) / sqrt(HD) */
} BackwardArgs;

/* All but the order of the tiles. */
inline BackwardArgs backward_args(floatX *dqkv, const floatX *dout, const floatX *qkv, const void *scratch,
                                  int B, int T, int NH, int HD, int atom = SW128_COLUMNS) {
    BackwardArgs args = {};
    args.rows = tensor_map(qkv, B, T, 3 * NH, HD, WG_ROWS, atom);
    args.dout = tensor_map(dout, B, T, NH, HD, WG_ROWS, atom);
    args.dqkv = (bf16 *)dqkv;
    args.lse_d = (LseDRow *)scratch;
    args.T = T;
    args.NH = NH;
    args.inverse_scale = sqrtf((float)HD);
    args.scale = 1.0f / args.inverse_scale;
    args.scale_log2 = LOG2E / args.inverse_scale;
    return args;
}

/* x as three bf16 whose sum is x. */
__device__ __forceinline__ void split_bf16(bf16 (&part)[3], float x) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        part[i] = __float2bfloat16_rn(x);
        x -= __bfloat162float(part[i]);
    }
}

__device__ __forceinline__ LseDRow lse_d_row(float neg_lse_unscaled, float neg_d, uint32_t neighbours = 0) {
    union {
        bf16 part[8];
        LseDRow as_row;
    } row;
    bf16 lse[3], d[3];
    split_bf16(lse, neg_lse_unscaled);
    split_bf16(d, neg_d);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        row.part[i] = lse[i];
        row.part[3 + i] = d[i];
    }
    row.part[6] = row.part[7] = __float2bfloat16_rn(0.0f);
    if (neighbours) row.as_row.w = neighbours;
    return row.as_row;
}

/* What dropout needs beside it, in the place of the two zeros: -D of the row and its neighbour, the even one first, as bf16.
 * Products multiply it by 0, so it must be finite; what is not reaches dP as -D itself. distance: of the lane that has the
 * neighbour. All lanes call. */
__device__ __forceinline__ uint32_t neighbours_d(float neg_d, int row, int distance) {
    const float own = fabsf(neg_d) < 0x1p126f ? neg_d : 0.0f;
    const float other = __shfl_xor_sync(0xffffffffu, own, distance);
    return row % 2 ? cvt_bf16x2(other, own) : cvt_bf16x2(own, other);
}

/* S or dP: acc = A B^T over the head's columns, A from shared memory in tiles of 64 rows, B in tiles of
 * b_rows. */
template <int HD, int ATOM_COLUMNS = SW128_COLUMNS, int N>
__device__ __forceinline__ void multiply_heads(float (&acc)[N], uint64_t a, uint64_t b) {
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
        const uint64_t a_i = a + step_of_columns<ATOM_COLUMNS>(i, WG_ROWS);
        const uint64_t b_i = b + step_of_columns<ATOM_COLUMNS>(i, 2 * N);
        if (i == 0)
            wgmma<D_SET, B_K_MAJOR>(acc, a_i, b_i);
        else
            wgmma<D_ADD, B_K_MAJOR>(acc, a_i, b_i);
    }
}
