/* Which Hopper kernel serves what, with and without a causal mask (hopper.h). */
#include "hopper.h"
#include "llmc/cuda/attention/attention.cuh"
#include "hopper_noncausal.cuh"

/* [HD == 128][causal] */
static PlainAttentionForward *const forward_1cta[2][2] = {
    {noncausal_forward_hd64_1cta,  sm90_forward_hd64_1cta },
    {noncausal_forward_hd128_1cta, sm90_forward_hd128_1cta},
};
static PlainAttentionForward *const forward_2cta[2][2] = {
    {noncausal_forward_hd64_2cta,  sm90_forward_hd64_2cta },
    {noncausal_forward_hd128_2cta, sm90_forward_hd128_2cta},
};
static PlainAttentionBackward *const backward_1cta[2][2] = {
    {noncausal_backward_hd64_1cta,  sm90_backward_hd64_1cta },
    {noncausal_backward_hd128_1cta, sm90_backward_hd128_1cta},
};
static PlainAttentionBackward *const backward_2cta[2][2] = {
    {noncausal_backward_hd64_2cta,  sm90_backward_hd64_2cta },
    {noncausal_backward_hd128_2cta, sm90_backward_hd128_2cta},
};

void hopper_forward_1cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                         bool causal) {
    forward_1cta[HD == 128][causal](out, lse, qkv, B, T, NH, HD);
}
void hopper_forward_2cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                         bool causal) {
    forward_2cta[HD == 128][causal](out, lse, qkv, B, T, NH, HD);
}
void hopper_backward_1cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                          const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD,
                          bool causal) {
    backward_1cta[HD == 128][causal](dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, HD);
}
void hopper_backward_2cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                          const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD,
                          bool causal) {
    backward_2cta[HD == 128][causal](dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, HD);
}

static const AttentionMask no_mask = {};

/* Without a mask clusters serve forward from T = 1024 on, backward from 32768 at head size 64 (+3 % there) and from 2048
 * at 128 (TFLOP/s of blocks alone and of clusters: 526 and 556 at 2048, 479 and 487 at 1024, no more than repeats
 * differ). */
void hopper_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD, bool causal) {
    if (causal)
        attention_forward<bf16>(out, lse, qkv, &no_mask, B, T, NH, HD);
    else
        (T < 1024 ? hopper_forward_1cta : hopper_forward_2cta)(out, lse, qkv, B, T, NH, HD, false);
}
void hopper_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv, const float *lse,
                     const float *d, void *scratch, int B, int T, int NH, int HD, bool causal) {
    const int clusters_from = HD == 64 ? 32768 : 2048;
    if (causal)
        attention_backward<bf16>(dqkv, dout, out, qkv, lse, d, &no_mask, scratch, B, T, NH, HD);
    else
        (T < clusters_from ? hopper_backward_1cta : hopper_backward_2cta)(dqkv, dout, out, qkv, lse, d,
                                                                          scratch, B, T, NH, HD, false);
}

/* The two passes need less. */
size_t hopper_backward_scratch_bytes(int B, int T, int NH) {
    const size_t of_64 = sm90_backward_hd64_scratch_bytes(B, T, NH);
    const size_t of_128 = sm90_backward_hd128_scratch_bytes(B, T, NH);
    return of_64 > of_128 ? of_64 : of_128;
}
