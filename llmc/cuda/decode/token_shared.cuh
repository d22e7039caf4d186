/* What a block of token.cu has in shared memory. */
#pragma once
#include "token_cluster.cuh"

enum {
    HD = DECODE_HD,
    CLUSTER = 8, /* blocks of a head */
    WARPS = 8,   /* that compute */
    THREADS = WARPS * WARP_SIZE,
    BLOCK_THREADS = THREADS + 4 * WARP_SIZE, /* with the loaders */
    ROUND = 8 * WARP_SIZE,                   /* channels of a warp at a time */
    MAX_C = TOKEN_MAX_NH * HD,
    QKV_ROWS = HD / CLUSTER, /* of a block, of each of q, k and v */
    FC_ROWS = 4 * HD / CLUSTER,
    HIDDEN = 4 * HD, /* channels of a cluster */
    WARP_FC_ROWS = FC_ROWS / WARPS,
    BLOCK_KEYS = DECODE_MAX_T / CLUSTER
};
static_assert(QKV_ROWS == WARPS && WARP_FC_ROWS == 4, "a warp has one row of each, four of fc");

/* What the loaders fill. Three buffers of 64 C bytes: c_attn's share and the first projection's, which it ends with; fc's;
 * the second projection's. The head's rows come through the same three. */
enum Weights { QKV, ATTN_PROJ, FC, MLP_PROJ, N_WEIGHTS };

struct Shared {
    uint64_t full[N_WEIGHTS], empty[N_WEIGHTS];
    uint64_t x_full, qkv_full, parts_full, hidden_full;
    /* What the blocks of the cluster send. A place is sent to anew only after all have read it, as it follows from what
     * they made of it: of x come q, k and v of all warps, of these the parts of all warps, of these a sum, and of that x; of
     * this the hidden channels of all warps, of these a sum, and of that x. */
    alignas(16) bf16 x[CLUSTER * WARPS * 16]; /* the residual stream, PROJ_ROWS places of each warp */
    uint2
        qkv[HD + HD / 16]; /* a channel's q and k, and v, as bf16; a place in 17 is left out, for the banks */
    alignas(16) float parts[CLUSTER][HD]; /* attention's output by each block's keys */
    float4 weights_of_parts[CLUSTER];     /* x: log2 of the sum of the weights of these keys */
    alignas(16) bf16 hidden[HIDDEN];
    /* The block's own. */
    float2 statistics[WARPS]; /* of each warp's channels: sum, squares */
    float scores[BLOCK_KEYS];
    int4 values[BLOCK_KEYS][HD / 8]; /* piece p of row r at p ^ r % 8, for the banks */
    alignas(16) bf16 normed[MAX_C];
    struct {
        alignas(16) bf16 weight[MAX_C], bias[MAX_C];
    } norms[2];
    alignas(16) bf16 qkv_bias[3][QKV_ROWS], attn_proj_bias[MAX_C / CLUSTER], fc_bias[FC_ROWS],
        mlp_proj_bias[MAX_C / CLUSTER];
    bf16 *caches[DECODE_MAX_LAYERS];
    alignas(128) char weights[];
};

static constexpr size_t shared_bytes(int C) {
    return sizeof(Shared) + (size_t)3 * 64 * C;
}
static_assert(shared_bytes(MAX_C) <= 227 * 1024, "a block's shared memory");

__device__ __forceinline__ char *weights_of(const TokenArgs &a, Shared &s, int which) {
    const int at[N_WEIGHTS] = {0, 48, 64, 128};
    return s.weights + at[which] * a.C;
}

__device__ __forceinline__ int this_head() {
    return (int)blockIdx.y / CLUSTER;
}
/* The clusters behind those of the heads have rows of the head alone. */
__device__ __forceinline__ bool has_layers(const TokenArgs &a) {
    return this_head() < a.NH;
}

/* Tiles of the head that a block has before the last norm is there: three in buffers and one in registers; and so many behind
 * them that are in L2 then. With more of those the last layers' weights come late. */
enum { HELD_TILES = 4, L2_TILES = 2 };

/* The rows of the head that a block has. */
struct HeadRows {
    int first, end;
    __device__ __forceinline__ HeadRows(const TokenArgs &a, int block) {
        first = (int)((int64_t)a.V * block / gridDim.y);
        end = (int)((int64_t)a.V * (block + 1) / gridDim.y);
    }
    /* FC_ROWS at a time */
    __device__ __forceinline__ int n_tiles() const { return ceil_div(end - first, (int)FC_ROWS); }
};
