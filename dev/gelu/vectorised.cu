/* GELU, 16 bytes a thread.
 *
 * Teaches: wide accesses. One instruction moves 8 bf16, so fewer instructions carry the same bytes and more of
 * them are under way. What is left between this and the shipped kernel is arithmetic: tanhf, where the shipped one
 * takes one exponential (llmc/cuda/ops/gelu.cuh).
 *
 *   FLOP   about 25 an element
 *   bytes  forward: x read, out written. backward: dx and pre_gelu read, dx written */
#include "gelu_tanh.cuh"
#include "ladder.h"

static constexpr int THREADS = 256;

/* The last thread may have fewer than a whole vector. */
template <typename X> static __global__ void vectorised_forward_kernel(X *out, const X *x, int64_t n) {
    const int64_t i = thread_number() * Vec<X>::N;
    if (i + Vec<X>::N <= n) {
        Vec<X> v = load_vec(x + i);
        for (int k = 0; k < Vec<X>::N; k++) v.v[k] = from_float<X>(gelu_tanh(to_float(v.v[k])));
        store_vec(out + i, v);
    } else {
        for (int64_t j = i; j < n; j++) out[j] = from_float<X>(gelu_tanh(to_float(x[j])));
    }
}
template <typename X> __device__ inline X slope_times(X dx, X pre_gelu) {
    return from_float<X>(to_float(dx) * gelu_tanh_derivative(to_float(pre_gelu)));
}
/* dx *= gelu'(pre_gelu) */
template <typename X> static __global__ void vectorised_backward_kernel(X *dx, const X *pre_gelu, int64_t n) {
    const int64_t i = thread_number() * Vec<X>::N;
    if (i + Vec<X>::N <= n) {
        Vec<X> d = load_vec(dx + i);
        const Vec<X> v = load_vec(pre_gelu + i);
        for (int k = 0; k < Vec<X>::N; k++) d.v[k] = slope_times(d.v[k], v.v[k]);
        store_vec(dx + i, d);
    } else {
        for (int64_t j = i; j < n; j++) dx[j] = slope_times(dx[j], pre_gelu[j]);
    }
}

template <typename X> static void forward(const Call *c) {
    const int64_t n = c->s.N * c->s.C;
    launch("vectorised_forward_kernel", vectorised_forward_kernel<X>, blocks_for(n, THREADS * Vec<X>::N),
           THREADS, 0, (X *)c->p[0], (const X *)c->p[1], n);
}
template <typename X> static void backward(const Call *c) {
    const int64_t n = c->s.N * c->s.C;
    launch("vectorised_backward_kernel", vectorised_backward_kernel<X>, blocks_for(n, THREADS * Vec<X>::N),
           THREADS, 0, (X *)c->p[0], (const X *)c->p[1], n);
}

extern "C" void gelu_vectorised_forward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? forward<bf16>(c) : forward<float>(c);
}
extern "C" void gelu_vectorised_backward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? backward<bf16>(c) : backward<float>(c);
}
