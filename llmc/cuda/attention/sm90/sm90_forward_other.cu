/* Attention forward for sm_90a: head sizes 80, 96, 112 and 256 (sm90_forward.cu has the kernel and why it is built so). */
#include "llmc/cuda/attention/paths.cuh"
#include "sm90_forward_launch.cuh"

template <int HD, const Sm90Shape &TILES>
static void causal_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH) {
    forward<ForwardConfig<HD, true, TILES, SM90_FIXED_MAX, SM90_FREE, false>,
            ForwardConfig<HD, true, TILES, SM90_ONLINE_MAX, SM90_FREE, false>>(out, lse, qkv, B, T, NH);
}

/* Up to 112 heads lie in shared memory as 128 columns; the products are as wide as the head. */
void sm90_forward_hd80(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<80, TILES_192_64>(out, lse, qkv, B, T, NH);
}
void sm90_forward_hd96(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<96, TILES_192_64>(out, lse, qkv, B, T, NH);
}
void sm90_forward_hd112(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<112, TILES_192_64>(out, lse, qkv, B, T, NH);
}
/* Q has one buffer, 64 KB, so nothing is queued between two tiles. */
void sm90_forward_hd256(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    causal_forward<256, TILES_128_64>(out, lse, qkv, B, T, NH);
}
