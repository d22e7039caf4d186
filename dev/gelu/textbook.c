/* GELU in plain C, and the references of gelu_forward, out = gelu(x), and gelu_backward, dx *= gelu'(pre_gelu), all (N,C).
 *
 * The trainer has both inside linear layers; as ops of their own they show what the passes cost that a product's epilogue
 * saves. The reference takes the derivative in double and in another form than the kernels: with s =
 * logistic(2u), gelu = x s and gelu' = s + x s (1 - s) 2u'. */
#include <math.h>
#include "dev/test/compare.h"
#include "ladder.h"

static const double TWICE_ROOT = 1.5957691216057308, CUBIC = 0.044715; /* 2 sqrt(2/pi) */

static double derivative(double x) {
    const double s = 1 / (1 + exp(-TWICE_ROOT * (x + CUBIC * x * x * x)));
    return s + x * s * (1 - s) * TWICE_ROOT * (1 + 3 * CUBIC * x * x);
}

void gelu_forward_reference(Case *c) {
    const float *x = c->o.in[1];
#pragma omp parallel for
    for (int64_t i = 0; i < c->o.operands[0].elems; i++) {
        const double v = (double)x[i];
        c->want[0][i] = v / (1 + exp(-TWICE_ROOT * (v + CUBIC * v * v * v)));
        c->plain[0][i] = (double)round_to(c->o.dtype, (float)c->want[0][i]);
    }
}

void gelu_backward_reference(Case *c) {
    const float *dx = c->o.in[0], *pre_gelu = c->o.in[1];
#pragma omp parallel for
    for (int64_t i = 0; i < c->o.operands[0].elems; i++) {
        c->want[0][i] = (double)dx[i] * derivative((double)pre_gelu[i]);
        c->plain[0][i] = (double)round_to(c->o.dtype, (float)c->want[0][i]);
    }
}

void gelu_textbook_forward(const Call *c) {
    float *out = c->p[0];
    const float *x = c->p[1], root = (float)(TWICE_ROOT / 2), cubic = (float)CUBIC;
#pragma omp parallel for
    for (int64_t i = 0; i < c->s.N * c->s.C; i++)
        out[i] = 0.5f * x[i] * (1 + tanhf(root * (x[i] + cubic * x[i] * x[i] * x[i])));
}

void gelu_textbook_backward(const Call *c) {
    float *dx = c->p[0];
    const float *pre_gelu = c->p[1], root = (float)(TWICE_ROOT / 2), cubic = (float)CUBIC;
#pragma omp parallel for
    for (int64_t i = 0; i < c->s.N * c->s.C; i++) {
        const float x = pre_gelu[i], t = tanhf(root * (x + cubic * x * x * x));
        dx[i] *= 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * root * (1 + 3 * cubic * x * x);
    }
}
