/* Attention backward for sm_90a, head size 128: tiles, producers, kernel and launch. One block of queries:
 * sm90_backward_hd128_step.cuh. What the kernel does and why: sm90_backward_hd128.cu. */
#pragma once
#include "sm90_backward_hd128_step.cuh"

/* ---- tiles ---- */

/* The blocks of queries that see keys of the tile or pair end before this one. */
template <class C>
__device__ __forceinline__ int end_of_tile(const Hd128Place<C> &place, const KernelArgs &args) {
    return C::SPARSE ? place.before.block + 1 : C::RANGES ? place.end : args.dq_sums.blocks;
}

/* What is left when all blocks are done: dQ of the last, if it is owned, and dV, dQ and dK leave, in this order. */
template <class C>
__device__ __forceinline__ void close_tile(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                           int row0, const KernelArgs &args) {
    const int NH = args.base.NH, last = end_of_tile(place, args) - 1,
              half = WG_ROWS * 128 /* bytes, of a tile's */;
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup); /* all its warps have multiplied by V */
    queue_key_rows<C>(args.gradients, shared_address(shared.v[place.warpgroup]), r.dv,
                      C::DROPS ? args.dropout.kept_scale : 1.0f, 2, place.work, row0, NH);
    if (place.owns(last)) {
        const Ring<C::DS_STAGES> ds_at = place.ds_at(last, place.step);
        shared.ds_ring.wait(ds_at);
        wgmma_fence();
        multiply_dq(r, shared, place, ds_at);
        release_stored(shared.v_ring);
        wgmma_wait<0>();
        shared.own_ring.release(place.own);
        hand_on_dq(r, shared, place, last, place.step, args);
        dq_stored(shared, place, last, args);
    } else {
        shared.own_ring.release(place.own);
        release_stored(shared.v_ring);
    }
    if (C::PAIRED)
        named_barrier_sync<WARPGROUP>(1 +
                                      place.warpgroup); /* all its warps have multiplied by their half of K */
    else
        shared.ds_ring.wait_free(place.ds_at(last + 2, place.step + 2)); /* dQ of both warpgroups is done */
    place.advance();
    /* dK leaves from the warpgroup's part of dS of two blocks, or its half of the other tile's K: half from each of two
     * places */
    const uint32_t from = C::PAIRED ? shared_address(shared.other_k) : shared_address(shared.ds);
    const uint32_t dk = from + place.warpgroup * half + threadIdx.x % WARPGROUP / 64 * (C::TILE_BYTES - half);
    queue_key_rows<C>(args.gradients, dk, r.dk, args.base.scale, 1, place.work, row0, NH);
}

/* The same where no block sees the warpgroup's keys: only its half of dQ. */
template <class C>
__device__ __forceinline__ void close_unseen(KeyRows<C> &r, Hd128Shared<C> &shared, Hd128Place<C> &place,
                                             const KernelArgs &args) {
    const int last = end_of_tile(place, args) - 1;
    shared.v_ring.wait(place.own);
    release_stored(shared.v_ring);
    if (C::PAIRED) shared.other_k_ring.wait(place.own); /* whoever does not wait might be a phase behind */
    if (place.owns(last)) drain_dq(r, shared, place, last, args);
    shared.own_ring.release(place.own);
}

/* A tile; blocks cluster_first .. end_of_tile - 1 see keys of the cluster, first .. blocks - 1 the warpgroup's. */
template <class C>
__device__ __forceinline__ void tile_blocks(Hd128Shared<C> &shared, Hd128Place<C> &place, int row0,
                                            int cluster_first, int first, const KernelArgs &args) {
    const int blocks = C::RANGES ? place.own_end : args.dq_sums.blocks;
    KeyRows<C> r;
    write_bias(r, row0, args.base.T);
    if constexpr (C::DROPS) place.mask.begin_tile(shared.masks[0], row0, cluster_first * WG_ROWS);
    if (!C::PAIRED && first > cluster_first) /* by one block */
        skip_block(r, shared, place, cluster_first, cluster_first, args);
#pragma unroll 1
    for (int block = cluster_first; C::PAIRED && block < first; block++)
        skip_block(r, shared, place, block, cluster_first, args);
    if (C::PAIRED && first == blocks) return close_unseen(r, shared, place, args);
    first_block(r, shared, place, first, cluster_first, args);
#pragma unroll 1
    for (int block = first + 1; block < blocks; block++) {
        place.advance();
        place.ends.block = block;
        if (C::PAIRED && place.owns(block))
            owned_block(r, shared, place, block, args);
        else
            next_block(r, shared, place, block, args);
    }
#pragma unroll 1
    for (int block = blocks; C::RANGES && block < place.end; block++) {
        place.advance();
        trailing_block(r, shared, place, block, args);
    }
    close_tile(r, shared, place, row0, args);
}

