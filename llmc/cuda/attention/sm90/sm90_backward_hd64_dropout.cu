/* Attention backward for sm_90a, head size 64, under dropout of the probabilities: the causal 1-CTA kernels of
 * sm90_backward_hd64.cu with it, at any T. */
#include "sm90_backward_hd64.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <bool TMA>
__global__ void __launch_bounds__(Hd64Config<true, TMA, false>::THREADS, 1)
    sm90_backward_hd64_dropout_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd64Kernel<WithDropout<Hd64Config<true, TMA, false>>>>(args);
}

template <bool TMA> static void launch_dropout(const KernelArgs &args) {
    using C = WithDropout<Hd64Config<true, TMA, false>>;
    launch_one_pass<C, Hd64Shared<C>>("sm90_backward_hd64_dropout_kernel",
                                      sm90_backward_hd64_dropout_kernel<TMA>, args);
}

void sm90_backward_hd64_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                int B, int T, int NH, int HD) {
    const KernelArgs args =
        kernel_args<64, true>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, true, {}, dropout_args(mask));
    (T <= TMA_UP_TO ? launch_dropout<true> : launch_dropout<false>)(args);
}
