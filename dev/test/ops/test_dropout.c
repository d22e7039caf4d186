/* The masks of dropout: bits of a fair coin, nothing in common between rows, columns, heads, layers, steps; the same on
 * every backend; attention under them is plain attention on the average. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/model/ops.h"
#include "llmc/base/random.h"
#include "dev/test/check.h"
#include "dev/test/compare.h"
#include "dev/test/tiny_model.h"

enum { ROWS = 512, COLUMNS = 512, N = ROWS * COLUMNS };

/* 1 where an element is dropped; p: as dropout.h rounds it */
static void draw(uint8_t *bits, uint64_t key, uint32_t site, int64_t index, float p) {
    const DropoutMatrix matrix = dropout_matrix(dropout_site(key, site), index);
    for (uint32_t n = 0; n < ROWS; n++)
        for (uint32_t c = 0; c < COLUMNS; c++)
            bits[n * COLUMNS + c] = (uint8_t)dropout_drops(matrix, n, c, dropout_threshold(p));
}

/* Of n coins with probability p that come up `hits` times: standard deviations from the mean. */
static double sigmas(double hits, double n, double p) {
    return (hits - n * p) / sqrt(n * p * (1 - p));
}

/* What is asked for becomes the nearest multiple of 1/256, but neither 0 nor 1; what is kept grows by as much. */
static void test_threshold(void) {
    static const struct {
        float p;
        uint32_t threshold;
    } cases[] = {
        {0.0f,  0  },
        {1e-5f, 1  },
        {0.1f,  26 },
        {0.25f, 64 },
        {0.5f,  128},
        {0.99f, 253},
        {1.0f,  255},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        const uint32_t t = dropout_threshold(cases[i].p);
        CHECK(t == cases[i].threshold, "p %g: threshold %u", (double)cases[i].p, t);
        CHECK(fabs((double)dropout_scale(t) * (1 - (double)dropout_p(t)) - 1) < 1e-6,
              "threshold %u: scale %g", t, (double)dropout_scale(t));
    }
}

/* The sums of `n` lines of `length` coins: their worst, and the mean of their squares, in standard deviations. */
typedef struct Lines {
    double worst, squares;
} Lines;
static Lines lines(const uint8_t *bits, int n, int length, int line, int step, double p) {
    Lines l = {0, 0};
    for (int i = 0; i < n; i++) {
        double hits = 0;
        for (int j = 0; j < length; j++) hits += bits[i * line + j * step];
        const double off = sigmas(hits, length, p);
        l.worst = worse(l.worst, fabs(off));
        l.squares += off * off / n;
    }
    return l;
}

/* Of normal numbers the largest of 512 passes 5 once in 3000 tries; the mean of their squares is 1 +- 0.0625. */
static void check_lines(Lines l, const char *what, double p) {
    CHECK(p < 0.01 || l.worst < 5, "p %g: a %s is %.1f sigma off", p, what, l.worst);
    CHECK(p < 0.01 || fabs(l.squares - 1) < 0.3, "p %g: variance of the %ss is %.2f of a binomial's", p, what,
          l.squares);
}

static void test_mean(void) {
    static const float ps[] = {0.001f, 0.1f, 0.5f, 0.9f};
    uint8_t *bits = malloc(N);
    if (!bits) abort();
    for (int i = 0; i < 4; i++)
        for (uint64_t key = 0; key < 4; key++) {
            const double p = (double)dropout_p(dropout_threshold(ps[i]));
            double hits = 0;
            draw(bits, random_stream(1337, key), (uint32_t)key, (int64_t)key, ps[i]);
            for (int j = 0; j < N; j++) hits += bits[j];
            CHECK(fabs(sigmas(hits, N, p)) < 4, "p %g: %g of %d dropped", p, hits, (int)N);
            check_lines(lines(bits, ROWS, COLUMNS, COLUMNS, 1, p), "row", p);
            check_lines(lines(bits, COLUMNS, ROWS, 1, COLUMNS, p), "column", p);
        }
    free(bits);
}

/* Two masks drop the same elements as often as chance would have it. shift: elements of b before those of a. */
static void independent(const uint8_t *a, const uint8_t *b, int shift, double p, const char *what) {
    int both = 0;
    for (int i = shift; i < N; i++) both += a[i] & b[i - shift];
    const double off = sigmas(both, N - shift, p * p);
    CHECK(fabs(off) < 4.5, "%s, %d elements apart: both dropped %.1f sigma from chance", what, shift, off);
}

/* All distances of rows and columns up to a tile of the mask and a bit: elements of one word, of words with one counter,
 * of neighbouring tiles. */
