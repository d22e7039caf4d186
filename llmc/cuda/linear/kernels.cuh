/* The kernels of the linear layers, and the table from which dispatch.cu chooses.
 *
 * A linear layer y = x W^T has three products (forward, input gradient, weight gradient). Each call says what it wants
 * beside its product; the first row that fits runs, unless its function leaves the shape to the rows below.
 *
 * To add a kernel: write its file, `bool NAME(const LinearCall *c)`, and put its row above those that it beats. The row
 * declares the function, make finds the file by itself, --profile prints the name. The function returns false, with
 * nothing done, for a shape that it does not serve. It decides by sizes and device alone: a shape is always computed by
 * the same code. A kernel that needs more scratch than these says so in linear_scratch_bytes (dispatch.cu).
 *
 * Tests: add rows to dev/test/ops/test_ops.c for the shapes that the kernel serves, on both sides of its limits and past
 * one step of its loops; `build/test_ops -v` names the kernel of each case. A kernel with GELU of its own is also named
 * in is_ours (dev/ops/ops.c), which chooses how far off its GELU may be.
 *
 * Names: a kernel for one architecture ends in _sm90, others do not. Here scripts/lint.sh looks for spills in *_sm90.cu.
 * Format: clang-format -i FILE; make lint. */
#pragma once
#include "gemm.cuh"

/* What a call wants beside its product. */
enum {
    WANT_BIAS = 1,       /* forward: + bias */
    WANT_GELU = 2,       /* forward: y = gelu(pre_gelu); input gradient: x times gelu'(pre_gelu) */
    WANT_GELU_AGAIN = 4, /* input gradient: gelu = gelu(pre_gelu) */
    WANT_SUMS = 8,       /* input gradient: sums += column sums of x; weight gradient: of y */
    WANT_ROW_DOTS = 16,  /* input gradient: row_dots of x and other */
};

/* One op's call: forward writes y, the input gradient writes x, the weight gradient writes w. */
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

/* A row of the table. */
typedef struct KernelRow {
    const char *name;
    LinearKernel *run;
    GemmKind product;
    /* As cuda_compute_capability() gives it, 90 for sm_90. From 0: any card that the program runs on (80 and later). */
    int min_capability, max_capability;
    int dtype; /* DType of the activations in storage, or ANY_DTYPE */
    /* 16: the kernel uses TMA, which sanitizer runs leave out (cuda_limit_alignment); else 0. Pointers are always
     * 16-byte aligned (ops.h). */
    int tma;
    /* WANT_...: a call must want all of the first, and nothing beside the two */
    unsigned must_want, may_want;
} KernelRow;

/* The library's fp32 GELU is an approximation and not used. Its epilogue for GELU's derivative pays where the gradient is
 * too large for L2, else our pass finds it there. The sm_90a kernels want a tile of 128 x 128 for every SM (row dots two)
 * and multiples of 64 channels; at d12's 65536 x 768 and 3072 channels forward takes 574 us for the library's 652,
 * backward 636 for 768. */
/* clang-format off */
#define LINEAR_KERNELS(ROW) \
    /*  function                   product               capability   storage     tma    must want       may want */ \
    ROW(linear_few_rows,           GEMM_FORWARD,         0, ANY_CARD, ANY_DTYPE,  0,     0,              WANT_BIAS | WANT_GELU) \
    ROW(linear_gelu_sm90,          GEMM_FORWARD,         90, 90,      DTYPE_BF16, 16,    WANT_GELU,      WANT_BIAS) \
    ROW(cublaslt_forward,          GEMM_FORWARD,         0, ANY_CARD, DTYPE_BF16, 0,     0,              WANT_BIAS | WANT_GELU) \
    ROW(cublaslt_forward,          GEMM_FORWARD,         0, ANY_CARD, DTYPE_F32,  0,     0,              WANT_BIAS) \
    ROW(cublaslt_forward_pass,     GEMM_FORWARD,         0, ANY_CARD, ANY_DTYPE,  0,     0,              WANT_BIAS | WANT_GELU) \
    ROW(linear_gelu_backward_sm90, GEMM_BACKWARD_INPUT,  90, 90,      DTYPE_BF16, 16,    WANT_GELU,      WANT_GELU_AGAIN | WANT_SUMS) \
    ROW(linear_row_dots_sm90,      GEMM_BACKWARD_INPUT,  90, 90,      DTYPE_BF16, 16,    WANT_ROW_DOTS,  0) \
    ROW(cublaslt_gelu_backward,    GEMM_BACKWARD_INPUT,  0, ANY_CARD, DTYPE_BF16, 0,     WANT_GELU,      WANT_SUMS) \
    ROW(cublaslt_backward_input,   GEMM_BACKWARD_INPUT,  0, ANY_CARD, ANY_DTYPE,  0,     0,              WANT_GELU | WANT_GELU_AGAIN | WANT_SUMS) \
    ROW(cublaslt_backward_weight,  GEMM_BACKWARD_WEIGHT, 0, ANY_CARD, ANY_DTYPE,  0,     0,              WANT_SUMS)
/* clang-format on */

#define DECLARE(name, ...) LinearKernel name;
LINEAR_KERNELS(DECLARE)
#undef DECLARE

size_t linear_gelu_backward_sm90_scratch_bytes(int64_t N, int IC);
