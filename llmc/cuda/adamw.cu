/* AdamW over the flat parameter buffer (Loshchilov & Hutter 2019, Algorithm 2), all tensors in one launch.
 *
 * 30 bytes of traffic a parameter in bf16; a thread takes four neighbours, so all but the bf16 weights move
 * in 16-byte accesses. What decides whether there is a step at all (stats->bad) and how many there were (step
 * - n_skipped) is read here, on the device: the host never waits. */
#include "cuda_ops.cuh"
#include "early_launch.cuh"

enum { THREADS = 256, BLOCKS_PER_SM = 5, QUAD = 4 }; /* five blocks: 48 registers a thread */

/* Four neighbours of the storage type: 8 bytes of bf16, 16 of fp32. */
template <typename T> struct alignas(QUAD * sizeof(T)) Quad { T v[QUAD]; };

/* What is the same for every element of this step. */
typedef struct Step {
    float grad_scale;                 /* min(1, clip / grad_norm) */
    float m_correction, v_correction; /* 1 / (1 - beta^t) */
    float one_minus_beta1, one_minus_beta2;
} Step;

__device__ static Step step_of(const AdamWArgs &args) {
    const double t = (double)(args.step - args.stats->n_skipped);
    const float norm = args.stats->grad_norm;
    Step s;
    s.grad_scale = args.clip > 0 && norm > args.clip ? args.clip / norm : 1.0f;
    s.m_correction = (float)(1.0 / (1.0 - pow((double)args.beta1, t)));
    s.v_correction = (float)(1.0 / (1.0 - pow((double)args.beta2, t)));
    s.one_minus_beta1 = 1.0f - args.beta1;
    s.one_minus_beta2 = 1.0f - args.beta2;
    return s;
}

/* Updates one weight and its moments. */
__device__ inline void update(float &w, float &m, float &v, float grad, float weight_decay, const Step &s,
                              const AdamWArgs &args) {
    const float g = grad * s.grad_scale;
    m = args.beta1 * m + s.one_minus_beta1 * g;
    v = args.beta2 * v + s.one_minus_beta2 * g * g;
    w -= args.lr * (m * s.m_correction / (sqrtf(v * s.v_correction) + args.eps) + weight_decay * w);
}

template <typename T>
__device__ inline void adamw_one(const AdamWArgs &args, const Step &s, int64_t i, int range) {
    update(args.master[i], args.m[i], args.v[i], args.grads[i], args.ranges[range].weight_decay, s, args);
    ((T *)args.weights)[i] = from_float<T>(args.master[i]);
}

/* n elements: four a thread in turns of the grid. */
template <typename T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    adamw_kernel(const __grid_constant__ AdamWArgs args, int64_t n) {
    begin_early();
    if (args.stats->bad) {
        if (blockIdx.x == 0 && threadIdx.x == 0) args.stats->n_skipped += 1; /* nobody else reads it now */
        return;
    }
    __shared__ Step shared_step;
    if (threadIdx.x == 0) shared_step = step_of(args);
    __syncthreads();
    const Step s = shared_step;
    const int64_t stride = (int64_t)gridDim.x * THREADS * QUAD;
    int range = 0; /* of the first element; a thread only walks forward */
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD; i < n; i += stride) {
        while (i >= args.ranges[range].end) range++;
        if (i + QUAD > n) {
            for (int64_t j = i; j < n; j++) {
                while (j >= args.ranges[range].end) range++;
                adamw_one<T>(args, s, j, range);
            }
            return;
        }
        Vec<float> w = load_vec(args.master + i), m = load_vec(args.m + i), v = load_vec(args.v + i);
        const Vec<float> grad = load_vec_once(args.grads + i);
        Quad<T> rounded;
#pragma unroll
        for (int k = 0; k < QUAD; k++) {
            while (i + k >= args.ranges[range].end) range++;
            update(w.v[k], m.v[k], v.v[k], grad.v[k], args.ranges[range].weight_decay, s, args);
            rounded.v[k] = from_float<T>(w.v[k]);
        }
        store_vec(args.master + i, w);
        store_vec(args.m + i, m);
        store_vec(args.v + i, v);
        *reinterpret_cast<Quad<T> *>((T *)args.weights + i) = rounded; /* in fp32 perhaps master itself */
    }
}

template <typename T> void adamw(const AdamWArgs *args) {
    const int64_t n = args->ranges[args->n_ranges - 1].end;
    const int64_t wanted = ceil_div<int64_t>(n, THREADS * QUAD), fill = BLOCKS_PER_SM * cuda_sm_count();
    launch_early("adamw", adamw_kernel<T>, (unsigned)(wanted < fill ? wanted : fill), THREADS, 0, *args, n);
}

template <typename T> __global__ void weights_from_master_kernel(T *weights, const float *master, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD;
    if (i + QUAD <= n) {
        const Vec<float> w = load_vec(master + i);
        Quad<T> rounded;
#pragma unroll
        for (int k = 0; k < QUAD; k++) rounded.v[k] = from_float<T>(w.v[k]);
        *reinterpret_cast<Quad<T> *>(weights + i) = rounded;
    } else {
        for (int64_t j = i; j < n; j++) weights[j] = from_float<T>(master[j]);
    }
}

template <typename T> void weights_from_master(floatX *weights, const float *master, int64_t n) {
    weights_from_master_kernel<<<(unsigned)ceil_div<int64_t>(n, THREADS * QUAD), THREADS, 0, main_stream>>>(
        (T *)weights, master, n);
    launch_check("weights_from_master");
}

template void adamw<float>(const AdamWArgs *);
template void adamw<bf16>(const AdamWArgs *);
template void weights_from_master<float>(floatX *, const float *, int64_t);
template void weights_from_master<bf16>(floatX *, const float *, int64_t);
