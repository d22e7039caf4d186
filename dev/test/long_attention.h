/* Attention over sequences so long that the oracle would take minutes: every row against the kernels of older cards,
 * and some queries and keys against what the oracle would give, element by element. */
#pragma once
#include "attention_case.h"
#include "llmc/model/ops_testing.h"

/* One sequence on the host, and what the kernels made of it. */
typedef struct Long {
    const Ops *ops;
    Sizes s;
    float *qkv, *dout;
    float *dqkv, *out, *lse; /* of the kernels; one block of memory, dqkv's */
    float *row_d;            /* (NH,T) rowsum(dO * O) */
    HeadMask mask;           /* of any head */
    char label[96];
} Long;

enum { MAX_LONG_HD = 256 };

/* Row `row` of a head's q, k or v (part 0, 1, 2), in qkv or dqkv; of dout or out. */
static const float *packed_row(const Long *c, const float *packed, int part, int head, int row) {
    return packed + (((int64_t)row * 3 + part) * c->s.NH + head) * c->s.HD;
}
static const float *output_row(const Long *c, const float *output, int head, int row) {
    return output + ((int64_t)row * c->s.NH + head) * c->s.HD;
}

static double dot_of(const float *a, const float *b, int n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* What the exact sums of a row are, and what a kernel's roundings may add to them (plain_attention.h). */
typedef struct ExactRow {
    double sum[MAX_LONG_HD], slack[MAX_LONG_HD];
} ExactRow;

static void add_row(ExactRow *r, const float *x, double factor, double off, int HD) {
    for (int e = 0; e < HD; e++) {
        r->sum[e] += factor * x[e];
        r->slack[e] += off * fabs((double)x[e]);
    }
}

static void check_row(const Long *c, const ExactRow *r, const float *got, const char *what, int head,
                      int row) {
    float want[MAX_LONG_HD], slack[MAX_LONG_HD];
    for (int e = 0; e < c->s.HD; e++) want[e] = (float)r->sum[e], slack[e] = (float)r->slack[e];
    const Expected expected = {
        .want = want, .slack = slack, .n = c->s.HD, .noise = NOISE_LIMIT + c->s.T * 0x1p-27};
    const Excess excess = element_excess(got, &expected);
    const int64_t at = excess.worst;
    CHECK(excess.ratio <= 1,
          "%s: %s of row %d, head %d: element %lld is %g, expected %g: %.3g times its limit", c->label, what,
          row, head, (long long)at, (double)got[at], (double)want[at], excess.ratio);
}

/* What dropout makes of P of a query and a key. */
static double kept_factor(const Long *c, int head, int i, int j) {
    HeadMask mask = c->mask;
    mask.head = head;
    return kept_by(&mask, i, j);
}

/* dS of a query and a key, times scale, and what roundings may make of it. */
static double exact_ds(const Long *c, int head, int i, int j, double p, double *off) {
    const double scale = 1 / sqrt((double)c->s.HD), d = c->row_d[(int64_t)head * c->s.T + i];
    const double factor = kept_factor(c, head, i, j), roundings = factor > 0 ? 2.1 : 3.1;
    const double dp =
        factor * dot_of(output_row(c, c->dout, head, i), packed_row(c, c->qkv, 2, head, j), c->s.HD);
    *off = scale * p * (roundings * BF16_HALF_STEP * fabs(dp - d) + 0x1p-16 * (fabs(dp) + fabs(d)));
    return scale * p * (dp - d);
}

/* out, lse and dq of a query. */
static void check_query(const Long *c, int head, int i) {
    const int HD = c->s.HD;
    const float *q = packed_row(c, c->qkv, 0, head, i);
    const int first = first_key(&c->mask, i);
    double *p = op_malloc((size_t)(i + 1) * sizeof *p), max = -INFINITY, sum = 0, off;
    for (int j = first; j <= i; j++) {
        p[j] = dot_of(q, packed_row(c, c->qkv, 1, head, j), HD) / sqrt((double)HD);
        max = fmax(max, p[j]);
    }
    for (int j = first; j <= i; j++) sum += p[j] = exp(p[j] - max);
    const double lse = max + log(sum), got = c->lse[(int64_t)head * c->s.T + i];
    CHECK(fabs(got - lse) <= 1e-5 * (1 + fabs(lse)), "%s: lse of row %d, head %d is %g, expected %g",
          c->label, i, head, got, lse);
    ExactRow out = {0}, dq = {0};
    for (int j = first; j <= i; j++) {
        p[j] /= sum;
        const double kept = kept_factor(c, head, i, j) * p[j];
        add_row(&out, packed_row(c, c->qkv, 2, head, j), kept, 1.1 * BF16_HALF_STEP * kept, HD);
        const double ds = exact_ds(c, head, i, j, p[j], &off);
        add_row(&dq, packed_row(c, c->qkv, 1, head, j), ds, off, HD);
    }
    check_row(c, &out, output_row(c, c->out, head, i), "out", head, i);
    check_row(c, &dq, packed_row(c, c->dqkv, 0, head, i), "dq", head, i);
    free(p);
}

/* dk and dv of a key: lse is the kernels' own, which check_query holds. */
static void check_key(const Long *c, int head, int j) {
    const int HD = c->s.HD;
    ExactRow dk = {0}, dv = {0};
    for (int i = j; i < c->s.T && first_key(&c->mask, i) <= j; i++) {
        const float *q = packed_row(c, c->qkv, 0, head, i);
        const double s = dot_of(q, packed_row(c, c->qkv, 1, head, j), HD) / sqrt((double)HD);
        const double p = exp(s - c->lse[(int64_t)head * c->s.T + i]);
        double off;
        const double ds = exact_ds(c, head, i, j, p, &off);
        add_row(&dk, q, ds, off, HD);
        const double kept = kept_factor(c, head, i, j) * p;
        add_row(&dv, output_row(c, c->dout, head, i), kept, 1.1 * BF16_HALF_STEP * kept, HD);
    }
    check_row(c, &dk, packed_row(c, c->dqkv, 1, head, j), "dk", head, j);
    check_row(c, &dv, packed_row(c, c->dqkv, 2, head, j), "dv", head, j);
}

/* Rows at both ends, at borders of tiles and pairs, and some between. */
static void check_some_rows(const Long *c) {
    const int T = c->s.T;
    const int rows[] = {0,   1,     63,    64,        127,       128,   191,   192,    255,
                        256, T / 3, T / 2, T / 2 + 1, T / 4 * 3, T - 1, T - 2, T - 64, T - 130};
    for (size_t k = 0; k < 2 * sizeof rows / sizeof *rows; k++) {
        const int head = (int)k % 2 % c->s.NH;
        check_query(c, head, rows[k / 2]);
        check_key(c, head, rows[k / 2]);
    }
}

/* ---- every row, against older cards' kernels ---- */

/* The largest relative distance of two dqkv (parts: 3) or out (1) over 64 rows of a head's dq, dk, dv or out. */
static double worst_apart(const float *a, const float *b, const Sizes *d, int parts) {
    const int64_t width = (int64_t)parts * d->NH * d->HD;
    double worst = 0;
    for (int64_t row0 = 0; row0 < d->T; row0 += 64)
        for (int64_t column0 = 0; column0 < width; column0 += d->HD) {
            double apart = 0, all = 0;
            for (int64_t row = row0; row < row0 + 64 && row < d->T; row++)
                for (int64_t i = row * width + column0; i < row * width + column0 + d->HD; i++) {
                    apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
                    all += (double)b[i] * b[i];
                }
            worst = worse(worst, sqrt(apart / all));
        }
    return worst;
}

/* How far a plain bf16 computation is from the oracle in its worst 64 rows, at T = 1024. */
static double plain_apart(int HD) {
    enum { T = 1024, NH = 2 };
    const Sizes d = {.B = 1, .T = T, .NH = NH, .HD = HD};
    const int64_t n = (int64_t)T * NH * HD;
    const HeadMask none = {0};
    float *qkv = op_normal_bf16(3 * n, 1), *dout = op_normal_bf16(n, 2);
    float *want = op_malloc((size_t)n * 8 * sizeof *want), *plain = want + 4 * n; /* dqkv, out */
    float *lse = op_malloc(sizeof(float) * T * NH), *p = op_malloc(sizeof *p * T * NH);
    void *scratch = op_malloc(op_scratch_bytes(&ops_cpu, &d));
    ops_cpu.attention_forward(want + 3 * n, lse, qkv, &(AttentionMask){0}, 1, T, NH, HD);
    ops_cpu.attention_backward(want, dout, want + 3 * n, qkv, lse, NULL, &(AttentionMask){0}, scratch, 1, T,
                               NH, HD);
    for (int h = 0; h < NH; h++) {
        plain_gradients(plain + h * HD, &(Head){qkv + h * HD, dout + h * HD, T, NH * HD, HD, none});
        for (int i = 0; i < T; i++) {
            const float *q = qkv + h * HD;
            plain_probs(p + h * T, q, q + NH * HD, 3 * (int64_t)NH * HD, i, HD, &none);
            plain_out(plain + 3 * n + ((int64_t)i * NH + h) * HD, p + h * T, q + 2 * NH * HD,
                      3 * (int64_t)NH * HD, i, HD, &none);
        }
    }
    const double apart =
        worse(worst_apart(plain, want, &d, 3), worst_apart(plain + 3 * n, want + 3 * n, &d, 1));
    void *const host[] = {qkv, dout, want, lse, p, scratch};
    for (int i = 0; i < 6; i++) free(host[i]);
    return apart;
}

/* dqkv, out and lse by the kernels of this card or, where `capability` is not 0, of that one. p: dqkv, dout, out, qkv,
 * lse, scratch, the mask's key on the device. */
static float *results_of(const Ops *ops, int capability, const Guarded *p, const Sizes *d) {
    const int64_t rows = (int64_t)d->T * d->NH, n = rows * d->HD;
    float *results = op_malloc((size_t)(4 * n + rows) * sizeof *results);
    const AttentionMask mask = mask_of(d, p[6].data);
    cuda_limit_capability(capability);
    ops->attention_forward(p[2].data, (float *)(void *)p[4].data, p[3].data, &mask, 1, d->T, d->NH, d->HD);
    ops->attention_backward(p[0].data, p[1].data, p[2].data, p[3].data, (float *)(void *)p[4].data, NULL,
                            &mask, p[5].data, 1, d->T, d->NH, d->HD);
    cuda_limit_capability(0);
    download_floats(ops, results, p[0].data, ops->dtype, 3 * n);
    download_floats(ops, results + 3 * n, p[2].data, ops->dtype, n);
    ops->device->download(results + 4 * n, p[4].data, (size_t)rows * sizeof *results);
    return results;
}

/* results: of this card's kernels. */
static void check_exactly(Long *c, float *results) {
    const int64_t rows = (int64_t)c->s.T * c->s.NH, n = rows * c->s.HD;
    c->dqkv = results;
    c->out = results + 3 * n;
    c->lse = results + 4 * n;
    c->row_d = op_malloc((size_t)rows * sizeof *c->row_d);
    for (int h = 0; h < c->s.NH; h++)
        for (int i = 0; i < c->s.T; i++)
            c->row_d[(int64_t)h * c->s.T + i] =
                (float)dot_of(output_row(c, c->dout, h, i), output_row(c, c->out, h, i), c->s.HD);
    check_some_rows(c);
    free(c->row_d);
}

/* Words of a mask: a key, and the bounds of documents, of which `starts` gets those at which they start. */
static int32_t *long_words(const Sizes *s, uint64_t key, float **starts) {
    const int64_t n = 2 * bounds_of(s);
    int32_t *words = op_malloc((size_t)(2 + n) * sizeof *words);
    memcpy(words, &key, sizeof key);
    *starts = n > 0 ? op_malloc((size_t)n * sizeof **starts) : NULL;
    if (n > 0) fill_bounds(s, *starts, *starts + n / 2);
    for (int64_t i = 0; i < n; i++) words[2 + i] = (int32_t)(*starts)[i];
    return words;
}

/* One sequence of s.T positions, two heads, under the mask that s says. */
static void test_long_sequence(const Ops *ops, Sizes s) {
    s.B = 1, s.NH = 2;
    Long c = {.ops = ops, .s = s};
    const uint64_t key = 0x0123456789abcdef;
    snprintf(c.label, sizeof c.label, "%s, attention_long T%d HD%d window %d documents %d %s", ops->name, s.T,
             s.HD, s.window, s.documents, s.p > 0 ? "dropout " : "");
    if (!op_wanted("attention_long", c.label)) return;
    float *starts;
    int32_t *words = long_words(&s, key, &starts);
    c.mask = (HeadMask){.window = s.window, .p = s.p, .site = dropout_site(key, SITE), .starts = starts};
    const int64_t rows = (int64_t)s.T * c.s.NH, n = rows * s.HD;
    const size_t bytes = (size_t)n * dtype_bytes(ops->dtype);
    const size_t sizes[] = {3 * bytes,
                            bytes,
                            bytes,
                            3 * bytes,
                            (size_t)rows * sizeof(float),
                            op_scratch_bytes(ops, &c.s),
                            (size_t)(2 + 2 * bounds_of(&s)) * sizeof *words};
    Guarded p[7] = {0};
    for (int i = 0; i < 7; i++)
        if (!guarded_alloc(&p[i], ops, sizes[i], 0)) abort();
    c.qkv = op_normal_bf16(3 * n, 1), c.dout = op_normal_bf16(n, 2);
    upload_floats(ops, p[3].data, ops->dtype, c.qkv, 3 * n);
    upload_floats(ops, p[1].data, ops->dtype, c.dout, n);
    ops->device->upload(p[6].data, words, sizes[6]);
    float *mine = results_of(ops, 0, p, &c.s), *again = results_of(ops, 0, p, &c.s);
    float *older = results_of(ops, 80, p, &c.s);
    CHECK(!memcmp(mine, again, (size_t)(4 * n + rows) * sizeof *mine), "%s: a second run has other bits",
          c.label);
    op_print_bits(c.label, "dqkv, out and lse", mine, (size_t)(4 * n + rows) * sizeof *mine);
    const double apart =
        worse(worst_apart(mine, older, &c.s, 3), worst_apart(mine + 3 * n, older + 3 * n, &c.s, 1));
    const double limit = 2 * plain_apart(s.HD);
    CHECK(apart <= limit, "%s: %.2e from older cards' kernels, limit %.2e", c.label, apart, limit);
    check_exactly(&c, mine);
    for (int i = 0; i < 7; i++) {
        CHECK(guarded_intact(&p[i]), "%s: written outside of operand %d", c.label, i);
        guarded_free(&p[i]);
    }
    void *const host[] = {c.qkv, c.dout, mine, again, older, words, starts};
    for (int i = 0; i < 7; i++) free(host[i]);
}
