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
 * A cluster has 48 outputs, or 64, and all rows; each of its blocks has the channels of GROUPS of the eight warps above,
 * so that no block reads all of the rows. When the launch before ends, a block has its weights in registers, and its
 * channels of the rows come to shared memory all at once. It takes half of an SM's registers at most: the next launch
 * loads its weights beside it.
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

/* This thread's weights of the block's channels from `round` on, for the outputs from `output` on. */
template <typename S>
__device__ __forceinline__ void load_weights(int4 (&w)[S::LOADS][S::TILES], const FewRows<bf16> &a, int round,
                                             int output) {
    Rest rest[S::TILES];
#pragma unroll
    for (int o = 0; o < S::TILES; o++)
        rest[o] = rest_of(a.w, output + o * TILE, a.OC, round + S::channel0() + threadIdx.x % 4 * 8, a.IC);
#pragma unroll
    for (int i = 0; i < S::LOADS; i++)
#pragma unroll
        for (int o = 0; o < S::TILES; o++)
            w[i][o] = S::offset(i) < rest[o].left ? ld_global_once(rest[o].at + S::offset(i))
                                                  : make_int4(0, 0, 0, 0);
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

/* What other blocks send is added to this block's own, and written. row0, column0: of the first of a thread's numbers. */
template <typename S, int GROUPS>
__device__ __forceinline__ void finish_sums(S &shared, const FewRows<bf16> &a,
                                            const float (&acc)[GROUPS][2][S::TILES][4], int row0,
                                            int column0) {
    constexpr int FINISHED = GROUPS == 1 ? 1 : S::PARTS; /* of this block */
    const int p0 = GROUPS == 1 ? blockIdx.y : 0, first = blockIdx.x * S::OUTPUTS;
    float sums[FINISHED][4] = {};
    float2 bias_pair[FINISHED];
#pragma unroll
    for (int i = 0; i < FINISHED; i++)
        bias_pair[i] = *reinterpret_cast<const float2 *>(&shared.bias[column0 + (p0 + i) % S::TILES * TILE]);
    mbarrier_wait(shared_address(&shared.full), 0);
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
        load_weights<S>(w, a, round, output0);
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
    finish_sums<S, GROUPS>(shared, a, acc, row0, column0);
#endif
}

template <int ROW_WARPS, int TILES, int GROUPS, int STEPS> static void launch_split(const FewRows<bf16> &a) {
    typedef Split<ROW_WARPS, TILES, GROUPS, STEPS> S;
    const auto kernel = few_rows_split_kernel<ROW_WARPS, TILES, GROUPS, STEPS>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(S)));
    launch_early("linear_few_rows", kernel, dim3(ceil_div(a.OC, (int)S::OUTPUTS), S::CLUSTER), SPLIT_THREADS,
                 sizeof(S), S::CLUSTER, a);
}

/* ---- more than 16 rows and very many outputs, as of the head, on Hopper ----
 *
 * A block keeps all rows in registers, a warp the channels of its steps, and takes tiles of outputs in turn. The weights
 * of the next LOOP_AHEAD tiles are under way: a fifth of the head comes before the launch before has ended and while the
 * rows are loaded. A warp adds up the tile before while its own products of a tile are made, so a barrier a tile,
 * that of the sums, is all there is, and it is seldom waited for; it also says that a tile's weights have been read.
 *
 * Of its two products a thread has outputs 4t to 4t + 3 of a tile: their columns are those rows of the weight. */
enum {
    LOOP_ROUNDS = 3,
    LOOP_COLUMNS = 2 * TILE, /* a tile */
    LOOP_AHEAD = 6,
    LOOP_CHUNKS = LOOP_ROUNDS * ROUND / 8, /* of 16 bytes, in a row of the weight */
    LOOP_APART = LOOP_CHUNKS + CHUNKS      /* so that two rows are in different banks */
};

template <int ROWS> struct Loop {
    int4 w[LOOP_AHEAD][LOOP_COLUMNS][LOOP_APART];
    int4 sums[2][WARPS][2 * ROWS][WARP_SIZE]; /* of eight rows, as they lie in registers */
    uint64_t loaded[LOOP_AHEAD], summed[2];
};

__device__ __forceinline__ int first_of_tile(int tile) {
    return (tile * (int)gridDim.x + (int)blockIdx.x) * LOOP_COLUMNS;
}

/* Starts to bring the weights of the block's tile: a warp two rows, as lanes issue their copies one by one. */
template <int ROWS>
__device__ __forceinline__ void load_tile(Loop<ROWS> &shared, const FewRows<bf16> &a, int tile) {
    const int lane = threadIdx.x % WARP_SIZE, row = threadIdx.x / WARP_SIZE * 2 + lane;
    const int first = first_of_tile(tile), n = min(a.OC - first, (int)LOOP_COLUMNS);
    const uint32_t loaded = shared_address(&shared.loaded[tile % LOOP_AHEAD]),
                   row_bytes = a.IC * sizeof(bf16);
    if (threadIdx.x == 0 && n > 0) mbarrier_arrive_expect_tx(loaded, n * row_bytes);
    if (lane < 2 && row < n)
        bulk_load(shared_address(shared.w[tile % LOOP_AHEAD][row]), a.w + (int64_t)(first + row) * a.IC,
                  row_bytes, loaded);
}
static_assert((int)LOOP_COLUMNS == 2 * WARPS, "two rows a warp");

