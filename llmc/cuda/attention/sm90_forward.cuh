/* The kernel of attention forward for sm_90a. What it computes and why it is built so: sm90_forward.cu.
 *
 * Order of things in a consumer warpgroup, for each tile: skip the blocks of keys that its rows do not see;
 * queue the last P V of the tile before and the scores of the first block together; write the output of the
 * tile before while the scores are under way; then in each step queue P V of one block and the scores of the
 * next, and take exponentials. */
#pragma once
#include "sm90.cuh"
#include "sm90_common.cuh"

/* columns: keys of a block. flag: the products of a step are queued scores first and the exponentials start
 * when the scores are done (else when both are). */
constexpr Sm90Shape FORWARD_SHAPES[] = {
  /* warpgroups, columns, stages, own_buffers, registers, producer_registers, flag */
    {3, 128, 4, 3, 160, 32, false},
    {3, 64,  4, 2, 160, 32, true },
    {2, 128, 2, 2, 232, 40, true },
};

template <int HEAD, bool IS_CAUSAL, int SHAPE_ROW, Sm90Softmax SOFT, Sm90Order ORDER> struct ForwardConfig {
    static constexpr Sm90Shape SHAPE = FORWARD_SHAPES[SHAPE_ROW];
    static constexpr int HD = HEAD, KEYS = SHAPE.columns, WARPGROUPS = SHAPE.warpgroups,
                         STAGES = SHAPE.stages, Q_BUFFERS = SHAPE.own_buffers;
    static constexpr bool CAUSAL = IS_CAUSAL, SCORES_FIRST = SHAPE.flag, TURNS = ORDER == SM90_TURNS;
    static constexpr Sm90Softmax SOFTMAX = SOFT;
    static constexpr int TILE_ROWS = WARPGROUPS * ROWS, THREADS = sm90_threads(SHAPE);
    static constexpr int Q_BYTES = ROWS * HD * 2 /* of a warpgroup */, KV_BYTES = KEYS * HD * 2;
    static_assert(HD == 64 || HD == 128, "the TMA maps and wgmma shapes are for these");
    static_assert(KEYS == 64 || KEYS == 128, "wgmma N of the scores; 64 rows' diagonal is in one block");
    static_assert(STAGES > (TILE_ROWS - ROWS) / KEYS, "skipping while a V is held must not wait for that V");
    static_assert(sm90_registers_fit(SHAPE), "setmaxnreg");
};

template <class C> struct alignas(1024) ForwardShared {
    uint8_t q[C::Q_BUFFERS][C::WARPGROUPS][C::Q_BYTES];
    uint8_t k[C::STAGES][C::KV_BYTES], v[C::STAGES][C::KV_BYTES];
    RingBarriers<C::Q_BUFFERS> q_ring;
    RingBarriers<C::STAGES> k_ring, v_ring;
    Work work[C::Q_BUFFERS]; /* of the tile whose Q is in the buffer */
    int listed;              /* the tile that was last put on the redo list */
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
    CUtensorMap out;   /* boxes of 16 rows */
    float *lse;
    int T, NH;
    int missing; /* slots (64 rows) by which the tiles could hold more than T: 0 to WARPGROUPS - 1 */
    TileOrder order;
    float scale_log2; /* log2(e) / sqrt(HD) */
    bool redo;        /* tiles come from redo_list; the launch may begin before the one that fills it ends */
    bool rotate;      /* the warpgroups take turns in owning the first, second, third 64 rows */
    bool apart;       /* a tile ends before the next begins */
} ForwardArgs;

/* The first slot of 64 rows of a tile. Causal: the missing slots are all missed at the start, where a tile is
 * short. Else the first tiles have one slot less each: two warpgroups keep the tensor cores busy, one does not. */
