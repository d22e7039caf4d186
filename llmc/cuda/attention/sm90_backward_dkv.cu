/* The dK, dV pass of attention backward for sm_90a (see sm90_backward.cuh). */
#include "sm90_backward.cuh"

/* Row [HD == 128][causal]. flag: the product V dO^T waits for the products of P and dS before it, whose
 * operands' registers it can then have. */
constexpr Sm90Shape DKV_SHAPES[2][2] = {
  /* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
    {{2, 64, 6, 1, 240, 24, false}, {2, 64, 6, 1, 240, 24, false}},
    {{2, 64, 4, 1, 240, 24, true},  {2, 64, 4, 1, 240, 24, true} },
};

template <int HEAD, bool IS_CAUSAL> struct DkvConfig {
    static constexpr Sm90Shape SHAPE = DKV_SHAPES[HEAD == 128][IS_CAUSAL];
    static constexpr int HD = HEAD, WARPGROUPS = SHAPE.warpgroups, STAGES = SHAPE.stages;
    static constexpr bool CAUSAL = IS_CAUSAL, LATE_DP = SHAPE.flag;
    static constexpr bool KV_IN_REGISTERS = HD == 64; /* at 128 dK and dV alone take 128 registers */
    static constexpr int TILE_ROWS = WARPGROUPS * ROWS, THREADS = sm90_threads(SHAPE);
    static constexpr int TILE_BYTES = ROWS * HD * 2, FOLD_BYTES = ROWS * sizeof(FoldRow);
    static_assert(SHAPE.columns == ROWS, "blocks of queries start where a warpgroup's keys start");
    static_assert(SHAPE.own_buffers == 1, "K and V of a tile");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
};

template <class C> struct alignas(1024) DkvShared {
    uint8_t k[C::WARPGROUPS][C::TILE_BYTES], v[C::WARPGROUPS][C::TILE_BYTES];
    uint8_t q[C::STAGES][C::TILE_BYTES], dout[C::STAGES][C::TILE_BYTES];
    uint8_t fold[C::STAGES][2][C::FOLD_BYTES]; /* k 0..7 of the folded columns; k 8..15, all zero */
    RingBarriers<1> own_ring;
    RingBarriers<C::STAGES> q_ring;
    Work work;
};

__device__ unsigned dkv_tickets;

/* Blocks of 64 queries, from the first that the keys from row0 on are seen by. */
template <class C> __device__ __forceinline__ int first_queries(int row0, int T) {
    const int blocks = ceil_div(T, (int)ROWS);
    return row0 >= T ? blocks : C::CAUSAL ? row0 / ROWS : 0;
}

/* ---- producer: one thread ---- */

template <class C>
__device__ __forceinline__ void dkv_producer(DkvShared<C> &shared, const BackwardArgs &args) {
    Ring<1> own_at;
    Ring<C::STAGES> at;
    const int blocks = ceil_div(args.T, (int)ROWS);
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
        const FoldRow *fold = args.fold + ((int64_t)work.batch * args.NH + work.head) * fold_rows(args.T);
        for (int block = first_queries<C>(row0, args.T); block < blocks; block++, at.advance()) {
            const uint32_t full = shared.q_ring.acquire(at, 2 * C::TILE_BYTES + C::FOLD_BYTES);
            tma_load_5d(shared_address(shared.q[at.stage]), &args.rows, 0, block * ROWS, 0, work.head,
                        work.batch, full);
            tma_load_5d(shared_address(shared.dout[at.stage]), &args.dout, 0, block * ROWS, 0, work.head,
                        work.batch, full);
            bulk_load(shared_address(shared.fold[at.stage][0]), fold + block * ROWS, C::FOLD_BYTES, full);
        }
        index = drawn;
    }
    shared.own_ring.wait_free(own_at);
    shared.work.index = -1;
    shared.own_ring.expect(own_at, 0);
}

/* ---- consumers ---- */

/* A thread's share of the warpgroup's keys; accumulators have keys as rows. */
template <class C> struct DkvRows {
    float dk[C::HD / 2], dv[C::HD / 2];
    float s[ROWS / 2];        /* S^T - lse / scale, then P^T */
    float dp[ROWS / 2];       /* dP^T - D, then dS^T */
    uint32_t p[ROWS / 16][4]; /* P^T and dS^T as A operands */
    uint32_t ds[ROWS / 16][4];
    uint32_t lse_ones[4],
        d_ones[4]; /* A operands that are 1 in the columns where FoldRow has -lse / scale, -D */
    uint32_t k[C::KV_IN_REGISTERS ? C::HD / 16 : 1][4], v[C::KV_IN_REGISTERS ? C::HD / 16 : 1][4];
};

template <class C> struct DkvPlace {
    Ring<1> own_at;
    Ring<C::STAGES> at; /* the block of queries in work */
    int warpgroup;
};

