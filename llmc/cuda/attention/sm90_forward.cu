/* Attention forward for sm_90a, bf16, head size 64 and 128 (FlashAttention-2, Dao 2023, Algorithm 1;
 * FlashAttention-3, Shah et al. 2024, for the roles of the warps). out =, lse =.
 *
 * A tile is 192 (head size 64) or 128 (128) query rows of one head, 64 for each consumer warpgroup; keys come
 * in blocks of 128, from the diagonal (or the end) down to 0. Each warpgroup visits only the blocks that its
 * own rows see and merely releases the others; only its first block is masked. O, the row sums and P stay in
 * registers.
 *
 * Frozen maximum. Softmax does not depend on the value subtracted from the scores, and P in bf16 and sums in
 * fp32 have 8-bit exponents, so that value need not be the maximum, only be within some 2^60 of it. The
 * maximum of the first block is taken and kept: no maxima, no shuffles, no rescaling of O in the main loop
 * (12-14 % of the kernel). A tile where a row sum is not finite or passes 2^64 goes on a list, and a second
 * launch does the listed tiles again with the running maximum: right for any input, slow only where scores
 * grow by 44 nats away from the diagonal. */
#include "sm90.cuh"
#include "sm90_common.cuh"

/* Row [HD == 128][causal]. flag: the products with P and the next scores are queued scores first and the
 * exponentials start when the scores are done (else when both are). Fewer than 192 rows at head size 64 would
 * need more of L2 than it gives; at 128 O alone takes 64 registers, so there are two warpgroups of 240. */
constexpr Sm90Shape FORWARD_SHAPES[2][2] = {
  /* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
    {{3, 128, 4, 2, 160, 32, false}, {3, 128, 4, 2, 160, 32, false}},
    {{2, 128, 2, 2, 240, 24, true},  {2, 128, 2, 2, 240, 24, true} },
};

template <int HEAD, bool IS_CAUSAL> struct ForwardConfig {
    static constexpr Sm90Shape SHAPE = FORWARD_SHAPES[HEAD == 128][IS_CAUSAL];
    static constexpr int HD = HEAD, KEYS = SHAPE.columns, WARPGROUPS = SHAPE.warpgroups,
                         STAGES = SHAPE.stages;
    static constexpr bool CAUSAL = IS_CAUSAL, SCORES_FIRST = SHAPE.flag;
    static constexpr int TILE_ROWS = WARPGROUPS * ROWS, THREADS = sm90_threads(SHAPE);
    static constexpr int Q_BYTES = ROWS * HD * 2 /* of a warpgroup */, KV_BYTES = KEYS * HD * 2;
    static_assert(HD == 64 || HD == 128, "the TMA maps and wgmma shapes are for these");
    static_assert(KEYS == 128, "wgmma N of the scores; a warpgroup's diagonal lies in one block of keys");
    static_assert(SHAPE.own_buffers == 2 && STAGES >= 2, "the rings below");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
};

template <class C> struct alignas(1024) ForwardShared {
    uint8_t q[2][C::WARPGROUPS][C::Q_BYTES];
    uint8_t k[C::STAGES][C::KV_BYTES], v[C::STAGES][C::KV_BYTES];
    RingBarriers<2> q_ring;
    RingBarriers<C::STAGES> k_ring, v_ring;
    Work work[2]; /* of the tile whose Q is in the buffer */
    int listed;   /* the tile that was last put on the redo list */
};

/* Tiles to be done again with the running maximum. If there are more than fit, all are done again. */
enum { REDO_MAX = 1 << 16 };
typedef struct RedoList {
    int count;
    int tiles[REDO_MAX];
} RedoList;
__device__ RedoList redo_list;
__device__ unsigned forward_tickets, redo_tickets;

typedef struct ForwardArgs {
    CUtensorMap q, kv; /* boxes of 64 and of KEYS rows of qkv */
    bf16 *out;
    float *lse;
    int T, NH;
    TileOrder order;
    float scale_log2; /* log2(e) / sqrt(HD) */
    bool redo;        /* tiles come from redo_list */
} ForwardArgs;

/* ---- producer: one thread ---- */

