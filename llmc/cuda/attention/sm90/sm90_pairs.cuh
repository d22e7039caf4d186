/* Pairs of neighbouring tiles of a head, 2p and 2p + 1, in one-pass backward: a cluster of two blocks walks the same
 * blocks of queries, and its first block loads them for both (sm90_cluster.cuh). */
#pragma once
#include "llmc/cuda/sm90/sm90_cluster.cuh"
#include "sm90_turns.cuh"

/* ---- which pair ---- */

/* Index of the next tile or pair. */
template <class C> __device__ __forceinline__ int draw_work(unsigned *tickets, int total) {
    return C::CLUSTER > 1 ? (int)atomicInc(tickets, total + gridDim.x / C::CLUSTER - 1)
                          : draw_tile(tickets, total);
}

/* Of the first. A pair is drawn then, too: a cluster that cannot start yet must have none, or the others would wait
 * for its turns. Each cluster draws until there are no more, and then the counter is back at 0. */
template <class C> __device__ __forceinline__ int first_work(unsigned *tickets, int total) {
    return C::CLUSTER > 1 ? draw_work<C>(tickets, total) : blockIdx.x;
}

/* In clusters: a block's next tile, whose blocks of queries the producer has begun to load. */
struct NextWork {
    RingBarriers<1> ring;
    Work work;
};

/* Tells each block of a cluster its tile. work.tile: number of the pair. */
template <class C> __device__ __forceinline__ void tell_work(NextWork &next, Ring<1> at, const Work &work) {
    next.ring.wait_free(at);
    const uint32_t full = expect<C>(next.ring, at, sizeof(Work), sizeof(Work));
    for (int rank = 0; rank < C::CLUSTER; rank++)
        store_async_16(cluster_address(shared_address(&next.work), rank),
                       make_int4(work.index, C::CLUSTER * work.tile + rank, work.head, work.batch),
                       cluster_address(full, rank));
}

/* One thread of each block. */
__device__ __forceinline__ Work told_work(NextWork &next, Ring<1> at) {
    next.ring.wait(at);
    const Work work = next.work;
    mbarrier_arrive_cluster(shared_address(&next.ring.empty[0]), 0);
    return work;
}

/* ---- the turns of its tiles, where each adds for itself (head size 64) ---- */

/* Turns between the tiles of a pair, of one stream: tile 2p + 1 tells its pair by a barrier, and tile 2p adds both
 * turns to the count. (If each did, through L2, a step would take 50 to 140 clocks more, as measured at head size 128
 * when its tiles still added one by one.) TURNS: more than lie between them. */
template <int TURNS> struct PairTurns {
    uint32_t here, at_first; /* the barriers; those of the cluster's first block */
    bool leads;              /* tile 2p + 1 */
    unsigned n;              /* passed, waited for, or left to another adder */

    __device__ __forceinline__ void wait(const unsigned *count, unsigned turn, bool is_first) {
        if (leads || is_first) return wait_turn(count, turn);
        mbarrier_wait_cluster(here + n % TURNS * 8, n / TURNS & 1);
        fence_proxy_async_global();
        n++;
    }
    __device__ __forceinline__ void pass(unsigned *count, bool is_first) {
        if (!leads) return add_release(count, is_first ? 1 : 2);
        mbarrier_arrive_release_at(at_first + n % TURNS * 8);
        n++;
    }
    __device__ __forceinline__ void skip(bool is_first) { n += leads || !is_first; }
};

/* How an adder of the kernel hands turns over. pair_turns: the barriers of its stream, at one place in both blocks. */
template <class C, int TURNS> __device__ __forceinline__ auto handover_of(uint64_t (&pair_turns)[TURNS]) {
    if constexpr (C::CLUSTER > 1) {
        const uint32_t here = shared_address(pair_turns);
        return PairTurns<TURNS>{here, cluster_address(here, 0), cluster_rank() == 1, 0};
    } else {
        return CountedTurns{};
    }
}
