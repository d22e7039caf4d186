/* Attention backward for sm_90a in one pass of five products (see sm90_backward.cuh for the split form), head
 * size 64.
 *
 * A tile is 128 keys, 64 for each of two warpgroups that keep dK and dV in registers and walk the blocks of
 * 64 queries from the diagonal on; dS^T also goes through shared memory to a third warpgroup, which computes
 * the block's share of dQ = dS K. The tiles of a head add their shares to a block of dQ in turns, the last
 * keys first: the first stores fp32 sums, the next ones add to them (bulk copies, in L2); after tile 0's
 * share, the sums become bf16 dQ. So there is no buffer to clear, and the order of additions, hence every
 * bit, is fixed. The fourth warpgroup is one warp that loads, one that adds the shares when their turn has
 * come, and two that convert.
 *
 * Turns cost little: causal tiles start where the diagonal is, two blocks apart, so that each arrives at a
 * block just after the tile whose turn comes before. Tiles enter the queue in the order of their turns (the
 * shortest first), so what a tile waits for has been started before it, and nothing can wait in a circle. The
 * sums live in a ring of heads that fits in L2; a head's turns continue those of the head that had the slot
 * before. */
#include "sm90_keys.cuh"

constexpr Sm90Shape FUSED_SHAPE = {2, 64, 4, 2, 208, 32, false}; /* flag: as in DKV_SHAPES */
enum { DQ_REGISTERS = 64 };                                      /* of the third warpgroup */

template <int HEAD, bool IS_CAUSAL> struct FusedConfig {
    static constexpr Sm90Shape SHAPE = FUSED_SHAPE;
    static constexpr int HD = HEAD, WARPGROUPS = SHAPE.warpgroups, STAGES = SHAPE.stages,
                         OWN = SHAPE.own_buffers;
    static constexpr bool CAUSAL = IS_CAUSAL, LATE_DP = SHAPE.flag;
    static constexpr bool K_IN_REGISTERS = true, V_IN_REGISTERS = false; /* there is no room for both */
    static constexpr bool MASK_KEYS = true;                              /* they are summed over in dQ */
    static constexpr int TILE_ROWS = WARPGROUPS * ROWS, THREADS = (WARPGROUPS + 2) * WARPGROUP;
    static constexpr int TILE_BYTES = ROWS * HD * 2, FOLD_BYTES = ROWS * sizeof(FoldRow);
    static constexpr int DS_BYTES = TILE_ROWS * ROWS * 2, DQ_FLOATS = ROWS * HD;
    static_assert(HD == 64, "registers");
    static_assert(SHAPE.columns == ROWS && TILE_ROWS == 2 * ROWS, "blocks and tiles of the turns below");
    static_assert(WARPGROUPS * SHAPE.registers + DQ_REGISTERS + SHAPE.producer_registers <= 65536 / WARPGROUP,
                  "setmaxnreg");
};

template <class C> struct alignas(1024) FusedShared {
    struct {
        uint8_t k[C::WARPGROUPS][C::TILE_BYTES], v[C::WARPGROUPS][C::TILE_BYTES];
    } own[C::OWN];
    uint8_t ds[2][C::DS_BYTES]; /* dS^T: 128 keys x 64 queries */
    float dq[2][C::DQ_FLOATS];  /* on the way to global memory */
    QueryStages<C> queries;
    RingBarriers<C::OWN> own_ring;
    RingBarriers<2> ds_ring, dq_ring;
    Work work[C::OWN];
};

typedef struct FusedArgs {
    BackwardArgs base;
    float *sums;     /* (slots, blocks of 64 queries, 64 * HD): dQ so far, in the order of the accumulators */
    unsigned *turns; /* (slots, blocks): shares added and conversions done, of all heads that had the slot */
    int slots;       /* head h has slot h % slots */
} FusedArgs;

__device__ unsigned fused_tickets;

/* ---- producer: one thread ---- */

