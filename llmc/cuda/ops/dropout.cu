/* Dropout of a matrix: a warp a row, 16 bytes a lane where the rows allow it. The mask is llmc/model/dropout.h's. */
#include "llmc/cuda/cuda_ops.cuh"

enum { WARPS = 8 };

template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };

/* Matrices of `rows` rows, n_rows rows together. grid: a warp for each row. columns is a multiple of N. out may be x. */
template <typename T, int N>
__global__ void __launch_bounds__(WARPS *WARP_SIZE)
    dropout_kernel(T *out, const T *x, Dropout dropout, uint32_t threshold, float scale, int64_t n_rows,
                   int64_t rows, int columns) {
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    if (n >= n_rows) return;
    const DropoutMatrix matrix = dropout_matrix(dropout_site(*dropout.key, dropout.site), n / rows);
    for (int c = threadIdx.x % WARP_SIZE * N; c < columns; c += WARP_SIZE * N) {
        const int64_t at = n * columns + c;
        Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(x + at);
        uint32_t word = 0;
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (k % 2 == 0) word = dropout_word(matrix, n % rows, c + k);
            const bool dropped = dropout_dropped_by(word, c + k, threshold);
            pack.v[k] = from_float<T>(dropped ? 0.0f : to_float(pack.v[k]) * scale);
        }
        *reinterpret_cast<Pack<T, N> *>(out + at) = pack;
    }
}

template <typename T>
static void drop(floatX *out, const floatX *x, const Dropout *mask, int64_t n_rows, int64_t rows,
                 int columns) {
    const uint32_t threshold = dropout_threshold(mask->p);
    const auto kernel = columns % Vec<T>::N ? dropout_kernel<T, 1> : dropout_kernel<T, Vec<T>::N>;
    kernel<<<(unsigned)ceil_div<int64_t>(n_rows, WARPS), WARPS * WARP_SIZE, 0, main_stream>>>(
        (T *)out, (const T *)x, *mask, threshold, dropout_scale(threshold), n_rows, rows, columns);
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
