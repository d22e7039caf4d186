/* Attention with every intermediate value rounded to bf16, as PyTorch's own bf16 run rounds it: the yardstick of the
 * CUDA kernels' errors. And the operand that holds the key of a mask. */
#pragma once
#include "dev/ops/operands.h"
#include "llmc/base/random.h"
#include "op_case.h"

/* ---- window, documents and dropout ---- */

enum { SITE = 5 };

static bool is_masked(const Sizes *d) {
    return d->window > 0 || d->p > 0 || d->documents > 0 || d->blocks.window > 0;
}

/* Words of each of the documents' bounds. */
static int64_t bounds_of(const Sizes *d) {
    return d->documents ? (int64_t)d->B * d->T : 0;
}

/* The key of the masks: two words of random bits, on the device like every operand; none for plain attention. Behind it
 * the starts and the ends of documents, and the table of blocks (fill_mask). */
static Operand key_operand(const Sizes *d) {
    return (Operand){.name = "key",
                     .role = IN,
                     .store = STORE_I32,
                     .elems = is_masked(d) ? 2 + 2 * bounds_of(d) + seen_block_words(d) : 0,
                     .scale = 1e8f};
}

static AttentionMask mask_of(const Sizes *d, const void *key) {
    const int32_t *starts = (const int32_t *)key + 2;
    AttentionMask mask = {
        .window = d->window, .dropout = {key, SITE, d->p}
    };
    if (d->documents) mask.starts = starts, mask.ends = starts + bounds_of(d);
    if (d->blocks.window) mask.sparse = sparse_of(d->blocks, starts + 2 * bounds_of(d), d->T, d->T);
    return mask;
}

/* Documents of 1 to twice the mean length; some begin at a tile's border, some have one token. */
static inline void fill_bounds(const Sizes *d, float *starts, float *ends) {
    for (int64_t b = 0; d->documents && b < d->B; b++)
        for (int64_t start = 0, n = 0, end; start < d->T; start = end, n++) {
            const int64_t length = 1 + (int64_t)((double)(random_mix((uint64_t)(b * 1000 + n)) >> 11) *
                                                 0x1p-53 * (2 * d->documents - 1));
            end = n % 3 == 1 ? (start + length + 63) / 64 * 64 : n % 5 == 4 ? start + 1 : start + length;
            if (end > d->T) end = d->T;
            for (int64_t t = start; t < end; t++)
                starts[b * d->T + t] = (float)start, ends[b * d->T + t] = (float)end;
        }
}

/* In the key's operand: documents, and the table of blocks. */
static inline void fill_mask(OpCase *c) {
    int k = 0;
    while (strcmp(c->operands[k].name, "key")) k++;
    if (!c->in[k]) return;
    float *starts = c->in[k] + 2, *ends = starts + bounds_of(&c->s);
    fill_bounds(&c->s, starts, ends);
    fill_seen_blocks(ends + bounds_of(&c->s), &c->s);
}

/* The same words, on the host, from operand k of a case. */
static uint64_t host_key(const OpCase *c, int k) {
    uint64_t key = 0;
    if (c->in[k]) op_encode(&key, c->in[k], STORE_I32, DTYPE_F32, 2);
    return key;
}

/* The whole mask on the host, in words that the caller frees. */
static inline AttentionMask host_mask(const OpCase *c, int k, int32_t **words) {
    const int64_t n = c->operands[k].elems;
    *words = op_malloc((size_t)(n + 2) * sizeof **words);
    memset(*words, 0, 2 * sizeof **words);
    if (n > 0) op_encode(*words, c->in[k], STORE_I32, DTYPE_F32, n);
    return mask_of(&c->s, *words);
}

/* Of one head, for the plain computation. */
typedef struct HeadMask {
    int window;
    float p;
    uint64_t site;
    int head;            /* of B*NH */
    const float *starts; /* of documents, or NULL */
    SparsePattern blocks;
    const float *chosen; /* of the table of blocks */
} HeadMask;

static HeadMask head_mask(const OpCase *c, int k, int head) {
    return (HeadMask){c->s.window,
                      c->s.p,
                      dropout_site(host_key(c, k), SITE),
                      head,
                      c->s.documents ? c->in[k] + 2 + (int64_t)(head / c->s.NH) * c->s.T : NULL,
                      c->s.blocks,
                      c->in[k] ? c->in[k] + 2 + 2 * bounds_of(&c->s) : NULL};
}

static int first_key(const HeadMask *m, int i) {
    const int window = m->window && i >= m->window ? i + 1 - m->window : 0,
              start = m->starts ? (int)m->starts[i] : 0;
    return window > start ? window : start;
}

