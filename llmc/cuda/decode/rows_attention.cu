/* The attention half of a layer (rows.cuh): q, k and v of a head, its attention and the projection behind it.
 *
 * A cluster has a head and half of the rows; of all rows it would be eight blocks, and as a GPC has 16 SMs, four GPCs would
 * bring twice the keys of the others. A block makes 16 channels each of q, k and v, and hands them to the blocks that have
 * the rows. There a warp has a row, or a part of it where rows are few: it streams its keys and values, 16 at a time, through
 * its own slots of shared memory. They are all that takes long, so the first are on their way before q is made, and the next
 * to L2; slots take the place of x and c_attn's rows once those have been read. Then 20 KB a warp are under way, where 4 TB/s
 * want 6.
 *
 * A row's keys are cut into pieces, whose sums are added in their order, whoever makes them: so a row's sums do not depend on
 * how many warps have it (split-KV, as in attention/generic/decode.cu). */
#include "llmc/cuda/attention/generic/decode_piece.cuh"
#include "llmc/cuda/attention/launch.cuh"
#include "rows_kernels.cuh"

enum {
    CLUSTER = 4,
    ROWS = CLUSTER * ROWS_OF_BLOCK, /* of a cluster */
    X_BYTES = ROWS * ROW_BYTES,     /* of a tile */
    HD = DECODE_HD,
    LANES = HD / 8,           /* of a key */
    KEYS = WARP_SIZE / LANES, /* a load */
    LOADS = 4,                /* a slot, of keys and of values */
    SLOT_KEYS = KEYS * LOADS,
    SLOT_BYTES = 2 * SLOT_KEYS * ROW_BYTES,
    SLOTS = 5, /* of a warp */
    WARPS = ROWS_THREADS / WARP_SIZE,
    PIECES = 4, /* of a row */
    N_QKV = 3,
    OWN = HD / CLUSTER, /* channels of a block, of each */
    EIGHTS = OWN / 8
};
static_assert((int)WARPS == (int)ROWS_OF_BLOCK, "a warp has a row");

/* Of keys that have been seen: with t = lane % 4 a lane has channels 8i + 2t and the next of the output, in o[i]. */
struct Sums {
    float max, sum,
        o[HD / 8][4]; /* max: of scores times SCALE; sum: of this lane's keys; of o the first two */

    __device__ __forceinline__ void clear() {
        max = NO_SCORE;
        sum = 0;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    }
    __device__ __forceinline__ void add(const Sums &other) {
        const float largest = fmaxf(max, other.max), own = ex2(max - largest),
                    others = ex2(other.max - largest);
        max = largest;
        sum = sum * own + other.sum * others;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            o[i][0] = o[i][0] * own + other.o[i][0] * others;
            o[i][1] = o[i][1] * own + other.o[i][1] * others;
        }
    }
};

/* A piece's sums in shared memory, by lane % 4. */
struct StoredSums {
    float max[4], sum[4];
    float2 o[HD / 8][4];

    __device__ __forceinline__ void store(const Sums &from) {
        const int t = threadIdx.x % 4;
        if (threadIdx.x % WARP_SIZE >= 4) return;
        max[t] = from.max;
        sum[t] = from.sum;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) o[i][t] = make_float2(from.o[i][0], from.o[i][1]);
    }
    __device__ __forceinline__ Sums load() const {
        const int t = threadIdx.x % 4;
        Sums to;
        to.max = max[t];
        to.sum = sum[t];
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            to.o[i][0] = o[i][t].x;
            to.o[i][1] = o[i][t].y;
        }
        return to;
    }
};

