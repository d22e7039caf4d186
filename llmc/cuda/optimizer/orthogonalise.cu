/* Newton-Schulz on matrices of one shape: packed, then batched products for all of them (gemm_batched.cu), then back.
 *
 * Packed, all are (rows, cols) with rows <= cols, so that x x^T is the smaller of the two Gram matrices, and one strided
 * batch has them all. Packing scales them, too.
 *
 * A step is x = P x with P = a + b A + c A A and A = x x^T. The Gram matrix of P x is P A P, as all are polynomials of A and
 * commute: so of wide matrices the first two steps go together, and x is read once for both, x = P2 P1 x. That is three
 * products of (rows, rows) for two that are cols / rows as large. Only the first two, for later steps take the rounding of
 * P A P away: with the last two together it doubled, and singular values from 0.002 of the norm on became 0.79 to 1.24 in
 * bf16, in place of 0.80 to 1.19. */
#include <float.h>
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/linear/gemm_batched.cuh"

enum { THREADS = 256, COPY_BLOCKS = 64, SIDE = 32, STEP = THREADS / SIDE };

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

/* out (cols, rows) = scale * in (rows, cols) transposed; a block takes tiles of SIDE x SIDE by turns. */
template <typename T>
__device__ inline void copy_transposed(T *out, const T *in, float scale, int rows, int cols) {
    __shared__ float tile[SIDE][SIDE + 1];
    const int across = ceil_div(cols, (int)SIDE), n_tiles = ceil_div(rows, (int)SIDE) * across;
    const int lane = threadIdx.x % SIDE, line = threadIdx.x / SIDE;
    for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
        const int row = t / across * SIDE, col = t % across * SIDE;
#pragma unroll
        for (int i = line; i < SIDE; i += STEP)
            if (row + i < rows && col + lane < cols)
                tile[i][lane] = scale * to_float(in[(int64_t)(row + i) * cols + col + lane]);
        __syncthreads();
#pragma unroll
        for (int i = line; i < SIDE; i += STEP)
            if (col + i < cols && row + lane < rows)
                out[(int64_t)(col + i) * rows + row + lane] = from_float<T>(tile[lane][i]);
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

template <typename T>
__global__ void __launch_bounds__(THREADS) add_to_diagonal_kernel(T *matrices, float value, int rows) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows) return;
    T *const at = matrices + ((int64_t)blockIdx.y * rows + i) * rows + i;
    *at = from_float<T>(to_float(*at) + value);
}

/* The five steps, from x to y and back; returns where the last one left them. small: three of (n, rows, rows) */
template <typename T>
static T *newton_schulz_steps(const OrthogonaliseArgs *args, T *x, T *y, T *small, int n) {
    const int rows = args->rows, cols = args->cols;
    const dim3 diagonals((unsigned)ceil_div(rows, (int)THREADS), (unsigned)n);
    T *const gram = small, *const p = gram + (int64_t)n * rows * rows,
             *const other = p + (int64_t)n * rows * rows;
    const auto symmetric = [=](T *d, const T *a, const T *b, const T *c, float alpha, float beta) {
        gemm_batched<T>(BATCHED_SYMMETRIC, d, a, b, c, alpha, beta, rows, rows, n);
    };
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const float *of = args->polynomial->steps[step];
        gemm_batched<T>(BATCHED_GRAM, gram, x, x, NULL, 1, 0, rows, cols, n);
        symmetric(p, gram, gram, gram, of[2], of[1]); /* P - a */
        if (step == 0 && cols > rows) {
            add_to_diagonal_kernel<T><<<diagonals, THREADS, 0, main_stream>>>(p, of[0], rows);
            launch_check("add_to_diagonal");
            of = args->polynomial->steps[++step];
            symmetric(other, p, gram, NULL, 1, 0);
            symmetric(gram, other, p, NULL, 1, 0);            /* P1 A P1 */
            symmetric(other, gram, gram, gram, of[2], of[1]); /* P2 - a */
            symmetric(gram, other, p, p, 1, of[0]);           /* P2 P1 */
            gemm_batched<T>(BATCHED_LEFT, y, gram, x, NULL, 1, 0, rows, cols, n);
        } else {
            gemm_batched<T>(BATCHED_LEFT, y, p, x, x, 1, of[0], rows, cols, n);
        }
        T *const next = y;
        y = x;
        x = next;
    }
    return x;
}

template <typename T> static void orthogonalise_batch(const OrthogonaliseArgs *args, Batch<T> b) {
    const int64_t of_one = (int64_t)b.rows * b.cols, of_gram = (int64_t)b.rows * b.rows;
    const dim3 parts(ORTHOGONALISE_PARTIALS, (unsigned)b.n), copies(COPY_BLOCKS, (unsigned)b.n);
    T *const x = (T *)args->scratch, *const y = x + b.n * of_one, *const small = y + b.n * of_one;
    b.partials = (double *)(small + 3 * b.n * of_gram);
    b.packed = x;
    squares_kernel<T><<<parts, THREADS, 0, main_stream>>>(b);
    launch_check("squares");
    pack_kernel<T, true><<<copies, THREADS, 0, main_stream>>>(b);
    launch_check("pack");
    b.packed = newton_schulz_steps(args, x, y, small, (int)b.n);
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
