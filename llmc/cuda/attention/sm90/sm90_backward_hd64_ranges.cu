/* Attention backward for sm_90a, head sizes 64 and 80, where queries do not see all keys before them: the 1-CTA kernel of
 * sm90_backward_hd64.cuh, in which a tile's blocks of queries end where no query sees its keys.
 *
 * The first half of a tile's keys has the first block of queries alone, the second half mostly the last; with a window both
 * have as many. So halves are not exchanged, and a warpgroup takes a turn of the ping-pong only for a block that sees its
 * keys. Where one half has fewer, its warpgroup takes the turns that it lacks without a product, for turns alternate. */
#include "sm90_backward_hd64.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <int HEAD> struct Hd64Ranges : Hd64Config<true, true, false, HEAD> {
    static constexpr bool RANGES = true, EXCHANGE = false;
};

/* ---- the warpgroups that own keys ---- */

template <class R> __device__ __forceinline__ void empty_turn(const KeyPlace<R> &place) {
    pingpong_wait(place);
    pingpong_pass(place);
}

/* Blocks of queries that see none of the warpgroup's keys, and turns of the other warpgroup. */
template <class R>
__device__ __forceinline__ void skip_blocks(Hd64Shared<R> &shared, KeyPlace<R> &place, Ring<R::STAGES> &at,
                                            int count, int turns) {
    for (int i = 0; i < count; i++, at.advance()) {
        shared.queries.ring.wait(at);
        if (i < turns) empty_turn(place);
        shared.queries.ring.release(at);
        shared.ds_ring.wait_free(ring_after(place.ds_blocks));
        signal_ds(shared, place);
    }
    for (int i = count; i < turns; i++) empty_turn(place);
}

/* The blocks of a tile that see the warpgroup's keys: `mine` from `first` on. */
template <class R>
__device__ __forceinline__ void walk_tile(KeyRows<R> &r, Hd64Shared<R> &shared, KeyPlace<R> &place,
                                          Ring<R::STAGES> &at, const Work &work, int first, int mine,
                                          int stage, TileBefore &before, const KernelArgs &args) {
    place.k = shared_address(shared.own[stage].k[place.warpgroup]);
    place.ds = ds_row(shared, place.warpgroup);
    place.ends = query_ends(args.seen, work.batch, first * WG_ROWS, first);
    if constexpr (R::K_IN_REGISTERS) load_fragments(r.k, place.k);
    open_tile(r, shared, place, at, stage, before, args);
#pragma unroll 1
    for (place.ends.block++; place.ends.block < first + mine; place.ends.block++) {
        next_queries_block<R, false>(r, shared.queries, place, args.base.scale_log2, args.dropout);
        store_ds(r.ds, shared, place);
        release_stored(shared, stage ^ 1, before);
    }
    release_stored(shared, stage ^ 1, before); /* if there was no other block */
    at = place.at.next();
    before.work = work;
}

template <class R>
__device__ __forceinline__ void range_keys(Hd64Shared<R> &shared, const KernelArgs &args, int warpgroup) {
    Ring<R::OWN> own_at;
    Ring<R::STAGES> at; /* the next block of queries */
    KeyPlace<R> place;
    KeyRows<R> r;
    place.warpgroup = warpgroup;
    place.ds_blocks = 0;
    if (warpgroup == 1) pingpong_pass(place); /* the other is the first */
    TileBefore before = {{-1}, false};
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work[own_at.stage]);
        if (work.index < 0) break;
        const TileQueries queries = tile_queries<R>(work, args);
        const int counts[2] = {queries.first_end - queries.first, queries.end - queries.first - 1};
        const int mine = warpgroup ? counts[1] : counts[0];
        const int turns = max(0, (warpgroup ? counts[0] : counts[1]) - mine); /* that it lacks */
        const int stage = own_at.stage, first = queries.first + warpgroup;
        if (mine == 0) { /* its keys are beyond the sequence. First the tile before, which holds a stage */
            close_tile(r, shared, place, stage ^ 1, before, warpgroup, args);
            skip_blocks(shared, place, at, queries.end - queries.first, turns);
            shared.own_ring.release(own_at);
            continue;
        }
        skip_blocks(shared, place, at, first - queries.first, 0);
        walk_tile(r, shared, place, at, work, first, mine, stage, before, args);
        const int trail = queries.end - first - mine;
        if (trail > R::STAGES - 2) /* the stage that the last block holds would come round */
            close_tile(r, shared, place, stage, before, warpgroup, args);
        skip_blocks(shared, place, at, trail, turns);
    }
    close_tile(r, shared, place, own_at.stage ^ 1, before, warpgroup, args);
}

/* ---- the warpgroup that computes dQ ---- */

template <class R> __device__ __forceinline__ void range_dq(Hd64Shared<R> &shared, const KernelArgs &args) {
    Ring<R::OWN> own_at;
    Ring<2> at;
    DqRings<DQ_BUFFERS> dq_rings;
    bool last = false; /* the tile was the last to add to the block before, whose dQ leaves by TMA */
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work[own_at.stage]);
        if (work.index < 0) break;
        const TileQueries queries = tile_queries<R>(work, args);
        const uint32_t k = shared_address(shared.own[own_at.stage].k);
#pragma unroll 1
        for (int block = queries.first; block < queries.end; block++, at.advance()) {
            float dq[R::HD / 2];
            const uint32_t ds = shared_address(shared.ds[at.stage]);
            shared.ds_ring.wait(at);
            fence_proxy_async(); /* dS^T, which the other warpgroups have written */
            if (last) dq_stored(shared, dq_rings);
            const bool second = block > queries.first;
            multiply_seen_ds<R>(dq, ds, k, second && block < queries.first_end, second);
            shared.ds_ring.release(at);
            last = block >= queries.last_from;
            if (last)
                finish_dq(shared, dq_rings, dq, work, block, partials_of<R>(args, work.tile, block), args);
            else
                publish_partial_dq(shared.dq_buffers, dq_rings, dq);
        }
        shared.own_ring.release(own_at);
    }
    if (last) dq_stored(shared, dq_rings);
}

/* ---- kernel and launch ---- */

template <class R> struct Hd64RangesKernel : Hd64Kernel<R> {
    static __device__ __forceinline__ void assist(Hd64Shared<R> &shared, const KernelArgs &args) {
        range_dq(shared, args);
    }
    static __device__ __forceinline__ void consume(Hd64Shared<R> &shared, const KernelArgs &args,
                                                   int warpgroup) {
        range_keys(shared, args, warpgroup);
    }
};

template <int HEAD>
__global__ void __launch_bounds__(Hd64Ranges<HEAD>::THREADS, 1)
    sm90_backward_hd64_ranges_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd64RangesKernel<Hd64Ranges<HEAD>>>(args);
}

#define BACKWARD(name, head_size)                                                                            \
    void name(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv, const float *lse,      \
              const float *d, const AttentionMask *mask, void *scratch, int B, int T, int NH, int HD) {      \
        using C = Hd64Ranges<head_size>;                                                                     \
        launch_one_pass<C, Hd64Shared<C>>(                                                                   \
            "sm90_backward_hd64_ranges_kernel", sm90_backward_hd64_ranges_kernel<head_size>,                 \
            kernel_args<head_size, false, C::ATOM_COLUMNS>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH,  \
                                                           true, seen_keys(mask, T)));                       \
    }

BACKWARD(sm90_backward_hd64_ranges, 64)
BACKWARD(sm90_backward_hd80_ranges, 80)
