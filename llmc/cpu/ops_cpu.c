/* The CPU backend's table. */
#include "cpu.h"

static size_t cpu_scratch_bytes(const OpShape *shape) {
    size_t layernorm = cpu_layernorm_scratch_bytes(shape), norm = cpu_sum_squares_scratch_bytes();
    return layernorm > norm ? layernorm : norm;
}

static const char *cpu_kernel_ran(void) {
    return NULL;
}

const Ops ops_cpu = {.name = "cpu fp32",
                     .dtype = DTYPE_F32,
                     .device = &device_cpu,
                     .scratch_bytes = cpu_scratch_bytes,
                     .kernel_ran = cpu_kernel_ran,
#define CPU_OP(Type, name) .name = cpu_##name,
                     EACH_OP(CPU_OP)
#undef CPU_OP
};