template <class C>
__device__ __forceinline__ void fused_producer(FusedShared<C> &shared, const BackwardArgs &args) {
    Ring<C::OWN> own_at;
    Ring<C::STAGES> at;
    for (int index = blockIdx.x; index < args.order.total; own_at.advance()) {
        const int drawn = draw_tile(&fused_tickets, args.order.total);
        const Work work = work_at(args.order, index);
        const int row0 = work.tile * C::TILE_ROWS;
        shared.own_ring.wait_free(own_at);
        shared.work[own_at.stage] = work;
        const uint32_t own_full = shared.own_ring.expect(own_at, 2 * C::WARPGROUPS * C::TILE_BYTES);
        auto &own = shared.own[own_at.stage];
        for (int i = 0; i < C::WARPGROUPS; i++) {
            tma_load_5d(shared_address(own.k[i]), &args.rows, 0, row0 + i * ROWS, 0, args.NH + work.head,
                        work.batch, own_full);
            tma_load_5d(shared_address(own.v[i]), &args.rows, 0, row0 + i * ROWS, 0, 2 * args.NH + work.head,
                        work.batch, own_full);
        }
        load_queries(shared.queries, at, work, args);
        index = drawn;
    }
    shared.own_ring.wait_free(own_at);
    shared.work[own_at.stage].index = -1;
    shared.own_ring.expect(own_at, 0);
}

/* ---- the warpgroups that own keys ---- */

/* Hands dS^T of the warpgroup's keys to the dQ warpgroup; nothing: only says that there is none. */
template <class C>
__device__ __forceinline__ void give_ds(const uint32_t (&ds)[ROWS / 16][4], FusedShared<C> &shared,
                                        Ring<2> &ds_at, int warpgroup, bool nothing) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
    shared.ds_ring.wait_free(ds_at);
    if (!nothing) {
        const uint32_t to = shared_address(shared.ds[ds_at.stage]) + (warpgroup * ROWS + row) * 128;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) stmatrix_x4(to + ((2 * i + lane / 16) ^ (row & 7)) * 16, ds[i]);
        fence_proxy_async();
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&shared.ds_ring.full[ds_at.stage]));
    ds_at.advance();
}

template <class C>
__device__ __forceinline__ void fused_keys(FusedShared<C> &shared, const BackwardArgs &args, int warpgroup) {
    const int blocks = ceil_div(args.T, (int)ROWS);
    Ring<C::OWN> own_at;
    Ring<2> ds_at;
    KeyPlace<C> place;
    KeyRows<C> r;
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = shared.work[own_at.stage];
        if (work.index < 0) break;
        const int tile_row0 = work.tile * C::TILE_ROWS, row0 = tile_row0 + warpgroup * ROWS;
        place.k = shared_address(shared.own[own_at.stage].k[warpgroup]);
        load_fragments(r.k, place.k);
        for (int half = 0; half < 2; half++)
            r.bias[half] = row0 + thread_row() + 8 * half < args.T ? 0.0f : -CUDART_INF_F;
        const int first = first_queries<C>(row0, args.T);
        for (int block = first_queries<C>(tile_row0, args.T); block < first; block++, place.at.advance()) {
            shared.queries.ring.wait(place.at);
            __syncwarp();
            shared.queries.ring.release(place.at);
            give_ds(r.ds, shared, ds_at, warpgroup, true);
        }
        if (first < blocks) {
            first_queries_block(r, shared.queries, place, args.scale_log2);
            give_ds(r.ds, shared, ds_at, warpgroup, false);
#pragma unroll 1
            for (int block = first + 1; block < blocks; block++) {
                next_queries_block(r, shared.queries, place, args.scale_log2);
                give_ds(r.ds, shared, ds_at, warpgroup, false);
            }
        }
        __syncwarp();
        shared.own_ring.release(own_at);
        if (first == blocks) continue;
        last_gradients(r, shared.queries, place);
        store_key_rows(r, work, row0, args);
    }
}

/* ---- the warpgroup that computes dQ ---- */

