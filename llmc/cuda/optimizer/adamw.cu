/* AdamW over tiles of parameters (Loshchilov & Hutter 2019, Algorithm 2), all tensors in one launch.
 *
 * 30 bytes of traffic a parameter in bf16; a thread takes four neighbours, so all but the bf16 weights move in 16-byte
 * accesses. A block takes a tile, which is of one group, and ends: 124 M parameters take 899 us on an H200 (4.15 TB/s), in
 * turns of a grid that fills the device once 958. What decides whether there is a step at all (stats->bad) and how many
 * there were (step - n_skipped) is read on the device: the host never waits. */
#include "llmc/cuda/cuda_ops.cuh"

enum { THREADS = 256, BLOCKS_PER_SM = 5, QUAD = 4 };
static_assert(THREADS * QUAD == PARAMETER_TILE, "a block takes a tile, so it has one group");

/* Four neighbours of the storage type: 8 bytes of bf16, 16 of fp32. */
template <typename T> struct alignas(QUAD * sizeof(T)) Quad { T v[QUAD]; };

/* What is the same for every element of this step. */
typedef struct Step {
    bool skipped;
    float grad_scale;                 /* min(1, clip / grad_norm) */
    float m_correction, v_correction; /* 1 / (1 - beta^t) */
    float one_minus_beta1, one_minus_beta2;
} Step;

static __device__ Step current_step;

__global__ void step_kernel(const __grid_constant__ AdamWArgs args) {
    const double t = (double)(args.update.step - args.stats->n_skipped);
    const float norm = args.stats->grad_norm;
    Step s;
    s.skipped = args.stats->bad;
    s.grad_scale = args.update.clip > 0 && norm > args.update.clip ? args.update.clip / norm : 1.0f;
    s.m_correction = (float)(1.0 / (1.0 - pow((double)args.update.beta1, t)));
    s.v_correction = (float)(1.0 / (1.0 - pow((double)args.update.beta2, t)));
    s.one_minus_beta1 = 1.0f - args.update.beta1;
    s.one_minus_beta2 = 1.0f - args.update.beta2;
    current_step = s;
}

/* Updates one weight and its moments. Fused multiply-adds are spelled out: the compiler's own choice of them, and with it the
 * bits of a run, changed when weight_decay and lr moved to shared memory. */
__device__ inline void update(float &w, float &m, float &v, float grad, const AdamWGroup &group,
                              const Step &s, const UpdateArgs &args) {
    const float g = grad * s.grad_scale;
    m = fmaf(args.beta1, m, s.one_minus_beta1 * g);
    v = fmaf(args.beta2, v, s.one_minus_beta2 * g * g);
    const float step = m * s.m_correction / (sqrtf(v * s.v_correction) + args.eps);
    w = fmaf(-group.lr, fmaf(group.weight_decay, w, step), w);
}

/* A tile a block. The loads are under way before the barrier, so nothing waits for current_step or the group. */
template <typename T, bool LISTED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    adamw_kernel(const __grid_constant__ AdamWArgs args) {
    __shared__ Step s;
    __shared__ AdamWGroup group;
    const int tile = LISTED ? args.tiles[blockIdx.x] : blockIdx.x;
    const int64_t i = (int64_t)tile * PARAMETER_TILE + threadIdx.x * QUAD;
    const int64_t of_moments = (int64_t)blockIdx.x * PARAMETER_TILE + threadIdx.x * QUAD;
    Vec<float> w = load_vec(args.master + i), m = load_vec(args.m + of_moments),
               v = load_vec(args.v + of_moments);
    const Vec<float> grad = load_vec_once(args.grads + i);
    if (threadIdx.x == 0) {
        group = args.groups[args.tile_groups[tile]];
        s = current_step;
    }
    __syncthreads();
    if (s.skipped) return;
    Quad<T> rounded;
#pragma unroll
    for (int k = 0; k < QUAD; k++) {
        update(w.v[k], m.v[k], v.v[k], grad.v[k], group, s, args.update);
        rounded.v[k] = from_float<T>(w.v[k]);
    }
    store_vec(args.master + i, w);
    store_vec(args.m + of_moments, m);
    store_vec(args.v + of_moments, v);
    *reinterpret_cast<Quad<T> *>((T *)args.weights + i) = rounded; /* in fp32 perhaps master itself */
}

template <typename T> void adamw(const AdamWArgs *args) {
    if (!args->continues) step_kernel<<<1, 1, 0, main_stream>>>(*args);
    launch_check("adamw_step");
    const auto kernel = args->tiles ? adamw_kernel<T, true> : adamw_kernel<T, false>;
    kernel<<<(unsigned)args->n_tiles, THREADS, 0, main_stream>>>(*args);
    launch_check("adamw");
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

template AdamWStep adamw<float>;
template AdamWStep adamw<bf16>;
template WeightsFromMaster weights_from_master<float>;
template WeightsFromMaster weights_from_master<bf16>;
