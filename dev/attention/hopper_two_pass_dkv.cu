/* The dK, dV pass of attention backward on Hopper in two passes (hopper_two_pass.cuh). */
#include "hopper.h"
#include "hopper_two_pass.cuh"

/* Row [HD == 128][causal]. flag: the product V dO^T waits for the products of P and dS before it, whose
 * operands' registers it can then have. */
constexpr Sm90Shape DKV_SHAPES[2][2] = {
  /* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
    {{2, 64, 6, 1, 240, 24, false}, {2, 64, 6, 1, 240, 24, false}},
    {{2, 64, 4, 1, 240, 24, true},  {2, 64, 4, 1, 240, 24, true} },
};

template <int HEAD, bool IS_CAUSAL> struct DkvConfig : Sm90Roles {
    static constexpr Sm90Shape SHAPE = DKV_SHAPES[HEAD == 128][IS_CAUSAL];
    static constexpr int HD = HEAD, WARPGROUPS = SHAPE.warpgroups, STAGES = SHAPE.stages, CLUSTER = 1;
    static constexpr bool CAUSAL = IS_CAUSAL, LATE_DP = SHAPE.flag, RANGES = false, SPARSE = false,
                          DROPS = false, KEY_PAIRS = false, KEEPS_MASKS = false;
    static constexpr bool K_IN_REGISTERS = HD == 64; /* and V; at 128 dK and dV take 128 registers */
    static constexpr int TILE_ROWS = WARPGROUPS * WG_ROWS, THREADS = sm90_threads(SHAPE);
    static constexpr int TILE_BYTES = WG_ROWS * HD * 2, LSE_D_BYTES = WG_ROWS * sizeof(LseDRow);
    static_assert(SHAPE.columns == WG_ROWS, "blocks of queries start where a warpgroup's keys start");
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
            tma_load_5d(shared_address(shared.k[i]), &args.rows, 0, row0 + i * WG_ROWS, 0,
                        args.NH + work.head, work.batch, own_full);
            tma_load_5d(shared_address(shared.v[i]), &args.rows, 0, row0 + i * WG_ROWS, 0,
                        2 * args.NH + work.head, work.batch, own_full);
        }
        load_queries(shared.queries, at, work, row0, SeenKeys{}, args);
        index = drawn;
    }
    shared.own_ring.wait_free(own_at);
    shared.work.index = -1;
    shared.own_ring.expect(own_at, 0);
}

/* ---- consumers ---- */

/* V and the A operand of the augmented step stay in registers, too, where there is room. */
template <class C> struct DkvRows : KeyRows<C> {
    uint32_t v[C::K_IN_REGISTERS ? C::HD / 16 : 1][4], ones[2][4];
};

/* acc = rows of K or V, in registers or shared memory, times the block's queries, and its -lse / scale (which = 0) or -D
 * (1) in every row. */
template <class C, int N>
__device__ __forceinline__ void multiply_rows(float (&acc)[WG_ROWS / 2], const uint32_t (&fragments)[N][4],
                                              uint32_t rows, uint32_t tile, const DkvRows<C> &r,
                                              QueryStages<C> &queries, int which, int stage) {
    if constexpr (C::K_IN_REGISTERS) {
        const uint64_t b = descriptor_k_major(tile);
        wgmma<D_SET, B_K_MAJOR>(acc, fragments[0], b);
#pragma unroll
        for (int i = 1; i < C::HD / 16; i++) wgmma<D_ADD, B_K_MAJOR>(acc, fragments[i], b + i * 2);
        wgmma<D_ADD, B_K_MAJOR>(acc, r.ones[which],
                                descriptor_unswizzled(shared_address(queries.lse_d[stage]), 0));
    } else {
        multiply_heads<C::HD>(acc, descriptor_k_major(rows), descriptor_k_major(tile));
        multiply_lse_d(acc, queries, which, stage);
    }
    wgmma_commit();
}
template <class C>
__device__ __forceinline__ void dkv_s(DkvRows<C> &r, QueryStages<C> &queries, const KeyPlace<C> &place,
                                      int stage) {
    multiply_rows<C>(r.s, r.k, place.k, shared_address(queries.q[stage]), r, queries, 0, stage);
}
template <class C>
__device__ __forceinline__ void dkv_dp(DkvRows<C> &r, QueryStages<C> &queries, const KeyPlace<C> &place,
                                       int stage) {
    multiply_rows<C>(r.dp, r.v, place.k + C::WARPGROUPS * C::TILE_BYTES, shared_address(queries.dout[stage]),
                     r, queries, 1, stage);
}

/* P and dS of the first block of queries; it lies on the diagonal if causal. Rows of keys beyond the sequence are not
 * stored, so they need no mask. */
template <class C>
__device__ __forceinline__ void dkv_first_block(DkvRows<C> &r, QueryStages<C> &queries,
                                                const KeyPlace<C> &place, float scale_log2) {
    queries.ring.wait(place.at);
    wgmma_fence();
    dkv_s(r, queries, place, place.at.stage);
    dkv_dp(r, queries, place, place.at.stage);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (C::CAUSAL) mask_queries(r);
    key_probabilities<C, false>(r, scale_log2, place.mask, {});
    wgmma_wait<0>();
    wgmma_results(r.dp);
    key_scores(r, NULL);
    clear_gradients(r);
}

