/* A token's forward pass as one kernel, whose blocks, one on an SM, stay for all stages.
 *
 * With launches, a token of GPT-2 124M is a chain of 88 kernels that each wait for the one before to end, four times as
 * long as its weights take from memory. Here blocks wait for numbers alone.
 *
 * Weights. A block has the same share of every layer's outputs. One warp, the loader, brings their rows in the order in
 * which they are used into a ring in shared memory, as far ahead as the ring reaches; no weight waits for a result.
 *
 * Numbers. What a stage makes goes to all blocks as messages of 8 bytes: two bf16 beside a tag, written and read at once
 * (NCCL calls this protocol LL). Who needs them reads until the tags are this launch's; there is no other barrier. Every
 * message has a place of its own, so none is overwritten while somebody still reads.
 *
 * Attention. A head is a cluster's, and a piece of 128 keys a block's: q, k and v, and then the pieces, go through
 * shared memory, which takes half as long. The cached keys come while the stages before are at work.
 *
 * The residual stream and norms are so little work that every block has them to itself.
 *
 * A stage of d12 takes 1 to 3 us on an H200: half a microsecond is the messages' way, the rest are short chains of
 * instructions, so what counts is how long each is, not how much it does.
 *
 * Sums have the order of linear_few_rows.cu, layernorm_forward.cu and decode.cu: the results have the same bits. */
#include "token.cuh"
#include "llmc/cuda/attention/launch.cuh"
#include "llmc/cuda/attention/generic/decode_piece.cuh"
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/ops/gelu.cuh"
#include "llmc/cuda/ops/layernorm.cuh"

enum {
    HD = 64,
    WARPS = 8, /* that compute */
    THREADS = WARPS * WARP_SIZE,
    PIECE_WARPS = PIECE_KEYS / WARP_SIZE,
    STEP = 32,            /* channels of a warp at a time */
    ROUND = WARPS * STEP, /* and of a block */
    CHUNK_ROUNDS = 3,
    CHUNK = CHUNK_ROUNDS * ROUND, /* channels of a slot of the ring */
    TILE = 8,                     /* and its rows */
    ROW_BYTES = 2 * CHUNK + 64,   /* two rows are in different banks */
    SLOTS = 12,
    CLUSTER = TOKEN_MAX_PIECES, /* blocks of a head */
    PARAMETER_SLOTS = 3,
    GROUP = 4 /* tiles that are summed at once */
};
enum { MAX_SHARE = 64 }; /* of a stage with a bias */
enum { BARRIER_ALL = 1, BARRIER_PIECE = 2 };

/* The outputs of a block; messages are of two. */
struct Share {
    int first, n;
};

/* Of a stage: its norm's, and the bias of the block's share from the multiple of 8 before it on. */
struct Parameters {
    alignas(16) bf16 norm_weight[TOKEN_MAX_C], norm_bias[TOKEN_MAX_C], bias[MAX_SHARE + 16];
};

/* Whole pieces of 16 bytes. */
struct alignas(16) SentPart {
    Part<HD> part;
};

struct Shared {
    char ring[SLOTS][TILE * ROW_BYTES];
    int4 keys[2 * 8 * PIECE_KEYS]; /* of the block's piece, and their values */
    Parameters parameters[PARAMETER_SLOTS];
    uint64_t full[SLOTS], empty[SLOTS];
    uint64_t parameters_full[PARAMETER_SLOTS], parameters_empty[PARAMETER_SLOTS];
    Share shares[TOKEN_MAX_STAGES];
    float sums[2][WARPS][GROUP * TILE];
    alignas(16) bf16 made[3 * TILE], qkv[3][HD]; /* of the block, of its head */
    Part<HD> warps[PIECE_WARPS];
    SentPart own, pieces[CLUSTER];
    uint64_t qkv_full, pieces_full;
    alignas(16) bf16 added[TOKEN_MAX_C], x[TOKEN_MAX_IC];
    alignas(16) float row[TOKEN_MAX_C];
    TokenStage stages[TOKEN_MAX_STAGES];
};
static_assert(sizeof(Shared) <= 227 * 1024, "a block's shared memory");

