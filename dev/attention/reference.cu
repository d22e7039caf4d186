/* The reference of attention on the GPU: one thread a row, everything in double. */
#include "llmc/cuda/device/cuda_common.cuh"
#include "reference_rows.h"

__global__ void reference_kernel(AttentionReference r, Stage stage) {
    const int64_t row = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (row < stage_rows(&r.s, stage)) stage_row(&r, stage, row);
}

static void launch(const AttentionReference *r, Stage stage) {
    const int threads = 32; /* small blocks: a few thousand rows spread over all SMs */
    const unsigned blocks = (unsigned)ceil_div<int64_t>(stage_rows(&r->s, stage), threads);
    reference_kernel<<<blocks, threads, 0, main_stream>>>(*r, stage);
    launch_check("reference_kernel");
}

/* n values on the device, copied from host unless that is NULL. */
template <typename T> static T *to_device(const T *host, int64_t n) {
    T *device;
    CUDA_CHECK(cudaMalloc(&device, n * sizeof(T)));
    if (host) CUDA_CHECK(cudaMemcpy(device, host, n * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}
/* Frees the device's values, copied to host unless that is NULL. */
template <typename T> static void to_host(T *host, const T *device, int64_t n) {
    if (host) CUDA_CHECK(cudaMemcpy(host, device, n * sizeof(T), cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree((void *)device));
}

extern "C" void attention_reference_gpu(const AttentionReference *host) {
    const Sizes *s = &host->s;
    const int64_t qkv = attention_qkv_elems(s), out = attention_out_elems(s);
    const int64_t rows = stage_rows(s, STAGE_FORWARD);
    AttentionReference r = *host;
    const bool backward = host->dqkv != NULL;
    r.qkv = to_device(host->qkv, qkv);
    r.out = to_device(backward ? host->out : NULL, out);
    r.lse = to_device(backward ? host->lse : NULL, rows);
    if (backward) {
        r.dout = to_device(host->dout, out);
        r.d = to_device<double>(NULL, rows);
        r.dqkv = to_device<double>(NULL, qkv);
    }
    CUDA_CHECK(cudaDeviceSynchronize()); /* the copies are not on main_stream */
    if (!backward) launch(&r, STAGE_FORWARD);
    for (Stage stage : {STAGE_D, STAGE_QUERIES, STAGE_KEYS})
        if (backward) launch(&r, stage);
    CUDA_CHECK(cudaStreamSynchronize(main_stream));
    to_host(backward ? NULL : host->out, r.out, out);
    to_host(backward ? NULL : host->lse, r.lse, rows);
    to_host((float *)NULL, r.qkv, qkv);
    if (!backward) return;
    to_host(host->dqkv, r.dqkv, qkv);
    to_host((float *)NULL, r.dout, out);
    to_host((double *)NULL, r.d, rows);
}
