/* Attention forward for sm_90a under dropout of the probabilities: the causal 1-CTA kernels of sm90_forward.cu with it, at
 * any T. Clusters gain nothing here: 7.92 ms without and 8.16 with them (head size 64, 24 heads, 4 sequences of 16k). */
#include "llmc/cuda/attention/paths.cuh"
#include "sm90_forward_launch.cuh"

template <int HD, const Sm90Shape &TILES>
static void forward_dropout(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                            int T, int NH) {
    forward<WithDropout<ForwardConfig<HD, true, TILES, SM90_FIXED_MAX, SM90_FREE, false>>,
            WithDropout<ForwardConfig<HD, true, TILES, SM90_ONLINE_MAX, SM90_FREE, false>>>(
        out, lse, qkv, B, T, NH, {}, dropout_args(mask));
}

#define FORWARD(name, head_size, tiles)                                                                      \
    void name(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B, int T, int NH,   \
              int HD) {                                                                                      \
        forward_dropout<head_size, tiles>(out, lse, qkv, mask, B, T, NH);                                    \
    }

FORWARD(sm90_forward_hd64_dropout, 64, TILES_256_64)
FORWARD(sm90_forward_hd80_dropout, 80, TILES_192_64)
FORWARD(sm90_forward_hd96_dropout, 96, TILES_192_64)
FORWARD(sm90_forward_hd112_dropout, 112, TILES_192_64)
FORWARD(sm90_forward_hd128_dropout, 128, TILES_192_64)