/* ---- messages ---- */

__device__ __forceinline__ uint64_t message(uint32_t payload, uint32_t tag) {
    return (uint64_t)tag << 32 | payload;
}
__device__ __forceinline__ bool has_come(uint64_t x, uint32_t tag) {
    return (uint32_t)(x >> 32) == tag;
}
__device__ __forceinline__ bool have_come(const ulonglong2 &x, uint32_t tag) {
    return has_come(x.x, tag) && has_come(x.y, tag);
}

/* n values, a multiple of 4, to shared memory, by all threads that compute. */
__device__ __noinline__ void receive(bf16 *to, const uint64_t *from, int n, uint32_t tag) {
    enum { AT_ONCE = 3 };
    for (int i = threadIdx.x; i < n / 4; i += AT_ONCE * THREADS) {
        ulonglong2 x[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i + u * THREADS < n / 4) x[u] = load_relaxed_16(from + 2 * (i + u * THREADS));
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i + u * THREADS < n / 4) {
                while (!have_come(x[u], tag)) x[u] = load_relaxed_16(from + 2 * (i + u * THREADS));
                reinterpret_cast<uint2 *>(to)[i + u * THREADS] =
                    make_uint2((uint32_t)x[u].x, (uint32_t)x[u].y);
            }
    }
}

/* ---- weights ---- */

/* Of q, k and v a cluster has those of its head, a block eight rows of each. */
__device__ __forceinline__ Share share_of(const TokenArgs &a, const TokenStage &stage) {
    const int blocks = (int)gridDim.y, block = (int)blockIdx.y;
    if (stage.flags & STAGE_QKV) return {block * TILE, block / CLUSTER < a.NH ? 3 * TILE : 0};
    const int each = ceil_div(stage.OC, 2 * blocks) * 2, first = each * block;
    return {first, max(0, min(each, stage.OC - first))};
}
/* Where the share's row is among the stage's. */
__device__ __forceinline__ int row_of(const TokenArgs &a, const TokenStage &stage, const Share &share,
                                      int row) {
    return stage.flags & STAGE_QKV ? share.first + row / TILE * a.C + row % TILE : share.first + row;
}

template <int N> struct Slot {
    int at;
    uint32_t parity;
    __device__ __forceinline__ void next() {
        if (++at < N) return;
        at = 0;
        parity ^= 1;
    }
};

__device__ __forceinline__ bool has_parameters(const TokenStage &stage, const Share &share) {
    return stage.flags & STAGE_NORM || (stage.bias && share.n > 0);
}

__device__ __forceinline__ void load_parameters(const TokenArgs &a, Shared &s, const TokenStage &stage,
                                                const Share &share, Slot<PARAMETER_SLOTS> &slot) {
    if (!has_parameters(stage, share)) return;
    const int lane = threadIdx.x % WARP_SIZE, begin = share.first / 8 * 8,
              n_bias = stage.bias && share.n > 0 ? ceil_div(share.first % 8 + share.n, 8) : 0,
              n_norm = stage.flags & STAGE_NORM ? a.C : 0;
    const uint32_t full = shared_address(&s.parameters_full[slot.at]);
    Parameters &to = s.parameters[slot.at];
    mbarrier_wait(shared_address(&s.parameters_empty[slot.at]), slot.parity ^ 1);
    if (lane == 0) {
        mbarrier_arrive_expect_tx(full, 16 * n_bias + 4 * n_norm);
        if (n_norm) bulk_load(shared_address(to.norm_weight), stage.norm_weight, 2 * n_norm, full);
        if (n_norm) bulk_load(shared_address(to.norm_bias), stage.norm_bias, 2 * n_norm, full);
    }
    __syncwarp();
    if (lane < n_bias) {
        const int row = stage.flags & STAGE_QKV ? begin + lane * a.C : begin + lane * 8;
        bulk_load(shared_address(to.bias + 8 * lane), stage.bias + row, 16, full);
    }
    __syncwarp();
    slot.next();
}

