/* Attention without tensor cores as the lab runs it (generic_bf16.cu). */
#pragma once
#include "llmc/cuda/attention/paths.cuh"

PlainAttentionForward generic_attention_forward_bf16;
PlainAttentionBackward generic_attention_backward_bf16;
AttentionForward generic_masked_attention_forward_bf16;
AttentionBackward generic_masked_attention_backward_bf16;
