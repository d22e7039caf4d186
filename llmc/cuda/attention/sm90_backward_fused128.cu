/* Attention backward for sm_90a in one pass of five products, head size 128: the kernel, and all of it but its
 * warpgroups (sm90_backward_fused128.cuh).
 *
 * From T = PAIRS_FROM on, blocks form clusters of two, which own pairs of tiles, 2p and 2p + 1 of a head, and walk the
 * same blocks of queries. One producer, in the first block, loads Q and dO for both by multicast: half the reads of L2
 * (without any the kernel would be 6 to 10 % faster: dev/attention/README.md, "What a step costs"). A stage is free
 * when the warps of both blocks have released it, so one block may be ahead by as much as the rings are deep: Q's
 * three stages, dO's two. Each block loads its own K and V, so the one that is ahead stays so in the next pair. The
 * first two blocks of a causal pair are tile 2p's alone; tile 2p + 1 lets them pass.
 *
 * Nothing waits in a circle. Tile 2p takes its turn at a block behind tile 2p + 1, which hands over its share of block
 * j in step j + 1 (of the walk), for which the stages of steps j - 1 (dO) and j - 2 (Q) must be free; tile 2p has
 * released them before it waits, in step j + 2, for the buffer that its own share of block j still has, or, if it is
 * tile 0, in step j + 1 for the sums. All other turns are those of pairs drawn earlier, and a tile that waits for
 * another's has given what it owes to earlier pairs.
 *
 * For shorter T pairs cost more, at a tile's start and end, than they save: there a block is alone. */
#include "sm90_backward_fused128.cuh"

__device__ unsigned fused128_tickets;

/* ---- producer: one thread of a cluster; in clusters, K and V have a thread in each block ---- */

