/* The GEMMs of linear layers, through cuBLASLt.
 *
 * A plan (descriptors and algorithms) is made at the first call of its kind and shape and kept, so that a
 * call costs the host one look-up and one launch. gemm_choose.cu picks among the algorithms. */
#include "gemm.cuh"
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/model/ops_testing.h"

void lt_check(cublasStatus_t status, const char *expr, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    cuda_fail("%s:%d: %s: %s", file, line, expr, cublasLtGetStatusString(status));
}

enum {
    WORKSPACE_BYTES = 32 << 20, /* what NVIDIA asks for on Hopper */
    MAX_PLANS = 512,
    FIXED_ORDERS = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
    /* Bits of cublasLtEpilogue_t; the second has no name of its own in the library. */
    EPILOGUE_BIAS_BIT = CUBLASLT_EPILOGUE_BIAS,
    EPILOGUE_AUX_BIT = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU,
};
static cublasLtHandle_t handle;
static void *workspace;

size_t linear_fixed_bytes(void) {
    return WORKSPACE_BYTES;
}

cublasLtHandle_t gemm_handle(void) {
    return handle;
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

/* Adds an algorithm to the plan, unless it is there or does not add split parts in a fixed order (in the
 * workspace, in fp32). */
static void add_algorithm(GemmPlan *plan, const cublasLtMatmulAlgo_t *algorithm, size_t workspace_bytes) {
    uint32_t scheme = 0;
    size_t written;
    LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                  sizeof scheme, &written));
    if (scheme & ~(uint32_t)FIXED_ORDERS || plan->n_algorithms == GEMM_MAX_ALGORITHMS) return;
    for (int i = 0; i < plan->n_algorithms; i++)
        if (memcmp(&plan->algorithms[i], algorithm, sizeof *algorithm) == 0) return;
    plan->algorithms[plan->n_algorithms] = *algorithm;
    plan->uses_workspace[plan->n_algorithms++] = workspace_bytes > 0;
}

cublasStatus_t gemm_heuristic(const GemmQuestion *q, cublasLtMatmulHeuristicResult_t found[GEMM_FOUND_MAX],
                              int *n) {
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } preferences[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,   &q->workspace_bytes, sizeof q->workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &q->reductions,      sizeof q->reductions     },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &q->alignment,       sizeof q->alignment      },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &q->alignment,       sizeof q->alignment      },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &q->alignment,       sizeof q->alignment      },
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &q->alignment,       sizeof q->alignment      },
    };
    cublasLtMatmulPreference_t preference;
    LT_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    for (const auto &p : preferences)
        LT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, p.name, p.value, p.bytes));
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(gemm_handle(), q->desc, q->a, q->b, q->d,
                                                                 q->d, preference, GEMM_FOUND_MAX, found, n);
    LT_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    return status;
}

/* Adds to the plan what the heuristic names for the product of `like`, the plan itself or a neighbour, its
 * favourite first, as far as it runs the plan's product in at most so much workspace. */
static void ask_for_algorithms(GemmPlan *plan, const GemmPlan *like, uint64_t workspace_bytes) {
    const GemmQuestion question = {
        like->desc, like->a, like->b, like->d, (uint32_t)plan->key.alignment, FIXED_ORDERS, workspace_bytes};
    cublasLtMatmulHeuristicResult_t found[GEMM_FOUND_MAX];
    int n = 0;
    const cublasStatus_t status = gemm_heuristic(&question, found, &n);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < n; i++) {
        cublasLtMatmulHeuristicResult_t check = found[i];
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        if (like != plan && cublasLtMatmulAlgoCheck(handle, plan->desc, plan->a, plan->b, plan->d, plan->d,
                                                    &found[i].algo, &check) != CUBLAS_STATUS_SUCCESS)
            continue;
        if (check.workspaceSize <= workspace_bytes) add_algorithm(plan, &found[i].algo, check.workspaceSize);
    }
}

/* Kernels written for Hopper or later run in clusters; those of the generation before leave the shape open. */
static bool without_clusters(const cublasLtMatmulAlgo_t *algorithm) {
    uint16_t shape = CUBLASLT_CLUSTER_SHAPE_AUTO;
    size_t written;
    LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &shape,
                                                  sizeof shape, &written));
    return shape == CUBLASLT_CLUSTER_SHAPE_AUTO;
}

