/* For the attention benches: buffers between guard bands, random inputs, a naive reference in double on the
 * GPU and the comparison with it. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <vector>
#include "../../llmc/cuda/cuda_common.cuh"

/* ---- buffers with guard bands ---- */

enum { GUARD = 4096, POISON = 0xff /* a NaN in bf16 and fp32 */ };

typedef struct Buffer {
    uint8_t *base, *data;
    size_t bytes;
} Buffer;

static Buffer buffer_alloc(size_t bytes) {
    Buffer b;
    b.bytes = bytes;
    CUDA_CHECK(cudaMalloc(&b.base, bytes + 2 * GUARD));
    CUDA_CHECK(cudaMemset(b.base, POISON, bytes + 2 * GUARD));
    b.data = b.base + GUARD;
    return b;
}
static void buffer_poison(Buffer b) {
    CUDA_CHECK(cudaMemsetAsync(b.data, POISON, b.bytes, main_stream));
}
static bool guards_intact(Buffer b) {
    std::vector<uint8_t> bytes(GUARD);
    for (int side = 0; side < 2; side++) {
        CUDA_CHECK(cudaMemcpy(bytes.data(), side ? b.data + b.bytes : b.base, GUARD, cudaMemcpyDeviceToHost));
        for (uint8_t byte : bytes)
            if (byte != POISON) return false;
    }
    return true;
}
template <typename T> static std::vector<T> download(Buffer b) {
    std::vector<T> host(b.bytes / sizeof(T));
    CUDA_CHECK(cudaMemcpy(host.data(), b.data, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}
static bool same_bits(Buffer a, Buffer b) {
    const auto x = download<uint8_t>(a), y = download<uint8_t>(b);
    return x == y;
}

/* Normal values by Box and Muller from an integer hash of the position, rounded to bf16. */
__device__ uint32_t hash(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(x ^ x >> 33);
}
__global__ void fill_normal(bf16 *p, int64_t n, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float u = (hash(2 * i + (seed << 40)) + 1.0f) * 2.3283064e-10f,
                    v = hash(2 * i + 1 + (seed << 40)) * 2.3283064e-10f;
        p[i] = __float2bfloat16_rn(sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * v));
    }
}
static void fill(Buffer b, uint64_t seed) {
    fill_normal<<<1024, 256, 0, main_stream>>>((bf16 *)b.data, b.bytes / 2, seed);
    launch_check("fill_normal");
}

/* ---- reference: one block per row, everything in double ---- */

typedef struct Shape {
    int B, T, NH, HD;
    bool causal;
} Shape;

enum { REFERENCE_THREADS = 128 };

/* n is a multiple of 8. */
__device__ double dot(const bf16 *a, const bf16 *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i += 8) {
        const Vec<bf16> x = load_vec(a + i), y = load_vec(b + i);
        for (int j = 0; j < 8; j++) sum += (double)to_float(x.v[j]) * to_float(y.v[j]);
    }
    return sum;
}
__device__ double block_reduce(double x, bool max) {
    __shared__ double values[REFERENCE_THREADS];
    __syncthreads();
    values[threadIdx.x] = x;
    __syncthreads();
    for (int i = 0; i < REFERENCE_THREADS; i++)
        x = i == 0 ? values[0] : max ? fmax(x, values[i]) : x + values[i];
    return x;
}
__device__ const bf16 *qkv_row(const bf16 *qkv, Shape s, int b, int t, int part, int head) {
    return qkv + ((((int64_t)b * s.T + t) * 3 + part) * s.NH + head) * s.HD;
}

/* grid (T, B*NH). out (B,T,NH,HD), lse (B,NH,T) */
__global__ void reference_forward(double *out, double *lse, const bf16 *qkv, Shape s) {
    extern __shared__ double p[];
    const int i = blockIdx.x, b = blockIdx.y / s.NH, head = blockIdx.y % s.NH, n = s.causal ? i + 1 : s.T;
    double max = -INFINITY, sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) {
        p[j] = dot(qkv_row(qkv, s, b, i, 0, head), qkv_row(qkv, s, b, j, 1, head), s.HD) / sqrt((double)s.HD);
        max = fmax(max, p[j]);
    }
    max = block_reduce(max, true);
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += p[j] = exp(p[j] - max);
    sum = block_reduce(sum, false);
    for (int d = threadIdx.x; d < s.HD; d += blockDim.x) {
        double o = 0;
        for (int j = 0; j < n; j++) o += p[j] * to_float(qkv_row(qkv, s, b, j, 2, head)[d]);
        out[(((int64_t)b * s.T + i) * s.NH + head) * s.HD + d] = o / sum;
    }
    if (threadIdx.x == 0) lse[(int64_t)blockIdx.y * s.T + i] = max + log(sum);
}

