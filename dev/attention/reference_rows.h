/* Attention row by row, written once for the CPU (a thread takes rows) and the GPU (a thread takes a row).
 * Row r = (b*NH + head)*T + i of queries, (b*NH + head)*Tk + j of keys. */
#pragma once
#include <math.h>
#include <string.h>
#include "attention.h"

enum { LARGEST_HEAD = 256, LANES = 8 };

/* What stays of an intermediate sum. */
HOST_DEVICE double keep(double x, Precision p) {
    return p == EXACT ? x : (double)(float)x;
}

/* What stays of a value that is stored, or fed to a product: rounded to nearest, ties to even. */
HOST_DEVICE double stored(double x, Precision p) {
    if (p != PLAIN_BF16 && p != PLAIN_BF16_SCORES) return keep(x, p);
    const float f = (float)x;
    uint32_t bits;
    if (isnan(f)) return x;
    memcpy(&bits, &f, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    float rounded;
    memcpy(&rounded, &bits, 4);
    return rounded;
}

/* What stays of a score, or of its gradient. */
HOST_DEVICE double scored(double x, Precision p) {
    return p == PLAIN_BF16_SCORES ? stored(x, p) : keep(x, p);
}

/* n is a multiple of 8. EXACT keeps LANES sums side by side, as a compiler's vector holds them; a plain
 * computation has one. */
HOST_DEVICE double row_dot(const float *a, const float *b, int n, Precision p) {
    double sum[LANES] = {0};
    if (p != EXACT) {
        for (int i = 0; i < n; i++) sum[0] = keep(sum[0] + (double)a[i] * b[i], p);
        return sum[0];
    }
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) sum[l] += (double)a[i + l] * b[i + l];
    for (int l = 1; l < LANES; l++) sum[0] += sum[l];
    return sum[0];
}

/* y += a * x */
HOST_DEVICE void row_add(double *y, double a, const float *x, int n, Precision p) {
    for (int i = 0; i < n; i++) y[i] = keep(y[i] + a * x[i], p);
}

typedef struct RowPlace {
    int b, head, t;
} RowPlace;

HOST_DEVICE RowPlace row_place(const Sizes *s, int64_t row, int length) {
    const RowPlace at = {(int)(row / length / s->NH), (int)(row / length % s->NH), (int)(row % length)};
    return at;
}
HOST_DEVICE const float *q_row(const AttentionReference *r, RowPlace at, int i) {
    const AttentionLayout l = attention_layout(&r->s);
    return r->qkv + l.q + ((int64_t)at.b * r->s.T + i) * l.q_stride + at.head * r->s.HD;
}
HOST_DEVICE const float *k_row(const AttentionReference *r, RowPlace at, int j) {
    const AttentionLayout l = attention_layout(&r->s);
    return r->qkv + l.k + ((int64_t)at.b * r->s.Tk + j) * l.k_stride + at.head * r->s.HD;
}
HOST_DEVICE const float *v_row(const AttentionReference *r, RowPlace at, int j) {
    const AttentionLayout l = attention_layout(&r->s);
    return r->qkv + l.v + ((int64_t)at.b * r->s.Tk + j) * l.v_stride + at.head * r->s.DV;
}
HOST_DEVICE int64_t out_at(const AttentionReference *r, RowPlace at, int i) {
    return ((int64_t)at.b * r->s.T + i) * r->s.NH * r->s.DV + at.head * r->s.DV;
}
HOST_DEVICE double score(const AttentionReference *r, const float *q, const float *k, Precision p) {
    return scored(row_dot(q, k, r->s.HD, p) * keep(1 / sqrt((double)r->s.HD), p), p);
}

HOST_DEVICE bool block_set(const AttentionReference *r, int i, int j) {
    return attention_block_set(&r->s, i / SPARSE_BLOCK, j / SPARSE_BLOCK);
}

/* O_i = sum_j P_ij V_j with P_ij = exp(S_ij - max) / sum, L_i = max + log(sum) */
HOST_DEVICE void forward_row(const AttentionReference *r, int64_t row, Precision p) {
    const RowPlace at = row_place(&r->s, row, r->s.T);
    const int n = attention_visible(&r->s, at.t), DV = r->s.DV;
    const float *q = q_row(r, at, at.t);
    const int first = attention_first(&r->s, at.t);
    double max = -INFINITY, sum = 0, o[LARGEST_HEAD] = {0};
    for (int j = first; j < n; j++) {
        if (!block_set(r, at.t, j)) continue;
        const double s = score(r, q, k_row(r, at, j), p);
        if (!(s <= max)) max = s;
    }
    for (int j = first; j < n; j++) {
        if (!block_set(r, at.t, j)) continue;
        const double e = keep(exp(keep(score(r, q, k_row(r, at, j), p) - max, p)), p);
        sum = keep(sum + e, p);
        row_add(o, stored(e * attention_dropout(&r->s, row, j), p), v_row(r, at, j), DV, p);
    }
    for (int d = 0; d < DV; d++) r->out[out_at(r, at, at.t) + d] = stored(n ? o[d] / sum : 0, p);
    r->lse[row] = keep(max + log(sum), p);
}

/* D_i = sum_d dO_id O_id; summed side by side, unlike dO.V: where O is one V, the difference that is left of
 * dP - D = 0 is that of two orders of summation, as in any implementation. */
