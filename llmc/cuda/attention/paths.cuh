/* The attention paths that dispatch.cu chooses from. Arguments are those of the Ops members (llmc/model/ops.h). */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

typedef void PlainAttentionForward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD);
/* d (B,T,NH): rowsum(dout * out) of each head where it is known, or NULL; a path may compute it all the same. */
typedef void PlainAttentionBackward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, const float *d, void *scratch, int B, int T, int NH,
                                    int HD);
/* The same for one head size, which the kernel knows. */
typedef void AttentionBackwardOfHead(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                     const float *lse, const float *d, void *scratch, int B, int T, int NH);
/* Masked paths are the ops themselves. */

/* Kernels for sm_90a (Hopper): TMA, wgmma, warp specialisation; bf16, causal. The files also compile for other
 * architectures, where the kernels are empty. _1cta: blocks alone; _2cta: 2-CTA clusters that share loads by multicast.
 * scratch: the bytes below. */
PlainAttentionForward sm90_forward_hd64_1cta, sm90_forward_hd64_2cta, sm90_forward_hd128_1cta,
    sm90_forward_hd128_2cta, sm90_forward_hd80, sm90_forward_hd96, sm90_forward_hd112, sm90_forward_hd256;
AttentionForward sm90_forward_hd64_ranges, sm90_forward_hd80_ranges, sm90_forward_hd96_ranges,
    sm90_forward_hd112_ranges, sm90_forward_hd128_ranges;
AttentionForward sm90_forward_hd64_sparse, sm90_forward_hd80_sparse, sm90_forward_hd96_sparse,
    sm90_forward_hd112_sparse, sm90_forward_hd128_sparse;
AttentionForward sm90_forward_hd64_dropout, sm90_forward_hd80_dropout, sm90_forward_hd96_dropout,
    sm90_forward_hd112_dropout, sm90_forward_hd128_dropout;
PlainAttentionBackward sm90_backward_hd64_1cta, sm90_backward_hd64_2cta, sm90_backward_hd128_1cta,
    sm90_backward_hd128_2cta, sm90_backward_hd80, sm90_backward_hd96_1cta, sm90_backward_hd96_2cta,
    sm90_backward_hd112_1cta, sm90_backward_hd112_2cta;
AttentionBackward sm90_backward_hd64_ranges, sm90_backward_hd80_ranges, sm90_backward_hd96_ranges,
    sm90_backward_hd112_ranges, sm90_backward_hd128_ranges;
AttentionBackward sm90_backward_hd64_sparse, sm90_backward_hd80_sparse, sm90_backward_hd96_sparse,
    sm90_backward_hd112_sparse, sm90_backward_hd128_sparse;
AttentionBackward sm90_backward_hd64_dropout, sm90_backward_hd80_dropout, sm90_backward_hd96_dropout,
    sm90_backward_hd112_dropout, sm90_backward_hd128_dropout;
enum { MOST_SM90_THRESHOLD = 128 }; /* of dropout: more than half of the probabilities is others' work */
size_t sm90_backward_hd64_scratch_bytes(int B, int T, int NH);
size_t sm90_backward_sparse_scratch_bytes(int B, int T, int NH, int HD); /* of *_sparse */
size_t sm90_backward_hd128_scratch_bytes(int B, int T, int NH);          /* 80 to 112, too */

/* mma.sync kernels, bf16; HD any multiple of 8 up to 256. scratch: (B,NH,T) RowStats. */
PlainAttentionForward sm80_attention_forward;
PlainAttentionBackward sm80_attention_backward;
AttentionForward sm80_masked_attention_forward;
AttentionBackward sm80_masked_attention_backward;

/* FFMA kernels, fp32; HD any multiple of 8 up to 256. scratch: (B,NH,T) RowStats. */
PlainAttentionForward generic_attention_forward_f32;
PlainAttentionBackward generic_attention_backward_f32;
AttentionForward generic_masked_attention_forward_f32;
AttentionBackward generic_masked_attention_backward_f32;

/* What backward knows of a query row, written by the dQ pass for the dK/dV pass: with x = scale * q.k *
 * log2(e), P = 2^(x + neg_lse2) and dS = P * (dP + neg_d); with dropout neg_d is (1 - p) times that, see
 * mask.cuh. */
typedef struct alignas(8) RowStats {
    float neg_lse2; /* -lse * log2(e) */
    float neg_d;    /* -rowsum(dO * O) */
} RowStats;
