/* Linear layers of few rows, as decoding has them: N <= 64. The weight is read once, from memory at its full speed; all
 * else hides behind that.
 *
 * A block of eight warps has some outputs and all rows. Steps of 32 input channels go to its warps in turn; then the
 * warps' sums are added in their order. So a row's result has the same bits whatever the rows beside it, and however many:
 * shapes of tiles differ, sums do not. While the launch before ends, a block loads its first weights.
 *
 * bf16 goes through tensor cores, 16 rows by 8 outputs: with one row they idle, and cost nothing. A thread loads 16 bytes
 * of a row, eight channels of the 32; which four make up k of the first product and which of the second is the same for
 * both operands, so the order inside does not matter. */
#include <cooperative_groups.h>
#include "kernels.cuh"
#include "llmc/cuda/decode/steps.cuh"
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/ops/gelu.cuh"

enum {
    WARPS = 8,
    THREADS = WARPS * WARP_SIZE,
    STEP = 32,            /* channels of a warp at a time */
    ROUND = WARPS * STEP, /* and of a block */
    MAX_ROWS = 64,
    TILE = 8 /* outputs of one product */
};

template <typename T> struct FewRows {
    T *y, *pre_gelu; /* (N,OC); pre_gelu or NULL */
    const T *x, *w, *bias;
    int N, OC, IC;
};

/* One output: sum is the product's. */
template <typename T>
__device__ __forceinline__ void finish(const FewRows<T> &a, int row, int column, float sum, float bias) {
    const int64_t at = (int64_t)row * a.OC + column;
    const T rounded = from_float<T>(sum + bias);
    if (!a.pre_gelu) {
        a.y[at] = rounded;
        return;
    }
    a.pre_gelu[at] = rounded;
    a.y[at] = from_float<T>(gelu<T>(sum + bias)); /* not of what is rounded, as the other kernels have it */
}
template <typename T> __device__ __forceinline__ float bias_of(const FewRows<T> &a, int column) {
    return a.bias && column < a.OC ? to_float(a.bias[column]) : 0.0f;
}

/* ---- bf16 ---- */

/* A step of 16 rows, of which a thread holds two, and OUTPUTS tiles of outputs. */
template <int OUTPUTS>
__device__ __forceinline__ void multiply_step(float (&acc)[OUTPUTS][4], const int4 &x0, const int4 &x1,
                                              const int4 (&w)[OUTPUTS]) {
    const uint32_t low[4] = {(uint32_t)x0.x, (uint32_t)x1.x, (uint32_t)x0.y, (uint32_t)x1.y},
                   high[4] = {(uint32_t)x0.z, (uint32_t)x1.z, (uint32_t)x0.w, (uint32_t)x1.w};
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        mma_m16n8k16(acc[o], low, w[o].x, w[o].y);
        mma_m16n8k16(acc[o], high, w[o].z, w[o].w);
    }
}

/* Blocks of OUTPUTS tiles of outputs and ROWS tiles of 16 rows; AHEAD steps of both operands are under way at a time. */
template <int ROWS, int OUTPUTS, int AHEAD>
__global__ void __launch_bounds__(THREADS) few_rows_bf16_kernel(FewRows<bf16> a) {
    constexpr int TILES = OUTPUTS * ROWS > 8 ? 8 / ROWS : OUTPUTS,
                  COLUMNS = TILES * TILE; /* summed at once */
    __shared__ float sums[WARPS][ROWS * 16][COLUMNS];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, g = lane / 4, t = lane % 4;
    const int first = blockIdx.x * OUTPUTS * TILE, column = threadIdx.x % COLUMNS;
    const int4 zero = make_int4(0, 0, 0, 0);
    float acc[ROWS][OUTPUTS][4] = {}, bias[OUTPUTS / TILES];
#pragma unroll
    for (int o = 0; o < OUTPUTS / TILES; o++) bias[o] = bias_of(a, first + o * COLUMNS + column);
    for (int k0 = warp * STEP + t * 8, round = 0; round < a.IC; k0 += AHEAD * ROUND, round += AHEAD * ROUND) {
        int4 w[AHEAD][OUTPUTS], x[AHEAD][ROWS][2];
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                const int k = k0 + s * ROUND, output = first + o * TILE + g;
                w[s][o] = k < a.IC && output < a.OC ? ld_global_once(a.w + (int64_t)output * a.IC + k) : zero;
            }
        if (round == 0) wait_early();
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int k = k0 + s * ROUND, row = r * 16 + half * 8 + g;
                    const bf16 *at = a.x + (int64_t)row * a.IC + k;
                    x[s][r][half] = k < a.IC && row < a.N ? *reinterpret_cast<const int4 *>(at) : zero;
                }
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) multiply_step(acc[r], x[s][r][0], x[s][r][1], w[s]);
    }
