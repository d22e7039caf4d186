/* GELU in the tanh form (Hendrycks & Gimpel 2016), for a result that is stored as T.
 *
 * 0.5 (1 + tanh(u)) is the logistic function of 2u, so gelu(x) = x / (1 + exp(-2u)): the same function
 * without the cancellation of 1 + tanh for negative x, and one exponential instead of a tanhf. For bf16 it is
 * two instructions of 2 ulp each, far below the rounding to bf16. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"
#include "llmc/cuda/ptx/sm80.cuh"

/* logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
template <typename T = float> __device__ __forceinline__ float gelu_gate(float x) {
    if constexpr (sizeof(T) == sizeof(bf16)) {
        const float c = -1.5957691216f * LOG2E;
        return rcp(1.0f + ex2(x * fmaf(c * 0.044715f, x * x, c)));
    } else {
        const float two_u = 1.5957691216f * x * (1.0f + 0.044715f * x * x);
        return __fdividef(1.0f, 1.0f + expf(-two_u));
    }
}
template <typename T = float> __device__ __forceinline__ float gelu(float x) {
    return x * gelu_gate<T>(x);
}
/* d gelu / dx = s + x s (1 - s) 2u', s = gelu_gate(x) */
__device__ __forceinline__ float gelu_derivative(float x, float s) {
    const float two_du = fmaf(1.5957691216f * 3 * 0.044715f, x * x, 1.5957691216f);
    return fmaf(x * fmaf(-s, s, s), two_du, s);
}
/* x = x gelu'(pre), pre = gelu(pre): one exponential. */
template <typename T> __device__ __forceinline__ void through_gelu(float &x, float &pre) {
    const float gate = gelu_gate<T>(pre);
    x *= gelu_derivative(pre, gate);
    pre *= gate;
}
template <typename T = float> __device__ __forceinline__ float gelu_derivative(float x) {
    return gelu_derivative(x, gelu_gate<T>(x));
}