/* 1-CTA: a tile none of whose blocks, there is one, sees the warpgroup's keys. */
template <class C>
__device__ __forceinline__ void tile_unseen(Hd128Shared<C> &shared, Hd128Place<C> &place, int cluster_first,
                                            const KernelArgs &args) {
    KeyRows<C> r;
    skip_block(r, shared, place, cluster_first, cluster_first, args);
    close_unseen(r, shared, place, args);
}

/* Where a warpgroup begins. */
template <class C>
__device__ __forceinline__ void start_place(Hd128Place<C> &place, Hd128Shared<C> &shared, int warpgroup) {
    place.warpgroup = warpgroup;
    if constexpr (C::DROPS) place.mask.begin_thread();
    place.k = uniform_descriptor(shared_address(shared.k[warpgroup]));
    place.v = uniform_descriptor(shared_address(shared.v[warpgroup]));
    place.k_half = uniform_descriptor(shared_address(shared.k) + warpgroup * (WG_ROWS * 128));
    if (C::PAIRED) place.chunk = anew(first_chunk());
    write_ones(place.ones);
}

template <class C>
__device__ __forceinline__ void hd128_keys(Hd128Shared<C> &shared, const KernelArgs &args, int warpgroup) {
    const int T = args.base.T;
    Hd128Place<C> place;
    start_place(place, shared, warpgroup);
    for (;; place.own.advance()) {
        shared.own_ring.wait(place.own);
        if (C::PAIRED) /* dK of the tile before has left */
            release_stored(shared.other_k_ring);
        else
            dk_stored(place);
        place.work = read_work(shared.work[0]);
        if (place.work.index < 0) break;
        const int tile = place.work.tile, row0 = tile * C::TILE_ROWS + warpgroup * WG_ROWS;
        const int cluster_first = first_queries<C>(tile / C::CLUSTER * C::CLUSTER_ROWS, T);
        const int first = C::CAUSAL || C::PAIRED ? first_queries<C>(row0, T) : cluster_first;
        if constexpr (C::RANGES) {
            const TileQueries queries = tile_queries<C>(place.work, args);
            place.end = queries.end;
            place.last_from = queries.last_from;
            place.own_end =
                C::PAIRED   ? end_queries<C>(args.seen, place.work.batch, row0, WG_ROWS, args.dq_sums.blocks)
                : warpgroup ? queries.end
                            : queries.first_end;
            place.ends = query_ends(args.seen, place.work.batch, row0, first);
        }
        if (C::PAIRED || first < args.dq_sums.blocks)
            tile_blocks(shared, place, row0, cluster_first, first, args);
        else
            tile_unseen(shared, place, cluster_first, args);
        const int n = end_of_tile(place, args) - cluster_first;
        place.owned += (n + 1 - tile % 2) / 2;
        place.sent += (n + tile % 2) / 2;
    }
}

/* ---- producers ---- */

__device__ unsigned hd128_tickets;

/* A tile of K or V. head: its columns in qkv. SECOND: where its second chunk begins in the head. */
template <class C, int SECOND>
__device__ __forceinline__ void load_tile(const uint8_t (&to)[C::WARPGROUPS][C::TILE_BYTES], int tile,
                                          int head, int batch, uint32_t full, const KernelArgs &args) {
    for (int i = 0; i < C::WARPGROUPS; i++) {
        const int row = tile * C::TILE_ROWS + i * WG_ROWS;
        if constexpr (C::KEY_PAIRS)
            load_key_pairs<C>(to[i], args.keys, (int64_t)batch * args.base.T + row, head, full);
        else
            load_own_rows<C, SECOND>(to[i], args.base.rows, row, head, batch, full, WG_ROWS);
    }
}

