/* Attention backward for sm_90a, head sizes 96, 112 and 128, where queries see a pattern of blocks (block_sparse.h): the 1-CTA
 * kernel of sm90_backward_hd128.cu with a list of blocks of queries for each tile in place of a range (tile_visits). Of a
 * block that does not see a warpgroup's keys its dS is 0 (trailing_block). */
#include "sm90_backward_hd128.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <int HEAD> struct Hd128Sparse : Hd128Config<true, 1, HEAD> { static constexpr bool SPARSE = true; };

template <class S>
__device__ __forceinline__ void sparse_tile(Hd128Shared<S> &shared, Hd128Place<S> &place, int row0,
                                            const KernelArgs &args) {
    enum { NONE_BEFORE = 1 << 30, SOME_BEFORE = -1 /* for first_block */ };
    const SparseVisit *visits = args.sparse.visits;
    const TileVisits of_tile = tile_visits(args.sparse, place.work.tile);
    const int mine = SEES_FIRST << place.warpgroup, own = 2 * place.work.tile + place.warpgroup;
    KeyRows<S> r;
    bool begun = false;
#pragma unroll 1
    for (int v = of_tile.begin; v < of_tile.end; v++) {
        const SparseVisit visit = visits[v];
        place.diagonal = visit.block == own;
        if (!(visit.flags & mine)) {
            if (v == of_tile.begin)
                pass_block(shared, place, visit.block);
            else
                trailing_block(r, shared, place, visit.block, args);
        } else if (begun) {
            next_block(r, shared, place, visit.block, args);
        } else {
            first_block(r, shared, place, visit.block, v == of_tile.begin ? NONE_BEFORE : SOME_BEFORE, args);
            begun = true;
        }
        place.before = visit;
        if (v < of_tile.end - 1) place.advance();
    }
    close_tile(r, shared, place, row0, args);
}

template <class S>
__device__ __forceinline__ void sparse_keys(Hd128Shared<S> &shared, const KernelArgs &args, int warpgroup) {
    Hd128Place<S> place;
    start_place(place, shared, warpgroup);
    for (;; place.own.advance()) {
        shared.own_ring.wait(place.own);
        dk_stored(place);
        place.work = read_work(shared.work[0]);
        if (place.work.index < 0) break;
        const int row0 = place.work.tile * S::TILE_ROWS + warpgroup * WG_ROWS;
        if (row0 < args.base.T) {
            sparse_tile(shared, place, row0, args);
        } else { /* the last tile, which one block sees */
            place.before = args.sparse.visits[tile_visits(args.sparse, place.work.tile).begin];
            tile_unseen(shared, place, place.before.block, args);
        }
    }
}

template <class S> struct Hd128SparseKernel : Hd128Kernel<S> {
    static __device__ __forceinline__ void consume(Hd128Shared<S> &shared, const KernelArgs &args,
                                                   int warpgroup) {
        sparse_keys(shared, args, warpgroup);
    }
};

template <int HEAD>
__global__ void __launch_bounds__(Hd128Sparse<HEAD>::THREADS, 1)
    sm90_backward_hd128_sparse_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd128SparseKernel<Hd128Sparse<HEAD>>>(args);
}

#define BACKWARD(name, head_size)                                                                            \
    void name(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv, const float *lse,      \
              const float *d, const AttentionMask *mask, void *scratch, int B, int T, int NH, int HD) {      \
        launch_one_pass<Hd128Sparse<head_size>, Hd128Shared<Hd128Sparse<head_size>>>(                        \
            "sm90_backward_hd128_sparse_kernel", sm90_backward_hd128_sparse_kernel<head_size>,               \
            kernel_args<head_size>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, true, {}, {},            \
                                   mask->sparse));                                                           \
    }

BACKWARD(sm90_backward_hd96_sparse, 96)
BACKWARD(sm90_backward_hd112_sparse, 112)
BACKWARD(sm90_backward_hd128_sparse, 128)
