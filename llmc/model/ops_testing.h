/* Hooks of the CUDA ops for tests and benchmarks alone; without CUDA they do nothing. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* Attention kernels are chosen as for a device of at most this compute capability (80 for sm_80); 0: as for the
 * device that it is. */
void cuda_limit_capability(int capability);
/* For sanitizers, which stumble over the library's TMA kernels: linear layers take pointers as aligned to at most
 * that many bytes; 0: as they are. */
void cuda_limit_alignment(int bytes);

#ifdef __cplusplus
}
#endif
