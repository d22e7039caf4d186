/* The two CUDA tables, from one source: bf16 and fp32 storage. */
#include "llmc/cuda/attention/attention.cuh"
#include "cuda_ops.cuh"

template <typename T> struct Attention;
template <> struct Attention<bf16> {
    static constexpr auto forward = attention_forward_bf16;
    static constexpr auto backward = attention_backward_bf16;
    static constexpr auto masked_forward = masked_attention_forward_bf16;
    static constexpr auto masked_backward = masked_attention_backward_bf16;
    static constexpr auto masked_standard_forward = masked_attention_standard_forward_bf16;
    static constexpr auto masked_standard_backward = masked_attention_standard_backward_bf16;
    static constexpr auto standard_forward = attention_standard_forward_bf16;
    static constexpr auto standard_backward = attention_standard_backward_bf16;
    static constexpr auto decode = attention_decode_bf16;
};
template <> struct Attention<float> {
    static constexpr auto forward = attention_forward_f32;
    static constexpr auto backward = attention_backward_f32;
    static constexpr auto masked_forward = masked_attention_forward_f32;
    static constexpr auto masked_backward = masked_attention_backward_f32;
    static constexpr auto masked_standard_forward = masked_attention_standard_forward_f32;
    static constexpr auto masked_standard_backward = masked_attention_standard_backward_f32;
    static constexpr auto standard_forward = attention_standard_forward_f32;
    static constexpr auto standard_backward = attention_standard_backward_f32;
    static constexpr auto decode = attention_decode_f32;
};

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
    ops.embedding_forward = embedding_forward<T>;
    ops.embedding_backward = embedding_backward<T>;
    ops.layernorm_forward = layernorm_forward<T>;
    ops.residual_layernorm_forward = residual_layernorm_forward<T>;
    ops.layernorm_backward = layernorm_backward<T>;
    ops.residual_forward = residual_forward<T>;
    ops.dropout = dropout<T>;
    ops.linear_forward = linear_forward<T>;
    ops.linear_backward_input = linear_backward_input<T>;
    ops.linear_backward_input_row_dots = linear_backward_input_row_dots<T>;
    ops.linear_backward_weight = linear_backward_weight<T>;
    ops.linear_backward_weight_first = linear_backward_weight_first<T>;
    ops.qkv_bias_backward = qkv_bias_backward<T>;
    ops.gelu_forward = gelu_forward<T>;
    ops.attention_forward = Attention<T>::forward;
    ops.attention_backward = Attention<T>::backward;
    ops.masked_attention_forward = Attention<T>::masked_forward;
    ops.masked_attention_backward = Attention<T>::masked_backward;
    ops.attention_standard_forward = Attention<T>::standard_forward;
    ops.attention_standard_backward = Attention<T>::standard_backward;
    ops.masked_attention_standard_forward = Attention<T>::masked_standard_forward;
    ops.masked_attention_standard_backward = Attention<T>::masked_standard_backward;
    ops.attention_decode = Attention<T>::decode;
    ops.cross_entropy_backward_inplace = cross_entropy_backward_inplace<T>;
    ops.cross_entropy_forward = cross_entropy_forward<T>;
    ops.loss_sum = loss_sum;
    ops.grad_norm = grad_norm;
    ops.adamw = adamw<T>;
    ops.weights_from_master = weights_from_master<T>;
    return ops;
}

static constexpr Ops bf16_table = table<bf16, DTYPE_BF16>("cuda bf16");
static constexpr Ops fp32_table = table<float, DTYPE_F32>("cuda fp32");

const Ops *const ops_cuda_bf16 = &bf16_table, *const ops_cuda_fp32 = &fp32_table;
