/* A new token of each sequence against the cache of its keys and values.
 *
 * Flash-decoding (Dao et al. 2023): with one query a head, a block a head cannot fill the card, so the keys of a head
 * are cut into pieces, a block each, with maximum m_p, sum l_p and unnormalised output o_p of their own:
 *
 *   m = max m_p   out = sum o_p 2^(m_p - m) / sum l_p 2^(m_p - m), in order of p
 *
 * Where the pieces end depends on the cache's size alone: not on the number of sequences, nor on how many keys there are,
 * which only the device knows. Pieces without keys are left out.
 *
 * A block takes its keys 128 at a time with a running maximum and sum (online softmax). In a tile, a thread
 * first owns a key (its score), then 16 bytes of V's columns and every n_groups-th key. */
#include <cooperative_groups.h>
#include <math_constants.h>
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/attention/launch.cuh"
#include "llmc/cuda/decode/steps.cuh"
#include "llmc/cuda/device/early.cuh"
#include "decode_piece.cuh"

enum { THREADS = PIECE_KEYS, MAX_HD = 256, MAX_CLUSTER = 8 };

/* q.k over HD elements, q fp32 in shared memory. */
template <typename X> __device__ __forceinline__ float dot(const float *q, const X *k, int HD) {
    float sum = 0.0f;
    for (int d = 0; d < HD; d += Vec<X>::N) {
        const Vec<X> x = load_vec(k + d);
#pragma unroll
        for (int i = 0; i < Vec<X>::N; i++) sum = fmaf(q[d + i], to_float(x.v[i]), sum);
    }
    return sum;
}

/* Of a pattern of blocks: whether the query at `position` does not see the block that a key, not behind it, is of. */
__device__ __forceinline__ bool hides_block(const BlockSparse &sparse, int position, int64_t key) {
    return sparse.pattern.window > 0 && key <= position &&
           !sparse_sees(&sparse, position / (int)MASK_BLOCK, (int)key / (int)MASK_BLOCK);
}

/* k and v of the new token, of this head, to their place in the cache. */
template <typename X> __device__ void append(X *key, const X *q, int64_t C, int HD) {
    constexpr int N = Vec<X>::N;
    const int chunks = HD / N;
    for (int i = threadIdx.x; i < 2 * chunks; i += THREADS) {
        const int64_t part = i / chunks, d = i % chunks * N;
        store_vec(key + part * C + d, load_vec(q + (1 + part) * C + d));
    }
}

/* Block (head, piece, sequence): keys [piece * piece_keys, ...) of a head. pieces (B,NH,gridDim.y,HD+2) = o, m, l of
 * each, in log2; out where one piece is all. */
template <typename X>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(X *out, float *pieces, X *cache, const X *qkv, const int32_t *positions,
                  const int32_t *begins, int window, BlockSparse sparse, int T, int NH, int HD,
                  int piece_keys, float scale_log2) {
    constexpr int N = Vec<X>::N;
    __shared__ float q[MAX_HD], weights[THREADS], partial[THREADS * N];
    wait_early();
    const int64_t C = (int64_t)NH * HD, stride = 2 * C, head = blockIdx.z * (int64_t)NH + blockIdx.x;
    const int position = positions[blockIdx.z];
    const Seen seen = seen_keys(positions, begins, window, blockIdx.z);
    const int64_t begin = max((int64_t)blockIdx.y * piece_keys, seen.begin);
    const int64_t end = min((int64_t)(blockIdx.y + 1) * piece_keys, seen.end);
    if (begin >= end) return;
    const X *query = qkv + blockIdx.z * 3 * C + blockIdx.x * HD;
    X *keys = cache + blockIdx.z * (int64_t)T * stride + blockIdx.x * HD;
    const int n_chunks = HD / N, n_groups = THREADS / n_chunks;
    const int chunk = threadIdx.x % n_chunks,
              group = threadIdx.x / n_chunks; /* group n_groups is left over */
    if (end == seen.end) append(keys + position * stride, query, C, HD);
    for (int d = threadIdx.x; d < HD; d += THREADS) q[d] = to_float(query[d]) * scale_log2;
    __syncthreads();

    float max = -CUDART_INF_F, sum = 0.0f, o[N] = {};
    for (int64_t key0 = begin; key0 < end; key0 += THREADS) {
        const int64_t key = key0 + threadIdx.x;
        const int n_keys = (int)min(end - key0, (int64_t)THREADS);
        if (hides_block(sparse, position, key0) && hides_block(sparse, position, key0 + MASK_BLOCK)) continue;
        const bool is_seen = key < end && !hides_block(sparse, position, key);
        const float x = is_seen ? dot(q, keys + key * stride, HD) : -CUDART_INF_F;
        const float new_max = fmaxf(max, block_max(x));
        const float shrink = exp2f(max - new_max), p = exp2f(x - new_max);
        max = new_max;
        sum = sum * shrink + p;
        weights[threadIdx.x] = p;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) o[i] *= shrink;
        for (int j = group; j < n_keys && group < n_groups; j += n_groups) {
            const Vec<X> v = load_vec(keys + (key0 + j) * stride + C + chunk * N);
#pragma unroll
            for (int i = 0; i < N; i++) o[i] = fmaf(weights[j], to_float(v.v[i]), o[i]);
        }
        __syncthreads(); /* the weights have been read */
    }
    sum = block_sum(sum);
    if (group < n_groups)
