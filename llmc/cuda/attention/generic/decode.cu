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
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

enum { THREADS = 128, MAX_HD = 256 };

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

/* Of one sequence: keys [begin, end) are seen. */
struct Seen {
    int64_t begin, end;
};
__device__ __forceinline__ Seen seen_keys(const int32_t *positions, const int32_t *begins, int window,
                                          int b) {
    const int position = positions[b], begin = begins ? begins[b] : 0;
    return {max(begin, window > 0 && position >= window ? position + 1 - window : 0), (int64_t)position + 1};
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
                  const int32_t *begins, int window, int T, int NH, int HD, int piece_keys,
                  float scale_log2) {
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
        const float x = key < end ? dot(q, keys + key * stride, HD) : -CUDART_INF_F;
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

/* ---- bf16, head size 64 or 128, a piece of 128 keys ---- */

/* A warp has 32 keys. LANES threads hold a key's row, 16 bytes each, and its value's; the cache is on its way while the
 * launch before, which makes q and the new key, ends. The warps' parts are joined as pieces are. */
template <int HD> struct FastPiece {
    enum { LANES = HD / 8, KEYS = WARP_SIZE / LANES, LOADS = WARP_SIZE / KEYS, WARPS = THREADS / WARP_SIZE };
};

__device__ __forceinline__ float dot8(const float (&q)[8], const int4 &k) {
    float f[8], sum = 0.0f;
    to_floats(f, k);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(q[i], f[i], sum);
    return sum;
}

/* A part of a head's keys: unnormalised output, maximum, sum; max -inf: there are none. */
template <int HD> struct Part { float o[HD], max, sum; };

/* Element d of n parts joined in their order; *sum of all. */
template <int HD, typename F> __device__ float join_parts(int n, int d, float *sum, float *max, F part) {
    float total = 0.0f;
    *max = -CUDART_INF_F;
    *sum = 0.0f;
    for (int p = 0; p < n; p++) *max = fmaxf(*max, part(p)->max);
    if (*max == -CUDART_INF_F) return total;
    for (int p = 0; p < n; p++) {
        const Part<HD> *from = part(p);
        const float scale = exp2f(from->max - *max);
        *sum = fmaf(from->sum, scale, *sum);
        total = fmaf(from->o[d], scale, total);
    }
    return total;
}

/* Block (head, piece, sequence). CLUSTER: the pieces of a head are a cluster, whose first block joins them; else each
 * goes to `pieces`. */
template <int HD, bool CLUSTER>
__global__ void __launch_bounds__(THREADS)
    fast_decode_kernel(bf16 *out, float *pieces, bf16 *cache, const bf16 *qkv, const int32_t *positions,
                       const int32_t *begins, int window, int T, int NH, float scale_log2) {
    typedef FastPiece<HD> P;
    __shared__ Part<HD> parts[P::WARPS], piece;
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int d = lane % P::LANES * 8, first = blockIdx.y * THREADS + warp * WARP_SIZE + lane / P::LANES;
    const int64_t C = (int64_t)NH * HD, stride = 2 * C, head = blockIdx.z * (int64_t)NH + blockIdx.x;
    const int position = positions[blockIdx.z];
    const Seen seen = seen_keys(positions, begins, window, blockIdx.z);
    bf16 *keys = cache + blockIdx.z * (int64_t)T * stride + blockIdx.x * HD + d;
    const bf16 *query = qkv + blockIdx.z * 3 * C + blockIdx.x * HD + d;
    int4 k[P::LOADS], v[P::LOADS];
#pragma unroll
    for (int i = 0; i < P::LOADS; i++) {
        const int key = first + i * P::KEYS;
        const bool cached = key >= seen.begin && key < position;
        k[i] = cached ? ld_global_once(keys + key * stride) : make_int4(0, 0, 0, 0);
        v[i] = cached ? ld_global_once(keys + key * stride + C) : make_int4(0, 0, 0, 0);
    }
    wait_early();
    float q[8], x[P::LOADS], max = -CUDART_INF_F, sum = 0.0f, o[8] = {};
    to_floats(q, *reinterpret_cast<const int4 *>(query));
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] *= scale_log2;
#pragma unroll
    for (int i = 0; i < P::LOADS; i++) {
        const int key = first + i * P::KEYS;
        if (key == position) {
            k[i] = *reinterpret_cast<const int4 *>(query + C);
            v[i] = *reinterpret_cast<const int4 *>(query + 2 * C);
            *reinterpret_cast<int4 *>(keys + key * stride) = k[i];
            *reinterpret_cast<int4 *>(keys + key * stride + C) = v[i];
        }
        x[i] = dot8(q, k[i]);
#pragma unroll
        for (int offset = 1; offset < P::LANES; offset *= 2)
            x[i] += __shfl_xor_sync(0xffffffffu, x[i], offset);
        if (key < seen.begin || key > position) x[i] = -CUDART_INF_F;
        max = fmaxf(max, x[i]);
    }
    max = warp_max(max);
#pragma unroll
    for (int i = 0; i < P::LOADS; i++) {
        const float p = x[i] == -CUDART_INF_F ? 0.0f : exp2f(x[i] - max);
        float f[8];
        to_floats(f, v[i]);
        sum += p;
#pragma unroll
        for (int e = 0; e < 8; e++) o[e] = fmaf(p, f[e], o[e]);
    }
#pragma unroll
    for (int offset = P::LANES; offset < WARP_SIZE; offset *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
#pragma unroll
        for (int e = 0; e < 8; e++) o[e] += __shfl_xor_sync(0xffffffffu, o[e], offset);
    }
    if (lane < P::LANES)
#pragma unroll
        for (int e = 0; e < 8; e++) parts[warp].o[d + e] = o[e];
    if (lane == 0) parts[warp].max = max, parts[warp].sum = sum;
    __syncthreads();
    const int e = threadIdx.x;
    float all_sum = 0, all_max = 0, total = 0;
    if (e < HD) total = join_parts<HD>(P::WARPS, e, &all_sum, &all_max, [&](int p) { return &parts[p]; });
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
        total = join_parts<HD>(gridDim.y, e, &all_sum, &all_max,
                               [&](int p) { return cluster.map_shared_rank(&piece, p); });
        out[head * HD + e] = __float2bfloat16_rn(total / all_sum);
    }
    cluster.sync(); /* nobody goes while it is read */
