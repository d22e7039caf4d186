/* The CPU backend's table. */
#include "cpu.h"
#include "matmul.h"

static bool cpu_open(Error *err) {
    return true;
}

static void cpu_synchronize(void) {}

static size_t cpu_scratch_bytes(const OpShape *shape) {
    size_t layernorm = cpu_layernorm_scratch_bytes(shape), norm = cpu_sum_squares_scratch_bytes();
    return layernorm > norm ? layernorm : norm;
}

const Ops ops_cpu = {.name = "cpu fp32",
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
#define CPU_OP(Type, name) .name = cpu_##name,
                     EACH_OP(CPU_OP)
#undef CPU_OP
};