/* The loader: chunks of a group's tiles, tile by tile. */
__device__ void load_weights(const TokenArgs &a, Shared &s) {
    const int lane = threadIdx.x % WARP_SIZE;
    Slot<SLOTS> slot = {0, 0};
    Slot<PARAMETER_SLOTS> parameters = {0, 0};
    for (int i = 0; i < a.n_stages; i++) {
        const TokenStage &stage = s.stages[i];
        if (stage.flags & STAGE_ATTENTION) continue;
        const Share share = s.shares[i];
        load_parameters(a, s, stage, share, parameters);
        for (int group = 0; group < share.n; group += GROUP * TILE)
            for (int k = 0; k < stage.IC; k += CHUNK)
                for (int row = group; row < min(group + GROUP * TILE, share.n); row += TILE) {
                    const uint32_t full = shared_address(&s.full[slot.at]);
                    const int rows = min((int)TILE, share.n - row), bytes = 2 * min((int)CHUNK, stage.IC - k);
                    mbarrier_wait(shared_address(&s.empty[slot.at]), slot.parity ^ 1);
                    if (lane == 0) mbarrier_arrive_expect_tx(full, rows * bytes);
                    __syncwarp();
                    if (lane < rows)
                        bulk_load(shared_address(s.ring[slot.at] + lane * ROW_BYTES),
                                  stage.weight + (int64_t)row_of(a, stage, share, row + lane) * stage.IC + k,
                                  bytes, full);
                    slot.next();
                }
    }
}

/* ---- a linear layer ---- */

/* This warp's channels of x, from k on, and of a tile's weights, which may be overwritten then. */
__device__ __forceinline__ void take_x(int4 (&x)[CHUNK_ROUNDS], const Shared &s, int k, int IC) {
#pragma unroll
    for (int r = 0; r < CHUNK_ROUNDS; r++)
        x[r] = threadIdx.x % WARP_SIZE < 4 && k + r * ROUND < IC
                   ? *reinterpret_cast<const int4 *>(s.x + k + r * ROUND)
                   : make_int4(0, 0, 0, 0);
}
__device__ __forceinline__ void take_weights(int4 (&w)[CHUNK_ROUNDS], Shared &s, Slot<SLOTS> &slot, int own,
                                             int k, int IC) {
    const int lane = threadIdx.x % WARP_SIZE;
    const char *row = s.ring[slot.at] + lane / 4 * ROW_BYTES + 2 * own;
    mbarrier_wait(shared_address(&s.full[slot.at]), slot.parity);
#pragma unroll
    for (int r = 0; r < CHUNK_ROUNDS; r++)
        w[r] =
            k + r * ROUND < IC ? *reinterpret_cast<const int4 *>(row + 2 * r * ROUND) : make_int4(0, 0, 0, 0);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&s.empty[slot.at]));
    slot.next();
}

/* A step of one row: the other rows of the product are 0. */
__device__ __forceinline__ void multiply_low(float (&acc)[4], const int4 &x, const int4 &w) {
    const uint32_t row[4] = {(uint32_t)x.x, 0, (uint32_t)x.y, 0};
    mma_m16n8k16(acc, row, w.x, w.y);
}
__device__ __forceinline__ void multiply_high(float (&acc)[4], const int4 &x, const int4 &w) {
    const uint32_t row[4] = {(uint32_t)x.z, 0, (uint32_t)x.w, 0};
    mma_m16n8k16(acc, row, w.z, w.w);
}

/* Products of a group's tiles with x, this warp's channels. A product waits for the one before it of the same tile, so
 * tiles take turns, and all weights of a chunk are taken before the first product. */
