/* LayerNorm (Ba et al. 2016), forward, alone and fused with the residual addition before it.
 *
 * One warp a row. The row is read once, all its loads in flight together, and stays in registers as fp32 through
 * the two passes of the statistics (mean, then squared deviations: no cancellation) and the write. Instructions
 * count beside bytes, since the card's clock is low between matrix products: with the row in shared memory, converted
 * in each pass, 65536 rows of 768 bf16 took 65 us there on an H200, this way 53; a copy takes 51. */
#include <utility>
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/decode/steps.cuh"
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/ops/layernorm.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

enum {
    FEW_BLOCKS = 64, /* of decoding: they start early */
    WARPS = 4,       /* of a block */
    MAX_VECS = 8,    /* of a lane, in registers: rows of up to 2048 bf16 or 1024 fp32 */
    WIDE_WARPS = 8,  /* of a wider row: as many rows as an SM then works on fit its L1 */
};

/* A vector of the row: a or, with RESIDUAL, a + b as rounded, which also goes to residual. */
template <bool RESIDUAL, typename T>
__device__ inline void row_vec(float (&x)[Vec<T>::N], T *residual, const Vec<T> &a, const Vec<T> &b) {
    to_floats(x, a);
    if (!RESIDUAL) return;
    const Vec<T> sum = add_vecs(a, b);
    store_vec(residual, sum);
    to_floats(x, sum);
}

