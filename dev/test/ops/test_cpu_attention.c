/* Attention on the CPU in its three forms (tiled, textbook, one row) against plain loops in double, with and without
 * a window, documents, blocks and dropout. The loops ask the mask element by element; test_dropout.c says what kind of mask it is. */
#include "dev/test/cpu_case.h"
#include "llmc/base/random.h"
#include "llmc/model/documents.h"

typedef struct Attention {
    int B, T, NH, HD;
    Buffer qkv, dout, out, lse;
    AttentionMask mask;
} Attention;

/* Whether a block is seen, by the words of block_sparse.h alone. */
static bool sees(const BlockSparse *s, int64_t query, int64_t key) {
    const int64_t distance = query / 64 - key / 64;
    if (s->pattern.window == 0 || distance <= s->pattern.window || key / 64 < s->pattern.first) return true;
    for (int r = 0; r < s->pattern.random; r++)
        if (s->chosen[query / 64 * s->pattern.random + r] == key / 64) return true;
    return false;
}

/* What P_ij of row `row` of (B,NH,T) is multiplied with. */
static double kept(const AttentionMask *mask, int64_t row, int64_t key, int T) {
    const Dropout *d = &mask->dropout;
    if (d->p == 0) return 1;
    const DropoutMatrix head = dropout_matrix(dropout_site(*d->key, d->site), row / T);
    const double dropped = floor((double)d->p * 256 + 0.5); /* of 256 */
    return dropout_drops(head, (uint32_t)(row % T), (uint32_t)key, (uint32_t)dropped) ? 0
                                                                                      : 256 / (256 - dropped);
}

static double attention_double(const void *context) {
    const Attention *a = context;
    int64_t T = a->T, NH = a->NH, HD = a->HD, row = 3 * NH * HD;
    double *p = malloc(sizeof(double) * (size_t)T);
    for (int64_t i = 0; i < a->B * NH * T; i++) {
        int64_t t = i % T, head = i / T % NH, batch = i / T / NH;
        const double *q = a->qkv.d + (batch * T + t) * row + head * HD;
        const double *k = a->qkv.d + batch * T * row + (NH + head) * HD, *v = k + NH * HD;
        double max = -INFINITY, sum = 0, *out = a->out.d + ((batch * T + t) * NH + head) * HD;
        int64_t first = a->mask.window && t >= a->mask.window ? t + 1 - a->mask.window : 0;
        if (a->mask.starts && a->mask.starts[batch * T + t] > first) first = a->mask.starts[batch * T + t];
        for (int64_t j = first; j <= t; j++) {
            p[j] = 0;
            for (int64_t d = 0; d < HD; d++) p[j] += q[d] * k[j * row + d];
            p[j] = sees(&a->mask.sparse, t, j) ? p[j] / sqrt((double)HD) : -INFINITY;
            max = p[j] > max ? p[j] : max;
        }
        for (int64_t j = first; j <= t; j++) sum += p[j] = exp(p[j] - max);
        for (int64_t d = 0; d < HD; d++) out[d] = 0;
        for (int64_t j = first; j <= t; j++)
            for (int64_t d = 0; d < HD; d++)
                out[d] += kept(&a->mask, i, j, a->T) * p[j] / sum * v[j * row + d];
        a->lse.d[i] = max + log(sum);
    }
    free(p);
    return weighted_sum(a->dout, a->out.d);
}

/* What Ops.qkv_bias_backward builds on: without dropout dk's columns add up to 0 and dv's to dout's. */
static void has_known_sums(const char *name, const Attention *a, Buffer dqkv) {
    const int64_t rows = (int64_t)a->B * a->T, C = (int64_t)a->NH * a->HD;
    int wrong = 0;
    for (int64_t i = 0; i < C; i++) {
        double dk = 0, dv = 0, dk_size = 0, dv_size = 0;
        for (int64_t r = 0; r < rows; r++) {
            const float *d = dqkv.f + r * 3 * C + i;
            dk += d[C], dk_size += fabs((double)d[C]);
            dv += (double)d[2 * C] - (double)a->dout.f[r * C + i], dv_size += fabs((double)d[2 * C]);
        }
        wrong += !(fabs(dk) <= 1e-4 * (dk_size + dv_size)) + !(fabs(dv) <= 1e-5 * dv_size);
    }
    CHECK(wrong == 0, "%s: %d of %lld columns of dk and dv do not add up to 0 and to dout's", name, wrong,
          (long long)(2 * C));
}