/* A block's own V and K, which tile it is, and K of the pair's other. */
template <class C>
__device__ __forceinline__ void load_keys(Hd128Shared<C> &shared, Ring<1> at, const Work &work,
                                          const KernelArgs &args) {
    const int bytes = C::WARPGROUPS * C::TILE_BYTES, k_head = args.base.NH + work.head;
    const uint32_t v_full = shared.v_ring.acquire(at, bytes);
    load_tile<C, 64>(shared.v, work.tile, args.base.NH + k_head, work.batch, v_full, args);
    shared.own_ring.wait_free(at);
    shared.work[0] = work;
    if constexpr (C::DROPS) shared.masks[0] = head_mask(args.dropout, work.batch * args.base.NH + work.head);
    const uint32_t k_full = shared.own_ring.expect(at, bytes);
    load_tile<C, C::FIRST_COLUMNS>(shared.k, work.tile, k_head, work.batch, k_full, args);
    if constexpr (C::PAIRED) {
        shared.other_k_ring.wait_free(at.next()); /* it is released when a tile begins */
        const uint32_t other_k_full = shared.other_k_ring.expect(at, bytes);
        load_tile<C, C::FIRST_COLUMNS>(shared.other_k, work.tile ^ 1, k_head, work.batch, other_k_full, args);
    }
}

/* A block of queries: Q with its LseDRow; dO. */
template <class C>
__device__ __forceinline__ void load_queries_block(Hd128Shared<C> &shared, Hd128QueriesAt<C> at,
                                                   const Work &work, int block, const LseDRow *lse_d,
                                                   const BackwardArgs &args) {
    const uint32_t q_full = acquire<C>(shared.q_ring, at.q, C::TILE_BYTES + C::LSE_D_BYTES);
    load_rows<C>(shared.q[at.q.stage], args.rows, block * WG_ROWS, work.head, work.batch, q_full, WG_ROWS);
    load_bytes<C>(shared.lse_d[at.q.stage], lse_d + block * WG_ROWS, C::LSE_D_BYTES, q_full);
    const uint32_t dout_full = acquire<C>(shared.dout_ring, at.dout, C::TILE_BYTES);
    load_rows<C>(shared.dout[at.dout.stage], args.dout, block * WG_ROWS, work.head, work.batch, dout_full,
                 WG_ROWS);
}

template <class C>
__device__ __forceinline__ void load_queries(Hd128Shared<C> &shared, Hd128QueriesAt<C> &at, const Work &work,
                                             int row0, const KernelArgs &all_args) {
    const BackwardArgs &args = all_args.base;
    const LseDRow *lse_d = args.lse_d + ((int64_t)work.batch * args.NH + work.head) * padded_rows(args.T);
    if constexpr (C::SPARSE) {
        const TileVisits visits = tile_visits(all_args.sparse, work.tile);
#pragma unroll 1
        for (int v = visits.begin; v < visits.end; v++, at.q.advance(), at.dout.advance())
            load_queries_block(shared, at, work, all_args.sparse.visits[v].block, lse_d, args);
        return;
    }
    const int blocks =
        end_queries<C>(all_args.seen, work.batch, row0, C::CLUSTER_ROWS, ceil_div(args.T, (int)WG_ROWS));
    for (int block = first_queries<C>(row0, args.T); block < blocks;
         block++, at.q.advance(), at.dout.advance())
        load_queries_block(shared, at, work, block, lse_d, args);
}

/* Hands on what the other block sends, for all blocks of a tile that are owned: it is written by ordinary accesses,
 * and the product is none, so there must be a fence between them; here it costs no warpgroup time (in those, 0.5 to 1
 * % of speed). */
