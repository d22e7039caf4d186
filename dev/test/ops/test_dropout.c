/* The masks of dropout: bits of a fair coin, nothing in common between rows, columns, heads, layers, steps; the same on
 * every backend; attention under them is plain attention on the average. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/model/ops.h"
#include "llmc/base/random.h"
#include "dev/test/check.h"
#include "dev/test/compare.h"
#include "dev/test/tiny_model.h"

enum { ROWS = 512, COLUMNS = 512, N = ROWS * COLUMNS };

/* 1 where an element is dropped */
static void draw(uint8_t *bits, uint64_t key, uint32_t site, float p) {
    const uint64_t of_site = dropout_site(key, site);
    for (int n = 0; n < ROWS; n++) {
        const DropoutRow row = dropout_row(of_site, n);
        for (int c = 0; c < COLUMNS; c++)
            bits[n * COLUMNS + c] = dropout_bits(row, (uint32_t)c) < dropout_threshold(p);
    }
}

/* Of n coins with probability p that come up `hits` times: standard deviations from the mean. */
static double sigmas(double hits, double n, double p) {
    return (hits - n * p) / sqrt(n * p * (1 - p));
}

static void test_mean(void) {
    static const float ps[] = {0.001f, 0.1f, 0.5f, 0.9f};
    uint8_t *bits = malloc(N);
    if (!bits) abort();
    for (int i = 0; i < 4; i++)
        for (uint64_t key = 0; key < 4; key++) {
            double hits = 0, worst = 0;
            draw(bits, random_stream(1337, key), (uint32_t)key, ps[i]);
            for (int j = 0; j < N; j++) hits += bits[j];
            CHECK(fabs(sigmas(hits, N, ps[i])) < 4, "p %g: %g of %d dropped", (double)ps[i], hits, (int)N);
            for (int c = 0; c < COLUMNS;
                 c++) { /* the largest of 512 normal numbers passes 5 once in 3000 tries */
                hits = 0;
                for (int n = 0; n < ROWS; n++) hits += bits[n * COLUMNS + c];
                worst = worse(worst, fabs(sigmas(hits, ROWS, ps[i])));
            }
            CHECK(ps[i] < 0.01f || worst < 5, "p %g: a column is %.1f sigma off", (double)ps[i], worst);
        }
    free(bits);
}

/* Two masks drop the same elements as often as chance would have it. shift: elements of b before those of a. */
static void independent(const uint8_t *a, const uint8_t *b, int shift, float p, const char *what) {
    double both = 0;
    for (int i = shift; i < N; i++) both += a[i] & b[i - shift];
    const double off = sigmas(both, N - shift, (double)p * p);
    CHECK(fabs(off) < 4, "%s: both dropped %.1f sigma from chance", what, off);
}

static void test_independence(void) {
    const float p = 0.3f;
    const uint64_t key = random_stream(random_stream(1337, 1) + 1, 0);
    uint8_t *a = malloc(N), *b = malloc(N);
    if (!a || !b) abort();
    draw(a, key, 0, p);
    independent(a, a, 1, p, "neighbours in a row");
    independent(a, a, 2, p, "second neighbours");
    independent(a, a, COLUMNS, p, "neighbours in a column");
    independent(a, a, COLUMNS + 1, p, "on the diagonal");
    independent(a, a, 65 * COLUMNS, p, "heads of 65 positions");
    draw(b, key, 1, p);
    independent(a, b, 0, p, "sites");
    draw(b, key, 4, p);
    independent(a, b, 0, p, "layers");
    draw(b, random_stream(random_stream(1337, 1) + 1, 1), 0, p);
    independent(a, b, 0, p, "micro-steps");
    draw(b, random_stream(random_stream(1337, 1) + 2, 0), 0, p);
    independent(a, b, 0, p, "steps");
    draw(b, random_stream(random_stream(1338, 1) + 1, 0), 0, p);
    independent(a, b, 0, p, "seeds");
    free(a);
    free(b);
}

/* No two of a million rows begin at the same place. */
static int compare_rows(const void *a, const void *b) {
    return memcmp(a, b, sizeof(DropoutRow));
}

static void test_rows_differ(void) {
    const int n = 1 << 20;
    DropoutRow *rows = malloc((size_t)n * sizeof *rows);
    if (!rows) abort();
    for (int i = 0; i < n; i++) rows[i] = dropout_row(dropout_site(1, 2), i);
    qsort(rows, (size_t)n, sizeof *rows, compare_rows);
    int same = 0;
    for (int i = 1; i < n; i++) same += compare_rows(&rows[i], &rows[i - 1]) == 0;
    CHECK(same == 0, "%d of %d rows begin where another does", same, n);
    free(rows);
}

/* The op on a backend: what dropout.h says, scaled and rounded, in place or not. */
static void test_op(const Ops *ops, int64_t rows, int columns) {
    const int64_t n = rows * columns;
    const float p = 0.25f; /* 1/(1-p) rounds, 1-p does not */
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
            const DropoutRow row = dropout_row(dropout_site(key, 3), i / columns);
            const float kept = x[i] * (1.0f / 0.75f),
                        want = dropout_bits(row, (uint32_t)(i % columns)) < 1u << 30 ? 0.0f
                               : ops->dtype == DTYPE_BF16                            ? round_bf16(kept)
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
    const float p = 0.2f;
    for (int i = 0; i < T * 3 * HD; i++) qkv[i] = (float)(random_uniform(&stream) * 4 - 2);
    ops_cpu.attention_standard_forward(plain, probs, NULL, qkv, &(AttentionMask){0}, 1, T, 1, HD);
    for (int k = 0; k < KEYS; k++) {
        key = random_stream(9, (uint64_t)k);
        const AttentionMask mask = {
            .dropout = {&key, 1, p}
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
        const double sigma = fabs(plain[i]) * sqrt(0.3 / 0.7 / STEPS);
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
}

int main(void) {
    test_mean();
    test_independence();
    test_rows_differ();
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
