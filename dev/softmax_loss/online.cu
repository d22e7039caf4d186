/* Softmax cross-entropy with maximum and sum in one pass.
 *
 * Teaches: one pass less. Forward reads the row once, which is the least there is; backward still reads it again
 * to write it.
 *
 *   FLOP   about V exponentials a row, and one for each new maximum: about log V of a thread's columns
 *   bytes  forward: logits read once. backward: read twice, written once */
#include "online.cuh"

template <bool BACKWARD> static void run(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run_rows<bf16, online_pass<bf16>, BACKWARD>("online", c)
                                : run_rows<float, online_pass<float>, BACKWARD>("online", c);
}
extern "C" void loss_online_forward(const Call *c) {
    run<false>(c);
}
extern "C" void loss_online_backward(const Call *c) {
    run<true>(c);
}
extern "C" double loss_online_backward_bytes(const Sizes *s, int elem) {
    return 3.0 * elem * (double)s->N * s->Vp;
}
