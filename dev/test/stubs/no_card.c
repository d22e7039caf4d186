/* Stands in for llmc/cuda in test_run.sh: a program that was built for cards, on a machine without one. */
#include "llmc/model/ops.h"

const Ops *const ops_cuda_bf16 = &ops_cpu, *const ops_cuda_fp32 = &ops_cpu;

bool cuda_available(void) {
    return false;
}

int cuda_device_count(void) {
    return 0;
}

void cuda_limit_capability(int capability) {
    (void)capability;
}

void cuda_limit_alignment(int bytes) {
    (void)bytes;
}
