/* What every attention kernel is launched with: the order of its blocks and its shared memory. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;

/* The order of the thread blocks. Causal tiles differ in length, so the longest start first (rank 0) and the
 * short ones fill the gaps at the end; and heads go in sections small enough that what their tiles share (K
 * and V, or Q and dO) stays in L2 while all tiles of the section run. */
typedef struct BlockOrder {
    int n_heads, n_tiles; /* n_heads = B*NH */
    int section_heads;
} BlockOrder;

constexpr int64_t SECTION_BYTES = 16 << 20; /* a third of the L2 of an H100 or A100 */

/* shared_row_bytes: what one position of one head adds to the shared data. */
static inline BlockOrder block_order(int n_heads, int T, int tile_rows, int64_t shared_row_bytes) {
    const int64_t heads = SECTION_BYTES / (T * shared_row_bytes);
    BlockOrder order = {n_heads, (T + tile_rows - 1) / tile_rows, 1};
    if (heads > 1) order.section_heads = heads < n_heads ? (int)heads : n_heads;
    return order;
}

/* What a thread block owns: `rows` positions of one head of one sequence. */
typedef struct BlockRows {
    int row0;      /* position of the first */
    int column;    /* first column of the head in C */
    int64_t token; /* row of the first in (B*T) */
    int64_t stat;  /* index of the first in (B,NH,T) */
} BlockRows;

/* last_first: the last positions of a sequence are the longest work (queries); else the first are (keys). */
__device__ __forceinline__ BlockRows block_rows(BlockOrder order, int rows, bool last_first, int T, int NH,
                                                int HD) {
    const int section_blocks = order.section_heads * order.n_tiles;
    const int first_head = (int)blockIdx.x / section_blocks * order.section_heads;
    const int in_section = (int)blockIdx.x % section_blocks;
    const int heads = min(order.section_heads, order.n_heads - first_head);
    const int head = first_head + in_section % heads, rank = in_section / heads;
    BlockRows at;
    at.row0 = (last_first ? order.n_tiles - 1 - rank : rank) * rows;
    at.column = head % NH * HD;
    at.token = (int64_t)(head / NH) * T + at.row0;
    at.stat = (int64_t)head * T + at.row0;
    return at;
}

/* Lets KERNEL use `bytes` of dynamic shared memory; beyond 48 KB that must be asked for, once per kernel. */
template <auto KERNEL> static void allow_shared_bytes(int bytes) {
    static int allowed = 0;
    if (bytes <= allowed) return;
    CUDA_CHECK(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    allowed = bytes;
}
