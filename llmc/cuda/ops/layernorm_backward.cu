/* LayerNorm (Ba et al. 2016), backward: dx, dweight, dbias and the column sums of dx in one pass over dout, x
 * and dresidual.
 *
 * With n = (x - mean) rstd and d = dout weight:
 *
 *   dx = dresidual + rstd (d - mean(d) - n mean(d n))
 *   dweight += sum over rows of dout n
 *   dbias += sum over rows of dout
 *   dx_sums += sum over rows of dx, before it is rounded
 *
 * A thread owns 16 bytes of columns for all rows of its block, so the sums over rows collect in registers;
 * the two means need the block. A turn is four rows, which share one barrier; while one turn is computed the
 * next is on its way to shared memory by asynchronous copies, so that HBM never waits for arithmetic. A
 * thread reads back only what it copied itself. Blocks leave partial sums in scratch, which column_sums.cu
 * adds in order. */
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

enum {
    ROWS = 4,      /* per turn */
    STAGES = 2,    /* turns in shared memory: one computed, one arriving */
    MIN_TURNS = 4, /* of a block: partial sums are written once a block, at the price of half a turn */
    INPUTS = 3,    /* dout, x, dresidual */
    SUMS = 3,      /* dweight, dbias, dx */
    WIDE_THREADS = 256,
    MAX_BLOCKS = 1024, /* bounds the scratch, whatever the device */
    MAX_WIDE_BLOCKS = 128,
    MAX_THREADS = 384, /* 3072 channels in bf16; what is wider, or does not fit shared memory, is wide */
    MAX_WARPS = MAX_THREADS / WARP_SIZE,
};

template <typename T> struct Rows {
    const T *dresidual, *dout, *x, *weight; /* dresidual NULL: 0 */
    const float *mean, *rstd;
    int64_t N;
    int C;
};

/* ---- one turn of ROWS rows, a thread's 16 bytes of each ---- */

/* Where this thread keeps its part of a row. */
__device__ inline int4 *slot(int stage, int row, int input) {
    extern __shared__ int4 slots[];
    return slots + ((stage * ROWS + row) * INPUTS + input) * blockDim.x + threadIdx.x;
}

/* In one access: left to itself the compiler reads element by element. */
template <typename T> __device__ inline Vec<T> load_slot(int stage, int row, int input) {
    const int4 bits = *slot(stage, row, input);
    Vec<T> x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Starts copying rows row.. of the thread's columns; rows and columns that are not there become 0. */
template <typename T> __device__ inline void fetch(const Rows<T> &in, int64_t row, int stage) {
    const int c = threadIdx.x * Vec<T>::N;
    const int64_t first = row * in.C + c;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool exists = row + r < in.N && c < in.C;
        const int64_t i = first + r * in.C;
        cp_async_16(shared_address(slot(stage, r, 0)), in.dout + i, exists);
        cp_async_16(shared_address(slot(stage, r, 1)), in.x + i, exists);
        if (in.dresidual) cp_async_16(shared_address(slot(stage, r, 2)), in.dresidual + i, exists);
    }
    cp_async_commit();
}

/* n = scale x + shift */
struct Normal {
    float scale, shift;
};

/* Lane r < ROWS: mean of row + r; lane ROWS + r: its rstd. */
template <typename T> __device__ inline float fetch_statistics(const Rows<T> &in, int64_t row) {
    const int lane = threadIdx.x % WARP_SIZE;
    const int64_t mine = row + lane % ROWS;
    return lane < 2 * ROWS && mine < in.N ? (lane < ROWS ? in.mean : in.rstd)[mine] : 0;
}
__device__ inline Normal normal_of(float statistics, int r) {
    const float mean = __shfl_sync(0xffffffffu, statistics, r);
    const float rstd = __shfl_sync(0xffffffffu, statistics, ROWS + r);
    return {rstd, -mean * rstd};
}

/* sum[0] = of d, sum[1] = of d n, over a thread's columns of a row */
template <typename T>
__device__ inline void thread_sums(float sum[2], const Vec<T> &dout, const Vec<T> &x,
                                   const float (&w)[Vec<T>::N], Normal normal) {
    float g[Vec<T>::N], in[Vec<T>::N];
    to_floats(g, dout);
    to_floats(in, x);
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int k = 0; k < Vec<T>::N; k++) {
        const float d = g[k] * w[k];
        sum[0] += d;
        sum[1] = fmaf(d, fmaf(in[k], normal.scale, normal.shift), sum[1]);
    }
}

/* Adds each of the 2*ROWS values over the block in a fixed order. In a warp, lanes first share out the
 * values, half of them at each step, so that 9 shuffles do what 40 would. buffer is one of two that turns
 * alternate between, so one barrier a turn is enough: nobody writes a buffer before all have left the turn
 * that read it. */
