/* The batched products of Newton-Schulz, through cuBLASLt.
 *
 * The heuristic is asked for one number of matrices, whatever is then multiplied: so the same kernel computes a matrix in
 * any batch, and its bits are the same at any number of ranks. No kernel that splits a sum is taken. */
#include "gemm_batched.cuh"
#include "gemm.cuh"

enum { ASKED_BATCH = 16, MAX_PLANS = 64 };

typedef struct Key {
    int32_t kind, type, rows, cols, n, alignment;
} Key;

typedef struct Plan {
    Key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

/* A row-major matrix is to the library its transpose, as in gemm.cu: so d^T = b^T a^T is asked for, the library's first
 * operand is ours b. Sizes are rows and columns in memory, as the library has them. */
typedef struct View {
    cublasOperation_t op_first, op_second;
    int64_t first[2], second[2], d[2];
} View;

static View view_of(const Key *key) {
    const int64_t R = key->rows, C = key->cols;
    const View views[] = {
        {CUBLAS_OP_T, CUBLAS_OP_N, {C, R}, {C, R}, {R, R}},
        {CUBLAS_OP_T, CUBLAS_OP_N, {R, R}, {R, R}, {R, R}},
        {CUBLAS_OP_N, CUBLAS_OP_N, {C, R}, {R, R}, {C, R}},
    };
    return views[key->kind];
}

static cublasLtMatrixLayout_t layout_of(int32_t type, const int64_t size[2], int32_t n) {
    cublasLtMatrixLayout_t layout;
    const int64_t stride = size[0] * size[1];
    LT_CHECK(cublasLtMatrixLayoutCreate(&layout, (cudaDataType_t)type, (uint64_t)size[0], (uint64_t)size[1],
                                        size[0]));
    LT_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n));
    LT_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                              sizeof stride));
    return layout;
}

static void make_layouts(Plan *plan, int32_t n) {
    const View view = view_of(&plan->key);
    plan->a = layout_of(plan->key.type, view.first, n);
    plan->b = layout_of(plan->key.type, view.second, n);
    plan->d = layout_of(plan->key.type, view.d, n);
}

static void release_layouts(const Plan *plan) {
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->a));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->b));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->d));
}

static void ask_for_algorithm(Plan *plan) {
    cublasLtMatmulHeuristicResult_t found[GEMM_FOUND_MAX];
    int n = 0;
    make_layouts(plan, ASKED_BATCH);
    const GemmQuestion question = {
        plan->desc, plan->a, plan->b, plan->d, (uint32_t)plan->key.alignment, CUBLASLT_REDUCTION_SCHEME_NONE,
        0};
    LT_CHECK(gemm_heuristic(&question, found, &n));
    release_layouts(plan);
    if (n == 0)
        cuda_fail("cuBLASLt has no kernel for %d matrices of %d x %d", plan->key.n, plan->key.rows,
                  plan->key.cols);
    plan->algorithm = found[0].algo;
}

template <typename V>
static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, V value) {
    LT_CHECK(cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value));
}

static void make_plan(Plan *plan, const Key *key) {
    *plan = Plan{};
    plan->key = *key;
    const View view = view_of(key);
    LT_CHECK(cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, view.op_first);
    set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, view.op_second);
    ask_for_algorithm(plan);
    make_layouts(plan, key->n);
}

static void release_plan(const Plan *plan) {
    release_layouts(plan);
    LT_CHECK(cublasLtMatmulDescDestroy(plan->desc));
}

/* A run has two shapes, three products of each, in one or two numbers of matrices. */
static const Plan *find_plan(const Key *key) {
    static Plan plans[MAX_PLANS];
    static int n_plans;
    for (int i = 0; i < n_plans; i++)
        if (memcmp(&plans[i].key, key, sizeof *key) == 0) return &plans[i];
    if (n_plans == MAX_PLANS)
        while (n_plans > 0) release_plan(&plans[--n_plans]);
    make_plan(&plans[n_plans], key);
    return &plans[n_plans++];
}

/* Bytes that matrices of these sizes, one behind the other, are aligned to. */
static int32_t common_alignment(int rows, int cols, size_t element_bytes) {
    const size_t bits = ((size_t)rows * (size_t)cols | (size_t)rows * (size_t)rows) * element_bytes |
                        (size_t)gemm_alignment_limit();
    return (int32_t)(bits & -bits);
}

/* Ours has no fp32. */
static bool serve_sm90(BatchedKind kind, bf16 *d, const bf16 *a, const bf16 *b, const bf16 *c, float alpha,
                       float beta, int rows, int cols, int n) {
    return gemm_batched_sm90(kind, d, a, b, c, alpha, beta, rows, cols, n);
}
static bool serve_sm90(BatchedKind, float *, const float *, const float *, const float *, float, float, int,
                       int, int) {
    return false;
}

template <typename T>
void gemm_batched_cublaslt(BatchedKind kind, T *d, const T *a, const T *b, const T *c, float alpha,
                           float beta, int rows, int cols, int n) {
    const cudaDataType_t type = sizeof(T) == 2 ? CUDA_R_16BF : CUDA_R_32F;
    const Key key = {kind, (int32_t)type, rows, cols, n, common_alignment(rows, cols, sizeof(T))};
    const Plan *plan = find_plan(&key);
    LT_CHECK(cublasLtMatmul(gemm_handle(), plan->desc, &alpha, b, plan->a, a, plan->b, &beta, c ? c : d,
                            plan->d, d, plan->d, &plan->algorithm, NULL, 0, main_stream));
}

template <typename T>
void gemm_batched(BatchedKind kind, T *d, const T *a, const T *b, const T *c, float alpha, float beta,
                  int rows, int cols, int n) {
    if (!serve_sm90(kind, d, a, b, c, alpha, beta, rows, cols, n))
        gemm_batched_cublaslt<T>(kind, d, a, b, c, alpha, beta, rows, cols, n);
}

#define INSTANTIATE(name, T)                                                                                 \
    template void name<T>(BatchedKind, T *, const T *, const T *, const T *, float, float, int, int, int);
INSTANTIATE(gemm_batched_cublaslt, float)
INSTANTIATE(gemm_batched_cublaslt, bf16)
INSTANTIATE(gemm_batched, float)
INSTANTIATE(gemm_batched, bf16)
