/* Attention of fp32 storage, any head size up to 256, with and without a window and dropout. */
#include "generic_kernels.cuh"

void generic_attention_forward_f32(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    any_forward<float>(out, lse, qkv, PlainMask(), B, T, NH, HD);
}
void generic_attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                    int HD) {
    any_backward<float>(dqkv, dout, out, qkv, lse, scratch, PlainMask(), B, T, NH, HD);
}
void generic_masked_attention_forward_f32(floatX *out, float *lse, const floatX *qkv,
                                          const AttentionMask *mask, int B, int T, int NH, int HD) {
    any_forward<float>(out, lse, qkv, general_mask(mask, T), B, T, NH, HD);
}
void generic_masked_attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out,
                                           const floatX *qkv, const float *lse, const float *d,
                                           const AttentionMask *mask, void *scratch, int B, int T, int NH,
                                           int HD) {
    any_backward<float>(dqkv, dout, out, qkv, lse, scratch, general_mask(mask, T), B, T, NH, HD);
}