template <class C>
__device__ __forceinline__ void load_keys(ForwardShared<C> &shared, const ForwardArgs &args, const Work &work,
                                          int block, Ring<C::STAGES> at) {
    const uint32_t k_full = shared.k_ring.acquire(at, C::KV_BYTES);
    tma_load_5d(shared_address(shared.k[at.stage]), &args.kv, 0, block * C::KEYS, 0, args.NH + work.head,
                work.batch, k_full);
    const uint32_t v_full = shared.v_ring.acquire(at, C::KV_BYTES);
    tma_load_5d(shared_address(shared.v[at.stage]), &args.kv, 0, block * C::KEYS, 0, 2 * args.NH + work.head,
                work.batch, v_full);
}

template <class C>
__device__ __forceinline__ void forward_producer(ForwardShared<C> &shared, const ForwardArgs &args) {
    Ring<2> q_at;
    Ring<C::STAGES> at;
    const int count = args.redo ? redo_list.count : 0;
    const bool listed = args.redo && count <= REDO_MAX;
    const int total = listed ? count : args.order.total;
    for (int index = blockIdx.x; index < total; q_at.advance()) {
        const int drawn = draw_tile(args.redo ? &redo_tickets : &forward_tickets, total);
        const Work work = work_at(args.order, listed ? redo_list.tiles[index] : index);
        const int row0 = work.tile * C::TILE_ROWS;

        shared.q_ring.wait_free(q_at);
        shared.work[q_at.stage] = work;
        const uint32_t q_full = shared.q_ring.expect(q_at, C::WARPGROUPS * C::Q_BYTES);
        for (int i = 0; i < C::WARPGROUPS; i++)
            tma_load_5d(shared_address(shared.q[q_at.stage][i]), &args.q, 0, row0 + i * ROWS, 0, work.head,
                        work.batch, q_full);
        for (int block = key_blocks<C>(row0, C::TILE_ROWS, args.T) - 1; block >= 0; block--, at.advance())
            load_keys(shared, args, work, block, at);

        if (args.redo && drawn == (int)gridDim.x + total - 1)
            redo_list.count = 0; /* nobody will look again */
        index = drawn;
    }
    shared.q_ring.wait_free(q_at);
    shared.work[q_at.stage].index = -1;
    shared.q_ring.expect(q_at, 0);
}

/* ---- consumers ---- */

/* A thread's share of the warpgroup's rows. [half] is row thread_row() + 8 * half. */
template <class C> struct ForwardRows {
    float s[C::KEYS / 2]; /* scores q.k, then P */
    float o[C::HD / 2];
    uint32_t p[C::KEYS / 16][4]; /* P of the block before, as A operand */
    float shift[2];              /* log2 units: subtracted from scale_log2 * s */
    float max[2];                /* of s so far (running maximum) */
    float rescale[2];            /* of O and sums at this block (running maximum) */
    float sum[4]; /* of this thread's columns; [half] and [half + 2]: two chains of additions */
};

template <class C> __device__ __forceinline__ void multiply_qk(ForwardRows<C> &r, uint64_t q, uint64_t k) {
#pragma unroll
    for (int i = 0; i < C::HD / 16; i++) {
        const uint64_t a = q + (i / 4) * (ROWS * 128 >> 4) + i % 4 * 2,
                       b = k + (i / 4) * (C::KEYS * 128 >> 4) + i % 4 * 2;
        if (i == 0)
            wgmma<D_SET, B_K_MAJOR>(r.s, a, b);
        else
            wgmma<D_ADD, B_K_MAJOR>(r.s, a, b);
    }
    wgmma_commit();
}

template <class C> __device__ __forceinline__ void multiply_pv(ForwardRows<C> &r, uint64_t v) {
#pragma unroll
    for (int i = 0; i < C::KEYS / 16; i++) wgmma<D_ADD, B_MN_MAJOR>(r.o, r.p[i], v + i * (2048 >> 4));
    wgmma_commit();
}

template <class C> __device__ __forceinline__ void block_max(const ForwardRows<C> &r, float (&max)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        max[half] = r.s[2 * half];
#pragma unroll
        for (int i = 1; i < C::KEYS / 4; i++) max[half] = fmaxf(max[half], r.s[i / 2 * 4 + 2 * half + i % 2]);
        max[half] = quad_max(max[half]);
    }
}

