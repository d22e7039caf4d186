/* Attention backward for sm_90a, head size 128, blocks alone (see sm90_backward.cuh for the math and the folded step,
 * sm90_turns.cuh for how shares of dQ are added). For long T clusters of two blocks share loads and add as one
 * (sm90_backward_hd128_2cta.cuh); for shorter T they cost more, at a tile's start and end, than they save.
 *
 * A tile is 128 keys, 64 for each of two warpgroups, which walk the blocks of 64 queries from the diagonal on.
 * A warpgroup keeps dK and dV of its keys in registers, and computes half of the columns of the block's share
 * of dQ = dS K: dS of both warpgroups goes through shared memory. A warpgroup's products, for each block j:
 *
 *     S(j)  dP(j)  dV(j)  dQ(j-1)  dK(j)
 *
 * The exponentials are taken under dP, dS is computed under dV, dQ leaves the registers under dK, so but for a
 * moment after dK one product is always under way. dQ is one block late, so a warpgroup does not wait for dS of
 * the other, and dQ can have the registers of dP. dV, dK and dQ leave by TMA, from where V, dS and dQ's sums were:
 * the next tile's V comes while dQ of the last block is multiplied, its K while that dQ and dK leave. */
#pragma once
#include "sm90_backward_hd128.cuh"

template <bool CAUSAL> using OneCtaConfig = Config128<CAUSAL, 3, 1>;

template <class C> struct alignas(1024) OneCtaShared {
    uint8_t k[C::WARPGROUPS][C::TILE_BYTES], v[C::WARPGROUPS][C::TILE_BYTES]; /* v: then dV */
    uint8_t q[C::STAGES][C::TILE_BYTES], dout[2][C::TILE_BYTES];
    uint8_t ds[2][C::WARPGROUPS][C::DS_BYTES]; /* dS of 64 queries x 128 keys, of two blocks; then dK */
    uint8_t fold[C::STAGES][C::FOLD_BYTES];    /* with Q */
    TurnBuffers<1, 32> turns[C::WARPGROUPS];
    RingBarriers<1> k_ring, v_ring;
    RingBarriers<C::STAGES> q_ring;
    RingBarriers<2> dout_ring, ds_ring;
    Work work; /* with K */
};

/* Where a warpgroup is. */
template <class C> struct OneCtaPlace {
    Work work;
    int warpgroup;
    uint32_t k, v;       /* places of the warpgroup's keys */
    uint32_t k_half;     /* of its columns of K, all keys of the tile */
    uint32_t ones[2][4]; /* A of the folded step: 1 where FoldRow has -lse / scale; where it has -D */
    int step = 0;        /* blocks before the one in work, of all tiles */
    Ring<C::STAGES> q;   /* of the block in work */
    Ring<1> own;
    TurnAt<1> turns;

    /* For sm90_backward_hd128.cuh. */
    __device__ __forceinline__ Ring<C::STAGES> q_at() const { return q; }
    __device__ __forceinline__ Ring<2> dout_at() const { return ring_after(step); }
    __device__ __forceinline__ uint32_t k_rows() const { return k; }
    __device__ __forceinline__ uint32_t v_rows() const { return v; }

    __device__ __forceinline__ void advance() {
        q.advance();
        step++;
    }
};

/* The warpgroup's 64 columns of dQ = dS K over the tile's 128 keys, in the registers of dP. */
template <class C>
__device__ __forceinline__ void multiply_dq(KeyRows<C> &r, OneCtaShared<C> &shared,
                                            const OneCtaPlace<C> &place, int ds_stage) {
    const uint32_t a = uniform_place(shared_address(shared.ds[ds_stage]));
#pragma unroll
    for (int i = 0; i < C::TILE_ROWS / 16; i++) {
        const uint32_t b = place.k_half + i / 4 * (C::TILE_BYTES >> 4) + i % 4 * (2048 >> 4);
        if (i == 0)
            wgmma<D_SET, B_MN_MAJOR>(r.dp, swizzled(a), swizzled(b));
        else
            wgmma<D_ADD, B_MN_MAJOR>(r.dp, swizzled(a + i / 4 * (ROWS * 128 >> 4) + i % 4 * 2), swizzled(b));
    }
    wgmma_commit();
}

