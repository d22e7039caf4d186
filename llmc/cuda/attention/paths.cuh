/* The attention paths that dispatch.cu chooses from. Arguments are those of the Ops members (llmc/ops.h). */
#pragma once
#include "../cuda_common.cuh"

/* mma.sync kernels; HD 64 or 128. scratch: (B,NH,T) RowStats. */
void sm80_attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD);
void sm80_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, void *scratch, int B, int T, int NH, int HD);
void sm80_masked_attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask,
                                   int B, int T, int NH, int HD);
void sm80_masked_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, const AttentionMask *mask, void *scratch, int B, int T,
                                    int NH, int HD);

/* FFMA kernels; HD any multiple of 8 up to 256. scratch: (B,NH,T) RowStats. */
void generic_attention_forward_bf16(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD);
void generic_attention_forward_f32(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD);
void generic_attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                     const float *lse, void *scratch, int B, int T, int NH, int HD);
void generic_attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, void *scratch, int B, int T, int NH, int HD);
void generic_masked_attention_forward_bf16(floatX *out, float *lse, const floatX *qkv,
                                           const AttentionMask *mask, int B, int T, int NH, int HD);
void generic_masked_attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out,
                                            const floatX *qkv, const float *lse, const AttentionMask *mask,
                                            void *scratch, int B, int T, int NH, int HD);
void generic_masked_attention_forward_f32(floatX *out, float *lse, const floatX *qkv,
                                          const AttentionMask *mask, int B, int T, int NH, int HD);
void generic_masked_attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out,
                                           const floatX *qkv, const float *lse, const AttentionMask *mask,
                                           void *scratch, int B, int T, int NH, int HD);

/* What backward knows of a query row, written by the dQ pass for the dK/dV pass: with x = scale * q.k *
 * log2(e), P = 2^(x + neg_lse2) and dS = P * (dP + neg_d); with dropout neg_d is (1 - p) times that, see
 * mask.cuh. */
typedef struct alignas(8) RowStats {
    float neg_lse2; /* -lse * log2(e) */
    float neg_d;    /* -rowsum(dO * O) */
} RowStats;
