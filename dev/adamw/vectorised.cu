/* AdamW, one launch over all tensors, four neighbours a thread.
 *
 * Teaches: 16-byte accesses for the four fp32 streams, 8 bytes for the bf16 weights. Four streams are read at
 * once, so there were many loads in flight already; the gain is smaller than in kernels with one stream.
 *
 *   FLOP   about 15 an element
 *   bytes  30 an element in bf16, 32 in fp32 */
#include "update.cuh"

enum { QUAD = Vec<float>::N };

template <typename X> struct alignas(QUAD * sizeof(X)) Quad { X v[QUAD]; };

/* The lab's sizes are whole tiles, so a thread's four neighbours are of one group. */
template <typename X>
static __global__ void vectorised_kernel(const __grid_constant__ AdamWArgs args, int64_t n) {
    if (skips(args)) return;
    const Factors f = block_factors(args);
    const int64_t i = thread_number() * QUAD;
    if (i >= n) return;
    const AdamWGroup &group = group_of(args, i);
    Vec<float> w = load_vec(args.master + i), m = load_vec(args.m + i), v = load_vec(args.v + i);
    const Vec<float> grad = load_vec(args.grads + i);
    Quad<X> rounded;
    for (int k = 0; k < QUAD; k++) {
        update(args, f, group, grad.v[k], w.v[k], m.v[k], v.v[k]);
        rounded.v[k] = from_float<X>(w.v[k]);
    }
    store_vec(args.master + i, w);
    store_vec(args.m + i, m);
    store_vec(args.v + i, v);
    *(Quad<X> *)((X *)args.weights + i) = rounded;
}

template <typename X> static void run(const Call *c) {
    launch("vectorised_kernel", vectorised_kernel<X>, blocks_for(c->s.N, ADAMW_THREADS * QUAD), ADAMW_THREADS,
           0, op_adamw_args(c), c->s.N);
}
extern "C" void adamw_vectorised(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