/* Of keys from the first to the query: whether its block is seen. */
static bool sees_block(const HeadMask *m, int i, int j) {
    const int query_block = i / MASK_BLOCK, key_block = j / MASK_BLOCK;
    bool seen =
        m->blocks.window == 0 || key_block < m->blocks.first || key_block >= query_block - m->blocks.window;
    for (int r = 0; !seen && r < m->blocks.random; r++)
        seen = (int)m->chosen[query_block * m->blocks.random + r] == key_block;
    return seen;
}

/* What dropout multiplies P of (i, j) with. */
static float kept_by(const HeadMask *m, int i, int j) {
    if (m->p == 0) return 1;
    const uint32_t threshold = dropout_threshold(m->p);
    const DropoutMatrix matrix = dropout_matrix(m->site, m->head);
    const bool dropped = dropout_drops(matrix, (uint32_t)i, (uint32_t)j, threshold);
    return dropped ? 0 : dropout_scale(threshold);
}

/* x under dropout, as PyTorch's dropout rounds it. */
static float drop_bf16(const HeadMask *m, int i, int j, float x) {
    return m->p == 0 ? x : round_bf16(x * kept_by(m, i, j));
}

/* ---- a plain bf16 computation: what PyTorch's matmul, softmax, matmul round ---- */

static float dot_fp32(const float *a, const float *b, int n) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int e = 0; e < n; e++) dot += a[e] * b[e];
    return dot;
}

/* Row i of one head: probs[0..i] = bf16 softmax of bf16(bf16(q.k) scale) over the keys that it sees, else 0. qkv
 * rows are `stride` elements apart. */
static void plain_probs(float *probs, const float *q, const float *k, int64_t stride, int i, int HD,
                        const HeadMask *m) {
    const float scale = 1 / sqrtf((float)HD);
    const int first = first_key(m, i);
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < first; j++) probs[j] = 0;
    for (int j = first; j <= i; j++) {
        const float dot = dot_fp32(q + i * stride, k + j * stride, HD);
        probs[j] = sees_block(m, i, j) ? round_bf16(round_bf16(dot) * scale) : -INFINITY;
        max = fmaxf(max, probs[j]);
    }
    for (int j = first; j <= i; j++) sum += probs[j] = expf(probs[j] - max);
    for (int j = first; j <= i; j++) probs[j] = round_bf16(probs[j] / sum);
}

/* out (HD) = probs V for row i, probs under dropout */
static void plain_out(float *out, const float *probs, const float *v, int64_t stride, int i, int HD,
                      const HeadMask *m) {
    for (int e = 0; e < HD; e++) out[e] = 0;
    for (int j = first_key(m, i); j <= i; j++) {
        const float p = drop_bf16(m, i, j, probs[j]);
        for (int e = 0; e < HD; e++) out[e] += p * v[j * stride + e];
    }
    op_round(out, DTYPE_BF16, HD);
}

/* ---- what a kernel's roundings may add up to, element by element ---- */

/* The same row without roundings, under dropout in kept[]. Returns what P may be off by, relative: its rounding to
 * bf16, and fp32 in the scores. */
static float exact_probs(float *probs, float *kept, const float *q, const float *k, int64_t stride, int i,
                         int HD, const HeadMask *m) {
    const float scale = 1 / sqrtf((float)HD);
    const int first = first_key(m, i);
    float max = -INFINITY, sum = 0, largest = 0;
    for (int j = 0; j < first; j++) probs[j] = 0;
    for (int j = first; j <= i; j++) {
        const float dot = dot_fp32(q + i * stride, k + j * stride, HD);
        const bool seen = sees_block(m, i, j);
        probs[j] = seen ? dot * scale : -INFINITY;
        max = fmaxf(max, probs[j]);
        if (seen) largest = fmaxf(largest, fabsf(probs[j]));
    }
    for (int j = first; j <= i; j++) sum += probs[j] = expf(probs[j] - max);
    for (int j = 0; j <= i; j++) {
        probs[j] /= sum;
        kept[j] = m->p > 0 ? drop_bf16(m, i, j, probs[j]) : probs[j];
    }
    return (float)BF16_HALF_STEP + 0x1p-18f * (1 + largest);
}

/* slack (HD) of row i of out: P rounded. */
static void slack_of_out(float *slack, const float *kept, float of_p, const float *v, int64_t stride, int i,
                         int HD) {
    for (int j = 0; j <= i; j++)
        for (int e = 0; e < HD; e++) slack[e] += of_p * kept[j] * fabsf(v[j * stride + e]);
}

/* What D = rowsum(dO * O) of a row is off by because O (HD) is stored as bf16. NULL: D is not made of O. */
static float rounding_of_d(const float *dout, const float *out, int HD) {
    float sum = 0;
    for (int e = 0; out && e < HD; e++) sum += fabsf(dout[e] * out[e]);
    return sum * (float)BF16_HALF_STEP;
}

