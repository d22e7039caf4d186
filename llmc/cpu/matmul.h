/* Single-precision matrix product with the epilogues that a linear layer needs. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix in memory: element (i, j) is data[i*row + j*col]. One of the two strides is 1. */
typedef struct View {
    float *data;
    int64_t rows, cols, row, col;
} View;

static inline View view(const float *data, int64_t rows, int64_t cols) {
    return (View){(float *)data, rows, cols, cols, 1};
}
static inline View transposed(View a) {
    return (View){a.data, a.cols, a.rows, a.col, a.row};
}

/* c = or += a b. */
typedef struct Matmul {
    View a, b, c;         /* (M, K), (K, N), (M, N), its columns next to each other */
    bool accumulate;      /* c += instead of c = */
    const float *bias;    /* (N) added to every row, or NULL */
    float *gelu_out;      /* as c lies: gelu(c) of the finished sums, or NULL */
    const float *gelu_in; /* as c lies: the finished sums are multiplied by gelu'(gelu_in), or NULL */
} Matmul;

/* The bits of the result do not depend on the number of threads. */
void cpu_matmul(const Matmul *args);

/* Memory that the products hold for the whole run, bytes. */
size_t cpu_matmul_static_bytes(void);
