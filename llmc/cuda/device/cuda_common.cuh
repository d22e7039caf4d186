/* What every CUDA file of the backend shares: the stream, error checks, storage types, 16-byte accesses and
 * reductions.
 *
 * Reductions have a fixed order (butterfly in a warp, then the warps in order), so equal input gives equal
 * bits; every thread gets the result. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <float.h>
#include <stdint.h>
#include "llmc/model/ops.h"

typedef __nv_bfloat16 bf16;

enum { WARP_SIZE = 32 };

/* ---- host ---- */

/* STREAM_MAIN, on which all ops run in order, and STREAM_SIDE; made by cuda_open (context.cu). */
extern cudaStream_t main_stream, side_stream, snapshot_stream;
extern int cuda_device;

/* Prints "error: " and the text as one line to stderr, exits with EXIT_RUN; in a run of several ranks all end. */
void cuda_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A failing CUDA call: prints expression, file, line and the driver's words to stderr, exits with EXIT_RUN. */
#define CUDA_CHECK(expr) cuda_check_((expr), #expr, __FILE__, __LINE__)
void cuda_check_(cudaError_t status, const char *expr, const char *file, int line);

/* After every launch: a launch that the driver refused ends the program, naming the kernel. */
void launch_check(const char *kernel);

/* Of the device that cuda_open chose. */
int cuda_sm_count(void);           /* streaming multiprocessors */
int cuda_compute_capability(void); /* 90 for sm_90 */

template <typename A> __host__ __device__ inline A ceil_div(A a, A b) {
    return (a + b - 1) / b;
}

/* Bytes rounded up to the 256 that every buffer carved from scratch starts at. */
inline size_t align_256(size_t bytes) {
    return (bytes + 255) & ~(size_t)255;
}

/* ---- storage types: arithmetic is fp32, memory is T ---- */

__device__ inline float to_float(float x) {
    return x;
}
__device__ inline float to_float(bf16 x) {
    return __bfloat162float(x);
}
/* Rounds to nearest even. */
template <typename T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) {
    return x;
}
template <> __device__ inline bf16 from_float<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

/* exp(x) is 2^(LOG2E x), log(x) LN2 log2(x). */
static constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

/* ---- 16-byte accesses ---- */

template <int BYTES> struct Element { typedef float Type; };
template <> struct Element<2> { typedef bf16 Type; };

/* As many elements as 16 bytes hold: 4 floats or 8 bf16. */
template <typename T> struct alignas(16) Vec {
    enum { N = 16 / sizeof(T) };
    T v[N];
};

/* Of two packed bf16; both cost two instructions, one by one as bf16 they cost four. */
__device__ __forceinline__ float bf16_low(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

/* All elements as fp32, of a Vec or of 16 bytes as they lie in memory. */
__device__ inline void to_floats(float (&f)[Vec<float>::N], const Vec<float> &x) {
#pragma unroll
    for (int k = 0; k < Vec<float>::N; k++) f[k] = x.v[k];
}
__device__ inline void to_floats(float (&f)[Vec<bf16>::N], const Vec<bf16> &x) {
    uint32_t pairs[Vec<bf16>::N / 2];
    memcpy(pairs, &x, sizeof pairs);
#pragma unroll
    for (int k = 0; k < Vec<bf16>::N / 2; k++) {
        f[2 * k] = bf16_low(pairs[k]);
        f[2 * k + 1] = bf16_high(pairs[k]);
    }
}
template <int N> __device__ inline void to_floats(float (&f)[N], const int4 &bits) {
    Vec<typename Element<16 / N>::Type> x;
    memcpy(&x, &bits, sizeof x);
    to_floats(f, x);
}

/* p is 16-byte aligned in all of these. */
template <typename T> __device__ inline Vec<T> load_vec(const T *p) {
    return *reinterpret_cast<const Vec<T> *>(p);
}
template <typename T> __device__ inline void store_vec(T *p, const Vec<T> &x) {
    *reinterpret_cast<Vec<T> *>(p) = x;
}
/* For data that is read or written once: leaves L2 to what comes back. */
template <typename T> __device__ inline Vec<T> load_vec_once(const T *p) {
    const int4 bits = __ldcs(reinterpret_cast<const int4 *>(p));
    Vec<T> x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <typename T> __device__ inline void store_vec_once(T *p, const Vec<T> &x) {
    int4 bits;
    memcpy(&bits, &x, sizeof bits);
    __stcs(reinterpret_cast<int4 *>(p), bits);
}

/* ---- reductions ---- */

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
__device__ inline double warp_sum(double x) {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

/* Over a block of whole warps, one-dimensional. Every thread must come here; the barrier at the end lets the
 * next call reuse the partials. */
template <typename A> __device__ inline A block_sum(A x) {
    __shared__ A partial[WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int n_warps = blockDim.x / WARP_SIZE;
    x = warp_sum(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    x = warp_sum(lane < n_warps ? partial[lane] : A(0));
    __syncthreads();
    return x;
}
__device__ inline float block_max(float x) {
    __shared__ float partial[WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int n_warps = blockDim.x / WARP_SIZE;
    x = warp_max(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    x = warp_max(lane < n_warps ? partial[lane] : -FLT_MAX);
    __syncthreads();
    return x;
}
