/* The host ahead of the device: streams and events, results read back later, timestamps taken on the device, and work
 * captured into a CUDA graph, so that a launch costs the host nothing. */
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/decode/steps.cuh"
#include <stdlib.h>

/* ---- streams and events ---- */

cudaStream_t stream_of(StreamId id) {
    const cudaStream_t streams[N_STREAMS] = {main_stream, side_stream, snapshot_stream};
    return streams[id];
}

static cudaEvent_t event_of(EventId id) {
    static cudaEvent_t events[N_EVENTS];
    if (!events[id])
        CUDA_CHECK(cudaEventCreateWithFlags(&events[id], cudaEventDisableTiming | cudaEventBlockingSync));
    return events[id];
}

void cuda_event_record(EventId event, StreamId stream) {
    CUDA_CHECK(cudaEventRecord(event_of(event), stream_of(stream)));
}

void cuda_stream_wait(StreamId stream, EventId event) {
    CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

/* A thread of the host begins on the first device of the machine, whichever the process took. */
void cuda_event_wait(EventId event) {
    CUDA_CHECK(cudaSetDevice(cuda_device));
    CUDA_CHECK(cudaEventSynchronize(event_of(event)));
}

void cuda_download_begin(StreamId stream, void *dst, const void *src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream_of(stream)));
}

void *cuda_stream_handle(StreamId stream) {
    return stream_of(stream);
}

/* ---- readback ---- */

static cudaEvent_t readback_done(int slot) {
    static cudaEvent_t done[READBACK_SLOTS];
    if (!done[slot]) CUDA_CHECK(cudaEventCreateWithFlags(&done[slot], cudaEventDisableTiming));
    return done[slot];
}

/* One block; words of 4 bytes. */
__global__ void readback_kernel(int32_t *pinned, const int32_t *src, size_t words) {
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) pinned[i] = src[i];
}

/* By a kernel: on main_stream a copy engine's transfer costs 4 us before and 5 us behind, a kernel 1 (H200). */
void cuda_readback_begin(int slot, StreamId stream, const void *src, size_t bytes) {
    readback_kernel<<<1, 4 * WARP_SIZE, 0, stream_of(stream)>>>((int32_t *)cuda_readback_memory(slot),
                                                                (const int32_t *)src, bytes / 4);
    launch_check("readback");
    CUDA_CHECK(cudaEventRecord(readback_done(slot), stream_of(stream)));
}

void cuda_readback_end(int slot, void *dst, size_t bytes) {
    CUDA_CHECK(cudaEventSynchronize(readback_done(slot)));
    memcpy(dst, cuda_readback_memory(slot), bytes);
}

/* ---- timestamps ---- */

static cudaEvent_t timestamps[TIMESTAMPS_MAX];

void cuda_timestamp(int i) {
    if (!timestamps[i]) CUDA_CHECK(cudaEventCreate(&timestamps[i]));
    CUDA_CHECK(cudaEventRecord(timestamps[i], main_stream));
}

double cuda_seconds_between(int first, int second) {
    float ms = 0;
    CUDA_CHECK(cudaEventSynchronize(timestamps[second]));
    CUDA_CHECK(cudaEventElapsedTime(&ms, timestamps[first], timestamps[second]));
    return ms * 1e-3;
}

/* ---- graphs ---- */

struct Graph {
    cudaGraphExec_t exec; /* NULL: what step launches */
    DecodeStep *step;     /* NULL: what was captured */
};

static bool begin(void) {
    const bool ok = cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    cudaGetLastError(); /* a refusal is an answer */
    return ok;
}

bool cuda_capture_begin(void) {
    const bool ok = begin();
    if (ok) steps_begin();
    return ok;
}

static cudaGraph_t end(void) {
    cudaGraph_t captured = NULL;
    return cudaStreamEndCapture(main_stream, &captured) == cudaSuccess ? captured : NULL;
}

static bool make_executable(Graph *graph, cudaGraph_t captured) {
    return captured && cudaGraphInstantiate(&graph->exec, captured, 0) == cudaSuccess;
}

/* A graph of what step launches. */
static bool capture_step(Graph *graph) {
    if (!begin()) return false;
    decode_step_launch(graph->step);
    cudaGraph_t launches = end();
    const bool ok = make_executable(graph, launches);
    if (launches) CUDA_CHECK(cudaGraphDestroy(launches));
    return ok;
}

/* What was captured, or the kernels that take its place. */
static bool choose(Graph *graph, cudaGraph_t captured) {
    size_t n_launches = 0;
    CUDA_CHECK(cudaGraphGetNodes(captured, NULL, &n_launches));
    graph->step = steps_end(n_launches);
    if (graph->step && (!decode_step_is_graph(graph->step) || capture_step(graph))) return true;
    decode_step_free(graph->step);
    graph->step = NULL;
    return make_executable(graph, captured);
}

Graph *cuda_capture_end(void) {
    cudaGraph_t captured = end();
    Graph *graph = (Graph *)calloc(1, sizeof *graph);
    const bool ok = captured && graph && choose(graph, captured);
    if (captured) CUDA_CHECK(cudaGraphDestroy(captured));
    cudaGetLastError();
    if (ok) return graph;
    cuda_graph_free(graph);
    return NULL;
}

void cuda_graph_launch(Graph *graph) {
    if (graph->exec)
        CUDA_CHECK(cudaGraphLaunch(graph->exec, main_stream));
    else
        decode_step_launch(graph->step);
    if (graph->step) cuda_kernel_ran = decode_step_name(graph->step);
}

void cuda_graph_free(Graph *graph) {
    if (!graph) return;
    if (graph->exec) CUDA_CHECK(cudaGraphExecDestroy(graph->exec));
    decode_step_free(graph->step);
    free(graph);
}
