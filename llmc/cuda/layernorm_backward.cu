/* LayerNorm (Ba et al. 2016), backward: dx, dweight and dbias in one pass over dout, x and dresidual.
 *
 * With n = (x - mean) rstd and d = dout weight:
 *
 *   dx = dresidual + rstd (d - mean(d) - n mean(d n))
 *   dweight += sum over rows of dout n
 *   dbias += sum over rows of dout
 *
 * A thread owns 16 bytes of columns for all rows of its block, so dweight and dbias collect in registers; the
 * two means need the block. Four rows at a time keep 12 loads of a thread in flight and share one barrier.
 * Blocks leave partial sums in scratch, which column_sums.cu adds in order. */
#include "cuda_ops.cuh"

enum {
    ROWS = 4, /* per turn */
    WIDE_THREADS = 256,
    BLOCKS_PER_SM = 4,
    MAX_BLOCKS = 1024, /* bounds the scratch, whatever the device */
    MAX_WIDE_BLOCKS = 128,
};

/* Threads that still have the registers for their rows (168 and 128); wider rows, beyond 3072 channels in
 * bf16 and 2048 in fp32, take the wide kernel. */
template <typename T> constexpr int MAX_THREADS = sizeof(T) == 2 ? 384 : 512;

template <typename T> struct Rows {
    const T *dresidual, *dout, *x, *weight; /* dresidual NULL: 0 */
    const float *mean, *rstd;
    int64_t N;
    int C;
};

/* Adds each of the 2*ROWS values over the block, in the order of the warps. buffer is one of two that turns
 * alternate between, so one barrier a turn is enough: nobody writes a buffer before all have left the turn
 * that read it. */
__device__ inline void block_sums(float (&value)[2 * ROWS], float (*buffer)[2 * ROWS]) {
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int n_warps = blockDim.x / WARP_SIZE;
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) {
        value[i] = warp_sum(value[i]);
        if (lane == i) buffer[warp][i] = value[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) value[i] = 0;
    for (int w = 0; w < n_warps; w++) {
#pragma unroll
        for (int i = 0; i < 2 * ROWS; i++) value[i] += buffer[w][i];
    }
}

/* sum[0] = of d, sum[1] = of d n, over a thread's columns of a row */
template <typename T>
__device__ inline void thread_sums(float sum[2], const Vec<T> &dout, const Vec<T> &x, const Vec<T> &w,
                                   float mean, float rstd) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int k = 0; k < Vec<T>::N; k++) {
        const float d = to_float(dout.v[k]) * to_float(w.v[k]);
        sum[0] += d;
        sum[1] += d * ((to_float(x.v[k]) - mean) * rstd);
    }
}

/* partials (gridDim.x, 2, C) =: dweight and dbias of the rows of a block. dx may be dresidual. */
template <typename T>
__global__ void __launch_bounds__(MAX_THREADS<T>)
    layernorm_backward_kernel(T *dx, float *__restrict__ partials, Rows<T> in) {
    constexpr int VEC = Vec<T>::N;
    __shared__ float buffers[2][MAX_THREADS<T> / WARP_SIZE][2 * ROWS];
    const int c = threadIdx.x * VEC;
    const bool active = c < in.C;
    const float per_channel = 1.0f / (float)in.C;
    Vec<T> w = {};
    float dweight[VEC] = {}, dbias[VEC] = {};
    if (active) w = load_vec(in.weight + c);
    int turn = 0;
    for (int64_t row = (int64_t)blockIdx.x * ROWS; row < in.N; row += (int64_t)gridDim.x * ROWS, turn ^= 1) {
        Vec<T> dout[ROWS], x[ROWS], dresidual[ROWS];
        float mean[ROWS], rstd[ROWS], sums[2 * ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool exists = row + r < in.N;
            const int64_t i = (row + r) * in.C + c;
            dout[r] = x[r] = dresidual[r] = Vec<T>{}; /* a row or column that is not there adds 0 */
            if (exists && active) {
                dout[r] = load_vec_once(in.dout + i);
                x[r] = load_vec(in.x + i);
                if (in.dresidual) dresidual[r] = load_vec(in.dresidual + i);
            }
            mean[r] = exists ? in.mean[row + r] : 0;
            rstd[r] = exists ? in.rstd[row + r] : 0;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) thread_sums(&sums[2 * r], dout[r], x[r], w, mean[r], rstd[r]);
        block_sums(sums, buffers[turn]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float mean_d = sums[2 * r] * per_channel, mean_dn = sums[2 * r + 1] * per_channel;
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                const float g = to_float(dout[r].v[k]), n = (to_float(x[r].v[k]) - mean[r]) * rstd[r];
                dweight[k] += g * n;
                dbias[k] += g;
                dresidual[r].v[k] = from_float<T>(to_float(dresidual[r].v[k]) +
                                                  rstd[r] * (g * to_float(w.v[k]) - mean_d - n * mean_dn));
            }
            if (active && row + r < in.N) store_vec(dx + (row + r) * in.C + c, dresidual[r]);
        }
    }
    if (!active) return;
    float *mine = partials + (int64_t)blockIdx.x * 2 * in.C + c;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        mine[k] = dweight[k];
        mine[in.C + k] = dbias[k];
    }
}