__device__ inline void block_sums(float (&value)[2 * ROWS], float (*buffer)[2 * ROWS]) {
    static_assert(2 * ROWS == 8, "lane / 4 is the value that the lane ends with");
    const int lane = threadIdx.x % WARP_SIZE, n_warps = blockDim.x / WARP_SIZE;
#pragma unroll
    for (int n = ROWS, offset = WARP_SIZE / 2; n > 0; n /= 2, offset /= 2) {
        const bool upper = lane & offset;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float sent = upper ? value[i] : value[i + n], kept = upper ? value[i + n] : value[i];
            value[i] = kept + __shfl_xor_sync(0xffffffffu, sent, offset);
        }
    }
    value[0] += __shfl_xor_sync(0xffffffffu, value[0], 2);
    value[0] += __shfl_xor_sync(0xffffffffu, value[0], 1);
    if (lane % 4 == 0) buffer[threadIdx.x / WARP_SIZE][lane / 4] = value[0];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) value[i] = 0;
#pragma unroll 1
    for (int w = 0; w < n_warps; w++) {
#pragma unroll
        for (int i = 0; i < 2 * ROWS; i += 4) {
            const Vec<float> part = load_vec(&buffer[w][i]);
#pragma unroll
            for (int k = 0; k < 4; k++) value[i + k] += part.v[k];
        }
    }
}

/* Over the rows of a block so far, for the thread's columns. */
template <int VEC> struct Totals { float dweight[VEC], dbias[VEC], dx[VEC]; };

/* dx (16 bytes) of a row; adds to the totals. */
template <typename T>
__device__ inline Vec<T> finish_row(Totals<Vec<T>::N> &totals, const Vec<T> &dout, const Vec<T> &x,
                                    const Vec<T> &dresidual, const float (&w)[Vec<T>::N], Normal normal,
                                    float mean_d, float mean_dn) {
    const float of_n = -normal.scale * mean_dn, constant = -normal.scale * mean_d;
    float g[Vec<T>::N], in[Vec<T>::N], residual[Vec<T>::N];
    to_floats(g, dout);
    to_floats(in, x);
    to_floats(residual, dresidual);
    Vec<T> dx;
#pragma unroll
    for (int k = 0; k < Vec<T>::N; k++) {
        const float n = fmaf(in[k], normal.scale, normal.shift);
        const float sum = fmaf(g[k] * w[k], normal.scale, fmaf(n, of_n, residual[k] + constant));
        totals.dweight[k] = fmaf(g[k], n, totals.dweight[k]);
        totals.dbias[k] += g[k];
        totals.dx[k] += sum;
        dx.v[k] = from_float<T>(sum);
    }
    return dx;
}

/* 16 bytes at a time: word by word, every store of a warp would touch 32 sectors. */
template <int VEC> __device__ inline void store_floats(float *p, const float (&f)[VEC]) {
#pragma unroll
    for (int k = 0; k < VEC; k += 4) store_vec(p + k, Vec<float>{f[k], f[k + 1], f[k + 2], f[k + 3]});
}

/* ---- kernels ---- */

/* partials (gridDim.x, SUMS, C) =: sums over the rows of a block. dx may be dresidual. A column that is not
 * there has weight and inputs 0 and adds nothing to the means. */
