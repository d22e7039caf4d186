/* The ladder of layernorm. Operands: out (N,C), mean (N), rstd (N), x, weight (C), bias (C); and of backward: dx, dweight +=,
 * dbias +=, dx_sums +=, dresidual, dout, x, weight, mean, rstd, scratch. */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

void norm_row_a_thread(const Call *c);
void norm_row_a_warp(const Call *c);
void norm_vectorised(const Call *c);
void norm_registers(const Call *c);

void norm_backward_atomics(const Call *c);
void norm_backward_columns(const Call *c);
size_t norm_backward_columns_scratch(const Sizes *s, int elem);
double norm_backward_columns_bytes(const Sizes *s, int elem);
void norm_backward_partials(const Call *c);
size_t norm_backward_partials_scratch(const Sizes *s, int elem);

#ifdef __cplusplus
}
#endif
