/* Inline PTX of the paths for sm_80 and later: thin wrappers, one instruction each, named after it.
 *
 * Fragment maps (PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix"), with g = lane / 4, t = lane % 4:
 *
 *     A (16 x 16, row)   a0 (g, 2t..2t+1)             a1 (g+8, 2t..2t+1)
 *                        a2 (g, 2t+8..2t+9)           a3 (g+8, 2t+8..2t+9)
 *     B (16 x 8, col)    b0 (k = 2t..2t+1, n = g)     b1 (k = 2t+8..2t+9, n = g)
 *     C (16 x 8)         c0, c1 (g, 2t..2t+1)         c2, c3 (g+8, 2t..2t+1)
 *
 * So two neighbouring C blocks, rounded to bf16 and packed, are one A fragment without a shuffle.
 * All addresses are 32-bit shared-memory addresses, see shared_address. */
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>
#include "llmc/cuda/device/delay.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- cp.async (sm_80): global to shared without registers ---- */

/* Copies 16 bytes, or writes 16 zero bytes and reads nothing where valid is false. */
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* The same for 8 bytes. */
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

/* ---- ex2: 2^x to 2 ulp in one instruction; -inf gives 0, NaN stays NaN, subnormal results become 0 ---- */

__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ==== sm_90a: mbarrier, TMA, wgmma, setmaxnreg, named barriers; only for code that is compiled for sm_90a.
 *
 * Shared-memory addresses are 32-bit, see shared_address. A warpgroup is four consecutive warps, the first a
 * multiple of four.
 *
 * Tiles. Rows of 64 bf16 (128 bytes), 1024-byte aligned, their 16-byte chunks permuted by TMA's SWIZZLE_128B:
 * chunk c of row r lies at c ^ (r & 7). Wider matrices are several such tiles, one for each 64 columns.
 *
 * wgmma (PTX ISA, "Asynchronous warpgroup level matrix instructions"): D (64 x N, fp32 registers) = or += A
 * (64 x 16) B (16 x N). Warp w of the warpgroup has rows 16w .. 16w+15 of D; with g = lane / 4, t = lane % 4,
 * register i is row g + 8 * (i / 2 % 2),  column 8 * (i / 4) + 2t + i % 2 and A in registers is a0 (g,
 * 2t..2t+1), a1 (g+8, same), a2 (g, 2t+8..), a3 (g+8, same): D, rounded and packed in pairs, is A of the next
 * product without a shuffle. */

/* ---- mbarrier: 8 bytes in shared memory ---- */

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Makes this thread's mbarrier_init visible to TMA; other threads need a __syncthreads after it. */
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    delay();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and holds the phase until TMA has written `bytes`. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    delay();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* True once the phase of this parity has completed. The first phase has parity 0; parity 1 passes at once on
 * a fresh barrier. */
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* With -DBOUNDED_WAIT a wait that takes far too long faults by a store to address 0 instead of hanging the
 * device. (A trap in the loop makes ptxas serialise every wgmma of the kernel, C7512; a store does not.) */
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#ifdef BOUNDED_WAIT
    for (int tries = 0; !mbarrier_try_wait(barrier, parity); tries++)
        if (tries == 1 << 18) asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(0) : "memory");
#else
    while (!mbarrier_try_wait(barrier, parity)) {
    }
#endif
    delay();
}

/* ---- TMA: bulk copies by the hardware, each issued by one thread ---- */

/* Starts copying the map's box at (x0, .., x4), x0 the fastest dimension; what lies outside the tensor
 * becomes 0. The barrier counts the whole box's bytes. */
__device__ __forceinline__ void tma_load_5d(uint32_t shared, const CUtensorMap *map, int x0, int x1, int x2,
                                            int x3, int x4, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared),
                 "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(barrier)
                 : "memory");
}

