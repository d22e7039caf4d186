/* Sums over rows (bias gradients), in two stages of fixed order: slices of rows, then the slices. On the way the
 * first stage can take a gradient through GELU, and GELU forward where backward asks for it again: both need the
 * same exponential, and both matrices are read and written once, at a copy's rate (4.16 TB/s on an H200). */
#include "column_sums.cuh"
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/ops/gelu.cuh"

enum {
    SUM_BLOCKS = 5,  /* of stage one, 256 threads each, on each of an H200's SMs: one wave */
    GELU_BLOCKS = 4, /* the same with GELU, which needs more registers */
    SMS = 132,
    BATCH = 4,                        /* rows that a thread has in flight */
    BATCH_ROWS = BATCH * COLUMN_ROWS, /* the same of a block; a slice is a multiple of them */
};

/* 16 bytes as they lie in memory; as elements of bf16 the compiler would put them together byte by byte. */
__device__ inline int4 pack(const float (&f)[4]) {
    return make_int4(__float_as_int(f[0]), __float_as_int(f[1]), __float_as_int(f[2]), __float_as_int(f[3]));
}
__device__ inline int4 pack(const float (&f)[8]) {
    return make_int4((int)cvt_bf16x2(f[0], f[1]), (int)cvt_bf16x2(f[2], f[3]), (int)cvt_bf16x2(f[4], f[5]),
                     (int)cvt_bf16x2(f[6], f[7]));
}

/* x = x gelu'(pre); with FORWARD: pre = gelu(pre) */
template <typename T, bool FORWARD> __device__ inline void vec_through_gelu(int4 &x, int4 &pre) {
    float f[Vec<T>::N], p[Vec<T>::N];
    to_floats(f, x);
    to_floats(p, pre);
#pragma unroll
    for (int k = 0; k < Vec<T>::N; k++) through_gelu<T>(f[k], p[k]);
    x = pack(f);
    if (FORWARD) pre = pack(p);
}

typedef enum { NO_GELU, GELU_BACKWARD, GELU_BOTH_WAYS } GeluWork;

/* partials (gridDim.x, columns) = sums of x; or of x gelu'(pre_gelu), which takes the place of x; or the same, and
 * gelu (N,columns) = gelu(pre_gelu), which may take the place of pre_gelu. Rows lie `stride` elements apart.
 * block (slice, tile of columns) */
template <typename T, GeluWork WORK>
__global__ void __launch_bounds__(WARP_SIZE *COLUMN_ROWS, WORK == NO_GELU ? SUM_BLOCKS : GELU_BLOCKS)
    column_partials_kernel(float *partials, T *x, T *gelu, const T *pre_gelu, int64_t N, int columns,
                           int stride, int64_t slice_rows) {
    constexpr int VEC = Vec<T>::N;
    constexpr bool GELU = WORK != NO_GELU, FORWARD = WORK == GELU_BOTH_WAYS;
    const int first = (blockIdx.y * WARP_SIZE + threadIdx.x) * VEC;
    const int64_t begin = blockIdx.x * slice_rows;
    const int rows = (int)min(slice_rows, N - begin);
    x += begin * stride; /* from here on rows are those of the slice */
    if (GELU) pre_gelu += begin * stride;
    if (FORWARD) gelu += begin * stride;
    float sum[VEC] = {};
    for (int row = threadIdx.y; first < columns && row < rows; row += BATCH_ROWS) {
        int4 in[BATCH] = {}, pre[BATCH] = {}; /* a row that is not there adds 0 */
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int r = row + j * COLUMN_ROWS;
            const int64_t i = (int64_t)r * stride + first;
            if (r < rows) in[j] = *reinterpret_cast<const int4 *>(x + i);
            if (r < rows && GELU) pre[j] = *reinterpret_cast<const int4 *>(pre_gelu + i);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int r = row + j * COLUMN_ROWS;
            const int64_t i = (int64_t)r * stride + first;
            if (GELU) vec_through_gelu<T, FORWARD>(in[j], pre[j]);
            if (GELU && r < rows) *reinterpret_cast<int4 *>(x + i) = in[j];
            if (FORWARD && r < rows) *reinterpret_cast<int4 *>(gelu + i) = pre[j];
            float f[VEC];
            to_floats(f, in[j]);
#pragma unroll
            for (int k = 0; k < VEC; k++) sum[k] += f[k];
        }
    }
    const float total = tile_column_total<VEC>(sum);
    const int column = tile_column<VEC>(columns);
    if (column >= 0) partials[(int64_t)blockIdx.x * columns + column] = total;
}

