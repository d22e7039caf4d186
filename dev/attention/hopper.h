/* Attention on Hopper as the lab runs it: the trainer's kernels with and without the causal mask, the form that each
 * length has at any length, and the steps that led there. Math, shapes and `=` are those of Ops.attention_forward and
 * attention_backward (llmc/model/ops.h); causal = false: every query sees every key. Head size 64 or 128, compute capability
 * 9.0 alone. All launch on main_stream and return at once. */
#pragma once
#include <stdbool.h>
#include "llmc/model/ops.h"

typedef void HopperForward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                           bool causal);
/* d and scratch: as in PlainAttentionBackward (llmc/cuda/attention/paths.cuh). */
typedef void HopperBackward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                            const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD,
                            bool causal);

/* What the trainer runs at this length (non-causal: what it would run); 1-CTA; 2-CTA clusters. */
HopperForward hopper_forward, hopper_forward_1cta, hopper_forward_2cta;
HopperBackward hopper_backward, hopper_backward_1cta, hopper_backward_2cta;

/* Bytes of scratch, enough for every backward here. */
size_t hopper_backward_scratch_bytes(int B, int T, int NH);

/* The steps of forward, by their absence. */
typedef enum HopperStep {
    HOPPER_WIDE_TILES = 1,       /* head size 128: 192 queries x 64 keys, in place of 128 x 128 */
    HOPPER_PIPELINED_BORDER = 2, /* between two tiles */
    HOPPER_TILES_FROM_END = 4,   /* causal tiles are counted back from the end of the sequence */
    HOPPER_ROTATION = 8,         /* of rows among the warpgroups */
    HOPPER_EARLY_REDO = 16,      /* the second launch is made ready during the first */
    HOPPER_ALL_STEPS = 31,
} HopperStep;

/* 1-CTA, three warpgroups. fixed_max: the maximum of a tile's first keys stays; else the running maximum. pingpong:
 * ping-pong scheduling of the warpgroups' products. */
void hopper_forward_step(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                         bool causal, bool fixed_max, bool pingpong);
/* The same, fixed maximum, ping-pong at head size 64, without one step or all. */
void hopper_forward_without(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                            bool causal, HopperStep step);

/* Backward in two passes of seven products, no sums of dQ in memory: dq reads lse and writes dQ and scratch; dkv reads
 * scratch and writes dK and dV. */
void hopper_two_pass_dq(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                        const float *lse, void *scratch, int B, int T, int NH, int HD, bool causal);
void hopper_two_pass_dkv(floatX *dqkv, const floatX *dout, const floatX *qkv, const void *scratch, int B,
                         int T, int NH, int HD, bool causal);
