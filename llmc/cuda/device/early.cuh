/* Launches that begin early (programmatic dependent launch, sm_90): a kernel starts while the one before still runs,
 * loads what does not depend on it, and waits. Short kernels in a row then have no gaps between them.
 *
 * A kernel that is launched so calls begin_early() first of all and wait_early() before it reads or writes anything that
 * kernels before it touch, in all of its threads; as each waits, the end of one is the end of all before. On older cards
 * the launch is a plain one and both do nothing. */
#pragma once
#include "cuda_common.cuh"
#include "llmc/cuda/ptx/sm90.cuh"

__device__ __forceinline__ void begin_early() {
#if __CUDA_ARCH__ >= 900
    launch_dependents();
#endif
}
__device__ __forceinline__ void wait_early() {
#if __CUDA_ARCH__ >= 900
    wait_on_dependency();
#endif
}

template <typename... Parameters, typename... Arguments>
void launch_early(const char *name, void (*kernel)(Parameters...), dim3 grid, int threads, size_t bytes,
                  Arguments... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = main_stream;
    config.attrs = &early;
    config.numAttrs = cuda_compute_capability() >= 90 ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
    launch_check(name);
}
