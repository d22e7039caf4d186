/* The dQ pass of attention backward on Hopper in two passes (hopper_two_pass.cuh). */
#include "hopper.h"
#include "hopper_two_pass.cuh"

/* Row [HD == 128][causal]. flag: the product dO V^T waits for the product of dS before it, whose operands'
 * registers it can then have. */
constexpr Sm90Shape DQ_SHAPES[2][2] = {
  /* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
    {{3, 64, 6, 2, 160, 32, false}, {3, 64, 6, 2, 160, 32, false}},
    {{2, 128, 2, 1, 240, 24, true}, {2, 128, 2, 1, 240, 24, true}},
};
template <int HEAD, bool IS_CAUSAL> struct DqConfig : Sm90Roles {
    static constexpr Sm90Shape SHAPE = DQ_SHAPES[HEAD == 128][IS_CAUSAL];
    static constexpr int HD = HEAD, KEYS = SHAPE.columns, WARPGROUPS = SHAPE.warpgroups,
                         STAGES = SHAPE.stages;
    static constexpr int OWN = SHAPE.own_buffers, CLUSTER = 1;
    static constexpr bool CAUSAL = IS_CAUSAL, LATE_DP = SHAPE.flag;
    static constexpr int TILE_ROWS = WARPGROUPS * WG_ROWS, THREADS = sm90_threads(SHAPE);
    static constexpr int OWN_BYTES = WG_ROWS * HD * 2 /* of a warpgroup */, KV_BYTES = KEYS * HD * 2;
    static_assert(KEYS == 64 || KEYS == 128, "wgmma N; a warpgroup's diagonal lies in one block of keys");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
};

template <class C> struct alignas(1024) DqShared {
    uint8_t q[C::OWN][C::WARPGROUPS][C::OWN_BYTES], dout[C::OWN][C::WARPGROUPS][C::OWN_BYTES];
    uint8_t k[C::STAGES][C::KV_BYTES], v[C::STAGES][C::KV_BYTES];
    RingBarriers<C::OWN> own_ring;
    RingBarriers<C::STAGES> k_ring, v_ring;
    Work work[C::OWN];
};

__device__ unsigned dq_tickets;

/* ---- producer: one thread ---- */

template <class C> __device__ __forceinline__ void dq_producer(DqShared<C> &shared, const DqArgs &args) {
    Ring<C::OWN> own_at;
    Ring<C::STAGES> at;
    for (int index = blockIdx.x; index < args.order.total; own_at.advance()) {
        const int drawn = draw_tile(&dq_tickets, args.order.total);
        const Work work = work_at(args.order, index);
        const int row0 = work.tile * C::TILE_ROWS;
        shared.own_ring.wait_free(own_at);
        shared.work[own_at.stage] = work;
        const uint32_t own_full = shared.own_ring.expect(own_at, 2 * C::WARPGROUPS * C::OWN_BYTES);
        for (int i = 0; i < C::WARPGROUPS; i++) {
            tma_load_5d(shared_address(shared.q[own_at.stage][i]), &args.rows, 0, row0 + i * WG_ROWS, 0,
                        work.head, work.batch, own_full);
            tma_load_5d(shared_address(shared.dout[own_at.stage][i]), &args.dout, 0, row0 + i * WG_ROWS, 0,
                        work.head, work.batch, own_full);
        }
        for (int block = key_blocks<C>(row0, C::TILE_ROWS, args.T) - 1; block >= 0; block--, at.advance()) {
            const uint32_t k_full = shared.k_ring.acquire(at, C::KV_BYTES);
            tma_load_5d(shared_address(shared.k[at.stage]), &args.columns, 0, block * C::KEYS, 0,
                        args.NH + work.head, work.batch, k_full);
            const uint32_t v_full = shared.v_ring.acquire(at, C::KV_BYTES);
            tma_load_5d(shared_address(shared.v[at.stage]), &args.columns, 0, block * C::KEYS, 0,
                        2 * args.NH + work.head, work.batch, v_full);
        }
        index = drawn;
    }
    shared.own_ring.wait_free(own_at);
    shared.work[own_at.stage].index = -1;
    shared.own_ring.expect(own_at, 0);
}

/* ---- consumers ---- */

/* A thread's share of the warpgroup's rows. [half] is row thread_row() + 8 * half. */
template <class C> struct DqRows {
    float s[C::KEYS / 2];  /* scores, then P */
    float dp[C::KEYS / 2]; /* dO V^T, then dS */
    float dq[C::HD / 2];
    uint32_t ds[C::KEYS / 16][4]; /* dS as A operand */
    float lse2[2], d[2];          /* lse * log2(e), D */
};

/* This thread's quarter of its two rows of O and dO. */
template <class C> struct DqRowData {
    Vec<bf16> out[2][C::HD / 32], dout[2][C::HD / 32];
    float lse[2];
};