template <class C> __device__ __forceinline__ int first_slot(const ForwardArgs &args, int tile) {
    const int slot = tile * C::WARPGROUPS;
    return C::CAUSAL ? max(0, slot - args.missing) : slot - min(tile, args.missing);
}

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
    Ring<C::Q_BUFFERS> q_at;
    Ring<C::STAGES> at;
    const int count = args.redo ? redo_list.count : 0;
    const bool listed = args.redo && count <= REDO_MAX;
    const int total = listed ? count : args.order.total;
    for (int index = blockIdx.x; index < total; q_at.advance()) {
        const int drawn = draw_tile(args.redo ? &redo_tickets : &forward_tickets, total);
        const Work work = work_at(args.order, listed ? redo_list.tiles[index] : index);
        const int slot0 = first_slot<C>(args, work.tile), slots = first_slot<C>(args, work.tile + 1) - slot0;
        const int row0 = slot0 * ROWS;

        shared.q_ring.wait_free(q_at);
        shared.work[q_at.stage] = work;
        const uint32_t q_full = shared.q_ring.expect(q_at, slots * C::Q_BYTES);
        for (int i = 0; i < slots; i++)
            tma_load_5d(shared_address(shared.q[q_at.stage][i]), &args.q, 0, row0 + i * ROWS, 0, work.head,
                        work.batch, q_full);
        for (int block = key_blocks<C>(row0, slots * ROWS, args.T) - 1; block >= 0; block--, at.advance())
            load_keys(shared, args, work, block, at);

        if (args.redo && drawn == (int)gridDim.x + total - 1)
            redo_list.count = 0; /* nobody will look again */
        index = drawn;
    }
    shared.q_ring.wait_free(q_at);
    shared.work[q_at.stage].index = -1;
    shared.q_ring.expect(q_at, 0);
}

/* ---- consumers: what a thread holds ---- */

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

/* What a warpgroup knows of its place. */
template <class C> struct ForwardPlace {
    int warpgroup;
    int rows; /* which 64 rows of the tile are its own */
    Ring<C::Q_BUFFERS> q_at;
    Ring<C::STAGES> at;   /* the next block of keys */
    Ring<C::STAGES> v_at; /* the block whose P is in r.p */
    bool pending;         /* the tile before waits for its last P V and its output */
    Ring<C::Q_BUFFERS> q_before;
    int rows_before;
};

/* The first M of x, as an array. */
template <int M, int N> __device__ __forceinline__ float (&first(float (&x)[N]))[M] {
    static_assert(M <= N, "they are there");
    return reinterpret_cast<float(&)[M]>(x);
}

template <class C> __device__ __forceinline__ uint64_t k_tile(ForwardShared<C> &shared, int stage) {
    return descriptor_k_major(shared_address(shared.k[stage]));
}
template <class C> __device__ __forceinline__ uint64_t v_tile(ForwardShared<C> &shared, int stage) {
    return descriptor_mn_major(shared_address(shared.v[stage]), C::KEYS * 128);
}

/* Scores of all keys of the block, or of the first half (32 registers of 64). */
template <class C, int N> __device__ __forceinline__ void multiply_qk(float (&s)[N], uint64_t q, uint64_t k) {
#pragma unroll
    for (int i = 0; i < C::HD / 16; i++) {
        const uint64_t a = q + (i / 4) * (ROWS * 128 >> 4) + i % 4 * 2,
                       b = k + (i / 4) * (C::KEYS * 128 >> 4) + i % 4 * 2;
        if (i == 0)
            wgmma<D_SET, B_K_MAJOR>(s, a, b);
        else
            wgmma<D_ADD, B_K_MAJOR>(s, a, b);
    }
    wgmma_commit();
}

/* O = or += P V. */
template <WgmmaD D, class C> __device__ __forceinline__ void multiply_pv(ForwardRows<C> &r, uint64_t v) {
    wgmma<D, B_MN_MAJOR>(r.o, r.p[0], v);
#pragma unroll
    for (int i = 1; i < C::KEYS / 16; i++) wgmma<D_ADD, B_MN_MAJOR>(r.o, r.p[i], v + i * (2048 >> 4));
    wgmma_commit();
}

/* ---- consumers: softmax ---- */

template <int N> __device__ __forceinline__ void block_max(const float (&s)[N], float (&max)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        max[half] = s[2 * half];
#pragma unroll
        for (int i = 1; i < N / 2; i++) max[half] = fmaxf(max[half], s[i / 2 * 4 + 2 * half + i % 2]);
        max[half] = quad_max(max[half]);
    }
}

/* A row that has seen only -inf keeps shift 0: -inf - -inf would be NaN. */
template <class C, int N>
__device__ __forceinline__ void update_max(ForwardRows<C> &r, const float (&s)[N], float scale_log2) {
    float max[2];
    block_max(s, max);
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

template <class C, int N>
__device__ __forceinline__ void exponentials(ForwardRows<C> &r, float (&s)[N], float scale_log2) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int half = i / 2 % 2;
        s[i] = ex2(fmaf(s[i], scale_log2, -r.shift[half]));
        r.sum[half + i % 2 * 2] += s[i];
    }
}

