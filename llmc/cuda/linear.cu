/* Linear layers: GEMMs through cuBLASLt, bias gradients by our own column sums.
 *
 * A plan (descriptors and the algorithm) is made at the first call of its kind and shape and kept. GEMMs that
 * end in GELU are ours on Hopper (linear_gelu_sm90.cu). Elsewhere, and for small shapes, they take the
 * library's epilogues: on an H200 at d12 shapes GELU there beats a pass of its own (586 against 488 + 200 us)
 * and so does its derivative (608 against 430 + 300); the library's bias-gradient epilogues are slower than a
 * pass that reads dout once more (fc 628 against 462 + 95 us), so they are not used. In fp32, GELU is ours:
 * the library's is an approximation. */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include "cuda_ops.cuh"
#include "linear_gelu_sm90.cuh"

#define LT_CHECK(expr) lt_check((expr), #expr, __FILE__, __LINE__)
static void lt_check(cublasStatus_t status, const char *expr, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "error: %s:%d: %s: %s\n", file, line, expr, cublasLtGetStatusString(status));
    exit(EXIT_RUN);
}

enum {
    WORKSPACE_BYTES = 32 << 20, /* what NVIDIA asks for on Hopper */
    MAX_PLANS = 512,
    MAX_CANDIDATES = 16,
    /* Bits of cublasLtEpilogue_t; the second has no name of its own in the library. */
    EPILOGUE_BIAS_BIT = CUBLASLT_EPILOGUE_BIAS,
    EPILOGUE_AUX_BIT = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU,
};
static cublasLtHandle_t handle;
static void *workspace;

size_t linear_fixed_bytes(void) {
    return WORKSPACE_BYTES;
}

bool linear_open(Error *err) {
    const cublasStatus_t status = cublasLtCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return fail(err, EXIT_RUN, "CUDA: cuBLASLt does not start: %s; hint: is the device's memory taken?",
                    cublasLtGetStatusString(status));
    workspace = cuda_alloc(WORKSPACE_BYTES);
    if (!workspace)
        return fail(err, EXIT_RUN,
                    "CUDA: no memory for the GEMM workspace (%d MiB); hint: nvidia-smi shows who has it",
                    WORKSPACE_BYTES >> 20);
    return true;
}

/* ---- plans ---- */

typedef enum { GEMM_FORWARD, GEMM_BACKWARD_INPUT, GEMM_BACKWARD_WEIGHT } GemmKind;

/* What a plan depends on; compared as bytes, so it has no padding. */
typedef struct GemmKey {
    int64_t N;
    int32_t OC, IC;
    int32_t kind;      /* GemmKind */
    int32_t epilogue;  /* cublasLtEpilogue_t */
    int32_t type;      /* cudaDataType of activations and weights */
    int32_t alignment; /* bytes that all pointers share, 16 to 256 */
} GemmKey;

typedef struct GemmPlan {
    GemmKey key;
    bool supported; /* false: the library has no algorithm for it */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} GemmPlan;

typedef struct GemmBuffers {
    void *d; /* output */
    const void *a, *b;
    const void *bias; /* of the epilogue, or NULL */
    const void *aux;  /* pre-activation of the epilogue, or NULL */
} GemmBuffers;

template <typename V>
static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, V value) {
    LT_CHECK(cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value));
}

/* A product as cuBLASLt sees it: d = op_a(a) op_b(b), column-major. */
typedef struct ColumnMajorView {
    cublasOperation_t op_a, op_b;
    int64_t a[2], b[2], d[2]; /* rows and columns in memory; the leading dimension is the number of rows */
} ColumnMajorView;

/* The one place that knows of column-major: a row-major (rows, cols) buffer is to the library a (cols, rows)
 * matrix with leading dimension cols. So every product is asked for transposed, here with the operands as
 * they lie in memory and ^T for the operation that the library applies:
 *
 *   forward          out (N,OC) = x W^T       as  (OC,N)  = weight^T x
 *   backward input   dx (N,IC)  = dout W      as  (IC,N)  = weight dout
 *   backward weight  dW (OC,IC) += dout^T x   as  (IC,OC) += x dout^T
 */
static ColumnMajorView column_major_view(const GemmKey *key) {
    const int64_t N = key->N, OC = key->OC, IC = key->IC;
    const ColumnMajorView views[] = {
        {CUBLAS_OP_T, CUBLAS_OP_N, {IC, OC}, {IC, N}, {OC, N} },
        {CUBLAS_OP_N, CUBLAS_OP_N, {IC, OC}, {OC, N}, {IC, N} },
        {CUBLAS_OP_N, CUBLAS_OP_T, {IC, N},  {OC, N}, {IC, OC}},
    };
    return views[key->kind];
}

static cublasLtMatrixLayout_t make_layout(cudaDataType_t type, const int64_t size[2]) {
    cublasLtMatrixLayout_t layout;
    LT_CHECK(cublasLtMatrixLayoutCreate(&layout, type, (uint64_t)size[0], (uint64_t)size[1], size[0]));
    return layout;
}