/* Starts copying `bytes` contiguous bytes; addresses and size are multiples of 16. */
__device__ __forceinline__ void bulk_load(uint32_t shared, const void *global, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared),
        "l"(global), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Orders accesses to shared memory, own or known of by a barrier, before later ones by TMA and wgmma. */
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* The same for global memory. */
__device__ __forceinline__ void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* From shared to global memory: = and += of fp32. Addresses and size are multiples of 16. */
__device__ __forceinline__ void bulk_store(void *global, uint32_t shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_add_f32(void *global, uint32_t shared, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
                 "r"(shared), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until at most PENDING of this thread's committed groups are not done; _read: have not read their source. */
template <int PENDING> __device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING> __device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* ---- between blocks, through global memory ---- */

__device__ __forceinline__ unsigned load_acquire(const unsigned *p) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
__device__ __forceinline__ void add_release(unsigned *p, unsigned x) {
    delay();
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

/* ---- stmatrix: four 8 x 8 bf16 matrices; lane l gives the address of row l % 8 of matrix l / 8 ---- */

__device__ __forceinline__ void stmatrix_x4(uint32_t shared, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* The same, each matrix transposed. */
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t shared, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- warpgroups ---- */

/* All four warps of the warpgroup execute it. inc waits until other warpgroups have given enough registers
 * back. */
template <int REGISTERS> __device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Barrier `id` (1..15; 0 is __syncthreads) completes when THREADS threads have synced or arrived. */
template <int THREADS> __device__ __forceinline__ void named_barrier_sync(int id) {
    delay();
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void named_barrier_arrive(int id) {
    delay();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

/* Low half first. */
__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* ---- wgmma ---- */

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

/* The same value, made anew as far as the compiler knows: it keeps nothing that follows from it. */
__device__ __forceinline__ uint32_t anew(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* How a wgmma treats D, and how its B lies in shared memory. */
enum WgmmaD { D_SET, D_ADD };
enum WgmmaB { B_K_MAJOR, B_MN_MAJOR };

#define WGMMA_8(c, d, i)                                                                                     \
    c((d)[(i)]), c((d)[(i) + 1]), c((d)[(i) + 2]), c((d)[(i) + 3]), c((d)[(i) + 4]), c((d)[(i) + 5]),        \
        c((d)[(i) + 6]), c((d)[(i) + 7])
#define WGMMA_32(c, d, i)                                                                                    \
    WGMMA_8(c, d, i), WGMMA_8(c, d, (i) + 8), WGMMA_8(c, d, (i) + 16), WGMMA_8(c, d, (i) + 24)
#define WGMMA_64(c, d, i) WGMMA_32(c, d, i), WGMMA_32(c, d, (i) + 32)
#define WGMMA_LIST_32                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "   \
    "%22, %23, "                                                                                             \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_LIST_64                                                                                        \
    WGMMA_LIST_32                                                                                            \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "      \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

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

/* D (64 x 64 or 64 x 128, by the size of d) = or += A B, both from shared memory. A_MN: A is MN-major. */
template <WgmmaD D, WgmmaB B, int A_MN = 0>
__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b) {
    if (D == D_SET)
        WGMMA_SS("m64n64k16", WGMMA_LIST_32, WGMMA_32, "=f", "0", "%32", "%33", "%34", "%35");
    else
        WGMMA_SS("m64n64k16", WGMMA_LIST_32, WGMMA_32, "+f", "1", "%32", "%33", "%34", "%35");
}
template <WgmmaD D, WgmmaB B, int A_MN = 0>
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b) {
    if (D == D_SET)
        WGMMA_SS("m64n128k16", WGMMA_LIST_64, WGMMA_64, "=f", "0", "%64", "%65", "%66", "%67");
    else
        WGMMA_SS("m64n128k16", WGMMA_LIST_64, WGMMA_64, "+f", "1", "%64", "%65", "%66", "%67");
}
/* The same with A in registers, which must stay as they are until the product is done. */
template <WgmmaD D, WgmmaB B>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    if (D == D_SET)
        WGMMA_RS("m64n64k16", WGMMA_LIST_32, WGMMA_32, "=f", "0", "%32", "%33", "%34", "%35", "%36", "%37");
    else
        WGMMA_RS("m64n64k16", WGMMA_LIST_32, WGMMA_32, "+f", "1", "%32", "%33", "%34", "%35", "%36", "%37");
}
template <WgmmaD D, WgmmaB B>
__device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    if (D == D_SET)
        WGMMA_RS("m64n128k16", WGMMA_LIST_64, WGMMA_64, "=f", "0", "%64", "%65", "%66", "%67", "%68", "%69");
    else
        WGMMA_RS("m64n128k16", WGMMA_LIST_64, WGMMA_64, "+f", "1", "%64", "%65", "%66", "%67", "%68", "%69");
}

/* D (64 x 256) = or += A B, both from shared memory. */
#define WGMMA_128(c, d, i) WGMMA_64(c, d, i), WGMMA_64(c, d, (i) + 64)
#define WGMMA_LIST_128                                                                                       \
    WGMMA_LIST_64                                                                                            \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"                       \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"                       \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"           \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
template <WgmmaD D, WgmmaB B, int A_MN = 0>
__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b) {
    if (D == D_SET)
        WGMMA_SS("m64n256k16", WGMMA_LIST_128, WGMMA_128, "=f", "0", "%128", "%129", "%130", "%131");
    else
        WGMMA_SS("m64n256k16", WGMMA_LIST_128, WGMMA_128, "+f", "1", "%128", "%129", "%130", "%131");
}

/* ---- clusters: blocks that run together and reach into each other's shared memory ---- */

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Barrier of all threads of the cluster; orders their accesses to shared memory. */
__device__ __forceinline__ void cluster_sync() {
    delay();
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* Where the block `rank` of the cluster has what lies at this address here. */
__device__ __forceinline__ uint32_t cluster_address(uint32_t shared, uint32_t rank) {
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(rank));
    return mapped;
}

/* These take addresses made by cluster_address. _release: for what this thread has written, too; a MEMBAR.GPU a call */
__device__ __forceinline__ void mbarrier_arrive_release_at(uint32_t mapped) {
    delay();
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx_at(uint32_t mapped, uint32_t bytes) {
    delay();
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(mapped), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank) {
    delay();
    const uint32_t mapped = cluster_address(barrier, rank);
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

/* mbarrier_wait for what a thread of another block wrote before mbarrier_arrive_release_at. */
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
    mbarrier_wait(barrier, parity); /* does not acquire; then this one passes at once */
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Starts writing 16 bytes, and reports them to a barrier of the same block. */
__device__ __forceinline__ void store_async_16(uint32_t mapped, int4 x, uint32_t mapped_barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(mapped),
                 "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(mapped_barrier)
                 : "memory");
}

/* bulk_load and tma_load_5d to the same addresses of every block of the cluster whose bit of `blocks` is set; they
 * report to the barrier at the same address of each. */
__device__ __forceinline__ void bulk_multicast(uint32_t shared, const void *global, uint32_t bytes,
                                               uint32_t barrier, uint16_t blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier), "h"(blocks)
                 : "memory");
}
__device__ __forceinline__ void tma_multicast_5d(uint32_t shared, const CUtensorMap *map, int x0, int x1,
                                                 int x2, int x3, int x4, uint32_t barrier, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
        "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(barrier), "h"(blocks)
        : "memory");
}

