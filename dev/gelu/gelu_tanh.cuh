/* GELU in the tanh form as it is written down (Hendrycks & Gimpel 2016, section 2): 0.5 x (1 + tanh(u)), u =
 * sqrt(2/pi) (x + 0.044715 x^3), and its derivative. About 25 FLOP; tanhf alone is 20 instructions. */
#pragma once
#include "dev/driver/launch.cuh"

static constexpr float ROOT_2_OVER_PI = 0.7978845608f, CUBIC = 0.044715f;

__device__ inline float gelu_tanh(float x) {
    return 0.5f * x * (1 + tanhf(ROOT_2_OVER_PI * (x + CUBIC * x * x * x)));
}
/* 0.5 (1 + t) + 0.5 x (1 - t^2) u', t = tanh(u) */
__device__ inline float gelu_tanh_derivative(float x) {
    const float t = tanhf(ROOT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * ROOT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}
