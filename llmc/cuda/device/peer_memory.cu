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

static void send(StreamId stream, void *theirs, const void *mine, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(theirs, mine, bytes, cudaMemcpyDeviceToDevice, stream_of(stream)));
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

/* The first n threads of a block wait for a flag each, the others for them. */
__device__ void wait_for_flags(const uint32_t *flags, int stride, int n, int own, const uint32_t *round) {
    const uint32_t expected = *round + 1;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        while (i != own && (int32_t)(load_acquire_system(flags + (int64_t)i * stride) - expected) < 0)
            __nanosleep(100);
    __syncthreads();
}

__global__ void wait_kernel(const uint32_t *flags, int stride, int n, int own, const uint32_t *round) {
    wait_for_flags(flags, stride, n, own, round);
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

struct Terms {
    const float *own, *received;
    int64_t apart;
    int n, own_number;
    __device__ const float *of(int i) const {
        return i == own_number ? own : received + (i < own_number ? i : i - 1) * apart;
    }
};

/* x may be terms.own: a thread has read what it writes. Memory traffic alone, 4 (n + 1) bytes an element. */
__global__ void __launch_bounds__(THREADS)
    add_kernel(float *x, Terms terms, int64_t count, const uint32_t *flags, int stride,
               const uint32_t *round) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD;
    wait_for_flags(flags, stride, terms.n, terms.own_number, round);
    if (i + QUAD <= count) {
        Vec<float> sum = load_vec_once(terms.of(0) + i);
        for (int t = 1; t < terms.n; t++) {
            const Vec<float> term = load_vec_once(terms.of(t) + i);
#pragma unroll
            for (int k = 0; k < QUAD; k++) sum.v[k] += term.v[k];
        }
        store_vec(x + i, sum);
        return;
    }
    for (int64_t j = i; j < count; j++) {
        float sum = terms.of(0)[j];
        for (int t = 1; t < terms.n; t++) sum += terms.of(t)[j];
        x[j] = sum;
    }
}

static void wait_and_add(StreamId stream, const uint32_t *flags, int stride, int n, int own,
                         const uint32_t *round, float *x, const float *received, int64_t apart,
                         int64_t count) {
    const Terms terms = {x, received, apart, n, own};
    const unsigned blocks = (unsigned)ceil_div<int64_t>(count, THREADS * QUAD);
    add_kernel<<<blocks, THREADS, 0, stream_of(stream)>>>(x, terms, count, flags, stride, round);
    launch_check("peer_memory: wait_and_add");
}

extern const PeerMemory cuda_peer_memory = {name,  open_named, close_named,  send,
                                            raise, wait,       wait_and_add, next_round};
