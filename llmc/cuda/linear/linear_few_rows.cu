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
    for (int o = 0; o < OUTPUTS; o++) mma_m16n8k16(acc[o], low, w[o].x, w[o].y);
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) mma_m16n8k16(acc[o], high, w[o].z, w[o].w);
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

/* ---- more than 16 rows, on Hopper ----
 *
 * A cluster has 48 outputs, or 64, and all rows; each of its blocks has the channels of GROUPS of the eight warps above, so that no
 * block reads all of the rows. When the launch before ends, a block has its weights in registers, and its channels of
 * the rows come to shared memory all at once. It takes half of an SM's registers at most: the next launch loads its
 * weights beside it.
 *
 * A warp has 32 rows and TILES tiles of outputs, PARTS products in all. Sums go to the block that finishes them, as they
 * lie in registers; who sends does not stay. With a group a block, part p is finished by block p. With four, the first of
 * two blocks sends the sums of its groups, and the second adds its own and finishes: that is an eighth of the sums to
 * send, but more of the rows to read. */
enum {
    SPLIT_WARPS = 4,
    SPLIT_THREADS = SPLIT_WARPS * WARP_SIZE,
    SPLIT_ROUNDS = 3, /* that are waited for at once */
    LOOP_STEPS = 6,
    CHUNKS = STEP / 8 /* of 16 bytes, in a step of a row */
};

/* STEPS: of a group, at a time. */
template <int ROW_WARPS, int WARP_TILES, int GROUPS, int STEPS> struct Split {
    enum {
        CLUSTER = WARPS / GROUPS,
        ROWS = ROW_WARPS * 32,
        TILES = WARP_TILES,
        OUTPUTS = SPLIT_WARPS / ROW_WARPS * TILES * TILE,
        PARTS = 2 * TILES,
        LOADS = GROUPS * STEPS,
        BATCHES = LOADS / SPLIT_ROUNDS,
        SENDERS = GROUPS == 1 ? WARPS : PARTS, /* of 16 bytes to a thread */
        LOOPS = STEPS == LOOP_STEPS            /* else STEPS rounds are all */
    };
    static_assert(STEPS % SPLIT_ROUNDS == 0 && (GROUPS == 1 || CLUSTER == 2),
                  "batches and blocks that finish");
    int4 x[LOADS][ROWS][CHUNKS], sums[SENDERS][SPLIT_THREADS];
    float bias[OUTPUTS];
    uint64_t full;

    /* The first channel of a load behind that of the block's first, and of that one. */
    static constexpr __device__ int offset(int load) { return load / STEPS * STEP + load % STEPS * ROUND; }
    static __device__ __forceinline__ int channel0() { return (int)blockIdx.y * GROUPS * STEP; }
    /* Whether any of a batch's channels, from its first load on, are in a row. */
    static __device__ __forceinline__ bool has_batch(int load, int round, int IC) {
        return GROUPS > 1 || round + channel0() + offset(load) < IC;
    }
};

__device__ __forceinline__ void add(float (&sum)[4], const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] += x[i];
}
__device__ __forceinline__ int4 bits_of(const float (&x)[4]) {
    return make_int4(__float_as_int(x[0]), __float_as_int(x[1]), __float_as_int(x[2]), __float_as_int(x[3]));
}
__device__ __forceinline__ void add(float (&sum)[4], const int4 &x) {
    const float floats[4] = {__int_as_float(x.x), __int_as_float(x.y), __int_as_float(x.z),
                             __int_as_float(x.w)};
    add(sum, floats);
}

/* A thread's numbers of a product: two outputs of row and of row + 8. */
__device__ __forceinline__ void finish_part(const FewRows<bf16> &a, int row, int output,
                                            const float (&sum)[4], const float2 &bias) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t at = (int64_t)(row + 8 * half) * a.OC + output;
        const float x = sum[2 * half] + bias.x, y = sum[2 * half + 1] + bias.y;
        if (row + 8 * half >= a.N || output >= a.OC) continue;
        if (a.pre_gelu) *reinterpret_cast<uint32_t *>(a.pre_gelu + at) = cvt_bf16x2(x, y);
        *reinterpret_cast<uint32_t *>(a.y + at) =
            a.pre_gelu ? cvt_bf16x2(gelu<bf16>(x), gelu<bf16>(y)) : cvt_bf16x2(x, y);
    }
}

