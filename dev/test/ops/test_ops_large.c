/* Ops on buffers of more than 2^31 elements (bf16 on a GPU with 20 GB free): an index kept in 32 bits wraps
 * there.
 *
 * Inputs repeat with a short period, so the oracle computes one period; outputs start as NaN, and rows at the
 * start, on both sides of element 2^31 and at the end are compared. A wrong index is off by O(1): the limit
 * need not be sharp. */
#include "dev/test/op_test.h"

#define LARGE_LIMIT 0.02
static const int64_t past = (int64_t)1 << 31;

/* dst[0..bytes) = the pattern over and over, doubled on the device. */
static void tile(const Ops *ops, char *dst, const void *pattern, size_t pattern_bytes, size_t bytes) {
    size_t done = pattern_bytes < bytes ? pattern_bytes : bytes;
    ops->device->upload(dst, pattern, done);
    while (done < bytes) {
        size_t n = done < bytes - done ? done : bytes - done;
        ops->device->copy(dst + done, dst, n);
        done += n;
    }
}

typedef struct Large {
    char *data;
    int64_t width, rows, period; /* rows of `width` elements; row r holds what row r % period does */
} Large;

/* A bf16 buffer of rows x width with the period's values, or, for values NULL, of NaN. */
static bool large_open(Large *large, const Ops *ops, const float *values, int64_t period, int64_t rows,
                       int64_t width) {
    *large = (Large){.width = width, .rows = rows, .period = period};
    const size_t bytes = (size_t)(rows * width) * 2, pattern_bytes = (size_t)(period * width) * 2;
    if (!CHECK((large->data = ops->device->alloc(bytes)) != NULL, "%s: %zu bytes of device memory", ops->name,
               bytes))
        return false;
    uint16_t *pattern = op_malloc(pattern_bytes);
    memset(pattern, POISON_VALUE, pattern_bytes);
    for (int64_t i = 0; values && i < period * width; i++) pattern[i] = bf16_from_float(values[i]);
    tile(ops, large->data, pattern, pattern_bytes, bytes);
    free(pattern);
    return true;
}

/* Rows at the start, around element 2^31 and at the end against want (period, width). */
static void large_check(const Large *large, const Ops *ops, const float *want, const char *what) {
    const int64_t at[] = {0, past / large->width - 1, past / large->width, past / large->width + 1,
                          large->rows - 1};
    float *got = op_malloc((size_t)large->width * sizeof *got);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        if (at[i] >= large->rows) continue;
        download_floats(ops, got, large->data + (size_t)(at[i] * large->width) * 2, DTYPE_BF16, large->width);
        Deviation d = compare_floats(got, want + at[i] % large->period * large->width, large->width);
        CHECK(within(d, (Limits){LARGE_LIMIT, LARGE_LIMIT}), "%s, %s: row %lld of %lld x %lld: error %.2e",
              ops->name, what, (long long)at[i], (long long)large->rows, (long long)large->width, d.norm);
    }
    free(got);
}

/* Hopper has a kernel for multiples of 64 inputs. */
static void test_gelu(const Ops *ops, int IC) {
    enum { period = 257, OC = 1024 };
    const int64_t rows = past / OC + 300;
    float *x = op_normal_bf16(period * IC, 1), *weight = op_normal_bf16(OC * IC, 9);
    float *want = op_malloc(period * OC * sizeof *want), *pre = op_malloc(period * OC * sizeof *pre);
    Large in = {0}, w = {0}, pre_gelu = {0}, out = {0};
    const DType F = DTYPE_F32, X = ops->dtype;
    ops_cpu.linear_forward(matrix(want, F, period, OC), matrix(pre, F, period, OC), matrix(x, F, period, IC),
                           matrix(weight, F, OC, IC), NULL);
    if (large_open(&in, ops, x, period, rows, IC) && large_open(&w, ops, weight, OC, OC, IC) &&
        large_open(&pre_gelu, ops, NULL, period, rows, OC) && large_open(&out, ops, NULL, period, rows, OC)) {
        ops->linear_forward(matrix(out.data, X, rows, OC), matrix(pre_gelu.data, X, rows, OC),
                            matrix(in.data, X, rows, IC), matrix(w.data, X, OC, IC), NULL);
        large_check(&out, ops, want, "linear_forward, out");
        large_check(&pre_gelu, ops, pre, "linear_forward, pre_gelu");
    }
    void *const device[] = {in.data, w.data, pre_gelu.data, out.data};
    for (int i = 0; i < 4; i++) ops->device->free(device[i]);
    float *const host[] = {x, weight, want, pre};
    for (int i = 0; i < 4; i++) free(host[i]);
}