/* ---- gradients ---- */

/* A head's rows of qkv (T,3,C) and dout (T,C), from its first column on. */
typedef struct Head {
    const float *qkv, *dout;
    int T, C, HD;
    HeadMask mask;
} Head;

/* What the gradients of a head are made of, (T,T), of which keys up to the query count: dS, and P under dropout. */
typedef struct Factors {
    float *ds, *p;
} Factors;

static Factors factors_open(int T) {
    const size_t n = (size_t)T * (size_t)T;
    Factors f = {.ds = op_malloc(2 * n * sizeof *f.ds)};
    f.p = f.ds + n;
    return f;
}

/* dqkv += dS K, dS^T Q and P^T dO, each element's sum in the order of queries, or of keys. */
static void multiply_factors(float *dqkv, const Factors *f, const Head *h) {
    const float *q = h->qkv, *k = h->qkv + h->C;
    const int64_t stride = 3 * (int64_t)h->C;
    const int T = h->T, HD = h->HD;
#pragma omp parallel for schedule(dynamic, 8)
    for (int t = 0; t < T; t++) {
        float *dq = dqkv + t * stride, *dk = dq + h->C, *dv = dk + h->C;
        for (int j = 0; j <= t; j++)
            for (int e = 0; e < HD; e++) dq[e] += f->ds[(int64_t)t * T + j] * k[j * stride + e];
        for (int i = t; i < T; i++)
            for (int e = 0; e < HD; e++) {
                dk[e] += f->ds[(int64_t)i * T + t] * q[i * stride + e];
                dv[e] += f->p[(int64_t)i * T + t] * h->dout[(int64_t)i * h->C + e];
            }
    }
}

/* Row i of the slack's factors: P rounded before dV, dS rounded before dQ and dK and, where it is made of a rounded P,
 * once more, what is dropped a third time, made of a rounded D as well; fp32 noise where dP and D cancel, down to what D
 * is off by (a row that sees one key, under dropout: dS is that alone). out (HD), as stored, or NULL. */
static void slack_factors(const Factors *f, const float *out, int i, const Head *h) {
    const float *q = h->qkv, *k = q + h->C, *v = k + h->C, *dout = h->dout + (int64_t)i * h->C,
                scale = 1 / sqrtf((float)h->HD);
    const HeadMask *m = &h->mask;
    float *ds = f->ds + (int64_t)i * h->T, *kept = f->p + (int64_t)i * h->T, d = 0;
    float *p = op_malloc((size_t)h->T * 2 * sizeof *p), *dp = p + h->T;
    const float of_p = exact_probs(p, kept, q, k, 3 * (int64_t)h->C, i, h->HD, m);
    const float off = rounding_of_d(dout, out, h->HD);
    for (int j = 0; j <= i; j++) {
        dp[j] = drop_bf16(m, i, j, dot_fp32(dout, v + j * 3 * (int64_t)h->C, h->HD));
        d += p[j] * dp[j];
    }
    for (int j = 0; j < first_key(m, i); j++) ds[j] = 0;
    for (int j = first_key(m, i); j <= i; j++) {
        const float roundings = p[j] > 0 && kept[j] == 0 ? 3 : 2;
        ds[j] = scale * p[j] *
                (roundings * of_p * (fabsf(dp[j] - d) + off) + 0x1p-17f * (fabsf(dp[j]) + fabsf(d)));
    }
    for (int j = 0; j <= i; j++) kept[j] *= of_p;
    free(p);
}

/* Row i of the factors as a plain bf16 computation rounds them. */
static void plain_factors(const Factors *f, int i, const Head *h) {
    const float *q = h->qkv, *k = q + h->C, *v = k + h->C, *dout = h->dout + (int64_t)i * h->C,
                scale = 1 / sqrtf((float)h->HD);
    const HeadMask *m = &h->mask;
    float *ds = f->ds + (int64_t)i * h->T, *p = f->p + (int64_t)i * h->T, mean = 0;
    plain_probs(p, q, k, 3 * (int64_t)h->C, i, h->HD, m);
    for (int j = 0; j <= i; j++) {
        ds[j] = drop_bf16(m, i, j, round_bf16(dot_fp32(dout, v + j * 3 * (int64_t)h->C, h->HD)));
        mean += p[j] * ds[j];
    }
    for (int j = 0; j <= i; j++) {
        ds[j] = round_bf16(round_bf16(p[j] * (ds[j] - mean)) * scale);
        p[j] = drop_bf16(m, i, j, p[j]);
    }
}