/* dS of the block in work to shared memory, for the dQ of both warpgroups: transposed on the way, so that its
 * keys are contiguous as the product's k, and a thread needs one address. */
template <class C>
__device__ __forceinline__ void give_ds(const uint32_t (&ds)[ROWS / 16][4], OneCtaShared<C> &shared,
                                        const OneCtaPlace<C> &place) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
    const Ring<2> at = ring_after(place.step);
    const uint32_t to = shared_address(shared.ds[at.stage][place.warpgroup]) +
                        (lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16;
    shared.ds_ring.wait_free(at);
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) stmatrix_x4_trans(to + i * (16 * 128), ds[i]);
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&shared.ds_ring.full[at.stage]));
}

/* Once the product is done: dQ of `block`, from r.dp to where it belongs. step: the block's. */
template <class C>
__device__ __forceinline__ void take_dq(KeyRows<C> &r, OneCtaShared<C> &shared, OneCtaPlace<C> &place,
                                        int step, int block, const KernelArgs &args) {
    wgmma_results(r.dp);
    shared.ds_ring.release(ring_after(step));
    TurnBuffers<1, 32> &turns = shared.turns[place.warpgroup];
    if (place.work.tile > 0) {
        give_share(turns, place.turns, r.dp);
        return;
    }
    add_sums_kept(turns, place.turns, r.dp, turn_shares<C>(args.turns, block));
    const float scale[2] = {args.base.scale, args.base.scale};
    __syncwarp(); /* all lanes have read the sums where the result goes now */
    tma_store_rows(&args.dq, shared_address(turns.part(place.turns.fetched.stage)), r.dp, scale,
                   block * ROWS + threadIdx.x % WARPGROUP / 32 * 16, 2 * place.work.head + place.warpgroup,
                   place.work.batch);
}

/* dQ of a block, with nothing else under way. */
template <class C>
__device__ __forceinline__ void drain_dq(KeyRows<C> &r, OneCtaShared<C> &shared, OneCtaPlace<C> &place,
                                         int step, int block, const KernelArgs &args) {
    shared.ds_ring.wait(ring_after(step));
    wgmma_fence();
    multiply_dq(r, shared, place, step & 1);
    wgmma_wait<0>();
    take_dq(r, shared, place, step, block, args);
    dq_stored<C>(shared, place);
}

/* The warpgroup's first block of a tile; it lies on the diagonal if causal. */
template <class C>
__device__ __forceinline__ void first_block(KeyRows<C> &r, OneCtaShared<C> &shared, OneCtaPlace<C> &place,
                                            const KernelArgs &args) {
    clear_gradients(r);
    shared.v_ring.wait(place.own);
    block_scores<C, C::CAUSAL>(r, shared, place, args.base.scale_log2);
    give_ds(r.ds, shared, place);
    wgmma_fence();
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q.stage]);
    wgmma_wait<0>();
    dv_done(r, shared, place);
    dk_done(r, shared, place);
}

/* Any other block, after `before`; leaves its dQ to the next step. */
template <class C>
__device__ __forceinline__ void next_block(KeyRows<C> &r, OneCtaShared<C> &shared, OneCtaPlace<C> &place,
                                           int before, const KernelArgs &args) {
    place.advance();
    block_scores<C, false>(r, shared, place, args.base.scale_log2);
    give_ds(r.ds, shared, place);
    shared.ds_ring.wait(ring_after(place.step - 1));
    wgmma_fence();
    multiply_dq(r, shared, place, (place.step - 1) & 1);
    multiply_gradient<C>(r.dk, r.ds, shared.q[place.q.stage]);
    wgmma_wait<2>();
    dv_done(r, shared, place);
    wgmma_wait<1>();
    take_dq(r, shared, place, place.step - 1, before, args);
    wgmma_wait<0>();
    dk_done(r, shared, place);
    dq_stored<C>(shared, place);
}

/* A block of queries that see none of the warpgroup's keys: its dS is 0. */
template <class C>
__device__ __forceinline__ void skip_block(OneCtaShared<C> &shared, OneCtaPlace<C> &place) {
    const uint32_t zeros[ROWS / 16][4] = {};
    release_queries<C>(shared, place);
    give_ds(zeros, shared, place);
}

