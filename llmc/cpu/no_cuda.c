/* Stands in for llmc/cuda in the CPU-only program (make train_gpt2): no CUDA tables. */
#include "llmc/model/ops.h"
#include "llmc/model/ops_testing.h"

const Ops *const ops_cuda_bf16 = NULL, *const ops_cuda_fp32 = NULL;

bool cuda_available(void) {
    return false;
}

int cuda_device_count(void) {
    return 0;
}

bool cuda_attention_tuned(int HD) {
    return true;
}

void cuda_limit_capability(int capability) {}

void cuda_limit_alignment(int bytes) {}
