/* Checks CUDA attention against the CPU oracle, then times it. Exit code 1 if a check fails.
 *
 * Build and run from the repository root:
 *   make train_gpt2cu
 *   nvcc -std=c++17 -O3 -arch=native -Xcompiler -fopenmp dev/attention/bench_attention.cu \
 *       $(find build/llmc -name '*.o' ! -name no_cuda.o) -lcublasLt -lpthread -o build/bench_attention
 *   build/bench_attention [--check]
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "../../llmc/cuda/cuda_common.cuh"
#include "../../llmc/ops.h"

typedef std::vector<float> Floats;

/* ---- host data ---- */

static uint64_t random_state = 1;

/* Standard normal (Box-Muller on splitmix64), rounded to dtype so that both sides see the same numbers. */
static float random_normal(DType dtype) {
    uint64_t bits[2];
    for (int i = 0; i < 2; i++) {
        uint64_t z = random_state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        bits[i] = z ^ (z >> 31);
    }
    const double u = ((bits[0] >> 11) + 1) * 0x1p-53, v = (bits[1] >> 11) * 0x1p-53;
    const float x = (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
    return dtype == DTYPE_F32 ? x : __bfloat162float(__float2bfloat16_rn(x));
}

static Floats random_floats(size_t n, DType dtype) {
    Floats x(n);
    for (float &value : x) value = random_normal(dtype);
    return x;
}

/* ---- device buffers ---- */

static void *must_alloc(const Ops *ops, size_t bytes) {
    void *p = ops->alloc(bytes);
    if (p) return p;
    fprintf(stderr, "error: %zu bytes of device memory are not to be had\n", bytes);
    exit(EXIT_RUN);
}

static void *to_device(const Ops *ops, const Floats &x) {
    std::vector<bf16> rounded(x.begin(), x.end());
    const bool wide = ops->dtype == DTYPE_F32;
    const size_t bytes = x.size() * dtype_bytes(ops->dtype);
    void *p = must_alloc(ops, bytes);
    ops->upload(p, wide ? (const void *)x.data() : (const void *)rounded.data(), bytes);
    return p;
}

/* n elements of NaN: whatever an op leaves unwritten shows. */
static void *poisoned(const Ops *ops, size_t n, DType dtype) {
    const size_t bytes = n * dtype_bytes(dtype);
    const std::vector<uint8_t> ones(bytes, 0xff);
    void *p = must_alloc(ops, bytes);
    ops->upload(p, ones.data(), bytes);
    return p;
}

static Floats to_host(const Ops *ops, const void *p, size_t n, DType dtype) {
    Floats x(n);
    if (dtype == DTYPE_F32) {
        ops->download(x.data(), p, n * sizeof(float));
        return x;
    }
    std::vector<bf16> narrow(n);
    ops->download(narrow.data(), p, n * sizeof(bf16));
    for (size_t i = 0; i < n; i++) x[i] = __bfloat162float(narrow[i]);
    return x;
}

/* ---- checks ---- */

typedef struct Size {
    int B, T, NH, HD;
} Size;

static int n_failed, n_passed;

/* Relative error in norm, and the largest error over the root mean square, against the oracle. A NaN fails.
 */
static void compare(const char *what, const Ops *ops, Size size, const Floats &got, const Floats &want,
                    double norm_bound) {
    double error = 0, norm = 0, worst = 0;
    bool finite = true;
    for (size_t i = 0; i < want.size(); i++) {
        const double difference = (double)got[i] - want[i];
        finite = finite && std::isfinite(got[i]);
        error += difference * difference;
        norm += (double)want[i] * want[i];
        worst = std::max(worst, fabs(difference));
    }
    const double relative = sqrt(error / std::max(norm, 1e-30));
    worst /= sqrt(norm / want.size()) + 1e-30;
    /* dQ and dK are all 0 at T = 1: any rounding is infinite relative error */
    const bool noise = sqrt(error / want.size()) < 1e-6;
    const bool ok = finite && (noise || (relative <= norm_bound && worst <= 100 * norm_bound));
    n_passed += ok;
    n_failed += !ok;
    if (!ok)
        printf(
            "FAIL %s %s B=%d T=%d NH=%d HD=%d: relative error %.2e (bound %.0e), worst %.2e of the rms%s\n",
            ops->name, what, size.B, size.T, size.NH, size.HD, relative, norm_bound, worst,
            finite ? "" : ", not finite");
}

static void expect_same(const char *what, const Ops *ops, Size size, const Floats &a, const Floats &b) {
    const bool same = memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    n_passed += same;
    n_failed += !same;
    if (!same)
        printf("FAIL %s %s B=%d T=%d NH=%d HD=%d: two runs differ\n", ops->name, what, size.B, size.T,
               size.NH, size.HD);
}

/* Part 0 (Q), 1 (K) or 2 (V) of packed values. */
static Floats part_of(const Floats &packed, int part, int C) {
    Floats x;
    for (size_t row = 0; row < packed.size(); row += 3 * C)
        x.insert(x.end(), packed.begin() + row + part * C, packed.begin() + row + (part + 1) * C);
    return x;
}

typedef struct Oracle {
    Floats qkv, dout, out, lse, dqkv;
} Oracle;

static Oracle make_oracle(Size s, DType dtype) {
    const int C = s.NH * s.HD;
    const size_t n = (size_t)s.B * s.T * C;
    const OpShape shape = {s.B, s.T, C, s.NH, 256, 256, (int64_t)s.B * s.T, 1};
    Oracle o = {random_floats(3 * n, dtype), random_floats(n, dtype), Floats(n),
                Floats((size_t)s.B * s.NH * s.T), Floats(3 * n)};
    std::vector<char> scratch(ops_cpu.scratch_bytes(&shape));
    ops_cpu.attention_forward(o.out.data(), o.lse.data(), o.qkv.data(), s.B, s.T, s.NH, s.HD);
    ops_cpu.attention_backward(o.dqkv.data(), o.dout.data(), o.out.data(), o.qkv.data(), o.lse.data(),
                               scratch.data(), s.B, s.T, s.NH, s.HD);
    return o;
}

static void compare_parts(const char *const names[3], const Ops *ops, Size s, const Floats &got,
                          const Floats &want, double bound) {
    const int C = s.NH * s.HD;
    for (int part = 0; part < 3; part++)
        compare(names[part], ops, s, part_of(got, part, C), part_of(want, part, C), bound);
}

static void check_size(const Ops *ops, Size s) {
    const bool wide = ops->dtype == DTYPE_F32;
    /* fp32: the project's bound. bf16: P, dS and every output are rounded to 2^-9. */
    const double forward_bound = wide ? 1e-5 : 6e-3, backward_bound = wide ? 1e-5 : 1.2e-2;
    const Oracle o = make_oracle(s, ops->dtype);
    const size_t n = o.dout.size(), n_lse = o.lse.size(), n_square = n_lse * s.T;
    void *qkv = to_device(ops, o.qkv), *dout = to_device(ops, o.dout);
    void *out = poisoned(ops, n, ops->dtype), *dqkv = poisoned(ops, 3 * n, ops->dtype);
    float *lse = (float *)poisoned(ops, n_lse, DTYPE_F32);
    void *probs = poisoned(ops, n_square, ops->dtype), *dprobs = poisoned(ops, n_square, ops->dtype);
    const OpShape shape = {s.B, s.T, s.NH * s.HD, s.NH, 256, 256, (int64_t)s.B * s.T, 1};
    void *scratch = poisoned(ops, ops->scratch_bytes(&shape) / sizeof(float), DTYPE_F32);

    ops->attention_forward(out, lse, qkv, s.B, s.T, s.NH, s.HD);
    const Floats got_out = to_host(ops, out, n, ops->dtype), got_lse = to_host(ops, lse, n_lse, DTYPE_F32);
    compare("attention_forward out", ops, s, got_out, o.out, forward_bound);
    compare("attention_forward lse", ops, s, got_lse, o.lse, 1e-5);
    ops->attention_backward(dqkv, dout, out, qkv, lse, scratch, s.B, s.T, s.NH, s.HD);
    const Floats got_dqkv = to_host(ops, dqkv, 3 * n, ops->dtype);
    const char *const flash[3] = {"attention_backward dq", "attention_backward dk", "attention_backward dv"};
    compare_parts(flash, ops, s, got_dqkv, o.dqkv, backward_bound);

    ops->attention_forward(out, lse, qkv, s.B, s.T, s.NH, s.HD);
    ops->attention_backward(dqkv, dout, out, qkv, lse, scratch, s.B, s.T, s.NH, s.HD);
    expect_same("attention_forward out", ops, s, got_out, to_host(ops, out, n, ops->dtype));
    expect_same("attention_forward lse", ops, s, got_lse, to_host(ops, lse, n_lse, DTYPE_F32));
    expect_same("attention_backward dqkv", ops, s, got_dqkv, to_host(ops, dqkv, 3 * n, ops->dtype));

    ops->attention_standard_forward(out, probs, qkv, s.B, s.T, s.NH, s.HD);
    compare("attention_standard_forward out", ops, s, to_host(ops, out, n, ops->dtype), o.out,
            2 * forward_bound);
    ops->attention_standard_backward(dqkv, dprobs, dout, probs, qkv, s.B, s.T, s.NH, s.HD);
    const char *const standard[3] = {"attention_standard_backward dq", "attention_standard_backward dk",
                                     "attention_standard_backward dv"};
    compare_parts(standard, ops, s, to_host(ops, dqkv, 3 * n, ops->dtype), o.dqkv, 2 * backward_bound);

    const int C = s.NH * s.HD; /* the last row of the first sequence */
    ops->attention_decode(out, qkv, s.T - 1, s.NH, s.HD);
    const Floats last(o.out.begin() + (size_t)(s.T - 1) * C, o.out.begin() + (size_t)s.T * C);
    compare("attention_decode out", ops, s, to_host(ops, out, C, ops->dtype), last, forward_bound);
    for (void *p : {qkv, dout, out, dqkv, (void *)lse, probs, dprobs, scratch}) ops->release(p);
}

/* A NaN in one query row reaches exactly that row's output. */
static void check_nan(const Ops *ops, Size s) {
    const int C = s.NH * s.HD, row = s.T / 2;
    Floats qkv = random_floats((size_t)s.B * s.T * 3 * C, ops->dtype);
    qkv[(size_t)row * 3 * C] = NAN;
    void *in = to_device(ops, qkv), *out = poisoned(ops, (size_t)s.B * s.T * C, ops->dtype);
    float *lse = (float *)poisoned(ops, (size_t)s.B * s.NH * s.T, DTYPE_F32);
    ops->attention_forward(out, lse, in, s.B, s.T, s.NH, s.HD);
    const Floats got = to_host(ops, out, (size_t)s.B * s.T * C, ops->dtype);
    bool ok = true;
    for (size_t i = 0; i < got.size(); i++) {
        const bool affected = i / C == (size_t)row && i % C < (size_t)s.HD;
        ok = ok && std::isnan(got[i]) == affected;
    }
    n_passed += ok;
    n_failed += !ok;
    if (!ok) printf("FAIL %s a NaN in one query does not reach exactly its output, HD=%d\n", ops->name, s.HD);
    for (void *p : {in, out, (void *)lse}) ops->release(p);
}

static void check(const Ops *ops) {
    static const Size sizes[] = {
        {2, 1,    3, 64 },
        {1, 7,    2, 64 },
        {2, 65,   2, 64 },
        {1, 127,  3, 64 },
        {1, 128,  1, 64 },
        {2, 300,  2, 64 },
        {1, 1023, 2, 64 },
        {2, 1,    3, 128},
        {1, 7,    2, 128},
        {2, 65,   2, 128},
        {1, 129,  3, 128},
        {1, 1023, 1, 128},
        {2, 33,   3, 8  },
        {1, 100,  2, 24 },
        {1, 131,  2, 40 },
        {1, 100,  2, 80 },
        {1, 131,  2, 96 },
        {1, 77,   2, 160},
        {1, 131,  1, 192},
        {2, 67,   2, 256},
    };
    for (const Size &size : sizes) check_size(ops, size);
    check_nan(ops, {1, 200, 2, 64});
    check_nan(ops, {1, 200, 2, 128});
    check_nan(ops, {1, 200, 2, 40});
}

/* ---- timing ---- */

/* Standard normal values from a hash of the index. */
template <typename X> __global__ void fill_normal(X *x, int64_t n, uint32_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + seed) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        const float u = ((uint32_t)z + 1.0f) * 0x1p-32f, v = (uint32_t)(z >> 32) * 0x1p-32f;
        x[i] = from_float<X>(sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * v));
    }
}

