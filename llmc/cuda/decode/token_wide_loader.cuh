/* Of token_wide.cu: a block's shared memory, which rows a warp has, and the warps that bring them. */
#pragma once
#include "llmc/cuda/sm90/sm90_common.cuh"
#include "token_cluster.cuh"

enum {
    HD = DECODE_HD,
    CLUSTER = 4, /* blocks of a head */
    WARPS = 8,
    THREADS = WARPS * WARP_SIZE,
    LOADERS = 4, /* warps, for two others each */
    BLOCK_THREADS = THREADS + LOADERS * WARP_SIZE,
    ROUND = 8 * WARP_SIZE, /* channels of a round: eight a lane */
    MAX_C = WIDE_MAX_NH * HD,
    QKV_ROWS = HD / CLUSTER / WARPS, /* of a warp, of each of q, k and v */
    HIDDEN = 4 * HD,                 /* channels of a cluster */
    FC_ROWS = HIDDEN / CLUSTER / WARPS,
    BLOCK_KEYS = DECODE_MAX_T / CLUSTER,
    SCORE_ROUNDS = BLOCK_KEYS / WARPS / SCORE_KEYS,
    SLOTS_BYTES = 172 * 1024 /* at most: whole slots, five to three of them */
};

/* VECS: rounds of a row of C channels. A slot has room for two rows of each warp. */
template <int VECS> struct Shared {
    enum {
        SLOT_ROUNDS = 2 * VECS,
        SLOT_BYTES = SLOT_ROUNDS * THREADS * 16,
        SLOTS = SLOTS_BYTES / SLOT_BYTES,
        PLACES = 8 * VECS /* of a warp's channels of the residual stream */
    };
    typedef Ring<SLOTS> At;
    uint64_t full[SLOTS][LOADERS], empty[SLOTS][LOADERS];
    uint64_t x_full, qkv_full, parts_full, hidden_full;
    /* What the blocks of the cluster send: see token_shared.cuh. */
    alignas(16) bf16 x[CLUSTER * WARPS * PLACES]; /* the residual stream */
    uint2 qkv[HD + HD / 16]; /* a channel's q and k, and v; a place in 17 is left out, for the banks */
    alignas(16) float parts[CLUSTER][HD];
    float4 weights_of_parts[CLUSTER]; /* x: log2 of the sum of the weights of these keys */
    alignas(16) bf16 hidden[HIDDEN];
    float2 statistics[WARPS];
    float scores[BLOCK_KEYS];
    alignas(16) bf16 normed[MAX_C];
    DecodeLayer layers[DECODE_MAX_LAYERS];
    int4 values[BLOCK_KEYS][HD / 8]; /* piece p of row r at p ^ r % 8, for the banks */
    int4 slots[SLOTS][WARPS][SLOT_ROUNDS][WARP_SIZE];
};

/* ---- what a warp has ---- */

template <int VECS> struct Place {
    const TokenArgs &a;
    const int lane, rank, head;
    int n_vecs; /* of a row of C channels, this lane's */

    __device__ __forceinline__ Place(const TokenArgs &a_)
        : a(a_), lane(threadIdx.x % WARP_SIZE), rank(cluster_rank()), head((int)blockIdx.y / CLUSTER) {
        n_vecs = lane * 8 + (VECS - 1) * ROUND < a.C ? VECS : VECS - 1;
    }
    /* Rows of either projection. */
    __device__ __forceinline__ int n_proj_rows() const { return 2 * a.NH; }
    __device__ __forceinline__ int proj_row(int warp) const { return (rank * WARPS + warp) * n_proj_rows(); }
    __device__ __forceinline__ int qkv_row(int warp) const {
        return head * HD + (rank * WARPS + warp) * QKV_ROWS;
    }
    __device__ __forceinline__ int fc_row(int warp) const {
        return head * HIDDEN + (rank * WARPS + warp) * FC_ROWS;
    }
    /* Of the head: so many from the first on, if there are. */
    __device__ __forceinline__ int n_head_rows() const { return ceil_div(a.V, (int)gridDim.y * WARPS); }
    __device__ __forceinline__ int head_row(int warp) const {
        return ((int)blockIdx.y * WARPS + warp) * n_head_rows();
    }
};