/* Columns 0, 1, 2 and 3, 4, 5 of the first 8; a thread holds columns 2t, 2t+1. */
template <class C> __device__ __forceinline__ void set_ones(DkvRows<C> &r) {
    const uint32_t one = 0x3f80; /* bf16 */
    const int t = threadIdx.x % 4;
    r.lse_ones[0] = r.lse_ones[1] = t == 0 ? one << 16 | one : t == 1 ? one : 0;
    r.d_ones[0] = r.d_ones[1] = t == 1 ? one << 16 : t == 2 ? one << 16 | one : 0;
    r.lse_ones[2] = r.lse_ones[3] = r.d_ones[2] = r.d_ones[3] = 0;
    wgmma_operand(r.lse_ones);
    wgmma_operand(r.d_ones);
}

/* A warp's 16 rows of a 64 x 64 tile as A operands. */
__device__ __forceinline__ void load_fragments(uint32_t (&a)[4][4], uint32_t tile) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 4; i++) ldmatrix_x4(a[i], tile + row * 128 + ((2 * i + lane / 16) ^ (row & 7)) * 16);
}

/* acc = rows of K or V times the block's queries, and the folded column. */
template <class C, int N>
__device__ __forceinline__ void multiply_queries(float (&acc)[ROWS / 2], const uint32_t (&fragments)[N][4],
                                                 uint64_t rows, uint64_t queries, const uint32_t (&ones)[4],
                                                 uint64_t fold) {
    if constexpr (C::KV_IN_REGISTERS) {
#pragma unroll
        for (int i = 0; i < C::HD / 16; i++) {
            if (i == 0)
                wgmma<D_SET, B_K_MAJOR>(acc, fragments[i], queries);
            else
                wgmma<D_ADD, B_K_MAJOR>(acc, fragments[i], queries + i * 2);
        }
    } else {
        multiply_heads<C::HD>(acc, rows, queries);
    }
    wgmma<D_ADD, B_K_MAJOR>(acc, ones, fold);
    wgmma_commit();
}

template <class C>
__device__ __forceinline__ void multiply_s(DkvRows<C> &r, DkvShared<C> &shared, const DkvPlace<C> &place,
                                           int stage) {
    multiply_queries<C>(r.s, r.k, descriptor_k_major(shared_address(shared.k[place.warpgroup])),
                        descriptor_k_major(shared_address(shared.q[stage])), r.lse_ones,
                        descriptor_unswizzled(shared_address(shared.fold[stage]), C::FOLD_BYTES));
}
template <class C>
__device__ __forceinline__ void multiply_dp(DkvRows<C> &r, DkvShared<C> &shared, const DkvPlace<C> &place,
                                            int stage) {
    multiply_queries<C>(r.dp, r.v, descriptor_k_major(shared_address(shared.v[place.warpgroup])),
                        descriptor_k_major(shared_address(shared.dout[stage])), r.d_ones,
                        descriptor_unswizzled(shared_address(shared.fold[stage]), C::FOLD_BYTES));
}

/* dV += P^T dO, dK += dS^T Q. */
template <class C>
__device__ __forceinline__ void multiply_gradients(DkvRows<C> &r, DkvShared<C> &shared, int stage) {
    const uint64_t q = descriptor_mn_major(shared_address(shared.q[stage]), ROWS * 128);
    const uint64_t dout = descriptor_mn_major(shared_address(shared.dout[stage]), ROWS * 128);
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
        wgmma<D_ADD, B_MN_MAJOR>(r.dv, r.p[i], dout + i * (2048 >> 4));
        wgmma<D_ADD, B_MN_MAJOR>(r.dk, r.ds[i], q + i * (2048 >> 4));
    }
    wgmma_commit();
}

template <class C> __device__ __forceinline__ void gradients_done(DkvRows<C> &r) {
    wgmma_results(r.dk);
    wgmma_results(r.dv);
    wgmma_results(r.p);
    wgmma_results(r.ds);
}

template <class C> __device__ __forceinline__ void dkv_probabilities(DkvRows<C> &r, float scale_log2) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) r.s[i] = ex2(r.s[i] * scale_log2);
    pack(r.p, r.s);
}

template <class C> __device__ __forceinline__ void dkv_scores(DkvRows<C> &r) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) r.dp[i] *= r.s[i];
    pack(r.ds, r.dp);
}

/* Queries before a key, in the block that starts where the warpgroup's keys start. */
template <class C> __device__ __forceinline__ void mask_queries(DkvRows<C> &r) {
    const int first_seen = thread_row() - thread_column();
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        if (i / 4 * 8 + i % 2 < first_seen + i / 2 % 2 * 8) r.s[i] = -CUDART_INF_F;
}

/* The end of a block's step: dP has come, dS is made. */
template <class C>
__device__ __forceinline__ void finish_scores(DkvRows<C> &r, DkvShared<C> &shared, const DkvPlace<C> &place,
                                              bool last) {
    wgmma_wait<0>();
    wgmma_results(r.dp);
    if (!C::KV_IN_REGISTERS && last) shared.own_ring.release(place.own_at);
    dkv_scores(r);
}

