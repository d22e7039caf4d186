/* Attention backward on Hopper without a causal mask, head size 128. */
#include "llmc/cuda/attention/sm90/sm90_backward_hd128.cuh"
#include "hopper_noncausal.cuh"

void noncausal_backward_hd128_1cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                   const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                   int HD) {
    backward_hd128<false, 1>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}
void noncausal_backward_hd128_2cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                   const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                   int HD) {
    backward_hd128<false, 2>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}
