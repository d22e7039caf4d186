/* Dropout of a matrix: a warp a row, 16 bytes a lane where the rows allow it. The mask is llmc/model/dropout.h's. */
#include "llmc/cuda/cuda_ops.cuh"

enum { WARPS = 8 };

template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };

/* grid: a block for WARPS rows. columns is a multiple of N. out may be x. */
template <typename T, int N>
__global__ void __launch_bounds__(WARPS *WARP_SIZE)
    dropout_kernel(T *out, const T *x, Dropout dropout, uint32_t threshold, float scale, int64_t rows,
                   int columns) {
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    if (n >= rows) return;
    const DropoutRow row = dropout_row(dropout_site(*dropout.key, dropout.site), n);
    for (int c = threadIdx.x % WARP_SIZE * N; c < columns; c += WARP_SIZE * N) {
        Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(x + n * columns + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            pack.v[k] = from_float<T>(
                dropout_bits(row, (uint32_t)(c + k)) < threshold ? 0.0f : to_float(pack.v[k]) * scale);
        *reinterpret_cast<Pack<T, N> *>(out + n * columns + c) = pack;
    }
}

template <typename T>
void dropout(floatX *out, const floatX *x, const Dropout *mask, int64_t rows, int columns) {
    const unsigned blocks = (unsigned)ceil_div<int64_t>(rows, WARPS);
    const auto kernel = columns % Vec<T>::N ? dropout_kernel<T, 1> : dropout_kernel<T, Vec<T>::N>;
    kernel<<<blocks, WARPS * WARP_SIZE, 0, main_stream>>>(
        (T *)out, (const T *)x, *mask, dropout_threshold(mask->p), dropout_scale(mask->p), rows, columns);
    launch_check("dropout_kernel");
}

template ApplyDropout dropout<float>;
template ApplyDropout dropout<bf16>;
