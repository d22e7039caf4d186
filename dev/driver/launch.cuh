/* What every kernel of the ladders needs: a checked launch, and its thread's number. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"
#include "lab.h"

/* Most dynamic shared memory of a block, in bytes: 227 KiB on Hopper, 163 on A100, 99 on Ada. */
static size_t most_shared_bytes() {
    int device, bytes;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return bytes;
}

/* Refuses, and launches nothing, where the card's shared memory is too small for the tiles. */
template <typename K, typename... A>
static void launch(const char *name, K kernel, dim3 grid, int threads, size_t shared_bytes, A... args) {
    if (shared_bytes > most_shared_bytes())
        return lab_refuse("its tiles need more shared memory than this card has");
    if (shared_bytes > 48 << 10)
        CUDA_CHECK(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
    kernel<<<grid, threads, shared_bytes, main_stream>>>(args...);
    launch_check(name);
}

/* Blocks for n pieces of work, `each` a block. */
inline unsigned blocks_for(int64_t n, int64_t each) {
    return (unsigned)ceil_div<int64_t>(n, each);
}

/* Of a one-dimensional launch. */
__device__ inline int64_t thread_number() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
