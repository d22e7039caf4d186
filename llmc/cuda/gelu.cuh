/* GELU in the tanh form (Hendrycks & Gimpel 2016), fp32.
 *
 * 0.5 (1 + tanh(u)) is the logistic function of 2u, so gelu(x) = x / (1 + exp(-2u)): the same function
 * without the cancellation of 1 + tanh for negative x, and one exponential instead of a tanhf. What is stored in
 * bf16 gets the fast exponential, of relative error below 2^-18 where the result is not 0. */
#pragma once
#include "cuda_common.cuh"

/* logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3), for a result that is stored as T */
template <typename T = float> __device__ inline float gelu_gate(float x) {
    const float two_u = 1.5957691216f * x * (1.0f + 0.044715f * x * x);
    const float e = sizeof(T) == sizeof(float) ? expf(-two_u) : __expf(-two_u);
    return __fdividef(1.0f, 1.0f + e);
}
template <typename T = float> __device__ inline float gelu(float x) {
    return x * gelu_gate<T>(x);
}
/* d gelu / dx = s + x s (1 - s) 2u' */
template <typename T = float> __device__ inline float gelu_derivative(float x) {
    const float s = gelu_gate<T>(x), two_du = 1.5957691216f * (1.0f + 3 * 0.044715f * x * x);
    return s + x * s * (1.0f - s) * two_du;
}
