/* The ops of the CPU backend; ops.h says what each computes. All pointers are fp32. */
#pragma once
#include "llmc/model/ops.h"

/* cpu_embedding_forward and so on */
#define DECLARE(Type, name) Type cpu_##name;
EACH_OP(DECLARE)
#undef DECLARE

/* What clipping multiplies the gradients with. */
static inline float cpu_clip_scale(const StepStats *stats, float clip) {
    return clip > 0 && stats->grad_norm > clip ? clip / stats->grad_norm : 1;
}

/* device.c */
/* Lowers both to what a cgroup allows, a container say, by the files in its folder: memory.max (version 1:
 * memory.limit_in_bytes), of which memory.current is taken, less the files' pages in it, which the kernel gives back. Where
 * there is no limit they stay. */
void cpu_limit_memory(const char *cgroup, size_t *free_bytes, size_t *total_bytes);

/* layernorm.c */
size_t cpu_layernorm_scratch_bytes(const OpShape *shape); /* 2 C floats for each of 64 chunks of rows */

/* linear.c */
/* out (columns) += sum over the rows of x (N,columns), which lie `stride` elements apart */
void cpu_column_sums(float *out, const float *x, int64_t N, int columns, int stride);

/* dropout.c */
/* dropout of matrices one below the other, each with a mask of its own */
void cpu_dropout_matrices(floatX *out, const floatX *x, const Dropout *dropout, int64_t rows,
                          int64_t matrix_rows, int columns);

/* elementwise.c */
void cpu_gelu(float *out, const float *x, int64_t n);
