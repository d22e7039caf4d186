/* GELU in the tanh form (Hendrycks & Gimpel 2016), fp32.
 *
 * 0.5 (1 + tanh(u)) is the logistic function of 2u, so gelu(x) = x / (1 + exp(-2u)): the same function
 * without the cancellation of 1 + tanh for negative x, and one exponential instead of a tanhf. */
#pragma once
#include "cuda_common.cuh"

/* logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
__device__ inline float gelu_gate(float x) {
    const float two_u = 1.5957691216f * x * (1.0f + 0.044715f * x * x);
    return __fdividef(1.0f, 1.0f + expf(-two_u));
}
__device__ inline float gelu(float x) {
    return x * gelu_gate(x);
}
/* d gelu / dx = s + x s (1 - s) 2u' */
__device__ inline float gelu_derivative(float x) {
    const float s = gelu_gate(x), two_du = 1.5957691216f * (1.0f + 3 * 0.044715f * x * x);
    return s + x * s * (1.0f - s) * two_du;
}
