/* Products of many matrices of one shape, one behind the other in memory, through cuBLASLt: gemm_batched.cu. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* Row-major; x (rows, cols), gram and square (rows, rows):
 *   gram    d = alpha x x^T          (a = b = x)
 *   square  d = alpha a a + beta c   (a symmetric, cols = rows)
 *   left    d = alpha a x + beta c   (a symmetric, b = x) */
typedef enum { BATCHED_GRAM, BATCHED_SQUARE, BATCHED_LEFT } BatchedKind;

/* n products; c may be NULL where beta is 0. The bits of a matrix do not depend on n. */
template <typename T>
void gemm_batched(BatchedKind kind, T *d, const T *a, const T *b, const T *c, float alpha, float beta,
                  int rows, int cols, int n);

/* The two ways that it has: the library, and a kernel of our own; false, with nothing done, where that does not serve the
 * card or the shape. */
template <typename T>
void gemm_batched_cublaslt(BatchedKind kind, T *d, const T *a, const T *b, const T *c, float alpha,
                           float beta, int rows, int cols, int n);
bool gemm_batched_sm90(BatchedKind kind, bf16 *d, const bf16 *a, const bf16 *b, const bf16 *c, float alpha,
                       float beta, int rows, int cols, int n);