static void test_neighbours(const uint8_t *a, double p) {
    for (int row = 0; row <= 18; row++)
        for (int column = row ? -18 : 1; column <= 18; column++)
            independent(a, a, row * COLUMNS + column, p, "neighbours");
    independent(a, a, 65 * COLUMNS, p, "65 rows");
}

/* Three elements of a word, and the corners of a rectangle, are dropped together as often as chance would have it. */
static void test_together(const uint8_t *a, double p) {
    static const int sides[] = {1, 2, 8, 16, 17, 32, 48, 64};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) {
            const int row = sides[i] * COLUMNS, column = sides[j], n = N - row - column;
            int three = 0, four = 0;
            for (int k = 0; k < n; k++) {
                const int of_three = a[k] & a[k + row] & a[k + column];
                three += of_three;
                four += of_three & a[k + row + column];
            }
            CHECK(fabs(sigmas(three, n, p * p * p)) < 5 && fabs(sigmas(four, n, p * p * p * p)) < 5,
                  "corners %d x %d: three %.1f, four %.1f sigma from chance", sides[i], sides[j],
                  sigmas(three, n, p * p * p), sigmas(four, n, p * p * p * p));
        }
}

static void test_independence(void) {
    const double p = (double)dropout_p(dropout_threshold(0.3f));
    const uint64_t key = random_stream(random_stream(1337, 1) + 1, 0);
    uint8_t *a = malloc(N), *b = malloc(N);
    if (!a || !b) abort();
    draw(a, key, 0, 0, 0.3f);
    test_neighbours(a, p);
    test_together(a, p);
    draw(b, key, 0, 1, 0.3f);
    independent(a, b, 0, p, "heads");
    draw(b, key, 1, 0, 0.3f);
    independent(a, b, 0, p, "sites");
    draw(b, key, 4, 0, 0.3f);
    independent(a, b, 0, p, "layers");
    draw(b, random_stream(random_stream(1337, 1) + 1, 1), 0, 0, 0.3f);
    independent(a, b, 0, p, "micro-steps");
    draw(b, random_stream(random_stream(1337, 1) + 2, 0), 0, 0, 0.3f);
    independent(a, b, 0, p, "steps");
    draw(b, random_stream(random_stream(1338, 1) + 1, 0), 0, 0, 0.3f);
    independent(a, b, 0, p, "seeds");
    free(a);
    free(b);
}

/* No two of a million matrices are the same. */
static int compare_matrices(const void *a, const void *b) {
    return memcmp(a, b, sizeof(DropoutMatrix));
}

static void test_matrices_differ(void) {
    const int n = 1 << 20;
    DropoutMatrix *matrices = malloc((size_t)n * sizeof *matrices);
    if (!matrices) abort();
    for (int i = 0; i < n; i++) matrices[i] = dropout_matrix(dropout_site(1, 2), i);
    qsort(matrices, (size_t)n, sizeof *matrices, compare_matrices);
    int same = 0;
    for (int i = 1; i < n; i++) same += compare_matrices(&matrices[i], &matrices[i - 1]) == 0;
    CHECK(same == 0, "%d of %d matrices are another", same, n);
    free(matrices);
}

/* The op on a backend: what dropout.h says, scaled and rounded, in place or not. */
static void test_op(const Ops *ops, int64_t rows, int columns) {
    const int64_t n = rows * columns;
    const float p = 0.25f; /* 64 / 256 */
    const uint64_t key = 42;
    const size_t bytes = (size_t)n * dtype_bytes(ops->dtype);
    float *x = malloc((size_t)n * sizeof *x), *got = malloc((size_t)n * sizeof *got);
    char *device = ops->device->alloc(bytes), *out = ops->device->alloc(bytes);
    uint64_t *device_key = ops->device->alloc(sizeof key);
    if (!x || !got || !device || !out || !device_key) abort();
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 61) - 30.0f; /* exact in bf16 */
    ops->device->upload(device_key, &key, sizeof key);
    upload_floats(ops, device, ops->dtype, x, n);
    const Dropout dropout = {device_key, 3, p};
    ops->dropout(out, device, &dropout, rows, columns);
    ops->dropout(device, device, &dropout, rows, columns);
    for (int way = 0; way < 2; way++) {
        int64_t wrong = 0;
        download_floats(ops, got, way ? device : out, ops->dtype, n);
        for (int64_t i = 0; i < n; i++) {
            const DropoutMatrix matrix = dropout_matrix(dropout_site(key, 3), i / columns / 65536);
            const uint32_t row = (uint32_t)(i / columns % 65536), column = (uint32_t)(i % columns);
            const float kept = x[i] * (1.0f / 0.75f), want = dropout_drops(matrix, row, column, 64) ? 0.0f
                                                             : ops->dtype == DTYPE_BF16 ? round_bf16(kept)
                                                                                        : kept;
            wrong += got[i] != want;
        }
        CHECK(wrong == 0, "%s: dropout of %lld x %d%s: %lld elements wrong", ops->name, (long long)rows,
              columns, way ? " in place" : "", (long long)wrong);
    }
    ops->device->free(device);
    ops->device->free(out);
    ops->device->free(device_key);
    free(x);
    free(got);
}

