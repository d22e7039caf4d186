/* The ladder of the matrix product. Operands of linear_forward: out (N,OC), pre_gelu (N,OC) or NULL, x (N,IC), weight (OC,IC),
 * bias (OC). out = x W^T + bias, or GELU of that with pre_gelu = x W^T + bias. */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

void matmul_naive(const Call *c);
double matmul_naive_bytes(const Sizes *s, int elem);
void matmul_tiled(const Call *c);
double matmul_tiled_bytes(const Sizes *s, int elem);
void matmul_registers(const Call *c);
double matmul_registers_bytes(const Sizes *s, int elem);
/* bf16 alone */
void matmul_mma(const Call *c);
double matmul_mma_bytes(const Sizes *s, int elem);
void matmul_wgmma(const Call *c);
double matmul_wgmma_bytes(const Sizes *s, int elem);
void matmul_cublaslt(const Call *c);

#ifdef __cplusplus
}
#endif
