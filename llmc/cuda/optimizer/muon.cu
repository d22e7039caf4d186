/* Muon, element by element: momentum with Nesterov's look ahead, and the update. What is between them: orthogonalise.cu.
 *
 * 14 bytes of traffic a parameter in bf16 and 16, as AdamW's 30 in two halves. A block takes a tile of the list. */
#include "llmc/cuda/cuda_ops.cuh"

enum { THREADS = 256, QUAD = 4 };
static_assert(THREADS * QUAD == PARAMETER_TILE, "a block takes a tile");

/* Four neighbours of the storage type: 8 bytes of bf16, 16 of fp32. */
template <typename T> struct alignas(QUAD * sizeof(T)) Quad { T v[QUAD]; };

template <typename T>
__global__ void __launch_bounds__(THREADS) muon_momentum_kernel(const __grid_constant__ MuonArgs args) {
    const int64_t i = (int64_t)args.tiles[blockIdx.x] * PARAMETER_TILE + threadIdx.x * QUAD;
    float *const momentum = args.m + (int64_t)blockIdx.x * PARAMETER_TILE + threadIdx.x * QUAD;
    const Vec<float> grad = load_vec_once(args.grads + i);
    Vec<float> m = load_vec(momentum);
    if (args.stats->bad) return;
    const float norm = args.stats->grad_norm, take = 1.0f - args.momentum;
    const float scale = args.clip > 0 && norm > args.clip ? args.clip / norm : 1.0f;
    Quad<T> x;
#pragma unroll
    for (int k = 0; k < QUAD; k++) {
        const float next = take * (grad.v[k] * scale);
        m.v[k] = fmaf(args.momentum, m.v[k], next);
        x.v[k] = from_float<T>(fmaf(args.momentum, m.v[k], next));
    }
    store_vec(momentum, m);
    *reinterpret_cast<Quad<T> *>((T *)args.x + i) = x;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) muon_update_kernel(const __grid_constant__ MuonArgs args) {
    const int64_t i = (int64_t)args.tiles[blockIdx.x] * PARAMETER_TILE + threadIdx.x * QUAD;
    const Quad<T> x = *reinterpret_cast<const Quad<T> *>((const T *)args.x + i);
    Vec<float> w = load_vec(args.master + i);
    if (args.stats->bad) return;
    Quad<T> rounded;
#pragma unroll
    for (int k = 0; k < QUAD; k++) {
        w.v[k] = fmaf(-args.lr, fmaf(args.weight_decay, w.v[k], to_float(x.v[k])), w.v[k]);
        rounded.v[k] = from_float<T>(w.v[k]);
    }
    store_vec(args.master + i, w);
    *reinterpret_cast<Quad<T> *>((T *)args.weights + i) = rounded; /* in fp32 perhaps master itself */
}

template <typename T> void muon_momentum(const MuonArgs *args) {
    muon_momentum_kernel<T><<<(unsigned)args->n_tiles, THREADS, 0, main_stream>>>(*args);
    launch_check("muon_momentum");
}

template <typename T> void muon_update(const MuonArgs *args) {
    muon_update_kernel<T><<<(unsigned)args->n_tiles, THREADS, 0, main_stream>>>(*args);
    launch_check("muon_update");
}

template MuonMomentum muon_momentum<float>;
template MuonMomentum muon_momentum<bf16>;
template MuonUpdate muon_update<float>;
template MuonUpdate muon_update<bf16>;
