/* The dK, dV pass of attention backward for sm_90a (see sm90_backward.cuh). */
#include "sm90_keys.cuh"

/* Row [HD == 128][causal]. flag: the product V dO^T waits for the products of P and dS before it, whose
 * operands' registers it can then have. */
constexpr Sm90Shape DKV_SHAPES[2][2] = {
  /* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
    {{2, 64, 6, 1, 240, 24, false}, {2, 64, 6, 1, 240, 24, false}},
    {{2, 64, 4, 1, 240, 24, true},  {2, 64, 4, 1, 240, 24, true} },
};

template <int HEAD, bool IS_CAUSAL> struct DkvConfig {
    static constexpr Sm90Shape SHAPE = DKV_SHAPES[HEAD == 128][IS_CAUSAL];
    static constexpr int HD = HEAD, WARPGROUPS = SHAPE.warpgroups, STAGES = SHAPE.stages, CLUSTER = 1;
    static constexpr bool CAUSAL = IS_CAUSAL, LATE_DP = SHAPE.flag;
    static constexpr bool K_IN_REGISTERS = HD == 64,
                          V_IN_REGISTERS = HD == 64; /* at 128 dK and dV take 128 registers */
    static constexpr bool MASK_KEYS = false;         /* rows beyond the sequence are not stored */
    static constexpr bool ALTERNATE = false;         /* each multiplies when it is ready */
    static constexpr int TILE_ROWS = WARPGROUPS * ROWS, THREADS = sm90_threads(SHAPE);
    static constexpr int TILE_BYTES = ROWS * HD * 2, FOLD_BYTES = ROWS * sizeof(FoldRow);
    static_assert(SHAPE.columns == ROWS, "blocks of queries start where a warpgroup's keys start");
    static_assert(SHAPE.own_buffers == 1, "K and V of a tile");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
};

template <class C> struct alignas(1024) DkvShared {
    uint8_t k[C::WARPGROUPS][C::TILE_BYTES], v[C::WARPGROUPS][C::TILE_BYTES];
    QueryStages<C> queries;
    RingBarriers<1> own_ring; /* of k and v */
    Work work;
};

__device__ unsigned dkv_tickets;

/* ---- producer: one thread ---- */

template <class C>
__device__ __forceinline__ void dkv_producer(DkvShared<C> &shared, const BackwardArgs &args) {
    Ring<1> own_at;
    Ring<C::STAGES> at;
    for (int index = blockIdx.x; index < args.order.total; own_at.advance()) {
        const int drawn = draw_tile(&dkv_tickets, args.order.total);
        const Work work = work_at(args.order, index);
        const int row0 = work.tile * C::TILE_ROWS;
        shared.own_ring.wait_free(own_at);
        shared.work = work;
        const uint32_t own_full = shared.own_ring.expect(own_at, 2 * C::WARPGROUPS * C::TILE_BYTES);
        for (int i = 0; i < C::WARPGROUPS; i++) {
            tma_load_5d(shared_address(shared.k[i]), &args.rows, 0, row0 + i * ROWS, 0, args.NH + work.head,
                        work.batch, own_full);
            tma_load_5d(shared_address(shared.v[i]), &args.rows, 0, row0 + i * ROWS, 0,
                        2 * args.NH + work.head, work.batch, own_full);
        }
        load_queries(shared.queries, at, work, row0, args);
        index = drawn;
    }
    shared.own_ring.wait_free(own_at);
    shared.work.index = -1;
    shared.own_ring.expect(own_at, 0);
}

/* ---- consumers ---- */

template <class C>
__device__ __forceinline__ void dkv_consumer(DkvShared<C> &shared, const BackwardArgs &args, int warpgroup) {
    const int blocks = ceil_div(args.T, (int)ROWS);
    Ring<1> own_at;
    KeyPlace<C> place;
    place.k = shared_address(shared.k[warpgroup]);
    KeyRows<C> r;
    write_ones(r);
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work);
        if (work.index < 0) break;
        const int tile_row0 = work.tile * C::TILE_ROWS, row0 = tile_row0 + warpgroup * ROWS;
        if constexpr (C::K_IN_REGISTERS) {
            load_fragments(r.k, shared_address(shared.k[warpgroup]));
            load_fragments(r.v, shared_address(shared.v[warpgroup]));
        }
        __syncwarp();
        if (C::K_IN_REGISTERS) shared.own_ring.release(own_at);
        const int first = first_queries<C>(row0, args.T);
        for (int block = first_queries<C>(tile_row0, args.T); block < first; block++, place.at.advance()) {
            shared.queries.ring.wait(place.at);
            __syncwarp();
            shared.queries.ring.release(place.at);
        }
        if (first < blocks) {
            first_queries_block(r, shared.queries, place, args.scale_log2);
#pragma unroll 1
            for (int block = first + 1; block < blocks; block++)
                next_queries_block(r, shared.queries, place, args.scale_log2);
        }
        if (!C::K_IN_REGISTERS) shared.own_ring.release(own_at);
        if (first == blocks) continue;
        last_gradients(r, shared.queries, place);
        store_key_rows(r, work, row0, args);
    }
}

template <int HD, bool CAUSAL>
__global__ void __launch_bounds__(DkvConfig<HD, CAUSAL>::THREADS, 1)
    sm90_dkv_kernel(const __grid_constant__ BackwardArgs args) {
#ifdef SM90_BODY
    using C = DkvConfig<HD, CAUSAL>;
    auto &shared = shared_memory<DkvShared<C>>();
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    write_constants(shared.queries);
    if (threadIdx.x == 0) {
        shared.own_ring.init(4 * C::WARPGROUPS);
        shared.queries.ring.init(4 * C::WARPGROUPS);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        if (threadIdx.x % WARPGROUP == 0) dkv_producer(shared, args);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        dkv_consumer(shared, args, warpgroup);
    }
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

template <int HD, bool CAUSAL> static void launch_dkv(BackwardArgs &args, int B) {
    using C = DkvConfig<HD, CAUSAL>;
    args.order = tile_order(B, args.T, args.NH, C::TILE_ROWS, 2 * HD * 2 + sizeof(FoldRow), false);
    launch_persistent("sm90_dkv_kernel", sm90_dkv_kernel<HD, CAUSAL>, args, args.order.total, C::THREADS,
                      shared_bytes<DkvShared<C>>());
}

void attention_backward_sm90_dkv(floatX *dqkv, const floatX *dout, const floatX *qkv, const void *scratch,
                                 int B, int T, int NH, int HD, bool causal) {
    typedef void Launch(BackwardArgs &, int);
    static Launch *const launches[2][2] = {
  /* [HD == 128][causal] */
        {launch_dkv<64,  false>, launch_dkv<64,  true>},
        {launch_dkv<128, false>, launch_dkv<128, true>},
    };
    BackwardArgs args = backward_args(dqkv, dout, qkv, scratch, B, T, NH, HD);
    launches[HD == 128][causal](args, B);
}
