/* Inline PTX for sm_80 and later: thin wrappers, one instruction each, named after it. Addresses are 32-bit shared-memory
 * addresses: shared_address.
 *
 * clang-format off
 * Fragments (PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix"), with g = lane / 4, t = lane % 4:
 *
 *   A (16 x 16, row)  a0 (g, 2t..2t+1)           a1 (g+8, 2t..)
 *                     a2 (g, 2t+8..)             a3 (g+8, 2t+8..)
 *   B (16 x 8, col)   b0 (k = 2t..2t+1, n = g)   b1 (k = 2t+8.., n = g)
 *   C (16 x 8)        c0, c1 (g, 2t..2t+1)       c2, c3 (g+8, 2t..2t+1)
 *
 * so two neighbouring C blocks, rounded to bf16 and packed, are one A fragment without a shuffle.
 * clang-format on */
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- fp32 ---- */

/* 2^x to 2 ulp; -inf gives 0, NaN stays NaN, subnormal results become 0. */
__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1/x to 1 ulp; 1/inf is 0. */
__device__ __forceinline__ float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* log2(x) to an absolute error of 2^-22; of inf: inf. */
__device__ __forceinline__ float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats to bf16, to nearest even; low half first. */
__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* The low half, x, and the high half, y, of a product. Written in C, as 64 bits, it takes an addition more. */
__device__ __forceinline__ uint2 multiply_wide(uint32_t a, uint32_t b) {
    uint2 product;
    asm("{\n.reg .u64 p;\nmul.wide.u32 p, %2, %3;\nmov.b64 {%0, %1}, p;\n}"
        : "=r"(product.x), "=r"(product.y)
        : "r"(a), "r"(b));
    return product;
}

/* x * y + z of pairs of bf16, rounded once, to nearest even. */
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t x, uint32_t y, uint32_t z) {
    uint32_t sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
    return sum;
}
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
    return fma_bf16x2(a, b, 0x80008000u /* -0 */);
}

/* The larger ones; of a NaN and a number the number; 0 is above -0. */
__device__ __forceinline__ uint32_t max_bf16x2(uint32_t a, uint32_t b) {
    uint32_t larger;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

/* These are in registers from here on, not made anew where they are used. */
template <int N> __device__ __forceinline__ void keep(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]));
}

/* ---- flags between devices ---- */

__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t *p) {
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

__device__ __forceinline__ void store_release_system(uint32_t *p, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

/* ---- loads ---- */

/* += of a word that many add to, and that word; in no order with other accesses. */
__device__ __forceinline__ void add_relaxed(uint64_t *global, uint64_t x) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(global), "l"(x) : "memory");
}
__device__ __forceinline__ void store_relaxed_8(uint64_t *global, uint64_t x) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(global), "l"(x) : "memory");
}
__device__ __forceinline__ uint64_t load_relaxed_8(const uint64_t *global) {
    uint64_t x;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(global) : "memory");
    return x;
}

/* 16 bytes that are read once: nothing of it stays in L1. Loads stand where they are written: none moves behind a
 * barrier or a wait, nor is a wait moved before them, as ptxas does where the load is ld.global.nc. */
__device__ __forceinline__ int4 ld_global_once(const void *global) {
    int4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(global));
    return v;
}

/* ld_global_once for 8 bytes. */
__device__ __forceinline__ uint2 ld_global_once_8(const void *global) {
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(global));
    return v;
}

/* ld_global_once, or zeros where valid is false. */
__device__ __forceinline__ int4 ld_global_once_if(bool valid, const void *global) {
    int4 v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@p ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(global), "r"((uint32_t)valid));
    return v;
}

/* Brings the line into L2. */
__device__ __forceinline__ void prefetch_to_l2(const void *global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/* ---- cp.async (sm_80): global to shared without registers ---- */

/* Copies 16 bytes, or writes 16 zero bytes and reads nothing where valid is false. */
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* cp_async_16 of what is read once: in L2 it is the first to go. */
__device__ __forceinline__ void cp_async_16_once(uint32_t shared, const void *global, bool valid) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared),
                 "l"(global), "r"(valid ? 16 : 0), "l"(policy)
                 : "memory");
}

/* cp_async_16 for 8 bytes. */
__device__ __forceinline__ void cp_async_8(uint32_t shared, const void *global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(valid ? 8 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of this thread's committed groups are still under way. */
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- ldmatrix (sm_75): four 8 x 8 bf16 matrices; lane l gives the address of row l % 8 of matrix l / 8 ---- */

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

/* ---- mma.sync (sm_80): c += a b, bf16 operands (a has four registers), fp32 sums ---- */

__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
