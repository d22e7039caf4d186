/* The next token of one sequence where the largest logit is all that is asked for, and the kernel that makes the logits looks
 * for it as well: each of its warps tells its own largest one. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* Floats as integers in the same order; NaN is below everything. */
__device__ __forceinline__ uint32_t order_key(float x) {
    const uint32_t bits = __float_as_uint(x);
    return isnan(x) ? 0 : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* A word of some bf16 logits, from bit 63 on: the largest one's key, 16 bits; the lowest id that has it, subtracted from MAX_ID;
 * whether any is not finite; 16 bits of the launch's number, the tag. So the largest word has the token, and who polls words
 * knows which have come. */
enum { WORD_KEY_AT = 48, WORD_ID_AT = 17, WORD_BAD_AT = 16, MAX_ID = 0x7fffffff, MAX_WORDS = 1024 };
__device__ __forceinline__ uint64_t largest_word(uint32_t key, int id, bool any_bad, uint16_t tag) {
    return (uint64_t)(key >> 16) << WORD_KEY_AT | (uint64_t)(MAX_ID - id) << WORD_ID_AT |
           (uint64_t)any_bad << WORD_BAD_AT | tag;
}

typedef struct LargestArgs {
    const uint64_t *words; /* (n), at most MAX_WORDS */
    int n;
    uint16_t tag;
    const bf16 *wte; /* (V,C): the row of the token is brought to L2 */
    int C;
} LargestArgs;

inline bool draws_largest(const DrawArgs *args) {
    return !(args->temperature > 0) || args->top_k == 1;
}
/* As draw_tokens, where draws_largest; of one sequence, from words. */
template <typename T> void draw_largest(const DrawArgs *args);
void draw_largest(const DrawArgs *args, const LargestArgs *largest);
