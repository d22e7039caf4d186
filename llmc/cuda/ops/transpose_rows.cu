/* The first two dimensions of an array change places: a warp a row of out, 16 bytes a lane. Rows are from one head's to
 * all tokens' of a rank, so a long one is shared out over the grid's second dimension. */
#include "llmc/cuda/cuda_ops.cuh"

enum { WARPS = 8, LOADS = 4, MAX_STRIPS = 65535 }; /* a lane has LOADS loads in flight */

template <typename T>
__global__ void __launch_bounds__(WARPS *WARP_SIZE)
    transpose_rows_kernel(T *__restrict__ out, const T *__restrict__ in, int64_t a, int64_t b,
                          int64_t width) {
    constexpr int VEC = Vec<T>::N;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    if (row >= a * b) return;
    const T *from = in + (row % a * b + row / a) * width;
    T *to = out + row * width;
    const int64_t stride = (int64_t)gridDim.y * WARP_SIZE * VEC;
    int64_t c = ((int64_t)blockIdx.y * WARP_SIZE + threadIdx.x % WARP_SIZE) * VEC;
    /* What is stored is read next: from L2, if there is room. */
#pragma unroll LOADS
    for (; c < width; c += stride) store_vec(to + c, load_vec_once(from + c));
}

template <typename T>
void transpose_rows(floatX *out, const floatX *in, int64_t a, int64_t b, int64_t width) {
    const int64_t strips = ceil_div<int64_t>(width, LOADS * WARP_SIZE * Vec<T>::N);
    const dim3 grid((unsigned)ceil_div<int64_t>(a * b, WARPS),
                    (unsigned)(strips < MAX_STRIPS ? strips : (int64_t)MAX_STRIPS));
    transpose_rows_kernel<<<grid, WARPS * WARP_SIZE, 0, main_stream>>>((T *)out, (const T *)in, a, b, width);
    launch_check("transpose_rows_kernel");
}

template TransposeRows transpose_rows<float>;
template TransposeRows transpose_rows<bf16>;
