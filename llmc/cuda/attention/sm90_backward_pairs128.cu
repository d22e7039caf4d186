/* Attention backward for sm_90a in one pass of five products, head size 128, in pairs of tiles: the kernel, and all of
 * it but its warpgroups (sm90_backward_pairs128.cuh).
 *
 * Blocks form clusters of two, which own pairs of tiles, 2p and 2p + 1 of a head, and walk the same blocks of queries.
 * One producer, in the first block, loads Q and dO for both by multicast: half the reads of L2. The two exchange dS,
 * so that a pair adds one share of dQ where two tiles would add two: half of what is written to shared memory for it
 * and added in L2, and half as many turns (sm90_turns.cuh). That takes 32 KB of shared memory for the other tile's K,
 * and 32 KB a step and pair between the SMs. Blocks of queries that see only tile 2p, two of a causal pair, have a dS
 * of 0 in tile 2p + 1; so has a tile beyond the sequence, the second of its head's last pair. (K of the other tile is
 * multiplied by those zeros: a NaN in a key reaches dQ of all 256 queries of the pair's diagonal.)
 *
 * A stage of Q or dO is free when the warps of both blocks have released it, so neither is ahead by more than a step.
 *
 * Nothing waits in a circle. In step i (of the walk) a block waits for stages that both have released in step i - 2,
 * for the other's dS of step i - 1, and, to send its own, for the other's product of step i - 1, which needs dS of
 * step i - 2. Turns are those of pairs drawn earlier, and whoever waits for a turn has given what it owes to them. */
#include "sm90_backward_pairs128.cuh"

__device__ unsigned pairs128_tickets;

/* ---- producers: one thread of a cluster for Q and dO; one of each block for its keys ---- */

template <class C>
__device__ __forceinline__ void pairs128_producer(Pairs128Shared<C> &shared, const BackwardArgs &args) {
    const int blocks = ceil_div(args.T, (int)ROWS), total = args.order.total;
    Ring<1> at;
    Ring<C::STAGES> q_at;
    for (int index = first_work<C>(&pairs128_tickets, total); index < total; at.advance()) {
        const Work work = work_at(args.order, index);
        const FoldRow *fold = args.fold + ((int64_t)work.batch * args.NH + work.head) * fold_rows(args.T);
        tell_work<C>(shared.next, at, work);
        const int first = first_queries<C>(work.tile * C::PAIR_ROWS, args.T);
        for (int block = first; block < blocks; block++, q_at.advance())
            load_block<C>(shared, q_at, q_at, work, block, fold, args);
        index = draw_work<C>(&pairs128_tickets, total); /* not earlier: see sm90_turns.cuh */
    }
    tell_work<C>(shared.next, at, Work{-1, 0, 0, 0});
}

/* A tile of K or V. head: its columns in qkv. */
template <class C>
__device__ __forceinline__ void load_tile(const uint8_t (&to)[C::WARPGROUPS][C::TILE_BYTES], int tile,
                                          int head, int batch, uint32_t full, const BackwardArgs &args) {
    for (int i = 0; i < C::WARPGROUPS; i++)
        tma_load_5d(shared_address(to[i]), &args.rows, 0, tile * C::TILE_ROWS + i * ROWS, 0, head, batch,
                    full);
}

/* A block's own V and K, which tile it is, and K of the pair's other. */
template <class C>
__device__ __forceinline__ void load_keys(Pairs128Shared<C> &shared, Ring<1> at, const Work &work,
                                          const BackwardArgs &args) {
    const int bytes = C::WARPGROUPS * C::TILE_BYTES, k_head = args.NH + work.head;
    const uint32_t v_full = shared.v_ring.acquire(at, bytes);
    load_tile<C>(shared.v, work.tile, args.NH + k_head, work.batch, v_full, args);
    shared.k_ring.wait_free(at);
    shared.work = work;
    const uint32_t k_full = shared.k_ring.expect(at, bytes);
    load_tile<C>(shared.k, work.tile, k_head, work.batch, k_full, args);
    shared.other_k_ring.wait_free(at.next()); /* it is released when a tile begins */
    const uint32_t other_k_full = shared.other_k_ring.expect(at, bytes);
    load_tile<C>(shared.other_k, work.tile ^ 1, k_head, work.batch, other_k_full, args);
}