template <int NH> struct AttentionShared {
    enum {
        PROJ_BYTES = NH * HD / CLUSTER * ROW_BYTES,
        OTHER_BYTES = 7 * 1024, /* to_send, qkv and barriers */
        POOL_BYTES = (ROWS_SHARED_LIMIT - TILE_BYTES - PROJ_BYTES - OTHER_BYTES) / 1024 * 1024,
        QKV_BYTES = N_QKV * OWN * ROW_BYTES, /* of the rows of c_attn, in a tile */
        SLOTS_BYTES = WARPS * SLOT_BYTES,    /* a slot of each warp */
        FREE = (POOL_BYTES - NH * (X_BYTES + QKV_BYTES)) / SLOTS_BYTES,
        EARLY = FREE < SLOTS ? FREE : SLOTS /* slots that are free from the beginning */
    };
    static_assert((int)POOL_BYTES >= (int)SLOTS * (int)SLOTS_BYTES +
                                         (int)ROWS_OF_BLOCK * (int)PIECES * (int)sizeof(StoredSums) &&
                      (int)FREE >= 0,
                  "room");
    /* x, c_attn's rows, and then stored sums; slots, from the end */
    alignas(1024) char pool[POOL_BYTES];
    char attn[TILE_BYTES], proj[PROJ_BYTES];          /* tiles */
    bf16 to_send[CLUSTER][ROWS_OF_BLOCK][N_QKV][OWN]; /* by the block that it is for */
    bf16 qkv[CLUSTER][ROWS_OF_BLOCK][N_QKV][OWN];     /* by the block that it is from */
    uint64_t x_full[NH], qkv_full, attn_full;

    __device__ __forceinline__ char *x() { return pool; }
    __device__ __forceinline__ char *qkv_weight() { return pool + NH * X_BYTES; }
    __device__ __forceinline__ StoredSums &stored(int row, int piece) {
        return reinterpret_cast<StoredSums *>(pool)[row * PIECES + piece];
    }
    __device__ __forceinline__ char *slot(int i) {
        return pool + POOL_BYTES - (i * WARPS + (int)threadIdx.x / WARP_SIZE + 1) * SLOT_BYTES;
    }
};

/* ---- a row's attention ---- */

/* Of a block's rows, which a warp has, and which of its pieces. Of few sequences several warps have a row; some may have one
 * that is not there. */
struct Share {
    int row, first, pieces; /* pieces from the first-th on */

    __device__ __forceinline__ Share(int B) {
        static_assert((int)WARPS == 8 && (int)PIECES == 4, "two, four or eight rows a block");
        const int log2 = B <= 2 * ROWS_BLOCKS   ? 2
                         : B <= 4 * ROWS_BLOCKS ? 1
                                                : 0,
                  warp = threadIdx.x / WARP_SIZE;
        row = warp & (WARPS - 1) >> log2;
        pieces = PIECES >> log2;
        first = (warp >> (3 - log2)) * pieces;
    }
};

/* The cached keys that a row sees, n from the begin-th on, of_piece to a piece, and of them this warp's, `left` from the first-th
 * on. Positions and begins are read before wait_early: between this launch and the draw, which writes them, stands the embedding, whose next
 * launch begins when the draw has ended. */
template <int NH> struct Row {
    enum { STRIDE = 2 * NH * HD }; /* from key to key */
    Share share;
    bf16 *keys; /* of this head */
    int begin, n, of_piece, first, left;
    bool is_there;
    const bf16 *next; /* the thread's of what is loaded next */
    int left_to_load;

    __device__ __forceinline__ Row(const RowsArgs &a, bf16 *cache, int head) : share(a.B) {
        const int b = sequence_of(blockIdx.y % ROWS_BLOCKS * ROWS_OF_BLOCK + share.row);
        is_there = b < a.B;
        keys = cache + (is_there ? b : 0) * ((int64_t)a.T * STRIDE) + head * HD;
        begin = n = 0;
        if (is_there) {
            const Seen seen = seen_keys(a.positions, a.begins, a.window, b);
            begin = (int)seen.begin;
            n = (int)seen.end - 1 - begin;
        }
        of_piece = ceil_div(n, PIECES * SLOT_KEYS) * SLOT_KEYS;
        first = share.first * of_piece;
        left = min(n - first, share.pieces * of_piece);
        left_to_load = left;
        next = keys + (int64_t)(begin + first + threadIdx.x % WARP_SIZE / LANES) * STRIDE +
               threadIdx.x % LANES * 8;
    }
    /* Starts to bring the next SLOT_KEYS, and their values: rows of a tile each, as for ldmatrix. */
    __device__ __forceinline__ void load(char *slot) {
        const int piece = threadIdx.x % LANES, row = threadIdx.x % WARP_SIZE / LANES;
        if (left_to_load > 0)
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const uint32_t to = shared_address(slot) + swizzled_at<TILE_COLUMNS>(i * KEYS + row, piece);
                const bool is_seen = i * KEYS < left_to_load - row;
                cp_async_16_once(to, next + i * KEYS * STRIDE, is_seen);
                cp_async_16_once(to + SLOT_BYTES / 2, next + i * KEYS * STRIDE + STRIDE / 2, is_seen);
            }
        cp_async_commit();
        next += SLOT_KEYS * STRIDE;
        left_to_load -= SLOT_KEYS;
    }
    /* The i-th SLOT_KEYS to L2. */
    __device__ __forceinline__ void prefetch(int i) const {
        const int key = i * SLOT_KEYS + threadIdx.x % WARP_SIZE / 2;
        if (key < left)
            prefetch_to_l2(keys + (int64_t)(begin + first + key) * STRIDE + threadIdx.x % 2 * (STRIDE / 2));
    }
    /* The new token's key and value to the cache. */
    __device__ __forceinline__ void keep(const bf16 (*qkv)[ROWS_OF_BLOCK][N_QKV][OWN]) const {
        const int lane = threadIdx.x % WARP_SIZE, piece = lane % LANES, which = lane / LANES;
        if (is_there && share.first == 0 && which < 2)
            *reinterpret_cast<int4 *>(keys + (int64_t)(begin + n) * STRIDE + which * (STRIDE / 2) +
                                      piece * 8) =
                *reinterpret_cast<const int4 *>(
                    &qkv[piece / EIGHTS][share.row][1 + which][piece % EIGHTS * 8]);
    }
};

