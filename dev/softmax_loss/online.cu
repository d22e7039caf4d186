/* Softmax cross-entropy with maximum and sum in one pass.
 *
 * Teaches: one pass less. Forward reads the row once, which is the least there is; backward still reads it again
 * to write it.
 *
 *   FLOP   about V exponentials a row, and one for each new maximum: about log V of a thread's columns
 *   bytes  forward: logits read once. backward: read twice, written once */
#include "online.cuh"

template <typename X, bool BACKWARD> static __global__ void online_kernel(Logits<X> l) {
    X *row = l.logits + (int64_t)blockIdx.x * l.Vp;
    const int target = l.targets[blockIdx.x];
    const float z_target = to_float(row[target]); /* before the gradient overwrites it */
    const RowSums r = online_pass(row, l.V);
    write_loss(l, r, z_target);
    if (BACKWARD) write_gradient(l, r, row, target);
}

template <typename X, bool BACKWARD> static void run(const Call *c) {
    launch("online_kernel", online_kernel<X, BACKWARD>, blocks_for(c->s.N, 1), LOSS_THREADS, 0,
           logits_of<X>(c));
}
extern "C" void loss_online_forward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16, false>(c) : run<float, false>(c);
}
extern "C" void loss_online_backward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16, true>(c) : run<float, true>(c);
}
extern "C" double loss_online_backward_bytes(const Sizes *s, int elem) {
    return 3.0 * elem * (double)s->N * s->Vp;
}