static void make_descriptors(GemmPlan *plan) {
    const GemmKey *key = &plan->key;
    const ColumnMajorView view = column_major_view(key);
    const cudaDataType_t type = (cudaDataType_t)key->type;
    const cudaDataType_t d_type = key->kind == GEMM_BACKWARD_WEIGHT ? CUDA_R_32F : type;

    LT_CHECK(cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)); /* no TF32 */
    set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, view.op_a);
    set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, view.op_b);
    set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, (cublasLtEpilogue_t)key->epilogue);
    if (key->epilogue & EPILOGUE_BIAS_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    if (key->epilogue & EPILOGUE_AUX_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, view.d[0]);
    plan->a = make_layout(type, view.a);
    plan->b = make_layout(type, view.b);
    plan->d = make_layout(d_type, view.d);
}

/* The heuristic's first algorithm that fits the workspace and adds split parts in a fixed order (in the
 * workspace, in fp32). The heuristic depends on device, library and shape alone, so a run repeats bit for
 * bit, in another process too. Pointers of the epilogue stand for their alignment here. */
static bool choose_algorithm(GemmPlan *plan) {
    const uint64_t workspace_bytes = WORKSPACE_BYTES;
    const uint32_t alignment = (uint32_t)plan->key.alignment;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } preferences[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,   &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,      sizeof reductions     },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment,       sizeof alignment      },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment,       sizeof alignment      },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment,       sizeof alignment      },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment,       sizeof alignment      },
    };
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t candidates[MAX_CANDIDATES];
    int n = 0;
    LT_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    for (const auto &p : preferences)
        LT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, p.name, p.value, p.bytes));
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, plan->desc, plan->a, plan->b, plan->d, plan->d, preference, MAX_CANDIDATES, candidates, &n);
    LT_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    if (status != CUBLAS_STATUS_SUCCESS) return false;
    for (int i = 0; i < n; i++) {
        uint32_t scheme = 0;
        size_t written;
        if (candidates[i].state != CUBLAS_STATUS_SUCCESS || candidates[i].workspaceSize > WORKSPACE_BYTES)
            continue;
        LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(
            &candidates[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written));
        if (scheme & ~reductions) continue;
        plan->algorithm = candidates[i].algo;
        return true;
    }
    return false;
}

static void make_plan(GemmPlan *plan, const GemmKey *key) {
    *plan = GemmPlan{};
    plan->key = *key;
    make_descriptors(plan);
    void *stand_in = (void *)(uintptr_t)key->alignment;
    if (key->epilogue & EPILOGUE_BIAS_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, stand_in);
    if (key->epilogue & EPILOGUE_AUX_BIT)
        set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, stand_in);
    plan->supported = choose_algorithm(plan);
}

static void release_plan(GemmPlan *plan) {
    LT_CHECK(cublasLtMatmulDescDestroy(plan->desc));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->a));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->b));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->d));
}

/* A run needs some 20 plans; sampling, with a shape per length, may fill the table, which then starts afresh.
 */
static GemmPlan *find_plan(const GemmKey *key) {
    static GemmPlan plans[MAX_PLANS];
    static int n_plans;
    for (int i = 0; i < n_plans; i++)
        if (memcmp(&plans[i].key, key, sizeof *key) == 0) return &plans[i];
    if (n_plans == MAX_PLANS)
        while (n_plans > 0) release_plan(&plans[--n_plans]);
    make_plan(&plans[n_plans], key);
    return &plans[n_plans++];
}

/* ---- running a plan ---- */

static int alignment_limit = 256;

void cuda_limit_alignment(int bytes) {
    alignment_limit = bytes > 0 ? bytes : 256;
}

static int32_t common_alignment(const GemmBuffers *buffers) {
    const void *pointers[] = {buffers->d, buffers->a, buffers->b, buffers->bias, buffers->aux};
    uintptr_t bits = (uintptr_t)alignment_limit;
    for (const void *p : pointers) bits |= (uintptr_t)p;
    return (int32_t)(bits & -bits);
}

/* False, with nothing done, if the library has no algorithm for this kind and shape. */
template <typename T>
static bool gemm(GemmKind kind, cublasLtEpilogue_t epilogue, const GemmBuffers *buffers, int64_t N, int OC,
                 int IC) {
    const cudaDataType_t type = sizeof(T) == 2 ? CUDA_R_16BF : CUDA_R_32F;
    const GemmKey key = {N, OC, IC, kind, (int32_t)epilogue, (int32_t)type, common_alignment(buffers)};
    GemmPlan *plan = find_plan(&key);
    if (!plan->supported) return false;
    if (epilogue & EPILOGUE_BIAS_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, buffers->bias);
    if (epilogue & EPILOGUE_AUX_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, buffers->aux);
    const float alpha = 1, beta = kind == GEMM_BACKWARD_WEIGHT ? 1 : 0;
    LT_CHECK(cublasLtMatmul(handle, plan->desc, &alpha, buffers->a, plan->a, buffers->b, plan->b, &beta,
                            buffers->d, plan->d, buffers->d, plan->d, &plan->algorithm, workspace,
                            WORKSPACE_BYTES, main_stream));
    return true;
}

