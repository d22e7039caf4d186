/* Dropout of P and dS where wgmma has left them: a kernel's config with it is WithDropout<its config without>.
 *
 * llmc/model/dropout.h defines the mask. A set is the 16 columns that become one A operand. Forward has queries as rows and
 * keys as columns: each pair of bf16 has a word, and is dropped by one comparison with it. Backward has keys as rows
 * (TRANSPOSED): a pair takes a half each of the words of two queries.
 *
 * This serves thresholds up to 128; others are served by the kernels of older cards.
 *
 * What is dropped is 0 in P, after the row sums. In dS = P (dP M / kept - D) it is -P D; times kept, which dK, dQ and dV
 * get back at the end, that is P (dP - D kept) where M is 1 and -P D kept where it is 0. The product gives dP - D kept (the
 * augmented step); -D kept of two neighbouring queries, as bf16, is beside them in LseDRow. */
#pragma once
#include "llmc/cuda/attention/paths.cuh"
#include "sm90_attention.cuh"

template <class Plain> struct WithDropout : Plain { static constexpr bool DROPS = true; };

typedef struct DropoutArgs {
    const uint64_t *key;
    uint32_t site;
    uint32_t limit;         /* in each half: the smallest bf16 that is dropped */
    float kept, kept_scale; /* 1 - p, 1 / (1 - p) */
} DropoutArgs;

static inline DropoutArgs dropout_args(const AttentionMask *mask) {
    const uint32_t threshold = dropout_threshold(mask->dropout.p);
    DropoutArgs args = {};
    args.key = mask->dropout.key;
    args.site = mask->dropout.site;
    const uint32_t last = threshold * 256 - 1; /* of those that are, in their order */
    args.limit = (last <= 0x7f80 ? 0x7f80 - last : last + 0x7f) * 0x00010001u;
    args.kept = 1.0f - dropout_p(threshold);
    args.kept_scale = dropout_scale(threshold);
    return args;
}

/* Where a thread is in the mask. Its rows stay, its columns go from block to block of 64. */
template <bool TRANSPOSED> struct FragmentMask {
    uint32_t counter, twist; /* of the thread's elements of the block */
    uint32_t factors[2];     /* of its row, and that 8 further on */
    uint32_t halves; /* only where TRANSPOSED: __byte_perm's selector of its rows' halves of two words */

    /* The warpgroup's 64 rows from row0 on, the block's columns from column0 on; head: of B*NH. */
    __device__ __forceinline__ void begin(const DropoutArgs &args, int head, int row0, int column0) {
        const DropoutMatrix matrix = dropout_matrix(dropout_site(__ldg(args.key), args.site), head);
        const int row = row0 + thread_row(), column = column0 + thread_column();
        twist = matrix.twist;
        counter = matrix.start + (TRANSPOSED ? dropout_counter(column, row) : dropout_counter(row, column));
#pragma unroll
        for (int i = 0; i < 2; i++)
            factors[i] = TRANSPOSED ? dropout_column_factor(row + 8 * i) : dropout_row_factor(row + 8 * i);
        halves = row % 2 ? 0x7632 : 0x5410;
    }
    /* The next 64 columns, or (-1) those before. */
    __device__ __forceinline__ void move(int blocks) {
        counter += (uint32_t)blocks * (TRANSPOSED ? dropout_counter(64, 0) : dropout_counter(0, 64));
    }
};

/* A row's words of a block: slope times the factor of the column, plus offset. */
typedef struct MaskLine {
    uint32_t slope, offset;
} MaskLine;

/* Of both rows. */
template <bool TRANSPOSED>
__device__ __forceinline__ void draw_lines(MaskLine (&lines)[2], const FragmentMask<TRANSPOSED> &mask) {
    const uint2 first = multiply_wide(mask.counter, DROPOUT_ROUND_1);
    const uint32_t t2 = first.y, t = first.x ^ t2 ^ mask.twist;
    const uint2 second = multiply_wide(t, DROPOUT_ROUND_2);
    const uint32_t s2 = second.y, s = second.x ^ s2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t factor = mask.factors[i];
        lines[i] = TRANSPOSED ? MaskLine{s * factor + s2, t * factor + t2}
                              : MaskLine{s * factor + t, s2 * factor + t2};
    }
}

/* Ones where register i of a set's A operand, a pair of columns, keeps its element. */
template <bool TRANSPOSED>
__device__ __forceinline__ uint32_t kept_pair(const MaskLine (&lines)[2], int set, int i,
                                              const FragmentMask<TRANSPOSED> &mask, uint32_t limit) {
    const MaskLine line = lines[i % 2];
    const int column = 16 * set + i / 2 * 8;
    if (!TRANSPOSED) return less_bf16x2(line.slope * dropout_column_factor(column) + line.offset, limit);
    const uint32_t even = line.slope * dropout_row_factor(column) + line.offset,
                   odd = line.slope * dropout_row_factor(column + 1) + line.offset;
    return less_bf16x2(__byte_perm(even, odd, mask.halves), limit);
}

/* Lines of a block, and what kept_pair makes of its first N sets. It is a branch, always taken, for the compiler: in straight
 * code it moves all this behind the next wait for products, to what comes then, and nothing is done meanwhile. */
template <int N, bool TRANSPOSED, int SETS>
__device__ __forceinline__ void draw_masks(MaskLine (&lines)[2], uint32_t (&masks)[SETS][4],
                                           const FragmentMask<TRANSPOSED> &mask, const DropoutArgs &args) {
    if (args.key) {
        draw_lines(lines, mask);
#pragma unroll
        for (int i = 0; i < N * 4; i++)
            masks[i / 4][i % 4] = kept_pair(lines, i / 4, i % 4, mask, args.limit);
    } else {
        lines[0] = lines[1] = MaskLine{0, 0};
#pragma unroll
        for (int i = 0; i < N * 4; i++) masks[i / 4][i % 4] = 0;
    }
}

/* Packed P of a block. */
template <bool TRANSPOSED, int SETS>
__device__ __forceinline__ void drop_sets(uint32_t (&p)[SETS][4], const FragmentMask<TRANSPOSED> &mask,
                                          uint32_t limit) {
    MaskLine lines[2];
    draw_lines(lines, mask);
#pragma unroll
    for (int i = 0; i < SETS * 4; i++) p[i / 4][i % 4] &= kept_pair(lines, i / 4, i % 4, mask, limit);
}