/* dQ of the block = dS K over the first K_STEPS * 16 keys. */
template <class C, int K_STEPS>
__device__ __forceinline__ void multiply_ds(float (&dq)[C::HD / 2], uint32_t ds, uint32_t k) {
    const uint64_t a = descriptor_mn_major(ds, 0), b = descriptor_mn_major(k, 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < K_STEPS; i++) {
        if (i == 0)
            wgmma<D_SET, B_MN_MAJOR, 1>(dq, a, b);
        else
            wgmma<D_ADD, B_MN_MAJOR, 1>(dq, a + i * (2048 >> 4), b + i * (2048 >> 4));
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(dq);
}

template <class C>
__device__ __forceinline__ void fused_dq(FusedShared<C> &shared, const BackwardArgs &args) {
    const int T = args.T, blocks = ceil_div(T, (int)ROWS), thread = threadIdx.x % WARPGROUP;
    Ring<C::OWN> own_at;
    Ring<2> at; /* of ds_ring and of dq_ring: one for one */
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = shared.work[own_at.stage];
        if (work.index < 0) break;
        const int row0 = work.tile * C::TILE_ROWS, first = first_queries<C>(row0, T);
        const uint32_t k = shared_address(shared.own[own_at.stage].k);
#pragma unroll 1
        for (int block = first; block < blocks; block++, at.advance()) {
            float dq[C::HD / 2];
            const uint32_t ds = shared_address(shared.ds[at.stage]);
            shared.ds_ring.wait(at);
            if ((C::CAUSAL && block == first) || row0 + ROWS >= T)
                multiply_ds<C, ROWS / 16>(dq, ds,
                                          k); /* the second warpgroup's keys are not seen, or not there */
            else
                multiply_ds<C, C::TILE_ROWS / 16>(dq, ds, k);
            shared.ds_ring.release(at);
            shared.dq_ring.wait_free(at);
#pragma unroll
            for (int i = 0; i < C::HD / 8; i++)
                reinterpret_cast<float4 *>(shared.dq[at.stage])[i * WARPGROUP + thread] =
                    make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
            fence_proxy_async();
            __syncwarp();
            if (thread % 32 == 0) mbarrier_arrive(shared_address(&shared.dq_ring.full[at.stage]));
        }
        shared.own_ring.release(own_at);
    }
}

/* ---- the warps that add up dQ ---- */

/* Where the sums of a block of queries of a tile's head are, and what their counter was before that head. */
typedef struct Turns {
    unsigned *counter;
    float *sums;
    unsigned base;
    int shares; /* tiles that add one; then come CONVERTERS more counts */
} Turns;

enum { CONVERTERS = 2 };

template <class C>
__device__ __forceinline__ Turns turns_at(const FusedArgs &args, const Work &work, int block) {
    const int head = work.batch * args.base.NH + work.head;
    const int64_t at = (int64_t)(head % args.slots) * ceil_div(args.base.T, (int)ROWS) + block;
    Turns turns;
    turns.counter = args.turns + at;
    turns.sums = args.sums + at * C::DQ_FLOATS;
    turns.shares = C::CAUSAL ? block / 2 + 1 : args.base.order.tiles;
    turns.base = head / args.slots * (turns.shares + CONVERTERS);
    return turns;
}

/* Until `count` of this head's shares and conversions are done. */
__device__ __forceinline__ void wait_count(const Turns &turns, unsigned count) {
#ifdef BOUNDED_WAIT
    for (int tries = 0; (int)(load_acquire(turns.counter) - turns.base - count) < 0; tries++)
        if (tries == 1 << 22) *(volatile int *)0 = 0;
#else
    while ((int)(load_acquire(turns.counter) - turns.base - count) < 0) {
    }
#endif
}

/* One thread: adds the shares in turn. A turn is passed on when the copy is done, one block later. */
template <class C>
__device__ __forceinline__ void fused_adder(FusedShared<C> &shared, const FusedArgs &args) {
    const int blocks = ceil_div(args.base.T, (int)ROWS);
    Ring<C::OWN> own_at;
    Ring<2> at;
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = shared.work[own_at.stage];
        if (work.index < 0) break;
        shared.own_ring.release(own_at);
        unsigned *passing = NULL;
        for (int block = first_queries<C>(work.tile * C::TILE_ROWS, args.base.T); block < blocks;
             block++, at.advance()) {
            const Turns turns = turns_at<C>(args, work, block);
            const int turn = turns.shares - 1 - work.tile;
            shared.dq_ring.wait(at);
            wait_count(turns, turn);
            fence_proxy_async_global();
            if (turn == 0)
                bulk_store(turns.sums, shared_address(shared.dq[at.stage]), C::DQ_FLOATS * 4);
            else
                bulk_add_f32(turns.sums, shared_address(shared.dq[at.stage]), C::DQ_FLOATS * 4);
            bulk_commit();
            if (passing) {
                bulk_wait<1>();
                add_release(passing, 1);
            }
            passing = turns.counter;
            bulk_wait_read<0>();
            mbarrier_arrive(shared_address(&shared.dq_ring.empty[at.stage]));
        }
        bulk_wait<0>();
        add_release(passing, 1);
    }
}