/* 16 bytes of a weight, on their way while the launch before ends. */
template <typename T> __device__ __forceinline__ Vec<T> load_vec_early(const T *p) {
    const int4 bits = ld_global_once(p);
    Vec<T> x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A vector of the output; x: what its elements deviate from the mean. */
template <typename T>
__device__ inline void write_vec(T *out, const float (&x)[Vec<T>::N], float rstd, const T *weight,
                                 const T *bias) {
    store_vec(out, norm_vec(x, rstd, load_vec(weight), load_vec(bias)));
}

/* Of this thread's n columns, `step` apart: weights on the way while the launch before ends. */
template <typename T> __device__ inline void start_early(const T *weight, const T *bias, int n, int step) {
    for (int c = 0; c < n; c += step) {
        prefetch_to_l2(weight + c);
        prefetch_to_l2(bias + c);
    }
    wait_early();
}

/* With RESIDUAL: residual = a + b, and the norm of that; else b and residual are unused. A row ends in the last of
 * VECS vectors a lane. EARLY: of few rows; the weights come first, and take registers. */
template <typename T, bool RESIDUAL, bool EARLY, int VECS>
__global__ void __launch_bounds__(WARPS *WARP_SIZE)
    layernorm_forward_kernel(T *residual, T *__restrict__ out, float *mean, float *rstd, const T *a,
                             const T *b, const T *__restrict__ weight, const T *__restrict__ bias, int64_t N,
                             int C) {
    constexpr int VEC = Vec<T>::N, STEP = WARP_SIZE * VEC;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    const int first = threadIdx.x % WARP_SIZE * VEC;
    const int n_vecs = first + (VECS - 1) * STEP < C ? VECS : VECS - 1; /* of this lane */
    Vec<T> early_weight[VECS], early_bias[VECS];
    if (EARLY) {
        begin_next_early(); /* a linear layer, which loads weights */
#pragma unroll
        for (int v = 0; v < VECS; v++)
            if (v < n_vecs) {
                early_weight[v] = load_vec_early(weight + first + v * STEP);
                early_bias[v] = load_vec_early(bias + first + v * STEP);
            }
        wait_early();
    }
    if (row >= N) return;
    const int64_t at = row * C + first;

    Vec<T> from_a[VECS], from_b[VECS];
    float x[VECS][VEC] = {};
#pragma unroll
    for (int v = 0; v < VECS; v++)
        if (v < n_vecs) {
            from_a[v] = load_vec(a + at + v * STEP);
            if (RESIDUAL) from_b[v] = load_vec(b + at + v * STEP);
        }
#pragma unroll
    for (int v = 0; v < VECS; v++)
        if (v < n_vecs) row_vec<RESIDUAL>(x[v], residual + at + v * STEP, from_a[v], from_b[v]);
    float m, s;
    center_row(x, n_vecs, C, &m, &s);
#pragma unroll
    for (int v = 0; v < VECS; v++)
        if (v < n_vecs) {
            const int c = first + v * STEP;
            if (EARLY)
                store_vec(out + row * C + c, norm_vec(x[v], s, early_weight[v], early_bias[v]));
            else
                write_vec(out + row * C + c, x[v], s, weight + c, bias + c);
        }
    if (first == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

/* Any width: a block a row, read three times, twice from cache. */
template <typename T, bool RESIDUAL>
__global__ void __launch_bounds__(WIDE_WARPS *WARP_SIZE)
    wide_layernorm_forward_kernel(T *residual, T *__restrict__ out, float *mean, float *rstd, const T *a,
                                  const T *b, const T *__restrict__ weight, const T *__restrict__ bias,
                                  int64_t, int C) {
    constexpr int VEC = Vec<T>::N, STEP = WIDE_WARPS * WARP_SIZE * VEC;
    const int64_t row = blockIdx.x, at = row * C;
    const int first = threadIdx.x * VEC;
    const T *in = RESIDUAL ? residual : a;
    float x[VEC], sum = 0, squares = 0;
    if (gridDim.x <= FEW_BLOCKS) start_early(weight + first, bias + first, C - first, STEP);
    for (int c = first; c < C; c += STEP) {
        const Vec<T> from_a = load_vec(a + at + c), from_b = RESIDUAL ? load_vec(b + at + c) : Vec<T>{};
        row_vec<RESIDUAL>(x, residual + at + c, from_a, from_b);
        for (int k = 0; k < VEC; k++) sum += x[k];
    }
    const float m = block_sum(sum) / (float)C;
    for (int c = first; c < C; c += STEP) {
        to_floats(x, load_vec(in + at + c));
        for (int k = 0; k < VEC; k++) squares += (x[k] - m) * (x[k] - m);
    }
    const float s = rsqrtf(block_sum(squares) / (float)C + LAYERNORM_EPSILON);
    for (int c = first; c < C; c += STEP) {
        to_floats(x, load_vec(in + at + c));
        for (int k = 0; k < VEC; k++) x[k] -= m;
        write_vec(out + at + c, x, s, weight + c, bias + c);
    }
    if (threadIdx.x == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

template <typename T>
using Kernel = void (*)(T *, T *, float *, float *, const T *, const T *, const T *, const T *, int64_t, int);

/* V: 0, 1, ..., MAX_VECS - 1 */
template <typename T, bool RESIDUAL, bool EARLY, int... V>
static Kernel<T> kernel_of(int vecs, std::integer_sequence<int, V...>) {
    static const Kernel<T> kernels[] = {layernorm_forward_kernel<T, RESIDUAL, EARLY, V + 1>...};
    return kernels[vecs - 1];
}

template <typename T>
static Step captured_norm(T *residual, T *out, const T *a, const T *b, const T *weight, const T *bias,
                          int64_t N, int C) {
    Step step = step_of<T>(STEP_NORM, N, out, a);
    step.residual = residual;
    step.with = b;
    step.weight = weight;
    step.bias = bias;
    step.IC = C;
    return step;
}

template <typename T, bool RESIDUAL>
static void launch(T *residual, T *out, float *mean, float *rstd, const T *a, const T *b, const T *weight,
                   const T *bias, int64_t N, int C) {
    const int vecs = ceil_div<int>(C, WARP_SIZE * Vec<T>::N);
    const bool wide = vecs > MAX_VECS;
    const int64_t blocks = wide ? N : ceil_div<int64_t>(N, WARPS);
    const std::make_integer_sequence<int, MAX_VECS> any;
    const Kernel<T> kernel = wide                   ? wide_layernorm_forward_kernel<T, RESIDUAL>
                             : blocks <= FEW_BLOCKS ? kernel_of<T, RESIDUAL, true>(vecs, any)
                                                    : kernel_of<T, RESIDUAL, false>(vecs, any);
    const char *name = RESIDUAL ? "residual_layernorm_forward" : "layernorm_forward";
    const int threads = (wide ? WIDE_WARPS : WARPS) * WARP_SIZE;
    if (blocks <= FEW_BLOCKS) {
        step_captured(captured_norm<T>(residual, out, a, b, weight, bias, N, C));
        launch_early(name, kernel, dim3((unsigned)blocks), threads, 0, 1, residual, out, mean, rstd, a, b,
                     weight, bias, N, C);
        return;
    }
    kernel<<<(unsigned)blocks, threads, 0, main_stream>>>(residual, out, mean, rstd, a, b, weight, bias, N,
                                                          C);
    launch_check(name);
}

template <typename T>
void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *x, const floatX *weight,
                       const floatX *bias, int64_t N, int C) {
    launch<T, false>(NULL, (T *)out, mean, rstd, (const T *)x, NULL, (const T *)weight, (const T *)bias, N,
                     C);
}

template <typename T>
void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd, const floatX *a,
                                const floatX *b, const floatX *weight, const floatX *bias, int64_t N, int C) {
    launch<T, true>((T *)residual, (T *)out, mean, rstd, (const T *)a, (const T *)b, (const T *)weight,
                    (const T *)bias, N, C);
}

template LayernormForward layernorm_forward<float>;
template LayernormForward layernorm_forward<bf16>;
template ResidualLayernormForward residual_layernorm_forward<float>;
template ResidualLayernormForward residual_layernorm_forward<bf16>;