/* Rows wider than MAX_THREADS can hold: one row at a time, read twice, sums of columns in scratch. */
template <typename T>
__global__ void __launch_bounds__(WIDE_THREADS)
    layernorm_backward_wide_kernel(T *dx, float *__restrict__ partials, Rows<T> in) {
    float *dweight = partials + (int64_t)blockIdx.x * 2 * in.C, *dbias = dweight + in.C;
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
            dx[i] = from_float<T>(residual + rstd * (g * to_float(in.weight[c]) - mean_d - n * mean_dn));
            dweight[c] = (first ? 0 : dweight[c]) + g * n;
            dbias[c] = (first ? 0 : dbias[c]) + g;
        }
    }
}

/* Blocks that fill the device once, each with at least one turn of work. */
static int block_count(int64_t turns, int limit) {
    const int64_t fill = BLOCKS_PER_SM * cuda_sm_count();
    const int64_t blocks = fill < limit ? fill : limit;
    return (int)(turns < blocks ? turns : blocks);
}

template <typename T>
void layernorm_backward(floatX *dx, float *dweight, float *dbias, const floatX *dresidual, const floatX *dout,
                        const floatX *x, const floatX *weight, const float *mean, const float *rstd,
                        void *scratch, int64_t N, int C) {
    const Rows<T> in = {
        (const T *)dresidual, (const T *)dout, (const T *)x, (const T *)weight, mean, rstd, N, C};
    float *partials = (float *)scratch;
    const int vecs = C / Vec<T>::N;
    int blocks;
    if (vecs <= MAX_THREADS<T>) {
        blocks = block_count(ceil_div<int64_t>(N, ROWS), MAX_BLOCKS);
        layernorm_backward_kernel<<<blocks, ceil_div<int>(vecs, WARP_SIZE) * WARP_SIZE, 0, main_stream>>>(
            (T *)dx, partials, in);
    } else {
        blocks = block_count(N, MAX_WIDE_BLOCKS);
        layernorm_backward_wide_kernel<<<blocks, WIDE_THREADS, 0, main_stream>>>((T *)dx, partials, in);
    }
    launch_check("layernorm_backward");
    add_partial_rows(dweight, dbias, partials, blocks, C);
}

size_t layernorm_scratch_bytes(int C) {
    const bool wide = C > MAX_THREADS<bf16> * Vec<bf16>::N; /* in both storage types */
    return sizeof(float) * 2 * (size_t)C * (wide ? MAX_WIDE_BLOCKS : MAX_BLOCKS);
}

template void layernorm_backward<float>(floatX *, float *, float *, const floatX *, const floatX *,
                                        const floatX *, const floatX *, const float *, const float *, void *,
                                        int64_t, int);
template void layernorm_backward<bf16>(floatX *, float *, float *, const floatX *, const floatX *,
                                       const floatX *, const floatX *, const float *, const float *, void *,
                                       int64_t, int);