#endif
}

template <int HD>
static void fast_decode(bf16 *out, bf16 *cache, const bf16 *qkv, const int32_t *positions,
                        const int32_t *begins, float *scratch, int window, int B, int T, int NH) {
    enum { MAX_CLUSTER = 8 };
    const int n = ceil_div(T, (int)THREADS);
    const bool cluster = n <= MAX_CLUSTER && cuda_compute_capability() >= 90;
    launch_early("fast_decode_kernel", cluster ? fast_decode_kernel<HD, true> : fast_decode_kernel<HD, false>,
                 dim3(NH, n, B), THREADS, 0, cluster ? n : 1, out, scratch, cache, qkv, positions, begins,
                 window, T, NH, LOG2E / sqrtf(HD));
    if (cluster) return;
    launch_early("join_pieces_kernel", join_pieces_kernel<bf16>, dim3(NH, B), THREADS, 0, 1, out,
                 (const float *)scratch, positions, begins, window, n, (int)THREADS, HD);
}

template <typename X>
void attention_decode(floatX *out, floatX *cache, const floatX *qkv, const int32_t *positions,
                      const int32_t *begins, float *scratch, int window, int B, int T, int NH, int HD) {
    const int tiles = ceil_div(T, THREADS * ATTENTION_DECODE_PIECES); /* of a piece */
    const int piece_keys = tiles * THREADS, n = ceil_div(T, piece_keys);
    if (sizeof(X) == sizeof(bf16) && tiles == 1 && (HD == 64 || HD == 128)) {
        (HD == 64 ? fast_decode<64> : fast_decode<128>)((bf16 *)out, (bf16 *)cache, (const bf16 *)qkv,
                                                        positions, begins, scratch, window, B, T, NH);
        return;
    }
    launch_early("decode_kernel", decode_kernel<X>, dim3(NH, n, B), THREADS, 0, 1, (X *)out, scratch,
                 (X *)cache, (const X *)qkv, positions, begins, window, T, NH, HD, piece_keys,
                 LOG2E / sqrtf(HD));
    if (n == 1) return;
    launch_early("join_pieces_kernel", join_pieces_kernel<X>, dim3(NH, B), THREADS, 0, 1, (X *)out,
                 (const float *)scratch, positions, begins, window, n, piece_keys, HD);
}

template AttentionDecode attention_decode<float>;
template AttentionDecode attention_decode<bf16>;
