/* Launches that begin early (programmatic dependent launch, sm_90): a kernel starts while the one before still runs,
 * loads what that one does not write, and waits. Short kernels in a row then have next to no gaps between them.
 *
 * A kernel that is launched so calls wait_early() in all of its threads that read or write anything that the launch
 * before it touches, before they do. All that came before that one is done from the beginning, because each lets the next one start
 * only when its own wait is over. On other cards the launch is a plain one, and wait_early does nothing.
 *
 * A kernel too short for the next one's loads calls begin_next_early() first: then the next one begins with it, and what it
 * loads before its wait must be none of what these two and the launch before write. A long one calls wait_for_last() first and
 * begin_next_early() near its end, where the next one is not to be there all the time. */
#pragma once
#include "cuda_common.cuh"
#include "llmc/cuda/ptx/sm90.cuh"

__device__ __forceinline__ void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    wait_on_dependency();
#endif
}
__device__ __forceinline__ void begin_next_early() {
#if __CUDA_ARCH__ >= 900
    launch_dependents();
#endif
}
__device__ __forceinline__ void wait_early() {
    wait_for_last();
    begin_next_early();
}

/* cluster: blocks along y that share their memory. */
template <typename... Parameters, typename... Arguments>
void launch_early(const char *name, void (*kernel)(Parameters...), dim3 grid, int threads, size_t bytes,
                  int cluster, Arguments... arguments) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = attributes[1].val.clusterDim.z = 1;
    attributes[1].val.clusterDim.y = cluster;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = main_stream;
    config.attrs = attributes;
    config.numAttrs = cuda_compute_capability() != 90 ? 0 : cluster > 1 ? 2 : 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
    launch_check(name);
}