template <typename T>
static void plain_gemm(GemmKind kind, const GemmBuffers *buffers, int64_t N, int OC, int IC) {
    if (gemm<T>(kind, CUBLASLT_EPILOGUE_DEFAULT, buffers, N, OC, IC)) return;
    const char *names[] = {"forward", "backward_input", "backward_weight"};
    fprintf(stderr,
            "error: cuBLASLt has no algorithm for linear_%s with N %lld, OC %d, IC %d, %zu-byte elements\n",
            names[kind], (long long)N, OC, IC, sizeof(T));
    exit(EXIT_RUN);
}

/* ---- the ops ---- */

/* True where our own GEMM takes an output (N,columns) that goes through GELU. */
template <typename T> static bool own_gelu_gemm(int64_t N, int columns, int inner) {
    return sizeof(T) == sizeof(bf16) && alignment_limit >= 16 && linear_gelu_sm90_serves(N, columns, inner);
}

template <typename T>
void linear_forward(floatX *out, floatX *pre_gelu, const floatX *x, const floatX *weight, const floatX *bias,
                    int64_t N, int OC, int IC) {
    if (pre_gelu && own_gelu_gemm<T>(N, OC, IC)) {
        linear_gelu_forward_sm90((bf16 *)out, (bf16 *)pre_gelu, (const bf16 *)x, (const bf16 *)weight,
                                 (const bf16 *)bias, N, OC, IC);
        return;
    }
    const GemmBuffers buffers = {out, weight, x, bias, pre_gelu};
    const cublasLtEpilogue_t epilogue =
        pre_gelu ? bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX
        : bias   ? CUBLASLT_EPILOGUE_BIAS
                 : CUBLASLT_EPILOGUE_DEFAULT;
    const bool own_gelu = pre_gelu && sizeof(T) == sizeof(float);
    if (!own_gelu && gemm<T>(GEMM_FORWARD, epilogue, &buffers, N, OC, IC)) return;
    plain_gemm<T>(GEMM_FORWARD, &buffers, N, OC, IC);
    if (bias || pre_gelu) bias_gelu_inplace<T>(out, pre_gelu, bias, N, OC);
}

template <typename T>
void linear_backward_input(floatX *dx, float *dx_sums, const floatX *dout, const floatX *weight,
                           const floatX *pre_gelu, void *scratch, int64_t N, int OC, int IC) {
    if (pre_gelu && own_gelu_gemm<T>(N, IC, OC)) {
        linear_gelu_backward_sm90((bf16 *)dx, dx_sums, (const bf16 *)dout, (const bf16 *)weight,
                                  (const bf16 *)pre_gelu, scratch, N, OC, IC);
        return;
    }
    const GemmBuffers buffers = {dx, weight, dout, NULL, pre_gelu};
    const bool epilogue_gelu = pre_gelu && sizeof(T) == sizeof(bf16);
    if (!epilogue_gelu || !gemm<T>(GEMM_BACKWARD_INPUT, CUBLASLT_EPILOGUE_DGELU, &buffers, N, OC, IC)) {
        plain_gemm<T>(GEMM_BACKWARD_INPUT, &buffers, N, OC, IC);
        if (pre_gelu) gelu_backward_inplace<T>(dx, pre_gelu, N * IC);
    }
    if (dx_sums) column_sums<T>(dx_sums, (const T *)dx, scratch, N, IC);
}

template <typename T>
void linear_backward_weight(float *dweight, float *dbias, const floatX *dout, const floatX *x, void *scratch,
                            int64_t N, int OC, int IC) {
    const GemmBuffers buffers = {dweight, x, dout, NULL, NULL};
    plain_gemm<T>(GEMM_BACKWARD_WEIGHT, &buffers, N, OC, IC);
    if (dbias) column_sums<T>(dbias, (const T *)dout, scratch, N, OC);
}

template void linear_forward<float>(floatX *, floatX *, const floatX *, const floatX *, const floatX *,
                                    int64_t, int, int);
template void linear_forward<bf16>(floatX *, floatX *, const floatX *, const floatX *, const floatX *,
                                   int64_t, int, int);
template void linear_backward_input<float>(floatX *, float *, const floatX *, const floatX *, const floatX *,
                                           void *, int64_t, int, int);
template void linear_backward_input<bf16>(floatX *, float *, const floatX *, const floatX *, const floatX *,
                                          void *, int64_t, int, int);
template void linear_backward_weight<float>(float *, float *, const floatX *, const floatX *, void *, int64_t,
                                            int, int);
template void linear_backward_weight<bf16>(float *, float *, const floatX *, const floatX *, void *, int64_t,
                                           int, int);
