/* Attention of bf16 storage without tensor cores: the trainer's kernels of fp32 with another storage type, beside which
 * those with tensor cores are measured. */
#include "generic_bf16.cuh"
#include "llmc/cuda/attention/generic/generic_kernels.cuh"

void generic_attention_forward_bf16(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH,
                                    int HD) {
    any_forward<bf16>(out, lse, qkv, PlainMask(), B, T, NH, HD);
}
void generic_attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                     const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                     int HD) {
    any_backward<bf16>(dqkv, dout, out, qkv, lse, scratch, PlainMask(), B, T, NH, HD);
}
void generic_masked_attention_forward_bf16(floatX *out, float *lse, const floatX *qkv,
                                           const AttentionMask *mask, int B, int T, int NH, int HD) {
    any_forward<bf16>(out, lse, qkv, general_mask(mask, T), B, T, NH, HD);
}
void generic_masked_attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out,
                                            const floatX *qkv, const float *lse, const float *d,
                                            const AttentionMask *mask, void *scratch, int B, int T, int NH,
                                            int HD) {
    any_backward<bf16>(dqkv, dout, out, qkv, lse, scratch, general_mask(mask, T), B, T, NH, HD);
}
