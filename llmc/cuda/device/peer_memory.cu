/* Memory of other processes' devices (device.h): named by CUDA IPC, written by the copy engines over NVLink or PCIe.
 *
 * A kernel that reduces beside GEMMs holds SMs while it waits for the other rank; a copy holds none. What is left to the
 * SMs is the sum, behind backward, at memory's rate. */
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

enum { THREADS = 256, QUAD = Vec<float>::N };

static bool name(MemoryHandle *handle, const void *p) {
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof handle->bytes, "a handle of CUDA fits");
    const bool ok = cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, const_cast<void *>(p)) == cudaSuccess;
    cudaGetLastError(); /* a refusal is an answer */
    return ok;
}

static void *open_named(const MemoryHandle *handle) {
    void *p = NULL;
    cudaIpcMemHandle_t named;
    memcpy(&named, handle, sizeof named);
    const bool ok = cudaIpcOpenMemHandle(&p, named, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    cudaGetLastError();
    return ok ? p : NULL;
}

static void close_named(void *p) {
    if (p) CUDA_CHECK(cudaIpcCloseMemHandle(p));
}

static void send(StreamId stream, void *theirs, const void *mine, size_t bytes, size_t rows, size_t stride) {
    if (rows > 1 && stride <= INT32_MAX) { /* the largest pitch that CUDA promises */
        CUDA_CHECK(cudaMemcpy2DAsync(theirs, stride, mine, stride, bytes, rows, cudaMemcpyDeviceToDevice,
                                     stream_of(stream)));
        return;
    }
    for (size_t row = 0; row < rows; row++)
        CUDA_CHECK(cudaMemcpyAsync((char *)theirs + row * stride, (const char *)mine + row * stride, bytes,
                                   cudaMemcpyDeviceToDevice, stream_of(stream)));
}

/* ---- flags ---- */

/* One block of as many threads as flags: the ranks of a host. */
__global__ void raise_kernel(uint32_t *const *flags, const uint32_t *round) {
    const int i = (int)threadIdx.x;
    if (flags[i]) store_release_system(flags[i], *round + 1);
}

static void raise(StreamId stream, uint32_t *const *flags, int n, const uint32_t *round) {
    raise_kernel<<<1, n, 0, stream_of(stream)>>>(flags, round);
    launch_check("peer_memory: raise");
}

/* One block: a thread waits for a flag. */
__global__ void wait_kernel(const uint32_t *flags, int stride, int n, int own, const uint32_t *round) {
    const uint32_t expected = *round + 1;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        while (i != own && (int32_t)(load_acquire_system(flags + (int64_t)i * stride) - expected) < 0)
            __nanosleep(100);
}

static void wait(StreamId stream, const uint32_t *flags, int stride, int n, int own, const uint32_t *round) {
    wait_kernel<<<1, WARP_SIZE, 0, stream_of(stream)>>>(flags, stride, n, own, round);
    launch_check("peer_memory: wait");
}

__global__ void next_round_kernel(uint32_t *round) {
    *round += 1;
}

static void next_round(StreamId stream, uint32_t *round) {
    next_round_kernel<<<1, 1, 0, stream_of(stream)>>>(round);
    launch_check("peer_memory: next_round");
}

/* ---- sums ---- */

__device__ const float *term(const PeerTerms &terms, int i, int64_t row) {
    if (i == terms.own) return terms.x + row * terms.x_stride;
    return terms.received + (i < terms.own ? i : i - 1) * terms.apart + row * terms.received_stride;
}

/* A thread has read the four neighbours that it writes. Memory traffic alone, 4 (n + 1) bytes an element. */
__global__ void __launch_bounds__(THREADS) add_kernel(const __grid_constant__ PeerTerms terms) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD, row = blockIdx.y;
    if (i >= terms.count) return;
    Vec<float> sum = load_vec_once(term(terms, 0, row) + i);
    for (int t = 1; t < terms.n; t++) {
        const Vec<float> more = load_vec_once(term(terms, t, row) + i);
#pragma unroll
        for (int k = 0; k < QUAD; k++) sum.v[k] += more.v[k];
    }
    store_vec(terms.x + row * terms.x_stride + i, sum);
}

static void add(StreamId stream, const PeerTerms *terms) {
    const dim3 blocks((unsigned)ceil_div<int64_t>(terms->count, THREADS * QUAD), (unsigned)terms->rows);
    add_kernel<<<blocks, THREADS, 0, stream_of(stream)>>>(*terms);
    launch_check("peer_memory: add");
}

extern const PeerMemory cuda_peer_memory = {name,  open_named, close_named, send,
                                            raise, wait,       add,         next_round};
