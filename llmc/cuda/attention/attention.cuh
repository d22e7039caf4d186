/* Causal self-attention on CUDA: the launchers that the Ops tables hold, one set per storage type.
 *
 * The math, shapes and `=` of each are those of the Ops member of the same name (llmc/model/ops.h). All launch on
 * main_stream and return at once. dispatch.cu chooses among the paths below by compute capability, storage
 * type, head size and mask:
 *   sm90_forward.cu, sm90_backward_*.cu bf16, head size 64 and 128, no mask: wgmma and TMA, Hopper alone
 *   sm80_forward.cu, sm80_backward.cu   bf16, head size 64 and 128: mma.sync, sm_80 and later
 *   generic.cu                          any head size up to 256, bf16 and fp32: FFMA; the reference on the GPU
 *   standard.cu                         the T*T form, for comparison only
 *   decode.cu                           one query against a cache
 * mask.cuh has what a window and dropout are to a kernel; sm80_mask.cuh the same for mma.sync's fragments.
 */
#pragma once
#include "llmc/model/ops.h"

void attention_forward_bf16(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD);
void attention_forward_f32(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD);

void attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, void *scratch, int B, int T, int NH, int HD);
void attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                            const float *lse, void *scratch, int B, int T, int NH, int HD);

void attention_standard_forward_bf16(floatX *out, floatX *probs, const floatX *qkv, int B, int T, int NH,
                                     int HD);
void attention_standard_forward_f32(floatX *out, floatX *probs, const floatX *qkv, int B, int T, int NH,
                                    int HD);

void attention_standard_backward_bf16(floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                      const floatX *qkv, int B, int T, int NH, int HD);
void attention_standard_backward_f32(floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                     const floatX *qkv, int B, int T, int NH, int HD);

void attention_decode_bf16(floatX *out, const floatX *qkv, float *scratch, int t, int NH, int HD);
void attention_decode_f32(floatX *out, const floatX *qkv, float *scratch, int t, int NH, int HD);

void masked_attention_forward_bf16(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask,
                                   int B, int T, int NH, int HD);
void masked_attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, const float *d, const AttentionMask *mask,
                                    void *scratch, int B, int T, int NH, int HD);
void masked_attention_standard_forward_bf16(floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                            const AttentionMask *mask, int B, int T, int NH, int HD);
void masked_attention_standard_backward_bf16(floatX *dqkv, floatX *dprobs, const floatX *dout,
                                             const floatX *probs, const floatX *qkv,
                                             const AttentionMask *mask, int B, int T, int NH, int HD);

void masked_attention_forward_f32(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask,
                                  int B, int T, int NH, int HD);
void masked_attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                   const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                   int B, int T, int NH, int HD);
void masked_attention_standard_forward_f32(floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                           const AttentionMask *mask, int B, int T, int NH, int HD);
void masked_attention_standard_backward_f32(floatX *dqkv, floatX *dprobs, const floatX *dout,
                                            const floatX *probs, const floatX *qkv, const AttentionMask *mask,
                                            int B, int T, int NH, int HD);

/* Bytes that attention_backward needs of the scratch buffer: two floats per (B,NH,T), lse and D. */
size_t attention_scratch_bytes(const OpShape *shape, DType dtype);