/* A piece's online softmax, by mma.sync: the query is every row of A (g + 8: none), so a lane has the scores of keys 2t, 2t + 1,
 * 2t + 8 and 2t + 9, as A of the second product wants their weights. */
struct Softmax {
    uint32_t q[HD / 16][4];
    Sums sums; /* of the piece */
    Sums all;  /* of the new token, and of pieces that are added */

    static constexpr float SCALE = LOG2E / 8; /* sqrt(HD) */

    __device__ __forceinline__ Softmax(const bf16 (*qkv)[ROWS_OF_BLOCK][N_QKV][OWN], int row) {
        const int t = threadIdx.x % 4;
        float score = 0;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            const bf16(*of_row)[OWN] = qkv[i / EIGHTS][row];
            const int at = i % EIGHTS * 8 + 2 * t;
            const float2 query = pair_of(&of_row[0][at]), key = pair_of(&of_row[1][at]),
                         value = pair_of(&of_row[2][at]);
            q[i / 2][i % 2 * 2] = *reinterpret_cast<const uint32_t *>(&of_row[0][at]);
            q[i / 2][i % 2 * 2 + 1] = 0;
            score = fmaf(query.x, key.x, fmaf(query.y, key.y, score));
            all.o[i][0] = value.x;
            all.o[i][1] = value.y;
        }
        all.max = quad_sum(score) * SCALE;
        all.sum = t == 0 ? 1 : 0;
        sums.clear();
    }

    /* Scores of a slot's keys, of which `left` are seen. */
    __device__ __forceinline__ void score(float (&x)[2][4], uint32_t slot, int left) const {
        const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int k = 0; k < 4; k++) x[j][k] = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t keys[4];
                ldmatrix_x4(keys, slot + swizzled_at<TILE_COLUMNS>(8 * j + lane % 8, 4 * half + lane / 8));
                mma_m16n8k16(x[j], q[2 * half], keys[0], keys[1]);
                mma_m16n8k16(x[j], q[2 * half + 1], keys[2], keys[3]);
            }
