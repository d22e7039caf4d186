/* The CPU backend's table. */
#include "cpu.h"
#include "matmul.h"

static bool cpu_open(Error *err) {
    return true;
}

static void cpu_synchronize(void) {}

static size_t cpu_scratch_bytes(const OpShape *shape) {
    size_t layernorm = cpu_layernorm_scratch_bytes(shape), norm = cpu_grad_norm_scratch_bytes();
    return layernorm > norm ? layernorm : norm;
}

const Ops ops_cpu = {
    .name = "cpu fp32",
    .dtype = DTYPE_F32,
    .open = cpu_open,
    .device_name = cpu_device_name,
    .peak_flops = cpu_peak_flops,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .memory_info = cpu_memory_info,
    .zero = cpu_zero,
    .copy = cpu_copy,
    .upload = cpu_copy,
    .download = cpu_copy,
    .synchronize = cpu_synchronize,
    .runs_ahead = false,
    .fetch_begin = cpu_fetch_begin,
    .fetch_end = cpu_fetch_end,
    .mark = cpu_mark,
    .seconds_between = cpu_seconds_between,
    .record_begin = cpu_record_begin,
    .record_end = cpu_record_end,
    .replay = cpu_replay,
    .recording_release = cpu_recording_release,
    .scratch_bytes = cpu_scratch_bytes,
    .fixed_bytes = cpu_matmul_static_bytes,
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .layernorm_forward = cpu_layernorm_forward,
    .residual_layernorm_forward = cpu_residual_layernorm_forward,
    .layernorm_backward = cpu_layernorm_backward,
    .residual_forward = cpu_residual_forward,
    .dropout = cpu_dropout,
    .linear_forward = cpu_linear_forward,
    .linear_backward_input = cpu_linear_backward_input,
    .linear_backward_input_row_dots = cpu_linear_backward_input_row_dots,
    .linear_backward_weight = cpu_linear_backward_weight,
    .linear_backward_weight_first = cpu_linear_backward_weight_first,
    .qkv_bias_backward = cpu_qkv_bias_backward,
    .gelu_forward = cpu_gelu_forward,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .masked_attention_forward = cpu_masked_attention_forward,
    .masked_attention_backward = cpu_masked_attention_backward,
    .attention_standard_forward = cpu_attention_standard_forward,
    .attention_standard_backward = cpu_attention_standard_backward,
    .masked_attention_standard_forward = cpu_masked_attention_standard_forward,
    .masked_attention_standard_backward = cpu_masked_attention_standard_backward,
    .attention_decode = cpu_attention_decode,
    .cross_entropy_backward_inplace = cpu_cross_entropy_backward_inplace,
    .cross_entropy_forward = cpu_cross_entropy_forward,
    .loss_sum = cpu_loss_sum,
    .grad_norm = cpu_grad_norm,
    .adamw = cpu_adamw,
    .weights_from_master = cpu_weights_from_master,
};