/* Rows beyond the sequence read as 0. */
template <class C>
__device__ __forceinline__ void load_row_data(DqRowData<C> &data, const Work &work, int row0,
                                              const DqArgs &args) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + thread_row() + 8 * half;
        const bool inside = row < args.T;
        const int64_t at =
            (((int64_t)work.batch * args.T + row) * args.NH + work.head) * C::HD + threadIdx.x % 4 * 8;
#pragma unroll
        for (int i = 0; i < C::HD / 32; i++) {
            data.out[half][i] = inside ? load_vec(args.out + at + i * 32) : Vec<bf16>{};
            data.dout[half][i] = inside ? load_vec(args.dout_data + at + i * 32) : Vec<bf16>{};
        }
        data.lse[half] = inside ? args.lse[((int64_t)work.batch * args.NH + work.head) * args.T + row] : 0.0f;
    }
}

/* D of the rows, kept and written for the other pass together with lse. */
template <class C>
__device__ __forceinline__ void finish_row_data(DqRows<C> &r, const DqRowData<C> &data, const Work &work,
                                                int row0, const DqArgs &args) {
    LseDRow *lse_d =
        args.lse_d + ((int64_t)work.batch * args.NH + work.head) * padded_rows(args.T) + row0 + thread_row();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float d = 0.0f;
#pragma unroll
        for (int i = 0; i < C::HD / 32; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                d += to_float(data.out[half][i].v[j]) * to_float(data.dout[half][i].v[j]);
        r.d[half] = quad_sum(d);
        r.lse2[half] = data.lse[half] * LOG2E;
        if (threadIdx.x % 4 == 0)
            lse_d[8 * half] = lse_d_row(-data.lse[half] * args.inverse_scale, -r.d[half]);
    }
}

template <class C> __device__ __forceinline__ void dq_probabilities(DqRows<C> &r, float scale_log2) {
#pragma unroll
    for (int i = 0; i < C::KEYS / 2; i++) r.s[i] = ex2(fmaf(r.s[i], scale_log2, -r.lse2[i / 2 % 2]));
}

template <class C> __device__ __forceinline__ void dq_scores(DqRows<C> &r) {
#pragma unroll
    for (int i = 0; i < C::KEYS / 2; i++) r.dp[i] = r.s[i] * (r.dp[i] - r.d[i / 2 % 2]);
    pack(r.ds, r.dp);
}

template <class C> __device__ __forceinline__ void multiply_dq(DqRows<C> &r, uint32_t k) {
    const uint64_t b = descriptor_mn_major(k, C::KEYS * 128);
#pragma unroll
    for (int i = 0; i < C::KEYS / 16; i++) wgmma<D_ADD, B_MN_MAJOR>(r.dq, r.ds[i], b + i * (2048 >> 4));
    wgmma_commit();
}

template <class C> struct DqPlace {
    Ring<C::OWN> own_at;
    Ring<C::STAGES> at; /* the block of keys in work */
    uint64_t q, dout;   /* descriptors of the warpgroup's rows */
};

/* The first block of keys that the rows see: the only one with a mask. Leaves dS in r.ds. */
template <class C>
__device__ __forceinline__ void dq_first_block(DqRows<C> &r, DqShared<C> &shared, const DqPlace<C> &place,
                                               int block, const Work &work, int row0, const DqArgs &args,
                                               const DqRowData<C> &data) {
    shared.k_ring.wait(place.at);
    shared.v_ring.wait(place.at);
    wgmma_fence();
    multiply_heads<C::HD>(r.s, place.q, descriptor_k_major(shared_address(shared.k[place.at.stage])));
    wgmma_commit();
    multiply_heads<C::HD>(r.dp, place.dout, descriptor_k_major(shared_address(shared.v[place.at.stage])));
    wgmma_commit();
    finish_row_data(r, data, work, row0, args);
    wgmma_wait<1>();
    wgmma_results(r.s);
    mask_keys<C>(r.s, row0, block * C::KEYS, args.T);
    dq_probabilities(r, args.scale_log2);
    wgmma_wait<0>();
    wgmma_results(r.dp);
    shared.v_ring.release(place.at);
    if (block == 0) shared.own_ring.release(place.own_at);
    dq_scores(r);
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.dq[i] = 0.0f;
}

/* dQ += dS K of the block in work, then dS of the next block of keys. last: no more blocks after that. */
template <class C>
__device__ __forceinline__ void dq_next_block(DqRows<C> &r, DqShared<C> &shared, DqPlace<C> &place, bool last,
                                              float scale_log2) {
    const Ring<C::STAGES> next = place.at.next();
    const uint64_t k = descriptor_k_major(shared_address(shared.k[next.stage]));
    const uint64_t v = descriptor_k_major(shared_address(shared.v[next.stage]));
    shared.k_ring.wait(next);
    if (!C::LATE_DP) shared.v_ring.wait(next);
    wgmma_fence();
    multiply_dq(r, shared_address(shared.k[place.at.stage]));
    multiply_heads<C::HD>(r.s, place.q, k);
    wgmma_commit();
    if (C::LATE_DP) {
        wgmma_wait<1>();
        wgmma_results(r.dq);
        wgmma_results(r.ds);
        shared.k_ring.release(place.at);
        shared.v_ring.wait(next);
        wgmma_fence();
    }
    multiply_heads<C::HD>(r.dp, place.dout, v);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_results(r.s);
    if (!C::LATE_DP) {
        wgmma_results(r.dq);
        wgmma_results(r.ds);
        shared.k_ring.release(place.at);
    }
    dq_probabilities(r, scale_log2);
    wgmma_wait<0>();
    wgmma_results(r.dp);
    shared.v_ring.release(next);
    if (last) shared.own_ring.release(place.own_at);
    dq_scores(r);
    place.at = next;
}

