/* Mean loss and gradient norm of a step, and the flag that stops a NaN or inf, all on the device.
 *
 * A warp sums a tile in double, in an order of its own, and its first lane adds that to the exact sum of its block in
 * shared memory; at the end a block adds its bins to the sum in memory. Atomic additions of integers: their order does
 * not show. Double keeps the squares of a large but finite gradient finite. */
#include "llmc/cuda/cuda_ops.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP_SIZE,
    BLOCKS_PER_SM = 4,
    PER_THREAD = Vec<float>::N,
    ROW = WARP_SIZE * PER_THREAD
};

/* The sums of a thread over a tile of n values: each of every 128th value. All loads of a tile are under way at once. */
template <bool SQUARES>
__device__ inline void lane_sums(double (&sums)[PER_THREAD], const float *__restrict__ x, int64_t n) {
    const int first = threadIdx.x % WARP_SIZE * PER_THREAD;
    Vec<float> rows[PARAMETER_TILE / ROW];
#pragma unroll
    for (int r = 0; r < PARAMETER_TILE / ROW; r++) {
        const int i = r * ROW + first;
        if (n >= PARAMETER_TILE) {
            rows[r] = load_vec(x + i);
        } else {
#pragma unroll
            for (int k = 0; k < PER_THREAD; k++) rows[r].v[k] = i + k < n ? x[i + k] : 0.0f;
        }
    }
#pragma unroll
    for (int r = 0; r < PARAMETER_TILE / ROW; r++)
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) {
            const double v = rows[r].v[k];
            sums[k] += SQUARES ? v * v : v;
        }
}

__device__ inline void add_bins(unsigned long long *bins, double x) {
    const ExactTerm term = exact_term(x);
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (term.parts[k]) atomicAdd(&bins[term.at + k], (unsigned long long)term.parts[k]);
}

/* sum += scale * the sum of x, or of its squares */
template <bool SQUARES>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    exact_sum_kernel(ExactSum *sum, const float *__restrict__ x, float scale, int64_t n) {
    __shared__ unsigned long long bins[EXACT_BINS];
    if (threadIdx.x < EXACT_BINS) bins[threadIdx.x] = 0;
    __syncthreads();
    const int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE) * PARAMETER_TILE;
    for (int64_t i = first; i < n; i += (int64_t)gridDim.x * WARPS * PARAMETER_TILE) {
        double sums[PER_THREAD] = {};
        lane_sums<SQUARES>(sums, x + i, n - i);
        const double tile = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
        if (threadIdx.x % WARP_SIZE == 0) add_bins(bins, scale * tile);
    }
    __syncthreads();
    if (threadIdx.x < EXACT_BINS && bins[threadIdx.x])
        atomicAdd((unsigned long long *)&sum->bins[threadIdx.x], bins[threadIdx.x]);
}

__global__ void finish_stats_kernel(StepStats *stats, const StepSums *sums) {
    const float loss = (float)exact_value(&sums->loss), norm = (float)sqrt(exact_value(&sums->squares));
    stats->loss = loss;
    stats->grad_norm = norm;
    stats->bad = !isfinite(loss) || !isfinite(norm);
    stats->stop = sums->stop != 0;
    stats->save = sums->save != 0;
    stats->n_skipped += stats->bad;
}

/* The grid fits the device at once, so that few blocks add to the sum in memory. */
template <bool SQUARES> static void exact_sum(ExactSum *sum, const float *x, float scale, int64_t n) {
    const int64_t wanted = ceil_div<int64_t>(n, WARPS * PARAMETER_TILE);
    const int64_t most = (int64_t)cuda_device_attribute(cudaDevAttrMultiProcessorCount) * BLOCKS_PER_SM;
    exact_sum_kernel<SQUARES>
        <<<(unsigned)(wanted < most ? wanted : most), THREADS, 0, main_stream>>>(sum, x, scale, n);
    launch_check("exact_sum");
}

template <typename T> void loss_sum(ExactSum *sum, const float *losses, float scale, int64_t N) {
    exact_sum<false>(sum, losses, scale, N);
}

template <typename T> void sum_squares(ExactSum *sum, const float *grads, int64_t n) {
    exact_sum<true>(sum, grads, 1, n);
}

template <typename T> void finish_stats(StepStats *stats, const StepSums *sums) {
    finish_stats_kernel<<<1, 1, 0, main_stream>>>(stats, sums);
    launch_check("finish_stats");
}

/* One storage type, fp32, whatever that of the weights. */
template LossSum loss_sum<float>;
template LossSum loss_sum<bf16>;
template SumSquares sum_squares<float>;
template SumSquares sum_squares<bf16>;
template FinishStats finish_stats<float>;
template FinishStats finish_stats<bf16>;
