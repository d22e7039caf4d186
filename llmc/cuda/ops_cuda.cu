/* The two CUDA tables, from one source: bf16 and fp32 storage. */
#include "llmc/cuda/attention/attention.cuh"

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* One buffer serves every op, so the neediest decides. */
template <DType DTYPE> static size_t scratch_bytes(const OpShape *shape) {
    size_t bytes = embedding_scratch_bytes((int64_t)shape->B * shape->T, shape->C);
    bytes = larger(bytes, layernorm_scratch_bytes(shape->C));
    bytes = larger(bytes, column_sums_scratch_bytes(4 * shape->C));
    bytes = larger(bytes, column_sums_scratch_bytes(shape->Vp));
    bytes = larger(bytes, linear_scratch_bytes((int64_t)shape->B * shape->T, 4 * shape->C));
    bytes = larger(bytes, step_stats_scratch_bytes());
    return larger(bytes, attention_scratch_bytes(shape, DTYPE));
}

static size_t fixed_bytes(void) {
    return linear_fixed_bytes() + cuda_context_bytes();
}

template <typename T, DType DTYPE> static constexpr Ops table(const char *name) {
    Ops ops{};
    ops.name = name;
    ops.dtype = DTYPE;
    ops.open = cuda_open;
    ops.device_name = cuda_device_name;
    ops.peak_flops = peak_flops<T>;
    ops.alloc = cuda_alloc;
    ops.release = cuda_release;
    ops.memory_info = cuda_memory_info;
    ops.zero = cuda_zero;
    ops.copy = cuda_copy;
    ops.upload = cuda_upload;
    ops.download = cuda_download;
    ops.synchronize = cuda_synchronize;
    ops.runs_ahead = true;
    ops.fetch_begin = cuda_fetch_begin;
    ops.fetch_end = cuda_fetch_end;
    ops.mark = cuda_mark;
    ops.seconds_between = cuda_seconds_between;
    ops.record_begin = cuda_record_begin;
    ops.record_end = cuda_record_end;
    ops.replay = cuda_replay;
    ops.recording_release = cuda_recording_release;
    ops.scratch_bytes = scratch_bytes<DTYPE>;
    ops.fixed_bytes = fixed_bytes;
#define CUDA_OP(Type, name) ops.name = name<T>;
    EACH_OP(CUDA_OP)
#undef CUDA_OP
    return ops;
}

static constexpr Ops bf16_table = table<bf16, DTYPE_BF16>("cuda bf16");
static constexpr Ops fp32_table = table<float, DTYPE_F32>("cuda fp32");

const Ops *const ops_cuda_bf16 = &bf16_table, *const ops_cuda_fp32 = &fp32_table;
