/* Dropout of a matrix: a warp two rows, 16 bytes a lane where the rows allow it. The mask is llmc/model/dropout.h's: the two
 * rows are 8 apart, so that a word is made for both. */
#include "llmc/cuda/cuda_ops.cuh"

enum { WARPS = 8 };

template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };

/* x: N elements of a row; columns `column` and on. words: of them. */
template <typename T, int N>
__device__ __forceinline__ void drop_pack(T *out, const T *x, const uint32_t (&words)[N], int row, int column,
                                          uint32_t threshold, float scale) {
    Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(x);
#pragma unroll
    for (int k = 0; k < N; k++)
        pack.v[k] = from_float<T>(
            dropout_byte(words[k], row, column + k) < threshold ? 0.0f : to_float(pack.v[k]) * scale);
    *reinterpret_cast<Pack<T, N> *>(out) = pack;
}

/* Matrices of `rows` rows, n_rows rows together. grid: a warp for each two rows 8 apart, of `pairs` such of a matrix.
 * columns is a multiple of N. out may be x. */
template <typename T, int N>
__global__ void __launch_bounds__(WARPS *WARP_SIZE)
    dropout_kernel(T *out, const T *x, Dropout dropout, uint32_t threshold, float scale, int64_t n_rows,
                   int64_t rows, int pairs, int columns) {
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE, index = n / pairs;
    const int pair = (int)(n % pairs), row = pair / 8 * 16 + pair % 8;
    const int64_t first = index * rows + row, end = min(n_rows, (index + 1) * rows);
    if (first >= end) return;
    const DropoutMatrix matrix = dropout_matrix(dropout_site(*dropout.key, dropout.site), index);
    for (int c = threadIdx.x % WARP_SIZE * N; c < columns; c += WARP_SIZE * N) {
        uint32_t words[N];
#pragma unroll
        for (int k = 0; k < N; k++) words[k] = dropout_word(matrix, row, c + k);
        const int64_t at = first * columns + c, below = at + 8 * (int64_t)columns;
        drop_pack<T, N>(out + at, x + at, words, row, c, threshold, scale);
        if (first + 8 < end) drop_pack<T, N>(out + below, x + below, words, row + 8, c, threshold, scale);
    }
}

template <typename T>
static void drop(floatX *out, const floatX *x, const Dropout *mask, int64_t n_rows, int64_t rows,
                 int columns) {
    const uint32_t threshold = dropout_threshold(mask->p);
    const int pairs = (int)ceil_div<int64_t>(rows, 16) * 8;
    const int64_t warps = ceil_div(n_rows, rows) * pairs;
    const auto kernel = columns % Vec<T>::N ? dropout_kernel<T, 1> : dropout_kernel<T, Vec<T>::N>;
    kernel<<<(unsigned)ceil_div<int64_t>(warps, WARPS), WARPS * WARP_SIZE, 0, main_stream>>>(
        (T *)out, (const T *)x, *mask, threshold, dropout_scale(threshold), n_rows, rows, pairs, columns);
    launch_check("dropout_kernel");
}

template <typename T>
void dropout_matrices(floatX *out, const floatX *x, const Dropout *mask, int64_t n, int64_t rows,
                      int columns) {
    drop<T>(out, x, mask, n * rows, rows, columns);
}
template <typename T>
void dropout(floatX *out, const floatX *x, const Dropout *mask, int64_t rows, int columns) {
    const int64_t most = DROPOUT_MATRIX_ROWS;
    drop<T>(out, x, mask, rows, rows < most ? rows : most, columns);
}

template void dropout_matrices<float>(floatX *, const floatX *, const Dropout *, int64_t, int64_t, int);
template void dropout_matrices<bf16>(floatX *, const floatX *, const Dropout *, int64_t, int64_t, int);
template ApplyDropout dropout<float>;
template ApplyDropout dropout<bf16>;
