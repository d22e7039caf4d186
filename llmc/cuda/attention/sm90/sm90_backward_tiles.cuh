/* Tiles of the one-pass backward kernels: who draws them, who loads, who adds up dQ. In a 2-CTA cluster the thread blocks
 * own neighbouring tiles of a head, 2p and 2p + 1, and walk the same blocks of queries, which the first one loads for both.
 *
 * Shared is a kernel's shared memory: own_ring and work[] (a tile's K), next (in clusters). The kernel's own functions:
 *   load_keys(shared, at, work, args)          the keys of a tile, and work, into stage `at` of own_ring
 *   load_queries(shared, at, work, row0, args) all blocks of queries that see the tile's keys, which begin at row0; moves
 *                                              at, QueriesAt, on */
#pragma once
#include "sm90_dq_semaphore.cuh"

/* ---- which pair ---- */

/* Index of the next tile or pair. */
template <class C> __device__ __forceinline__ int draw_work(unsigned *tickets, int total) {
    return C::CLUSTER > 1 ? (int)atomicInc(tickets, total + gridDim.x / C::CLUSTER - 1)
                          : draw_tile(tickets, total);
}

/* Index of the first. Without clusters it is not drawn: the grid is no larger than the SMs, so all thread blocks run at
 * once. A cluster draws its first pair, too: one that cannot start yet must own none, or the others would wait
 * for its dQ. Each cluster draws until there are no more, and then the counter is back at 0. */
template <class C> __device__ __forceinline__ int first_work(unsigned *tickets, int total) {
    return C::CLUSTER > 1 ? draw_work<C>(tickets, total) : blockIdx.x;
}

/* In clusters: a block's next tile, whose blocks of queries the producer has begun to load. */
struct NextWork {
    RingBarriers<1> ring;
    Work work;
};

/* Tells each block of a cluster its tile. work.tile: number of the pair. */
template <class C>
__device__ __forceinline__ void publish_work(NextWork &next, Ring<1> at, const Work &work) {
    next.ring.wait_free(at);
    const uint32_t full = expect<C>(next.ring, at, sizeof(Work), sizeof(Work));
    for (int rank = 0; rank < C::CLUSTER; rank++)
        store_async_16(cluster_address(shared_address(&next.work), rank),
                       make_int4(work.index, C::CLUSTER * work.tile + rank, work.head, work.batch),
                       cluster_address(full, rank));
}

/* One thread of each block. */
__device__ __forceinline__ Work receive_work(NextWork &next, Ring<1> at) {
    next.ring.wait(at);
    const Work work = next.work;
    mbarrier_arrive_cluster(shared_address(&next.ring.empty[0]), 0);
    return work;
}

/* ---- the dQ semaphore of a pair, where each tile adds for itself (head size 64) ---- */

/* Between the tiles of a pair, of one column block: tile 2p + 1 tells tile 2p by a barrier, and tile 2p adds two to the
 * semaphore. (If each did, through L2, a step would take 50 to 140 clocks more, as measured at head size 128
 * when its tiles still added one by one.) BARRIERS: more than lie between them. */
template <int BARRIERS> struct PairSemaphore {
    uint32_t here, at_first; /* the barriers; those of the cluster's first block */
    bool leads;              /* tile 2p + 1 */
    unsigned n;              /* signalled, waited for, or left to another reducer */

    __device__ __forceinline__ void wait(const unsigned *semaphore_at, unsigned value, bool is_first) {
        if (leads || is_first) return wait_semaphore(semaphore_at, value);
        mbarrier_wait_cluster(here + n % BARRIERS * 8, n / BARRIERS & 1);
        fence_proxy_async_global();
        n++;
    }
    __device__ __forceinline__ void signal(unsigned *semaphore_at, bool is_first) {
        if (!leads) return add_release(semaphore_at, is_first ? 1 : 2);
        mbarrier_arrive_release_at(at_first + n % BARRIERS * 8);
        n++;
    }
    __device__ __forceinline__ void skip(bool is_first) { n += leads || !is_first; }
};

/* The semaphore of a reducer. pair_barriers: those of its column block, at the same address in both blocks. */
template <class C, int BARRIERS>
__device__ __forceinline__ auto semaphore_of(uint64_t (&pair_barriers)[BARRIERS]) {
    if constexpr (C::CLUSTER > 1) {
        const uint32_t here = shared_address(pair_barriers);
        return PairSemaphore<BARRIERS>{here, cluster_address(here, 0), cluster_rank() == 1, 0};
    } else {
        return GlobalSemaphore{};
    }
}

/* ---- producers ---- */

template <class Shared, int OWN> __device__ __forceinline__ void end_keys(Shared &shared, Ring<OWN> at) {
    shared.own_ring.wait_free(at);
    shared.work[at.stage].index = -1;
    shared.own_ring.expect(at, 0);
}

