/* Single-precision matrix product with the epilogues that a linear layer needs. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* c[m][n] (+)= sum over k of a(m,k) b(k,n), where a(m,k) = a[m*a_row + k*a_col] and b(k,n) = b[k*b_row +
 * n*b_col]; one of the two strides of each operand is 1, so a transposed operand is only another pair of
 * strides. */
typedef struct Matmul {
    int64_t M, N, K;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t b_row, b_col;
    float *c; /* (M, N), rows c_row apart */
    int64_t c_row;
    bool accumulate;      /* c += instead of c = */
    const float *bias;    /* (N) added to every row, or NULL */
    float *gelu_out;      /* rows c_row apart: gelu(c) of the finished sums, or NULL */
    const float *gelu_in; /* rows c_row apart: the finished sums are multiplied by gelu'(gelu_in), or NULL */
} Matmul;

/* The bits of the result do not depend on the number of threads. */
void cpu_matmul(const Matmul *args);

/* Memory that the products hold for the whole run, bytes. */
size_t cpu_matmul_static_bytes(void);