/* Median milliseconds of run() under sustained load: 0.3 s of warm-up, then at least 0.5 s. */
template <typename F> static double median_ms(const F &run) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (double elapsed_ms = 0; elapsed_ms < 800 || times.size() < 3;) {
        CUDA_CHECK(cudaEventRecord(begin, main_stream));
        run();
        CUDA_CHECK(cudaEventRecord(end, main_stream));
        CUDA_CHECK(cudaEventSynchronize(end));
        float ms;
        CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
        elapsed_ms += ms;
        if (elapsed_ms > 300) times.push_back(ms);
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* One row a (head size, T): B*T = 65536 tokens, NH*HD = 1536 channels. */
template <typename X>
static void bench(const Ops *ops, const std::vector<int> &head_sizes, const std::vector<int> &lengths) {
    const int64_t tokens = 65536, C = 1536;
    X *qkv = (X *)must_alloc(ops, tokens * 3 * C * sizeof(X)),
      *dqkv = (X *)must_alloc(ops, tokens * 3 * C * sizeof(X));
    X *out = (X *)must_alloc(ops, tokens * C * sizeof(X)),
      *dout = (X *)must_alloc(ops, tokens * C * sizeof(X));
    fill_normal<<<1024, 256, 0, main_stream>>>(qkv, tokens * 3 * C, 1);
    fill_normal<<<1024, 256, 0, main_stream>>>(dout, tokens * C, 1u << 30);
    CUDA_CHECK(cudaGetLastError());
    for (int HD : head_sizes)
        for (int T : lengths) {
            const int B = (int)(tokens / T), NH = (int)(C / HD);
            const OpShape shape = {B, T, (int)C, NH, 256, 256, tokens, 1};
            float *lse = (float *)must_alloc(ops, tokens * NH * sizeof(float));
            void *scratch = must_alloc(ops, ops->scratch_bytes(&shape));
            const double forward_ms = median_ms([&] { ops->attention_forward(out, lse, qkv, B, T, NH, HD); });
            const double backward_ms =
                median_ms([&] { ops->attention_backward(dqkv, dout, out, qkv, lse, scratch, B, T, NH, HD); });
            const double tflop = 4.0 * tokens * C * T / 2 * 1e-12; /* causal: half of the scores */
            printf("%-9s HD %3d T %5d  forward %8.3f ms %6.1f TFLOP/s   backward %8.3f ms %6.1f TFLOP/s\n",
                   ops->name, HD, T, forward_ms, tflop / forward_ms * 1e3, backward_ms,
                   2.5 * tflop / backward_ms * 1e3);
            fflush(stdout);
            ops->release(lse);
            ops->release(scratch);
        }
    for (X *p : {qkv, dqkv, out, dout}) ops->release(p);
}

int main(int argc, char **argv) {
    Error err = {};
    for (const Ops *ops : {&ops_cpu, ops_cuda_bf16, ops_cuda_fp32})
        if (!ops->open(&err)) die(&err);
    printf("%s\n", ops_cuda_bf16->device_name());
    check(ops_cuda_bf16);
    check(ops_cuda_fp32);
    printf("attention: %d passed, %d failed\n", n_passed, n_failed);
    fflush(stdout);
    const bool only_check = argc > 1 && strcmp(argv[1], "--check") == 0;
    if (only_check || n_failed) return n_failed != 0;
    bench<bf16>(ops_cuda_bf16, {64, 128}, {1024, 2048, 4096, 8192, 16384});
    bench<float>(ops_cuda_fp32, {64}, {1024});
    return 0;
}