/* Writes dQ of a block of queries from its sums, which lie in the order of dQ's accumulators: 16 bytes of row
 * `row` and of every 8th row after it, the same chunk of 8 columns of each. rows: of the sequence from `to`
 * on. */
template <class C>
__device__ __forceinline__ void convert_sums(bf16 *to, const float *sums, int row, int chunk, int rows,
                                             const BackwardArgs &args) {
    to += row * 3 * args.NH * C::HD + chunk * 8;
    sums += (chunk * WARPGROUP + row * 4) * 4;
#pragma unroll 1
    for (int i = 0; i < ROWS / 8 && row + 8 * i < rows; i++) {
        const float *from =
            sums + i / 2 * 128 + i % 2 * 2; /* a warp: 16 rows, 32 threads x 4 sums of a chunk */
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 x = load_l2(from + 4 * j);
            r[j] = cvt_bf16x2(x.x * args.scale, x.y * args.scale);
        }
        *reinterpret_cast<uint4 *>(to) = make_uint4(r[0], r[1], r[2], r[3]);
        to += 8 * 3 * args.NH * C::HD;
    }
}

/* Warp `which` of CONVERTERS: dQ of the blocks of queries to which tile 0, the last, has added its share. */
template <class C>
__device__ __forceinline__ void fused_converter(FusedShared<C> &shared, const FusedArgs &args, int which) {
    enum { CHUNKS = C::HD / 8 };
    static_assert(CONVERTERS * 32 == 8 * CHUNKS, "the converters' threads cover 8 rows");
    const int blocks = ceil_div(args.base.T, (int)ROWS), lane = threadIdx.x % 32;
    Ring<C::OWN> own_at;
    for (;; own_at.advance()) {
        shared.own_ring.wait(own_at);
        const Work work = shared.work[own_at.stage];
        if (work.index < 0) break;
        __syncwarp();
        shared.own_ring.release(own_at);
        if (work.tile != 0) continue;
        bf16 *to =
            args.base.dqkv + ((int64_t)work.batch * args.base.T * 3 * args.base.NH + work.head) * C::HD;
        for (int block = 0; block < blocks; block++) {
            const Turns turns = turns_at<C>(args, work, block);
            if (lane == 0) wait_count(turns, turns.shares);
            __syncwarp();
            convert_sums<C>(to, turns.sums, which * (32 / CHUNKS) + lane / CHUNKS, lane % CHUNKS,
                            args.base.T - block * ROWS, args.base);
            __syncwarp();
            if (lane == 0) add_release(turns.counter, 1);
            to += (int64_t)ROWS * 3 * args.base.NH * C::HD;
        }
    }
}