/* A block's own K and V, and which tile it is. */
template <class C>
__device__ __forceinline__ void load_keys(Fused128Shared<C> &shared, Ring<1> at, const Work &work,
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

template <class C> __device__ __forceinline__ void end_keys(Fused128Shared<C> &shared, Ring<1> at) {
    shared.k_ring.wait_free(at);
    shared.work.index = -1;
    shared.k_ring.expect(at, 0);
}

/* The same in a cluster, where a thread of each block loads them: what the producer tells it. */
template <class C>
__device__ __forceinline__ void keys_producer(Fused128Shared<C> &shared, const BackwardArgs &args) {
    Ring<1> at;
    for (;; at.advance()) {
        const Work work = told_work(shared.next, at);
        if (work.index < 0) break;
        load_keys(shared, at, work, args);
    }
    end_keys(shared, at);
}

template <class C>
__device__ __forceinline__ void fused128_producer(Fused128Shared<C> &shared, const BackwardArgs &args) {
    const int blocks = ceil_div(args.T, (int)ROWS), total = args.order.total;
    Ring<1> at;
    Ring<C::STAGES> q_at;
    Ring<2> dout_at;
    for (int index = first_work<C>(&fused128_tickets, total); index < total; at.advance()) {
        const Work work = work_at(args.order, index);
        const FoldRow *fold = args.fold + ((int64_t)work.batch * args.NH + work.head) * fold_rows(args.T);
        if (C::CLUSTER > 1)
            tell_work<C>(shared.next, at, work);
        else
            load_keys(shared, at, work, args);
        const int first = first_queries<C>(work.tile * C::PAIR_ROWS, args.T);
        for (int block = first; block < blocks; block++, q_at.advance(), dout_at.advance()) {
            const uint32_t q_full = acquire<C>(shared.q_ring, q_at, C::TILE_BYTES + C::FOLD_BYTES);
            load_rows<C>(shared.q[q_at.stage], args.rows, block * ROWS, work.head, work.batch, q_full);
            load_bytes<C>(shared.fold[q_at.stage], fold + block * ROWS, C::FOLD_BYTES, q_full);
            const uint32_t dout_full = acquire<C>(shared.dout_ring, dout_at, C::TILE_BYTES);
            load_rows<C>(shared.dout[dout_at.stage], args.dout, block * ROWS, work.head, work.batch,
                         dout_full);
        }
        index = draw_work<C>(&fused128_tickets, total); /* not earlier: see sm90_turns.cuh */
    }
    if (C::CLUSTER > 1)
        tell_work<C>(shared.next, at, Work{-1, 0, 0, 0});
    else
        end_keys(shared, at);
}

/* ---- adders: one thread for each warpgroup of each block ---- */

template <class C>
__device__ __forceinline__ void fused128_adder(Fused128Shared<C> &shared, const FusedArgs &args, int stream) {
    Ring<1> own_at;
    TurnAt<1> at;
    auto handover = handover_of<C>(shared.pair_turns[stream]);
    for (;; own_at.advance()) {
        shared.k_ring.wait(own_at);
        const Work work = shared.work;
        if (work.index < 0) break;
        mbarrier_arrive(shared_address(&shared.k_ring.empty[0]));
        take_turns<C>(shared.turns[stream], at, 0, args.turns, work.batch * args.base.NH + work.head, stream,
                      work.tile, first_queries<C>(work.tile * C::TILE_ROWS, args.base.T), handover);
    }
}

template <bool CAUSAL, bool PAIRED>
__global__ void __launch_bounds__(Fused128Config<CAUSAL, PAIRED>::THREADS, 1)
    sm90_fused128_kernel(const __grid_constant__ FusedArgs args) {
#ifdef SM90_BODY
    using C = Fused128Config<CAUSAL, PAIRED>;
    enum { WARPS = 4 * C::WARPGROUPS };
    auto &shared = at_uniform_address(shared_memory<Fused128Shared<C>>());
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    if (threadIdx.x == 0) {
        shared.k_ring.init(WARPS + C::WARPGROUPS);
        shared.v_ring.init(C::WARPGROUPS * WARPGROUP); /* every thread: release_v */
        shared.q_ring.init(C::CLUSTER * WARPS);
        shared.dout_ring.init(C::CLUSTER * WARPS);
        shared.ds_ring.init(WARPS, WARPS);
        shared.next.ring.init(C::CLUSTER);
        for (int i = 0; i < C::WARPGROUPS; i++) {
            shared.turns[i].init();
            for (uint64_t &barrier : shared.pair_turns[i]) mbarrier_init(shared_address(&barrier), 1);
        }
        fence_mbarrier_init();
    }
    open_cluster<C>();
    if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        if (warp == 0 && lane == 0 && (C::CLUSTER == 1 || cluster_rank() == 0))
            fused128_producer(shared, args.base);
        if (C::CLUSTER > 1 && warp == 3 && lane == 0) keys_producer(shared, args.base);
        if (warp >= 1 && warp <= C::WARPGROUPS && lane == 0) fused128_adder(shared, args, warp - 1);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        fused128_keys(shared, args, warpgroup);
    }
    close_cluster<C>();
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

/* ---- host ---- */

size_t attention_backward_sm90_fused128_scratch_bytes(int B, int T, int NH) {
    return turn_scratch_bytes(B, T, NH, 128);
}

template <bool CAUSAL, bool PAIRED> static void launch_fused128(const FusedArgs &args) {
    using C = Fused128Config<CAUSAL, PAIRED>;
    launch_one_pass<C, Fused128Shared<C>>("sm90_fused128_kernel", sm90_fused128_kernel<CAUSAL, PAIRED>, args);
}

/* Pairs of tiles, at any T. */
static void backward_paired(const FusedArgs &args, bool causal) {
    if (causal)
        launch_fused128<true, true>(args);
    else
        launch_fused128<false, true>(args);
}

enum { PAIRS_FROM = 8192 /* measured: dev/attention/README.md */ };

void attention_backward_sm90_fused128(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                      const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                      bool causal) {
    const FusedArgs args = fused_args<128>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, causal);
    if (T >= PAIRS_FROM)
        backward_paired(args, causal);
    else if (causal)
        launch_fused128<true, false>(args);
    else
        launch_fused128<false, false>(args);
}

void attention_backward_sm90_paired128(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                       const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                       bool causal) {
    backward_paired(fused_args<128>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, causal), causal);
}