/* Eight rows of a tile: all warps' sums are added, in their order. */
template <int ROWS>
__device__ __forceinline__ void finish_tile(Loop<ROWS> &shared, const FewRows<bf16> &a, int tile) {
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int row = warp * 8 + lane / 4, output = first_of_tile(tile) + lane % 4 * 4;
    mbarrier_wait(shared_address(&shared.summed[tile % 2]), tile / 2 % 2);
    load_tile(shared, a, tile + LOOP_AHEAD);
    if (row >= a.N || output >= a.OC) return;
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) add(sum, shared.sums[tile % 2][w][warp][lane]);
    *reinterpret_cast<uint2 *>(a.y + (int64_t)row * a.OC + output) =
        make_uint2(cvt_bf16x2(sum[0], sum[1]), cvt_bf16x2(sum[2], sum[3]));
}

template <int ROWS> __global__ void __launch_bounds__(THREADS, 1) few_rows_loop_kernel(FewRows<bf16> a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ int4 dynamic[];
    Loop<ROWS> &shared = *reinterpret_cast<Loop<ROWS> *>(dynamic);
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, g = lane / 4, t = lane % 4;
    const int k0 = warp * STEP + t * 8, w_row = g / 2 * 4 + g % 2;
    const int4 zero = make_int4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < LOOP_AHEAD; i++) mbarrier_init(shared_address(&shared.loaded[i]), 1);
        for (int i = 0; i < 2; i++) mbarrier_init(shared_address(&shared.summed[i]), WARPS);
        fence_mbarrier_init();
    }
    __syncthreads();
    for (int tile = 0; tile < LOOP_AHEAD; tile++) load_tile(shared, a, tile);
    wait_early();
    int4 x[LOOP_ROUNDS][ROWS][2];
#pragma unroll
    for (int s = 0; s < LOOP_ROUNDS; s++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = k0 + s * ROUND, at_row = r * 16 + half * 8 + g;
                const bf16 *at = a.x + (int64_t)at_row * a.IC + k;
                x[s][r][half] = k < a.IC && at_row < a.N ? *reinterpret_cast<const int4 *>(at) : zero;
            }
    int tile = 0;
    for (; first_of_tile(tile) < a.OC; tile++) {
        const int stage = tile % LOOP_AHEAD;
        float acc[ROWS][2][4] = {};
        mbarrier_wait(shared_address(&shared.loaded[stage]), tile / LOOP_AHEAD % 2);
#pragma unroll
        for (int s = 0; s < LOOP_ROUNDS; s++) {
            const int k = k0 + s * ROUND;
            int4 w[2];
#pragma unroll
            for (int o = 0; o < 2; o++) w[o] = k < a.IC ? shared.w[stage][w_row + 2 * o][k / 8] : zero;
#pragma unroll
            for (int r = 0; r < ROWS; r++) multiply_step(acc[r], x[s][r][0], x[s][r][1], w);
        }
        if (tile > 0) finish_tile(shared, a, tile - 1);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float sums[4] = {acc[r][0][2 * half], acc[r][0][2 * half + 1], acc[r][1][2 * half],
                                       acc[r][1][2 * half + 1]};
                shared.sums[tile % 2][warp][2 * r + half][lane] = bits_of(sums);
            }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&shared.summed[tile % 2]));
    }
    finish_tile(shared, a, tile - 1);
#endif
}

template <int ROWS> static void launch_loop(const FewRows<bf16> &a) {
    const auto kernel = few_rows_loop_kernel<ROWS>;
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Loop<ROWS>)));
    launch_early("linear_few_rows", kernel, dim3(cuda_sm_count()), THREADS, sizeof(Loop<ROWS>), 1, a);
}

/* Where every block reads all rows: with many, more outputs a block, as long as that leaves most of the card with one. */
static void run(const FewRows<bf16> &a) {
    const bool wide = a.OC >= 2 * TILE * cuda_sm_count();
    const bool hopper = cuda_compute_capability() == 90, splits = hopper && a.OC % 2 == 0;
    const bool loops = hopper && a.IC <= LOOP_ROUNDS * ROUND && a.OC % 4 == 0 && !a.bias && !a.pre_gelu &&
                       a.OC >= 4 * LOOP_COLUMNS * cuda_sm_count();
    if (a.N <= 16)
        launch<1, 1, 4>(a);
    else if (loops)
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
