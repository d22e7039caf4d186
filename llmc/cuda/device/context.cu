/* The device: streams, memory, copies, errors.
 *
 * Copies between host and device go through a ring of pinned slots, so an upload returns once the bytes left
 * src, and the host runs ahead of the device by as many slots. An upload crosses the bus on a stream of its
 * own, into a slot on the device, while earlier ops still run; in the order of the ops is only the copy from
 * there to where it belongs. That stream is not side_stream, on which a readback that waits for the end of a step
 * would hold up the next step's tokens. */
#include "llmc/cuda/cuda_ops.cuh"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cudaStream_t main_stream, side_stream, snapshot_stream;
int cuda_device; /* that cuda_open took */

/* 8 slots of 1 MiB: the tokens of 64 x 1024 take a quarter of a slot. */
static constexpr size_t SLOT_BYTES = 1 << 20;
enum { N_SLOTS = 8 };
static char *slots;        /* N_SLOTS * SLOT_BYTES, pinned; behind them READBACK_SLOTS * READBACK_BYTES */
static char *device_slots; /* N_SLOTS * SLOT_BYTES, on the device */
static cudaStream_t copy_stream;
static cudaEvent_t slot_filled[N_SLOTS]; /* on copy_stream: an upload has reached the device's slot */
static cudaEvent_t slot_free[N_SLOTS];   /* on main_stream: recorded behind the copy that uses the slot */
static unsigned next_slot;

/* ---- errors ---- */

static const char *hint(cudaError_t status) {
    return status == cudaErrorNoKernelImageForDevice ? "; hint: built for another card, make GPU_ARCH=all"
                                                     : "";
}

/* The program's, which tells the other ranks; libraries of kernels are linked without. */
extern "C" void die(const Error *err) __attribute__((weak));

void cuda_fail(const char *format, ...) {
    Error err = {EXIT_RUN, ""};
    va_list args;
    va_start(args, format);
    vsnprintf(err.text, sizeof err.text, format, args);
    va_end(args);
    if (die) die(&err);
    fprintf(stderr, "error: %s\n", err.text);
    exit(EXIT_RUN);
}

void cuda_check_(cudaError_t status, const char *expr, const char *file, int line) {
    if (status == cudaSuccess) return;
    cuda_fail("%s:%d: %s: %s (%s)%s", file, line, expr, cudaGetErrorString(status), cudaGetErrorName(status),
              hint(status));
}

void launch_check(const char *kernel) {
    const cudaError_t status = cudaGetLastError();
    if (status == cudaSuccess) return;
    cuda_fail("kernel %s does not launch: %s (%s)%s", kernel, cudaGetErrorString(status),
              cudaGetErrorName(status), hint(status));
}

const char *cuda_kernel_ran;

/* ---- device ---- */

int cuda_device_count(void) {
    int n = 0;
    const cudaError_t status = cudaGetDeviceCount(&n);
    cudaGetLastError(); /* no driver, no device: an answer, not an error to be met later */
    return status == cudaSuccess ? n : 0;
}

bool cuda_available(void) {
    return cuda_device_count() > 0;
}

int cuda_device_attribute(cudaDeviceAttr attribute) {
    int device, value;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

int cuda_sm_count(void) {
    static int count;
    if (!count) count = cuda_device_attribute(cudaDevAttrMultiProcessorCount);
    return count;
}

int cuda_compute_capability(void) {
    static int capability;
    if (!capability)
        capability = 10 * cuda_device_attribute(cudaDevAttrComputeCapabilityMajor) +
                     cuda_device_attribute(cudaDevAttrComputeCapabilityMinor);
    return capability;
}

static bool open_failed(Error *err, const char *what, cudaError_t status) {
    cudaGetLastError();
    return fail(err, EXIT_RUN,
                "CUDA: %s: %s; hint: nvidia-smi shows the driver and the devices; --device cpu needs neither",
                what, cudaGetErrorString(status));
}

bool cuda_open(int index, Error *err) {
    if (main_stream) return true; /* both tables of ops share the device */
    int n = 0;
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status != cudaSuccess || n == 0)
        return open_failed(err, "no device", n == 0 && status == cudaSuccess ? cudaErrorNoDevice : status);
    if ((status = cudaSetDevice(index)) != cudaSuccess || (status = cudaFree(NULL)) != cudaSuccess)
        return open_failed(err, "the device does not start", status);
    if (cuda_compute_capability() < 80)
        return fail(err, EXIT_RUN,
                    "CUDA: %s: expected compute capability 8.0 (A100) or later; hint: --device cpu",
                    cuda_name());
    const size_t pinned_bytes = SLOT_BYTES * N_SLOTS + READBACK_SLOTS * READBACK_BYTES;
    if ((status = cudaHostAlloc((void **)&slots, pinned_bytes, cudaHostAllocDefault)) != cudaSuccess)
        return open_failed(err, "no pinned host memory", status);
    if ((status = cudaMalloc((void **)&device_slots, SLOT_BYTES * N_SLOTS)) != cudaSuccess)
        return open_failed(err, "no device memory", status);
    for (int i = 0; i < N_SLOTS; i++) {
        CUDA_CHECK(cudaEventCreateWithFlags(&slot_free[i], cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&slot_filled[i], cudaEventDisableTiming));
    }
    if (!linear_open(err)) return false;
    CUDA_CHECK(cudaStreamCreateWithFlags(&copy_stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&side_stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&snapshot_stream, cudaStreamNonBlocking));
    cuda_device = index;
    CUDA_CHECK(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
    return true;
}

void *cuda_readback_memory(int slot) {
    return slots + SLOT_BYTES * N_SLOTS + slot * READBACK_BYTES;
}

size_t cuda_context_bytes(void) {
    return SLOT_BYTES * N_SLOTS;
}

const char *cuda_name(void) {
    static char line[384];
    int device;
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    snprintf(line, sizeof line, "%s, compute capability %d.%d, %d SMs, %.1f GiB", properties.name,
             properties.major, properties.minor, properties.multiProcessorCount,
             (double)properties.totalGlobalMem / 1073741824.0);
    return line;
}

/* ---- memory ---- */

void *cuda_alloc(size_t bytes) {
    void *p = NULL;
    const cudaError_t status = cudaMalloc(&p, bytes ? bytes : 1);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return NULL;
    }
    CUDA_CHECK(status);
    return p;
}

