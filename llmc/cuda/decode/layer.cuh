/* Of the kernels that take the place of a decoding step's launches: which models they serve, and what they know of a layer. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

/* The head size, and at most so many layers and so long a cache. */
enum { DECODE_HD = 64, DECODE_MAX_LAYERS = 48, DECODE_MAX_T = 1024 };

static constexpr float NO_SCORE = -1e30f; /* of no key: -inf from itself would be NaN */

/* Weights, and the cache (B,T,2,C). */
typedef struct DecodeLayer {
    const bf16 *ln_1_weight, *ln_1_bias, *qkv_weight, *qkv_bias, *attn_proj_weight, *attn_proj_bias;
    const bf16 *ln_2_weight, *ln_2_bias, *fc_weight, *fc_bias, *mlp_proj_weight, *mlp_proj_bias;
    bf16 *cache;
} DecodeLayer;