/* Row t of every sequence, the cache as the rows before it left it: NaN behind them. The CPU needs no scratch. */
static void decode_row(const char *name, const Attention *a, Buffer *cache, Buffer *rows, Buffer *decoded,
                       int t, bool is_checked) {
    enum { MAX_B = 8 };
    const int64_t C = (int64_t)a->NH * a->HD;
    int32_t positions[MAX_B], begins[MAX_B];
    for (int b = 0; b < a->B; b++) {
        positions[b] = t;
        begins[b] = a->mask.starts ? a->mask.starts[b * a->T + t] : 0;
        memcpy(rows->f + b * 3 * C, a->qkv.f + ((int64_t)b * a->T + t) * 3 * C,
               (size_t)(3 * C) * sizeof(float));
    }
    ops->attention_decode(decoded->f, cache->f, rows->f, positions, a->mask.starts ? begins : NULL, NULL,
                          &a->mask, a->B, a->T, a->NH, a->HD);
    for (int b = 0; b < a->B && is_checked; b++) {
        Buffer one = *decoded;
        one.f += b * C;
        one.n = C;
        close_to(name, one, a->out.d + ((int64_t)b * a->T + t) * C);
    }
}

/* The pattern of the cases that follow. */
static SparsePattern pattern;

/* Flash, textbook and decoding, token by token. spread: of the inputs; large ones make
 * one key take nearly all the weight. */
static void test_attention(int B, int T, int NH, int HD, double spread, int window, float p, int documents) {
    static const uint64_t key = 0x123456789abcdef;
    char name[160];
    snprintf(name, sizeof name,
             "attention B %d T %d NH %d HD %d spread %g window %d p %g documents %d blocks %d,%d,%d", B, T,
             NH, HD, spread, window, (double)p, documents, pattern.window, pattern.first, pattern.random);
    int32_t *tokens = malloc(sizeof *tokens * (size_t)(3 * B * T)), *bounds = tokens + B * T;
    for (int i = 0; i < B * T; i++)
        tokens[i] = documents && random_mix((uint64_t)i) % (unsigned)documents == 0;
    document_bounds(bounds, bounds + B * T, tokens, B, T, 1);
    int64_t n = (int64_t)B * T * NH * HD;
    Attention a = {
        B,
        T,
        NH,
        HD,
        filled(3 * n, spread, 0),
        filled(n, 1, 0),
        poisoned(n),
        poisoned((int64_t)B * NH * T),
        {.window = window, .dropout = {&key, 7, p}, .starts = documents ? bounds : NULL}
    };
    int32_t *table = malloc(sizeof *table * sparse_table_words(pattern, T, T));
    sparse_table(table, pattern, T, T, 2);
    a.mask.sparse = sparse_of(pattern, table, T, T);
    Buffer dqkv = poisoned(3 * n), decoded = poisoned((int64_t)B * NH * HD), scratch = poisoned(1);
    Buffer cache = poisoned(2 * n), rows = poisoned((int64_t)B * 3 * NH * HD);
    Buffer probs = poisoned((int64_t)B * NH * T * T), dprobs = poisoned(probs.n);
    ops->attention_forward(a.out.f, a.lse.f, a.qkv.f, &a.mask, B, T, NH, HD);
    if (pass == 0) attention_double(&a);
    close_to(name, a.out, a.out.d);
    close_to(name, a.lse, a.lse.d);
    ops->attention_backward(dqkv.f, a.dout.f, a.out.f, a.qkv.f, a.lse.f, NULL, &a.mask, scratch.f, B, T, NH,
                            HD);
    is_gradient(name, attention_double, &a, a.qkv, dqkv, NULL);
    if (p == 0) has_known_sums(name, &a, dqkv);
    for (int64_t i = 0; i < dqkv.n; i++) dqkv.f[i] = NAN;

    ops->attention_standard_forward(a.out.f, probs.f, p > 0 ? dprobs.f : NULL, a.qkv.f, &a.mask, B, T, NH,
                                    HD);
    close_to(name, a.out, a.out.d);
    for (int64_t i = 0; i < dprobs.n; i++) dprobs.f[i] = NAN;
    ops->attention_standard_backward(dqkv.f, dprobs.f, a.dout.f, probs.f, a.qkv.f, &a.mask, B, T, NH, HD);
    is_gradient(name, attention_double, &a, a.qkv, dqkv, NULL);
    if (p == 0) has_known_sums(name, &a, dqkv);
    for (int t = 0; p == 0 && t < T; t++)
        decode_row(name, &a, &cache, &rows, &decoded, t, t == T / 2 || t == T - 1);
    free(tokens);
    free(table);
    end_case(name);
}

