/* What the op tests share: a seed, memory, and a main() that runs a test on every CUDA backend there is. */
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif
#include "bits.h"
#include "check.h"
#include "compare.h"
#include "llmc/base/parallel.h"
#include "llmc/model/ops_testing.h"

enum { SEED = 1234 };
#define FP32_LIMIT 1e-5

static bool op_verbose, op_small; /* op_small: the cases that are short, for compute-sanitizer */
static const char *op_only = "";  /* ops whose names begin so */
static const char *op_parts[8];   /* what the label of a case must hold, all of it */
static int op_n_parts;
/* What op_main runs on the CPU where no card is, if anything. */
static void (*op_without_card)(const Ops *cpu);
__attribute__((unused)) static const char *op_path =
    ""; /* of the labels: " sm80" while the kernels of older cards run */

/* Whether the command line asks for this case, or for this test of another kind that has a name and a label, too. */
static inline bool op_wanted(const char *name, const char *label) {
    if (strncmp(name, op_only, strlen(op_only)) != 0) return false;
    for (int i = 0; i < op_n_parts; i++)
        if (!strstr(label, op_parts[i])) return false;
    return true;
}

static inline void *op_malloc(size_t bytes) {
    void *p = malloc(bytes + 1);
    if (!p) abort();
    return p;
}

/* Standard normal number i of a stream (Box & Muller 1958). */
static inline float op_normal(uint64_t stream, int64_t i) {
    uint64_t bits = op_mix(op_mix(SEED + stream) + (uint64_t)i * 0x9E3779B97F4A7C15u);
    float u1 = ((float)(bits >> 40) + 0.5f) * 0x1p-24f, u2 = (float)(bits & 0xFFFFFF) * 0x1p-24f;
    return sqrtf(-2 * logf(u1)) * cosf(6.2831853f * u2);
}

/* n standard normal numbers of a stream, rounded to bf16. */
static inline float *op_normal_bf16(int64_t n, uint64_t stream) {
    float *values = op_malloc((size_t)n * sizeof *values);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) values[i] = round_bf16(op_normal(stream, i));
    return values;
}

/* TEST [-v] [small] [bits] [OP] [-k TEXT]...: calls test() with every CUDA backend there is; counts a skip for each that is not.
 * bits: a line 'bits LABEL: HASH' for every output. -k: the cases whose labels hold TEXT, such as 'bf16', 'HD64', 'T129 ' or 'sm80'. */
static inline int op_main(const char *name, int argc, char **argv, void (*test)(const Ops *ops)) {
    const Ops *const backends[] = {ops_cuda_fp32, ops_cuda_bf16};
    const char *const names[] = {"cuda fp32", "cuda bf16"};
    Error err = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            op_verbose = true;
        else if (strcmp(argv[i], "small") == 0)
            op_small = true;
        else if (strcmp(argv[i], "bits") == 0)
            op_bits = true;
        else if (strcmp(argv[i], "-k") == 0 && i + 1 < argc && op_n_parts < 8)
            op_parts[op_n_parts++] = argv[++i];
        else
            op_only = argv[i];
    }
    int checks = 0;
    bool ran = false;
    printf("%s: seed %d\n", name, SEED);
#ifdef _OPENMP
    omp_set_num_threads(cpu_thread_count()); /* OpenMP knows nothing of a container's quota */
#endif
    if (op_small) cuda_limit_alignment(2);
    if (!ops_cpu.device->open(0, &err)) die(&err);
    for (int i = 0; i < 2; i++) {
        if (!backends[i])
            SKIP("%s on %s: built without CUDA", name, names[i]);
        else if (!cuda_available())
            SKIP("%s on %s: no CUDA device", name, names[i]);
        else if (CHECK(backends[i]->device->open(0, &err), "%s: %s", names[i], err.text)) {
            const int before = check_passed + check_failed;
            test(backends[i]);
            checks += check_passed + check_failed - before;
            ran = true;
        }
    }
    if (!ran && op_without_card) {
        const int before = check_passed + check_failed;
        op_without_card(&ops_cpu);
        checks += check_passed + check_failed - before;
    }
    if (ran || op_without_card)
        CHECK(checks > 0, "no op's name begins with '%s', or no case of it holds what -k says", op_only);
    return check_finish(name);
}