template <typename T>
__global__ void __launch_bounds__(MAX_THREADS)
    layernorm_backward_kernel(T *dx, float *__restrict__ partials, Rows<T> in) {
    constexpr int VEC = Vec<T>::N;
    __shared__ __align__(16) float buffers[STAGES][MAX_WARPS][2 * ROWS];
    const int c = threadIdx.x * VEC;
    const bool active = c < in.C;
    const float per_channel = 1.0f / (float)in.C;
    const int64_t stride = (int64_t)gridDim.x * ROWS;
    Totals<VEC> totals = {};
    float w[VEC] = {};
    if (active) to_floats(w, load_vec(in.weight + c));
    for (int i = 0; i < STAGES * ROWS; i++) *slot(i / ROWS, i % ROWS, 2) = int4{}; /* no dresidual: 0 */

    int64_t row = (int64_t)blockIdx.x * ROWS;
    fetch(in, row, 0);
    float next_statistics = fetch_statistics(in, row);
    for (int stage = 0; row < in.N; row += stride, stage ^= 1) {
        const float statistics = next_statistics;
        fetch(in, row + stride, stage ^ 1);
        next_statistics = fetch_statistics(in, row + stride);
        cp_async_wait<1>();
        float sums[2 * ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            thread_sums(&sums[2 * r], load_slot<T>(stage, r, 0), load_slot<T>(stage, r, 1), w,
                        normal_of(statistics, r));
        block_sums(sums, buffers[stage]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            /* a row that is not there has rstd and inputs 0 and adds nothing */
            const Vec<T> out = finish_row(totals, load_slot<T>(stage, r, 0), load_slot<T>(stage, r, 1),
                                          load_slot<T>(stage, r, 2), w, normal_of(statistics, r),
                                          sums[2 * r] * per_channel, sums[2 * r + 1] * per_channel);
            if (active && row + r < in.N) store_vec(dx + (row + r) * in.C + c, out);
        }
    }
    if (!active) return;
    float *mine = partials + (int64_t)blockIdx.x * SUMS * in.C + c;
    store_floats(mine, totals.dweight);
    store_floats(mine + in.C, totals.dbias);
    store_floats(mine + 2 * in.C, totals.dx);
}

/* Rows wider than that: one row at a time, read twice, sums of columns in scratch. */
template <typename T>
__global__ void __launch_bounds__(WIDE_THREADS)
    layernorm_backward_wide_kernel(T *dx, float *__restrict__ partials, Rows<T> in) {
    float *dweight = partials + (int64_t)blockIdx.x * SUMS * in.C, *dbias = dweight + in.C;
    float *dx_sums = dbias + in.C;
    for (int64_t row = blockIdx.x; row < in.N; row += gridDim.x) {
        const bool first = row == blockIdx.x;
        const float mean = in.mean[row], rstd = in.rstd[row];
        const T *dout = in.dout + row * in.C, *x = in.x + row * in.C;
        float sum_d = 0, sum_dn = 0;
        for (int c = threadIdx.x; c < in.C; c += WIDE_THREADS) {
            const float d = to_float(dout[c]) * to_float(in.weight[c]);
            sum_d += d;
            sum_dn += d * ((to_float(x[c]) - mean) * rstd);
        }
        const float mean_d = block_sum(sum_d) / (float)in.C, mean_dn = block_sum(sum_dn) / (float)in.C;
        for (int c = threadIdx.x; c < in.C; c += WIDE_THREADS) {
            const int64_t i = row * in.C + c;
            const float g = to_float(dout[c]), n = (to_float(x[c]) - mean) * rstd;
            const float residual = in.dresidual ? to_float(in.dresidual[i]) : 0;
            const float sum = residual + rstd * (g * to_float(in.weight[c]) - mean_d - n * mean_dn);
            dx[i] = from_float<T>(sum);
            dweight[c] = (first ? 0 : dweight[c]) + g * n;
            dbias[c] = (first ? 0 : dbias[c]) + g;
            dx_sums[c] = (first ? 0 : dx_sums[c]) + sum;
        }
    }
}

/* ---- launch ---- */

/* How the device takes rows of one width. */
typedef struct LaunchShape {
    int threads; /* 0: not known yet */
    int shared_bytes;
    int blocks; /* that fill the device once; 0: only the wide kernel takes these rows */
} LaunchShape;

template <typename T> static LaunchShape launch_shape(int vecs) {
    static LaunchShape last; /* a model has one width */
    const int threads = ceil_div<int>(vecs, WARP_SIZE) * WARP_SIZE;
    if (last.threads == threads) return last;
    last = LaunchShape{threads, STAGES * ROWS * INPUTS * threads * (int)sizeof(Vec<T>), 0};
    const auto kernel = layernorm_backward_kernel<T>;
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    const int limit = cuda_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (threads > MAX_THREADS || last.shared_bytes + (int)attributes.sharedSizeBytes > limit) return last;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, last.shared_bytes));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    int per_sm = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, last.shared_bytes));
    last.blocks = per_sm * cuda_sm_count();
    return last;
}

/* As few as do the turns in the time that `most` blocks need: each leaves partial sums to be added. */
static int blocks_of(int64_t turns, int most) {
    const int64_t of_each = ceil_div<int64_t>(turns, most);
    return (int)ceil_div<int64_t>(turns, of_each < MIN_TURNS ? (int64_t)MIN_TURNS : of_each);
}

template <typename T>
void layernorm_backward(floatX *dx, float *dweight, float *dbias, float *dx_sums, const floatX *dresidual,
                        const floatX *dout, const floatX *x, const floatX *weight, const float *mean,
                        const float *rstd, void *scratch, int64_t N, int C) {
    const Rows<T> in = {
        (const T *)dresidual, (const T *)dout, (const T *)x, (const T *)weight, mean, rstd, N, C};
    float *partials = (float *)scratch;
    const LaunchShape shape = launch_shape<T>(C / Vec<T>::N);
    int blocks;
    if (shape.blocks > 0) {
        blocks = blocks_of(ceil_div<int64_t>(N, ROWS), shape.blocks < MAX_BLOCKS ? shape.blocks : MAX_BLOCKS);
        layernorm_backward_kernel<<<blocks, shape.threads, shape.shared_bytes, main_stream>>>((T *)dx,
                                                                                              partials, in);
    } else {
        blocks = N < MAX_WIDE_BLOCKS ? (int)N : MAX_WIDE_BLOCKS;
        layernorm_backward_wide_kernel<<<blocks, WIDE_THREADS, 0, main_stream>>>((T *)dx, partials, in);
    }
    launch_check("layernorm_backward");
    add_partial_rows(
        PartialSums{
            {dweight, dbias, dx_sums},
            dx_sums ? 3 : 2, SUMS
    },
        partials, blocks, C);
}

/* Enough for either kernel: which one takes a width depends on the device. */
size_t layernorm_scratch_bytes(int C) {
    const bool wide = C > MAX_THREADS * Vec<bf16>::N; /* in both storage types */
    return sizeof(float) * SUMS * (size_t)C * (wide ? MAX_WIDE_BLOCKS : MAX_BLOCKS);
}

template LayernormBackward layernorm_backward<float>;
template LayernormBackward layernorm_backward<bf16>;