/* P to the A operand; 0 for keys that were left out. */
template <class C, int N> __device__ __forceinline__ void pack_p(ForwardRows<C> &r, const float (&s)[N]) {
#pragma unroll
    for (int i = 0; i < C::KEYS / 4; i++)
        r.p[i / 4][i % 4] = 2 * i < N ? cvt_bf16x2(s[2 * i % N], s[2 * i % N + 1]) : 0;
}

template <class C> __device__ __forceinline__ void rescale(ForwardRows<C> &r) {
#pragma unroll
    for (int i = 0; i < C::HD / 2; i++) r.o[i] *= r.rescale[i / 2 % 2];
}

/* P of a tile's first block. Causal: its last 64 keys are those of the rows' own positions, so the mask is
 * the same triangle for every tile. The frozen maximum is that of its first 64 keys, of which every row sees
 * one or more. */
template <class C, int N>
__device__ __forceinline__ void first_probabilities(ForwardRows<C> &r, float (&s)[N], int row0, int block,
                                                    const ForwardArgs &args) {
#pragma unroll
    for (int i = 0; i < 4; i++) r.sum[i] = 0.0f;
    if (C::CAUSAL)
        mask_diagonal(s);
    else
        mask_keys<C>(s, row0, block * C::KEYS, args.T);
    if (C::SOFTMAX == SM90_FROZEN) {
        if (C::CAUSAL)
            block_max(first<ROWS / 2>(s), r.max);
        else
            block_max(s, r.max);
#pragma unroll
        for (int half = 0; half < 2; half++) r.shift[half] = r.max[half] * args.scale_log2;
    } else {
        r.max[0] = r.max[1] = -CUDART_INF_F;
        update_max(r, s, args.scale_log2);
    }
    exponentials(r, s, args.scale_log2);
    pack_p(r, s);
}

/* ---- consumers: the steps ---- */

/* Turns: warpgroup w may issue its products between turn_begin and turn_end; then it is the turn of the next.
 * Every warpgroup takes one turn for each block of keys, also for those that it skips. */
enum { TURN_BARRIER = 1, FINISH_BARRIER = 4 /* ids of named barriers: one for each warpgroup */ };

template <class C> __device__ __forceinline__ void turn_begin(int warpgroup) {
    if (C::TURNS) named_barrier_sync<2 * WARPGROUP>(TURN_BARRIER + warpgroup);
}
template <class C> __device__ __forceinline__ void turn_end(int warpgroup) {
    if (C::TURNS) named_barrier_arrive<2 * WARPGROUP>(TURN_BARRIER + (warpgroup + 1) % C::WARPGROUPS);
}

/* Blocks of keys of the tile that this warpgroup's rows do not see. */
template <class C>
__device__ __forceinline__ void skip_blocks(ForwardShared<C> &shared, ForwardPlace<C> &place, int n) {
    for (; n > 0; n--, place.at.advance()) {
        shared.k_ring.wait(place.at);
        shared.v_ring.wait(place.at);
        shared.k_ring.release(place.at);
        shared.v_ring.release(place.at);
        turn_begin<C>(place.warpgroup);
        turn_end<C>(place.warpgroup);
    }
}

/* O / sum and lse of the tile before; one whose frozen maximum did not do goes on the redo list. Its other
 * warpgroups may find it there (or, rarely, list it twice: it is then done twice, with the same result). */
template <class C>
__device__ __forceinline__ void finish_rows(const ForwardRows<C> &r, ForwardShared<C> &shared,
                                            const ForwardPlace<C> &place, const ForwardArgs &args) {
    const Work work = read_work(shared.work[place.q_before.stage]);
    const int warp = threadIdx.x % WARPGROUP / 32;
    const int row0 = (first_slot<C>(args, work.tile) + place.rows_before) * ROWS;
    float *lse = args.lse + ((int64_t)work.batch * args.NH + work.head) * args.T;
    float sum[2], inverse[2];
    bool bad = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = quad_sum(r.sum[half] + r.sum[half + 2]);
        inverse[half] = rcp(sum[half]);
        bad |= !(sum[half] <= 0x1p64f);
    }
    named_barrier_sync<WARPGROUP>(FINISH_BARRIER + place.warpgroup); /* all its scores are done with Q */
    tma_store_rows(&args.out,
                   shared_address(shared.q[place.q_before.stage][place.rows_before]) + warp * C::Q_BYTES / 4,
                   r.o, inverse, row0 + warp * 16, work.head, work.batch);
