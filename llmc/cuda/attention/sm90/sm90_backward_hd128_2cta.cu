/* Attention backward for sm_90a head size 128, in clusters of two blocks: the causal kernel (sm90_backward_hd128_2cta.cuh), and
 * why it is built so.
 *
 * Blocks form clusters of two, which own pairs of tiles, 2p and 2p + 1 of a head, and walk the same blocks of queries.
 * One producer, in the first block, loads Q and dO for both by multicast: half the reads of L2. The two exchange dS,
 * so that a pair adds one share of dQ where two tiles would add two: half of what is written to shared memory for it
 * and added in L2, and half as many turns (sm90_turns.cuh). That takes 32 KB of shared memory for the other tile's K,
 * and 32 KB a step and pair between the SMs. Blocks of queries that see only tile 2p, two of a causal pair, have a dS
 * of 0 in tile 2p + 1; so has a tile beyond the sequence, the second of its head's last pair. (K of the other tile is
 * multiplied by those zeros: a NaN in a key reaches dQ of all 256 queries of the pair's diagonal.)
 *
 * A stage of Q or dO is free when the warps of both blocks have released it, so neither is ahead by more than a step.
 *
 * Nothing waits in a circle. In step i (of the walk) a block waits for stages that both have released in step i - 2,
 * for the other's dS of step i - 1, and, to send its own, for the other's product of step i - 1, which needs dS of
 * step i - 2. Turns are those of pairs drawn earlier, and whoever waits for a turn has given what it owes to them. */
#include "sm90_backward_hd128_2cta.cuh"
#include "llmc/cuda/attention/paths.cuh"

void sm90_backward_hd128_2cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                              const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    backward_hd128_2cta<true>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}
