/* Stable sort of tokens with their positions: least significant digit first, 8 bits a pass, so one pass for
 * bytes and two for GPT-2's 50,257.
 *
 * A pass counts digits in tiles of the input, turns the counts (digit, tile) into first output places, and
 * moves each element to the place of its digit and tile plus its rank inside the tile. Only integers are
 * added, and ranks follow the input's order: the result has one value whatever the timing. */
#include "llmc/cuda/cuda_ops.cuh"

enum {
    RADIX = 256, /* also the threads of every block here: thread d owns digit d */
    SORT_WARPS = RADIX / WARP_SIZE,
    ROUNDS = 4, /* elements a thread */
    TILE = RADIX * ROUNDS,
};

__device__ inline int digit_of(int32_t token, int shift) {
    return (token >> shift) & (RADIX - 1);
}

/* Exclusive prefix sum over the block; *total gets the sum of all. */
__device__ inline int32_t block_exclusive_scan(int32_t x, int32_t *total) {
    __shared__ int32_t warp_totals[SORT_WARPS];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    int32_t inclusive = x;
#pragma unroll
    for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
        const int32_t left = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += left;
    }
    if (lane == WARP_SIZE - 1) warp_totals[warp] = inclusive;
    __syncthreads();
    int32_t before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < SORT_WARPS; w++) {
        if (w < warp) before += warp_totals[w];
        all += warp_totals[w];
    }
    __syncthreads(); /* warp_totals may be written again */
    *total = all;
    return before + inclusive - x;
}

/* counts (RADIX, n_tiles) =; one block a tile */
__global__ void __launch_bounds__(RADIX)
    count_digits_kernel(int32_t *counts, const int32_t *__restrict__ tokens, int64_t N, int shift) {
    __shared__ int32_t count[RADIX];
    count[threadIdx.x] = 0;
    __syncthreads();
    const int64_t tile = (int64_t)blockIdx.x * TILE;
    for (int64_t i = tile + threadIdx.x; i < min(tile + TILE, N); i += RADIX)
        atomicAdd(&count[digit_of(tokens[i], shift)], 1);
    __syncthreads();
    counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

/* Row d of counts becomes its exclusive prefix sum, totals[d] its sum; one block a digit. */
__global__ void __launch_bounds__(RADIX) scan_tiles_kernel(int32_t *counts, int32_t *totals, int n_tiles) {
    int32_t *row = counts + (int64_t)blockIdx.x * n_tiles;
    int32_t carry = 0;
    for (int first = 0; first < n_tiles; first += RADIX) {
        const int i = first + threadIdx.x;
        int32_t total;
        const int32_t before = block_exclusive_scan(i < n_tiles ? row[i] : 0, &total);
        if (i < n_tiles) row[i] = carry + before;
        carry += total;
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = carry;
}

/* One block a tile; a warp owns ROUNDS * 32 consecutive elements, a round 32 of them. positions NULL: 0..N-1. */
__global__ void __launch_bounds__(RADIX)
    move_kernel(int32_t *tokens_out, int32_t *positions_out, const int32_t *__restrict__ tokens,
                const int32_t *__restrict__ positions, const int32_t *__restrict__ offsets,
                const int32_t *__restrict__ totals, int64_t N, int shift) {
    __shared__ int32_t next[SORT_WARPS][RADIX]; /* counts, then the next free place, per warp and digit */
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int64_t first = (int64_t)blockIdx.x * TILE + warp * (ROUNDS * WARP_SIZE) + lane;
    int32_t token[ROUNDS];
    unsigned peers[ROUNDS]; /* lanes of the round with the same digit */
    for (int w = 0; w < SORT_WARPS; w++) next[w][threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int64_t i = first + r * WARP_SIZE;
        token[r] = i < N ? tokens[i] : -1;
        peers[r] = __match_any_sync(0xffffffffu, token[r] < 0 ? RADIX : digit_of(token[r], shift));
        if (token[r] >= 0 && lane == __ffs(peers[r]) - 1)
            next[warp][digit_of(token[r], shift)] += __popc(peers[r]);
        __syncwarp();
    }
    __syncthreads();
    int32_t total;
    int32_t place = block_exclusive_scan(totals[threadIdx.x], &total) +
                    offsets[(int64_t)threadIdx.x * gridDim.x + blockIdx.x];
    for (int w = 0; w < SORT_WARPS; w++) {
        const int32_t count = next[w][threadIdx.x];
        next[w][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int64_t i = first + r * WARP_SIZE;
        int32_t *free_place = &next[warp][token[r] < 0 ? 0 : digit_of(token[r], shift)];
        const int32_t mine = *free_place + __popc(peers[r] & ((1u << lane) - 1));
        __syncwarp(); /* all have read the place before the first peer moves it */
        if (token[r] >= 0) {
            if (lane == __ffs(peers[r]) - 1) *free_place += __popc(peers[r]);
            tokens_out[mine] = token[r];
            positions_out[mine] = positions ? positions[i] : (int32_t)i;
        }
        __syncwarp();
    }
}

typedef struct SortBuffers {
    int32_t *tokens[2], *positions[2]; /* (N) each */
    int32_t *counts;                   /* (RADIX, n_tiles) */
    int32_t *totals;                   /* (RADIX) */
    size_t bytes;
} SortBuffers;

static SortBuffers carve(void *scratch, int64_t N) {
    SortBuffers b;
    char *next = (char *)scratch;
    const size_t list_bytes = align_256((size_t)N * sizeof(int32_t));
    const size_t counts_bytes = align_256((size_t)ceil_div<int64_t>(N, TILE) * RADIX * sizeof(int32_t));
    for (int i = 0; i < 2; i++) {
        b.tokens[i] = (int32_t *)next, next += list_bytes;
        b.positions[i] = (int32_t *)next, next += list_bytes;
    }
    b.counts = (int32_t *)next, next += counts_bytes;
    b.totals = (int32_t *)next, next += RADIX * sizeof(int32_t);
    b.bytes = (size_t)(next - (char *)scratch);
    return b;
}

size_t sort_tokens_scratch_bytes(int64_t N) {
    return carve(NULL, N).bytes;
}

SortedTokens sort_tokens(const int32_t *tokens, void *scratch, int64_t N, int V) {
    const SortBuffers b = carve(scratch, N);
    const int n_tiles = (int)ceil_div<int64_t>(N, TILE);
    const int32_t *from_tokens = tokens, *from_positions = NULL;
    int to = 0;
    for (int shift = 0; shift == 0 || (V - 1) >> shift > 0; shift += 8, to ^= 1) {
        count_digits_kernel<<<n_tiles, RADIX, 0, main_stream>>>(b.counts, from_tokens, N, shift);
        launch_check("count_digits");
        scan_tiles_kernel<<<RADIX, RADIX, 0, main_stream>>>(b.counts, b.totals, n_tiles);
        launch_check("scan_tiles");
        move_kernel<<<n_tiles, RADIX, 0, main_stream>>>(b.tokens[to], b.positions[to], from_tokens,
                                                        from_positions, b.counts, b.totals, N, shift);
        launch_check("move");
        from_tokens = b.tokens[to];
        from_positions = b.positions[to];
    }
    return SortedTokens{from_tokens, from_positions};
}