#pragma unroll
    for (int half = 0; half < 2; half++) { /* behind the output, whose fence would wait for these stores */
        const int row = row0 + thread_row() + 8 * half;
        if (threadIdx.x % 4 == 0 && row < args.T) lse[row] = (r.shift[half] + lg2(sum[half])) * SM90_LN2;
    }
    if (C::SOFTMAX == SM90_FROZEN && __any_sync(0xffffffffu, bad) && threadIdx.x % 32 == 0 &&
        atomicExch(&shared.listed, work.index) != work.index) {
        const int slot = atomicAdd(&redo_list.count, 1);
        if (slot < REDO_MAX) redo_list.tiles[slot] = work.index;
    }
}

/* Q's buffer of the tile before is free once the output has left it. */
template <class C>
__device__ __forceinline__ void release_q(ForwardShared<C> &shared, const ForwardPlace<C> &place) {
    if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
    shared.q_ring.release(place.q_before);
}

/* The last P V of the tile before and its output, where no tile follows at once. */
template <class C>
__device__ __forceinline__ void finish_tile(ForwardRows<C> &r, ForwardShared<C> &shared,
                                            ForwardPlace<C> &place, const ForwardArgs &args) {
    shared.v_ring.wait(place.v_at);
    wgmma_fence();
    multiply_pv<D_ADD>(r, v_tile(shared, place.v_at.stage));
    wgmma_wait<0>();
    wgmma_results(r.o);
    wgmma_results(r.p);
    shared.v_ring.release(place.v_at);
    finish_rows<C>(r, shared, place, args);
    release_q(shared, place);
    place.pending = false;
}

/* The first N registers of scores of a tile's first block. PENDING: behind the last P V of the tile before,
 * whose output is written while the scores are under way. */
template <class C, int N, bool PENDING>
__device__ __forceinline__ void first_scores(ForwardRows<C> &r, ForwardShared<C> &shared,
                                             ForwardPlace<C> &place, uint64_t q, const ForwardArgs &args) {
    shared.k_ring.wait(place.at);
    if (PENDING) shared.v_ring.wait(place.v_at);
    turn_begin<C>(place.warpgroup);
    wgmma_fence();
    if (PENDING) multiply_pv<D_ADD>(r, v_tile(shared, place.v_at.stage));
    multiply_qk<C>(first<N>(r.s), q, k_tile(shared, place.at.stage));
    turn_end<C>(place.warpgroup);
    if (PENDING) {
        wgmma_wait<1>();
        wgmma_results(r.o);
        wgmma_results(r.p);
        shared.v_ring.release(place.v_at);
        finish_rows<C>(r, shared, place, args);
    }
    wgmma_wait<0>();
    wgmma_results(r.s);
}

/* The first block that the rows see, of which they see the first 2N keys; P is left in r.p. */
template <class C, int N>
__device__ __forceinline__ void first_block(ForwardRows<C> &r, ForwardShared<C> &shared,
                                            ForwardPlace<C> &place, uint64_t q, int block, int row0,
                                            const ForwardArgs &args) {
    if (place.pending)
        first_scores<C, N, true>(r, shared, place, q, args);
    else
        first_scores<C, N, false>(r, shared, place, q, args);
    shared.k_ring.release(place.at);
    first_probabilities<C>(r, first<N>(r.s), row0, block, args);
    if (place.pending) release_q(shared, place);
    place.v_at = place.at;
    place.at.advance();
}

/* One step of the main loop: O = or += P V of one block, then P of the next. The two products are queued
 * together. */
