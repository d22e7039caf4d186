/* Attention backward for sm_90a in one pass of five products, head size 128: the kernel, and all of it but its
 * warpgroups (sm90_backward_fused128.cuh).
 *
 * For long T pairs of tiles share loads and add as one (sm90_backward_pairs128.cu); for shorter T they cost more, at a
 * tile's start and end, than they save. */
#include "sm90_backward_fused128.cuh"

__device__ unsigned fused128_tickets;

/* ---- producer: one thread ---- */

/* K and V, and which tile it is. */
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

template <class C>
__device__ __forceinline__ void fused128_producer(Fused128Shared<C> &shared, const BackwardArgs &args) {
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
        index = draw_tile(&fused128_tickets, total); /* not earlier: see sm90_turns.cuh */
    }
    end_keys(shared, at);
}

template <bool CAUSAL>
__global__ void __launch_bounds__(Fused128Config<CAUSAL>::THREADS, 1)
    sm90_fused128_kernel(const __grid_constant__ FusedArgs args) {
#ifdef SM90_BODY
    using C = Fused128Config<CAUSAL>;
    enum { WARPS = 4 * C::WARPGROUPS };
    auto &shared = at_uniform_address(shared_memory<Fused128Shared<C>>());
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
        if (warp == 0 && lane == 0) fused128_producer(shared, args.base);
        if (warp >= 1 && warp <= C::WARPGROUPS && lane == 0)
            add_stream<C>(shared, args.base, args.turns, warp - 1);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        fused128_keys(shared, args, warpgroup);
    }
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

/* ---- host ---- */

template <bool CAUSAL> static void launch_fused128(const FusedArgs &args) {
    using C = Fused128Config<CAUSAL>;
    launch_one_pass<C, Fused128Shared<C>>("sm90_fused128_kernel", sm90_fused128_kernel<CAUSAL>, args);
}

void attention_backward_sm90_alone128(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                      const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                      bool causal) {
    const FusedArgs args = fused_args<128>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, causal);
    if (causal)
        launch_fused128<true>(args);
    else
        launch_fused128<false>(args);
}