/* A row that has seen only -inf keeps shift 0: -inf - -inf would be NaN. */
template <class C> __device__ __forceinline__ void update_max(ForwardRows<C> &r, float scale_log2) {
    float max[2];
    block_max(r, max);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float old = r.max[half];
        r.max[half] = fmaxf(old, max[half]);
        r.shift[half] = r.max[half] == -CUDART_INF_F ? 0.0f : r.max[half] * scale_log2;
        r.rescale[half] = ex2(fmaf(old, scale_log2, -r.shift[half]));
        r.sum[half] *= r.rescale[half];
        r.sum[half + 2] *= r.rescale[half];
    }
}

template <class C> __device__ __forceinline__ void exponentials(ForwardRows<C> &r, float scale_log2) {
#pragma unroll
    for (int i = 0; i < C::KEYS / 2; i++) {
        const int half = i / 2 % 2;
        r.s[i] = ex2(fmaf(r.s[i], scale_log2, -r.shift[half]));
        r.sum[half + i % 2 * 2] += r.s[i];
    }
}

template <class C> __device__ __forceinline__ void rescale(ForwardRows<C> &r) {
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.o[i] *= r.rescale[i / 2 % 2];
}

/* What a warpgroup knows of its place. */
template <class C> struct ForwardPlace {
    int warpgroup;
    Ring<2> q_at;
    Ring<C::STAGES> at; /* the block of keys in work */
};

/* Turns: warpgroup w may issue its products between turn_begin and turn_end; then it is the turn of the next.
 */
template <class C, bool TURNS> __device__ __forceinline__ void turn_begin(int warpgroup) {
    if (TURNS) named_barrier_sync<2 * WARPGROUP>(1 + warpgroup);
}
template <class C, bool TURNS> __device__ __forceinline__ void turn_end(int warpgroup) {
    if (TURNS) named_barrier_arrive<2 * WARPGROUP>(1 + (warpgroup + 1) % C::WARPGROUPS);
}

/* Blocks of keys of the tile that this warpgroup's rows do not see: release them, and pass the turn. */
template <class C, bool TURNS>
__device__ __forceinline__ void skip_blocks(ForwardShared<C> &shared, ForwardPlace<C> &place, int last,
                                            int seen) {
    for (int block = last; block >= seen; block--, place.at.advance()) {
        shared.k_ring.wait(place.at);
        shared.v_ring.wait(place.at);
        __syncwarp();
        shared.k_ring.release(place.at);
        shared.v_ring.release(place.at);
        if (block > 0) {
            turn_begin<C, TURNS>(place.warpgroup);
            turn_end<C, TURNS>(place.warpgroup);
        }
    }
}

/* The first block that the rows see: its scores, masked, give the first maximum; P is left in r.p. */
template <class C, Sm90Softmax SOFTMAX>
__device__ __forceinline__ void first_block(ForwardRows<C> &r, ForwardShared<C> &shared,
                                            const ForwardPlace<C> &place, uint64_t q, int block, int row0,
                                            const ForwardArgs &args) {
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) r.sum[i] = 0.0f;
    shared.k_ring.wait(place.at);
    wgmma_fence();
    multiply_qk(r, q, descriptor_k_major(shared_address(shared.k[place.at.stage])));
    wgmma_wait<0>();
    wgmma_results(r.s);
    shared.k_ring.release(place.at);
    if (block == 0) shared.q_ring.release(place.q_at);

    mask_keys<C>(r.s, row0, block * C::KEYS, args.T);
    if (SOFTMAX == SM90_FROZEN) {
        block_max(r, r.max);
#pragma unroll
        for (int half = 0; half < 2; half++) r.shift[half] = r.max[half] * args.scale_log2;
    } else {
        r.max[0] = r.max[1] = -CUDART_INF_F;
        update_max(r, args.scale_log2);
    }
    exponentials(r, args.scale_log2);
    pack(r.p, r.s);
}

/* One step of the main loop: O += P V of the block in work, then P of the next block of keys. The two
 * products are queued together; last: no more scores after this. */