#pragma unroll
    for (int from = 0; from < OUTPUTS; from += TILES) {
        if (from > 0) __syncthreads(); /* the sums before have been read */
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int o = 0; o < TILES; o++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[warp][r * 16 + g + i / 2 * 8][o * TILE + 2 * t + i % 2] = acc[r][from + o][i];
        __syncthreads();
        for (int row = threadIdx.x / COLUMNS; row < a.N; row += THREADS / COLUMNS) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w][row][column];
            const int output = first + from * TILE + column;
            if (output < a.OC) finish(a, row, output, sum, bias[from / TILES]);
        }
    }
}

template <int ROWS, int OUTPUTS, int AHEAD> static void launch(const FewRows<bf16> &a) {
    launch_early("linear_few_rows", few_rows_bf16_kernel<ROWS, OUTPUTS, AHEAD>,
                 dim3(ceil_div(a.OC, OUTPUTS * TILE)), THREADS, 0, 1, a);
}

/* More than 16 rows, on Hopper: a cluster has 64 outputs, and each of its eight blocks the channels that one warp has above;
 * so the rows are read once a cluster. The blocks' sums are added through shared memory, each block's for its eighth of
 * the rows. Of a block's tile a warp has 16 ROWS rows and 16 outputs. */
enum { SPLIT = WARPS, SPLIT_OUTPUTS = 64, WARP_TILES = 2, ROW_WARPS = 2 };

template <int ROWS, int AHEAD>
__global__ void __launch_bounds__(THREADS, 1) few_rows_split_kernel(FewRows<bf16> a) {
#if __CUDA_ARCH__ >= 900
    constexpr int BLOCK_ROWS = ROW_WARPS * ROWS * 16, STRIDE = SPLIT_OUTPUTS + 4;
    __shared__ float sums[BLOCK_ROWS][STRIDE];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, g = lane / 4, t = lane % 4;
    const int row0 = warp % ROW_WARPS * ROWS * 16, column0 = warp / ROW_WARPS * WARP_TILES * TILE;
    const int first = blockIdx.x * SPLIT_OUTPUTS;
    const int4 zero = make_int4(0, 0, 0, 0);
    float acc[ROWS][WARP_TILES][4] = {};
    for (int k0 = blockIdx.y * STEP + t * 8, round = 0; round < a.IC;
         k0 += AHEAD * ROUND, round += AHEAD * ROUND) {
        int4 w[AHEAD][WARP_TILES], x[AHEAD][ROWS][2];
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
#pragma unroll
            for (int o = 0; o < WARP_TILES; o++) {
                const int k = k0 + s * ROUND, output = first + column0 + o * TILE + g;
                w[s][o] = k < a.IC && output < a.OC ? ld_global_once(a.w + (int64_t)output * a.IC + k) : zero;
            }
        if (round == 0) wait_early();
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int k = k0 + s * ROUND, row = row0 + r * 16 + half * 8 + g;
                    const bf16 *at = a.x + (int64_t)row * a.IC + k;
                    x[s][r][half] = k < a.IC && row < a.N ? *reinterpret_cast<const int4 *>(at) : zero;
                }
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) multiply_step(acc[r], x[s][r][0], x[s][r][1], w[s]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int o = 0; o < WARP_TILES; o++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[row0 + r * 16 + g + i / 2 * 8][column0 + o * TILE + 2 * t + i % 2] = acc[r][o][i];
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    cluster.sync();
    const int column = threadIdx.x % SPLIT_OUTPUTS, output = first + column;
    const float bias = bias_of(a, output);
    for (int i = threadIdx.x / SPLIT_OUTPUTS; i < BLOCK_ROWS / SPLIT; i += THREADS / SPLIT_OUTPUTS) {
        const int row = blockIdx.y * (BLOCK_ROWS / SPLIT) + i;
        float part[SPLIT], sum = 0;
#pragma unroll
        for (int b = 0; b < SPLIT; b++) part[b] = *cluster.map_shared_rank(&sums[row][column], b);
#pragma unroll
        for (int b = 0; b < SPLIT; b++) sum += part[b];
        if (row < a.N && output < a.OC) finish(a, row, output, sum, bias);
    }
    cluster.sync(); /* nobody goes while it is read */
#endif
}

