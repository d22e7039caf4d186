/* AdamW, one launch over all tensors, one thread an element.
 *
 * Teaches: parameters in one flat buffer make the optimiser one kernel. What tensors disagree on, weight decay, is
 * a group for each tile of 1024 elements, in a table on the device; a thread looks its element up. No launch is small any more and the
 * card drains once.
 *
 *   FLOP   about 15 an element
 *   bytes  30 an element in bf16, 32 in fp32 */
#include "update.cuh"

template <typename X>
static __global__ void one_launch_kernel(const __grid_constant__ AdamWArgs args, int64_t n) {
    if (skips(args)) return;
    const Factors f = block_factors(args);
    const int64_t i = thread_number();
    if (i < n) update_at<X>(args, f, i);
}

template <typename X> static void run(const Call *c) {
    launch("one_launch_kernel", one_launch_kernel<X>, blocks_for(c->s.N, ADAMW_THREADS), ADAMW_THREADS, 0,
           op_adamw_args(c), c->s.N);
}
extern "C" void adamw_one_launch(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
