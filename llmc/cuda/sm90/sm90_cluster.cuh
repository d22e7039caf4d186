/* Clusters of C::CLUSTER blocks that share what their one producer loads. It is in the first block, and a stage of a
 * ring has its `full` barrier in each block and one `empty`, the producer's: a stage is free when the warps of all
 * blocks have released it. C::CLUSTER 1: blocks alone, with a producer each. */
#pragma once
#include "sm90_common.cuh"

/* Until all barriers of the cluster are ready. */
template <class C> __device__ __forceinline__ void open_cluster() {
    if (C::CLUSTER > 1)
        cluster_sync();
    else
        __syncthreads();
}
/* Nobody reaches into a block that has gone. */
template <class C> __device__ __forceinline__ void close_cluster() {
    if (C::CLUSTER > 1) {
        __syncwarp();
        cluster_sync();
    }
}

/* Producer: says how many bytes come to this block's stage and to that of each other block. Returns the barrier to
 * which they are reported, at the same address in all. */
template <class C, int STAGES>
__device__ __forceinline__ uint32_t expect(RingBarriers<STAGES> &ring, Ring<STAGES> at, uint32_t bytes,
                                           uint32_t bytes_elsewhere) {
    const uint32_t full = ring.expect(at, bytes);
    for (int rank = 1; rank < C::CLUSTER; rank++)
        mbarrier_arrive_expect_tx_at(cluster_address(full, rank), bytes_elsewhere);
    return full;
}

/* Producer: waits until the stage is free; then the same bytes come to all blocks. */
template <class C, int STAGES>
__device__ __forceinline__ uint32_t acquire(RingBarriers<STAGES> &ring, Ring<STAGES> at, uint32_t bytes) {
    ring.wait_free(at);
    return expect<C>(ring, at, bytes, bytes);
}

template <class C> constexpr uint16_t ALL_BLOCKS = (1 << C::CLUSTER) - 1; /* of a cluster, a bit for each */

/* Boxes that a head's rows take: MapKey. */
template <class C> constexpr int HEAD_BOXES = C::HD % C::ATOM_COLUMNS ? tile_columns(C::HD) / 64 : 1;

/* Producer: a head's rows, `rows` of them, to this block. Of several boxes each begins SECOND columns after the one before. */
template <class C, int SECOND = 64>
__device__ __forceinline__ void load_own_rows(const uint8_t *to, const CUtensorMap &map, int position,
                                              int head, int batch, uint32_t full, int rows) {
#pragma unroll
    for (int i = 0; i < HEAD_BOXES<C>; i++)
        tma_load_5d(shared_address(to) + i * rows * 128, &map, i * SECOND, position, 0, head, batch, full);
}

/* The same, to the blocks of the cluster whose bits are set. */
template <class C>
__device__ __forceinline__ void load_rows(const uint8_t *to, const CUtensorMap &map, int position, int head,
                                          int batch, uint32_t full, int rows,
                                          uint16_t blocks = ALL_BLOCKS<C>) {
    if constexpr (C::CLUSTER == 1) {
        load_own_rows<C>(to, map, position, head, batch, full, rows);
    } else {
#pragma unroll
        for (int i = 0; i < HEAD_BOXES<C>; i++)
            tma_multicast_5d(shared_address(to) + i * rows * 128, &map, i * 64, position, 0, head, batch,
                             full, blocks);
    }
}

/* Producer: contiguous bytes, to all blocks. */
template <class C>
__device__ __forceinline__ void load_bytes(const void *to, const void *from, uint32_t bytes, uint32_t full) {
    if (C::CLUSTER > 1)
        bulk_multicast(shared_address(to), from, bytes, full, ALL_BLOCKS<C>);
    else
        bulk_load(shared_address(to), from, bytes, full);
}

/* Consumers: RingBarriers::release, where the producer waits. */
template <class C, int STAGES>
__device__ __forceinline__ void release(RingBarriers<STAGES> &ring, Ring<STAGES> at) {
    if (C::CLUSTER == 1) {
        ring.release(at);
        return;
    }
    __syncwarp(); /* lane 0's arrival then stands for the reads of all 32 */
    if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(shared_address(&ring.empty[at.stage]), 0);
}