/* Over many keys the output of attention has the mean of plain attention (it is linear in the mask), and the spread
 * that independent coins give: var = p/(1-p) sum_j (P_ij v_j)^2. */
static void test_expectation(void) {
    enum { T = 9, HD = 8, KEYS = 4000 };
    float qkv[T * 3 * HD], plain[T * HD], out[T * HD], lse[T], probs[T * T];
    double sum[T * HD] = {0}, squares[T * HD] = {0};
    uint64_t stream = random_stream(5, 5), key;
    const float asked = 0.2f;
    const double p = (double)dropout_p(dropout_threshold(asked));
    for (int i = 0; i < T * 3 * HD; i++) qkv[i] = (float)(random_uniform(&stream) * 4 - 2);
    ops_cpu.attention_standard_forward(plain, probs, NULL, qkv, &(AttentionMask){0}, 1, T, 1, HD);
    for (int k = 0; k < KEYS; k++) {
        key = random_stream(9, (uint64_t)k);
        const AttentionMask mask = {
            .dropout = {&key, 1, asked}
        };
        ops_cpu.attention_forward(out, lse, qkv, &mask, 1, T, 1, HD);
        for (int i = 0; i < T * HD; i++) sum[i] += out[i], squares[i] += pow(out[i] - plain[i], 2);
    }
    for (int i = 0; i < T * HD; i++) {
        double variance = 0;
        for (int j = 0; j <= i / HD; j++)
            variance += pow(probs[i / HD * T + j] * qkv[(j * 3 + 2) * HD + i % HD], 2) * p / (1 - p);
        const double off = (sum[i] / KEYS - plain[i]) / sqrt(variance / KEYS);
        CHECK(fabs(off) < 4.5, "output %d: the mean over %d masks is %.1f sigma off", i, (int)KEYS, off);
        CHECK(fabs(squares[i] / KEYS / variance - 1) < 0.2, "output %d: variance %g, expected %g", i,
              squares[i] / KEYS, variance);
    }
}

/* The embedding of a model in training has, over its steps, the mean of that in validation. */
static void test_model_expectation(void) {
    enum { STEPS = 2000, T = 8, ELEMS = T * 32 };
    int32_t tokens[T], targets[T];
    double sum[ELEMS] = {0};
    float plain[ELEMS];
    GPT2 model;
    GPT2Config config = tiny_config;
    config.dropout = 0.3f;
    tiny_open(&model, &config);
    gpt2_init(&model, 1);
    for (int i = 0; i < T; i++) tokens[i] = 7 * i + 1, targets[i] = 5 * i + 2;
    const float *encoded = gpt2_activation(&model, ACT_ENCODED, 0); /* memory of the CPU */
    gpt2_eval(&model, tokens, targets, 1, T);
    memcpy(plain, encoded, sizeof plain);
    for (int step = 0; step < STEPS; step++) {
        gpt2_begin_step(&model, 1);
        gpt2_micro_step(&model, tokens, targets, 1, T, 1.0f);
        for (int i = 0; i < ELEMS; i++) sum[i] += encoded[i];
    }
    double worst = 0;
    for (int i = 0; i < ELEMS; i++) {
        const double p = (double)dropout_p(dropout_threshold(0.3f)),
                     sigma = fabs(plain[i]) * sqrt(p / (1 - p) / STEPS);
        worst = worse(worst, fabs(sum[i] / STEPS - plain[i]) / sigma);
    }
    CHECK(worst < 4.5, "the mean of an embedding over %d steps is %.1f sigma off", (int)STEPS, worst);
    gpt2_close(&model);
}

static void test_backend(const Ops *ops) {
    Error err = {0};
    if (!CHECK(ops->device->open(0, &err), "%s: %s", ops->name, err.text)) return;
    test_op(ops, 1, 1);
    test_op(ops, 37, 24);
    test_op(ops, 100, 131); /* rows that are not aligned */
    test_op(ops, 3, 768);
    test_op(ops, 65536 + 21, 8); /* more rows than a matrix has */
}

int main(void) {
    test_threshold();
    test_mean();
    test_independence();
    test_matrices_differ();
    test_backend(&ops_cpu);
    if (cuda_available()) {
        test_backend(ops_cuda_fp32);
        test_backend(ops_cuda_bf16);
    } else
        SKIP("dropout on the GPU: no CUDA device");
    test_expectation();
    test_model_expectation();
    return check_finish("dropout");
}
