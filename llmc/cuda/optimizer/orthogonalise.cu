/* Newton-Schulz on matrices of one shape: packed, then three products a step for all of them (gemm_batched.cu), then back.
 *
 * Packed, all are (rows, cols) with rows <= cols, so that x x^T is the smaller of the two Gram matrices, and one strided
 * batch has them all. Packing scales them, too. */
#include <float.h>
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/linear/gemm_batched.cuh"

enum { THREADS = 256, COPY_BLOCKS = 64, SIDE = 64 };

/* Matrices [first, first + n) of all. */
template <typename T> struct Batch {
    T *in_place; /* blocks of matrices, `stride` elements apart */
    int64_t stride;
    int n_matrices; /* of a block */
    int64_t offsets[MAX_BLOCK_MATRICES];
    bool transposed[MAX_BLOCK_MATRICES];
    int64_t first, n;
    int rows, cols;
    float margin, gain;
    T *packed;        /* (n, rows, cols) */
    double *partials; /* (n, ORTHOGONALISE_PARTIALS) sums of squares */
};

/* Matrix i of the batch, and whether it lies there as (cols, rows). */
template <typename T> __device__ inline T *matrix_at(const Batch<T> &b, int i, bool *transposed) {
    const int64_t number = b.first + i;
    const int k = (int)(number % b.n_matrices);
    *transposed = b.transposed[k];
    return b.in_place + number / b.n_matrices * b.stride + b.offsets[k];
}

/* Block (p, i) has part p of matrix i. */
template <typename T>
__global__ void __launch_bounds__(THREADS) squares_kernel(const __grid_constant__ Batch<T> b) {
    bool transposed;
    const T *x = matrix_at(b, blockIdx.y, &transposed);
    const int64_t n = (int64_t)b.rows * b.cols;
    double sum = 0;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * Vec<T>::N; i < n;
         i += (int64_t)ORTHOGONALISE_PARTIALS * THREADS * Vec<T>::N) {
        float values[Vec<T>::N];
        to_floats(values, load_vec(x + i));
#pragma unroll
        for (int k = 0; k < Vec<T>::N; k++) sum += (double)values[k] * values[k];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) b.partials[(int64_t)blockIdx.y * ORTHOGONALISE_PARTIALS + blockIdx.x] = sum;
}

/* 1 / (margin norm) of matrix i; 0 of one that is 0. Every thread must come here. */
template <typename T> __device__ inline float inverse_norm(const Batch<T> &b, int i) {
    const double *partials = b.partials + (int64_t)i * ORTHOGONALISE_PARTIALS;
    const double squares = block_sum(threadIdx.x < ORTHOGONALISE_PARTIALS ? partials[threadIdx.x] : 0.0);
    const double norm = (double)b.margin * sqrt(squares);
    return norm > FLT_MIN ? (float)(1 / norm) : 0.0f;
}

/* out (cols, rows) = scale * in (rows, cols) transposed; a block takes tiles of SIDE x SIDE by turns, 16 bytes a thread. A row
 * of a tile in shared memory is 4 bytes longer, so that neighbours in a column lie in different banks. */
template <typename T>
__device__ inline void copy_transposed(T *out, const T *in, float scale, int rows, int cols) {
    constexpr int N = Vec<T>::N, STEP = THREADS / (SIDE / N);
    __shared__ T tile[SIDE][SIDE + 4 / sizeof(T)];
    const int across = ceil_div(cols, (int)SIDE), n_tiles = ceil_div(rows, (int)SIDE) * across;
    const int lane = threadIdx.x % (SIDE / N) * N, line = threadIdx.x / (SIDE / N);
    for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
        const int row = t / across * SIDE, col = t % across * SIDE;
#pragma unroll
        for (int i = line; i < SIDE; i += STEP)
            if (row + i < rows && col + lane < cols) {
                float values[N];
                to_floats(values, load_vec(in + (int64_t)(row + i) * cols + col + lane));
#pragma unroll
                for (int k = 0; k < N; k++) tile[i][lane + k] = from_float<T>(scale * values[k]);
            }
        __syncthreads();
#pragma unroll
        for (int i = line; i < SIDE; i += STEP)
            if (col + i < cols && row + lane < rows) {
                Vec<T> moved;
#pragma unroll
                for (int k = 0; k < N; k++) moved.v[k] = tile[lane + k][i];
                store_vec(out + (int64_t)(col + i) * rows + row + lane, moved);
            }
        __syncthreads();
    }
}