#pragma unroll
            for (int k = 0; k < 2; k++)
                x[j][k] = 8 * j + lane % 4 * 2 + k < left ? x[j][k] * SCALE : NO_SCORE;
        }
    }
    __device__ __forceinline__ void add(uint32_t slot, int left) {
        const int lane = threadIdx.x % WARP_SIZE;
        float x[2][4];
        score(x, slot, left);
        const float largest = quad_max(fmaxf(fmaxf(x[0][0], x[0][1]), fmaxf(x[1][0], x[1][1])));
        if (largest > sums.max) { /* of the whole warp, as all quads have the same */
            const float scale = ex2(sums.max - largest);
            sums.max = largest;
            sums.sum *= scale;
#pragma unroll
            for (int i = 0; i < HD / 8; i++) {
                sums.o[i][0] *= scale;
                sums.o[i][1] *= scale;
            }
        }
        uint32_t weights[4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float low = ex2(x[j][0] - sums.max), high = ex2(x[j][1] - sums.max);
            sums.sum += low + high;
            weights[2 * j] = cvt_bf16x2(low, high);
            weights[2 * j + 1] = 0;
        }
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            uint32_t values[4];
            ldmatrix_x4_trans(values, slot + SLOT_BYTES / 2 +
                                          swizzled_at<TILE_COLUMNS>(lane % 16, 2 * i + lane / 16));
            mma_m16n8k16(sums.o[2 * i], weights, values[0], values[1]);
            mma_m16n8k16(sums.o[2 * i + 1], weights, values[2], values[3]);
        }
    }
};

/* The output to a row of a tile. */
__device__ __forceinline__ void store_output(const Sums &sums, char *tile, int row) {
    const int g = threadIdx.x % WARP_SIZE / 4, t = threadIdx.x % 4;
    const float of_sum = 1.0f / quad_sum(sums.sum);
    float low = sums.o[0][0], high = sums.o[0][1];
#pragma unroll
    for (int i = 1; i < HD / 8; i++) {
        low = g == i ? sums.o[i][0] : low;
        high = g == i ? sums.o[i][1] : high;
    }
    *reinterpret_cast<uint32_t *>(tile + swizzled_at<TILE_COLUMNS>(row, g) + t * 4) =
        cvt_bf16x2(low * of_sum, high * of_sum);
}

/* All of the warp's keys; the first slots are on their way. Who has the first piece adds up the others. */
template <int NH> __device__ __forceinline__ void attend(AttentionShared<NH> &s, Row<NH> &row) {
    const Share &share = row.share;
    Softmax softmax(s.qkv, share.row);
    row.keep(s.qkv);
    int piece = share.first, piece_left = row.of_piece;
    for (int left = row.left, slot = 0; left > 0; left -= SLOT_KEYS) {
        cp_async_wait<SLOTS - 1>();
        __syncwarp();
        softmax.add(shared_address(s.slot(slot)), left);
        __syncwarp(); /* it has been read */
        row.load(s.slot(slot));
        if (++slot == SLOTS) slot = 0;
        piece_left -= SLOT_KEYS;
        if (piece_left > 0 && left > SLOT_KEYS) continue;
        if (share.first)
            s.stored(share.row, piece).store(softmax.sums);
        else
            softmax.all.add(softmax.sums);
        softmax.sums.clear();
        piece++;
        piece_left = row.of_piece;
    }
    if (share.pieces < PIECES) __syncthreads();
    if (share.first) return;
#pragma unroll 1
    for (piece = share.pieces; piece < PIECES && piece * row.of_piece < row.n; piece++)
        softmax.all.add(s.stored(share.row, piece).load());
    store_output(softmax.all, s.attn, cluster_rank() * ROWS_OF_BLOCK + share.row);
}

/* ---- the products ---- */

/* q, k and v, this block's channels, by the first warpgroup: rounded, and to the blocks that have the rows, of which this is one. */
template <int NH>
__device__ __forceinline__ void make_qkv(AttentionShared<NH> &s, const float2 (&bias)[N_QKV * EIGHTS]) {
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE, g = lane / 4, t = lane % 4;
    const int rank = cluster_rank();
    float d[N_QKV * OWN / 2];
    multiply_x<NH, ROWS>(d, s.x(), s.qkv_weight(), s.x_full);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int to = warp * 2 + half; /* the block that has the row */
        if (to >= CLUSTER) break;
        auto &rows = to == rank ? s.qkv[rank] : s.to_send[to];
#pragma unroll
        for (int i = 0; i < N_QKV * EIGHTS; i++)
            *reinterpret_cast<uint32_t *>(&rows[g][i / EIGHTS][i % EIGHTS * 8 + 2 * t]) =
                cvt_bf16x2(d[4 * i + 2 * half] + bias[i].x, d[4 * i + 2 * half + 1] + bias[i].y);
    }
    fence_proxy_async();
    named_barrier_sync<WARPGROUP>(1);
    if (threadIdx.x < CLUSTER - 1) {
        const int to = other_block<CLUSTER>(threadIdx.x);
        copy_to_block(s.qkv[rank], s.to_send[to], sizeof s.to_send[to], &s.qkv_full, to);
    }
}

