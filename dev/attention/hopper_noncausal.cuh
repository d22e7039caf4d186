/* The trainer's Hopper kernels without a causal mask, a file for each: hopper_noncausal_*.cu. */
#pragma once
#include "llmc/cuda/attention/paths.cuh"

PlainAttentionForward noncausal_forward_hd64_1cta, noncausal_forward_hd64_2cta, noncausal_forward_hd128_1cta,
    noncausal_forward_hd128_2cta;
PlainAttentionBackward noncausal_backward_hd64_1cta, noncausal_backward_hd64_2cta,
    noncausal_backward_hd128_1cta, noncausal_backward_hd128_2cta;
