/* Softmax cross-entropy over a chunk of logits, one block a row.
 *
 * Pass one finds the row's maximum and the sum of exp(z - max) together (online softmax: Milakov & Gimelshein
 * 2018, Algorithm 3); the loss is log(sum) + (max - z_target), exact also for logits of 1e4. Pass two writes
 * (softmax - onehot) * dloss over the logits. Between the passes the row stays in shared memory where two
 * blocks of it fit on an SM (100 KB in bf16 for GPT-2 on Hopper), so the second pass reads neither HBM nor
 * L2; else it is read again. NaN and +inf reach the loss: exp(inf - inf) is NaN. */
#include <cuda_pipeline.h>
#include "cuda_ops.cuh"

enum { MAX_THREADS = 512 };

/* fp32 storage gets the exact exponential, bf16 the fast one (relative error below 2^-19 here). */
template <typename T> __device__ inline float exp_of(float x);
template <> __device__ inline float exp_of<float>(float x) {
    return expf(x);
}
template <> __device__ inline float exp_of<bf16>(float x) {
    return __expf(x);
}

typedef struct RowSum {
    float max; /* of the row's V logits; -FLT_MAX stands for -inf, so that max - max is never NaN for it */
    float sum; /* of exp(z - max) */
} RowSum;

/* Takes the first n of a vector into the sum. */
template <typename T> __device__ inline void take(RowSum &r, const Vec<T> &v, int n) {
    constexpr int VEC = Vec<T>::N;
    float z[VEC], max = r.max;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        z[k] = k < n ? to_float(v.v[k]) : -INFINITY;
        max = fmaxf(max, z[k]);
    }
    if (max > r.max) {
        r.sum *= exp_of<T>(r.max - max);
        r.max = max;
    }
#pragma unroll
    for (int k = 0; k < VEC; k++) r.sum += exp_of<T>(z[k] - r.max);
}

/* Over a row of V logits by the whole block; every thread gets the result. */
template <typename T> __device__ inline RowSum row_sum(const T *row, int V) {
    constexpr int VEC = Vec<T>::N;
    RowSum r = {-FLT_MAX, 0};
    int i = threadIdx.x * VEC;
    for (; i + VEC <= V; i += blockDim.x * VEC) take(r, load_vec(row + i), VEC);
    if (i < V) take(r, load_vec(row + i), V - i);
    const float max = block_max(r.max);
    return {max, block_sum(r.sum * exp_of<T>(r.max - max))};
}

/* A row by the whole block: dlogits (Vp) = (softmax(row) - onehot) * dloss, 0 from column V on. */
template <typename T>
__device__ inline void write_dlogits(T *dlogits, const T *row, RowSum r, int target, float dloss, int V,
                                     int Vp) {
    constexpr int VEC = Vec<T>::N;
    const float scale = dloss / r.sum;
    for (int i = threadIdx.x * VEC; i < Vp; i += blockDim.x * VEC) {
        Vec<T> v = load_vec(row + i);
        float g[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) g[k] = exp_of<T>(to_float(v.v[k]) - r.max) * scale;
        if (target >= i && target < i + VEC) {
#pragma unroll
            for (int k = 0; k < VEC; k++) g[k] -= i + k == target ? dloss : 0;
        }
        if (i + VEC > V) {
#pragma unroll
            for (int k = 0; k < VEC; k++) g[k] = i + k < V ? g[k] : 0;
        }
#pragma unroll
        for (int k = 0; k < VEC; k++) v.v[k] = from_float<T>(g[k]);
        store_vec_once(dlogits + i, v);
    }
}

/* BACKWARD: logits become dlogits; else they are only read. CACHED: the row fits in shared memory. */
template <typename T, bool BACKWARD, bool CACHED>
__global__ void __launch_bounds__(MAX_THREADS, 2)
    cross_entropy_kernel(float *losses, T *logits, const int32_t *__restrict__ targets, float dloss, int V,
                         int Vp) {
    extern __shared__ int4 shared_row[];
    constexpr int VEC = Vec<T>::N;
    T *row = logits + (int64_t)blockIdx.x * Vp;
    T *in = CACHED ? (T *)shared_row : row;
    if (CACHED) {
        for (int i = threadIdx.x * VEC; i < Vp; i += blockDim.x * VEC)
            __pipeline_memcpy_async(in + i, row + i, sizeof(Vec<T>));
        __pipeline_commit();
        __pipeline_wait_prior(0); /* a thread reads back only what it copied itself: no barrier */
    }
    const int target = targets[blockIdx.x];
    const float z_target = to_float(row[target]); /* pass two overwrites it, behind the barriers of row_sum */
    const RowSum r = row_sum(in, V);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(r.sum) + (r.max - z_target);
    if (BACKWARD) write_dlogits(row, in, r, target, dloss, V, Vp);
}

static int threads_of(int vecs) {
    const int threads = ceil_div<int>(vecs, WARP_SIZE) * WARP_SIZE;
    return threads < MAX_THREADS ? threads : MAX_THREADS;
}

template <typename T>
void cross_entropy_backward_inplace(float *losses, floatX *logits, const int32_t *targets, float dloss,
                                    int64_t N, int V, int Vp) {
    const int row_bytes = Vp * (int)sizeof(T), threads = threads_of(Vp / Vec<T>::N);
    const int reserved_bytes = 1024; /* of each block, by the system, besides the reduction's static ones */
    const int sm_bytes = cuda_device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    if (2 * (row_bytes + 2 * reserved_bytes) <= sm_bytes) {
        const auto kernel = cross_entropy_kernel<T, true, true>;
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row_bytes));
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                        cudaSharedmemCarveoutMaxShared));
        kernel<<<(unsigned)N, threads, row_bytes, main_stream>>>(losses, (T *)logits, targets, dloss, V, Vp);
    } else {
        cross_entropy_kernel<T, true, false>
            <<<(unsigned)N, threads, 0, main_stream>>>(losses, (T *)logits, targets, dloss, V, Vp);
    }
    launch_check("cross_entropy_backward_inplace");
}

template <typename T>
void cross_entropy_forward(float *losses, const floatX *logits, const int32_t *targets, int64_t N, int V,
                           int Vp) {
    cross_entropy_kernel<T, false, false>
        <<<(unsigned)N, threads_of(Vp / Vec<T>::N), 0, main_stream>>>(losses, (T *)logits, targets, 0, V, Vp);
    launch_check("cross_entropy_forward");
}

template void cross_entropy_backward_inplace<float>(float *, floatX *, const int32_t *, float, int64_t, int,
                                                    int);
template void cross_entropy_backward_inplace<bf16>(float *, floatX *, const int32_t *, float, int64_t, int,
                                                   int);
template void cross_entropy_forward<float>(float *, const floatX *, const int32_t *, int64_t, int, int);
template void cross_entropy_forward<bf16>(float *, const floatX *, const int32_t *, int64_t, int, int);