/* A window of the whole sequence and no dropout: the bits of plain attention. */
static void test_mask_of_nothing(void) {
    enum { T = 130, NH = 2, HD = 24, C = NH * HD };
    Buffer qkv = filled(T * 3 * C, 1, 0), out = poisoned(T * C), lse = poisoned(NH * T),
           masked = poisoned(T * C), masked_lse = poisoned(NH * T);
    ops->attention_forward(out.f, lse.f, qkv.f, &(AttentionMask){0}, 1, T, NH, HD);
    ops->attention_forward(masked.f, masked_lse.f, qkv.f, &(AttentionMask){.window = T}, 1, T, NH, HD);
    CHECK(memcmp(out.f, masked.f, sizeof(float) * (size_t)out.n) == 0, "a window of T changes bits of out");
    CHECK(memcmp(lse.f, masked_lse.f, sizeof(float) * (size_t)lse.n) == 0,
          "a window of T changes bits of lse");
    end_case("mask of nothing");
}

/* Rows do not see what comes behind them, to the bit; and a NaN in a query reaches its own row alone. */
static void test_attention_causal(void) {
    enum { T = 150, NH = 2, HD = 24, CUT = 101, C = NH * HD };
    Buffer qkv = filled(T * 3 * C, 1, 0), out = poisoned(T * C), changed = poisoned(T * C),
           lse = poisoned(NH * T);
    ops->attention_forward(out.f, lse.f, qkv.f, &(AttentionMask){0}, 1, T, NH, HD);
    for (int64_t i = CUT * 3 * C; i < qkv.n; i++) qkv.f[i] = (float)uniform(&input_stream);
    qkv.f[50 * 3 * C] = NAN; /* head 0, query 50 */
    ops->attention_forward(changed.f, lse.f, qkv.f, &(AttentionMask){0}, 1, T, NH, HD);
    bool same = true, nan = true;
    for (int64_t i = 0; i < CUT * C; i++) {
        if (i / C == 50 && i % C < HD)
            nan = nan && isnan(changed.f[i]);
        else
            same = same && changed.f[i] == out.f[i];
    }
    CHECK(same, "attention: a row changed with the rows behind it");
    CHECK(nan && isnan(lse.f[50]), "attention: a NaN in a query did not reach its row");
    end_case("attention causal");
}

/* A context of tens of thousands: three rows of one head against double. */
static void test_attention_long(void) {
    enum { T = 20000, HD = 16 };
    Buffer qkv = filled(3 * T * HD, 2, 0), out = poisoned(T * HD), lse = poisoned(T);
    ops->attention_forward(out.f, lse.f, qkv.f, &(AttentionMask){0}, 1, T, 1, HD);
    same_bits("attention long", out);
    for (int64_t t = 4; pass == 0 && t < T; t += 9997) {
        double sum = 0, row[HD] = {0}, worst = 0;
        for (int64_t j = 0; j <= t; j++) {
            double s = 0;
            for (int d = 0; d < HD; d++) s += qkv.d[t * 3 * HD + d] * qkv.d[(j * 3 + 1) * HD + d] / 4;
            sum += exp(s);
            for (int d = 0; d < HD; d++) row[d] += exp(s) * qkv.d[(j * 3 + 2) * HD + d];
        }
        for (int d = 0; d < HD; d++) {
            double error = fabs(out.f[t * HD + d] - row[d] / sum);
            worst = worse(worst, error);
        }
        CHECK(worst <= TOLERANCE, "attention long: row %d error %g", (int)t, worst);
        CHECK(fabs(lse.f[t] - log(sum)) <= TOLERANCE * 10, "attention long: lse %g, truth %g", lse.f[t],
              log(sum));
    }
    end_case("attention long");
}