template <class C, Sm90Softmax SOFTMAX, bool TURNS>
__device__ __forceinline__ void next_block(ForwardRows<C> &r, ForwardShared<C> &shared,
                                           ForwardPlace<C> &place, uint64_t q, bool last, float scale_log2) {
    const Ring<C::STAGES> next = place.at.next();
    const uint64_t k = descriptor_k_major(shared_address(shared.k[next.stage]));
    const uint64_t v = descriptor_mn_major(shared_address(shared.v[place.at.stage]), C::KEYS * 128);
    shared.v_ring.wait(place.at);
    shared.k_ring.wait(next);
    turn_begin<C, TURNS>(place.warpgroup);
    wgmma_fence();
    if (C::SCORES_FIRST) {
        multiply_qk(r, q, k);
        multiply_pv(r, v);
    } else {
        multiply_pv(r, v);
        multiply_qk(r, q, k);
    }
    turn_end<C, TURNS>(place.warpgroup);
    wgmma_wait<C::SCORES_FIRST ? 1 : 0>();
    wgmma_results(r.s);
    shared.k_ring.release(next);
    if (last) shared.q_ring.release(place.q_at);
    if (!C::SCORES_FIRST) {
        wgmma_results(r.o);
        wgmma_results(r.p);
        shared.v_ring.release(place.at);
    }
    if (SOFTMAX == SM90_ONLINE) update_max(r, scale_log2);
    exponentials(r, scale_log2);
    if (C::SCORES_FIRST) {
        wgmma_wait<0>();
        wgmma_results(r.o);
        wgmma_results(r.p);
        shared.v_ring.release(place.at);
    }
    if (SOFTMAX == SM90_ONLINE) rescale(r);
    pack(r.p, r.s);
    place.at = next;
}

/* O / sum and lse of the warpgroup's rows; a tile whose frozen maximum did not do goes on the redo list. Its
 * other warpgroups may find it there (or, rarely, list it twice: it is then done twice, with the same
 * result). */
template <class C, Sm90Softmax SOFTMAX>
__device__ __forceinline__ void finish_rows(const ForwardRows<C> &r, const Work &work, int row0,
                                            const ForwardArgs &args, int *listed) {
    const int64_t head = (int64_t)work.batch * args.NH + work.head;
    float inverse[2];
    bool bad = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float sum = quad_sum(r.sum[half] + r.sum[half + 2]);
        const int row = row0 + thread_row() + 8 * half;
        inverse[half] = 1.0f / sum;
        bad |= !(sum <= 0x1p64f);
        if (threadIdx.x % 4 == 0 && row < args.T)
            args.lse[head * args.T + row] = (r.shift[half] + log2f(sum)) * SM90_LN2;
    }
    const int64_t stride = (int64_t)args.NH * C::HD;
    store_rows(args.out + ((int64_t)work.batch * args.T + row0) * stride + work.head * C::HD, stride,
               args.T - row0, r.o, inverse);
    if (SOFTMAX == SM90_FROZEN && __any_sync(0xffffffffu, bad) && threadIdx.x % 32 == 0 &&
        atomicExch(listed, work.index) != work.index) {
        const int slot = atomicAdd(&redo_list.count, 1);
        if (slot < REDO_MAX) redo_list.tiles[slot] = work.index;
    }
}

template <class C, Sm90Softmax SOFTMAX, bool TURNS>
__device__ __forceinline__ void forward_consumer(ForwardShared<C> &shared, const ForwardArgs &args,
                                                 int warpgroup) {
    ForwardPlace<C> place;
    place.warpgroup = warpgroup;
    ForwardRows<C> r;
    if (warpgroup == C::WARPGROUPS - 1) turn_end<C, TURNS>(warpgroup); /* the first turn */
    for (;; place.q_at.advance()) {
        shared.q_ring.wait(place.q_at);
        const Work work = shared.work[place.q_at.stage];
        if (work.index < 0) break;
        const int tile_row0 = work.tile * C::TILE_ROWS, row0 = tile_row0 + warpgroup * ROWS;
        const int blocks = key_blocks<C>(tile_row0, C::TILE_ROWS, args.T),
                  seen = key_blocks<C>(row0, ROWS, args.T);
        skip_blocks<C, TURNS>(shared, place, blocks - 1, seen);
        if (seen == 0) {
            shared.q_ring.release(place.q_at);
            continue;
        }
        const uint64_t q = descriptor_k_major(shared_address(shared.q[place.q_at.stage][warpgroup]));
        first_block<C, SOFTMAX>(r, shared, place, q, seen - 1, row0, args);
#pragma unroll 1
        for (int block = seen - 2; block >= 0; block--)
            next_block<C, SOFTMAX, TURNS>(r, shared, place, q, block == 0, args.scale_log2);

        shared.v_ring.wait(place.at);
        wgmma_fence();
        multiply_pv(r, descriptor_mn_major(shared_address(shared.v[place.at.stage]), C::KEYS * 128));
        wgmma_wait<0>();
        wgmma_results(r.o);
        shared.v_ring.release(place.at);
        place.at.advance();
        finish_rows<C, SOFTMAX>(r, work, row0, args, &shared.listed);
    }
    if (warpgroup == 0)
        turn_begin<C, TURNS>(0); /* takes the turn that nobody needs, so that no barrier is left half full */
}