/* TMA has read dK of the tile before: the warpgroup may write dS again, where it left from. */
template <class C> __device__ __forceinline__ void dk_stored(const OneCtaPlace<C> &place) {
    wait_stored();
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup);
}

/* What is left when all blocks are done: dQ of the last, and dV, dQ and dK leave, in this order. */
template <class C>
__device__ __forceinline__ void close_tile(KeyRows<C> &r, OneCtaShared<C> &shared, OneCtaPlace<C> &place,
                                           int row0, const KernelArgs &args) {
    const int NH = args.base.NH;
    named_barrier_sync<WARPGROUP>(1 + place.warpgroup); /* all its warps have multiplied by V */
    queue_key_rows<C>(args.gradients, shared_address(shared.v[place.warpgroup]), r.dv, 1.0f, 2, place.work,
                      row0, NH);
    shared.ds_ring.wait(ring_after(place.step));
    wgmma_fence();
    multiply_dq(r, shared, place, place.step & 1);
    release_stored(shared.v_ring);
    wgmma_wait<0>();
    shared.k_ring.release(place.own);
    take_dq(r, shared, place, place.step, args.turns.blocks - 1, args);
    dq_stored<C>(shared, place);
    shared.ds_ring.wait_free(ring_after(place.step + 2)); /* dQ of both warpgroups is done */
    place.advance();
    /* from where the warpgroup had its part of dS of two blocks: a warp's quarter is half of one */
    const uint32_t dk = shared_address(shared.ds[0][place.warpgroup]) +
                        threadIdx.x % WARPGROUP / 64 * (uint32_t)sizeof(shared.ds[0][0]);
    queue_key_rows<C>(args.gradients, dk, r.dk, args.base.scale, 1, place.work, row0, NH);
}

/* A tile of keys; blocks first .. blocks - 1 see the warpgroup's, tile_first is the first that sees any. */
template <class C>
__device__ __forceinline__ void tile_blocks(OneCtaShared<C> &shared, OneCtaPlace<C> &place, int row0,
                                            int tile_first, int first, const KernelArgs &args) {
    const int blocks = args.turns.blocks;
    KeyRows<C> r;
    write_bias(r, row0, args.base.T);
    const bool skips = first > tile_first;
    if (skips) {
        skip_block(shared, place);
        place.advance();
    }
    first_block(r, shared, place, args);
    if (skips) drain_dq(r, shared, place, place.step - 1, tile_first, args);
#pragma unroll 1
    for (int block = first + 1; block < blocks; block++) next_block(r, shared, place, block - 1, args);
    close_tile(r, shared, place, row0, args);
}

/* A tile none of whose blocks, there is one, sees the warpgroup's keys: only its half of dQ. */
template <class C>
__device__ __forceinline__ void tile_unseen(OneCtaShared<C> &shared, OneCtaPlace<C> &place,
                                            const KernelArgs &args) {
    KeyRows<C> r;
    skip_block(shared, place);
    shared.v_ring.wait(place.own);
    release_stored(shared.v_ring);
    drain_dq(r, shared, place, place.step, args.turns.blocks - 1, args);
    shared.k_ring.release(place.own);
    place.advance();
}

template <class C>
__device__ __forceinline__ void one_cta_keys(OneCtaShared<C> &shared, const KernelArgs &args, int warpgroup) {
    const int T = args.base.T;
    OneCtaPlace<C> place;
    place.warpgroup = warpgroup;
    place.k = uniform_place(shared_address(shared.k[warpgroup]));
    place.v = uniform_place(shared_address(shared.v[warpgroup]));
    place.k_half = uniform_place(shared_address(shared.k) + warpgroup * (ROWS * 128));
    write_ones(place.ones);
    for (;; place.own.advance()) {
        shared.k_ring.wait(place.own);
        dk_stored(place);
        place.work = read_work(shared.work);
        if (place.work.index < 0) break;
        const int tile_row0 = place.work.tile * C::TILE_ROWS, row0 = tile_row0 + warpgroup * ROWS;
        const int tile_first = first_queries<C>(tile_row0, T);
        const int first = C::CAUSAL ? first_queries<C>(row0, T) : tile_first;
        if (first < args.turns.blocks)
            tile_blocks(shared, place, row0, tile_first, first, args);
        else
            tile_unseen(shared, place, args);
    }
}

