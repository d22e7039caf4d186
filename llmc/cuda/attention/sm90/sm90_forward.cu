/* Attention forward for sm_90a, bf16, head size 64 and 128 (FlashAttention-2, Dao 2023, Algorithm 1;
 * FlashAttention-3, Shah et al. 2024, for the roles of the warps). out =, lse =.
 *
 * A tile is 192 or 256 query rows of one head, 64 for each of its consumer warpgroups; keys come in blocks of 128 or 64
 * (sm90_forward_tiles.cuh; which serves what: dispatch.cu), from the diagonal (or the end) down to 0. Each warpgroup visits only
 * the blocks that its own rows see and merely releases the others; only its first block is masked. O, the row sums and
 * P stay in registers. Measured gains of each step: dev/attention/README.md.
 *
 * Fixed maximum. Softmax does not depend on the value subtracted from the scores, and P in bf16 and sums in
 * fp32 have 8-bit exponents, so that value need not be the maximum, only be within some 2^60 of it. The
 * maximum of the first keys is taken and kept: no maxima, no shuffles, no rescaling of O in the main loop
 * (12-14 % of the kernel). A tile where a row sum is not finite or passes 2^64 goes on a list, and a second
 * launch does the listed tiles again with the running maximum: right for any input, slow only where scores
 * grow by 44 nats away from the diagonal.
 *
 * Short sequences. At T = 1024 a warpgroup has 4 to 5 blocks of 128 keys in a tile, so what happens once a tile
 * weighs as much as the main loop:
 * - The border is pipelined: the last P V of a tile is queued with the first scores of the next.
 * - Causal tiles are counted back from the end, so that the tile which T leaves incomplete is at the start,
 *   where it is one block long, and not at the end, where one warpgroup would work alone for T keys. Without a
 *   mask the row_blocks of 64 rows are spread evenly: T = 1024 is two tiles of two row_blocks and four of three.
 * - A warpgroup knows its next tile before it has done the last, and the first P V of a tile sets O.
 * - Rows rotate among the warpgroups: the lowest 64 rows of a causal tile see fewer keys than the highest.
 * - Of a first block of 128 keys, rows that see only 64 compute only 64.
 * - At head size 64 four warpgroups of 112 registers hide each other's borders and waits better than three of 160: 10 %
 *   fewer clocks at T = 1024. Their blocks are 64 keys, for which S, P and O leave 32 registers; so what a block costs
 *   beside its products and exponentials counts: K and V have one barrier.
 * - O leaves through the tile's own Q buffer and TMA: with shuffles and stores of 16 bytes from registers the
 *   output took as long as a step of the main loop (2000 clocks; now 750 at head size 64).
 *
 * Long sequences. The card is at its limit of power, so reads of L2 cost speed: there
 * blocks form clusters of two (sm90_cluster.cuh), which own pairs of tiles, 2p and 2p + 1, and load K and V once for both. The
 * pair's blocks of 64 rows alternate between its tiles, so that at the diagonal they differ by one block, not by three. A
 * warpgroup that skips more than one block of keys there finishes its tile before: its last V would hold up all six.
 * Nothing waits in a circle: a warpgroup can always do its next block, unless the producer has not loaded it, and the
 * producer waits only for warpgroups whose next block has been loaded. */
#include "llmc/cuda/attention/paths.cuh"
#include "sm90_forward_launch.cuh"

/* The causal kernel with one shape of tiles, one order of products, in clusters or not. */
template <int HD, const Sm90Shape &TILES, Sm90Order ORDER, bool PAIRED>
static void causal_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH) {
    forward<ForwardConfig<HD, true, TILES, SM90_FIXED_MAX, ORDER, PAIRED>,
            ForwardConfig<HD, true, TILES, SM90_ONLINE_MAX, ORDER, PAIRED>>(out, lse, qkv, B, T, NH);
}

/* At head size 64 four warpgroups take 8 to 12 % less time at T = 1024 than three, but 388 clocks for 64 x 64 where
 * borders do not count, three in ping-pong 364. */
void sm90_forward_hd64_1cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<64, TILES_256_64, SM90_FREE, false>(out, lse, qkv, B, T, NH);
}
void sm90_forward_hd64_2cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<64, TILES_192_128, SM90_PING_PONG, true>(out, lse, qkv, B, T, NH);
}
void sm90_forward_hd128_1cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<128, TILES_192_64, SM90_FREE, false>(out, lse, qkv, B, T, NH);
}
void sm90_forward_hd128_2cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<128, TILES_192_64, SM90_FREE, true>(out, lse, qkv, B, T, NH);
}
