/* The CUDA ops, one file each; ops_cuda.cu puts them into the tables. T is the storage type, float or bf16. All launch on
 * main_stream and return at once, but for cuda_download() and cuda_synchronize(). */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* embedding_forward<T> and so on; ops.h says what each computes. */
#define DECLARE(Type, name) template <typename T> Type name;
EACH_OP(DECLARE)
#undef DECLARE

/* Where a dispatch writes the name of the kernel that it takes, for Ops.kernel_ran. In context.cu. */
extern const char *cuda_kernel_ran;

/* ---- device.cu ---- */
extern const Device device_cuda;

/* ---- context.cu ---- */
bool cuda_open(int index, Error *err);
const char *cuda_name(void);
void *cuda_alloc(size_t bytes);
void cuda_free(void *p);
void cuda_memory_info(size_t *free_bytes, size_t *total_bytes);
void cuda_zero(void *dst, size_t bytes);
void cuda_zero_rows(void *dst, size_t bytes, size_t stride, int64_t rows);
void cuda_copy(void *dst, const void *src, size_t bytes);
void cuda_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t bytes,
                    int64_t rows);
void cuda_upload(void *dst, const void *src, size_t bytes);
void cuda_download(void *dst, const void *src, size_t bytes);
void *cuda_host_alloc(size_t bytes);
void cuda_host_free(void *p);
void cuda_synchronize(void);
void *cuda_readback_memory(int slot); /* READBACK_BYTES, pinned */
size_t cuda_context_bytes(void);      /* that cuda_open takes on the device, besides linear_fixed_bytes */
int cuda_device_attribute(cudaDeviceAttr attribute);

/* ---- async.cu ---- */
cudaStream_t stream_of(StreamId id);
void cuda_readback_begin(int slot, StreamId stream, const void *src, size_t bytes);
void cuda_readback_end(int slot, void *dst, size_t bytes);
void cuda_event_record(EventId event, StreamId stream);
void cuda_stream_wait(StreamId stream, EventId event);
void cuda_download_begin(StreamId stream, void *dst, const void *src, size_t bytes);
void cuda_event_wait(EventId event);
void *cuda_stream_handle(StreamId stream);
void cuda_timestamp(int i);
double cuda_seconds_between(int first, int second);
bool cuda_capture_begin(void);
Graph *cuda_capture_end(void);
void cuda_graph_launch(Graph *graph);
void cuda_graph_free(Graph *graph);

/* ---- peer_memory.cu ---- */
extern const PeerMemory cuda_peer_memory;

/* ---- peak.cu ---- */
double cuda_peak_flops(DType dtype, const char **how);

/* ---- embedding.cu, sort.cu ---- */
size_t embedding_scratch_bytes(int64_t N, int C);

typedef struct SortedTokens {
    const int32_t *tokens;    /* (N) ascending */
    const int32_t *positions; /* (N) where each stood; ascending among equal tokens */
} SortedTokens;
/* Stable sort of N < 2^31 tokens in [0, V); the result lies in scratch. */
SortedTokens sort_tokens(const int32_t *tokens, void *scratch, int64_t N, int V);
size_t sort_tokens_scratch_bytes(int64_t N);

/* ---- dropout.cu ---- */
/* dropout of n matrices one below the other, each with a mask of its own */
template <typename T>
void dropout_matrices(floatX *out, const floatX *x, const Dropout *mask, int64_t n, int64_t rows,
                      int columns);

/* ---- layernorm_backward.cu ---- */
size_t layernorm_scratch_bytes(int C); /* at least 384 rows of C floats */

/* ---- linear/dispatch.cu, gemm.cu ---- */
bool linear_open(Error *err);
size_t linear_fixed_bytes(void);
size_t linear_scratch_bytes(int64_t N, int IC); /* of linear_backward_input, besides those of column_sums */

/* ---- gelu.cu ---- */
/* x (N,OC) += bias (OC) or 0; with pre_gelu: pre_gelu (N,OC) = x + bias and x = gelu(x + bias) */
template <typename T>
void bias_gelu_inplace(floatX *x, floatX *pre_gelu, const floatX *bias, int64_t N, int OC);

/* ---- column_sums.cu ---- */
/* out (columns) += sum over the rows of x (N,columns), which lie `stride` elements apart */
template <typename T>
void column_sums(float *out, const T *x, void *scratch, int64_t N, int columns, int stride);
/* Its first half, for who adds the partial rows: partials (n, columns) =, of column_sums_scratch_bytes; returns n. */
template <typename T> int column_partials(float *partials, const T *x, int64_t N, int columns, int stride);
/* dx (N,columns) *= gelu'(pre_gelu), rounded; dx_sums (columns) += its column sums, or NULL; gelu (N,columns) =
 * gelu(pre_gelu), or NULL; gelu may be pre_gelu */
template <typename T>
void gelu_backward_sums(T *dx, float *dx_sums, T *gelu, const T *pre_gelu, void *scratch, int64_t N,
                        int columns);
size_t column_sums_scratch_bytes(int columns);
typedef struct PartialSums {
    float *out[3]; /* (columns) += */
    int n_out;     /* how many of them there are */
    int width;     /* kinds of sums that lie side by side in a row of partials, the first n_out are added */
} PartialSums;
/* sums.out[k] (columns) += sum over rows of partials[row][k][:].   partials (n, sums.width, columns) */
void add_partial_rows(const PartialSums &sums, const float *partials, int n, int columns);
