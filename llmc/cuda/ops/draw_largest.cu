/* The next token of each sequence, where the largest logit is all that is asked for: a cluster of blocks has a sequence; or a block
 * the only one, where the kernel before has found it but for 1,024 candidates (draw_tokens.cuh). */
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/device/early.cuh"
#include "draw_row.cuh"

/* ---- of any number of sequences ---- */

/* Of the largest: its key, the lowest id that has it, and how many are not finite. */
struct Found {
    uint32_t key;
    int first, n_bad;
};
enum {
    PART_THREADS = 512,
    PART_WARPS = PART_THREADS / WARP_SIZE,
    PART_AT_ONCE = 4,
    MAX_PARTS = 8 /* blocks of a sequence */
};
struct Parts {
    int4 found[MAX_PARTS]; /* by the blocks behind the first, as they send it */
    uint64_t full;
    uint32_t keys[PART_WARPS];
    int first, n_bad;
};

/* Of this block, known to thread 0. */
template <typename X>
__device__ Found find_largest(Parts &shared, const X *logits, int V, const Share &share) {
    const First own = first_pass<PART_AT_ONCE>(logits, V, share, NULL);
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, own.key);
    if (threadIdx.x % WARP_SIZE == 0) shared.keys[threadIdx.x / WARP_SIZE] = of_warp;
    const bool any_bad = __syncthreads_or(own.is_bad);
    const uint32_t largest = __reduce_max_sync(0xffffffffu, shared.keys[threadIdx.x % PART_WARPS]);
    if (own.key == largest) atomicMin(&shared.first, first_of_key<PART_AT_ONCE>(logits, V, share, largest));
    if (any_bad) atomicAdd(&shared.n_bad, count_bad<PART_AT_ONCE>(logits, V, share));
    __syncthreads();
    return {largest, shared.first, shared.n_bad};
}

/* Of all blocks of the cluster, in order. */
__device__ __forceinline__ Found join_parts(Parts &shared, Found all) {
#if __CUDA_ARCH__ >= 900
    if (gridDim.y > 1) mbarrier_wait(shared_address(&shared.full), 0);
    for (int part = 1; part < gridDim.y; part++) {
        const int4 sent = shared.found[part];
        const Found x = {(uint32_t)sent.x, sent.y, sent.z};
        all.first = x.key < all.key ? all.first : x.key > all.key ? x.first : min(all.first, x.first);
        all.key = max(all.key, x.key);
        all.n_bad += x.n_bad;
    }
#endif
    return all;
}

/* Blocks (sequence, part). Few registers and little memory: they come while the head still runs. */
template <typename X>
__global__ void __launch_bounds__(PART_THREADS, sizeof(X) == 2 ? 4 : 3) largest_kernel(DrawArgs a) {
    __shared__ Parts shared;
    const int b = blockIdx.x, part = blockIdx.y;
    const Share share = {part * PART_THREADS + (int)threadIdx.x, (int)gridDim.y * PART_THREADS};
    if (threadIdx.x == 0) {
        shared.first = a.V;
        shared.n_bad = 0;
    }
#if __CUDA_ARCH__ >= 900
    const uint32_t full = shared_address(&shared.full);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(full, (gridDim.y - 1) * sizeof(int4));
    }
    cluster_arrive();
    cluster_wait(); /* all blocks have their barriers */
#endif
    wait_early();
    const Found found = find_largest(shared, (const X *)a.logits + (int64_t)b * a.Vp, a.V, share);
    if (threadIdx.x > 0) return;
#if __CUDA_ARCH__ >= 900
    if (part > 0) {
        store_async_16(cluster_address(shared_address(&shared.found[part]), 0),
                       make_int4((int)found.key, found.first, found.n_bad, 0), cluster_address(full, 0));
        return;
    }
#endif
    const Found all = join_parts(shared, found);
    write_token(a, b, a.positions[b] + 1, all.first, all.n_bad);
}

/* As many blocks a sequence as the card has at once. */
template <typename T> void draw_largest(const DrawArgs *args) {
    int parts = cuda_compute_capability() == 90 ? (int)MAX_PARTS : 1;
    while (parts > 1 && args->B * parts > cuda_sm_count()) parts /= 2;
    launch_early("draw_tokens", largest_kernel<T>, dim3(args->B, parts), PART_THREADS, 0, parts, *args);
}

template void draw_largest<float>(const DrawArgs *);
template void draw_largest<bf16>(const DrawArgs *);

/* ---- of one sequence, from words ---- */

/* A block, a thread a word. It begins while the logits are made, and takes their words as they come. The next launch begins with
 * it, so that what comes behind the last logit is short: the launch of a token takes 3 us. Its wait is for the end of the launch
 * before, behind which the one after it may overwrite. */
__global__ void __launch_bounds__(MAX_WORDS) words_kernel(DrawArgs a, LargestArgs of) {
    static_assert(MAX_WORDS == WARPS * WARP_SIZE, "and a warp a word of the last step");
    __shared__ uint32_t keys[WARPS], ids[WARPS];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    begin_next_early();
    const int position = __ldcg(a.positions) + 1; /* before the wait L1 may have an old one */
    const bool has_word = (int)threadIdx.x < of.n;
    uint64_t word;
    do word = has_word ? load_relaxed_8(of.words + threadIdx.x) : of.tag;
    while ((uint16_t)word != of.tag);
    const uint32_t key = (uint32_t)(word >> WORD_KEY_AT), id = (uint32_t)(word >> WORD_ID_AT) & MAX_ID;
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, key);
    const uint32_t id_of_warp = __reduce_max_sync(0xffffffffu, key == of_warp ? id : 0);
    if (lane == 0) keys[warp] = of_warp, ids[warp] = id_of_warp;
    const bool any_bad = __syncthreads_or((int)(word >> WORD_BAD_AT & 1));
    const uint32_t largest = __reduce_max_sync(0xffffffffu, keys[lane]);
    const int token = MAX_ID - (int)__reduce_max_sync(0xffffffffu, keys[lane] == largest ? ids[lane] : 0);
    if ((int)threadIdx.x * 64 < of.C)
        prefetch_to_l2(of.wte + (int64_t)token * of.C + threadIdx.x * 64); /* a line of 128 bytes */
    wait_for_last();
    const bf16 *logits = (const bf16 *)a.logits;
    const int n_bad = any_bad ? Block::join(count_bad<AT_ONCE>(logits, a.V, share_of_block()), Sum()) : 0;
    if (threadIdx.x == 0) write_token(a, 0, position, token, n_bad);
}

void draw_largest(const DrawArgs *args, const LargestArgs *largest) {
    launch_early("draw_tokens", words_kernel, dim3(1), MAX_WORDS, 0, 1, *args, *largest);
}