/* Hands on what the other block sends, for all blocks of a tile that are owned: it is written by ordinary accesses,
 * and the product is none, so there must be a fence between them; here it costs no warpgroup time (in those, 0.5 to 1
 * % of speed). */
template <class C>
__device__ __forceinline__ void receive_ds(Pairs128Shared<C> &shared, Ring<1> &received, const Work &work,
                                           int T) {
    const uint32_t bytes = shared_address(&shared.other_ds_bytes);
    const int first = first_queries<C>(work.tile / 2 * C::PAIR_ROWS, T) + work.tile % 2;
    for (int block = first; block < ceil_div(T, (int)ROWS); block += C::ADDED_TILES, received.advance()) {
        mbarrier_arrive_expect_tx(bytes, C::WARPGROUPS * C::DS_BYTES);
        mbarrier_wait(bytes, received.parity);
        fence_proxy_async();
        mbarrier_arrive(shared_address(&shared.ds_ring.full[0]));
    }
}

template <class C>
__device__ __forceinline__ void keys_producer(Pairs128Shared<C> &shared, const BackwardArgs &args) {
    Ring<1> at, received;
    for (;; at.advance()) {
        const Work work = told_work(shared.next, at);
        if (work.index < 0) break;
        load_keys(shared, at, work, args);
        receive_ds(shared, received, work, args.T);
    }
    shared.k_ring.wait_free(at);
    shared.work.index = -1;
    shared.k_ring.expect(at, 0);
}

template <class C> __device__ __forceinline__ void init_barriers(Pairs128Shared<C> &shared) {
    enum {
        WARPS = 4 * C::WARPGROUPS,
        WRITERS = C::WARPGROUPS * WARPGROUP /* see release_stored */
    };
    shared.k_ring.init(WARPS + C::WARPGROUPS);
    shared.other_k_ring.init(WRITERS);
    shared.v_ring.init(WRITERS);
    shared.q_ring.init(C::CLUSTER * WARPS);
    shared.dout_ring.init(C::CLUSTER * WARPS);
    shared.ds_ring.init(WARPS, WARPS + 1); /* and receive_ds */
    mbarrier_init(shared_address(&shared.other_ds_bytes), 1);
    mbarrier_init(shared_address(&shared.sent_empty), WARPS);
    shared.next.ring.init(C::CLUSTER);
    for (auto &turns : shared.turns) turns.init();
    fence_mbarrier_init();
}

template <bool CAUSAL>
__global__ void __launch_bounds__(Pairs128Config<CAUSAL>::THREADS, 1)
    sm90_pairs128_kernel(const __grid_constant__ FusedArgs args) {
#ifdef SM90_BODY
    using C = Pairs128Config<CAUSAL>;
    auto &shared = at_uniform_address(shared_memory<Pairs128Shared<C>>());
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    if (threadIdx.x == 0) init_barriers(shared);
    open_cluster<C>();
    wait_on_dependency();
    if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        if (warp == 0 && lane == 0 && cluster_rank() == 0) pairs128_producer(shared, args.base);
        if (warp == 3 && lane == 0) keys_producer(shared, args.base);
        if (warp >= 1 && warp <= C::WARPGROUPS && lane == 0)
            add_stream<C>(shared, args.base, args.turns, warp - 1);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        pairs128_keys(shared, args, warpgroup);
    }
    close_cluster<C>();
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

/* ---- host ---- */

template <bool CAUSAL> static void launch_pairs128(const FusedArgs &args) {
    using C = Pairs128Config<CAUSAL>;
    launch_one_pass<C, Pairs128Shared<C>>("sm90_pairs128_kernel", sm90_pairs128_kernel<CAUSAL>, args);
}

void attention_backward_sm90_paired128(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                       const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                       bool causal) {
    FusedArgs args = fused_args<128>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, causal);
    args.turns.tiles = ceil_div(args.turns.tiles, 2);
    args.dq = tensor_map(dqkv, B, T, 3 * NH * 2, 64, ROWS);
    if (causal)
        launch_pairs128<true>(args);
    else
        launch_pairs128<false>(args);
}
