/* What attention's variants, its reference and its inputs agree on: the layout of the tensors, and the rows
 * of the two ops, in C and CUDA.
 *
 * q (B,T,NH,HD), k (B,Tk,NH,HD), v (B,Tk,NH,DV), out and dout (B,T,NH,DV), lse (B,NH,T) fp32. If Tk = T and
 * DV = HD they are packed as in ops.h, (B,T,3,NH,HD); else q, k and v follow one another in one buffer. dqkv
 * has the layout of qkv. Query i sees key j if j <= i + Tk - T or if the case is not causal; a query that
 * sees nothing gives out = 0, lse = -inf. scale = 1/sqrt(HD). */
#pragma once
#include "llmc/model/dropout.h"
#include "dev/driver/lab.h"

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

/* The mask of the sparse forms, by blocks of 64 x 64, where it is not the trainer's (Sizes.blocks): keys within 128 of the query, the 8 first queries and keys
 * (their blocks) with all, and a tenth of the other blocks at random (Zaheer et al. 2020, the pattern of Big
 * Bird). */
enum { SPARSE_BLOCK = 64, SPARSE_WINDOW = 128 };

/* SplitMix64's finaliser (Steele, Lea & Flood 2014). */
HOST_DEVICE uint32_t attention_hash(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((x ^ x >> 31) >> 32);
}
/* The trainer's pattern, of its layer 0. */
HOST_DEVICE bool attention_sees_block(SparsePattern p, int query_block, int key_block) {
    if (key_block >= query_block - p.window || key_block < p.first) return true;
    for (int r = 0; r < sparse_n_chosen(p, query_block); r++)
        if (sparse_choice(p, 0, query_block, r) == key_block) return true;
    return false;
}
HOST_DEVICE bool attention_block_set(const Sizes *s, int query_block, int key_block) {
    if (s->blocks.window) return attention_sees_block(s->blocks, query_block, key_block);
    if (!s->sparse || query_block == 0 || key_block == 0) return true;
    const int distance = query_block - key_block;
    if ((distance < 0 ? -distance : distance) <= SPARSE_WINDOW / SPARSE_BLOCK) return true;
    return attention_hash(((uint64_t)query_block << 32 | (uint32_t)key_block) + 0x9E3779B97F4A7C15u) <
           0xFFFFFFFFu / 10;
}

/* What P_ij is multiplied with under dropout: 0 for a tenth, else 1/0.9; from a counter, so that backward draws
 * what forward drew and nothing is stored. row = (b*NH + head)*T + i: the trainer's masks, of one key and site. */
#define DROPOUT_P 0.1f
enum { DROPOUT_KEY = 20240529, DROPOUT_SITE = 3 };
HOST_DEVICE float attention_dropout(const Sizes *s, int64_t row, int j) {
    if (!s->dropout) return 1;
    const DropoutMatrix head = dropout_matrix(dropout_site(DROPOUT_KEY, DROPOUT_SITE), row / s->T);
    const uint32_t threshold = dropout_threshold(DROPOUT_P);
    return dropout_drops(head, (uint32_t)(row % s->T), (uint32_t)j, threshold) ? 0 : dropout_scale(threshold);
}

/* One past the last key that query i can see, and the first one; of a sparse mask, those in blocks that are set. */
HOST_DEVICE int attention_visible(const Sizes *s, int i) {
    if (!s->causal) return s->Tk;
    const int n = i + 1 + s->Tk - s->T;
    return n < 0 ? 0 : n;
}
HOST_DEVICE int attention_first(const Sizes *s, int i) {
    const int end = attention_visible(s, i);
    return s->window && s->window < end ? end - s->window : 0;
}

/* The part of the blocks that a sparse mask sets. */
HOST_DEVICE double attention_density(const Sizes *s) {
    double set = 0, all = 0;
    for (int q = 0; (s->sparse || s->blocks.window) && q * SPARSE_BLOCK < s->T; q++)
        for (int k = 0; k * SPARSE_BLOCK < attention_visible(s, (q + 1) * SPARSE_BLOCK - 1); k++) {
            if (k * SPARSE_BLOCK >= s->Tk) break;
            all++;
            set += attention_block_set(s, q, k);
        }
    return all > 0 ? set / all : 1;
}

/* Pairs of query and key that are not masked, of all heads; causal counted as half of T*T, as in the
 * literature. */
static inline double attention_pairs(const Sizes *s) {
    if (s->blocks.window) return sparse_pairs(s->blocks, s->T) * s->B * s->NH;
    const double T = s->T, Tk = s->Tk, heads = (double)s->B * s->NH * attention_density(s), W = s->window;
    if (!s->causal) return heads * T * Tk;
    if (W > 0 && W < T) return heads * W * (T - W / 2); /* T = Tk */
    return heads * (Tk >= T ? T * (Tk - T) + T * T / 2 : Tk * Tk / 2);
}

/* The reference: `exact` in double, or as a straightforward implementation in a storage type computes it: sums
 * in fp32; P, dS and the results rounded to the storage type; S and dP, too, where they are stored as matrices. */
typedef enum Precision { EXACT, PLAIN_F32, PLAIN_BF16, PLAIN_BF16_SCORES } Precision;

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
/* What the trainer's masked ops are to leave out: the window and the dropout of the call's sizes. */
AttentionMask attention_mask(const Call *c);
/* Forward if dqkv is NULL, else backward, on all pointers in host memory. */
void attention_reference_cpu(const AttentionReference *r);
void attention_reference_gpu(const AttentionReference *r);
#ifdef __cplusplus
}
#endif
