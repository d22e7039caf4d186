/* Attention backward for sm_90a, head sizes 64 and 80, under dropout of the probabilities: the causal 1-CTA kernels of
 * sm90_backward_hd64.cu with it, at any T. */
#include "sm90_backward_hd64.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <bool TMA, int HEAD> using Hd64Dropout = WithDropout<Hd64Config<true, TMA, false, HEAD>>;

template <bool TMA, int HEAD>
__global__ void __launch_bounds__(Hd64Dropout<TMA, HEAD>::THREADS, 1)
    sm90_backward_hd64_dropout_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd64Kernel<Hd64Dropout<TMA, HEAD>>>(args);
}

template <bool TMA, int HEAD>
static void backward_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                             int B, int T, int NH, int HD) {
    using C = Hd64Dropout<TMA, HEAD>;
    launch_one_pass<C, Hd64Shared<C>>(
        "sm90_backward_hd64_dropout_kernel", sm90_backward_hd64_dropout_kernel<TMA, HEAD>,
        kernel_args<HEAD, true, C::ATOM_COLUMNS>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, true, {},
                                                 dropout_args(mask)));
}

void sm90_backward_hd64_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                int B, int T, int NH, int HD) {
    AttentionBackward *const run = T <= TMA_UP_TO ? backward_dropout<true, 64> : backward_dropout<false, 64>;
    run(dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD);
}

void sm90_backward_hd80_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                int B, int T, int NH, int HD) {
    backward_dropout<false, 80>(dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD);
}