/* The first block of queries; on the diagonal if causal. */
template <class C>
__device__ __forceinline__ void dkv_first_block(DkvRows<C> &r, DkvShared<C> &shared, const DkvPlace<C> &place,
                                                bool last, float scale_log2) {
    shared.q_ring.wait(place.at);
    wgmma_fence();
    multiply_s(r, shared, place, place.at.stage);
    multiply_dp(r, shared, place, place.at.stage);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (C::CAUSAL) mask_queries(r);
    dkv_probabilities(r, scale_log2);
    finish_scores(r, shared, place, last);
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.dk[i] = r.dv[i] = 0.0f;
}

/* The gradients of the block in work, then P and dS of the next. last: no more blocks after that. */
template <class C>
__device__ __forceinline__ void dkv_next_block(DkvRows<C> &r, DkvShared<C> &shared, DkvPlace<C> &place,
                                               bool last, float scale_log2) {
    const Ring<C::STAGES> next = place.at.next();
    shared.q_ring.wait(next);
    wgmma_fence();
    multiply_gradients(r, shared, place.at.stage);
    multiply_s(r, shared, place, next.stage);
    if (C::LATE_DP) {
        wgmma_wait<1>();
        gradients_done(r);
        shared.q_ring.release(place.at);
        wgmma_fence();
    }
    multiply_dp(r, shared, place, next.stage);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (!C::LATE_DP) {
        gradients_done(r);
        shared.q_ring.release(place.at);
    }
    dkv_probabilities(r, scale_log2);
    finish_scores(r, shared, place, last);
    place.at = next;
}

template <class C>
__device__ __forceinline__ void store_dkv(const DkvRows<C> &r, const Work &work, int row0,
                                          const BackwardArgs &args) {
    const int64_t stride = 3 * (int64_t)args.NH * C::HD;
    const float scale[2] = {args.scale, args.scale}, one[2] = {1.0f, 1.0f};
    bf16 *dk = args.dqkv + ((int64_t)work.batch * args.T + row0) * stride + (args.NH + work.head) * C::HD;
    store_rows(dk, stride, args.T - row0, r.dk, scale);
    store_rows(dk + args.NH * C::HD, stride, args.T - row0, r.dv, one);
}

template <class C>
__device__ __forceinline__ void dkv_consumer(DkvShared<C> &shared, const BackwardArgs &args, int warpgroup) {
    const int blocks = ceil_div(args.T, (int)ROWS);
    DkvPlace<C> place;
    place.warpgroup = warpgroup;
    DkvRows<C> r;
    set_ones(r);
    for (;; place.own_at.advance()) {
        shared.own_ring.wait(place.own_at);
        const Work work = shared.work;
        if (work.index < 0) break;
        const int tile_row0 = work.tile * C::TILE_ROWS, row0 = tile_row0 + warpgroup * ROWS;
        if constexpr (C::KV_IN_REGISTERS) {
            load_fragments(r.k, shared_address(shared.k[warpgroup]));
            load_fragments(r.v, shared_address(shared.v[warpgroup]));
        }
        __syncwarp();
        if (C::KV_IN_REGISTERS || row0 >= args.T) shared.own_ring.release(place.own_at);
        const int first = first_queries<C>(row0, args.T);
        for (int block = first_queries<C>(tile_row0, args.T); block < first; block++, place.at.advance()) {
            shared.q_ring.wait(place.at);
            __syncwarp();
            shared.q_ring.release(place.at);
        }
        if (first == blocks) continue;
        dkv_first_block(r, shared, place, first == blocks - 1, args.scale_log2);
#pragma unroll 1
        for (int block = first + 1; block < blocks; block++)
            dkv_next_block(r, shared, place, block == blocks - 1, args.scale_log2);
        wgmma_fence();
        multiply_gradients(r, shared, place.at.stage);
        wgmma_wait<0>();
        gradients_done(r);
        shared.q_ring.release(place.at);
        place.at.advance();
        store_dkv(r, work, row0, args);
    }
}

template <int HD, bool CAUSAL>
__global__ void __launch_bounds__(DkvConfig<HD, CAUSAL>::THREADS, 1)
    sm90_dkv_kernel(const __grid_constant__ BackwardArgs args) {
#ifdef SM90_BODY
    using C = DkvConfig<HD, CAUSAL>;
    auto &shared = shared_memory<DkvShared<C>>();
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    for (int i = threadIdx.x; i < C::STAGES * C::FOLD_BYTES / 4; i += C::THREADS)
        reinterpret_cast<uint32_t *>(shared.fold[i / (C::FOLD_BYTES / 4)][1])[i % (C::FOLD_BYTES / 4)] = 0;
    fence_proxy_async();
    if (threadIdx.x == 0) {
        shared.own_ring.init(4 * C::WARPGROUPS);
        shared.q_ring.init(4 * C::WARPGROUPS);
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
