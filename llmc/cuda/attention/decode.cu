/* One query against a cache of packed rows: qkv (t+1,3,NH,HD), the query is row t. out (NH,HD) =.
 *
 * One block a head; it takes the keys 256 at a time with a running max and sum (online softmax). In a tile, a
 * thread first owns a key (its score), then 16 bytes of V's columns and every n_groups-th key. */
#include <math_constants.h>
#include "attention.cuh"
#include "launch.cuh"

enum { THREADS = 256, MAX_HD = 256 };

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

template <typename X>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(X *out, const X *qkv, int t, int NH, int HD, float scale_log2) {
    constexpr int N = Vec<X>::N;
    __shared__ float q[MAX_HD], weights[THREADS], partial[THREADS * N];
    const int64_t C = (int64_t)NH * HD, stride = 3 * C;
    const X *head = qkv + blockIdx.x * HD;
    const int n_chunks = HD / N, n_groups = THREADS / n_chunks;
    const int chunk = threadIdx.x % n_chunks,
              group = threadIdx.x / n_chunks; /* group n_groups is left over */
    if ((int)threadIdx.x < HD) q[threadIdx.x] = to_float(head[t * stride + threadIdx.x]) * scale_log2;
    __syncthreads();

    float max = -CUDART_INF_F, sum = 0.0f, o[N] = {};
    for (int key0 = 0; key0 <= t; key0 += THREADS) {
        const int key = key0 + threadIdx.x, n_keys = min(t + 1 - key0, (int)THREADS);
        const float x = key <= t ? dot(q, head + key * stride + C, HD) : -CUDART_INF_F;
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
    if ((int)threadIdx.x >= HD) return;
    float total = 0.0f;
    for (int g = 0; g < n_groups; g++) total += partial[g * HD + threadIdx.x];
    out[blockIdx.x * HD + threadIdx.x] = from_float<X>(total / sum);
}

template <typename X> static void decode(X *out, const X *qkv, int t, int NH, int HD) {
    decode_kernel<X><<<NH, THREADS, 0, main_stream>>>(out, qkv, t, NH, HD, LOG2E / sqrtf(HD));
    launch_check("decode_kernel");
}

void attention_decode_bf16(floatX *out, const floatX *qkv, int t, int NH, int HD) {
    decode((bf16 *)out, (const bf16 *)qkv, t, NH, HD);
}
void attention_decode_f32(floatX *out, const floatX *qkv, int t, int NH, int HD) {
    decode((float *)out, (const float *)qkv, t, NH, HD);
}