/* ---- the warps that bring weights, for two others each ---- */

template <int VECS> struct Loader {
    typedef Shared<VECS> S;
    const TokenArgs &a;
    S &s;
    const Place<VECS> place;
    const int lane, loader;
    typename S::At at;

    __device__ __forceinline__ Loader(const TokenArgs &a_, S &s_)
        : a(a_), s(s_), place(a_), lane(place.lane), loader(threadIdx.x / WARP_SIZE - WARPS) {}

    /* fill(warp, to): copies for a warp, to the lane's places in a slot, WARP_SIZE * 16 bytes from each other. */
    template <typename F> __device__ __forceinline__ void slot(F fill) {
        mbarrier_wait(shared_address(&s.empty[at.stage][loader]), at.parity ^ 1);
#pragma unroll
        for (int i = 0; i < 2; i++)
            fill(2 * loader + i, shared_address(&s.slots[at.stage][2 * loader + i][0][lane]));
        cp_async_arrive(shared_address(&s.full[at.stage][loader]));
        at.advance();
    }
    /* n rows of C channels of each warp, from first(warp) on. For rows that are not there, `last` comes. */
    template <typename F> __device__ __forceinline__ void rows(const bf16 *weight, int n, int last, F first) {
#pragma unroll 1
        for (int r = 0; r < n; r += 2)
            slot([&](int warp, uint32_t to) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const bf16 *from = weight + (int64_t)min(first(warp) + r + i, last) * a.C + lane * 8;
#pragma unroll
                    for (int v = 0; v < VECS; v++)
                        cp_async_16_once(to + (i * VECS + v) * (WARP_SIZE * 16), from + v * ROUND,
                                         v < VECS - 1 || place.n_vecs == VECS);
                }
            });
    }
    /* Of n rows, `apart` values from each other, a round each: as many as a slot has room for. */
    __device__ __forceinline__ void columns(uint32_t to, const bf16 *from, int64_t apart, int n) const {
#pragma unroll
        for (int i = 0; i < S::SLOT_ROUNDS; i++)
            if (i < n) cp_async_16_once(to + i * (WARP_SIZE * 16), from + i * apart, true);
    }
    __device__ __forceinline__ void layer(const DecodeLayer &l) {
        const int n = place.n_proj_rows(), C = a.C;
#pragma unroll 1
        for (int part = 0; part < 3; part++)
            rows(l.qkv_weight + (int64_t)part * C * C, QKV_ROWS, C - 1,
                 [&](int w) { return place.qkv_row(w); });
        /* Four rows a round, of an odd number of heads two in the last. */
        slot([&](int warp, uint32_t to) {
            const int row = place.proj_row(warp) + lane / 8;
            columns(to, l.attn_proj_weight + (int64_t)row * C + place.head * HD + lane % 8 * 8, 4 * C,
                    (n - lane / 8 + 3) / 4);
        });
        rows(l.fc_weight, FC_ROWS, 4 * C - 1, [&](int w) { return place.fc_row(w); });
#pragma unroll 1
        for (int first = 0; first < 4 * S::SLOT_ROUNDS; first += S::SLOT_ROUNDS)
            slot([&](int warp, uint32_t to) {
                const int row = place.proj_row(warp) + first;
                columns(to, l.mlp_proj_weight + (int64_t)row * (4 * C) + place.head * HIDDEN + lane * 8,
                        4 * C, n - first);
            });
    }
    __device__ __forceinline__ void run() {
#pragma unroll 1
        for (int l = 0; l < a.n_layers; l++) layer(s.layers[l]);
        rows(a.head_weight, place.n_head_rows(), a.V - 1, [&](int w) { return place.head_row(w); });
    }
};