__device__ unsigned one_cta_tickets;

/* ---- producer: one thread ---- */

/* K and V, and which tile it is. */
template <class C>
__device__ __forceinline__ void load_keys(OneCtaShared<C> &shared, Ring<1> at, const Work &work,
                                          const BackwardArgs &args) {
    const int row0 = work.tile * C::TILE_ROWS, bytes = C::WARPGROUPS * C::TILE_BYTES;
    const uint32_t v_full = shared.v_ring.acquire(at, bytes);
    for (int i = 0; i < C::WARPGROUPS; i++)
        tma_load_5d(shared_address(shared.v[i]), &args.rows, 0, row0 + i * ROWS, 0, 2 * args.NH + work.head,
                    work.batch, v_full);
    shared.k_ring.wait_free(at);
    shared.work = work;
    const uint32_t k_full = shared.k_ring.expect(at, bytes);
    for (int i = 0; i < C::WARPGROUPS; i++)
        tma_load_5d(shared_address(shared.k[i]), &args.rows, 0, row0 + i * ROWS, 0, args.NH + work.head,
                    work.batch, k_full);
}

template <class C> __device__ __forceinline__ void end_keys(OneCtaShared<C> &shared, Ring<1> at) {
    shared.k_ring.wait_free(at);
    shared.work.index = -1;
    shared.k_ring.expect(at, 0);
}

template <class C>
__device__ __forceinline__ void one_cta_producer(OneCtaShared<C> &shared, const BackwardArgs &args) {
    const int blocks = ceil_div(args.T, (int)ROWS), total = args.order.total;
    Ring<1> at;
    Ring<C::STAGES> q_at;
    Ring<2> dout_at;
    for (int index = blockIdx.x; index < total; at.advance()) {
        const Work work = work_at(args.order, index);
        const FoldRow *fold = args.fold + ((int64_t)work.batch * args.NH + work.head) * fold_rows(args.T);
        load_keys(shared, at, work, args);
        const int first = first_queries<C>(work.tile * C::TILE_ROWS, args.T);
        for (int block = first; block < blocks; block++, q_at.advance(), dout_at.advance())
            load_block<C>(shared, q_at, dout_at, work, block, fold, args);
        index = draw_tile(&one_cta_tickets, total); /* not earlier: see sm90_turns.cuh */
    }
    end_keys(shared, at);
}

template <bool CAUSAL>
__global__ void __launch_bounds__(OneCtaConfig<CAUSAL>::THREADS, 1)
    sm90_backward_hd128_1cta_kernel(const __grid_constant__ KernelArgs args) {
#ifdef SM90_BODY
    using C = OneCtaConfig<CAUSAL>;
    enum { WARPS = 4 * C::WARPGROUPS };
    auto &shared = at_uniform_address(shared_memory<OneCtaShared<C>>());
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    if (threadIdx.x == 0) {
        shared.k_ring.init(WARPS + C::WARPGROUPS);
        shared.v_ring.init(C::WARPGROUPS * WARPGROUP); /* every thread: release_stored */
        shared.q_ring.init(WARPS);
        shared.dout_ring.init(WARPS);
        shared.ds_ring.init(WARPS, WARPS);
        for (auto &turns : shared.turns) turns.init();
        fence_mbarrier_init();
    }
    __syncthreads();
    wait_on_dependency();
    if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        if (warp == 0 && lane == 0) one_cta_producer(shared, args.base);
        if (warp >= 1 && warp <= C::WARPGROUPS && lane == 0)
            add_stream<C>(shared, args.base, args.turns, warp - 1);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        one_cta_keys(shared, args, warpgroup);
    }
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

/* ---- host ---- */

template <bool CAUSAL>
static void backward_hd128_1cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, void *scratch, int B, int T, int NH) {
    using C = OneCtaConfig<CAUSAL>;
    const KernelArgs args = kernel_args<128>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, CAUSAL);
    launch_one_pass<C, OneCtaShared<C>>("sm90_backward_hd128_1cta_kernel",
                                        sm90_backward_hd128_1cta_kernel<CAUSAL>, args);
}
