/* What the op tests share: a seed, memory, and a main() that runs a test on every CUDA backend there is. */
#pragma once
#include "check.h"
#include "compare.h"

enum { SEED = 1234 };
#define FP32_LIMIT 1e-5

static bool op_verbose, op_small; /* op_small: the cases that are short, for compute-sanitizer */
static const char *op_only = "";  /* ops whose names begin so */

static inline void *op_malloc(size_t bytes) {
    void *p = malloc(bytes + 1);
    if (!p) abort();
    return p;
}

static inline uint64_t op_mix(uint64_t x) { /* SplitMix64's finaliser (Steele, Lea & Flood 2014) */
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
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

/* TEST [-v] [small] [OP]: calls test() with every CUDA backend there is; counts a skip for each that is not. */
static inline int op_main(const char *name, int argc, char **argv, void (*test)(const Ops *ops)) {
    const Ops *const backends[] = {ops_cuda_fp32, ops_cuda_bf16};
    const char *const names[] = {"cuda fp32", "cuda bf16"};
    Error err = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            op_verbose = true;
        else if (strcmp(argv[i], "small") == 0)
            op_small = true;
        else
            op_only = argv[i];
    }
    int checks = 0;
    bool ran = false;
    printf("%s: seed %d\n", name, SEED);
    if (op_small) cuda_limit_alignment(2);
    if (!ops_cpu.open(&err)) die(&err);
    for (int i = 0; i < 2; i++) {
        if (!backends[i])
            SKIP("%s on %s: built without CUDA", name, names[i]);
        else if (!cuda_available())
            SKIP("%s on %s: no CUDA device", name, names[i]);
        else if (CHECK(backends[i]->open(&err), "%s: %s", names[i], err.text)) {
            const int before = check_passed + check_failed;
            test(backends[i]);
            checks += check_passed + check_failed - before;
            ran = true;
        }
    }
    if (ran) CHECK(checks > 0, "no op's name begins with '%s'", op_only);
    return check_finish(name);
}