/* The gradients of q, k and v of a head. */
static void plain_gradients(float *dqkv, const Head *h) {
    const Factors f = factors_open(h->T);
#pragma omp parallel for schedule(dynamic, 8)
    for (int i = 0; i < h->T; i++) plain_factors(&f, i, h);
    for (int row = 0; row < 3 * h->T; row++)
        memset(dqkv + (int64_t)row * h->C, 0, (size_t)h->HD * sizeof *dqkv);
    multiply_factors(dqkv, &f, h);
    for (int row = 0; row < 3 * h->T; row++) op_round(dqkv + (int64_t)row * h->C, DTYPE_BF16, h->HD);
    free(f.ds);
}

/* Their slack += ; magnitude: the head with all numbers positive; out (T,C) as stored, or NULL. */
static void slack_of_gradients(float *slack, const Head *h, const Head *magnitude, const float *out) {
    const Factors f = factors_open(h->T);
#pragma omp parallel for schedule(dynamic, 8)
    for (int i = 0; i < h->T; i++) slack_factors(&f, out ? out + (int64_t)i * h->C : NULL, i, h);
    multiply_factors(slack, &f, magnitude);
    free(f.ds);
}

/* ---- cases ---- */

/* plain[out] (B,T,C), and plain[probs] (B,NH,T,T) where probs >= 0; key: the key's operand */
static inline void plain_forward(OpCase *c, int out, int probs, const float *qkv, int key) {
    const int B = c->s.B, T = c->s.T, NH = c->s.NH, HD = c->s.HD, C = NH * HD;
#pragma omp parallel for collapse(2) schedule(dynamic, 8)
    for (int bh = 0; bh < B * NH; bh++)
        for (int i = 0; i < T; i++) {
            const int b = bh / NH, h = bh % NH;
            const HeadMask m = head_mask(c, key, bh);
            const float *q = qkv + (int64_t)b * T * 3 * C + h * HD;
            const int64_t at = ((int64_t)b * T + i) * C + h * HD;
            float *p = op_malloc((size_t)T * 3 * sizeof *p), *exact = p + T, *kept = exact + T;
            plain_probs(p, q, q + C, 3 * (int64_t)C, i, HD, &m);
            plain_out(c->plain[out] + at, p, q + 2 * C, 3 * (int64_t)C, i, HD, &m);
            const float of_p = exact_probs(exact, kept, q, q + C, 3 * (int64_t)C, i, HD, &m);
            slack_of_out(c->slack[out] + at, kept, of_p, q + 2 * C, 3 * (int64_t)C, i, HD);
            if (probs >= 0)
                memcpy(c->plain[probs] + ((int64_t)bh * T + i) * T, p, (size_t)(i + 1) * sizeof *p);
            free(p);
        }
}

static float *magnitudes(const float *x, int64_t n) {
    float *out = op_malloc((size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) out[i] = fabsf(x[i]);
    return out;
}

/* Head bh of plain_backward; of_qkv, of_dout: magnitudes. */
static void plain_head_backward(OpCase *c, int dqkv, const float *dout, const float *out, const float *qkv,
                                const float *of_qkv, const float *of_dout, int key, int bh) {
    const int T = c->s.T, NH = c->s.NH, HD = c->s.HD, C = NH * HD;
    const int64_t row = (int64_t)(bh / NH) * T, at = row * C + bh % NH * HD,
                  packed_at = row * 3 * C + bh % NH * HD;
    const Head head = {qkv + packed_at, dout + at, T, C, HD, head_mask(c, key, bh)};
    Head magnitude = head;
    magnitude.qkv = of_qkv + packed_at;
    magnitude.dout = of_dout + at;
    plain_gradients(c->plain[dqkv] + packed_at, &head);
    slack_of_gradients(c->slack[dqkv] + packed_at, &head, &magnitude, out ? out + at : NULL);
}

/* plain[dqkv] (B,T,3,C); out (B,T,C) as stored, of which the kernels make D, or NULL. Many heads: each on a core of its own;
 * few: the rows of one after another, where every loop ends with a wait for all threads (10 x 25 heads of 195 by rows: 24 s
 * with 16 threads a core, 2 by heads). */
static void plain_backward(OpCase *c, int dqkv, const float *dout, const float *out, const float *qkv,
                           int key) {
    const int heads = c->s.B * c->s.NH;
    const int64_t n = (int64_t)heads * c->s.T * c->s.HD;
    float *of_qkv = magnitudes(qkv, 3 * n), *of_dout = magnitudes(dout, n);
    if (heads < cpu_thread_count()) {
        for (int bh = 0; bh < heads; bh++)
            plain_head_backward(c, dqkv, dout, out, qkv, of_qkv, of_dout, key, bh);
    } else {
#pragma omp parallel for schedule(dynamic)
        for (int bh = 0; bh < heads; bh++)
            plain_head_backward(c, dqkv, dout, out, qkv, of_qkv, of_dout, key, bh);
    }
    free(of_qkv);
    free(of_dout);
}
