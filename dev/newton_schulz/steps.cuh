/* Newton-Schulz on the library's products, for the rungs, which differ in how many matrices a product has, and in where
 * the polynomial is evaluated. Copies and norms are plain: a thread an element, a block a matrix. */
#pragma once
#include <float.h>
#include "dev/driver/launch.cuh"
#include "ladder.h"
#include "llmc/cuda/linear/gemm_batched.cuh"

enum { NS_THREADS = 256 };

/* How a rung goes about it. */
struct Way {
    bool one_at_a_time, fused;
};

/* Matrices [first, first + n) of all, and their scratch. */
template <typename T> struct Matrices {
    OrthogonaliseArgs args;
    NewtonSchulz polynomial;
    int64_t first;
    int n;
    T *x, *y, *gram, *square;
    float *scales;
};

/* Element i of matrix number m of the batch, in place. */
template <typename T> static __device__ T *element(const Matrices<T> &b, int m, int64_t i) {
    const int64_t number = b.first + m;
    const int k = (int)(number % b.args.n_matrices);
    const int64_t at = b.args.transposed[k] ? i % b.args.cols * b.args.rows + i / b.args.cols : i;
    return (T *)b.args.x + number / b.args.n_matrices * b.args.stride + b.args.offsets[k] + at;
}

template <typename T> static __global__ void scale_kernel(const __grid_constant__ Matrices<T> b) {
    const int64_t n = (int64_t)b.args.rows * b.args.cols;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += NS_THREADS) {
        const double value = to_float(*element(b, blockIdx.x, i));
        sum += value * value;
    }
    sum = (double)b.polynomial.margin * sqrt(block_sum(sum));
    if (threadIdx.x == 0) b.scales[blockIdx.x] = sum > FLT_MIN ? (float)(1 / sum) : 0.0f;
}

template <typename T, bool BACK>
static __global__ void copy_kernel(const __grid_constant__ Matrices<T> b, T *packed) {
    const int64_t n = (int64_t)b.args.rows * b.args.cols, i = thread_number();
    if (i >= n) return;
    T *const here = packed + blockIdx.y * n + i, *const there = element(b, blockIdx.y, i);
    if (BACK)
        *there = from_float<T>(b.args.gain * to_float(*here));
    else
        *here = from_float<T>(b.scales[blockIdx.y] * to_float(*there));
}

/* out = p out + q other */
template <typename T>
static __global__ void polynomial_kernel(T *out, float p, const T *other, float q, int64_t n) {
    const int64_t i = thread_number();
    if (i < n) out[i] = from_float<T>(p * to_float(out[i]) + q * to_float(other[i]));
}

/* d = alpha a b + beta c of all matrices: by `each` at a time, the sum with c in the product or behind it. */
template <typename T>
static void product(Way way, BatchedKind kind, T *d, const T *a, const T *b, const T *c, float alpha,
                    float beta, int rows, int cols, int n) {
    const int64_t of_a = (int64_t)rows * (kind == BATCHED_GRAM ? cols : rows), of_b = (int64_t)rows * cols,
                  of_d = (int64_t)rows * (kind == BATCHED_LEFT ? cols : rows);
    const int each = way.one_at_a_time ? 1 : n;
    for (int i = 0; i < n; i += each)
        gemm_batched_cublaslt<T>(kind, d + i * of_d, a + i * of_a, b + i * of_b,
                                 way.fused && c ? c + i * of_d : NULL, way.fused ? alpha : 1,
                                 way.fused ? beta : 0, rows, cols, each);
    if (!way.fused && c)
        launch("polynomial_kernel", polynomial_kernel<T>, blocks_for(n * of_d, NS_THREADS), NS_THREADS, 0, d,
               alpha, c, beta, n * of_d);
}

template <typename T> static void steps(Way way, Matrices<T> &b) {
    const int rows = b.args.rows, cols = b.args.cols;
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const float *of = b.polynomial.steps[step];
        product<T>(way, BATCHED_GRAM, b.gram, b.x, b.x, NULL, 1, 0, rows, cols, b.n);
        product<T>(way, BATCHED_SQUARE, b.square, b.gram, b.gram, b.gram, of[2], of[1], rows, rows, b.n);
        product<T>(way, BATCHED_LEFT, b.y, b.square, b.x, b.x, 1, of[0], rows, cols, b.n);
        T *const next = b.y;
        b.y = b.x;
        b.x = next;
    }
}

template <typename T> static void orthogonalise_so(Way way, const Call *c) {
    Matrices<T> b = {};
    b.args = op_orthogonalise_args(c);
    b.polynomial = *b.args.polynomial;
    const int64_t all = b.args.n_blocks * b.args.n_matrices, of_x = (int64_t)b.args.rows * b.args.cols,
                  of_gram = (int64_t)b.args.rows * b.args.rows;
    const int fit =
        (int)(b.args.scratch_bytes / orthogonalise_scratch_bytes(b.args.rows, b.args.cols, c->ops->dtype));
    for (; b.first < all; b.first += b.n) {
        b.n = (int)(all - b.first < fit ? all - b.first : fit);
        b.x = (T *)b.args.scratch;
        b.y = b.x + b.n * of_x;
        b.gram = b.y + b.n * of_x;
        b.square = b.gram + b.n * of_gram;
        b.scales = (float *)(b.square + b.n * of_gram);
        const dim3 grid(blocks_for(of_x, NS_THREADS), (unsigned)b.n);
        launch("scale_kernel", scale_kernel<T>, (unsigned)b.n, NS_THREADS, 0, b);
        launch("copy_kernel", copy_kernel<T, false>, grid, NS_THREADS, 0, b, b.x);
        steps<T>(way, b);
        launch("copy_kernel", copy_kernel<T, true>, grid, NS_THREADS, 0, b, b.x);
    }
}

static inline void orthogonalise_in(Way way, const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? orthogonalise_so<bf16>(way, c) : orthogonalise_so<float>(way, c);
}
