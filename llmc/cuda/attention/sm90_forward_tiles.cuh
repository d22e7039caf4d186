/* Tiles of attention forward for sm_90a: shapes, shared memory, arguments, and the producer that fetches them. What
 * the kernel computes and why it is built so: sm90_forward.cu. */
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
    Work next[C::Q_BUFFERS]; /* of the tile after it */
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

/* The next tile is drawn when a tile begins, so that the block which is free first gets the longest, and published
 * with the tile's second block of keys (or its only one): consumers know it long before they come to it. */
template <class C>
__device__ __forceinline__ void forward_producer(ForwardShared<C> &shared, const ForwardArgs &args) {
    const int count = args.redo ? redo_list.count : 0;
    const bool listed = args.redo && count <= REDO_MAX;
    const int total = listed ? count : args.order.total;
    const auto work_of = [&](int index) {
        const Work none = {-1, 0, 0, 0};
        return index < total ? work_at(args.order, listed ? redo_list.tiles[index] : index) : none;
    };
    Ring<C::Q_BUFFERS> q_at;
    Ring<C::STAGES> at;
    Work work = work_of(blockIdx.x);
    if (work.index < 0) {
        shared.work[0] = work;
        shared.q_ring.expect(q_at, 0);
    }
    for (; work.index >= 0; q_at.advance()) {
        const int drawn = draw_tile(args.redo ? &redo_tickets : &forward_tickets, total);
        const int slot0 = first_slot<C>(args, work.tile), slots = first_slot<C>(args, work.tile + 1) - slot0;
        const int row0 = slot0 * ROWS, last = key_blocks<C>(row0, slots * ROWS, args.T) - 1;

        shared.q_ring.wait_free(q_at);
        shared.work[q_at.stage] = work;
        const uint32_t q_full = shared.q_ring.expect(q_at, slots * C::Q_BYTES);
        for (int i = 0; i < slots; i++)
            tma_load_5d(shared_address(shared.q[q_at.stage][i]), &args.q, 0, row0 + i * ROWS, 0, work.head,
                        work.batch, q_full);
        for (int block = last; block >= 0; block--, at.advance()) {
            if (block == max(0, last - 1)) shared.next[q_at.stage] = work_of(drawn);
            load_keys(shared, args, work, block, at);
        }

        if (args.redo && drawn == (int)gridDim.x + total - 1)
            redo_list.count = 0;        /* nobody will look again */
        work = shared.next[q_at.stage]; /* not kept in registers: a producer has few */
    }
}
