/* A token's forward pass as one kernel: a block on every SM, that stay for all stages.
 *
 * With launches, a token of GPT-2 124M is a chain of 88 kernels that each wait for the one before to end, three times as
 * long as its weights take from memory. Here blocks wait for numbers alone.
 *
 * Weights. A block has the same share of every layer's outputs. One warp, the loader, brings their rows in the order in
 * which they are used into a ring in shared memory, as far ahead as the ring reaches; no weight waits for a result.
 *
 * Numbers. What a stage makes goes to all blocks as messages of 8 bytes: two bf16 beside a tag, written and read at once
 * (NCCL calls this protocol LL). Who needs them reads until the tags are this launch's; there is no other barrier. Every
 * message has a place of its own, so none is overwritten while somebody still reads.
 *
 * The residual stream and norms are cheap: every warp has them to itself.
 *
 * Attention: a block for each head and 128 keys; a head's first block joins its pieces. Blocks take the pieces from the
 * last on, so that none waits for one that another block has still to come to.
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
    SLOTS = 11,
    CLUSTER = TOKEN_MAX_PIECES, /* blocks of a head */
    PARAMETER_SLOTS = 2,
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
    alignas(16) bf16 added[2][TOKEN_MAX_C], x[TOKEN_MAX_IC];
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

/* Products of the block's tiles of a group with x, this warp's channels. */
__device__ __forceinline__ void multiply(float (&acc)[GROUP][4], Shared &s, Slot<SLOTS> &slot, int IC,
                                         int n_tiles) {
    const int lane = threadIdx.x % WARP_SIZE, g = lane / 4;
    const int own = threadIdx.x / WARP_SIZE * STEP + lane % 4 * 8;
    const int4 zero = make_int4(0, 0, 0, 0);
    for (int k0 = own; k0 - own < IC; k0 += CHUNK) {
        int4 x[CHUNK_ROUNDS];
#pragma unroll
        for (int r = 0; r < CHUNK_ROUNDS; r++) {
            const int k = k0 + r * ROUND;
            x[r] = g == 0 && k < IC ? *reinterpret_cast<const int4 *>(s.x + k) : zero;
        }
#pragma unroll
        for (int tile = 0; tile < GROUP; tile++) {
            if (tile >= n_tiles) break;
            const char *row = s.ring[slot.at] + g * ROW_BYTES + 2 * own;
            mbarrier_wait(shared_address(&s.full[slot.at]), slot.parity);
#pragma unroll
            for (int r = 0; r < CHUNK_ROUNDS; r++) {
                if (k0 - own + r * ROUND >= IC) break;
                const int4 w =
                    k0 + r * ROUND < IC ? *reinterpret_cast<const int4 *>(row + 2 * r * ROUND) : zero;
                const uint32_t low[4] = {(uint32_t)x[r].x, 0, (uint32_t)x[r].y, 0},
                               high[4] = {(uint32_t)x[r].z, 0, (uint32_t)x[r].w, 0};
                mma_m16n8k16(acc[tile], low, w.x, w.y);
                mma_m16n8k16(acc[tile], high, w.z, w.w);
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(shared_address(&s.empty[slot.at]));
            slot.next();
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
        multiply(acc, s, slot, stage.IC, ceil_div(n, (int)TILE));
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

/* ---- the residual stream, a row in each warp ---- */

template <int VECS> struct Stream {
    Vec<bf16> row[VECS];
    int first, n_vecs; /* of this lane */
    int turn;          /* of s.added: what one norm reads may be written again two norms later */

    __device__ __forceinline__ void embed(const TokenArgs &a, int position) {
        turn = 0;
        first = threadIdx.x % WARP_SIZE * 8;
        n_vecs = first + (VECS - 1) * ROUND < a.C ? VECS : VECS - 1;
        const bf16 *token = a.wte + (int64_t)a.tokens[0] * a.C,
                   *of_position = a.wpe + (int64_t)position * a.C;
#pragma unroll
        for (int v = 0; v < VECS; v++)
            if (v < n_vecs)
                row[v] =
                    add_vecs(load_vec(token + first + v * ROUND), load_vec(of_position + first + v * ROUND));
    }

    /* s.x = the norm of the row, this warp's channels; before that the row += what has come. */
    __device__ __forceinline__ void norm(const TokenArgs &a, Shared &s, const TokenStage &stage,
                                         const Parameters &parameters) {
        float x[VECS][8] = {}, mean, rstd;
        if (stage.flags & STAGE_ADD) {
            turn ^= 1;
            receive(s.added[turn], a.messages + stage.in, a.C, a.tag);
            named_barrier_sync<THREADS>(BARRIER_ALL);
#pragma unroll
            for (int v = 0; v < VECS; v++)
                if (v < n_vecs) row[v] = add_vecs(row[v], load_vec(s.added[turn] + first + v * ROUND));
        }
#pragma unroll
        for (int v = 0; v < VECS; v++)
            if (v < n_vecs) to_floats(x[v], row[v]);
        center_row(x, n_vecs, a.C, &mean, &rstd);
        if (first / STEP == threadIdx.x / WARP_SIZE)
#pragma unroll
            for (int v = 0; v < VECS; v++)
                if (v < n_vecs)
                    store_vec(s.x + first + v * ROUND,
                              norm_vec(x[v], rstd, load_vec(parameters.norm_weight + first + v * ROUND),
                                       load_vec(parameters.norm_bias + first + v * ROUND)));
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

    __device__ __forceinline__ void run(const TokenArgs &a, Shared &s, int i) {
        const TokenStage &stage = s.stages[i];
        const int e = threadIdx.x, d = e % FastPiece<HD>::LANES * 8;
        if (!attends) return;
        FastPiece<HD> own = piece_of(a, stage);
        own.end_load(s.keys);
        begin_load(a, s, i + 1);
        if (e == 0) mbarrier_arrive_expect_tx(shared_address(&s.qkv_full), sizeof s.qkv);
        mbarrier_wait_cluster(shared_address(&s.qkv_full), parity);
        own.attend(&s.warps[e / WARP_SIZE], *reinterpret_cast<const int4 *>(s.qkv[0] + d),
                   *reinterpret_cast<const int4 *>(s.qkv[1] + d),
                   *reinterpret_cast<const int4 *>(s.qkv[2] + d), LOG2E / sqrtf(HD));
        named_barrier_sync<PIECE_KEYS>(BARRIER_PIECE);
        give(s);
        if (piece == begin) join(a, s, stage);
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
        const TokenStage &stage = s.stages[i];
        const Share share = s.shares[i];
        if (stage.flags & STAGE_ATTENTION) {
            attention.run(a, s, i);
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
    static const Kernel kernels[] = {token_kernel<1>, token_kernel<2>, token_kernel<3>, token_kernel<4>,
                                     token_kernel<5>, token_kernel<6>, token_kernel<7>};
    return kernels[vecs - 1];
}
static_assert(TOKEN_MAX_C <= 7 * ROUND, "a kernel for every width");

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