/* A row from channel k on, where it has `left` more; 0 if it is none of the n. */
struct Rest {
    const bf16 *at;
    int left;
};
__device__ __forceinline__ Rest rest_of(const bf16 *rows, int row, int n, int k, int IC) {
    return {rows + (int64_t)row * IC + k, row < n ? IC - k : 0};
}

/* Starts to bring this block's channels of the rows, from `round` on. */
template <typename S>
__device__ __forceinline__ void load_rows(S &shared, const FewRows<bf16> &a, int round) {
    constexpr int APART = SPLIT_THREADS / CHUNKS;
    const int chunk = threadIdx.x % CHUNKS, row0 = threadIdx.x / CHUNKS;
    Rest x[S::ROWS / APART];
#pragma unroll
    for (int r = 0; r < S::ROWS / APART; r++)
        x[r] = rest_of(a.x, row0 + r * APART, a.N, round + S::channel0() + chunk * 8, a.IC);
#pragma unroll
    for (int i = 0; i < S::LOADS; i++) {
        const bool wanted = S::has_batch(i / SPLIT_ROUNDS * SPLIT_ROUNDS, round, a.IC);
#pragma unroll
        for (int r = 0; r < S::ROWS / APART; r++)
            if (wanted)
                cp_async_16(shared_address(&shared.x[i][row0 + r * APART][chunk]), x[r].at + S::offset(i),
                            S::offset(i) < x[r].left);
        if (i % SPLIT_ROUNDS == SPLIT_ROUNDS - 1) cp_async_commit();
    }
}
/* Until all batches but the last `left` are there. */
__device__ __forceinline__ void wait_for_rows(int left) {
    if (left == 0)
        cp_async_wait<0>();
    else if (left == 1)
        cp_async_wait<1>();
    else if (left == 2)
        cp_async_wait<2>();
    else
        cp_async_wait<3>();
    __syncthreads();
}

template <typename S, int GROUPS>
__device__ __forceinline__ void send_sums(S &shared, const float (&acc)[GROUPS][2][S::TILES][4]) {
#pragma unroll
    for (int p = 0; p < S::PARTS; p++) {
        const int to = GROUPS == 1 ? p : 1, from = GROUPS == 1 ? blockIdx.y : p;
        float sum[4] = {};
#pragma unroll
        for (int i = 0; i < GROUPS; i++) add(sum, acc[i][p / S::TILES][p % S::TILES]);
        store_async_16(cluster_address(shared_address(&shared.sums[from][threadIdx.x]), to), bits_of(sum),
                       cluster_address(shared_address(&shared.full), to));
    }
}

template <int ROW_WARPS, int TILES, int GROUPS, int STEPS>
__global__ void __launch_bounds__(SPLIT_THREADS, 2) few_rows_split_kernel(FewRows<bf16> a) {
#if __CUDA_ARCH__ >= 900
    typedef Split<ROW_WARPS, TILES, GROUPS, STEPS> S;
    extern __shared__ int4 dynamic[];
    S &shared = *reinterpret_cast<S *>(dynamic);
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, g = lane / 4, t = lane % 4;
    const int row0 = warp % ROW_WARPS * 32 + g, column0 = warp / ROW_WARPS * S::TILES * TILE + 2 * t;
    const int first = blockIdx.x * S::OUTPUTS, output0 = first + column0 - 2 * t + g, rank = blockIdx.y;
    const uint32_t full = shared_address(&shared.full);
    const float bias = threadIdx.x < S::OUTPUTS ? bias_of(a, first + threadIdx.x) : 0.0f;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(full, sizeof shared.sums);
    }
    cluster_arrive();
    float acc[GROUPS][2][S::TILES][4] = {};
    for (int round = 0; round < a.IC; round += STEPS * ROUND) {
        int4 w[S::LOADS][S::TILES];
        Rest rest[S::TILES];
#pragma unroll
        for (int o = 0; o < S::TILES; o++)
            rest[o] = rest_of(a.w, output0 + o * TILE, a.OC, round + S::channel0() + t * 8, a.IC);
#pragma unroll
        for (int i = 0; i < S::LOADS; i++)
#pragma unroll
            for (int o = 0; o < S::TILES; o++)
                w[i][o] = S::offset(i) < rest[o].left ? ld_global_once(rest[o].at + S::offset(i))
                                                      : make_int4(0, 0, 0, 0);
        if (round == 0) {
            if (threadIdx.x < S::OUTPUTS) shared.bias[threadIdx.x] = bias;
            cluster_wait(); /* all blocks have their barriers */
            wait_early();
        } else {
            __syncthreads(); /* the rows before have been read */
        }
        load_rows(shared, a, round);
#pragma unroll
        for (int i = 0; i < S::LOADS; i++) {
            if (i % SPLIT_ROUNDS == 0) {
                wait_for_rows(S::BATCHES - 1 - i / SPLIT_ROUNDS); /* and the bias */
                if (!S::has_batch(i, round, a.IC)) break;
            }
            int4 x[2][2];
#pragma unroll
            for (int r = 0; r < 4; r++) x[r / 2][r % 2] = shared.x[i][row0 + r * 8][t];
#pragma unroll
            for (int r = 0; r < 2; r++) multiply_step(acc[i / STEPS][r], x[r][0], x[r][1], w[i]);
        }
        if (!S::LOOPS) break;
    }
    if (GROUPS == 1 || rank == 0) send_sums<S, GROUPS>(shared, acc);
    if (GROUPS == 1 ? rank >= S::PARTS : rank == 0) return;
    constexpr int FINISHED = GROUPS == 1 ? 1 : S::PARTS; /* of this block */
    const int p0 = GROUPS == 1 ? rank : 0;
    float sums[FINISHED][4] = {};
    float2 bias_pair[FINISHED];
