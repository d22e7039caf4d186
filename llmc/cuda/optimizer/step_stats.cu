/* Mean loss and gradient norm of a step, and the flag that stops a NaN or inf, all on the device.
 *
 * Two stages of fixed shape, so the result has one value on every device: MAX_BLOCKS blocks leave a partial
 * sum each in double, one block adds them. Double also keeps the squares of a large but finite gradient
 * finite. */
#include "llmc/cuda/cuda_ops.cuh"

enum { THREADS = 256, MAX_BLOCKS = 1024, PER_THREAD = Vec<float>::N };

/* partials (gridDim.x) = sums of x, or of x^2 */
template <bool SQUARES>
__global__ void __launch_bounds__(THREADS)
    partial_sums_kernel(double *partials, const float *__restrict__ x, int64_t n) {
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, stride = (int64_t)gridDim.x * THREADS;
    const int64_t n_vecs = n / PER_THREAD;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = first; i < n_vecs; i += stride) {
        const Vec<float> v = load_vec(x + i * PER_THREAD);
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) sum += SQUARES ? (double)v.v[k] * v.v[k] : (double)v.v[k];
    }
    const int64_t tail = n_vecs * PER_THREAD + first;
    if (tail < n) sum += SQUARES ? (double)x[tail] * x[tail] : (double)x[tail];
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(MAX_BLOCKS)
    loss_sum_kernel(StepStats *stats, const double *partials, int n_partials, float scale) {
    const double sum = block_sum(threadIdx.x < n_partials ? partials[threadIdx.x] : 0.0);
    if (threadIdx.x != 0) return;
    stats->loss = (float)(stats->loss + scale * sum);
    if (!isfinite(stats->loss)) stats->bad = 1;
}

__global__ void __launch_bounds__(MAX_BLOCKS)
    sum_squares_kernel(StepStats *stats, const double *partials, int n_partials) {
    const double sum = block_sum(threadIdx.x < n_partials ? partials[threadIdx.x] : 0.0);
    if (threadIdx.x == 0) stats->sum_squares += sum;
}

__global__ void grad_norm_kernel(StepStats *stats) {
    stats->grad_norm = (float)sqrt(stats->sum_squares);
    if (!isfinite(stats->grad_norm)) stats->bad = 1;
    stats->n_skipped += stats->bad != 0;
    stats->sum_squares = 0;
}

template <bool SQUARES> static int partial_sums(double *partials, const float *x, int64_t n) {
    const int64_t wanted = ceil_div<int64_t>(n, THREADS * PER_THREAD);
    const int blocks = wanted < MAX_BLOCKS ? (int)wanted : MAX_BLOCKS;
    partial_sums_kernel<SQUARES><<<blocks, THREADS, 0, main_stream>>>(partials, x, n);
    launch_check("partial_sums");
    return blocks;
}

template <typename T>
void loss_sum(StepStats *stats, const float *losses, float scale, void *scratch, int64_t N) {
    double *partials = (double *)scratch;
    const int n = partial_sums<false>(partials, losses, N);
    loss_sum_kernel<<<1, MAX_BLOCKS, 0, main_stream>>>(stats, partials, n, scale);
    launch_check("loss_sum");
}

template <typename T> void sum_squares(StepStats *stats, const float *grads, void *scratch, int64_t n) {
    double *partials = (double *)scratch;
    const int n_partials = partial_sums<true>(partials, grads, n);
    sum_squares_kernel<<<1, MAX_BLOCKS, 0, main_stream>>>(stats, partials, n_partials);
    launch_check("sum_squares");
}

template <typename T> void grad_norm(StepStats *stats) {
    grad_norm_kernel<<<1, 1, 0, main_stream>>>(stats);
    launch_check("grad_norm");
}

/* One storage type, fp32, whatever that of the weights. */
template LossSum loss_sum<float>;
template LossSum loss_sum<bf16>;
template SumSquares sum_squares<float>;
template SumSquares sum_squares<bf16>;
template GradNorm grad_norm<float>;
template GradNorm grad_norm<bf16>;

size_t step_stats_scratch_bytes(void) {
    return MAX_BLOCKS * sizeof(double);
}
