/* What attention's variants, its reference and its inputs agree on: the layout of the tensors, and the rows
 * of the two ops, in C and CUDA.
 *
 * q (B,T,NH,HD), k (B,Tk,NH,HD), v (B,Tk,NH,DV), out and dout (B,T,NH,DV), lse (B,NH,T) fp32. If Tk = T and
 * DV = HD they are packed as in ops.h, (B,T,3,NH,HD); else q, k and v follow one another in one buffer. dqkv
 * has the layout of qkv. Query i sees key j if j <= i + Tk - T or if the case is not causal; a query that
 * sees nothing gives out = 0, lse = -inf. scale = 1/sqrt(HD). */
#pragma once
#include "../driver/lab.h"

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ inline
#else
#define HOST_DEVICE static inline
#endif

/* Operands of the two ops, in order. */
enum { FORWARD_OUT, FORWARD_LSE, FORWARD_QKV, FORWARD_SCRATCH };
enum { BACKWARD_DQKV, BACKWARD_DOUT, BACKWARD_OUT, BACKWARD_QKV, BACKWARD_LSE, BACKWARD_SCRATCH };

/* Element offsets of q, k and v of position 0, head 0, and from one position to the next. */
typedef struct AttentionLayout {
    int64_t q, k, v;
    int64_t q_stride, k_stride, v_stride, out_stride;
} AttentionLayout;

HOST_DEVICE bool attention_packed(const Sizes *s) {
    return s->T == s->Tk && s->HD == s->DV;
}

HOST_DEVICE AttentionLayout attention_layout(const Sizes *s) {
    const int64_t C = (int64_t)s->NH * s->HD, V = (int64_t)s->NH * s->DV;
    if (attention_packed(s)) {
        const AttentionLayout packed = {0, C, 2 * C, 3 * C, 3 * C, 3 * C, C};
        return packed;
    }
    const int64_t k = s->B * (int64_t)s->T * C, v = k + s->B * (int64_t)s->Tk * C;
    const AttentionLayout apart = {0, k, v, C, C, V, V};
    return apart;
}

/* Elements of qkv, and of out. */
HOST_DEVICE int64_t attention_qkv_elems(const Sizes *s) {
    return (int64_t)s->B * s->NH * ((int64_t)s->T * s->HD + (int64_t)s->Tk * (s->HD + s->DV));
}
HOST_DEVICE int64_t attention_out_elems(const Sizes *s) {
    return (int64_t)s->B * s->T * s->NH * s->DV;
}

/* Keys that query i sees. */
HOST_DEVICE int attention_visible(const Sizes *s, int i) {
    if (!s->causal) return s->Tk;
    const int n = i + 1 + s->Tk - s->T;
    return n < 0 ? 0 : n;
}

/* Pairs of query and key that are not masked, of all heads; causal counted as half of T*T, as in the
 * literature. */
HOST_DEVICE double attention_pairs(const Sizes *s) {
    const double T = s->T, Tk = s->Tk, heads = (double)s->B * s->NH;
    if (!s->causal) return heads * T * Tk;
    return heads * (Tk >= T ? T * (Tk - T) + T * T / 2 : Tk * Tk / 2);
}

/* The reference: `exact` in double, or as a straightforward implementation in a storage type computes it: sums
 * in fp32; P, dS and the results rounded to the storage type. */
typedef enum Precision { EXACT, PLAIN_F32, PLAIN_BF16 } Precision;

typedef struct AttentionReference {
    Sizes s;
    Precision precision;
    const float *qkv, *dout;
    double *out, *lse; /* results of forward; read by backward */
    double *d;         /* (B,NH,T), space for backward */
    double *dqkv;      /* NULL: forward alone */
} AttentionReference;

#ifdef __cplusplus
extern "C" {
#endif
/* Forward if dqkv is NULL, else backward, on all pointers in host memory. */
void attention_reference_cpu(const AttentionReference *r);
void attention_reference_gpu(const AttentionReference *r);
#ifdef __cplusplus
}
#endif