template <int ROWS, int AHEAD> static void launch_split(const FewRows<bf16> &a) {
    launch_early("linear_few_rows", few_rows_split_kernel<ROWS, AHEAD>,
                 dim3(ceil_div(a.OC, (int)SPLIT_OUTPUTS), SPLIT), THREADS, 0, SPLIT, a);
}

/* Many outputs of up to 768 channels: a block keeps all rows in registers and takes tiles of outputs in turn, the weights of
 * the next LOOP_AHEAD under way. */
enum { LOOP_ROUNDS = 3, LOOP_TILES = 2, LOOP_COLUMNS = LOOP_TILES * TILE, LOOP_AHEAD = 3 };

__device__ __forceinline__ void load_weights(int4 (&w)[LOOP_ROUNDS][LOOP_TILES], const FewRows<bf16> &a,
                                             int k0, int output) {
#pragma unroll
    for (int s = 0; s < LOOP_ROUNDS; s++)
#pragma unroll
        for (int o = 0; o < LOOP_TILES; o++)
            w[s][o] = k0 + s * ROUND < a.IC && output + o * TILE < a.OC
                          ? ld_global_once(a.w + (int64_t)(output + o * TILE) * a.IC + k0 + s * ROUND)
                          : make_int4(0, 0, 0, 0);
}

/* Four rows that a warp writes at once are in different banks. */
__device__ __forceinline__ int place_of(int row, int column) {
    return column ^ (row & 2) * 4;
}

template <int ROWS> __global__ void __launch_bounds__(THREADS, 1) few_rows_loop_kernel(FewRows<bf16> a) {
    __shared__ float sums[WARPS][ROWS * 16][LOOP_COLUMNS];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, g = lane / 4, t = lane % 4;
    const int k0 = warp * STEP + t * 8, column = threadIdx.x % LOOP_COLUMNS, apart = gridDim.x * LOOP_COLUMNS;
    int4 w[LOOP_AHEAD][LOOP_ROUNDS][LOOP_TILES], x[LOOP_ROUNDS][ROWS][2];
#pragma unroll
    for (int u = 0; u < LOOP_AHEAD; u++) load_weights(w[u], a, k0, blockIdx.x * LOOP_COLUMNS + u * apart + g);
    wait_early();
#pragma unroll
    for (int s = 0; s < LOOP_ROUNDS; s++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = k0 + s * ROUND, at_row = r * 16 + half * 8 + g;
                const bf16 *at = a.x + (int64_t)at_row * a.IC + k;
                x[s][r][half] =
                    k < a.IC && at_row < a.N ? *reinterpret_cast<const int4 *>(at) : make_int4(0, 0, 0, 0);
            }
    for (int round = blockIdx.x * LOOP_COLUMNS; round < a.OC; round += LOOP_AHEAD * apart)
#pragma unroll
        for (int u = 0; u < LOOP_AHEAD; u++) {
            const int first = round + u * apart, output = first + column;
            if (first >= a.OC) return;
            float acc[ROWS][LOOP_TILES][4] = {};
#pragma unroll
            for (int s = 0; s < LOOP_ROUNDS; s++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) multiply_step(acc[r], x[s][r][0], x[s][r][1], w[u][s]);
            load_weights(w[u], a, k0, first + LOOP_AHEAD * apart + g);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int o = 0; o < LOOP_TILES; o++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int row = r * 16 + g + i / 2 * 8;
                        sums[warp][row][place_of(row, o * TILE + 2 * t) + i % 2] = acc[r][o][i];
                    }
            __syncthreads();
            const float bias = bias_of(a, output);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int row = i * (THREADS / LOOP_COLUMNS) + threadIdx.x / LOOP_COLUMNS;
                float sum = 0;
#pragma unroll
                for (int b = 0; b < WARPS; b++) sum += sums[b][row][place_of(row, column)];
                if (row < a.N && output < a.OC) finish(a, row, output, sum, bias);
            }
            __syncthreads(); /* the sums have been read */
        }
}
static_assert(THREADS / LOOP_COLUMNS == 16, "a thread finishes ROWS sums");