template <int TILES>
__device__ __forceinline__ void multiply_tiles(float (&acc)[GROUP][4], Shared &s, Slot<SLOTS> &slot, int IC) {
    const int own = threadIdx.x / WARP_SIZE * STEP + threadIdx.x % 4 * 8;
    for (int k = own; k - own < IC; k += CHUNK) {
        int4 x[CHUNK_ROUNDS], w[TILES][CHUNK_ROUNDS];
        take_x(x, s, k, IC);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) take_weights(w[tile], s, slot, own, k, IC);
#pragma unroll
        for (int r = 0; r < CHUNK_ROUNDS; r++) {
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) multiply_low(acc[tile], x[r], w[tile][r]);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) multiply_high(acc[tile], x[r], w[tile][r]);
        }
    }
}
/* The same of one tile, several chunks at once. */
__device__ __forceinline__ void multiply_tile(float (&acc)[4], Shared &s, Slot<SLOTS> &slot, int IC) {
    const int own = threadIdx.x / WARP_SIZE * STEP + threadIdx.x % 4 * 8;
    for (int k = own; k - own < IC; k += GROUP * CHUNK) {
        int4 x[GROUP][CHUNK_ROUNDS], w[GROUP][CHUNK_ROUNDS] = {};
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            take_x(x[c], s, k + c * CHUNK, IC);
            if (k - own + c * CHUNK < IC) take_weights(w[c], s, slot, own, k + c * CHUNK, IC);
        }
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            if (k - own + c * CHUNK >= IC) break;
#pragma unroll
            for (int r = 0; r < CHUNK_ROUNDS; r++) {
                multiply_low(acc, x[c][r], w[c][r]);
                multiply_high(acc, x[c][r], w[c][r]);
            }
        }
    }
}

/* This thread's two outputs, from `output` on: the warps' sums in their order. */
__device__ __forceinline__ uint32_t finish(const float (&sums)[WARPS][GROUP * TILE], int column,
                                           uint32_t bias, bool is_gelu) {
    float2 sum = {0, 0};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float2 part = *reinterpret_cast<const float2 *>(&sums[w][column]);
        sum.x += part.x;
        sum.y += part.y;
    }
    sum.x += bf16_low(bias);
    sum.y += bf16_high(bias);
    if (is_gelu) sum = {gelu<bf16>(sum.x), gelu<bf16>(sum.y)};
    return cvt_bf16x2(sum.x, sum.y);
}

/* What this block made of its head's q, k and v to all blocks of the cluster. */
__device__ __forceinline__ void send_qkv(Shared &s) {
    const int lane = threadIdx.x % WARP_SIZE, which = lane / CLUSTER, rank = lane % CLUSTER;
    __syncwarp();
    if (which < 3)
        store_async_16(cluster_address(shared_address(&s.qkv[which][cluster_rank() * TILE]), rank),
                       reinterpret_cast<const int4 *>(s.made)[which],
                       cluster_address(shared_address(&s.qkv_full), rank));
}

/* bias: from the multiple of 8 before the share on. */
__device__ __forceinline__ void linear(const TokenArgs &a, Shared &s, const TokenStage &stage,
                                       const Share &share, const bf16 *shared_bias, Slot<SLOTS> &slot,
                                       int &parity) {
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    for (int group = 0; group < share.n; group += GROUP * TILE, parity ^= 1) {
        const int n = min((int)(GROUP * TILE), share.n - group), column = 2 * (int)threadIdx.x,
                  output = share.first + group + column;
        uint32_t bias = 0;
        if (stage.bias && column < n)
            bias = *reinterpret_cast<const uint32_t *>(shared_bias + share.first % 8 + group + column);
        float acc[GROUP][4] = {};
        if (n <= TILE)
            multiply_tile(acc[0], s, slot, stage.IC);
        else if (n <= 2 * TILE)
            multiply_tiles<2>(acc, s, slot, stage.IC);
        else if (n <= 3 * TILE)
            multiply_tiles<3>(acc, s, slot, stage.IC);
        else
            multiply_tiles<GROUP>(acc, s, slot, stage.IC);
        if (lane < 4)
#pragma unroll
            for (int tile = 0; tile < GROUP; tile++)
                *reinterpret_cast<float2 *>(&s.sums[parity][warp][tile * TILE + 2 * lane]) = {acc[tile][0],
                                                                                              acc[tile][1]};
        named_barrier_sync<THREADS>(BARRIER_ALL);
        if (column >= n) continue;
        const uint32_t pair = finish(s.sums[parity], column, bias, stage.flags & STAGE_GELU);
        if (stage.flags & STAGE_QKV) {
            reinterpret_cast<uint32_t *>(s.made)[threadIdx.x] = pair;
        } else if (stage.flags & STAGE_LOGITS) {
            *reinterpret_cast<uint32_t *>(a.logits + output) = pair;
        } else {
            store_relaxed_8(a.messages + stage.out + output / 2, message(pair, a.tag));
        }
    }
    if (stage.flags & STAGE_QKV && share.n > 0 && warp == 0) send_qkv(s);
}

