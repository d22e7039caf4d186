/* GELU in the tanh form (Hendrycks & Gimpel 2016), one vector at a time.
 *
 * 0.5 (1 + tanh(u)) = s = 1 / (1 + exp(-2u)): the logistic form needs no tanh and keeps its relative accuracy
 * (5e-6) for large negative x, where 1 + tanh(u) cancels. */
#pragma once
#include "vec.h"

#define GELU_TWICE_SQRT_2_OVER_PI 1.5957691216f
#define GELU_CUBIC 0.044715f

static inline vec gelu_twice_u(vec x) {
    return GELU_TWICE_SQRT_2_OVER_PI * (x + GELU_CUBIC * (x * x * x));
}

static inline vec gelu(vec x) {
    return x / (1.0f + vec_exp(-gelu_twice_u(x)));
}

/* d gelu / dx = s + x s (1 - s) d(2u)/dx. With e = exp(-|2u|), s (1 - s) = e / (1 + e)^2 on both sides:
 * written with 1 - s, the rounding of s near 1 would be 2e-6 of the derivative. */
static inline vec gelu_derivative(vec x) {
    vec e = vec_exp(-vec_abs(gelu_twice_u(x))), r = 1.0f / (1.0f + e), s = vec_select(x < 0.0f, e * r, r);
    return s + x * (e * r * r) * (GELU_TWICE_SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * (x * x)));
}
