/* The end of kernels that sum columns: the totals of a block, each of whose threads has summed rows of its own. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

enum { COLUMN_ROWS = 8 };

/* In a block of (32, COLUMN_ROWS) threads, where thread (x, y) has the sums of columns [x*VEC, x*VEC + VEC) of a tile
 * 32*VEC columns wide. Adds over y in order. Thread i = x + 32y < 32*VEC gets the total of column i of the tile, the
 * others get nothing of use. Every thread must come here, once per kernel. */
template <int VEC> __device__ inline float tile_column_total(const float (&sum)[VEC]) {
    __shared__ float tile[COLUMN_ROWS][WARP_SIZE * VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++) tile[threadIdx.y][threadIdx.x * VEC + k] = sum[k];
    __syncthreads();
    const int column = threadIdx.y * WARP_SIZE + threadIdx.x;
    float total = 0;
    if (column < WARP_SIZE * VEC)
        for (int y = 0; y < COLUMN_ROWS; y++) total += tile[y][column];
    return total;
}

/* The tile's column that the total belongs to, -1 for a thread without one. */
template <int VEC> __device__ inline int tile_column(int columns) {
    const int in_tile = threadIdx.y * WARP_SIZE + threadIdx.x;
    const int column = blockIdx.y * WARP_SIZE * VEC + in_tile;
    return in_tile < WARP_SIZE * VEC && column < columns ? column : -1;
}

/* In a block of (32, 32) threads, where thread (x, y) has the sum of column x: warp 0 gets the totals over y in order,
 * the others nothing of use. Every thread must come here, once per kernel. */
__device__ inline float warps_column_total(float sum) {
    __shared__ float tile[WARP_SIZE][WARP_SIZE];
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    float total = 0;
    if (threadIdx.y == 0)
        for (int y = 0; y < WARP_SIZE; y++) total += tile[y][threadIdx.x];
    return total;
}
