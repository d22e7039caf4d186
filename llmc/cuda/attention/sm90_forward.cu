/* Attention forward for sm_90a, bf16, head size 64 and 128 (FlashAttention-2, Dao 2023, Algorithm 1;
 * FlashAttention-3, Shah et al. 2024, for the roles of the warps). out =, lse =.
 *
 * A tile is 192 or 256 query rows of one head (128: the lab alone), 64 for each of its consumer warpgroups; keys come
 * in blocks of 128 or 64 (FORWARD_SHAPES, SERVED), from the diagonal (or the end) down to 0. Each warpgroup visits only
 * the blocks that its own rows see and merely releases the others; only its first block is masked. O, the row sums and
 * P stay in registers. Measured gains of each step: dev/attention/README.md.
 *
 * Frozen maximum. Softmax does not depend on the value subtracted from the scores, and P in bf16 and sums in
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
 *   mask the slots of 64 rows are spread evenly: T = 1024 is two tiles of two slots and four of three.
 * - A warpgroup knows its next tile before it has done the last, and the first P V of a tile sets O.
 * - Rows rotate among the warpgroups: the lowest 64 rows of a causal tile see fewer keys than the highest.
 * - Of a first block of 128 keys, rows that see only 64 compute only 64.
 * - At head size 64 four warpgroups of 112 registers hide each other's borders and waits better than three of 160: 10 %
 *   fewer clocks at T = 1024. Their blocks are 64 keys, for which S, P and O leave 32 registers; so what a block costs
 *   beside its products and exponentials counts: K and V have one barrier.
 * - O leaves through the tile's own Q buffer and TMA: with shuffles and stores of 16 bytes from registers the
 *   output took as long as a step of the main loop (2000 clocks; now 750 at head size 64).
 *
 * Long sequences. The card is at its limit of power, so reads of L2 cost speed: from pairs_from on, blocks form
 * clusters of two (sm90_cluster.cuh), which own pairs of tiles, 2p and 2p + 1, and load K and V once for both. The
 * pair's slots of 64 rows go to its tiles in turns, so that at the diagonal they differ by one slot, not by three. A
 * warpgroup that skips more than one block of keys there finishes its tile before: its last V would hold up all six.
 * Nothing waits in a circle: a warpgroup can always do its next block, unless the producer has not loaded it, and the
 * producer waits only for warpgroups whose next block has been loaded. */
#include "sm90_forward.cuh"

template <class C>
static ForwardArgs forward_args(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH,
                                unsigned without) {
    ForwardArgs args = {};
    args.q = tensor_map(qkv, B, T, 3 * NH, C::HD, ROWS);
    args.kv = tensor_map(qkv, B, T, 3 * NH, C::HD, C::KEYS);
    args.out = tensor_map(out, B, T, NH, C::HD, ROWS / 4);
    args.lse = lse;
    args.T = T;
    args.NH = NH;
    /* Full tiles are all alike, so small sections cost nothing: 0.80 GB of DRAM for 1.05 at head size 128, T = 1024, 0
     * to +3 % in speed. Causal ones gain nothing. */
    args.order = tile_order(B, T, NH, C::SLOTS * ROWS, 2 * C::HD * 2, true,
                            C::CAUSAL ? SM90_SECTION_BYTES : SM90_SMALL_SECTION_BYTES);
    if (C::CAUSAL) /* the last two sections as one, for a shorter tail: +1.5 % at T = 32k */
        args.order.last_head = max(0, args.order.last_head - args.order.section_heads);
    if (!(without & SM90_TILES_FROM_END)) args.missing = args.order.tiles * C::SLOTS - ceil_div<int>(T, ROWS);
    args.scale_log2 = SM90_LOG2E / sqrtf((float)C::HD);
    args.rotate = !(without & SM90_ROTATION);
    args.apart = without & SM90_PIPELINED_BORDER;
    return args;
}

template <class C> static void launch(const ForwardArgs &args, const char *name, LaunchStart start) {
    launch_persistent(name, sm90_forward_kernel<C>, args, args.order.total * C::CLUSTER, C::THREADS,
                      shared_bytes<ForwardShared<C>>(), start, C::CLUSTER);
}

