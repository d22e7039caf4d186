/* Launches whose way to the multiprocessors overlaps the end of the kernel before (programmatic dependent
 * launch, CUDA C++ Programming Guide; sm_90). They wait for that end on the device before they touch memory,
 * so the order of the ops and their results are those of plain launches. */
#pragma once
#include "cuda_common.cuh"
#include "ptx.cuh"

/* The first line of every kernel that launch_early() starts. The next such launch may place its blocks once
 * all of these have come here; what the launches before wrote can be read, and what they read be written,
 * behind it. */
__device__ __forceinline__ void begin_early() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    launch_dependents();
    wait_on_dependency();
#endif
}

/* Of a launch's configuration; other cards than Hopper run code without begin_early's two instructions. */
static inline cudaLaunchAttribute early_start(void) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = cuda_compute_capability() == 90;
    return early;
}

/* Launches `kernel` on main_stream; `name` is for the message of a launch that fails. */
template <typename... Parameters, typename... Arguments>
static void launch_early(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                         size_t shared_bytes, Arguments... arguments) {
    cudaLaunchAttribute early = early_start();
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = main_stream;
    config.attrs = &early;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...); /* launch_check reports its failure */
    launch_check(name);
}