template <class C, WgmmaD D>
__device__ __forceinline__ void next_block(ForwardRows<C> &r, ForwardShared<C> &shared,
                                           ForwardPlace<C> &place, uint64_t q, float scale_log2) {
    const uint64_t k = k_tile(shared, place.at.stage), v = v_tile(shared, place.v_at.stage);
    shared.v_ring.wait(place.v_at);
    shared.k_ring.wait(place.at);
    turn_begin<C>(place.warpgroup);
    wgmma_fence();
    if (C::SCORES_FIRST) {
        multiply_qk<C>(r.s, q, k);
        multiply_pv<D>(r, v);
    } else {
        multiply_pv<D>(r, v);
        multiply_qk<C>(r.s, q, k);
    }
    turn_end<C>(place.warpgroup);
    wgmma_wait<C::SCORES_FIRST ? 1 : 0>();
    wgmma_results(r.s);
    shared.k_ring.release(place.at);
    if (!C::SCORES_FIRST) {
        wgmma_results(r.o);
        wgmma_results(r.p);
        shared.v_ring.release(place.v_at);
    }
    if (C::SOFTMAX == SM90_ONLINE) update_max(r, r.s, scale_log2);
    exponentials(r, r.s, scale_log2);
    if (C::SCORES_FIRST) {
        wgmma_wait<0>();
        wgmma_results(r.o);
        wgmma_results(r.p);
        shared.v_ring.release(place.v_at);
    }
    if (C::SOFTMAX == SM90_ONLINE) rescale(r);
    pack_p(r, r.s);
    place.v_at = place.at;
    place.at.advance();
}

/* All blocks of the tile's keys that the rows from row0 on see; the last P V is left pending. */
template <class C>
__device__ __forceinline__ void walk_blocks(ForwardRows<C> &r, ForwardShared<C> &shared,
                                            ForwardPlace<C> &place, int row0, int seen,
                                            const ForwardArgs &args) {
    const uint64_t q = descriptor_k_major(shared_address(shared.q[place.q_at.stage][place.rows]));
    const bool half = C::CAUSAL && C::KEYS > ROWS && row0 % C::KEYS == 0; /* of the first block is seen */
    if (half)
        first_block<C, ROWS / 2>(r, shared, place, q, seen - 1, row0, args);
    else
        first_block<C, C::KEYS / 2>(r, shared, place, q, seen - 1, row0, args);
    if (seen > 1) { /* the first P V sets O */
        next_block<C, D_SET>(r, shared, place, q, args.scale_log2);
    } else {
#pragma unroll
        for (int i = 0; i < C::HD / 2; i++) r.o[i] = 0.0f;
    }
#pragma unroll 1
    for (int block = seen - 3; block >= 0; block--)
        next_block<C, D_ADD>(r, shared, place, q, args.scale_log2);
    place.pending = true;
    place.q_before = place.q_at;
    place.rows_before = place.rows;
}

/* The loop over tiles. Its branches are written so that the compiler keeps stages and descriptors in uniform
 * registers: with the same branches one after another it did not, and a step took 370 instructions in place
 * of 302. */
template <class C>
__device__ __forceinline__ void forward_consumer(ForwardShared<C> &shared, const ForwardArgs &args,
                                                 int warpgroup) {
    ForwardPlace<C> place;
    place.warpgroup = place.rows = warpgroup;
    place.pending = false;
    ForwardRows<C> r;
    if (warpgroup == C::WARPGROUPS - 1) turn_end<C>(warpgroup); /* the first turn */
    for (;; place.q_at.advance()) {
        shared.q_ring.wait(place.q_at);
        const Work work = read_work(shared.work[place.q_at.stage]);
        const int slot0 = first_slot<C>(args, work.tile), slots = first_slot<C>(args, work.tile + 1) - slot0;
        const int row0 = (slot0 + place.rows) * ROWS;
        const int blocks = key_blocks<C>(slot0 * ROWS, slots * ROWS, args.T),
                  seen = place.rows < slots ? key_blocks<C>(row0, ROWS, args.T) : 0;
        if (seen == 0 || work.index < 0) { /* nothing to queue behind the last tile's last product */
            if (place.pending) finish_tile(r, shared, place, args);
            if (work.index < 0) break;
            skip_blocks(shared, place, blocks);
            shared.q_ring.release(place.q_at);
        } else {
            if (place.pending && args.apart) finish_tile(r, shared, place, args);
            skip_blocks(shared, place, blocks - seen);
            walk_blocks(r, shared, place, row0, seen, args);
        }
        if (args.rotate) place.rows = (place.rows + 1) % C::WARPGROUPS;
    }
    if (warpgroup == 0)
        turn_begin<C>(0); /* takes the turn that nobody needs, so that no barrier is left half full */
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    sm90_forward_kernel(const __grid_constant__ ForwardArgs args) {
#ifdef SM90_BODY
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
    launch_dependents(); /* the launch that does tiles again may be made ready meanwhile */
    wait_on_dependency();
    if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        if (threadIdx.x % WARPGROUP == 0) forward_producer(shared, args);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        forward_consumer<C>(shared, args, warpgroup);
    }
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}