template <int HD, bool CAUSAL, Sm90Softmax SOFTMAX, bool TURNS>
__global__ void __launch_bounds__(ForwardConfig<HD, CAUSAL>::THREADS, 1)
    sm90_forward_kernel(const __grid_constant__ ForwardArgs args) {
#ifdef SM90_BODY
    using C = ForwardConfig<HD, CAUSAL>;
    auto &shared = shared_memory<ForwardShared<C>>();
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    if (threadIdx.x == 0) {
        shared.q_ring.init(4 * C::WARPGROUPS);
        shared.k_ring.init(4 * C::WARPGROUPS);
        shared.v_ring.init(4 * C::WARPGROUPS);
        shared.listed = -1;
        fence_mbarrier_init();
    }
    __syncthreads();
    if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        if (threadIdx.x % WARPGROUP == 0) forward_producer(shared, args);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        forward_consumer<C, SOFTMAX, TURNS>(shared, args, warpgroup);
    }
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

/* ---- host ---- */

template <int HD, bool CAUSAL, Sm90Softmax SOFTMAX, bool TURNS>
static void launch(const ForwardArgs &args, const char *name) {
    using C = ForwardConfig<HD, CAUSAL>;
    launch_persistent(name, sm90_forward_kernel<HD, CAUSAL, SOFTMAX, TURNS>, args, args.order.total,
                      C::THREADS, shared_bytes<ForwardShared<C>>());
}

template <int HD, bool CAUSAL, bool TURNS>
static void forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, Sm90Softmax softmax) {
    using C = ForwardConfig<HD, CAUSAL>;
    ForwardArgs args;
    args.q = tensor_map(qkv, B, T, 3 * NH, HD, ROWS);
    args.kv = tensor_map(qkv, B, T, 3 * NH, HD, C::KEYS);
    args.out = (bf16 *)out;
    args.lse = lse;
    args.T = T;
    args.NH = NH;
    args.order = tile_order(B, T, NH, C::TILE_ROWS, 2 * HD * 2, CAUSAL);
    args.scale_log2 = SM90_LOG2E / sqrtf((float)HD);
    args.redo = false;
    if (softmax == SM90_ONLINE) {
        launch<HD, CAUSAL, SM90_ONLINE, TURNS>(args, "sm90_forward_kernel (online)");
        return;
    }
    launch<HD, CAUSAL, SM90_FROZEN, TURNS>(args, "sm90_forward_kernel (frozen)");
    args.redo = true;
    launch<HD, CAUSAL, SM90_ONLINE, TURNS>(args, "sm90_forward_kernel (redo)");
}

void attention_forward_sm90_variant(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                    bool causal, Sm90Softmax softmax, Sm90Order order) {
    typedef void Forward(floatX *, float *, const floatX *, int, int, int, Sm90Softmax);
    static Forward *const forwards[2][2][2] = {
  /* [HD == 128][causal][order] */
        {{forward<64, false, false>, forward<64, false, true>},
         {forward<64, true, false>, forward<64, true, true>}  },
        {{forward<128, false, false>, forward<128, false, true>},
         {forward<128, true, false>, forward<128, true, true>}},
    };
    forwards[HD == 128][causal][order](out, lse, qkv, B, T, NH, softmax);
}

void attention_forward_sm90(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                            bool causal) {
    attention_forward_sm90_variant(out, lse, qkv, B, T, NH, HD, causal, SM90_FROZEN, SM90_TURNS);
}