/* A document's last token is its own; the last document may lack one; the end-of-text token alone is one. */
static void test_bounds(void) {
    static const int32_t tokens[2][6] =
        {
            {5, 1, 2, 1, 1, 7},
            {1, 3, 3, 3, 3, 1}
    },
                         starts[2][6] = {{0, 0, 2, 2, 4, 5}, {0, 1, 1, 1, 1, 1}},
                         ends[2][6] = {{2, 2, 4, 4, 5, 6}, {1, 6, 6, 6, 6, 6}};
    int32_t got[2][2][6];
    document_bounds(got[0][0], got[1][0], tokens[0], 2, 6, 1);
    CHECK(memcmp(got[0], starts, sizeof starts) == 0, "where documents start");
    CHECK(memcmp(got[1], ends, sizeof ends) == 0, "where documents end");
    const double whole = (2 * 2 + 2 * 2 + 1 + 1) / 2.0 + (1 + 5 * 5) / 2.0,
                 windowed = whole - 12.5 + 3 * (5 - 1.5);
    CHECK(document_pairs(starts[0], ends[0], 12, 0) == whole, "pairs of documents: %g, expected %g",
          document_pairs(starts[0], ends[0], 12, 0), whole);
    CHECK(document_pairs(starts[0], ends[0], 12, 3) == windowed, "with a window: %g, expected %g",
          document_pairs(starts[0], ends[0], 12, 3), windowed);
}

static int count(const BlockSparse *s, int query_block) {
    int n = 0;
    for (int key_block = 0; key_block <= query_block; key_block++)
        n += sparse_sees(s, query_block, key_block);
    return n;
}

/* What kernels read of a pattern: random blocks once each, between the start and the window, the same at any length; and
 * the visits, which are the pattern the other way round: those of the start fall and add first. */
