/* Attention forward for sm_90a where queries do not see all keys before them: a window. The kernel is that of
 * sm90_forward.cu; a tile's blocks of keys end where its first row's window begins, and the last one or two of a warpgroup's
 * are masked as well as the first.
 *
 * Blocks of 64 keys: with a window of 256, 64 rows then visit 5 blocks, 0.8 of which they see. In blocks of 128 half of the
 * rows would visit 384 keys for the same 256. */
#include "llmc/cuda/attention/paths.cuh"
#include "sm90_forward_launch.cuh"

template <int HD, const Sm90Shape &TILES, bool PAIRED = false>
static void forward_ranges(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                           int T, int NH) {
    forward<ForwardRanges<ForwardConfig<HD, true, TILES, SM90_FIXED_MAX, SM90_FREE, PAIRED>>,
            ForwardRanges<ForwardConfig<HD, true, TILES, SM90_ONLINE_MAX, SM90_FREE, PAIRED>>>(
        out, lse, qkv, B, T, NH, seen_keys(mask, T));
}

#define FORWARD(name, head_size, tiles)                                                                      \
    void name(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B, int T, int NH,   \
              int HD) {                                                                                      \
        forward_ranges<head_size, tiles>(out, lse, qkv, mask, B, T, NH);                                     \
    }

FORWARD(sm90_forward_hd64_ranges, 64, TILES_256_64)
FORWARD(sm90_forward_hd80_ranges, 80, TILES_192_64)
FORWARD(sm90_forward_hd96_ranges, 96, TILES_192_64)
FORWARD(sm90_forward_hd112_ranges, 112, TILES_192_64)

/* Clusters where rows may see many keys: at T = 32768 documents of 4,096 in the mean take 2 % less time, of 1,024 1 % more. */
enum { PAIRS_FROM_T = 32768, PAIRS_FROM_WINDOW = 2048 };

void sm90_forward_hd128_ranges(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                               int T, int NH, int HD) {
    const bool pairs = T >= PAIRS_FROM_T && attention_window(mask, T) >= PAIRS_FROM_WINDOW;
    (pairs ? forward_ranges<128, TILES_192_64, true> : forward_ranges<128, TILES_192_64>)(out, lse, qkv, mask,
                                                                                          B, T, NH);
}