#pragma unroll
        for (int i = 0; i < N; i++) partial[group * HD + chunk * N + i] = o[i];
    __syncthreads();
    float *piece = pieces + (head * gridDim.y + blockIdx.y) * (HD + 2);
    for (int d = threadIdx.x; d < HD; d += THREADS) {
        float total = 0.0f;
        for (int g = 0; g < n_groups; g++) total += partial[g * HD + d];
        if (gridDim.y == 1)
            out[head * HD + d] = from_float<X>(total / sum);
        else
            piece[d] = total;
    }
    if (threadIdx.x == 0 && gridDim.y > 1) piece[HD] = max, piece[HD + 1] = sum;
}

/* Block (head, sequence): its pieces in order, of n those that have keys. */
template <typename X>
__global__ void __launch_bounds__(THREADS)
    join_pieces_kernel(X *out, const float *pieces, const int32_t *positions, const int32_t *begins,
                       int window, int n, int piece_keys, int HD) {
    wait_early();
    const int64_t head = blockIdx.y * (int64_t)gridDim.x + blockIdx.x;
    const Seen seen = seen_keys(positions, begins, window, blockIdx.y);
    const float *piece = pieces + head * n * (HD + 2);
    const int first = (int)(seen.begin / piece_keys), end = (int)ceil_div(seen.end, (int64_t)piece_keys);
    float max = -CUDART_INF_F, sum = 0.0f;
    for (int p = first; p < end; p++) max = fmaxf(max, piece[p * (HD + 2) + HD]);
    for (int p = first; p < end; p++)
        sum = fmaf(piece[p * (HD + 2) + HD + 1], exp2f(piece[p * (HD + 2) + HD] - max), sum);
    for (int d = threadIdx.x; d < HD; d += THREADS) {
        float total = 0.0f;
        for (int p = first; p < end; p++)
            total = fmaf(piece[p * (HD + 2) + d], exp2f(piece[p * (HD + 2) + HD] - max), total);
        out[head * HD + d] = from_float<X>(total / sum);
    }
}

/* ---- bf16, head size 64 or 128, a piece of 128 keys: decode_piece.cuh ---- */

/* Block (head, piece, sequence). CLUSTER: the pieces of a head are a cluster, whose first block joins them; else each
 * goes to `pieces`. */
