/* Dropout of P and dS where wgmma has left them: a kernel's config with it is WithDropout<its config without>.
 *
 * llmc/model/dropout.h defines the mask. A set is the 16 columns that become one A operand: of each a thread has two
 * words, for an even and an odd column, with a byte for each of its rows and halves of the set. Forward has queries as
 * rows, backward keys (TRANSPOSED); the same thread place has the same four elements of a word in both.
 *
 * Words are left with bit 7 of each byte set where the element is kept: byte >= threshold, all four at once, for thresholds
 * up to 128 (others are served by the kernels of older cards). One prmt then makes the mask of a pair of bf16.
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
    uint32_t addend;        /* 128 - threshold, in each byte: carries into bit 7 from the threshold on */
    float kept, kept_scale; /* 1 - p, 1 / (1 - p) */
} DropoutArgs;

static inline DropoutArgs dropout_args(const AttentionMask *mask) {
    const uint32_t threshold = dropout_threshold(mask->dropout.p);
    DropoutArgs args = {};
    args.key = mask->dropout.key;
    args.site = mask->dropout.site;
    args.addend = (MOST_SM90_THRESHOLD - threshold) * 0x01010101u;
    args.kept = 1.0f - dropout_p(threshold);
    args.kept_scale = dropout_scale(threshold);
    return args;
}

/* Where a thread is in the mask. Its rows stay, its columns go from block to block. */
template <bool TRANSPOSED> struct FragmentMask {
    uint32_t counter, twist; /* of the thread's first element of the block */
    uint32_t factor[2];      /* of even and odd columns */

    /* What 16 columns add to the counter. */
    static constexpr uint32_t STEP = 0x9e3779b9u * 4 * (TRANSPOSED ? 65536u : 1u);

    /* The warpgroup's 64 rows from row0 on, the block's columns from column0 on; head: of B*NH. */
    __device__ __forceinline__ void begin(const DropoutArgs &args, int head, int row0, int column0) {
        const DropoutMatrix matrix = dropout_matrix(dropout_site(__ldg(args.key), args.site), head);
        const int row = row0 + thread_row(), column = column0 + thread_column();
        twist = matrix.twist;
        counter = matrix.start + (TRANSPOSED ? dropout_counter(column, row) : dropout_counter(row, column));
#pragma unroll
        for (int odd = 0; odd < 2; odd++)
            factor[odd] = TRANSPOSED ? dropout_factor(odd, row) : dropout_factor(row, odd);
    }
    /* The block so many columns further on. */
    __device__ __forceinline__ void move(int columns) {
        counter += (uint32_t)(columns / 16) * STEP;
    }
};

/* The words of a set: dropout_word, instruction by instruction. */
template <bool TRANSPOSED>
__device__ __forceinline__ void draw_set(uint32_t (&words)[2], const FragmentMask<TRANSPOSED> &mask, int set,
                                         const DropoutArgs &args) {
    const uint2 first = multiply_wide(mask.counter + set * mask.STEP, DROPOUT_FACTOR);
    const uint32_t shared = first.x ^ first.y ^ mask.twist;
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const uint2 second = multiply_wide(shared, mask.factor[odd]);
        const uint32_t sums = ((second.x ^ second.y) & 0x7f7f7f7fu) + args.addend;
        words[odd] = or_xor(sums, second.x, second.y);
    }
}
/* The byte of a set's row (0: the thread's first, 1: that 8 further on) and half of columns. */
template <bool TRANSPOSED> __device__ constexpr int byte_of(int row, int half) {
    return TRANSPOSED ? 2 * half + row : 2 * row + half;
}

/* Bit 31: accumulator i of a set is kept. */
template <bool TRANSPOSED> __device__ __forceinline__ uint32_t kept_bit(const uint32_t (&words)[2], int i) {
    return words[i % 2] << (24 - 8 * byte_of<TRANSPOSED>(i / 2 % 2, i / 4));
}

/* Ones where register i of a set's A operand, a pair of columns, keeps its element. */
template <bool TRANSPOSED> __device__ __forceinline__ uint32_t kept_pair(const uint32_t (&words)[2], int i) {
    return byte_signs(words[0], words[1], byte_of<TRANSPOSED>(i % 2, i / 2) * 0x1111 + 0x4400);
}

/* Of the block's first SETS sets the words or, N being 4, what kept_pair makes of them. It is a branch, always taken, for the
 * compiler: in straight code it moves all this behind the next wait for products, to what comes then, and nothing is done
 * meanwhile. */
template <bool TRANSPOSED, int SETS, int N>
__device__ __forceinline__ void draw_masks(uint32_t (&masks)[SETS][N], const FragmentMask<TRANSPOSED> &mask,
                                           const DropoutArgs &args) {
    if (args.key) {
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            uint32_t words[2];
            draw_set(words, mask, set, args);
#pragma unroll
            for (int i = 0; i < N; i++)
                masks[set][i] = N == 2 ? words[i % 2] : kept_pair<TRANSPOSED>(words, i);
        }
    } else {
#pragma unroll
        for (int i = 0; i < SETS * N; i++) masks[i / N][i % N] = 0;
    }
}

template <bool TRANSPOSED>
__device__ __forceinline__ void drop_set(uint32_t (&p)[4], const uint32_t (&words)[2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] &= kept_pair<TRANSPOSED>(words, i);
}
