/* Inline PTX for sm_90a but wgmma: mbarrier, TMA, clusters, named barriers, setmaxnreg; thin wrappers, one instruction each.
 * Shared-memory addresses are 32-bit: shared_address.
 *
 * Tiles. Rows of 64 bf16 (128 bytes), 1024-byte aligned, their 16-byte chunks permuted by TMA's SWIZZLE_128B:
 * chunk c of row r lies at c ^ (r & 7). Tiles of 16 bf16 (32 bytes a row, SWIZZLE_32B, aligned to 256): at c ^ (r >> 2 & 1).
 * Wider matrices are several such tiles, one for each 64, or 16, columns. */
#pragma once
#include <cuda.h>
#include "llmc/cuda/device/delay.cuh"
#include "sm80.cuh"

/* ---- masks of pairs of bf16: ones in the halves where it is so ---- */

/* a < b, or either is NaN. */
__device__ __forceinline__ uint32_t less_bf16x2(uint32_t a, uint32_t b) {
    uint32_t mask;
    asm("set.ltu.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
__device__ __forceinline__ uint32_t zero_bf16x2(uint32_t a) {
    uint32_t mask;
    asm("set.eq.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(0));
    return mask;
}

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

/* Arrives for this thread, once all that it has asked for by cp.async so far is there. The barrier counts each thread. */
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier) {
    delay();
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
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
/* To L2 alone. */
__device__ __forceinline__ void bulk_prefetch(const void *global, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
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

/* Three dimensions. */
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

/* As tma_store_3d. */
__device__ __forceinline__ void tma_store_5d(const CUtensorMap *map, int x0, int x1, int x2, int x3, int x4,
                                             uint32_t shared) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map),
        "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(shared)
        : "memory");
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

/* The same value, made anew as far as the compiler knows: it keeps nothing that follows from it. */
__device__ __forceinline__ uint32_t anew(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
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

/* Its halves, of which the first orders nothing: for barriers behind fence_mbarrier_init. */
__device__ __forceinline__ void cluster_arrive() {
    delay();
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
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

/* Starts writing 8 or 16 bytes, and reports them to a barrier of the same block. */
__device__ __forceinline__ void store_async_8(uint32_t mapped, uint2 x, uint32_t mapped_barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
            mapped),
        "r"(x.x), "r"(x.y), "r"(mapped_barrier)
        : "memory");
}
__device__ __forceinline__ void store_async_16(uint32_t mapped, int4 x, uint32_t mapped_barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(mapped),
                 "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(mapped_barrier)
                 : "memory");
}

/* bulk_load from this block's shared memory to another's: addresses by cluster_address, but of the source. */
__device__ __forceinline__ void bulk_copy_cluster(uint32_t mapped, uint32_t shared, uint32_t bytes,
                                                  uint32_t mapped_barrier) {
    delay();
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            mapped),
        "r"(shared), "r"(bytes), "r"(mapped_barrier)
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

/* ---- programmatic dependent launch (sm_90) ---- */

/* Once all blocks have called it or ended, a next launch that asked for an early start may begin. */
__device__ __forceinline__ void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/* Until the launch before has ended and what it wrote can be read; at once where this launch did not ask for
 * an early start. */
__device__ __forceinline__ void wait_on_dependency() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    delay();
}
