/* Dropout of P and dS where wgmma has left them: a kernel's config with it is WithDropout or
 * BackwardWithDropout of its config without.
 *
 * llmc/model/dropout.h defines the mask. A set is the 16 columns that become one A operand. Forward has queries as rows and
 * keys as columns: each pair of bf16 has a word, and is dropped by one comparison with it. Backward has keys as rows: a
 * pair takes a half each of the words of two queries.
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

/* IN_PAIRS: keys lie in such an order that a thread's two are neighbours, which have their words in common: one of 7 instructions a
 * pair less. T is a multiple of 16. */
template <class Plain, bool IN_PAIRS> struct BackwardWithDropout : WithDropout<Plain> {
    static constexpr bool KEY_PAIRS = IN_PAIRS;
};

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

/* The mask of a head of B*NH: a producer's to compute, as it takes a hundred instructions. */
__device__ __forceinline__ DropoutMatrix head_mask(const DropoutArgs &args, int head) {
    return dropout_matrix(dropout_site(__ldg(args.key), args.site), head);
}

/* What a thread's two rows of a fragment are: queries; keys that are 8 apart; neighbouring keys. */
enum MaskRows { MASK_QUERY_ROWS, MASK_KEY_ROWS, MASK_KEY_PAIRS };

/* Where a thread is in the mask. Its rows stay, its columns go from block to block of 64. */
template <MaskRows ROWS> struct FragmentMask {
    static constexpr bool QUERIES = ROWS == MASK_QUERY_ROWS, PAIRS = ROWS == MASK_KEY_PAIRS;
    uint32_t counter, twist; /* of the thread's elements of the block */
    uint32_t factors[2];     /* of its two rows */
    uint32_t halves; /* only of MASK_KEY_ROWS: __byte_perm's selector of its rows' halves of two words */

    static __device__ __forceinline__ int first_row() { return PAIRS ? thread_pair_row() : thread_row(); }
    /* What is the same for all tiles, as a warpgroup's rows begin at multiples of 64. */
    __device__ __forceinline__ void begin_thread() {
        const int row = first_row();
#pragma unroll
        for (int i = 0; i < 2; i++)
            factors[i] =
                QUERIES ? dropout_row_factor(row + 8 * i) : dropout_column_factor(PAIRS ? row : row + 8 * i);
        halves = row % 2 ? 0x7632 : 0x5410;
    }
    /* The warpgroup's 64 rows from row0 on, the block's columns from column0 on. */
    __device__ __forceinline__ void begin_tile(const DropoutMatrix &matrix, int row0, int column0) {
        const int row = row0 + first_row(), column = column0 + thread_column();
        twist = matrix.twist;
        counter = matrix.start + (QUERIES ? dropout_counter(row, column) : dropout_counter(column, row));
    }
    /* The next 64 columns, or (-1) those before. */
    __device__ __forceinline__ void move(int blocks) {
        counter += (uint32_t)blocks * (QUERIES ? dropout_counter(0, 64) : dropout_counter(64, 0));
    }
};

/* A row's words of a block: slope times the factor of the column, plus offset. */
typedef struct MaskLine {
    uint32_t slope, offset;
} MaskLine;

/* Of both rows; of a pair of keys the first is enough. */
template <MaskRows ROWS>
__device__ __forceinline__ void draw_lines(MaskLine (&lines)[2], const FragmentMask<ROWS> &mask) {
    const uint2 first = multiply_wide(mask.counter, DROPOUT_ROUND_1);
    const uint32_t t2 = first.y, t = first.x ^ t2 ^ mask.twist;
    const uint2 second = multiply_wide(t, DROPOUT_ROUND_2);
    const uint32_t s2 = second.y, s = second.x ^ s2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t factor = mask.factors[i];
        lines[i] = mask.QUERIES ? MaskLine{s * factor + t, s2 * factor + t2}
                                : MaskLine{s * factor + s2, t * factor + t2};
    }
}

/* Ones where register i of a set's A operand, a pair of columns, keeps its element. */
template <MaskRows ROWS>
__device__ __forceinline__ uint32_t kept_pair(const MaskLine (&lines)[2], int set, int i,
                                              const FragmentMask<ROWS> &mask, uint32_t limit) {
    const MaskLine line = lines[mask.PAIRS ? 0 : i % 2];
    const int column = 16 * set + i / 2 * 8;
    if (mask.QUERIES) return less_bf16x2(line.slope * dropout_column_factor(column) + line.offset, limit);
    const uint32_t even = line.slope * dropout_row_factor(column) + line.offset,
                   odd = line.slope * dropout_row_factor(column + 1) + line.offset;
    const uint32_t halves = !mask.PAIRS ? mask.halves : i % 2 ? 0x7632 : 0x5410;
    return less_bf16x2(__byte_perm(even, odd, halves), limit);
}

/* Lines of a block, and what kept_pair makes of its first N sets. It is a branch, always taken, for the compiler: in straight
 * code it moves all this behind the next wait for products, to what comes then, and nothing is done meanwhile. */
template <int N, MaskRows ROWS, int SETS>
__device__ __forceinline__ void draw_masks(MaskLine (&lines)[2], uint32_t (&masks)[SETS][4],
                                           const FragmentMask<ROWS> &mask, const DropoutArgs &args) {
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
template <MaskRows ROWS, int SETS>
__device__ __forceinline__ void drop_sets(uint32_t (&p)[SETS][4], const FragmentMask<ROWS> &mask,
                                          uint32_t limit) {
    MaskLine lines[2];
    draw_lines(lines, mask);
#pragma unroll
    for (int i = 0; i < SETS * 4; i++) p[i / 4][i % 4] &= kept_pair(lines, i / 4, i % 4, mask, limit);
}
