/* The host ahead of the device: results fetched later, moments noted on the device, and sequences of ops that
 * are replayed as one CUDA graph, so that a launch costs the host nothing. */
#include "llmc/cuda/cuda_ops.cuh"
#include <stdlib.h>

/* ---- results, read later ---- */

typedef struct Fetch {
    char *pinned; /* FETCH_BYTES */
    cudaEvent_t done;
} Fetch;

static Fetch *fetch_slot(int slot) {
    static Fetch fetches[FETCH_SLOTS];
    Fetch *f = &fetches[slot];
    if (!f->pinned) {
        CUDA_CHECK(cudaHostAlloc((void **)&f->pinned, FETCH_BYTES, cudaHostAllocDefault));
        CUDA_CHECK(cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming));
    }
    return f;
}

/* One block. */
__global__ void fetch_kernel(char *pinned, const char *src, size_t bytes) {
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) pinned[i] = src[i];
}

/* By a kernel: beside a copy engine's transfer main_stream idles for 4 us before and 5 us behind, beside a
 * kernel for 1 (H200). */
void cuda_fetch_begin(int slot, const void *src, size_t bytes) {
    Fetch *f = fetch_slot(slot);
    fetch_kernel<<<1, WARP_SIZE, 0, main_stream>>>(f->pinned, (const char *)src, bytes);
    launch_check("fetch");
    CUDA_CHECK(cudaEventRecord(f->done, main_stream));
}

void cuda_fetch_end(int slot, void *dst, size_t bytes) {
    Fetch *f = fetch_slot(slot);
    CUDA_CHECK(cudaEventSynchronize(f->done));
    memcpy(dst, f->pinned, bytes);
}

/* ---- moments ---- */

static cudaEvent_t marks[MARKS_MAX];

void cuda_mark(int i) {
    if (!marks[i]) CUDA_CHECK(cudaEventCreate(&marks[i]));
    CUDA_CHECK(cudaEventRecord(marks[i], main_stream));
}

double cuda_seconds_between(int first, int second) {
    float ms = 0;
    CUDA_CHECK(cudaEventSynchronize(marks[second]));
    CUDA_CHECK(cudaEventElapsedTime(&ms, marks[first], marks[second]));
    return ms * 1e-3;
}

/* ---- recordings ---- */

struct Recording {
    cudaGraphExec_t graph;
};

bool cuda_record_begin(void) {
    const bool ok = cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    cudaGetLastError(); /* a refusal is an answer */
    return ok;
}

Recording *cuda_record_end(void) {
    cudaGraph_t graph = NULL;
    Recording *recording = (Recording *)calloc(1, sizeof *recording);
    bool ok = cudaStreamEndCapture(main_stream, &graph) == cudaSuccess && graph != NULL && recording != NULL;
    ok = ok && cudaGraphInstantiate(&recording->graph, graph, 0) == cudaSuccess;
    if (graph) CUDA_CHECK(cudaGraphDestroy(graph));
    cudaGetLastError();
    if (ok) return recording;
    free(recording);
    return NULL;
}

void cuda_replay(Recording *recording) {
    CUDA_CHECK(cudaGraphLaunch(recording->graph, main_stream));
}

void cuda_recording_release(Recording *recording) {
    if (!recording) return;
    CUDA_CHECK(cudaGraphExecDestroy(recording->graph));
    free(recording);
}