template <class C>
__device__ __forceinline__ void receive_ds(Hd128Shared<C> &shared, Ring<1> &received, const Work &work,
                                           const KernelArgs &args) {
    const int T = args.base.T, row0 = work.tile / 2 * C::CLUSTER_ROWS;
    const int end = end_queries<C>(args.seen, work.batch, row0, C::CLUSTER_ROWS, ceil_div(T, (int)WG_ROWS));
    const uint32_t bytes = shared_address(&shared.other_ds_bytes);
    for (int block = first_queries<C>(row0, T) + work.tile % 2; block < end;
         block += C::ADDED_TILES, received.advance()) {
        mbarrier_arrive_expect_tx(bytes, C::WARPGROUPS * C::DS_BYTES);
        mbarrier_wait(bytes, received.parity);
        fence_proxy_async();
        mbarrier_arrive(shared_address(&shared.ds_ring.full[0]));
    }
}

/* ---- kernel and launch ---- */

template <class C> struct Hd128Kernel : C {
    typedef Hd128Shared<C> Shared;
    typedef KernelArgs Args;
    static constexpr bool UNIFORM_SHARED = true;

    static __device__ __forceinline__ void init(Shared &shared) {
        enum {
            WARPS = 4 * C::WARPGROUPS,
            WRITERS = C::WARPGROUPS * WARPGROUP /* every thread: release_stored */
        };
        shared.own_ring.init(WARPS + C::WARPGROUPS);
        shared.v_ring.init(WRITERS);
        shared.q_ring.init(C::CLUSTER * WARPS);
        shared.dout_ring.init(C::CLUSTER * WARPS);
        shared.ds_ring.init(WARPS, WARPS + C::PAIRED /* receive_ds */);
        if (C::PAIRED) {
            shared.other_k_ring.init(WRITERS);
            mbarrier_init(shared_address(&shared.other_ds_bytes), 1);
            mbarrier_init(shared_address(&shared.sent_empty), WARPS);
            shared.next.ring.init(C::CLUSTER);
        }
        for (auto &buffers : shared.dq_buffers) buffers.init();
    }
    static __device__ __forceinline__ void produce(Shared &shared, const Args &args, int warp) {
        if (warp == 0 && (!C::PAIRED || cluster_rank() == 0)) produce_tiles<C>(shared, args, &hd128_tickets);
        if (C::PAIRED && warp == 3) {
            Ring<1> received;
            produce_keys<C>(shared, args,
                            [&](const Work &work) { receive_ds(shared, received, work, args); });
        }
        if (warp >= 1 && warp <= C::WARPGROUPS)
            reduce_dq<C>(shared, shared.dq_buffers[warp - 1], 0, warp - 1, args, GlobalSemaphore{});
    }
    static __device__ __forceinline__ void consume(Shared &shared, const Args &args, int warpgroup) {
        hd128_keys(shared, args, warpgroup);
    }
};

template <bool CAUSAL, int CLUSTER, int HEAD>
__global__ void __launch_bounds__(Hd128Config<CAUSAL, CLUSTER, HEAD>::THREADS, 1)
    sm90_backward_hd128_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd128Kernel<Hd128Config<CAUSAL, CLUSTER, HEAD>>>(args);
}

template <class C>
static void launch_hd128(const char *name, void (*kernel)(KernelArgs), KernelArgs &args, floatX *dqkv,
                         int B) {
    args.dq_sums.tiles = ceil_div(args.dq_sums.tiles, C::ADDED_TILES);
    if (C::PAIRED) make_dq_maps(args, dqkv, B, args.base.T, args.base.NH, C::HD, WG_ROWS);
    launch_one_pass<C, Hd128Shared<C>>(name, kernel, args);
}

template <bool CAUSAL, int CLUSTER, int HEAD = 128>
static void backward_hd128(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                           const float *lse, const float *d, void *scratch, int B, int T, int NH) {
    KernelArgs args = kernel_args<HEAD>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, CAUSAL);
    launch_hd128<Hd128Config<CAUSAL, CLUSTER, HEAD>>(
        "sm90_backward_hd128_kernel", sm90_backward_hd128_kernel<CAUSAL, CLUSTER, HEAD>, args, dqkv, B);
}
