/* Softmax cross-entropy over a chunk of logits, one block a row.
 *
 * Pass one finds the row's maximum and the sum of exp(z - max) together (online softmax: Milakov & Gimelshein
 * 2018, Algorithm 3); the loss is log(sum) + (max - z_target), exact also for logits of 1e4. Pass two writes
 * (softmax - onehot) * dloss over the logits. Between the passes the row stays in shared memory where two
 * blocks of it fit on an SM (100 KB in bf16 for GPT-2 on Hopper), so the second pass reads neither HBM nor
 * L2; else it is read again. Between matrix products the card is at its limit of power and its clock low, so
 * instructions count, too (dev/softmax_loss/README.md). NaN and +inf reach the loss: exp(inf - inf) is NaN. */
#include <cuda_pipeline.h>
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

enum { MAX_THREADS = 512 };

/* A row comes in so many parts: pass one works on the first while the others are on their way. */
enum { PARTS = 4 };

/* fp32 storage gets the exact exponential, bf16 a product and one instruction of 2 ulp. */
template <typename T> __device__ inline float exp_of(float x);
template <> __device__ inline float exp_of<float>(float x) {
    return expf(x);
}
template <> __device__ inline float exp_of<bf16>(float x) {
    return ex2(x * LOG2E);
}

/* ---- pass one ---- */

typedef struct RowSum {
    float max; /* of the row's V logits; -FLT_MAX stands for -inf, so that max - max is never NaN for it */
    float sum; /* of exp(z - max) */
} RowSum;

/* A NaN may be lost here; it is not in the sum. */
__device__ inline float max_of(float max, const Vec<float> &v) {
#pragma unroll
    for (int k = 0; k < Vec<float>::N; k++) max = fmaxf(max, v.v[k]);
    return max;
}
__device__ inline float max_of(float max, const Vec<bf16> &v) {
    __nv_bfloat162 p[Vec<bf16>::N / 2];
    memcpy(p, &v, sizeof p);
    const float2 two = __bfloat1622float2(__hmax2(__hmax2(p[0], p[1]), __hmax2(p[2], p[3])));
    return fmaxf(fmaxf(max, two.x), two.y);
}

template <typename T> __device__ inline RowSum with_max(RowSum r, float max) {
    return {max, r.sum * exp_of<T>(r.max - max)};
}

template <typename T> __device__ inline void take(RowSum &r, const Vec<T> &v) {
    const float max = max_of(r.max, v);
    if (max > r.max) r = with_max<T>(r, max);
    constexpr int VEC = Vec<T>::N;
    float e[VEC];
    to_floats(e, v);
#pragma unroll
    for (int k = 0; k < VEC; k++) e[k] = exp_of<T>(e[k] - r.max);
#pragma unroll
    for (int half = VEC / 2; half > 0; half /= 2) /* a tree: the additions wait for each other less */
#pragma unroll
        for (int k = 0; k < half; k++) e[k] += e[k + half];
    r.sum += e[0];
}

/* Of a row of Vp elements, those that all threads read in one part: whole vectors of every thread. */
template <typename T> __device__ inline int part_elems(int Vp) {
    const int round = blockDim.x * Vec<T>::N;
    return ceil_div<int>(ceil_div<int>(Vp, round), PARTS) * round;
}

template <typename T> __device__ inline void fetch_row(T *shared, const T *row, int Vp) {
    const int part = part_elems<T>(Vp);
    for (int p = 0; p < PARTS; p++) {
        const int end = min((p + 1) * part, Vp);
        for (int i = p * part + threadIdx.x * Vec<T>::N; i < end; i += blockDim.x * Vec<T>::N)
            __pipeline_memcpy_async(shared + i, row + i, sizeof(Vec<T>));
        __pipeline_commit();
    }
}

/* Over a row of V logits by the whole block; every thread gets the result. FETCHED: by fetch_row, whose
 * copies it waits for; a thread reads back only what it copied itself: no barrier. */
template <typename T, bool FETCHED> __device__ inline RowSum row_sum(const T *row, int V, int Vp) {
    constexpr int VEC = Vec<T>::N;
    const int part = part_elems<T>(Vp);
    RowSum r = {-FLT_MAX, 0};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        if (FETCHED) __pipeline_wait_prior(PARTS - 1 - p);
        const int end = min((p + 1) * part, V);
        int i = p * part + threadIdx.x * VEC;
        for (; i + VEC <= end; i += blockDim.x * VEC) take(r, load_vec(row + i));
        if (i < end) {
            Vec<T> v = load_vec(row + i);
#pragma unroll
            for (int k = 1; k < VEC; k++) v.v[k] = i + k < V ? v.v[k] : from_float<T>(-INFINITY);
            take(r, v);
        }
    }
    r = with_max<T>(r, block_max(r.max));
    r.sum = block_sum(r.sum);
    return r;
}

/* ---- pass two ---- */

/* A row by the whole block: dlogits (Vp) = (softmax(row) - onehot) * dloss, 0 from column V on. */
template <typename T>
__device__ inline void write_dlogits(T *dlogits, const T *row, RowSum r, int target, float z_target,
                                     float dloss, int V, int Vp) {
    constexpr int VEC = Vec<T>::N;
    const float scale = dloss / r.sum;
    int i = threadIdx.x * VEC;
    for (; i + VEC <= V; i += blockDim.x * VEC) {
        Vec<T> v = load_vec(row + i);
        float z[VEC];
        to_floats(z, v);
#pragma unroll
        for (int k = 0; k < VEC; k++) v.v[k] = from_float<T>(exp_of<T>(z[k] - r.max) * scale);
        store_vec_once(dlogits + i, v);
    }
    for (; i < Vp; i += blockDim.x * VEC) {
        Vec<T> v = load_vec(row + i);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v.v[k] = from_float<T>(i + k < V ? exp_of<T>(to_float(v.v[k]) - r.max) * scale : 0);
        store_vec_once(dlogits + i, v);
    }
    if (target / VEC % blockDim.x == threadIdx.x) /* the thread that wrote it */
        dlogits[target] = from_float<T>(exp_of<T>(z_target - r.max) * scale - dloss);
}

/* BACKWARD: logits become dlogits; else they are only read. CACHED: the row fits in shared memory. */
template <typename T, bool BACKWARD, bool CACHED>
__global__ void __launch_bounds__(MAX_THREADS, 2)
    cross_entropy_kernel(float *losses, T *logits, const int32_t *__restrict__ targets, float dloss, int V,
                         int Vp) {
    extern __shared__ int4 shared_row[];
    T *row = logits + (int64_t)blockIdx.x * Vp;
    T *in = CACHED ? (T *)shared_row : row;
    if (CACHED) fetch_row(in, row, Vp);
    const int target = targets[blockIdx.x];
    const float z_target = to_float(row[target]); /* pass two overwrites it, behind the barriers of row_sum */
    const RowSum r = row_sum<T, CACHED>(in, V, Vp);
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(r.sum) + (r.max - z_target);
    if (BACKWARD) write_dlogits(row, in, r, target, z_target, dloss, V, Vp);
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

template CrossEntropyBackwardInplace cross_entropy_backward_inplace<float>;
template CrossEntropyBackwardInplace cross_entropy_backward_inplace<bf16>;
template CrossEntropyForward cross_entropy_forward<float>;
template CrossEntropyForward cross_entropy_forward<bf16>;
