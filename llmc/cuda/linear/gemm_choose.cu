/* Chooses among a product's algorithms by time, on the buffers of its first call.
 *
 * An algorithm counts only if it splits sums as the heuristic's first does and gives the same bits on these buffers,
 * which is evidence for other data, not proof. So the choice, which hangs on temperature and neighbours, does not show
 * in a result. That costs little: of a d12 step's products the heuristic's first take 79.0 ms on an H200, the fastest
 * 74.1, the fastest of equal bits 74.3. */
#include "llmc/cuda/cuda_ops.cuh"
#include "gemm.cuh"

enum {
    MIN_ROWS = 1024, /* fewer come from sampling, in as many shapes as a text has lengths */
    MAX_TIMED = 64,
    ROUNDS = 4, /* the algorithms take turns, so that all see the same clock */
    HASH_THREADS = 256,
    HASH_BLOCKS = 1024,
};
static const double MIN_FLOP = 5e9;       /* 10 us on an H200: less is not worth the time */
static const double SLICE_SECONDS = 1e-3; /* that an algorithm runs in a round after the first */
static const double HOPELESS = 1.10;      /* of the best of the first round: not timed again */
/* An algorithm with a workspace begins by clearing a counter, which costs more in a graph than in these turns (on
 * an H200 35.6 us for 29.5). */
static const double WORKSPACE_SECONDS = 5e-6;

static bool worth_the_time(const GemmPlan *plan) {
    const GemmKey *key = &plan->key;
    return plan->n_algorithms > 1 && gemm_alignment_limit() >= 16 && key->N >= MIN_ROWS &&
           2.0 * (double)key->N * key->OC * key->IC >= MIN_FLOP;
}

/* ---- equal results ---- */

/* out += a number that any changed bit of the n words changes; sums of integers, so in any order. */
__global__ void __launch_bounds__(HASH_THREADS)
    hash_kernel(unsigned long long *out, const uint32_t *words, int64_t n) {
    unsigned long long sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * HASH_THREADS + threadIdx.x; i < n;
         i += (int64_t)HASH_BLOCKS * HASH_THREADS) {
        const unsigned long long x = (words[i] + 0x9E3779B97F4A7C15ull) * (2 * (unsigned long long)i + 1);
        sum += (x ^ x >> 29) * 0xBF58476D1CE4E5B9ull;
    }
    atomicAdd(out, sum);
}

/* How an algorithm cuts its sums into parts. */
typedef struct Split {
    int32_t parts;
    uint32_t scheme;
} Split;

static Split split_of(const cublasLtMatmulAlgo_t *algorithm) {
    Split split = {};
    size_t written;
    LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split.parts,
                                                  sizeof split.parts, &written));
    LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                  &split.scheme, sizeof split.scheme, &written));
    return split;
}

/* equal[i]: algorithm i gives the bits of algorithm 0. d (d_bytes) is overwritten. */
static void compare_results(bool *equal, const GemmPlan *plan, const GemmBuffers *buffers, void *d,
                            size_t d_bytes, unsigned long long *device_hashes) {
    unsigned long long hashes[GEMM_MAX_ALGORITHMS];
    const Split first = split_of(&plan->algorithms[0]);
    cuda_zero(device_hashes, sizeof hashes);
    for (int i = 0; i < plan->n_algorithms; i++) {
        const Split split = split_of(&plan->algorithms[i]);
        equal[i] = split.parts == first.parts && split.scheme == first.scheme;
        if (!equal[i]) continue;
        gemm_run(plan, buffers, d, i);
        hash_kernel<<<HASH_BLOCKS, HASH_THREADS, 0, main_stream>>>(device_hashes + i, (const uint32_t *)d,
                                                                   (int64_t)(d_bytes / sizeof(uint32_t)));
        launch_check("hash");
    }
    cuda_download(hashes, device_hashes, sizeof hashes);
    for (int i = 0; i < plan->n_algorithms; i++) equal[i] = equal[i] && hashes[i] == hashes[0];
}

/* ---- time ---- */

/* Seconds a call. */
static double time_algorithm(const GemmPlan *plan, const GemmBuffers *buffers, void *d, int algorithm,
                             int calls) {
    static cudaEvent_t begin, end;
    float milliseconds;
    if (!begin) {
        CUDA_CHECK(cudaEventCreate(&begin));
        CUDA_CHECK(cudaEventCreate(&end));
    }
    CUDA_CHECK(cudaEventRecord(begin, main_stream));
    for (int i = 0; i < calls; i++) gemm_run(plan, buffers, d, algorithm);
    CUDA_CHECK(cudaEventRecord(end, main_stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    return 1e-3 * milliseconds / calls;
}

/* The fastest of the candidates, the sum of all rounds deciding. */
static int fastest(const GemmPlan *plan, const GemmBuffers *buffers, void *d, bool *candidate) {
    double total[GEMM_MAX_ALGORITHMS] = {}, best = 0;
    int calls = 1, winner = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < plan->n_algorithms; i++) {
            if (!candidate[i]) continue;
            const double seconds = time_algorithm(plan, buffers, d, i, calls) +
                                   (plan->uses_workspace[i] ? WORKSPACE_SECONDS : 0);
            total[i] = round == 1 ? seconds : total[i] + seconds; /* the first round only sorts out */
        }
        winner = 0;
        for (int i = 1; i < plan->n_algorithms; i++)
            if (candidate[i] && total[i] < total[winner]) winner = i;
        if (round > 0) continue;
        best = total[winner];
        for (int i = 1; i < plan->n_algorithms; i++)
            candidate[i] = candidate[i] && total[i] <= HOPELESS * best;
        calls = (int)(SLICE_SECONDS / best) + 1;
    }
    return winner;
}

/* ---- the choice ---- */

void gemm_choose(GemmPlan *plan, const GemmBuffers *buffers) {
    const GemmKey *key = &plan->key;
    const bool adds = key->kind == GEMM_BACKWARD_WEIGHT;
    const size_t element = adds || key->type == CUDA_R_32F ? 4 : 2;
    const size_t d_bytes = element * (size_t)(adds                        ? (int64_t)key->OC * key->IC
                                              : key->kind == GEMM_FORWARD ? key->N * key->OC
                                                                          : key->N * key->IC);
    bool candidate[GEMM_MAX_ALGORITHMS];
    static int n_timed;
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(cudaStreamIsCapturing(main_stream, &capture));
    if (capture != cudaStreamCaptureStatusNone) return; /* nothing can be timed; perhaps at a later call */
    plan->settled = true;
    if (!worth_the_time(plan) || n_timed++ >= MAX_TIMED) return;
    unsigned long long *hashes =
        (unsigned long long *)cuda_alloc(GEMM_MAX_ALGORITHMS * sizeof(unsigned long long));
    void *d = adds ? cuda_alloc(d_bytes) : buffers->d; /* what is added to must not change yet */
    if (hashes && d) {
        compare_results(candidate, plan, buffers, d, d_bytes, hashes);
        plan->chosen = fastest(plan, buffers, d, candidate);
    }
    if (adds) cuda_free(d);
    cuda_free(hashes);
}