/* ---- the residual stream: of every 256 channels a thread has one ---- */

template <int VECS> struct Stream {
    float own[VECS];

    __device__ __forceinline__ void embed(const TokenArgs &a, int position) {
        const bf16 *token = a.wte + (int64_t)a.tokens[0] * a.C,
                   *of_position = a.wpe + (int64_t)position * a.C;
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            const int c = threadIdx.x + v * ROUND;
            own[v] = c < a.C ? rounded(to_float(token[c]) + to_float(of_position[c])) : 0.0f;
        }
    }
    static __device__ __forceinline__ float rounded(float x) {
        return to_float(from_float<bf16>(x));
    }

    /* s.x = the norm of the row, this warp's channels; before that the row += what has come. Every warp has the
     * statistics to itself: a lane has eight channels of every 256, as in layernorm_forward.cu. */
    __device__ __forceinline__ void norm(const TokenArgs &a, Shared &s, const TokenStage &stage,
                                         const Parameters &parameters) {
        const int first = threadIdx.x % WARP_SIZE * 8;
        const int n_vecs = first + (VECS - 1) * ROUND < a.C ? VECS : VECS - 1;
        float x[VECS][8] = {}, mean, rstd;
        if (stage.flags & STAGE_ADD) {
            receive(s.added, a.messages + stage.in, a.C, a.tag);
            named_barrier_sync<THREADS>(BARRIER_ALL);
        }
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            const int c = threadIdx.x + v * ROUND;
            if (c >= a.C) break;
            if (stage.flags & STAGE_ADD) own[v] = rounded(own[v] + to_float(s.added[c]));
            s.row[c] = own[v];
        }
        named_barrier_sync<THREADS>(BARRIER_ALL);
#pragma unroll
        for (int v = 0; v < VECS; v++)
            if (v < n_vecs)
#pragma unroll
                for (int k = 0; k < 8; k += 4)
                    *reinterpret_cast<float4 *>(&x[v][k]) =
                        *reinterpret_cast<const float4 *>(s.row + first + v * ROUND + k);
        center_row(x, n_vecs, a.C, &mean, &rstd);
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            const int c = threadIdx.x + v * ROUND;
            if (c >= a.C) break;
            const float centered = own[v] - mean;
            s.x[c] = from_float<bf16>(centered * rstd * to_float(parameters.norm_weight[c]) +
                                      to_float(parameters.norm_bias[c]));
        }
        __syncwarp();
    }
};

/* ---- attention, by the first warps ---- */

/* A cluster has a head, each of its blocks a piece; that with the first keys joins them. */
struct Attention {
    Seen seen;
    int begin, n; /* the first piece that has keys, how many do */
    int head, piece;
    bool attends;
    uint32_t parity; /* of the cluster's barriers */

