/* The kernels of the linear layers, and the table from which dispatch.cu chooses.
 *
 * A linear layer y = x W^T has three products (forward, input gradient, weight gradient). Each call says what it wants
 * beside its product; the first row that fits runs, unless its function leaves the shape to the rows below.
 *
 * To add a kernel: write its file, `bool NAME(const LinearCall *c)`, and put its row above those that it beats. The row
 * declares the function, make finds the file, --profile prints the name. The function returns false, with nothing done,
 * for a shape that it does not serve. It decides by sizes and device alone: a shape is always computed by the same code.
 * test_ops runs the shapes; a kernel that needs more scratch than these says so in linear_scratch_bytes (dispatch.cu). */
#pragma once
#include "gemm.cuh"

/* What a call wants beside its product. */
enum {
    BIAS = 1,       /* forward: + bias */
    GELU = 2,       /* forward: y = gelu(pre_gelu); input gradient: x times gelu'(pre_gelu) */
    GELU_AGAIN = 4, /* input gradient: gelu = gelu(pre_gelu) */
    SUMS = 8, /* sums += column sums of the gradient: x's in an input gradient, y's in a weight gradient */
    ROW_DOTS = 16, /* input gradient: row_dots of x and other */
};

/* One op's call. The product writes one of y, x and w from the other two. */
typedef struct LinearCall {
    GemmKind product;
    unsigned wants;
    Matrix y, x, w; /* (N,OC), (N,IC), (OC,IC); gradients where the product is one of backward */
    Matrix pre_gelu, gelu, other;
    const floatX *bias;
    float *sums, *row_dots;
    int group;      /* columns that a row dot adds */
    WriteMode mode; /* of the weight gradient */
    void *scratch;
} LinearCall;

typedef bool LinearKernel(const LinearCall *c);

enum { ANY_CARD = 1 << 30, ANY_DTYPE = -1 };

/* The library's fp32 GELU is an approximation and not used. Its epilogue for GELU's derivative pays where the gradient is
 * too large for L2, else our pass finds it there. The sm_90a kernels want a tile of 128 x 128 for every SM (row dots two)
 * and multiples of 64 channels; at d12's 65536 x 768 and 3072 channels forward takes 574 us for the library's 652,
 * backward 636 for 768. */
/* clang-format off */
#define LINEAR_KERNELS(ROW) \
    /*  function                   product               capability   storage     align  must want  may want */ \
    ROW(linear_gelu_sm90,          GEMM_FORWARD,         90, 90,      DTYPE_BF16, 16,    GELU,      BIAS) \
    ROW(cublaslt_forward,          GEMM_FORWARD,         0, ANY_CARD, DTYPE_BF16, 0,     0,         BIAS | GELU) \
    ROW(cublaslt_forward,          GEMM_FORWARD,         0, ANY_CARD, DTYPE_F32,  0,     0,         BIAS) \
    ROW(cublaslt_forward_pass,     GEMM_FORWARD,         0, ANY_CARD, ANY_DTYPE,  0,     0,         BIAS | GELU) \
    ROW(linear_gelu_backward_sm90, GEMM_BACKWARD_INPUT,  90, 90,      DTYPE_BF16, 16,    GELU,      GELU_AGAIN | SUMS) \
    ROW(linear_row_dots_sm90,      GEMM_BACKWARD_INPUT,  90, 90,      DTYPE_BF16, 16,    ROW_DOTS,  0) \
    ROW(cublaslt_gelu_backward,    GEMM_BACKWARD_INPUT,  0, ANY_CARD, DTYPE_BF16, 0,     GELU,      SUMS) \
    ROW(cublaslt_backward_input,   GEMM_BACKWARD_INPUT,  0, ANY_CARD, ANY_DTYPE,  0,     0,         GELU | GELU_AGAIN | SUMS) \
    ROW(cublaslt_backward_weight,  GEMM_BACKWARD_WEIGHT, 0, ANY_CARD, ANY_DTYPE,  0,     0,         SUMS)
/* clang-format on */

#define DECLARE(name, ...) LinearKernel name;
LINEAR_KERNELS(DECLARE)
#undef DECLARE

size_t linear_gelu_backward_sm90_scratch_bytes(int64_t N, int IC);
