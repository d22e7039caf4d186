/* Inline PTX for sm_90a: wgmma (PTX ISA, "Asynchronous warpgroup level matrix instructions"). D (64 x N, fp32 registers)
 * = or += A (64 x 16) B (16 x N). A warpgroup is four consecutive warps, the first a multiple of four.
 *
 * clang-format off
 * Warp w of the warpgroup has rows 16w .. 16w+15 of D. With g = lane / 4, t = lane % 4:
 *
 *   D                 register i is row g + 8 * (i / 2 % 2), column 8 * (i / 4) + 2t + i % 2
 *   A in registers    a0 (g, 2t..2t+1)   a1 (g+8, same)   a2 (g, 2t+8..)   a3 (g+8, same)
 *
 * so D, rounded and packed in pairs, is A of the next product without a shuffle.
 * clang-format on */
#pragma once
#include "sm90.cuh"

/* Before the first wgmma of a batch, and whenever its registers were written by other instructions. */
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most PENDING committed groups are under way. Call wgmma_results on every register array that
 * those groups wrote or read before touching it. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* No instruction: keeps the compiler from moving accesses to these registers above the wait. */
template <int N> __device__ __forceinline__ void wgmma_results(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void wgmma_results(uint32_t (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

/* How a wgmma treats D, and how its B lies in shared memory. */
enum WgmmaD { D_SET, D_ADD };
enum WgmmaB { B_K_MAJOR, B_MN_MAJOR };

/* What stands for the first registers of an array: operands, and their places in the text. */
#define WGMMA_8(c, d, i)                                                                                     \
    c((d)[(i)]), c((d)[(i) + 1]), c((d)[(i) + 2]), c((d)[(i) + 3]), c((d)[(i) + 4]), c((d)[(i) + 5]),        \
        c((d)[(i) + 6]), c((d)[(i) + 7])
#define WGMMA_16(c, d, i) WGMMA_8(c, d, i), WGMMA_8(c, d, (i) + 8)
#define WGMMA_24(c, d, i) WGMMA_16(c, d, i), WGMMA_8(c, d, (i) + 16)
#define WGMMA_32(c, d, i) WGMMA_16(c, d, i), WGMMA_16(c, d, (i) + 16)
#define WGMMA_40(c, d, i) WGMMA_32(c, d, i), WGMMA_8(c, d, (i) + 32)
#define WGMMA_48(c, d, i) WGMMA_40(c, d, i), WGMMA_8(c, d, (i) + 40)
#define WGMMA_56(c, d, i) WGMMA_48(c, d, i), WGMMA_8(c, d, (i) + 48)
#define WGMMA_64(c, d, i) WGMMA_32(c, d, i), WGMMA_32(c, d, (i) + 32)
#define WGMMA_128(c, d, i) WGMMA_64(c, d, i), WGMMA_64(c, d, (i) + 64)
#define WGMMA_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_LIST_16 WGMMA_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_LIST_24 WGMMA_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_LIST_32 WGMMA_LIST_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_LIST_40 WGMMA_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_LIST_48 WGMMA_LIST_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_LIST_56 WGMMA_LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_LIST_64 WGMMA_LIST_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_LIST_128                                                                                       \
    WGMMA_LIST_64                                                                                            \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"                       \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"                       \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"           \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* D_SET writes D ("=f"), so the compiler sees that old values are dead; scale-d is a predicate. */
#define WGMMA_TEXT(shape, list, operands, set, flags)                                                        \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " set ", 0;\nwgmma.mma_async.sync.aligned." shape                      \
    ".f32.bf16.bf16 {" list "}, " operands ", p, 1, 1, " flags ";\n}"
#define WGMMA_SS(shape, list, outputs, constraint, set, o0, o1, o2, o3)                                      \
    asm volatile(WGMMA_TEXT(shape, list, o0 ", " o1, set, o2 ", " o3)                                        \
                 : outputs(constraint, d, 0)                                                                 \
                 : "l"(a), "l"(b), "n"(A_MN), "n"((int)B))
#define WGMMA_RS(shape, list, outputs, constraint, set, o0, o1, o2, o3, o4, o5)                              \
    asm volatile(WGMMA_TEXT(shape, list, "{" o0 ", " o1 ", " o2 ", " o3 "}, " o4, set, o5)                   \
                 : outputs(constraint, d, 0)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)B))

/* wgmma(d, a, b) for d of `registers` floats, 64 x n: D = or += A B; the places after those of d. Both from shared memory.
 * A_MN: A is MN-major. */
#define WGMMA_FROM_SHARED(n, registers, o0, o1, o2, o3)                                                      \
    template <WgmmaD D, WgmmaB B, int A_MN = 0>                                                              \
    __device__ __forceinline__ void wgmma(float(&d)[registers], uint64_t a, uint64_t b) {                    \
        if (D == D_SET)                                                                                      \
            WGMMA_SS("m64n" #n "k16", WGMMA_LIST_##registers, WGMMA_##registers, "=f", "0", o0, o1, o2, o3); \
        else                                                                                                 \
            WGMMA_SS("m64n" #n "k16", WGMMA_LIST_##registers, WGMMA_##registers, "+f", "1", o0, o1, o2, o3); \
    }
/* The same with A in registers, which must stay as they are until the product is done. */
#define WGMMA_FROM_REGISTERS(n, registers, o0, o1, o2, o3, o4, o5)                                           \
    template <WgmmaD D, WgmmaB B>                                                                            \
    __device__ __forceinline__ void wgmma(float(&d)[registers], const uint32_t(&a)[4], uint64_t b) {         \
        if (D == D_SET)                                                                                      \
            WGMMA_RS("m64n" #n "k16", WGMMA_LIST_##registers, WGMMA_##registers, "=f", "0", o0, o1, o2, o3,  \
                     o4, o5);                                                                                \
        else                                                                                                 \
            WGMMA_RS("m64n" #n "k16", WGMMA_LIST_##registers, WGMMA_##registers, "+f", "1", o0, o1, o2, o3,  \
                     o4, o5);                                                                                \
    }
WGMMA_FROM_SHARED(16, 8, "%8", "%9", "%10", "%11")
WGMMA_FROM_SHARED(32, 16, "%16", "%17", "%18", "%19")
WGMMA_FROM_SHARED(48, 24, "%24", "%25", "%26", "%27")
WGMMA_FROM_SHARED(64, 32, "%32", "%33", "%34", "%35")
WGMMA_FROM_SHARED(80, 40, "%40", "%41", "%42", "%43")
WGMMA_FROM_SHARED(96, 48, "%48", "%49", "%50", "%51")
WGMMA_FROM_SHARED(128, 64, "%64", "%65", "%66", "%67")
WGMMA_FROM_SHARED(256, 128, "%128", "%129", "%130", "%131")
WGMMA_FROM_REGISTERS(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA_FROM_REGISTERS(80, 40, "%40", "%41", "%42", "%43", "%44", "%45")
WGMMA_FROM_REGISTERS(96, 48, "%48", "%49", "%50", "%51", "%52", "%53")
WGMMA_FROM_REGISTERS(112, 56, "%56", "%57", "%58", "%59", "%60", "%61")
WGMMA_FROM_REGISTERS(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
WGMMA_FROM_REGISTERS(256, 128, "%128", "%129", "%130", "%131", "%132", "%133")