/* ---- TMA, three dimensions ---- */

__device__ __forceinline__ void tma_load_3d(uint32_t shared, const CUtensorMap *map, int x0, int x1, int x2,
                                            uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
                 "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(barrier)
                 : "memory");
}

/* As tma_multicast_5d. */
__device__ __forceinline__ void tma_multicast_3d(uint32_t shared, const CUtensorMap *map, int x0, int x1,
                                                 int x2, uint32_t barrier, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
        "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(barrier), "h"(blocks)
        : "memory");
}

/* What lies outside the tensor is not written. */
__device__ __forceinline__ void tma_store_3d(const CUtensorMap *map, int x0, int x1, int x2,
                                             uint32_t shared) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(x0), "r"(x1), "r"(x2), "r"(shared)
                 : "memory");
}

/* ---- rcp: 1/x to 1 ulp; 1/inf is 0 ---- */

__device__ __forceinline__ float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* As tma_store_3d. */
__device__ __forceinline__ void tma_store_5d(const CUtensorMap *map, int x0, int x1, int x2, int x3, int x4,
                                             uint32_t shared) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map),
        "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(shared)
        : "memory");
}

/* ---- lg2: log2(x) to an absolute error of 2^-22; of inf: inf ---- */

__device__ __forceinline__ float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- programmatic dependent launch (sm_90) ---- */

/* Once all blocks have called it or ended, a next launch that asked for an early start may begin. */
__device__ __forceinline__ void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/* Until the launch before has ended and what it wrote can be read; at once where this launch did not ask for
 * an early start. */
__device__ __forceinline__ void wait_on_dependency() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