/* TURNS: the last wave, from index `begin` on, is turned round: the longest begin first, so that all end at about the same
 * time. (In the order in which they add, the longest begins last, and the other SMs are idle for half of it.) A pair of it may
 * wait for one that is drawn later: so each cluster has just one of them, its last, and all of them run at once. Where every
 * tile adds, each waits too long for the one before it: nothing is gained (head size 64, T = 32768). */
template <class C> __device__ __forceinline__ int turned(int index, int begin, int total) {
    return !C::TURNS || index < begin ? index : total - 1 - (index - begin);
}

/* Which tile is drawn in place of `tile`, drawn in falling order: those at the start come first, in the order in which they
 * add to dQ. */
__device__ __forceinline__ int sparse_tile_of(const KernelArgs &args, int tile) {
    const int tiles = args.base.order.tiles, first = min(sparse_first_tiles(args.sparse.pattern), tiles);
    const int rank = tiles - 1 - tile;
    return rank < first ? rank : tile + first;
}

/* Where KEY_PAIRS, the producer: 64 keys of K or V, of 16 the 8 even ones and then the odd ones. map: KernelArgs.keys; head: of
 * those of qkv; row: of (B,T). */
template <class C>
__device__ __forceinline__ void load_key_pairs(const uint8_t *to, const CUtensorMap &map, int64_t row,
                                               int head, uint32_t full) {
    tma_load_5d(shared_address(to), &map, head * C::HD, 0, 0, (int)(row / 16), 0, full);
}

/* One thread of a cluster. A tile is drawn when it is about to start, not earlier: see sm90_dq_semaphore.cuh. Who finds no
 * more tiles before the last wave has drawn his tile of it. */
template <class C, class Shared>
__device__ __forceinline__ void produce_tiles(Shared &shared, const KernelArgs &args, unsigned *tickets) {
    const int total = args.base.order.total, begin = C::TURNS ? total - args.last_wave : total;
    Ring<1> next_at;
    Ring<C::OWN> own_at;
    typename Shared::QueriesAt at;
    for (int index = first_work<C>(tickets, begin); index < total; own_at.advance(), next_at.advance()) {
        Work work = work_at(args.base.order, turned<C>(index, begin, total));
        if constexpr (C::SPARSE) work.tile = sparse_tile_of(args, work.tile);
        if (C::CLUSTER > 1)
            publish_work<C>(shared.next, next_at, work);
        else
            load_keys(shared, own_at, work, args);
        load_queries(shared, at, work, work.tile * C::CLUSTER * C::TILE_ROWS, args);
        index = !C::TURNS || index < begin ? draw_work<C>(tickets, begin) : total;
    }
    if (C::CLUSTER > 1)
        publish_work<C>(shared.next, next_at, Work{-1, 0, 0, 0});
    else
        end_keys(shared, own_at);
}

/* In clusters: one thread of each block, for its own keys; then what else there is to do for the tile. */
template <class C, class Shared, class Then>
__device__ __forceinline__ void produce_keys(Shared &shared, const KernelArgs &args, Then then) {
    Ring<1> next_at;
    Ring<C::OWN> own_at;
    for (;; own_at.advance(), next_at.advance()) {
        const Work work = receive_work(shared.next, next_at);
        if (work.index < 0) break;
        load_keys(shared, own_at, work, args);
        then(work);
    }
    end_keys(shared, own_at);
}

/* ---- reducers: one thread for each buffer of partial dQ ---- */

/* Where tiles add as one, a reducer has every C::ADDED_TILES-th block of queries. */
template <class C, class Shared, class Semaphore, class Buffers>
__device__ __forceinline__ void reduce_dq(Shared &shared, Buffers &buffers, int buffer, int column_block,
                                          const KernelArgs &args, Semaphore semaphore) {
    Ring<C::OWN> own_at;
    DqRings<Buffers::COUNT> at;
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = shared.work[own_at.stage];
        if (work.index < 0) break;
        mbarrier_arrive(shared_address(&shared.own_ring.empty[own_at.stage]));
        if constexpr (C::RANGES || C::SPARSE) {
            const DqPlace place = dq_place(args.dq_sums, work.batch * args.base.NH + work.head, column_block);
            if constexpr (C::SPARSE)
                reduce_visits(buffers, at, buffer, args, work, place);
            else
                reduce_range<C>(buffers, at, buffer, args, work, place);
            continue;
        }
        const int tile = work.tile / C::ADDED_TILES;
        const int first = first_queries<C>(tile * C::ADDED_TILES * C::TILE_ROWS, args.base.T);
        reduce_tile<C>(buffers, at, buffer, args.dq_sums, work.batch * args.base.NH + work.head, column_block,
                       tile, first + work.tile % C::ADDED_TILES, semaphore);
    }
}