/* D = rowsum(dout * out); grid (T, B*NH), one thread. */
__global__ void reference_d(double *D, const bf16 *dout, const double *out, Shape s) {
    const int64_t row = ((int64_t)(blockIdx.y / s.NH) * s.T + blockIdx.x) * s.NH + blockIdx.y % s.NH;
    double d = 0;
    for (int i = 0; i < s.HD; i++) d += (double)to_float(dout[row * s.HD + i]) * out[row * s.HD + i];
    D[(int64_t)blockIdx.y * s.T + blockIdx.x] = d;
}

/* grid (T, B*NH). keys false: dQ of query blockIdx.x; true: dK and dV of that key. */
__global__ void reference_backward(double *dqkv, const bf16 *dout, const bf16 *qkv, const double *lse,
                                   const double *D, Shape s, bool keys) {
    extern __shared__ double p[];
    double *ds = p + s.T;
    const int own = blockIdx.x, b = blockIdx.y / s.NH, head = blockIdx.y % s.NH;
    const int begin = keys && s.causal ? own : 0, end = !keys && s.causal ? own + 1 : s.T;
    for (int other = begin + threadIdx.x; other < end; other += blockDim.x) {
        const int i = keys ? other : own, j = keys ? own : other;
        const int64_t row = (int64_t)blockIdx.y * s.T + i;
        const double score =
            dot(qkv_row(qkv, s, b, i, 0, head), qkv_row(qkv, s, b, j, 1, head), s.HD) / sqrt((double)s.HD);
        const double dp =
            dot(dout + (((int64_t)b * s.T + i) * s.NH + head) * s.HD, qkv_row(qkv, s, b, j, 2, head), s.HD);
        p[other] = exp(score - lse[row]);
        ds[other] = p[other] * (dp - D[row]) / sqrt((double)s.HD);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < s.HD; d += blockDim.x) {
        double first = 0, second = 0;
        for (int other = begin; other < end; other++) {
            first += ds[other] * to_float(qkv_row(qkv, s, b, other, keys ? 0 : 1, head)[d]);
            if (keys)
                second += p[other] * to_float(dout[(((int64_t)b * s.T + other) * s.NH + head) * s.HD + d]);
        }
        double *to = dqkv + ((((int64_t)b * s.T + own) * 3 + keys) * s.NH + head) * s.HD + d;
        to[0] = first;
        if (keys) to[(int64_t)s.NH * s.HD] = second;
    }
}

/* ---- comparison ---- */

/* Of row r: squared error and squared reference; a result that is not finite makes the error infinite. */
__global__ void compare_rows(double2 *rows, const bf16 *got, const double *want, int64_t n_rows,
                             int row_elems) {
    const int64_t r = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (r >= n_rows) return;
    double2 sum = {0, 0};
    for (int i = 0; i < row_elems; i++) {
        const double x = to_float(got[r * row_elems + i]), y = want[r * row_elems + i];
        sum.x += isfinite(x) ? (x - y) * (x - y) : INFINITY;
        sum.y += y * y;
    }
    rows[r] = sum;
}

/* Relative error of all rows together, and of the worst row (against its own norm plus a tenth of the mean
 * norm). */
typedef struct Errors {
    double all, worst;
} Errors;

/* Of the rows r with r / heads % 3 == part; part < 0: all rows. */
static Errors compare(const void *got, const double *want, int64_t n_rows, int row_elems, int heads,
                      int part) {
    double2 *device;
    CUDA_CHECK(cudaMalloc(&device, n_rows * sizeof(double2)));
    compare_rows<<<(unsigned)((n_rows + 127) / 128), 128, 0, main_stream>>>(device, (const bf16 *)got, want,
                                                                            n_rows, row_elems);
    std::vector<double2> rows(n_rows);
    CUDA_CHECK(cudaMemcpy(rows.data(), device, n_rows * sizeof(double2), cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(device));
    double error = 0, norm = 0, worst = 0;
    int64_t n = 0;
    for (int64_t r = 0; r < n_rows; r++)
        if (part < 0 || r / heads % 3 == part) {
            error += rows[r].x;
            norm += rows[r].y;
            n++;
        }
    const double floor = 1e-4 * row_elems + 0.1 * sqrt(norm / n); /* exact zeros have errors too */
    for (int64_t r = 0; r < n_rows; r++)
        if (part < 0 || r / heads % 3 == part)
            worst = fmax(worst, sqrt(rows[r].x) / (sqrt(rows[r].y) + floor));
    Errors e = {sqrt(error) / (sqrt(norm) + floor), worst};
    return e;
}