template <class C>
__device__ __forceinline__ void dq_consumer(DqShared<C> &shared, const DqArgs &args, int warpgroup) {
    DqPlace<C> place;
    DqRows<C> r;
    for (;; place.own_at.advance()) {
        shared.own_ring.wait(place.own_at);
        const Work work = read_work(shared.work[place.own_at.stage]);
        if (work.index < 0) break;
        const int tile_row0 = work.tile * C::TILE_ROWS, row0 = tile_row0 + warpgroup * WG_ROWS;
        DqRowData<C> data;
        load_row_data(data, work, row0, args);
        const int seen = key_blocks<C>(row0, WG_ROWS, args.T);
        for (int block = key_blocks<C>(tile_row0, C::TILE_ROWS, args.T); block > seen;
             block--, place.at.advance()) {
            shared.k_ring.wait(place.at);
            shared.v_ring.wait(place.at);
            __syncwarp();
            shared.k_ring.release(place.at);
            shared.v_ring.release(place.at);
        }
        if (seen == 0) {
            shared.own_ring.release(place.own_at);
            continue;
        }
        place.q = descriptor_k_major(shared_address(shared.q[place.own_at.stage][warpgroup]));
        place.dout = descriptor_k_major(shared_address(shared.dout[place.own_at.stage][warpgroup]));
        dq_first_block(r, shared, place, seen - 1, work, row0, args, data);
#pragma unroll 1
        for (int block = seen - 2; block >= 0; block--)
            dq_next_block(r, shared, place, block == 0, args.scale_log2);
        wgmma_fence();
        multiply_dq(r, shared_address(shared.k[place.at.stage]));
        wgmma_wait<0>();
        wgmma_results(r.dq);
        shared.k_ring.release(place.at);
        place.at.advance();

        const int64_t stride = 3 * (int64_t)args.NH * C::HD;
        const float factor[2] = {args.scale, args.scale};
        store_rows(args.dqkv + ((int64_t)work.batch * args.T + row0) * stride + work.head * C::HD, stride,
                   args.T - row0, r.dq, factor);
    }
}

template <class C> struct DqKernel : C {
    typedef DqShared<C> Shared;
    typedef DqArgs Args;

    static __device__ __forceinline__ void init(Shared &shared) {
        shared.own_ring.init(4 * C::WARPGROUPS);
        shared.k_ring.init(4 * C::WARPGROUPS);
        shared.v_ring.init(4 * C::WARPGROUPS);
    }
    static __device__ __forceinline__ void produce(Shared &shared, const Args &args, int warp) {
        if (warp == 0) dq_producer(shared, args);
    }
    static __device__ __forceinline__ void consume(Shared &shared, const Args &args, int warpgroup) {
        dq_consumer(shared, args, warpgroup);
    }
};

template <int HD, bool CAUSAL>
__global__ void __launch_bounds__(DqConfig<HD, CAUSAL>::THREADS, 1)
    two_pass_dq_kernel(const __grid_constant__ DqArgs args) {
    run_kernel<DqKernel<DqConfig<HD, CAUSAL>>>(args);
}

/* ---- host ---- */

template <int HD, bool CAUSAL> static void launch_dq(DqArgs &args, const floatX *qkv, int B) {
    using C = DqConfig<HD, CAUSAL>;
    args.columns = tensor_map(qkv, B, args.T, 3 * args.NH, HD, C::KEYS);
    args.order = tile_order(B, args.T, args.NH, C::TILE_ROWS, 2 * HD * 2, CAUSAL, SM90_GROUP_BYTES);
    launch_persistent("two_pass_dq_kernel", two_pass_dq_kernel<HD, CAUSAL>, args, args.order.total,
                      C::THREADS, shared_bytes<DqShared<C>>());
}

void hopper_two_pass_dq(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                        const float *lse, void *scratch, int B, int T, int NH, int HD, bool causal) {
    typedef void Launch(DqArgs &, const floatX *, int);
    static Launch *const launches[2][2] = {
  /* [HD == 128][causal] */
        {launch_dq<64,  false>, launch_dq<64,  true>},
        {launch_dq<128, false>, launch_dq<128, true>},
    };
    DqArgs args = {};
    static_cast<BackwardArgs &>(args) = backward_args(dqkv, dout, qkv, scratch, B, T, NH, HD);
    args.dout_data = (const bf16 *)dout;
    args.out = (const bf16 *)out;
    args.lse = lse;
    launches[HD == 128][causal](args, qkv, B);
}