static void check_pattern(SparsePattern p, int T) {
    const int blocks = sparse_blocks(T), tiles = (blocks + 1) / 2;
    int32_t *table = malloc(sizeof *table * sparse_table_words(p, T, T)),
            *longer = malloc(sizeof *table * sparse_table_words(p, T, 2 * T));
    sparse_table(table, p, T, T, 5);
    sparse_table(longer, p, T, 2 * T, 5);
    const BlockSparse s = sparse_of(p, table, T, T);
    int wrong = memcmp(table, longer, sizeof *table * (size_t)(blocks * p.random)) != 0, n_visits = 0;
    double pairs = 0;
    for (int b = 0; b < blocks; b++) {
        const int room = b - p.window - p.first, n = room < 0 ? 0 : room < p.random ? room : p.random;
        const int rows = b == blocks - 1 ? T - 64 * b : 64;
        wrong += count(&s, b) != (b < p.window + p.first ? b : p.window + p.first) + n + 1;
        pairs += rows * 64.0 * (count(&s, b) - 1) + rows * rows / 2.0;
        const int n_first = (p.first + 1) / 2 < b / 2 + 1 ? (p.first + 1) / 2 : b / 2 + 1;
        int lowest = b / 2; /* the last to add */
        for (int tile = b / 2, before = n_first; tile >= 0; tile--) {
            const int flags = (sparse_sees(&s, b, 2 * tile) ? SEES_FIRST : 0) |
                              (2 * tile < b && sparse_sees(&s, b, 2 * tile + 1) ? SEES_SECOND : 0);
            int found = 0;
            for (int v = s.begins[tile]; v < s.begins[tile + 1]; v++) {
                if (s.visits[v].block != b) continue;
                found++;
                wrong += (s.visits[v].flags & (SEES_FIRST | SEES_SECOND)) != flags ||
                         s.visits[v].before != (tile < n_first ? tile : before);
            }
            wrong += found != (flags != 0);
            if (flags != 0 && tile >= n_first) lowest = tile;
            before += flags != 0;
            n_visits += flags != 0;
        }
        for (int tile = 0; tile < tiles; tile++)
            for (int v = s.begins[tile]; v < s.begins[tile + 1]; v++)
                wrong += s.visits[v].block == b && !(s.visits[v].flags & ADDS_LAST) != (tile != lowest);
    }
    for (int tile = 0; tile < tiles; tile++)
        for (int v = s.begins[tile]; v < s.begins[tile + 1]; v++) {
            const bool falls = tile < (p.first + 1) / 2;
            int later = 0;
            for (int w = v + 1; w < s.begins[tile + 1]; w++) {
                later |= s.visits[w].flags & (SEES_FIRST | SEES_SECOND);
                wrong += (s.visits[w].block < s.visits[v].block) != falls ||
                         s.visits[w].block == s.visits[v].block;
            }
            const int mine = s.visits[v].flags & (SEES_FIRST | SEES_SECOND);
            wrong += (s.visits[v].flags & ~ADDS_LAST) != (mine | (mine & ~later) * ENDS_FIRST);
        }
    wrong += s.begins[0] != 0 || s.begins[tiles] != n_visits;
    CHECK(sparse_cuts(&s, T) == (pairs < 0.5 * T * T), "pattern %d,%d,%d of %d: %g pairs, and %s out",
          p.window, p.first, p.random, T, pairs,
          sparse_cuts(&s, T) ? "something is left" : "nothing is left"); /* causal pairs count as half */
    CHECK(wrong == 0 && pairs == sparse_pairs(p, T), "pattern %d,%d,%d of %d: %d wrong, %g pairs", p.window,
          p.first, p.random, T, wrong, pairs);
    free(table);
    free(longer);
}

static void test_patterns(void) {
    static const SparsePattern patterns[] = {
        {1,  0, 0},
        {1,  1, 1},
        {2,  3, 4},
        {5,  2, 0},
        {40, 1, 2}
    };
    static const int lengths[] = {1, 64, 200, 1000, 1985};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) check_pattern(patterns[i], lengths[j]);
    pattern = (SparsePattern){1, 1, 1};
    test_attention(1, 400, 2, 24, 2, 0, 0, 0);
    test_attention(1, 330, 1, 64, 2, 0, 0.2f, 0);
    pattern = (SparsePattern){2, 0, 2};
    test_attention(2, 515, 1, 8, 2, 0, 0, 0);
    pattern = (SparsePattern){0};
}

static void run_cases(void) {
    static const int context[] = {1, 7, 64, 65, 127}, head_size[] = {8, 24, 32, 64, 128};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++)
            test_attention(1 + j % 2, context[i], 1 + i % 3, head_size[j], 2, 0, 0, 0);
    test_attention(1, 200, 1, 256, 1, 0, 0, 0);
    test_attention(1, 90, 2, 40, 6, 0, 0, 0);
    static const int windows[] = {1, 5, 64, 65, 100};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 2; j++) test_attention(2, 65 + 85 * j, 2, 8 + 16 * i, 2, windows[i], 0, 0);
    test_attention(2, 150, 2, 24, 2, 0, 0.1f, 0);
    test_attention(1, 70, 3, 32, 2, 0, 0.75f, 0);
    test_attention(1, 200, 2, 64, 2, 70, 0.3f, 0);
    test_attention(2, 200, 2, 24, 2, 0, 0, 40);
    test_attention(3, 70, 1, 8, 2, 0, 0, 3);
    test_attention(1, 150, 2, 64, 2, 50, 0.2f, 30);
    test_patterns();
    test_bounds();
    test_mask_of_nothing();
    test_attention_causal();
    test_attention_long();
}

int main(void) {
    return check_cpu_cases("cpu_attention", run_cases);
}
