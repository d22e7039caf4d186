/* GELU, one thread an element.
 *
 * Teaches: the first kernel that one writes. Neighbouring threads read neighbouring elements, so every load is
 * coalesced and all of a line is used; but a warp asks for 64 bytes of bf16 at a time, a quarter of what a load of
 * 16 bytes a thread asks for, and so has a quarter of the bytes in flight.
 *
 *   FLOP   about 25 an element
 *   bytes  forward: x read, out written. backward: dx and pre_gelu read, dx written */
#include "gelu_tanh.cuh"
#include "ladder.h"

enum { THREADS = 256 };

template <typename X> static __global__ void scalar_forward_kernel(X *out, const X *x, int64_t n) {
    const int64_t i = thread_number();
    if (i < n) out[i] = from_float<X>(gelu_tanh(to_float(x[i])));
}
/* dx *= gelu'(pre_gelu) */
template <typename X> static __global__ void scalar_backward_kernel(X *dx, const X *pre_gelu, int64_t n) {
    const int64_t i = thread_number();
    if (i < n) dx[i] = from_float<X>(to_float(dx[i]) * gelu_tanh_derivative(to_float(pre_gelu[i])));
}

template <typename X> static void forward(const Call *c) {
    const int64_t n = c->s.N * c->s.C;
    launch("scalar_forward_kernel", scalar_forward_kernel<X>, blocks_for(n, THREADS), THREADS, 0,
           (X *)c->p[0], (const X *)c->p[1], n);
}
template <typename X> static void backward(const Call *c) {
    const int64_t n = c->s.N * c->s.C;
    launch("scalar_backward_kernel", scalar_backward_kernel<X>, blocks_for(n, THREADS), THREADS, 0,
           (X *)c->p[0], (const X *)c->p[1], n);
}

extern "C" void gelu_scalar_forward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? forward<bf16>(c) : forward<float>(c);
}
extern "C" void gelu_scalar_backward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? backward<bf16>(c) : backward<float>(c);
}