template <int HD, bool CAUSAL, int SHAPE, Sm90Order ORDER, bool PAIRED = false>
static void forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, Sm90Softmax softmax,
                    unsigned without) {
    using Frozen = ForwardConfig<HD, CAUSAL, SHAPE, SM90_FROZEN, ORDER, PAIRED>;
    using Online = ForwardConfig<HD, CAUSAL, SHAPE, SM90_ONLINE, ORDER, PAIRED>;
    ForwardArgs args = forward_args<Frozen>(out, lse, qkv, B, T, NH, without);
    if (softmax == SM90_ONLINE) {
        launch<Online>(args, "sm90_forward_kernel (online)", START_AFTER);
        return;
    }
    launch<Frozen>(args, "sm90_forward_kernel (frozen)", START_AFTER);
    args.redo = true;
    launch<Online>(args, "sm90_forward_kernel (redo)", without & SM90_EARLY_REDO ? START_AFTER : START_EARLY);
}

/* Rows of FORWARD_SHAPES. */
enum { TILES_192_128, TILES_192_64, TILES_128_128, TILES_256_64 };

typedef void Forward(floatX *, float *, const floatX *, int, int, int, Sm90Softmax, unsigned);
#define FORWARDS(HD, CAUSAL, SHAPE)                                                                          \
    { forward<HD, CAUSAL, SHAPE, SM90_FREE>, forward<HD, CAUSAL, SHAPE, SM90_TURNS> }
static Forward *const FORWARDS_TABLE[3][2][2] = {
  /* [row of FORWARD_SHAPES][causal][order] */
    {FORWARDS(64,  false, TILES_192_128), FORWARDS(64,  true, TILES_192_128)},
    {FORWARDS(128, false, TILES_192_64),  FORWARDS(128, true, TILES_192_64) },
    {FORWARDS(128, false, TILES_128_128), FORWARDS(128, true, TILES_128_128)},
};

void attention_forward_sm90_without(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                    bool causal, Sm90Softmax softmax, Sm90Order order, unsigned without) {
    const int shape = HD == 64 ? TILES_192_128 : without & SM90_WIDE_TILES ? TILES_128_128 : TILES_192_64;
    FORWARDS_TABLE[shape][causal][order](out, lse, qkv, B, T, NH, softmax, without);
}

void attention_forward_sm90_variant(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                    bool causal, Sm90Softmax softmax, Sm90Order order) {
    attention_forward_sm90_without(out, lse, qkv, B, T, NH, HD, causal, softmax, order, 0);
}

/* What serves what: blocks alone below T = pairs_from, from there on pairs. Causal, head size 128, pairs are 3 % slower
 * at T = 1024 and 2 % faster at 4096 (2048 was not timed). At head size 64 four warpgroups take 8 to 12 % less time at
 * 1024, but 388 clocks for 64 x 64 where borders do not count, three in turns 364. */
typedef struct Served {
    Forward *alone, *paired;
    int pairs_from;
} Served;
static const Served SERVED[2][2] = {
  /* [HD == 128][causal] */
    {{forward<64, false, TILES_192_128, SM90_TURNS>, forward<64, false, TILES_192_128, SM90_TURNS, true>,
      1024},
     {forward<64, true, TILES_256_64, SM90_FREE>, forward<64, true, TILES_192_128, SM90_TURNS, true>, 4096}},
    {{forward<128, false, TILES_192_64, SM90_FREE>, forward<128, false, TILES_192_64, SM90_FREE, true>, 1024},
     {forward<128, true, TILES_192_64, SM90_FREE>, forward<128, true, TILES_192_64, SM90_FREE, true>, 4096}},
};

void attention_forward_sm90_alone(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                  bool causal) {
    SERVED[HD == 128][causal].alone(out, lse, qkv, B, T, NH, SM90_FROZEN, 0);
}

void attention_forward_sm90_paired(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                   bool causal) {
    SERVED[HD == 128][causal].paired(out, lse, qkv, B, T, NH, SM90_FROZEN, 0);
}

void attention_forward_sm90(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                            bool causal) {
    const bool alone = T < SERVED[HD == 128][causal].pairs_from;
    (alone ? attention_forward_sm90_alone : attention_forward_sm90_paired)(out, lse, qkv, B, T, NH, HD,
                                                                           causal);
}