template <int HD, bool CAUSAL>
__global__ void __launch_bounds__(FusedConfig<HD, CAUSAL>::THREADS, 1)
    sm90_fused_kernel(const __grid_constant__ FusedArgs args) {
#ifdef SM90_BODY
    using C = FusedConfig<HD, CAUSAL>;
    auto &shared = shared_memory<FusedShared<C>>();
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
    write_constants(shared.queries);
    if (threadIdx.x == 0) {
        shared.own_ring.init(4 * (C::WARPGROUPS + 1) + 1 + CONVERTERS);
        shared.queries.ring.init(4 * C::WARPGROUPS);
        shared.ds_ring.init(4, 4 * C::WARPGROUPS);
        shared.dq_ring.init(1, 4);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (warpgroup == C::WARPGROUPS + 1) {
        setmaxnreg_dec<C::SHAPE.producer_registers>();
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        if (warp == 0 && lane == 0) fused_producer(shared, args.base);
        if (warp == 1 && lane == 0) fused_adder(shared, args);
        if (warp >= 2) fused_converter(shared, args, warp - 2);
    } else if (warpgroup == C::WARPGROUPS) {
        setmaxnreg_dec<DQ_REGISTERS>();
        fused_dq(shared, args.base);
    } else {
        setmaxnreg_inc<C::SHAPE.registers>();
        fused_keys(shared, args.base, warpgroup);
    }
#else
    __trap(); /* the device takes sm_90a code, and the build has none */
#endif
}

/* Fold rows of 64 queries of one head: D = rowsum(dO * O). grid (fold_rows(T) / 64, B*NH), 256 threads. */
template <int HD>
__global__ void __launch_bounds__(256)
    sm90_fold_kernel(FoldRow *fold, const bf16 *dout, const bf16 *out, const float *lse, int T, int NH,
                     float inverse_scale) {
    enum { LANES = HD / 8 /* of a row */, STEP = 256 / LANES };
    const int64_t head = blockIdx.y;
    for (int i = threadIdx.x / LANES; i < ROWS; i += STEP) {
        const int row = blockIdx.x * ROWS + i;
        const bool inside = row < T;
        float d = 0.0f;
        if (inside) {
            const int64_t at = ((head / NH * T + row) * NH + head % NH) * HD + threadIdx.x % LANES * 8;
            const Vec<bf16> x = load_vec(out + at), y = load_vec(dout + at);
#pragma unroll
            for (int j = 0; j < 8; j++) d += to_float(x.v[j]) * to_float(y.v[j]);
        }
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2)
            d += __shfl_xor_sync(0xffffffffu, d, distance);
        if (threadIdx.x % LANES == 0)
            fold[head * fold_rows(T) + row] =
                inside ? fold_row(-lse[head * T + row] * inverse_scale, -d) : FoldRow{};
    }
}

/* ---- host ---- */

static TileOrder fused_order(int B, int T, int NH) {
    using C = FusedConfig<64, true>;
    return tile_order(B, T, NH, C::TILE_ROWS, 2 * C::HD * 2 + sizeof(FoldRow) + C::HD * 4, true);
}

/* Slots for three sections of heads: a section's last tiles run while those of the next start. */
static int fused_slots(const TileOrder &order) {
    return 3 * order.section_heads < order.heads ? 3 * order.section_heads : order.heads;
}

static size_t fused_turns_bytes(int B, int T, int NH) {
    return align_256((size_t)fused_slots(fused_order(B, T, NH)) * ceil_div(T, (int)ROWS) * sizeof(unsigned));
}

size_t attention_backward_sm90_fused_scratch_bytes(int B, int T, int NH) {
    const size_t sums = (size_t)fused_slots(fused_order(B, T, NH)) * fold_rows(T) * 64 * sizeof(float);
    return align_256((size_t)B * NH * fold_rows(T) * sizeof(FoldRow)) + fused_turns_bytes(B, T, NH) + sums;
}

template <bool CAUSAL> static void launch_fused(const FusedArgs &args) {
    using C = FusedConfig<64, CAUSAL>;
    launch_persistent("sm90_fused_kernel", sm90_fused_kernel<64, CAUSAL>, args, args.base.order.total,
                      C::THREADS, shared_bytes<FusedShared<C>>());
}

void attention_backward_sm90_fused(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                   const float *lse, void *scratch, int B, int T, int NH, bool causal) {
    FusedArgs args;
    args.base = backward_args(dqkv, dout, qkv, scratch, B, T, NH, 64);
    args.base.order = fused_order(B, T, NH);
    args.slots = fused_slots(args.base.order);
    args.turns =
        (unsigned *)((uint8_t *)scratch + align_256((size_t)B * NH * fold_rows(T) * sizeof(FoldRow)));
    args.sums = (float *)((uint8_t *)args.turns + fused_turns_bytes(B, T, NH));
    CUDA_CHECK(cudaMemsetAsync(args.turns, 0, fused_turns_bytes(B, T, NH), main_stream));
    sm90_fold_kernel<64><<<dim3(ceil_div(T, (int)ROWS), B * NH), 256, 0, main_stream>>>(
        args.base.fold, (const bf16 *)dout, (const bf16 *)out, lse, T, NH, args.base.inverse_scale);
    launch_check("sm90_fold_kernel");
    (causal ? launch_fused<true> : launch_fused<false>)(args);
}
