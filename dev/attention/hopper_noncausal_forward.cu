/* Attention forward on Hopper without a causal mask. */
#include "llmc/cuda/attention/sm90/sm90_forward_launch.cuh"
#include "hopper_noncausal.cuh"

template <int HD, const Sm90Shape &TILES, Sm90Order ORDER, bool PAIRED>
static void noncausal_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH) {
    forward<ForwardConfig<HD, false, TILES, SM90_FIXED_MAX, ORDER, PAIRED>,
            ForwardConfig<HD, false, TILES, SM90_ONLINE_MAX, ORDER, PAIRED>>(out, lse, qkv, B, T, NH);
}

void noncausal_forward_hd64_1cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    noncausal_forward<64, TILES_192_128, SM90_PING_PONG, false>(out, lse, qkv, B, T, NH);
}
void noncausal_forward_hd64_2cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    noncausal_forward<64, TILES_192_128, SM90_PING_PONG, true>(out, lse, qkv, B, T, NH);
}
void noncausal_forward_hd128_1cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    noncausal_forward<128, TILES_192_64, SM90_FREE, false>(out, lse, qkv, B, T, NH);
}
void noncausal_forward_hd128_2cta(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    noncausal_forward<128, TILES_192_64, SM90_FREE, true>(out, lse, qkv, B, T, NH);
}
