/* Attention backward for sm_90a, head sizes 64 and 80, where queries see a pattern of blocks (block_sparse.h): the 1-CTA
 * kernel of sm90_backward_hd64.cuh with a list of blocks of queries for each tile in place of a range (tile_visits).
 *
 * Many blocks see one half of a tile's keys alone, so the warpgroups take no turns: while one passes blocks, the other
 * multiplies. A warpgroup holds the last block that saw its keys until the next, whose products are queued with the
 * gradients of that one. Where the ring would come round to it, the gradients go first. */
#include "sm90_backward_hd64.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <int HEAD> struct Hd64Sparse : Hd64Config<true, true, false, HEAD> {
    static constexpr bool SPARSE = true, EXCHANGE = false;
};

/* Blocks between the one that is held and the next. */
template <class S> constexpr int MOST_PASSED = S::STAGES - 2;

/* ---- the warpgroups that own keys ---- */

/* Blocks of queries that see none of the warpgroup's keys. */
template <class S>
__device__ __forceinline__ void pass_blocks(Hd64Shared<S> &shared, KeyPlace<S> &place, Ring<S::STAGES> &at,
                                            int count) {
    for (int i = 0; i < count; i++, at.advance()) {
        shared.queries.ring.wait(at);
        shared.queries.ring.release(at);
        shared.ds_ring.wait_free(ring_after(place.ds_blocks));
        signal_ds(shared, place);
    }
}

/* From visit v on, which is the warpgroup's first, to its last, whose number is returned. own: the block of queries where
 * its keys lie. */
template <class S>
__device__ __forceinline__ int walk_visits(KeyRows<S> &r, Hd64Shared<S> &shared, KeyPlace<S> &place,
                                           Ring<S::STAGES> &at, int v, int own, int stage, TileBefore &before,
                                           const KernelArgs &args) {
    const int mine = SEES_FIRST << place.warpgroup, ends = ENDS_FIRST << place.warpgroup;
    SparseVisit visit = args.sparse.visits[v];
    place.diagonal = visit.block == own;
    open_tile(r, shared, place, at, stage, before, args);
    at.advance();
    bool held = true; /* the block at place.at */
#pragma unroll 1
    while (!(visit.flags & ends)) {
        for (int passed = 0;; passed++) {
            visit = args.sparse.visits[++v];
            if (held && passed > MOST_PASSED<S>) {
                last_gradients(r, shared.queries, place);
                held = false;
            }
            if (visit.flags & mine) break;
            pass_blocks(shared, place, at, 1);
        }
        place.diagonal = visit.block == own;
        if (held) {
            step_to_block<S, false, true>(r, shared.queries, place, at, args.base.scale_log2, args.dropout);
        } else {
            place.at = at;
            start_at_block<S, true>(r, shared.queries, place, args.base.scale_log2, args.dropout);
            held = true;
        }
        at.advance();
        store_ds(r.ds, shared, place);
        release_stored(shared, stage ^ 1, before);
    }
    release_stored(shared, stage ^ 1, before); /* if there was no other block */
    return v;
}

template <class S>
__device__ __forceinline__ void sparse_keys(Hd64Shared<S> &shared, const KernelArgs &args, int warpgroup) {
    Ring<S::OWN> own_at;
    Ring<S::STAGES> at; /* the next block of queries */
    KeyPlace<S> place;
    KeyRows<S> r;
    place.warpgroup = warpgroup;
    place.ds_blocks = 0;
    TileBefore before = {{-1}, false};
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work[own_at.stage]);
        if (work.index < 0) break;
        const TileVisits visits = tile_visits(args.sparse, work.tile);
        const int stage = own_at.stage;
        if (work.tile * S::TILE_ROWS + warpgroup * WG_ROWS >=
            args.base.T) { /* its keys are beyond the sequence */
            close_tile(r, shared, place, stage ^ 1, before, warpgroup, args); /* first: it holds a stage */
            pass_blocks(shared, place, at, visits.end - visits.begin);
            shared.own_ring.release(own_at);
            continue;
        }
        int lead = 0;
        while (!(args.sparse.visits[visits.begin + lead].flags & SEES_FIRST << warpgroup)) lead++;
        if (lead > 1) close_tile(r, shared, place, stage ^ 1, before, warpgroup, args);
        pass_blocks(shared, place, at, lead);
        place.k = shared_address(shared.own[stage].k[warpgroup]);
        place.ds = ds_row(shared, warpgroup);
        if constexpr (S::K_IN_REGISTERS) load_fragments(r.k, place.k);
        const int last = walk_visits(r, shared, place, at, visits.begin + lead, 2 * work.tile + warpgroup,
                                     stage, before, args);
        const int trail = visits.end - 1 - last;
        before.work = work;
        if (trail + 1 > MOST_PASSED<S>) close_tile(r, shared, place, stage, before, warpgroup, args);
        pass_blocks(shared, place, at, trail);
    }
    close_tile(r, shared, place, own_at.stage ^ 1, before, warpgroup, args);
}

