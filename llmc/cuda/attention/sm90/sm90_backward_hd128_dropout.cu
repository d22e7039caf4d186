/* Attention backward for sm_90a, head sizes 96, 112 and 128, under dropout of the probabilities: the causal 1-CTA kernel of
 * sm90_backward_hd128.cu with it, at any T. At 128: 4.16 ms at T = 4096 and 15.40 at 16384, in clusters 4.21 and 15.41. */
#include "sm90_backward_hd128.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <int HEAD, bool PAIRS> using Hd128Dropout = BackwardWithDropout<Hd128Config<true, 1, HEAD>, PAIRS>;

template <int HEAD, bool PAIRS>
__global__ void __launch_bounds__(Hd128Dropout<HEAD, PAIRS>::THREADS, 1)
    sm90_backward_hd128_dropout_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd128Kernel<Hd128Dropout<HEAD, PAIRS>>>(args);
}

template <int HEAD, bool PAIRS>
static void backward_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                             int B, int T, int NH, int HD) {
    KernelArgs args = kernel_args<HEAD, true, SW128_COLUMNS, PAIRS>(dqkv, dout, out, qkv, lse, d, scratch, B,
                                                                    T, NH, true, {}, dropout_args(mask));
    launch_hd128<Hd128Dropout<HEAD, PAIRS>>("sm90_backward_hd128_dropout_kernel",
                                            sm90_backward_hd128_dropout_kernel<HEAD, PAIRS>, args, dqkv, B);
}

/* pairs: keys in pairs, where T lets them. */
#define BACKWARD(name, head_size, pairs)                                                                     \
    void name(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv, const float *lse,      \
              const float *d, const AttentionMask *mask, void *scratch, int B, int T, int NH, int HD) {      \
        AttentionBackward *const run =                                                                       \
            T % 16 == 0 ? backward_dropout<head_size, pairs> : backward_dropout<head_size, false>;           \
        run(dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD);                                      \
    }

BACKWARD(sm90_backward_hd96_dropout, 96, false)
BACKWARD(sm90_backward_hd112_dropout, 112, false)
BACKWARD(sm90_backward_hd128_dropout, 128, true)
