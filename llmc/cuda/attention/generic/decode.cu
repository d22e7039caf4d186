/* One query against a cache of packed rows: qkv (t+1,3,NH,HD), the query is row t. out (NH,HD) =.
 *
 * Flash-decoding (Dao et al. 2023): with one query a head, NH blocks cannot fill the card, so the keys of a head
 * are cut into pieces, a block each, with maximum m_p, sum l_p and unnormalised output o_p of their own:
 *
 *   m = max m_p   out = sum o_p 2^(m_p - m) / sum l_p 2^(m_p - m), in order of p
 *
 * A block takes its keys 128 at a time with a running maximum and sum (online softmax). In a tile, a thread
 * first owns a key (its score), then 16 bytes of V's columns and every n_groups-th key. */
#include <math_constants.h>
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/attention/launch.cuh"

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

/* Block (head, piece): keys [piece * piece_keys, ...) of a head. pieces (NH,gridDim.y,HD+2) = o, m, l of each, in
 * log2; out where one piece is all. */
template <typename X>
__global__ void __launch_bounds__(THREADS) decode_kernel(X *out, float *pieces, const X *qkv, int t, int NH,
                                                         int HD, int piece_keys, float scale_log2) {
    constexpr int N = Vec<X>::N;
    __shared__ float q[MAX_HD], weights[THREADS], partial[THREADS * N];
    const int64_t C = (int64_t)NH * HD, stride = 3 * C;
    const X *head = qkv + blockIdx.x * HD;
    const int n_chunks = HD / N, n_groups = THREADS / n_chunks;
    const int chunk = threadIdx.x % n_chunks,
              group = threadIdx.x / n_chunks; /* group n_groups is left over */
    const int64_t begin = (int64_t)blockIdx.y * piece_keys, end = min(begin + piece_keys, (int64_t)t + 1);
    for (int d = threadIdx.x; d < HD; d += THREADS) q[d] = to_float(head[t * stride + d]) * scale_log2;
    __syncthreads();

    float max = -CUDART_INF_F, sum = 0.0f, o[N] = {};
    for (int64_t key0 = begin; key0 < end; key0 += THREADS) {
        const int64_t key = key0 + threadIdx.x;
        const int n_keys = (int)min(end - key0, (int64_t)THREADS);
        const float x = key < end ? dot(q, head + key * stride + C, HD) : -CUDART_INF_F;
        const float new_max = fmaxf(max, block_max(x));
        const float shrink = exp2f(max - new_max), p = exp2f(x - new_max);
        max = new_max;
        sum = sum * shrink + p;
        weights[threadIdx.x] = p;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) o[i] *= shrink;
        for (int j = group; j < n_keys && group < n_groups; j += n_groups) {
            const Vec<X> v = load_vec(head + (key0 + j) * stride + 2 * C + chunk * N);
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
    float *piece = pieces + ((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * (HD + 2);
    for (int d = threadIdx.x; d < HD; d += THREADS) {
        float total = 0.0f;
        for (int g = 0; g < n_groups; g++) total += partial[g * HD + d];
        if (gridDim.y == 1)
            out[blockIdx.x * HD + d] = from_float<X>(total / sum);
        else
            piece[d] = total;
    }
    if (threadIdx.x == 0 && gridDim.y > 1) piece[HD] = max, piece[HD + 1] = sum;
}

/* A block a head: its pieces in order. */
template <typename X>
__global__ void __launch_bounds__(THREADS) join_pieces_kernel(X *out, const float *pieces, int n, int HD) {
    const float *piece = pieces + (int64_t)blockIdx.x * n * (HD + 2);
    float max = -CUDART_INF_F, sum = 0.0f;
    for (int p = 0; p < n; p++) max = fmaxf(max, piece[p * (HD + 2) + HD]);
    for (int p = 0; p < n; p++)
        sum = fmaf(piece[p * (HD + 2) + HD + 1], exp2f(piece[p * (HD + 2) + HD] - max), sum);
    for (int d = threadIdx.x; d < HD; d += THREADS) {
        float total = 0.0f;
        for (int p = 0; p < n; p++)
            total = fmaf(piece[p * (HD + 2) + d], exp2f(piece[p * (HD + 2) + HD] - max), total);
        out[blockIdx.x * HD + d] = from_float<X>(total / sum);
    }
}

template <typename X>
void attention_decode(floatX *out, const floatX *qkv, float *scratch, int t, int NH, int HD) {
    const int64_t keys = (int64_t)t + 1;
    const int64_t tiles = ceil_div(keys, (int64_t)THREADS * ATTENTION_DECODE_PIECES); /* of a piece */
    const int piece_keys = (int)tiles * THREADS, n = (int)ceil_div(keys, (int64_t)piece_keys);
    decode_kernel<X><<<dim3(NH, n), THREADS, 0, main_stream>>>((X *)out, scratch, (const X *)qkv, t, NH, HD,
                                                               piece_keys, LOG2E / sqrtf(HD));
    launch_check("decode_kernel");
    if (n == 1) return;
    join_pieces_kernel<X><<<NH, THREADS, 0, main_stream>>>((X *)out, scratch, n, HD);
    launch_check("join_pieces_kernel");
}

template AttentionDecode attention_decode<float>;
template AttentionDecode attention_decode<bf16>;