#pragma unroll
    for (int i = 0; i < FINISHED; i++)
        bias_pair[i] = *reinterpret_cast<const float2 *>(&shared.bias[column0 + (p0 + i) % S::TILES * TILE]);
    mbarrier_wait(full, 0);
#pragma unroll
    for (int b = 0; b < S::SENDERS; b++) add(sums[GROUPS == 1 ? 0 : b], shared.sums[b][threadIdx.x]);
#pragma unroll
    for (int i = 0; i < FINISHED; i++) {
        if (GROUPS > 1)
#pragma unroll
            for (int b = 0; b < GROUPS; b++) add(sums[i], acc[b][i / S::TILES][i % S::TILES]);
        const int p = p0 + i;
        finish_part(a, row0 + p / S::TILES * 16, first + column0 + p % S::TILES * TILE, sums[i],
                    bias_pair[i]);
    }
#endif
}

template <int ROW_WARPS, int TILES, int GROUPS, int STEPS> static void launch_split(const FewRows<bf16> &a) {
    typedef Split<ROW_WARPS, TILES, GROUPS, STEPS> S;
    const auto kernel = few_rows_split_kernel<ROW_WARPS, TILES, GROUPS, STEPS>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(S)));
    launch_early("linear_few_rows", kernel, dim3(ceil_div(a.OC, (int)S::OUTPUTS), S::CLUSTER), SPLIT_THREADS,
                 sizeof(S), S::CLUSTER, a);
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

/* Where every block reads all rows: with many, more outputs a block, as long as that leaves most of the card with one. */
static void run(const FewRows<bf16> &a) {
    const bool wide = a.OC >= 2 * TILE * cuda_sm_count();
    const bool splits = cuda_compute_capability() >= 90 && a.OC % 2 == 0;
    if (a.N <= 16)
        launch<1, 1, 4>(a);
    else if (a.IC <= LOOP_ROUNDS * ROUND && a.OC >= 4 * LOOP_COLUMNS * cuda_sm_count())
        a.N <= 32 ? launch_loop<2>(a) : launch_loop<4>(a);
    else if (splits && wide && a.IC <= 3 * ROUND)
        a.N <= 32 ? launch_split<1, 2, 4, 3>(a) : launch_split<2, 3, 4, 3>(a);
    else if (splits && !wide && a.IC <= 3 * ROUND)
        a.N <= 32 ? launch_split<1, 2, 1, 3>(a) : launch_split<2, 3, 1, 3>(a);
    else if (splits && !wide && a.IC <= 12 * ROUND)
        a.N <= 32 ? launch_split<1, 2, 1, 12>(a) : launch_split<2, 3, 1, 12>(a);
    else if (splits && !wide)
        a.N <= 32 ? launch_split<1, 2, 1, LOOP_STEPS>(a) : launch_split<2, 3, 1, LOOP_STEPS>(a);
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
