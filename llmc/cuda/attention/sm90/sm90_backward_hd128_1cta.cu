/* Attention backward for sm_90a, head size 128, blocks alone: the causal kernel (sm90_backward_hd128_1cta.cuh). */
#include "sm90_backward_hd128_1cta.cuh"
#include "llmc/cuda/attention/paths.cuh"

void sm90_backward_hd128_1cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                              const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    backward_hd128_1cta<true>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}

size_t sm90_backward_hd128_scratch_bytes(int B, int T, int NH) {
    return turn_scratch_bytes(B, T, NH, 128);
}