template <int NH>
__global__ void __launch_bounds__(ROWS_THREADS, 1) rows_attention_kernel(RowsArgs a, DecodeLayer layer) {
#ifdef SM90_BODY
    typedef AttentionShared<NH> S;
    constexpr int C = NH * HD, OWN_ROWS_BYTES = X_BYTES / CLUSTER;
    static_assert(sizeof(S) <= ROWS_SHARED_LIMIT, "room for a norm");
    S &s = shared_memory<S>();
    const int rank = cluster_rank(), head = blockIdx.y / ROWS_BLOCKS,
              row0 = blockIdx.y % ROWS_BLOCKS / CLUSTER * ROWS;
    if (threadIdx.x == 0) {
        expect_x<NH, ROWS>(s.x_full);
        mbarrier_init(shared_address(&s.qkv_full), 1);
        mbarrier_init(shared_address(&s.attn_full), 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(shared_address(&s.qkv_full), sizeof s.qkv - sizeof s.qkv[0]);
        mbarrier_arrive_expect_tx(shared_address(&s.attn_full), X_BYTES - OWN_ROWS_BYTES);
    }
    cluster_arrive();
    load_weight<N_QKV * OWN, NH>(s.qkv_weight(), layer.qkv_weight, C,
                                 [&](int r) { return r / OWN * C + head * HD + rank * OWN + r % OWN; });
    load_weight<C / CLUSTER, 1>(s.proj, layer.attn_proj_weight + head * HD, C,
                                [&](int r) { return rank * (C / CLUSTER) + r; });
    Row<NH> row(a, layer.cache, head);
#pragma unroll
    for (int i = 0; i < S::EARLY; i++) row.load(s.slot(i));
    float2 bias[N_QKV * EIGHTS];
#pragma unroll
    for (int i = 0; i < N_QKV * EIGHTS; i++)
        bias[i] = pair_of(layer.qkv_bias + i / EIGHTS * C + head * HD + rank * OWN + i % EIGHTS * 8 +
                          threadIdx.x % 4 * 2);
    cluster_wait(); /* all blocks have their barriers */
    wait_early();
    for (int i = S::EARLY; i < SLOTS; i++) row.prefetch(i);
    if (threadIdx.x == WARPGROUP) multicast_x<NH, CLUSTER, ROWS>(s.x(), a.x, row0, s.x_full);
    wait_weights<S::EARLY>();
    if (threadIdx.x < WARPGROUP) make_qkv<NH>(s, bias);
    __syncthreads(); /* x and the weight have been read */
#pragma unroll
    for (int i = S::EARLY; i < SLOTS; i++) row.load(s.slot(i));
    mbarrier_wait(shared_address(&s.qkv_full), 0);
    attend<NH>(s, row);
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x < CLUSTER - 1) {
        char *own = s.attn + rank * OWN_ROWS_BYTES;
        copy_to_block(own, own, OWN_ROWS_BYTES, &s.attn_full, other_block<CLUSTER>(threadIdx.x));
    }
    mbarrier_wait(shared_address(&s.attn_full), 0);
    cluster_arrive(); /* what others have sent is here */
    const uint32_t attn = uniform_descriptor(shared_address(s.attn));
    multiply_part<NH, CLUSTER, ROWS, HD>(a, s.proj, s.pool, head, row0,
                                         [&](int k) { return swizzled(attn + 2 * k); });
    cluster_wait(); /* what this block has sent has been read */
#endif
}

template <int NH>
static constexpr RowsLaunch launch = {rows_attention_kernel<NH>, CLUSTER, sizeof(AttentionShared<NH>)};
static const RowsLaunch launches[] = FOR_HEADS(launch);

bool rows_attention_fits(int NH) {
    return run_at_once(launches, NH);
}

void rows_attention(const RowsArgs &a, const DecodeLayer &layer) {
    launch_rows("rows_attention", launches, a, layer);
}