/* The gradients of the block in work, then P and dS of the next. */
template <class C>
__device__ __forceinline__ void dkv_next_block(DkvRows<C> &r, QueryStages<C> &queries, KeyPlace<C> &place,
                                               float scale_log2) {
    const Ring<C::STAGES> next = place.at.next();
    queries.ring.wait(next);
    wgmma_fence();
    multiply_gradients(r, queries, place.at.stage);
    dkv_s(r, queries, place, next.stage);
    if (C::LATE_DP) {
        wgmma_wait<1>();
        gradients_done(r);
        release<C>(queries.ring, place.at);
        wgmma_fence();
    }
    dkv_dp(r, queries, place, next.stage);
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (!C::LATE_DP) {
        gradients_done(r);
        release<C>(queries.ring, place.at);
    }
    key_probabilities<C, false>(r, scale_log2, place.mask, {});
    wgmma_wait<0>();
    wgmma_results(r.dp);
    key_scores(r, NULL);
    place.at = next;
}

/* Writes dK and dV of the warpgroup's keys. */
template <class C>
__device__ __forceinline__ void store_key_rows(const KeyRows<C> &r, const Work &work, int row0,
                                               const BackwardArgs &args) {
    const int64_t stride = 3 * (int64_t)args.NH * C::HD;
    const float scale[2] = {args.scale, args.scale}, one[2] = {1.0f, 1.0f};
    bf16 *dk = args.dqkv + ((int64_t)work.batch * args.T + row0) * stride + (args.NH + work.head) * C::HD;
    store_rows(dk, stride, args.T - row0, r.dk, scale);
    store_rows(dk + args.NH * C::HD, stride, args.T - row0, r.dv, one);
}

template <class C>
__device__ __forceinline__ void dkv_consumer(DkvShared<C> &shared, const BackwardArgs &args, int warpgroup) {
    const int blocks = ceil_div(args.T, (int)WG_ROWS);
    Ring<1> own_at;
    KeyPlace<C> place;
    place.k = shared_address(shared.k[warpgroup]);
    DkvRows<C> r;
    if (C::K_IN_REGISTERS) write_ones(r.ones);
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = read_work(shared.work);
        if (work.index < 0) break;
        const int tile_row0 = work.tile * C::TILE_ROWS, row0 = tile_row0 + warpgroup * WG_ROWS;
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
            dkv_first_block(r, shared.queries, place, args.scale_log2);
#pragma unroll 1
            for (int block = first + 1; block < blocks; block++)
                dkv_next_block(r, shared.queries, place, args.scale_log2);
        }
        if (!C::K_IN_REGISTERS) shared.own_ring.release(own_at);
        if (first == blocks) continue;
        last_gradients(r, shared.queries, place);
        store_key_rows(r, work, row0, args);
    }
}

template <class C> struct DkvKernel : C {
    typedef DkvShared<C> Shared;
    typedef BackwardArgs Args;

    static __device__ __forceinline__ void write_constants(Shared &shared) {
        ::write_constants(shared.queries);
    }
    static __device__ __forceinline__ void init(Shared &shared) {
        shared.own_ring.init(4 * C::WARPGROUPS);
        shared.queries.ring.init(4 * C::WARPGROUPS);
    }
    static __device__ __forceinline__ void produce(Shared &shared, const Args &args, int warp) {
        if (warp == 0) dkv_producer(shared, args);
    }
    static __device__ __forceinline__ void consume(Shared &shared, const Args &args, int warpgroup) {
        dkv_consumer(shared, args, warpgroup);
    }
};

template <int HD, bool CAUSAL>
__global__ void __launch_bounds__(DkvConfig<HD, CAUSAL>::THREADS, 1)
    two_pass_dkv_kernel(const __grid_constant__ BackwardArgs args) {
    run_kernel<DkvKernel<DkvConfig<HD, CAUSAL>>>(args);
}

template <int HD, bool CAUSAL> static void launch_dkv(BackwardArgs &args, int B) {
    using C = DkvConfig<HD, CAUSAL>;
    args.order =
        tile_order(B, args.T, args.NH, C::TILE_ROWS, 2 * HD * 2 + sizeof(LseDRow), false, SM90_GROUP_BYTES);
    launch_persistent("two_pass_dkv_kernel", two_pass_dkv_kernel<HD, CAUSAL>, args, args.order.total,
                      C::THREADS, shared_bytes<DkvShared<C>>());
}

void hopper_two_pass_dkv(floatX *dqkv, const floatX *dout, const floatX *qkv, const void *scratch, int B,
                         int T, int NH, int HD, bool causal) {
    typedef void Launch(BackwardArgs &, int);
    static Launch *const launches[2][2] = {
  /* [HD == 128][causal] */
        {launch_dkv<64,  false>, launch_dkv<64,  true>},
        {launch_dkv<128, false>, launch_dkv<128, true>},
    };
    BackwardArgs args = backward_args(dqkv, dout, qkv, scratch, B, T, NH, HD);
    launches[HD == 128][causal](args, B);
}
