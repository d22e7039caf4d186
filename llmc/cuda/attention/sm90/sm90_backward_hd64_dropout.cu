/* Attention backward for sm_90a, head sizes 64 and 80, under dropout of the probabilities: the causal 1-CTA kernels of
 * sm90_backward_hd64.cu with it, at any T. */
#include "sm90_backward_hd64.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <bool TMA, int HEAD, bool PAIRS>
using Hd64Dropout = BackwardWithDropout<Hd64Config<true, TMA, false, HEAD>, PAIRS>;

template <bool TMA, int HEAD, bool PAIRS>
__global__ void __launch_bounds__(Hd64Dropout<TMA, HEAD, PAIRS>::THREADS, 1)
    sm90_backward_hd64_dropout_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd64Kernel<Hd64Dropout<TMA, HEAD, PAIRS>>>(args);
}

template <bool TMA, int HEAD, bool PAIRS>
static void backward_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                             int B, int T, int NH, int HD) {
    using C = Hd64Dropout<TMA, HEAD, PAIRS>;
    launch_one_pass<C, Hd64Shared<C>>(
        "sm90_backward_hd64_dropout_kernel", sm90_backward_hd64_dropout_kernel<TMA, HEAD, PAIRS>,
        kernel_args<HEAD, true, C::ATOM_COLUMNS, PAIRS>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, true,
                                                        {}, dropout_args(mask)));
}

void sm90_backward_hd64_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                int B, int T, int NH, int HD) {
    static AttentionBackward *const table[2][2] = {
        {backward_dropout<false, 64, false>, backward_dropout<false, 64, true>},
        {backward_dropout<true,  64, false>, backward_dropout<true,  64, true>}
    };
    table[T <= TMA_UP_TO][T % 16 == 0](dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD);
}

void sm90_backward_hd80_dropout(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                int B, int T, int NH, int HD) {
    backward_dropout<false, 80, false>(dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD);
}
