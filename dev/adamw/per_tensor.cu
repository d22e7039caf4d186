/* AdamW, one launch a tensor, one thread an element.
 *
 * Teaches: what a framework without a fused optimiser does. GPT-2 124M has 148 tensors, most of them biases and
 * norms of a few KB: to start and drain the card takes microseconds, in which it could update hundreds of thousands
 * of elements. The lab has one flat buffer, cut into as many pieces as GPT-2 has tensors; real
 * tensors differ in size and leave the card emptier.
 *
 *   FLOP   about 15 an element
 *   bytes  master, m and v read and written, gradients read, weights written: 30 an element in bf16 */
#include "update.cuh"

enum { TENSORS = 148 };

/* Elements [begin, end). */
template <typename X>
static __global__ void one_tensor_kernel(const __grid_constant__ AdamWArgs args, int64_t begin, int64_t end) {
    if (skips(args)) return;
    const Factors f = block_factors(args);
    const int64_t i = begin + thread_number();
    if (i < end) update_at<X>(args, f, i);
}

template <typename X> static void run(const Call *c) {
    const int64_t n = c->s.N, piece = ceil_div<int64_t>(n, TENSORS);
    for (int64_t begin = 0; begin < n; begin += piece) {
        const int64_t end = begin + piece < n ? begin + piece : n;
        launch("one_tensor_kernel", one_tensor_kernel<X>, blocks_for(end - begin, ADAMW_THREADS),
               ADAMW_THREADS, 0, op_adamw_args(c), begin, end);
    }
}
extern "C" void adamw_per_tensor(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
