/* Attention backward on Hopper in two passes, which the trainer's kernels in one pass beat at every length (1.2 times and
 * more at T = 1024). The math: llmc/cuda/attention/sm90/sm90_backward.cuh.
 *
 *   dQ pass      A tile is 64 query rows per consumer warpgroup; keys come in blocks, as in forward.
 *                dQ = scale * dS K; dS goes from registers into the product. Computes D from its rows of dO and O.
 *   dK, dV pass  A tile is 64 keys per warpgroup; queries come in blocks of 64, from the diagonal on.
 *
 * Seven products instead of five, but no tile of dQ is ever added to memory. */
#pragma once
#include "llmc/cuda/attention/sm90/sm90_keys.cuh"

/* Of the dQ pass. */
struct DqArgs : BackwardArgs {
    CUtensorMap columns; /* boxes of as many rows of qkv as a block of keys has */
    const bf16 *dout_data, *out;
    const float *lse;
};
