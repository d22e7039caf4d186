/* Times attention, forward and backward, at the shapes of the peers' table: B*T = 65536 tokens, NH*HD = 1536
 * channels, random normal data, median under sustained load. `make test` holds the same kernels to the CPU
 * oracle.
 *
 *   make dev && build/bench_attention [bf16|fp32|sm80]      sm80: bf16, the kernels of older cards */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "../../llmc/cuda/cuda_common.cuh"
#include "../../llmc/ops.h"

/* ---- device buffers ---- */

static void *must_alloc(const Ops *ops, size_t bytes) {
    void *p = ops->alloc(bytes);
    if (p) return p;
    fprintf(stderr, "error: %zu bytes of device memory are not to be had\n", bytes);
    exit(EXIT_RUN);
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
    const char *kind = argc > 1 ? argv[1] : "bf16";
    const bool fp32 = strcmp(kind, "fp32") == 0, sm80 = strcmp(kind, "sm80") == 0;
    if (argc > 2 || (!fp32 && !sm80 && strcmp(kind, "bf16"))) {
        fprintf(stderr, "usage: bench_attention [bf16|fp32|sm80]\n");
        return EXIT_INPUT;
    }
    if (!cuda_available()) {
        fprintf(stderr, "error: no CUDA device\n");
        return EXIT_RUN;
    }
    const Ops *ops = fp32 ? ops_cuda_fp32 : ops_cuda_bf16;
    if (!ops->open(&err)) die(&err);
    if (sm80) cuda_limit_capability(80);
    printf("%s\n", ops->device_name());
    if (fp32)
        bench<float>(ops, {64}, {1024, 4096});
    else
        bench<bf16>(ops, {64, 128}, {1024, 2048, 4096, 8192, 16384});
    return 0;
}