/* dx of a layer behind GELU, and GELU in the place of its input. Hopper has a kernel for multiples of 64 outputs. */
static void test_gelu_backward(const Ops *ops, int OC) {
    enum { period = 257, IC = 1024 };
    const int64_t rows = past / IC + 300;
    float *dout = op_normal_bf16(period * OC, 6), *weight = op_normal_bf16(OC * IC, 7);
    float *pre_gelu = op_normal_bf16(period * IC, 8), *dx = op_malloc(period * IC * sizeof *dx);
    const OpShape shape = {.B = 1, .T = 8, .C = IC / 4, .NH = 4, .V = 8, .Vp = 8, .loss_rows = 8};
    void *scratch = ops->device->alloc(ops->scratch_bytes(&shape));
    Large d = {0}, w = {0}, pre = {0}, out = {0};
    const bool ready = CHECK(scratch, "device memory") && large_open(&d, ops, dout, period, rows, OC) &&
                       large_open(&w, ops, weight, OC, OC, IC) &&
                       large_open(&pre, ops, pre_gelu, period, rows, IC) &&
                       large_open(&out, ops, NULL, period, rows, IC);
    const DType F = DTYPE_F32, X = ops->dtype;
    const Matrix host_pre = matrix(pre_gelu, F, period, IC), pre_m = matrix(pre.data, X, rows, IC);
    ops_cpu.linear_backward_input(matrix(dx, F, period, IC), NULL, host_pre, matrix(dout, F, period, OC),
                                  matrix(weight, F, OC, IC), host_pre, NULL);
    if (ready) {
        ops->linear_backward_input(matrix(out.data, X, rows, IC), NULL, pre_m, matrix(d.data, X, rows, OC),
                                   matrix(w.data, X, OC, IC), pre_m, scratch);
        large_check(&out, ops, dx, "linear_backward_input, dx");
        large_check(&pre, ops, pre_gelu, "linear_backward_input, gelu");
    }
    void *const device[] = {scratch, d.data, w.data, pre.data, out.data};
    for (int i = 0; i < 5; i++) ops->device->free(device[i]);
    float *const host[] = {dout, weight, pre_gelu, dx};
    for (int i = 0; i < 4; i++) free(host[i]);
}

static void test_layernorm(const Ops *ops) {
    enum { period = 257, C = 768 };
    const int64_t rows = past / C + 300;
    float *x = op_normal_bf16(period * C, 2), *want = op_malloc(period * C * sizeof *want);
    float *weight = op_normal_bf16(2 * C, 3), stats[2 * period];
    Large in = {0}, out = {0}, parameters = {0};
    ops_cpu.layernorm_forward(want, stats, stats + period, x, weight, weight + C, period, C);
    float *device_stats = ops->device->alloc((size_t)rows * 2 * sizeof(float));
    if (CHECK(device_stats, "device memory") && large_open(&in, ops, x, period, rows, C) &&
        large_open(&out, ops, NULL, period, rows, C) && large_open(&parameters, ops, weight, 2, 2, C)) {
        ops->layernorm_forward(out.data, device_stats, device_stats + rows, in.data, parameters.data,
                               parameters.data + C * 2, rows, C);
        large_check(&out, ops, want, "layernorm_forward");
    }
    ops->device->free(device_stats);
    ops->device->free(in.data);
    ops->device->free(out.data);
    ops->device->free(parameters.data);
    free(x);
    free(want);
    free(weight);
}

/* Two different sequences in turn, B so large that qkv passes 2^31 elements; forward, then backward on its
 * results. */
static void test_attention(const Ops *ops) {
    enum { period = 2, T = 1024, NH = 12, HD = 64, C = NH * HD };
    const int B = (int)(past / (T * 3 * C)) + 3;
    const int64_t n = (int64_t)period * T * C;
    float *qkv = op_normal_bf16(3 * n, 4), *dout = op_normal_bf16(n, 5);
    float *out = op_malloc((size_t)n * sizeof *out), *dqkv = op_malloc(3 * (size_t)n * sizeof *dqkv);
    float *lse = op_malloc(period * T * NH * sizeof *lse);
    OpShape shape = {.B = period, .T = T, .C = C, .NH = NH, .V = 8, .Vp = 8, .loss_rows = 8};
    void *cpu_scratch = op_malloc(ops_cpu.scratch_bytes(&shape));
    ops_cpu.attention_forward(out, lse, qkv, &(AttentionMask){0}, period, T, NH, HD);
    ops_cpu.attention_backward(dqkv, dout, out, qkv, lse, NULL, &(AttentionMask){0}, cpu_scratch, period, T,
                               NH, HD);
    shape.B = B;
    Large q = {0}, o = {0}, d = {0}, dq = {0};
    float *device_lse = ops->device->alloc((size_t)B * T * NH * sizeof(float));
    void *scratch = ops->device->alloc(ops->scratch_bytes(&shape));
    if (CHECK(device_lse && scratch, "device memory") && large_open(&q, ops, qkv, period, B, 3 * T * C) &&
        large_open(&o, ops, NULL, period, B, T * C) && large_open(&d, ops, dout, period, B, T * C) &&
        large_open(&dq, ops, NULL, period, B, 3 * T * C)) {
        ops->attention_forward(o.data, device_lse, q.data, &(AttentionMask){0}, B, T, NH, HD);
        large_check(&o, ops, out, "attention_forward");
        ops->attention_backward(dq.data, d.data, o.data, q.data, device_lse, NULL, &(AttentionMask){0},
                                scratch, B, T, NH, HD);
        large_check(&dq, ops, dqkv, "attention_backward");
    }
    void *const device[] = {device_lse, scratch, q.data, o.data, d.data, dq.data};
    for (int i = 0; i < 6; i++) ops->device->free(device[i]);
    void *const host[] = {qkv, dout, out, dqkv, lse, cpu_scratch};
    for (int i = 0; i < 6; i++) free(host[i]);
}

static void test_backend(const Ops *ops) {
    size_t free_bytes, total_bytes;
    if (ops->dtype != DTYPE_BF16) return; /* the kernels are the same source, at half the memory */
    ops->device->memory_info(&free_bytes, &total_bytes);
    if (free_bytes < (size_t)20 << 30) {
        SKIP("buffers past 2^31 elements: %zu MB of device memory free, 20480 needed", free_bytes >> 20);
        return;
    }
    test_gelu(ops, 8);
    test_gelu(ops, 64);
    test_gelu_backward(ops, 8);
    test_gelu_backward(ops, 64);
    test_layernorm(ops);
    test_attention(ops);
}

int main(int argc, char **argv) {
    return op_main("ops_large", argc, argv, test_backend);
}