void cuda_free(void *p) {
    CUDA_CHECK(cudaFree(p));
}

void *cuda_host_alloc(size_t bytes) {
    void *p = NULL;
    const bool ok = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault) == cudaSuccess;
    cudaGetLastError(); /* a refusal is an answer */
    return ok ? p : NULL;
}

void cuda_host_free(void *p) {
    CUDA_CHECK(cudaFreeHost(p));
}

void cuda_memory_info(size_t *free_bytes, size_t *total_bytes) {
    CUDA_CHECK(cudaMemGetInfo(free_bytes, total_bytes));
}

void cuda_zero(void *dst, size_t bytes) {
    CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, main_stream));
}

void cuda_zero_rows(void *dst, size_t bytes, size_t stride, int64_t rows) {
    if (rows > 1 && stride <= INT32_MAX) { /* the largest pitch that CUDA promises */
        CUDA_CHECK(cudaMemset2DAsync(dst, stride, 0, bytes, (size_t)rows, main_stream));
        return;
    }
    for (int64_t row = 0; row < rows; row++) cuda_zero((char *)dst + (size_t)row * stride, bytes);
}

void cuda_copy(void *dst, const void *src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, main_stream));
}

void cuda_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t bytes,
                    int64_t rows) {
    CUDA_CHECK(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, (size_t)rows,
                                 cudaMemcpyDeviceToDevice, main_stream));
}

static char *slot_data(unsigned slot) {
    return slots + slot * SLOT_BYTES;
}

/* A slot is free once the device has copied out of it, so copy_stream need not wait for main_stream. */
void cuda_upload(void *dst, const void *src, size_t bytes) {
    for (size_t done = 0; done < bytes; done += SLOT_BYTES) {
        const size_t n = bytes - done < SLOT_BYTES ? bytes - done : SLOT_BYTES;
        const unsigned slot = next_slot++ % N_SLOTS;
        char *on_device = device_slots + slot * SLOT_BYTES;
        CUDA_CHECK(cudaEventSynchronize(slot_free[slot]));
        memcpy(slot_data(slot), (const char *)src + done, n);
        CUDA_CHECK(cudaMemcpyAsync(on_device, slot_data(slot), n, cudaMemcpyHostToDevice, copy_stream));
        CUDA_CHECK(cudaEventRecord(slot_filled[slot], copy_stream));
        CUDA_CHECK(cudaStreamWaitEvent(main_stream, slot_filled[slot], 0));
        CUDA_CHECK(cudaMemcpyAsync((char *)dst + done, on_device, n, cudaMemcpyDeviceToDevice, main_stream));
        CUDA_CHECK(cudaEventRecord(slot_free[slot], main_stream));
    }
}

/* Keeps N_SLOTS copies in flight: piece i is issued once piece i - N_SLOTS was taken out of the same slot. An
 * upload still in a slot is safe, because the stream has read it before the copy overwrites it. */
void cuda_download(void *dst, const void *src, size_t bytes) {
    const size_t n_pieces = ceil_div(bytes, SLOT_BYTES);
    for (size_t i = 0; i < n_pieces + N_SLOTS; i++) {
        const unsigned slot = i % N_SLOTS;
        if (i >= N_SLOTS && i - N_SLOTS < n_pieces) {
            const size_t done = (i - N_SLOTS) * SLOT_BYTES;
            CUDA_CHECK(cudaEventSynchronize(slot_free[slot]));
            memcpy((char *)dst + done, slot_data(slot),
                   bytes - done < SLOT_BYTES ? bytes - done : SLOT_BYTES);
        }
        if (i < n_pieces) {
            const size_t done = i * SLOT_BYTES, left = bytes - done;
            CUDA_CHECK(cudaMemcpyAsync(slot_data(slot), (const char *)src + done,
                                       left < SLOT_BYTES ? left : SLOT_BYTES, cudaMemcpyDeviceToHost,
                                       main_stream));
            CUDA_CHECK(cudaEventRecord(slot_free[slot], main_stream));
        }
    }
}

void cuda_synchronize(void) {
    CUDA_CHECK(cudaStreamSynchronize(main_stream));
    CUDA_CHECK(cudaStreamSynchronize(side_stream));
}