template <int HD, bool CLUSTER>
__global__ void __launch_bounds__(THREADS)
    fast_decode_kernel(bf16 *out, float *pieces, bf16 *cache, const bf16 *qkv, const int32_t *positions,
                       const int32_t *begins, int window, int T, int NH, float scale_log2) {
    typedef FastPiece<HD> P;
    __shared__ Part<HD> parts[P::WARPS], piece;
    const int d = threadIdx.x % P::LANES * 8;
    const int64_t C = (int64_t)NH * HD, head = blockIdx.z * (int64_t)NH + blockIdx.x;
    const Seen seen = seen_keys(positions, begins, window, blockIdx.z);
    bf16 *keys = cache + blockIdx.z * (int64_t)T * 2 * C + blockIdx.x * HD + d;
    const bf16 *query = qkv + blockIdx.z * 3 * C + blockIdx.x * HD + d;
    P own(keys, 2 * C, blockIdx.y, seen);
    own.load();
    wait_early();
    own.attend(&parts[threadIdx.x / WARP_SIZE], query, query + C, query + 2 * C, scale_log2);
    __syncthreads();
    const int e = threadIdx.x;
    float all_sum = 0, all_max = 0, total = 0;
    if (e < HD)
        total = join_parts<HD, P::WARPS>(P::WARPS, e, &all_sum, &all_max, [&](int p) { return &parts[p]; });
    if (!CLUSTER) {
        float *to = pieces + (head * gridDim.y + blockIdx.y) * (HD + 2);
        if (e < HD) to[e] = total;
        if (e == 0) to[HD] = all_max, to[HD + 1] = all_sum;
        return;
    }
#if __CUDA_ARCH__ >= 900
    if (e < HD) piece.o[e] = total;
    if (e == 0) piece.max = all_max, piece.sum = all_sum;
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    cluster.sync();
    if (blockIdx.y == 0 && e < HD) {
        total = join_parts<HD, MAX_CLUSTER>(gridDim.y, e, &all_sum, &all_max,
                                            [&](int p) { return cluster.map_shared_rank(&piece, p); });
        out[head * HD + e] = __float2bfloat16_rn(total / all_sum);
    }
    cluster.sync(); /* nobody goes while it is read */
#endif
}

/* Block (head, sequence): all pieces of many sequences, which fill the card without being cut. Loads never pause: the
 * registers of a key take its value once it has its score, and then a key of the next piece. While q is made, the first
 * piece's keys are on their way, and its values to L2. */
template <int HD>
__global__ void __launch_bounds__(THREADS, HD == 64 ? 6 : 3)
    whole_decode_kernel(bf16 *out, bf16 *cache, const bf16 *qkv, const int32_t *positions,
                        const int32_t *begins, int window, int T, int NH, float scale_log2) {
    typedef PieceKeys<HD> P;
    __shared__ Part<HD> parts[MAX_CLUSTER][P::WARPS];
    const int d = threadIdx.x % P::LANES * 8, e = threadIdx.x;
    const int64_t C = (int64_t)NH * HD, head = blockIdx.y * (int64_t)NH + blockIdx.x;
    const Seen seen = seen_keys(positions, begins, window, blockIdx.y);
    const int begin = (int)(seen.begin / PIECE_KEYS),
              n = (int)ceil_div(seen.end, (int64_t)PIECE_KEYS) - begin;
    bf16 *keys = cache + blockIdx.y * (int64_t)T * 2 * C + blockIdx.x * HD + d;
    const bf16 *query = qkv + blockIdx.y * 3 * C + blockIdx.x * HD + d;
    P own(keys, 2 * C, begin, seen);
    int4 rows[P::LOADS];
#pragma unroll
    for (int i = 0; i < P::LOADS; i++) {
        rows[i] = own.load_key(i);
        if (own.is_cached(i)) prefetch_to_l2(own.value_at(i));
    }
    wait_early();
    float q[8];
    scaled_query(q, query, scale_log2);
    for (int p = 0; p < n; p++) {
        own.put_new_key(rows, query + C);
        const float x = own.score(q, [&](int i) {
            const int4 key = rows[i];
            rows[i] = own.load_value(i);
            return key;
        });
        own.put_new_value(rows, query + 2 * C);
        own.next_piece();
        P::weigh(&parts[p][e / WARP_SIZE], x, [&](int i) {
            const int4 value = rows[i];
            rows[i] = own.load_key(i);
            return value;
        });
    }
    __syncthreads();
    if (e >= HD) return;
    float o[MAX_CLUSTER] = {}, sums[MAX_CLUSTER] = {}, maxima[MAX_CLUSTER], sum, max;
#pragma unroll
    for (int p = 0; p < MAX_CLUSTER; p++) {
        maxima[p] = -CUDART_INF_F;
        if (p < n)
            o[p] = join_parts<HD, P::WARPS>(P::WARPS, e, &sums[p], &maxima[p],
                                            [&](int w) { return &parts[p][w]; });
    }
    const float total = join_values(o, sums, maxima, &sum, &max);
    out[head * HD + e] = __float2bfloat16_rn(total / sum);
}

