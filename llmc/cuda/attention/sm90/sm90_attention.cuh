/* What forward and backward of attention for sm_90a share: the queue of tiles, and the masks of scores. */
#pragma once
#include <math_constants.h>
#include "llmc/cuda/attention/launch.cuh"
#include "llmc/cuda/attention/mask.cuh"
#include "llmc/cuda/sm90/sm90_frame.cuh"

/* Of a head group: half the L2 of an H100; a quarter where the groups under way at once, each read through both halves of
 * L2, are too much together and tiles do not mind (measured: dev/attention/README.md). */
constexpr int64_t SM90_GROUP_BYTES = 24 << 20, SM90_SMALL_GROUP_BYTES = 12 << 20;

/* ---- the queue of tiles: a block takes the next when it has finished one ---- */

/* A tile and where it lies; index -1 ends the consumers. The producer passes it with the tile's own rows. */
typedef struct alignas(16) Work {
    int index, tile, head, batch;
} Work;

__device__ __forceinline__ Work work_at(const TileOrder &order, int index) {
    const HeadRank of = head_rank(order, index);
    return {index, order.descending ? order.tiles - 1 - of.rank : of.rank, of.head % order.n_heads,
            of.head / order.n_heads};
}

/* What the producer wrote, for a warp. Lane 0 alone reads it, for it is lane 0 that will arrive for the warp. */
__device__ __forceinline__ Work read_work(const Work &shared) {
    int4 x = {};
    if (threadIdx.x % 32 == 0) x = *reinterpret_cast<const int4 *>(&shared);
    return {__shfl_sync(0xffffffffu, x.x, 0), __shfl_sync(0xffffffffu, x.y, 0),
            __shfl_sync(0xffffffffu, x.z, 0), __shfl_sync(0xffffffffu, x.w, 0)};
}

/* Index of the block's next tile; its first is blockIdx.x. (Clusters draw for all their blocks at once: draw_work,
 * forward_producer.) Every tile draws once, so the counter is back at 0 when the last has drawn and needs no
 * reset. */
__device__ __forceinline__ int draw_tile(unsigned *counter, int total) {
    return gridDim.x + atomicInc(counter, total - 1);
}

/* The first M of x, as an array. */
template <int M, int N> __device__ __forceinline__ float (&first(float (&x)[N]))[M] {
    static_assert(M <= N, "they are there");
    return reinterpret_cast<float(&)[M]>(x);
}

/* ---- masks, where queries are the rows of an accumulator and keys its columns. C: a kernel's config ---- */

/* Blocks of keys that the query rows [row0, row0 + rows) see; the last is the only one that needs a mask, if
 * row0 and rows are such that no row's diagonal lies in an earlier one. */
template <class C> __device__ __forceinline__ int key_blocks(int row0, int rows, int T) {
    const int keys = C::CAUSAL ? min(row0 + rows, T) : T;
    return row0 < T ? ceil_div(keys, C::KEYS) : 0;
}

/* Scores of keys that a row does not see, or that are beyond the sequence, become -inf. */
template <class C, int N>
__device__ __forceinline__ void mask_keys(float (&s)[N], int row0, int key0, int T) {
    if (!C::CAUSAL && T % C::KEYS == 0) return;
    const int first = key0 + thread_column();
    const int last_seen = C::CAUSAL ? row0 + thread_row() - first : T - 1 - first;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i / 4 * 8 + i % 2 > last_seen + (C::CAUSAL ? i / 2 % 2 * 8 : 0)) s[i] = -CUDART_INF_F;
}

/* The same where the last 64 keys of s are those of the warpgroup's own 64 positions, causal. The warp is known to see
 * the first `whole` of their four sets of 16. */
template <int N> __device__ __forceinline__ void mask_diagonal(float (&s)[N], int whole) {
    const int last_seen = thread_row() - thread_column();
#pragma unroll
    for (int set = 0; set < WG_ROWS / 16; set++) {
        if (set < whole) continue;
#pragma unroll
        for (int i = 8 * set; i < 8 * set + 8; i++)
            if (i / 4 * 8 + i % 2 > last_seen + i / 2 % 2 * 8) s[N - WG_ROWS / 2 + i] = -CUDART_INF_F;
    }
}

/* Keys before the first that a row sees. row0: position of the warpgroup's first row; key0: of s's first key. */
template <int N>
__device__ __forceinline__ void mask_unseen(float (&s)[N], const SeenKeys &seen, int batch, int row0,
                                            int key0) {
    int first[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        first[half] = seen.first_key(batch, row0 + thread_row() + 8 * half) - key0 - thread_column();
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i / 4 * 8 + i % 2 < first[i / 2 % 2]) s[i] = -CUDART_INF_F;
}
