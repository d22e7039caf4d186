/* The CPU backend's table. */
#include "cpu.h"

static const char *cpu_kernel_ran(void) {
    return NULL;
}

const Ops ops_cpu = {.name = "cpu fp32",
                     .dtype = DTYPE_F32,
                     .device = &device_cpu,
                     .scratch_bytes = cpu_layernorm_scratch_bytes,
                     .kernel_ran = cpu_kernel_ran,
#define CPU_OP(Type, name) .name = cpu_##name,
                     EACH_OP(CPU_OP)
#undef CPU_OP
};