template <int HD>
static void fast_decode(bf16 *out, bf16 *cache, const bf16 *qkv, const int32_t *positions,
                        const int32_t *begins, float *scratch, int window, int B, int T, int NH) {
    const int n = ceil_div(T, (int)THREADS);
    const bool cluster = n <= MAX_CLUSTER && cuda_compute_capability() == 90;
    if (n <= MAX_CLUSTER && NH * B >= 2 * cuda_sm_count()) {
        launch_early("whole_decode_kernel", whole_decode_kernel<HD>, dim3(NH, B), THREADS, 0, 1, out, cache,
                     qkv, positions, begins, window, T, NH, LOG2E / sqrtf(HD));
        return;
    }
    launch_early("fast_decode_kernel", cluster ? fast_decode_kernel<HD, true> : fast_decode_kernel<HD, false>,
                 dim3(NH, n, B), THREADS, 0, cluster ? n : 1, out, scratch, cache, qkv, positions, begins,
                 window, T, NH, LOG2E / sqrtf(HD));
    if (cluster) return;
    launch_early("join_pieces_kernel", join_pieces_kernel<bf16>, dim3(NH, B), THREADS, 0, 1, out,
                 (const float *)scratch, positions, begins, window, n, (int)THREADS, HD);
}

template <typename X>
static Step captured_attention(floatX *out, floatX *cache, const floatX *qkv, const int32_t *positions,
                               const int32_t *begins, int window, int B, int T, int NH, int HD) {
    Step step = step_of<X>(STEP_ATTENTION, B, out, qkv);
    step.cache = cache;
    step.positions = positions;
    step.begins = begins;
    step.window = window;
    step.T = T;
    step.NH = NH;
    step.HD = HD;
    return step;
}

template <typename X>
void attention_decode(floatX *out, floatX *cache, const floatX *qkv, const int32_t *positions,
                      const int32_t *begins, float *scratch, const AttentionMask *mask, int B, int T, int NH,
                      int HD) {
    const int window = mask->window;
    const bool lists =
        mask->sparse.pattern.window > 0; /* the kernel for all is the only one that knows them */
    if (!lists)
        step_captured(captured_attention<X>(out, cache, qkv, positions, begins, window, B, T, NH, HD));
    const int tiles = ceil_div(T, THREADS * ATTENTION_DECODE_PIECES); /* of a piece */
    const int piece_keys = tiles * THREADS, n = ceil_div(T, piece_keys);
    if (!lists && sizeof(X) == sizeof(bf16) && tiles == 1 && (HD == 64 || HD == 128)) {
        (HD == 64 ? fast_decode<64> : fast_decode<128>)((bf16 *)out, (bf16 *)cache, (const bf16 *)qkv,
                                                        positions, begins, scratch, window, B, T, NH);
        return;
    }
    launch_early("decode_kernel", decode_kernel<X>, dim3(NH, n, B), THREADS, 0, 1, (X *)out, scratch,
                 (X *)cache, (const X *)qkv, positions, begins, window, mask->sparse, T, NH, HD, piece_keys,
                 LOG2E / sqrtf(HD));
    if (n == 1) return;
    launch_early("join_pieces_kernel", join_pieces_kernel<X>, dim3(NH, B), THREADS, 0, 1, (X *)out,
                 (const float *)scratch, positions, begins, window, n, piece_keys, HD);
}

template AttentionDecode attention_decode<float>;
template AttentionDecode attention_decode<bf16>;