/* ---- the warpgroup that computes dQ ---- */

template <class S> __device__ __forceinline__ void sparse_dq(Hd64Shared<S> &shared, const KernelArgs &args) {
    Ring<S::OWN> own_at;
    Ring<2> at;
    DqRings<DQ_BUFFERS> dq_rings;
    bool last = false; /* the tile was the last to add to the block before, whose dQ leaves by TMA */
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work[own_at.stage]);
        if (work.index < 0) break;
        const TileVisits visits = tile_visits(args.sparse, work.tile);
        const uint32_t k = shared_address(shared.own[own_at.stage].k);
#pragma unroll 1
        for (int v = visits.begin; v < visits.end; v++, at.advance()) {
            float dq[S::HD / 2];
            const SparseVisit visit = args.sparse.visits[v];
            const int seen = visit.flags & (SEES_FIRST | SEES_SECOND);
            const uint32_t ds = shared_address(shared.ds[at.stage]);
            shared.ds_ring.wait(at);
            fence_proxy_async(); /* dS^T, which the other warpgroups have written */
            if (last) dq_stored(shared, dq_rings);
            multiply_seen_ds<S>(dq, ds, k, seen == (SEES_FIRST | SEES_SECOND), seen == SEES_SECOND);
            shared.ds_ring.release(at);
            last = visit.flags & ADDS_LAST;
            if (last)
                finish_dq(shared, dq_rings, dq, work, visit.block, visit.before + 1, args);
            else
                publish_partial_dq(shared.dq_buffers, dq_rings, dq);
        }
        shared.own_ring.release(own_at);
    }
    if (last) dq_stored(shared, dq_rings);
}

/* ---- kernel and launch ---- */

template <class S> struct Hd64SparseKernel : Hd64Kernel<S> {
    static __device__ __forceinline__ void assist(Hd64Shared<S> &shared, const KernelArgs &args) {
        sparse_dq(shared, args);
    }
    static __device__ __forceinline__ void consume(Hd64Shared<S> &shared, const KernelArgs &args,
                                                   int warpgroup) {
        sparse_keys(shared, args, warpgroup);
    }
};

template <int HEAD>
__global__ void __launch_bounds__(Hd64Sparse<HEAD>::THREADS, 1)
    sm90_backward_hd64_sparse_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd64SparseKernel<Hd64Sparse<HEAD>>>(args);
}

#define BACKWARD(name, head_size)                                                                            \
    void name(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv, const float *lse,      \
              const float *d, const AttentionMask *mask, void *scratch, int B, int T, int NH, int HD) {      \
        using C = Hd64Sparse<head_size>;                                                                     \
        launch_one_pass<C, Hd64Shared<C>>(                                                                   \
            "sm90_backward_hd64_sparse_kernel", sm90_backward_hd64_sparse_kernel<head_size>,                 \
            kernel_args<head_size, false, C::ATOM_COLUMNS>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH,  \
                                                           true, {}, {}, mask->sparse));                     \
    }

BACKWARD(sm90_backward_hd64_sparse, 64)
BACKWARD(sm90_backward_hd80_sparse, 80)