    __device__ __forceinline__ Attention(const TokenArgs &a) {
        seen = seen_keys(a.positions, a.begins, a.window, 0);
        begin = (int)(seen.begin / PIECE_KEYS);
        n = (int)ceil_div(seen.end, (int64_t)PIECE_KEYS) - begin;
        head = (int)blockIdx.y / CLUSTER;
        piece = (int)cluster_rank();
        attends = threadIdx.x < PIECE_KEYS && head < a.NH && piece >= begin && piece < begin + n;
        parity = 0;
    }
    __device__ __forceinline__ FastPiece<HD> piece_of(const TokenArgs &a, const TokenStage &stage) const {
        const int d = threadIdx.x % FastPiece<HD>::LANES * 8;
        return FastPiece<HD>((bf16 *)stage.weight + head * HD + d, 2 * (int64_t)a.C, piece, seen);
    }

    /* Keys and values of the next attention, from stage i on, on their way to shared memory. */
    __device__ __noinline__ void begin_load(const TokenArgs &a, Shared &s, int i) const {
        while (i < a.n_stages && !(s.stages[i].flags & STAGE_ATTENTION)) i++;
        if (i < a.n_stages && attends) piece_of(a, s.stages[i]).begin_load(s.keys);
    }

    /* The warps' parts as one, to the block that joins. */
    __device__ __forceinline__ void give(Shared &s) const {
        const int e = threadIdx.x;
        SentPart &to = piece == begin ? s.pieces[0] : s.own;
        float sum, max;
        if (e < HD)
            to.part.o[e] =
                join_parts<HD, PIECE_WARPS>(PIECE_WARPS, e, &sum, &max, [&](int w) { return &s.warps[w]; });
        if (e == 0) to.part.max = max, to.part.sum = sum;
        named_barrier_sync<PIECE_KEYS>(BARRIER_PIECE);
        if (piece > begin && e < (int)(sizeof(SentPart) / 16))
            store_async_16(cluster_address(shared_address(&s.pieces[piece - begin]) + 16 * e, begin),
                           reinterpret_cast<const int4 *>(&s.own)[e],
                           cluster_address(shared_address(&s.pieces_full), begin));
    }

    __device__ __forceinline__ void join(const TokenArgs &a, Shared &s, const TokenStage &stage) const {
        const int e = threadIdx.x;
        float sum, max;
        if (n > 1) {
            if (e == 0) mbarrier_arrive_expect_tx(shared_address(&s.pieces_full), (n - 1) * sizeof(SentPart));
            mbarrier_wait_cluster(shared_address(&s.pieces_full), parity);
        }
        if (e >= HD) return;
        const float total =
            join_parts<HD, CLUSTER>(n, e, &sum, &max, [&](int p) { return &s.pieces[p].part; });
        const float out = total / sum, next = __shfl_down_sync(0xffffffffu, out, 1);
        if (e % 2 == 0)
            store_relaxed_8(a.messages + stage.out + (head * HD + e) / 2,
                            message(cvt_bf16x2(out, next), a.tag));
    }

    __device__ __forceinline__ void run(const TokenArgs &a, Shared &s, const TokenStage &stage, int i) {
        const int e = threadIdx.x, d = e % FastPiece<HD>::LANES * 8;
        if (!attends) return;
        FastPiece<HD> own = piece_of(a, stage);
        own.end_load(s.keys);
        if (e == 0) mbarrier_arrive_expect_tx(shared_address(&s.qkv_full), sizeof s.qkv);
        mbarrier_wait_cluster(shared_address(&s.qkv_full), parity);
        own.attend(&s.warps[e / WARP_SIZE], s.qkv[0] + d, s.qkv[1] + d, s.qkv[2] + d, LOG2E / sqrtf(HD));
        named_barrier_sync<PIECE_KEYS>(BARRIER_PIECE);
        give(s);
        if (piece == begin) join(a, s, stage);
        begin_load(a, s, i + 1);
        parity ^= 1;
    }
};

/* ---- the kernel ---- */