static void release_plan(GemmPlan *plan) {
    LT_CHECK(cublasLtMatmulDescDestroy(plan->desc));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->a));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->b));
    LT_CHECK(cublasLtMatrixLayoutDestroy(plan->d));
}

/* The heuristic names one kernel a tile, and another with a bias than without. The latter adds a bias as well, and is
 * faster: 345 us for 406 at d12's qkv. */
static void ask_without_bias(GemmPlan *plan) {
    GemmPlan bare = {};
    bare.key = plan->key;
    bare.key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    make_descriptors(&bare);
    ask_for_algorithms(plan, &bare, WORKSPACE_BYTES);
    release_plan(&bare);
}

static void make_plan(GemmPlan *plan, const GemmKey *key) {
    *plan = GemmPlan{};
    plan->key = *key;
    make_descriptors(plan);
    void *stand_in = (void *)(uintptr_t)key->alignment;
    if (key->epilogue & EPILOGUE_BIAS_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, stand_in);
    if (key->epilogue & EPILOGUE_AUX_BIT)
        set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, stand_in);
    /* The heuristic depends on device, library and shape alone, so its first repeats bit for bit, in another
     * process too. Pointers of the epilogue stood for their alignment. */
    ask_for_algorithms(plan, plan, WORKSPACE_BYTES);
    ask_for_algorithms(plan, plan, 0);
    if (plan->n_algorithms > 0 && key->epilogue == CUBLASLT_EPILOGUE_BIAS) ask_without_bias(plan);
    /* For some shapes the library has GELU's derivative only beside a product of the generation before: 911 us with the
     * sums at 32768 x 1024 -> 4096, where product and pass take 566. */
    if (key->epilogue == CUBLASLT_EPILOGUE_DGELU && cuda_compute_capability() >= 90 &&
        plan->n_algorithms > 0 && without_clusters(&plan->algorithms[0]))
        plan->n_algorithms = 0;
}

/* A run needs some 20 plans; sampling, with a shape per length, may fill the table, which then starts afresh. */
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

int gemm_alignment_limit(void) {
    return alignment_limit;
}

/* At least an element's bytes: below them the library has no algorithm. */
static int32_t common_alignment(const GemmBuffers *buffers, int element_bytes) {
    const void *pointers[] = {buffers->d, buffers->a, buffers->b, buffers->bias, buffers->aux};
    uintptr_t bits = (uintptr_t)(alignment_limit > element_bytes ? alignment_limit : element_bytes);
    for (const void *p : pointers) bits |= (uintptr_t)p;
    return (int32_t)(bits & -bits);
}

void gemm_run(const GemmPlan *plan, const GemmBuffers *buffers, void *d, int algorithm) {
    const bool adds = plan->key.kind == GEMM_BACKWARD_WEIGHT && !buffers->overwrites;
    const float alpha = 1, beta = adds ? 1 : 0;
    LT_CHECK(cublasLtMatmul(handle, plan->desc, &alpha, buffers->a, plan->a, buffers->b, plan->b, &beta,
                            adds ? buffers->d : d, plan->d, d, plan->d, &plan->algorithms[algorithm],
                            workspace, WORKSPACE_BYTES, main_stream));
}

template <typename T>
bool gemm(GemmKind kind, cublasLtEpilogue_t epilogue, const GemmBuffers *buffers, int64_t N, int OC, int IC) {
    const cudaDataType_t type = sizeof(T) == 2 ? CUDA_R_16BF : CUDA_R_32F;
    const GemmKey key = {
        N, OC, IC, kind, (int32_t)epilogue, (int32_t)type, common_alignment(buffers, sizeof(T))};
    GemmPlan *plan = find_plan(&key);
    if (plan->n_algorithms == 0) return false;
    if (epilogue & EPILOGUE_BIAS_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, buffers->bias);
    if (epilogue & EPILOGUE_AUX_BIT) set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, buffers->aux);
    if (!plan->settled) gemm_choose(plan, buffers);
    gemm_run(plan, buffers, buffers->d, plan->chosen);
    return true;
}

template bool gemm<float>(GemmKind, cublasLtEpilogue_t, const GemmBuffers *, int64_t, int, int);
template bool gemm<bf16>(GemmKind, cublasLtEpilogue_t, const GemmBuffers *, int64_t, int, int);
