/* Attention backward for sm_90a, head size 80: the causal 1-CTA kernel of 64 (sm90_backward_hd64.cuh), at any T. ms of two
 * layers of 65,536 tokens, 1280 channels, at T = 1024, 8192 and 32768: 2.18, 13.2, 50.9; with halves exchanged 2.16, 13.2,
 * 51.8; in clusters 2.55, 14.3, 55.5; the kernels of 128 took 2.93, 17.9, 66.8. */
#include "sm90_backward_hd64.cuh"
#include "llmc/cuda/attention/paths.cuh"

void sm90_backward_hd80(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                        const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    backward_hd64<true, false, false, 80>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);
}
