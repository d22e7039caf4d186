/* Attention backward for sm_90a, head size 128: the causal kernels (sm90_backward_hd128.cuh), and why they are built so.
 *
 * A tile is 128 keys, 64 for each of two warpgroups, which walk the blocks of 64 queries from the diagonal on. A warpgroup
 * keeps dK and dV of its keys in registers, and computes half of the columns of the block's partial dQ = dS K: dS of both
 * warpgroups goes through shared memory. A warpgroup's products, for each block j:
 *
 *     S(j)  dP(j)  dV(j)  dQ(j-1)  dK(j)
 *
 * The exponentials are taken under dP, dS is computed under dV, dQ leaves the registers under dK, so but for a moment
 * after dK one product is always under way. dQ is one block late, so a warpgroup does not wait for dS of the other, and dQ
 * can have the registers of dP.
 *
 * 1-CTA: dV, dK and dQ leave by TMA, from where V, dS and dQ's sums were: the next tile's V comes while dQ of the last
 * block is multiplied, its K while that dQ and dK leave.
 *
 * 2-CTA: the two blocks of a cluster own tiles 2p and 2p + 1 of a head, and walk the same blocks of queries. One producer,
 * in the first block, loads Q and dO for both by multicast: half the reads of L2. A block of queries is owned by the
 * thread block whose rank is its parity: that one computes the pair's partial dQ over all 256 keys, and adds it once. So
 * the two exchange dS, and each has the other's K as well. For a block j that is owned, and for the next:
 *
 *     S(j)  dP(j)  dV(j)  dK(j)
 *     S(j+1)  dP(j+1)  dV(j+1)  dQ(j)  dK(j+1)
 *
 * dS(j) stays here and dS(j+1) is sent, from registers into the other block's shared memory. By the time of dQ(j) the
 * other's dS(j) has come. While one block has its longer step the other has its shorter one. It takes 32 KB of shared
 * memory for the other tile's K, and 32 KB a step and pair between the SMs; it saves half of what is added in L2, and half
 * of the waits (sm90_dq_semaphore.cuh). dK leaves from where the other tile's K was. For T < 4096 that costs more, at a tile's
 * start and end, than it saves.
 *
 * Blocks of queries that see only tile 2p, two of a causal pair, have a dS of 0 in tile 2p + 1; so has a tile beyond the
 * sequence, the second of its head's last pair. (K of the other tile is multiplied by those zeros: a NaN in a key reaches
 * dQ of all 256 queries of the pair's diagonal.)
 *
 * Nothing waits in a circle. A stage of Q or dO is free when the warps of both blocks have released it, so neither is
 * ahead by more than a step. In step i (of the walk) a block waits for stages that both have released in step i - 2, for
 * the other's dS of step i - 1, and, to send its own, for the other's product of step i - 1, which needs dS of step i - 2.
 * Semaphores wait for pairs drawn earlier, and whoever waits has given what it owes to them. */
#include "sm90_backward_hd128.cuh"
#include "llmc/cuda/attention/paths.cuh"

void sm90_backward_hd128_1cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                              const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    backward_hd128<true, 1>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}
void sm90_backward_hd128_2cta(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                              const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    backward_hd128<true, 2>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}

size_t sm90_backward_hd128_scratch_bytes(int B, int T, int NH) {
    return backward_scratch_bytes(B, T, NH, 128);
}