template <int ROWS> static void launch_loop(const FewRows<bf16> &a) {
    launch_early("linear_few_rows", few_rows_loop_kernel<ROWS>, dim3(cuda_sm_count()), THREADS, 0, 1, a);
}

/* Every block reads all rows: with many, more outputs a block, as long as that leaves most of the card with one. */
static void run(const FewRows<bf16> &a) {
    const bool wide = a.OC >= 2 * TILE * cuda_sm_count();
    if (a.N <= 16)
        launch<1, 1, 4>(a);
    else if (a.IC <= LOOP_ROUNDS * ROUND && a.OC >= 4 * LOOP_COLUMNS * cuda_sm_count())
        a.N <= 32 ? launch_loop<2>(a) : launch_loop<4>(a);
    else if (!wide && cuda_compute_capability() >= 90 && a.IC <= 3 * ROUND)
        a.N <= 32 ? launch_split<1, 3>(a) : launch_split<2, 3>(a);
    else if (!wide && cuda_compute_capability() >= 90)
        a.N <= 32 ? launch_split<1, 6>(a) : launch_split<2, 6>(a);
    else if (a.N <= 32)
        wide ? launch<2, 4, 3>(a) : launch<2, 1, 4>(a);
    else
        wide ? launch<4, 4, 3>(a) : launch<4, 1, 4>(a);
}

/* ---- fp32 ---- */

enum { FP32_ROWS = 8 };

/* A warp an output, lanes over the channels; FP32_ROWS rows at a time. */
__global__ void __launch_bounds__(THREADS) few_rows_fp32_kernel(FewRows<float> a) {
    wait_early();
    const int lane = threadIdx.x % WARP_SIZE, output = blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    if (output >= a.OC) return;
    const float *w = a.w + (int64_t)output * a.IC;
    for (int row = 0; row < a.N; row += FP32_ROWS) {
        float sum[FP32_ROWS] = {};
        for (int k = 4 * lane; k < a.IC; k += 4 * WARP_SIZE) {
            const Vec<float> wk = load_vec(w + k);
#pragma unroll
            for (int r = 0; r < FP32_ROWS; r++) {
                if (row + r >= a.N) break;
                const Vec<float> xk = load_vec(a.x + (int64_t)(row + r) * a.IC + k);
#pragma unroll
                for (int i = 0; i < 4; i++) sum[r] = fmaf(xk.v[i], wk.v[i], sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < FP32_ROWS; r++) {
            sum[r] = warp_sum(sum[r]);
            if (lane == r && row + r < a.N) finish(a, row + r, output, sum[r], bias_of(a, output));
        }
    }
}

static void run(const FewRows<float> &a) {
    launch_early("linear_few_rows", few_rows_fp32_kernel, dim3(ceil_div(a.OC, (int)WARPS)), THREADS, 0, 1, a);
}

template <typename T> static Step captured_linear(const LinearCall *c) {
    Step step = step_of<T>(STEP_LINEAR, c->x.rows, c->y.data, c->x.data);
    step.weight = c->w.data;
    step.bias = c->bias;
    step.OC = (int)c->w.rows;
    step.IC = c->w.columns;
    step.gelu = c->pre_gelu.data != NULL;
    return step;
}

template <typename T> static void run_as(const LinearCall *c) {
    step_captured(captured_linear<T>(c));
    const FewRows<T> a = {(T *)c->y.data,       (T *)c->pre_gelu.data, (const T *)c->x.data,
                          (const T *)c->w.data, (const T *)c->bias,    (int)c->x.rows,
                          (int)c->w.rows,       c->w.columns};
    run(a);
}

bool linear_few_rows(const LinearCall *c) {
    if (c->x.rows > MAX_ROWS) return false;
    if (c->x.dtype == DTYPE_BF16)
        run_as<bf16>(c);
    else
        run_as<float>(c);
    return true;
}
