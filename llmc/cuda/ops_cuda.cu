/* The two CUDA tables, from one source: bf16 and fp32 storage. */
#include "llmc/cuda/attention/attention.cuh"

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* One buffer serves every op, so the neediest decides. */
static size_t scratch_bytes(const OpShape *shape) {
    size_t bytes = embedding_scratch_bytes((int64_t)shape->B * shape->T, shape->C);
    bytes = larger(bytes, layernorm_scratch_bytes(shape->C));
    bytes = larger(bytes, column_sums_scratch_bytes(4 * shape->C));
    bytes = larger(bytes, column_sums_scratch_bytes(shape->Vp));
    bytes = larger(bytes, linear_scratch_bytes((int64_t)shape->B * shape->T, 4 * shape->C));
    return larger(bytes, attention_scratch_bytes(shape));
}

static const char *kernel_ran(void) {
    const char *name = cuda_kernel_ran;
    cuda_kernel_ran = NULL;
    return name;
}

template <typename T, DType DTYPE> static constexpr Ops table(const char *name) {
    Ops ops{};
    ops.name = name;
    ops.dtype = DTYPE;
    ops.device = &device_cuda;
    ops.scratch_bytes = scratch_bytes;
    ops.kernel_ran = kernel_ran;
#define CUDA_OP(Type, name) ops.name = name<T>;
    EACH_OP(CUDA_OP)
#undef CUDA_OP
    return ops;
}

static constexpr Ops bf16_table = table<bf16, DTYPE_BF16>("cuda bf16");
static constexpr Ops fp32_table = table<float, DTYPE_F32>("cuda fp32");

const Ops *const ops_cuda_bf16 = &bf16_table, *const ops_cuda_fp32 = &fp32_table;
