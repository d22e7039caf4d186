/* The GEMMs of linear layers through cuBLASLt: see gemm.cu. */
#pragma once
#include <cublasLt.h>
#include "llmc/cuda/device/cuda_common.cuh"

#define LT_CHECK(expr) lt_check((expr), #expr, __FILE__, __LINE__)
void lt_check(cublasStatus_t status, const char *expr, const char *file, int line);

typedef enum { GEMM_FORWARD, GEMM_BACKWARD_INPUT, GEMM_BACKWARD_WEIGHT } GemmKind;

typedef struct GemmBuffers {
    void *d; /* output */
    const void *a, *b;
    const void *bias; /* of the epilogue, or NULL */
    const void *aux;  /* pre-activation of the epilogue, or NULL */
    bool overwrites;  /* of GEMM_BACKWARD_WEIGHT, which otherwise adds */
} GemmBuffers;

/* The product of `kind` (gemm.cu, column_major_view) of a linear layer (N,IC) -> (N,OC). False, with nothing
 * done, if the library has no algorithm for this kind and shape; for GELU's derivative: none of the card's
 * generation. */
template <typename T>
bool gemm(GemmKind kind, cublasLtEpilogue_t epilogue, const GemmBuffers *buffers, int64_t N, int OC, int IC);

/* The library's handle, for products of other forms. */
cublasLtHandle_t gemm_handle(void);

enum { GEMM_FOUND_MAX = 8 }; /* the heuristic names no more, however many are asked for */
/* A product, and what its kernels may do. */
typedef struct GemmQuestion {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    uint32_t alignment;  /* bytes, of all operands */
    uint32_t reductions; /* cublasLtReductionScheme_t's that are taken */
    uint64_t workspace_bytes;
} GemmQuestion;
/* What the library's heuristic names, its favourite first: found[0..n). */
cublasStatus_t gemm_heuristic(const GemmQuestion *question,
                              cublasLtMatmulHeuristicResult_t found[GEMM_FOUND_MAX], int *n);

/* Bytes that pointers count as aligned to at most: 256, or less under cuda_limit_alignment(). */
int gemm_alignment_limit(void);

/* ---- between gemm.cu and gemm_choose.cu ---- */

/* What a plan depends on; compared as bytes, so it has no padding. */
typedef struct GemmKey {
    int64_t N;
    int32_t OC, IC;
    int32_t kind;      /* GemmKind */
    int32_t epilogue;  /* cublasLtEpilogue_t */
    int32_t type;      /* cudaDataType of activations and weights */
    int32_t alignment; /* bytes that all pointers share, 16 to 256 */
} GemmKey;

enum { GEMM_MAX_ALGORITHMS = 24 };

typedef struct GemmPlan {
    GemmKey key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    int n_algorithms;                                     /* 0: the library has none for it */
    cublasLtMatmulAlgo_t algorithms[GEMM_MAX_ALGORITHMS]; /* the heuristic's favourite first */
    bool uses_workspace[GEMM_MAX_ALGORITHMS];
    int chosen;   /* which of them runs */
    bool settled; /* gemm_choose has nothing more to do */
} GemmPlan;

/* Runs one algorithm; d: where the output goes, buffers->d or a stand-in. */
void gemm_run(const GemmPlan *plan, const GemmBuffers *buffers, void *d, int algorithm);

/* Settles plan->chosen by time if that is worth the while, else leaves it at the first. Overwrites outputs
 * that the product overwrites anyway. */
void gemm_choose(GemmPlan *plan, const GemmBuffers *buffers);
