/* The arithmetic of one AdamW step (llmc/model/ops.h, AdamWArgs), shared by the rungs: they differ in who does what. */
#pragma once
#include "dev/driver/launch.cuh"
#include "ladder.h"

static constexpr int ADAMW_THREADS = 256;

/* What is the same for every element. */
struct Factors {
    float grad_scale;                 /* min(1, clip / grad_norm) */
    float m_correction, v_correction; /* 1 / (1 - beta^t), t = updates so far, this one included */
};

/* 1 - beta^t, without the cancellation of small t: expm1 is exact where beta^t is close to 1. */
__device__ inline float one_minus_power(float beta, float t) {
    return -expm1f(t * logf(beta));
}

/* By the block's first thread, for all. Every thread must come here. */
__device__ inline Factors block_factors(const AdamWArgs &args) {
    __shared__ Factors shared;
    if (threadIdx.x == 0) {
        const float t = (float)(args.update.step - args.stats->n_skipped), norm = args.stats->grad_norm;
        shared.grad_scale = args.update.clip > 0 && norm > args.update.clip ? args.update.clip / norm : 1;
        shared.m_correction = 1 / one_minus_power(args.update.beta1, t);
        shared.v_correction = 1 / one_minus_power(args.update.beta2, t);
    }
    __syncthreads();
    return shared;
}

__device__ inline void update(const AdamWArgs &args, const Factors &f, const AdamWGroup &group, float grad,
                              float &w, float &m, float &v) {
    const UpdateArgs &u = args.update;
    const float g = grad * f.grad_scale;
    m = u.beta1 * m + (1 - u.beta1) * g;
    v = u.beta2 * v + (1 - u.beta2) * g * g;
    w -= group.lr * (m * f.m_correction / (sqrtf(v * f.v_correction) + u.eps) + group.weight_decay * w);
}

/* The group that element i belongs to; the lab's are all taken. */
__device__ inline const AdamWGroup &group_of(const AdamWArgs &args, int64_t i) {
    return args.groups[args.tile_groups[i / PARAMETER_TILE]];
}

/* Element i in memory. */
template <typename X> __device__ inline void update_at(const AdamWArgs &args, const Factors &f, int64_t i) {
    float w = args.master[i], m = args.m[i], v = args.v[i];
    update(args, f, group_of(args, i), args.grads[i], w, m, v);
    args.master[i] = w;
    args.m[i] = m;
    args.v[i] = v;
    ((X *)args.weights)[i] = from_float<X>(w);
}

/* True if the step is left out because of a NaN. */
__device__ inline bool skips(const AdamWArgs &args) {
    return args.stats->bad;
}
