/* How many clusters of a kernel the device runs at once. */
#pragma once
#include "cuda_common.cuh"

/* Of `cluster` blocks each, with one block to an SM where `bytes` of shared memory leave no room for two. Lets the kernel have so
 * many bytes. */
template <typename... Parameters>
int clusters_at_once(void (*kernel)(Parameters...), int cluster, int threads, size_t bytes) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(cuda_sm_count() / cluster * cluster);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int n = 0;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&n, kernel, &config));
    return n;
}