template <int VECS> __device__ __forceinline__ void compute(const TokenArgs &a, Shared &s) {
    Stream<VECS> stream;
    Slot<SLOTS> slot = {0, 0};
    Slot<PARAMETER_SLOTS> parameters = {0, 0};
    int parity = 0;
    Attention attention(a);
    attention.begin_load(a, s, 0);
    stream.embed(a, (int)attention.seen.end - 1);
    for (int i = 0; i < a.n_stages; i++) {
        const TokenStage stage = s.stages[i]; /* in registers: no access to shared memory between them */
        const Share share = s.shares[i];
        if (stage.flags & STAGE_ATTENTION) {
            attention.run(a, s, stage, i);
            continue;
        }
        const bool has = has_parameters(stage, share);
        if (has) mbarrier_wait(shared_address(&s.parameters_full[parameters.at]), parameters.parity);
        const Parameters &own = s.parameters[parameters.at];
        if (stage.flags & STAGE_NORM) {
            stream.norm(a, s, stage, own);
        } else {
            if (share.n == 0) continue;
            receive(s.x, a.messages + stage.in, stage.IC, a.tag);
            named_barrier_sync<THREADS>(BARRIER_ALL);
        }
        linear(a, s, stage, share, own.bias, slot, parity);
        if (!has) continue;
        __syncwarp();
        if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(shared_address(&s.parameters_empty[parameters.at]));
        parameters.next();
    }
}

template <int VECS> __global__ void __launch_bounds__(THREADS + WARP_SIZE, 1) token_kernel(TokenArgs a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    Shared &s = *reinterpret_cast<Shared *>(memory);
    if (threadIdx.x < SLOTS) {
        mbarrier_init(shared_address(&s.full[threadIdx.x]), 1);
        mbarrier_init(shared_address(&s.empty[threadIdx.x]), WARPS);
        fence_mbarrier_init();
    }
    if (threadIdx.x < PARAMETER_SLOTS) {
        mbarrier_init(shared_address(&s.parameters_full[threadIdx.x]), 1);
        mbarrier_init(shared_address(&s.parameters_empty[threadIdx.x]), WARPS);
        fence_mbarrier_init();
    }
    const uint64_t *stages = reinterpret_cast<const uint64_t *>(a.stages);
    for (int i = threadIdx.x; i < a.n_stages * (int)(sizeof(TokenStage) / 8); i += THREADS + WARP_SIZE)
        reinterpret_cast<uint64_t *>(s.stages)[i] = stages[i];
    for (int i = threadIdx.x; i < a.n_stages; i += THREADS + WARP_SIZE)
        s.shares[i] = share_of(a, a.stages[i]);
    if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&s.qkv_full), 1);
        mbarrier_init(shared_address(&s.pieces_full), 1);
        fence_mbarrier_init();
    }
    cluster_sync();
    if (threadIdx.x >= THREADS) {
        load_weights(a, s);
        return;
    }
    wait_early();
    compute<VECS>(a, s);
#endif
}

typedef void (*Kernel)(TokenArgs);
static Kernel kernel_of(int vecs) {
    static const Kernel kernels[] = {token_kernel<1>, token_kernel<2>, token_kernel<3>, token_kernel<4>};
    return kernels[vecs - 1];
}
static_assert(TOKEN_MAX_C <= 4 * ROUND, "a kernel for every width");

static int n_clusters(Kernel kernel) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = attribute.val.clusterDim.z = 1;
    attribute.val.clusterDim.y = CLUSTER;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1, cuda_sm_count() / CLUSTER * CLUSTER);
    config.blockDim = dim3(THREADS + WARP_SIZE);
    config.dynamicSmemBytes = sizeof(Shared);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int n = 0;
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared)));
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&n, kernel, &config));
    return n;
}

bool token_fits(int C, int NH) {
    return cuda_compute_capability() == 90 && n_clusters(kernel_of(ceil_div(C, (int)ROUND))) >= NH;
}

void token_launch(const TokenArgs &args) {
    const Kernel kernel = kernel_of(ceil_div(args.C, (int)ROUND));
    static int clusters[8];
    int &n = clusters[ceil_div(args.C, (int)ROUND)];
    if (!n) n = n_clusters(kernel);
    launch_early("token_kernel", kernel, dim3(1, n * CLUSTER), THREADS + WARP_SIZE, sizeof(Shared), CLUSTER,
                 args);
}