HOST_DEVICE void d_row(const AttentionReference *r, int64_t row, Precision p) {
    const RowPlace at = row_place(&r->s, row, r->s.T);
    const int64_t from = out_at(r, at, at.t);
    double sum[LANES] = {0};
    for (int d = 0; d < r->s.DV; d++)
        sum[d % LANES] = keep(sum[d % LANES] + r->dout[from + d] * r->out[from + d], p);
    for (int l = 1; l < LANES; l++) sum[0] = keep(sum[0] + sum[l], p);
    r->d[row] = sum[0];
}

/* P_ij = exp(S_ij - L_i), dS_ij = P_ij (dO_i.V_j - D_i), as fed to the products. Under dropout with factor f_ij,
 * O_i = sum_j f_ij P_ij V_j: dV takes f P, and f multiplies dO.V; D = rowsum(dO O) stays. */
typedef struct PairGradient {
    double p, ds;
} PairGradient;

HOST_DEVICE PairGradient pair_gradient(const AttentionReference *r, RowPlace at, int i, int j, Precision p) {
    const int64_t row = ((int64_t)at.b * r->s.NH + at.head) * r->s.T + i;
    PairGradient g = {0, 0};
    if (!block_set(r, i, j)) return g;
    const double s = score(r, q_row(r, at, i), k_row(r, at, j), p), factor = attention_dropout(&r->s, row, j);
    const double prob = keep(exp(keep(s - r->lse[row], p)), p);
    const double dp = factor * scored(row_dot(r->dout + out_at(r, at, i), v_row(r, at, j), r->s.DV, p), p);
    g.p = stored(factor * prob, p);
    g.ds = stored(prob * keep(dp - r->d[row], p), p);
    return g;
}

/* dQ_i = scale * sum_j dS_ij K_j */
HOST_DEVICE void query_row(const AttentionReference *r, int64_t row, Precision p) {
    const RowPlace at = row_place(&r->s, row, r->s.T);
    const int n = attention_visible(&r->s, at.t), HD = r->s.HD;
    double dq[LARGEST_HEAD] = {0};
    for (int j = attention_first(&r->s, at.t); j < n; j++)
        row_add(dq, pair_gradient(r, at, at.t, j, p).ds, k_row(r, at, j), HD, p);
    double *to = r->dqkv + (q_row(r, at, at.t) - r->qkv);
    for (int d = 0; d < HD; d++) to[d] = stored(dq[d] / sqrt((double)HD), p);
}

/* dK_j = scale * sum_i dS_ij Q_i, dV_j = sum_i P_ij dO_i */
HOST_DEVICE void key_row(const AttentionReference *r, int64_t row, Precision p) {
    const RowPlace at = row_place(&r->s, row, r->s.Tk);
    const int HD = r->s.HD, DV = r->s.DV, first = r->s.causal ? at.t - (r->s.Tk - r->s.T) : 0;
    const int end = r->s.window && first + r->s.window < r->s.T ? first + r->s.window : r->s.T;
    double dk[LARGEST_HEAD] = {0}, dv[LARGEST_HEAD] = {0};
    for (int i = first > 0 ? first : 0; i < end; i++) {
        const PairGradient g = pair_gradient(r, at, i, at.t, p);
        row_add(dk, g.ds, q_row(r, at, i), HD, p);
        row_add(dv, g.p, r->dout + out_at(r, at, i), DV, p);
    }
    double *dk_to = r->dqkv + (k_row(r, at, at.t) - r->qkv), *dv_to = r->dqkv + (v_row(r, at, at.t) - r->qkv);
    for (int d = 0; d < HD; d++) dk_to[d] = stored(dk[d] / sqrt((double)HD), p);
    for (int d = 0; d < DV; d++) dv_to[d] = stored(dv[d], p);
}

typedef enum Stage { STAGE_FORWARD, STAGE_D, STAGE_QUERIES, STAGE_KEYS } Stage;

HOST_DEVICE int64_t stage_rows(const Sizes *s, Stage stage) {
    return (int64_t)s->B * s->NH * (stage == STAGE_KEYS ? s->Tk : s->T);
}

/* Row `row` of a stage; p is a constant after inlining, so that EXACT costs no tests. */
HOST_DEVICE void stage_row_as(const AttentionReference *r, Stage stage, int64_t row, Precision p) {
    switch (stage) {
    case STAGE_FORWARD:
        forward_row(r, row, p);
        break;
    case STAGE_D:
        d_row(r, row, p);
        break;
    case STAGE_QUERIES:
        query_row(r, row, p);
        break;
    case STAGE_KEYS:
        key_row(r, row, p);
        break;
    }
}
HOST_DEVICE void stage_row(const AttentionReference *r, Stage stage, int64_t row) {
    switch (r->precision) {
    case EXACT:
        stage_row_as(r, stage, row, EXACT);
        break;
    case PLAIN_F32:
        stage_row_as(r, stage, row, PLAIN_F32);
        break;
    case PLAIN_BF16:
        stage_row_as(r, stage, row, PLAIN_BF16);
        break;
    case PLAIN_BF16_SCORES:
        stage_row_as(r, stage, row, PLAIN_BF16_SCORES);
        break;
    }
}
