/* Sums over rows (bias gradients), in two stages of fixed order: slices of rows, then the slices. */
#include "column_sums.cuh"
#include "cuda_ops.cuh"
#include "early_launch.cuh"

enum {
    MAX_BLOCKS = 768, /* of stage one: 6 blocks of 256 threads on each of 128 SMs, one wave */
    MIN_ROWS = 32,    /* of a slice, so that a thread sums four rows at least */
};

/* partials (gridDim.x, columns) =; block (slice, tile of columns) */
template <typename T>
__global__ void __launch_bounds__(WARP_SIZE *COLUMN_ROWS)
    column_partials_kernel(float *partials, const T *__restrict__ x, int64_t N, int columns,
                           int64_t slice_rows) {
    begin_early();
    constexpr int VEC = Vec<T>::N;
    const int first = (blockIdx.y * WARP_SIZE + threadIdx.x) * VEC;
    const int64_t begin = blockIdx.x * slice_rows, end = min(begin + slice_rows, N);
    float sum[VEC] = {};
    if (first < columns) {
#pragma unroll 4
        for (int64_t row = begin + threadIdx.y; row < end; row += COLUMN_ROWS) {
            const Vec<T> v = load_vec(x + row * columns + first);
#pragma unroll
            for (int k = 0; k < VEC; k++) sum[k] += to_float(v.v[k]);
        }
    }
    const float total = tile_column_total<VEC>(sum);
    const int column = tile_column<VEC>(columns);
    if (column >= 0) partials[(int64_t)blockIdx.x * columns + column] = total;
}

/* Block (32, 32): a warp takes every 32nd partial row of 32 columns. */
__global__ void __launch_bounds__(1024)
    add_partial_rows_kernel(PartialSums sums, const float *__restrict__ partials, int n, int columns) {
    begin_early();
    __shared__ float tile[WARP_SIZE][WARP_SIZE];
    const int column = blockIdx.x * WARP_SIZE + threadIdx.x;
    float sum = 0;
    if (column < columns) {
#pragma unroll 4
        for (int row = threadIdx.y; row < n; row += WARP_SIZE)
            sum += partials[((int64_t)row * sums.width + blockIdx.y) * columns + column];
    }
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= columns) return;
    float total = 0;
    for (int y = 0; y < WARP_SIZE; y++) total += tile[y][threadIdx.x];
    sums.out[blockIdx.y][column] += total;
}

void add_partial_rows(const PartialSums &sums, const float *partials, int n, int columns) {
    const dim3 grid(ceil_div<int>(columns, WARP_SIZE), sums.n_out);
    launch_early("add_partial_rows", add_partial_rows_kernel, grid, dim3(WARP_SIZE, WARP_SIZE), 0, sums,
                 partials, n, columns);
}

/* Tiles across and slices down that fill the device once. */
static int max_slices(int tiles) {
    return tiles >= MAX_BLOCKS ? 1 : MAX_BLOCKS / tiles;
}

template <typename T> void column_sums(float *out, const T *x, void *scratch, int64_t N, int columns) {
    const int tiles = ceil_div<int>(columns, WARP_SIZE * Vec<T>::N);
    int64_t slice_rows = ceil_div<int64_t>(N, max_slices(tiles));
    if (slice_rows < MIN_ROWS) slice_rows = MIN_ROWS;
    const int slices = (int)ceil_div<int64_t>(N, slice_rows);
    launch_early("column_partials", column_partials_kernel<T>, dim3(slices, tiles),
                 dim3(WARP_SIZE, COLUMN_ROWS), 0, (float *)scratch, x, N, columns, slice_rows);
    add_partial_rows(PartialSums{{out}, 1, 1}, (const float *)scratch, slices, columns);
}

/* Slices times columns: at most MAX_BLOCKS tiles of bf16, the wider ones, or a single slice. */
size_t column_sums_scratch_bytes(int columns) {
    const int tiles_columns = MAX_BLOCKS * WARP_SIZE * Vec<bf16>::N;
    return sizeof(float) * (size_t)(columns > tiles_columns ? columns : tiles_columns);
}

template void column_sums<float>(float *, const float *, void *, int64_t, int);
template void column_sums<bf16>(float *, const bf16 *, void *, int64_t, int);
