/* GELU in the tanh form (Hendrycks & Gimpel 2016), one vector at a time.
 *
 * 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)): the logistic form needs no tanh and keeps its relative accuracy
 * (about 4e-7) for large negative x, where 1 + tanh(u) cancels. */
#pragma once
#include "vec.h"

#define GELU_TWICE_SQRT_2_OVER_PI 1.5957691216f
#define GELU_CUBIC 0.044715f

static inline vec gelu_gate(vec x) {
    vec twice_u = GELU_TWICE_SQRT_2_OVER_PI * (x + GELU_CUBIC * (x * x * x));
    return 1.0f / (1.0f + vec_exp(-twice_u));
}

static inline vec gelu(vec x) {
    return x * gelu_gate(x);
}

/* d gelu / dx = s + x s (1 - s) d(2u)/dx */
static inline vec gelu_derivative(vec x) {
    vec s = gelu_gate(x);
    return s + x * s * (1.0f - s) * (GELU_TWICE_SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * (x * x)));
}
