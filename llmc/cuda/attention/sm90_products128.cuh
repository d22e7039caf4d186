/* The products that both forms of attention backward for sm_90a in one pass, head size 128, have in common
 * (sm90_backward_fused128.cuh, sm90_backward_pairs128.cuh). Operands in shared memory are places: the low halves of
 * descriptors, in uniform registers. */
#pragma once
#include "sm90_keys.cuh"

/* acc = or += a step of 16 columns of K or V times those of Q or dO. */
__device__ __forceinline__ void multiply_columns(float (&acc)[ROWS / 2], uint32_t rows, uint32_t queries,
                                                 int step) {
    const uint32_t at = step / 4 * (ROWS * 128 >> 4) + step % 4 * 2;
    if (step == 0)
        wgmma<D_SET, B_K_MAJOR>(acc, swizzled(rows), swizzled(queries));
    else
        wgmma<D_ADD, B_K_MAJOR>(acc, swizzled(rows + at), swizzled(queries + at));
}

/* S - lse / scale or dP - D: a warpgroup's rows of K or V times a block of Q or dO, and the folded step, whose A is
 * `ones` and whose B, of k 8..15, where A is 0, is that of k 0..7 again. */
template <class C>
__device__ __forceinline__ void multiply_scores(float (&acc)[ROWS / 2], uint32_t rows, uint32_t queries,
                                                const uint32_t (&ones)[4], uint32_t fold) {
#pragma unroll
    for (int i = 0; i < C::HD / 16; i++) multiply_columns(acc, rows, queries, i);
    wgmma<D_ADD, B_K_MAJOR>(acc, ones, unswizzled(fold, 0));
    wgmma_commit();
}

/* dV += P^T dO or dK += dS^T Q. */
template <class C>
__device__ __forceinline__ void multiply_gradient(float (&d)[C::HD / 2], const uint32_t (&a)[ROWS / 16][4],
                                                  const uint8_t *queries) {
    const uint32_t b = uniform_place(shared_address(queries)) + (ROWS * 128 >> 4 << 16);
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) wgmma<D_ADD, B_MN_MAJOR>(d, a[i], swizzled(b + i * (2048 >> 4)));
    wgmma_commit();
}
