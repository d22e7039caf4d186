/* Attention backward for sm_90a, head size 64: the causal kernels (sm90_backward_hd64.cuh). */
#include "sm90_backward_hd64.cuh"
#include "llmc/cuda/attention/paths.cuh"

/* The parameters of backward_hd64, and of its kernel in kernels.txt: CAUSAL, TMA, PAIRED, HEAD. */

void sm90_backward_hd64_1cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    AttentionBackwardOfHead *const run =
        T <= TMA_UP_TO ? backward_hd64<true, true, false> : backward_hd64<true, false, false>;
    run(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}

/* Here TMA takes 30 to 45 clocks off a step at any T. */
void sm90_backward_hd64_2cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    backward_hd64<true, true, true>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}

size_t sm90_backward_hd64_scratch_bytes(int B, int T, int NH) {
    return backward_scratch_bytes(B, T, NH, 64);
}
size_t sm90_backward_sparse_scratch_bytes(int B, int T, int NH, int HD) {
    return backward_scratch_bytes(B, T, NH, HD <= 64 ? 64 : 128, true);
}