template <typename T> __device__ inline void copy_scaled(T *out, const T *in, float scale, int64_t n) {
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * Vec<T>::N; i < n;
         i += (int64_t)gridDim.x * THREADS * Vec<T>::N) {
        float values[Vec<T>::N];
        Vec<T> scaled;
        to_floats(values, load_vec(in + i));
#pragma unroll
        for (int k = 0; k < Vec<T>::N; k++) scaled.v[k] = from_float<T>(scale * values[k]);
        store_vec(out + i, scaled);
    }
}

/* PACK: packed = x / (margin norm); else x = gain * packed. */
template <typename T, bool PACK>
__global__ void __launch_bounds__(THREADS) pack_kernel(const __grid_constant__ Batch<T> b) {
    bool transposed;
    const int64_t n = (int64_t)b.rows * b.cols;
    T *const there = matrix_at(b, blockIdx.y, &transposed), *const here = b.packed + blockIdx.y * n;
    const float scale = PACK ? inverse_norm(b, blockIdx.y) : b.gain;
    if (!transposed)
        copy_scaled(PACK ? here : there, PACK ? there : here, scale, n);
    else
        copy_transposed(PACK ? here : there, PACK ? there : here, scale, PACK ? b.cols : b.rows,
                        PACK ? b.rows : b.cols);
}

/* The five steps, from x to y and back; returns where the last one left them. gram, square: (n, rows, rows) */
template <typename T>
static T *newton_schulz_steps(const OrthogonaliseArgs *args, T *x, T *y, T *gram, T *square, int n) {
    const int rows = args->rows, cols = args->cols;
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const float *of = args->polynomial->steps[step];
        gemm_batched<T>(BATCHED_GRAM, gram, x, x, NULL, 1, 0, rows, cols, n);
        gemm_batched<T>(BATCHED_SQUARE, square, gram, gram, gram, of[2], of[1], rows, rows, n);
        gemm_batched<T>(BATCHED_LEFT, y, square, x, x, 1, of[0], rows, cols, n);
        T *const next = y;
        y = x;
        x = next;
    }
    return x;
}

template <typename T> static void orthogonalise_batch(const OrthogonaliseArgs *args, Batch<T> b) {
    const int64_t of_one = (int64_t)b.rows * b.cols, of_gram = (int64_t)b.rows * b.rows;
    const dim3 parts(ORTHOGONALISE_PARTIALS, (unsigned)b.n), copies(COPY_BLOCKS, (unsigned)b.n);
    T *const x = (T *)args->scratch, *const y = x + b.n * of_one, *const gram = y + b.n * of_one,
             *const square = gram + b.n * of_gram;
    b.partials = (double *)(square + b.n * of_gram);
    b.packed = x;
    squares_kernel<T><<<parts, THREADS, 0, main_stream>>>(b);
    launch_check("squares");
    pack_kernel<T, true><<<copies, THREADS, 0, main_stream>>>(b);
    launch_check("pack");
    b.packed = newton_schulz_steps(args, x, y, gram, square, (int)b.n);
    pack_kernel<T, false><<<copies, THREADS, 0, main_stream>>>(b);
    launch_check("unpack");
}

template <typename T> void orthogonalise(const OrthogonaliseArgs *args) {
    const DType dtype = sizeof(T) == 2 ? DTYPE_BF16 : DTYPE_F32;
    const int64_t all = args->n_blocks * args->n_matrices;
    const int64_t fit =
        (int64_t)(args->scratch_bytes / orthogonalise_scratch_bytes(args->rows, args->cols, dtype));
    Batch<T> b = {};
    b.in_place = (T *)args->x;
    b.stride = args->stride;
    b.n_matrices = args->n_matrices;
    for (int i = 0; i < args->n_matrices; i++) {
        b.offsets[i] = args->offsets[i];
        b.transposed[i] = args->transposed[i];
    }
    b.rows = args->rows;
    b.cols = args->cols;
    b.margin = args->polynomial->margin;
    b.gain = args->gain;
    for (; b.first < all; b.first += b.n) {
        b.n = all - b.first < fit ? all - b.first : fit;
        orthogonalise_batch<T>(args, b);
    }
}

template Orthogonalise orthogonalise<float>;
template Orthogonalise orthogonalise<bf16>;
