/* The order of the tiles of an attention kernel, and its shared memory. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* ---- the order of tiles ---- */

/* Tiles of causal attention differ in length: the longest come first, so that the short ones fill the gaps at the end;
 * backward of sm90 takes the shortest first, in the order in which they add to dQ (sm90_dq_semaphore.cuh).
 * Heads come in groups small enough that what their tiles share stays in L2 (head group, L2 swizzle). */
typedef struct TileOrder {
    int heads, n_heads; /* B*NH, NH */
    int tiles;          /* of one head */
    int group_heads;
    int total;
    int last_head;  /* where the last group begins, which takes all that are left */
    int descending; /* a head's tiles from the last to the first */
} TileOrder;

/* tile_rows: rows of a tile; row_bytes: what one position of a head adds to the data that its tiles share (K and V, or Q
 * and dO); group_bytes: of those of a group. */
static inline TileOrder tile_order(int B, int T, int NH, int tile_rows, int row_bytes, bool descending,
                                   int64_t group_bytes) {
    const int64_t fit = group_bytes / ((int64_t)T * row_bytes);
    TileOrder order;
    order.heads = B * NH;
    order.n_heads = NH;
    order.tiles = ceil_div(T, tile_rows);
    order.group_heads = fit < 1 ? 1 : fit < order.heads ? (int)fit : order.heads;
    order.total = order.heads * order.tiles;
    order.last_head = (ceil_div(order.heads, order.group_heads) - 1) * order.group_heads;
    order.descending = descending;
    return order;
}

/* Of tile `index`: its head, of B*NH, and its rank among the head's tiles in the order in which they are taken. */
typedef struct HeadRank {
    int head, rank;
} HeadRank;

__device__ __forceinline__ HeadRank head_rank(const TileOrder &order, int index) {
    const int group_tiles = order.group_heads * order.tiles;
    const int first_head = min(index / group_tiles * order.group_heads, order.last_head);
    const int in_group = index - first_head * order.tiles;
    const int heads = first_head < order.last_head ? order.group_heads : order.heads - first_head;
    return {first_head + in_group % heads, in_group / heads};
}

/* ---- kernels of a block for each tile: sm80, generic ---- */

constexpr int64_t HEAD_GROUP_BYTES = 16 << 20; /* a third of the L2 of an H100 or A100 */

/* What a thread block owns: `rows` positions of one head of one sequence. */
typedef struct BlockRows {
    int head;      /* of B*NH */
    int row0;      /* position of the first */
    int column;    /* first column of the head in C */
    int64_t token; /* row of the first in (B*T) */
    int64_t stat;  /* index of the first in (B,NH,T) */
} BlockRows;

/* DESCENDING: order.descending, as the compiler must know it: queries, of which the last are the longest work. */
template <bool DESCENDING>
__device__ __forceinline__ BlockRows block_rows(const TileOrder &order, int rows, int T, int NH, int HD) {
    const HeadRank of = head_rank(order, (int)blockIdx.x);
    BlockRows at;
    at.head = of.head;
    at.row0 = (DESCENDING ? order.tiles - 1 - of.rank : of.rank) * rows;
    at.column = of.head % NH * HD;
    at.token = (int64_t)(of.head / NH) * T + at.row0;
    at.stat = (int64_t)of.head * T + at.row0;
    return at;
}

/* Lets KERNEL use `bytes` of dynamic shared memory; beyond 48 KB that must be asked for, once per kernel. */
template <auto KERNEL> static void allow_shared_bytes(int bytes) {
    static int allowed = 0;
    if (bytes <= allowed) return;
    CUDA_CHECK(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    allowed = bytes;
}