/* Block (32, 32): a warp takes every 32nd partial row of 32 columns. */
__global__ void __launch_bounds__(1024)
    add_partial_rows_kernel(PartialSums sums, const float *__restrict__ partials, int n, int columns) {
    const int column = blockIdx.x * WARP_SIZE + threadIdx.x;
    float sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (int row = threadIdx.y; row < n; row += WARP_SIZE)
            sum += partials[((int64_t)row * sums.width + blockIdx.y) * columns + column];
    }
    const float total = warps_column_total(sum);
    if (threadIdx.y == 0 && column < columns) sums.out[blockIdx.y][column] += total;
}

void add_partial_rows(const PartialSums &sums, const float *partials, int n, int columns) {
    const dim3 grid(ceil_div<int>(columns, WARP_SIZE), sums.n_out);
    add_partial_rows_kernel<<<grid, dim3(WARP_SIZE, WARP_SIZE), 0, main_stream>>>(sums, partials, n, columns);
    launch_check("add_partial_rows");
}

/* Rows of a slice such that tiles across and slices down fill the device once. */
static int64_t rows_of_slice(int64_t N, int tiles, int blocks) {
    const int64_t slices = tiles >= blocks ? 1 : blocks / tiles;
    return ceil_div<int64_t>(ceil_div(N, slices), BATCH_ROWS) * BATCH_ROWS;
}

/* The number of partial rows. */
template <typename T, GeluWork WORK>
static int sum_slices(float *partials, T *x, T *gelu, const T *pre_gelu, int64_t N, int columns, int stride) {
    const int tiles = ceil_div<int>(columns, WARP_SIZE * Vec<T>::N);
    const int64_t slice_rows = rows_of_slice(N, tiles, SMS * (WORK == NO_GELU ? SUM_BLOCKS : GELU_BLOCKS));
    const int slices = (int)ceil_div<int64_t>(N, slice_rows);
    column_partials_kernel<T, WORK><<<dim3(slices, tiles), dim3(WARP_SIZE, COLUMN_ROWS), 0, main_stream>>>(
        partials, x, gelu, pre_gelu, N, columns, stride, slice_rows);
    launch_check("column_partials");
    return slices;
}

template <typename T> int column_partials(float *partials, const T *x, int64_t N, int columns, int stride) {
    return sum_slices<T, NO_GELU>(partials, (T *)x, NULL, NULL, N, columns, stride); /* x is only read */
}

template <typename T>
void column_sums(float *out, const T *x, void *scratch, int64_t N, int columns, int stride) {
    const int n = column_partials(static_cast<float *>(scratch), x, N, columns, stride);
    add_partial_rows(PartialSums{{out}, 1, 1}, static_cast<const float *>(scratch), n, columns);
}

template <typename T>
void gelu_backward_sums(T *dx, float *dx_sums, T *gelu, const T *pre_gelu, void *scratch, int64_t N,
                        int columns) {
    float *partials = static_cast<float *>(scratch);
    const int n = gelu ? sum_slices<T, GELU_BOTH_WAYS>(partials, dx, gelu, pre_gelu, N, columns, columns)
                       : sum_slices<T, GELU_BACKWARD>(partials, dx, NULL, pre_gelu, N, columns, columns);
    if (dx_sums) add_partial_rows(PartialSums{{dx_sums}, 1, 1}, partials, n, columns);
}

/* Slices times columns: at most one wave of tiles of bf16, the wider ones, or a single slice. */
size_t column_sums_scratch_bytes(int columns) {
    const int tiles_columns = SMS * SUM_BLOCKS * WARP_SIZE * Vec<bf16>::N;
    return sizeof(float) * (size_t)(columns > tiles_columns ? columns : tiles_columns);
}

template int column_partials<float>(float *, const float *, int64_t, int, int);
template int column_partials<bf16>(float *, const bf16 *, int64_t, int, int);
template void column_sums<float>(float *, const float *, void *, int64_t, int, int);
template void column_sums<bf16>(float *, const bf16 *, void *, int64_t, int, int);
template void gelu_backward_sums<float>(float *, float *, float *, const float *, void *, int64_t, int);
template void gelu_backward_sums<bf16>(bf16 *, float *, bf16 *, const bf16 *, void *, int64_t, int);
