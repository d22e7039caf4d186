/* Attention backward for sm_90a, head sizes 96 and 112: the kernels of 128 (sm90_backward_hd128.cu). */
#include "llmc/cuda/attention/paths.cuh"
#include "sm90_backward_hd128.cuh"

#define BACKWARD(name, cluster, head_size)                                                                   \
    void name(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv, const float *lse,      \
              const float *d, void *scratch, int B, int T, int NH, int HD) {                                 \
        backward_hd128<true, cluster, head_size>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH);           \
    }

BACKWARD(sm90_backward_hd96_1cta, 1, 96)
BACKWARD(sm90_backward_hd96_2cta, 2, 96)
BACKWARD(sm90_backward_hd112_1cta, 1, 112)
BACKWARD(sm90_backward_hd112_2cta, 2, 112)
