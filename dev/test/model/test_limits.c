/* The limits of the op tests, tried without a card: a stand-in rounds to bf16 where the kernels do, and must pass; with
 * one fault it must not. The faults are of the kind that a norm over everything does not see. */
#include "dev/test/long_attention.h"
#include <fcntl.h>
#include <unistd.h>

typedef enum {
    NO_FAULT,
    NO_REDO,       /* forward keeps the maximum of the diagonal whatever comes */
    OUT_TRUNCATED, /* the output is cut off, not rounded */
    P_OFF,         /* backward's P is 0.3 % too large */
    DS_TRUNCATED,
    LONE_DK, /* one element of dK times 1.5 */
    GELU_ERF,
} Fault;
static Fault fault;

static float truncate_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bf16_to_float((uint16_t)(bits >> 16));
}

static float *widened(const void *bits, int64_t n) {
    float *values = op_malloc((size_t)n * sizeof *values);
    op_decode(values, bits, STORE_X, DTYPE_BF16, n);
    return values;
}

/* ---- attention with the kernels' roundings ---- */

/* Row i of one head: scores of keys 0..i; q is its query, k the first key, rows `stride` apart. */
static void scores_of(float *s, const float *q, const float *k, int64_t stride, int i, int HD) {
    for (int j = 0; j <= i; j++) {
        s[j] = 0;
        for (int e = 0; e < HD; e++) s[j] += q[e] * k[j * stride + e];
        s[j] /= sqrtf((float)HD);
    }
}

/* P of s in place, under the maximum of the keys from `first` on; returns its sum. */
static float exponentials(float *p, float *max, const float *s, int first, int i) {
    float sum = 0;
    *max = -INFINITY;
    for (int j = first; j <= i; j++) *max = fmaxf(*max, s[j]);
    for (int j = 0; j <= i; j++) sum += p[j] = expf(s[j] - *max);
    return sum;
}

static void stand_in_row(float *out, float *lse, const float *qkv, int i, int HD, int64_t stride) {
    const int C = (int)(stride / 3), diagonal = i / 64 * 64;
    const float *q = qkv + i * stride, *k = qkv + C, *v = k + C;
    float *s = op_malloc((size_t)(i + 1) * 2 * sizeof *s), *p = s + i + 1, max;
    scores_of(s, q, k, stride, i, HD);
    float sum = exponentials(p, &max, s, diagonal, i);
    if (!(sum <= 0x1p64f) && fault != NO_REDO) sum = exponentials(p, &max, s, 0, i);
    for (int e = 0; e < HD; e++) {
        float o = 0;
        for (int j = 0; j <= i; j++) o += round_bf16(p[j]) * v[j * stride + e];
        out[e] = fault == OUT_TRUNCATED ? truncate_bf16(o / sum) : o / sum;
    }
    *lse = max + logf(sum);
    free(s);
}

static void stand_in_forward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                             int T, int NH, int HD) {
    const int C = NH * HD;
    const int64_t n = (int64_t)B * T * C;
    float *x = widened(qkv, 3 * n), *y = op_malloc((size_t)n * sizeof *y);
#pragma omp parallel for
    for (int64_t row = 0; row < (int64_t)B * NH * T; row++) {
        const int64_t b = row / T / NH, h = row / T % NH, i = row % T;
        stand_in_row(y + (b * T + i) * C + h * HD, lse + row, x + b * T * 3 * C + h * HD, (int)i, HD, 3 * C);
    }
    op_encode(out, y, STORE_X, DTYPE_BF16, n);
    free(x);
    free(y);
}

static float stored_ds(float ds) {
    return fault == DS_TRUNCATED ? truncate_bf16(ds) : round_bf16(ds);
}

/* dqkv of one head += what its row i gives. */
static void stand_in_gradients(float *dqkv, const float *dout, const float *out, const float *qkv, float lse,
                               int i, int HD, int64_t stride) {
    const int C = (int)(stride / 3);
    const float *q = qkv + i * stride, *k = qkv + C, *v = k + C, scale = 1 / sqrtf((float)HD);
    float *s = op_malloc((size_t)(i + 1) * sizeof *s), d = 0;
    scores_of(s, q, k, stride, i, HD);
    for (int e = 0; e < HD; e++) d += dout[e] * out[e];
    for (int j = 0; j <= i; j++) {
        const float p = expf(s[j] - lse) * (fault == P_OFF ? 1.003f : 1);
        float dp = 0;
        for (int e = 0; e < HD; e++) dp += dout[e] * v[j * stride + e];
        const float ds = stored_ds(p * (dp - d)) * scale, rounded = round_bf16(p);
        for (int e = 0; e < HD; e++) {
            dqkv[i * stride + e] += ds * k[j * stride + e];
            dqkv[j * stride + C + e] += ds * q[e];
            dqkv[j * stride + 2 * C + e] += rounded * dout[e];
        }
    }
    free(s);
}

static void stand_in_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                              const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                              int B, int T, int NH, int HD) {
    const int C = NH * HD;
    const int64_t n = (int64_t)B * T * C;
    float *x = widened(qkv, 3 * n), *dy = widened(dout, n), *y = widened(out, n);
    float *dx = op_malloc(3 * (size_t)n * sizeof *dx);
    memset(dx, 0, 3 * (size_t)n * sizeof *dx);
#pragma omp parallel for
    for (int bh = 0; bh < B * NH; bh++)
        for (int i = 0; i < T; i++) {
            const int64_t head = (int64_t)(bh / NH) * T * 3 * C + bh % NH * HD,
                          row = ((int64_t)(bh / NH) * T + i) * C + bh % NH * HD;
            stand_in_gradients(dx + head, dy + row, y + row, x + head, lse[(int64_t)bh * T + i], i, HD,
                               3 * C);
        }
    if (fault == LONE_DK) dx[(int64_t)(T / 2) * 3 * C + C + 5] *= 1.5f;
    op_encode(dqkv, dx, STORE_X, DTYPE_BF16, 3 * n);
    float *const host[] = {x, dy, y, dx};
    for (int i = 0; i < 4; i++) free(host[i]);
}

/* ---- GELU ---- */

static void stand_in_linear(Matrix out, Matrix pre_gelu, Matrix x, Matrix weight, const floatX *bias) {
    const int64_t n = out.rows * out.columns;
    float *values = widened(x.data, x.rows * x.columns),
          *w = widened(weight.data, weight.rows * weight.columns);
    float *pre = op_malloc((size_t)n * sizeof *pre), *want = op_malloc((size_t)n * sizeof *want);
    const DType F = DTYPE_F32;
    ops_cpu.linear_forward(matrix(want, F, out.rows, out.columns), matrix(pre, F, out.rows, out.columns),
                           matrix(values, F, x.rows, x.columns), matrix(w, F, weight.rows, weight.columns),
                           NULL);
    for (int64_t i = 0; fault == GELU_ERF && i < n; i++)
        want[i] = 0.5f * pre[i] * (1 + erff(pre[i] * 0.70710678f));
    op_encode(out.data, want, STORE_X, DTYPE_BF16, n);
    op_encode(pre_gelu.data, pre, STORE_X, DTYPE_BF16, n);
    float *const host[] = {values, w, pre, want};
    for (int i = 0; i < 4; i++) free(host[i]);
}

/* The identity as weight, so that the product rounds nothing. */
static int describe_gelu(Operand *o, const Sizes *d) {
    const Operand rows[] = {
        {.name = "out",      .role = OUT, .store = STORE_X, .elems = d->N * d->IC      },
        {.name = "pre_gelu", .role = OUT, .store = STORE_X, .elems = d->N * d->IC      },
        {.name = "x",        .role = IN,  .store = STORE_X, .elems = d->N * d->IC,       .scale = 2},
        {.name = "weight",                  .role = IN,              .store = STORE_X,   .elems = (int64_t)d->IC * d->IC},
    };
    memcpy(o, rows, sizeof rows);
    return 4;
}

static void prepare_gelu(OpCase *c) {
    for (int i = 0; i < c->s.IC; i++) c->in[3][i * c->s.IC + i] = 1;
}

static void run_gelu(const Call *c) {
    void *const *p = c->p;
    const Sizes *d = &c->s;
    const DType X = c->ops->dtype;
    c->ops->linear_forward(matrix(p[0], X, d->N, d->IC), matrix(p[1], X, d->N, d->IC),
                           matrix(p[2], X, d->N, d->IC), matrix(p[3], X, d->IC, d->IC), NULL);
}

static const Op gelu = {.id = N_OPS,
                        .name = "linear_forward",
                        .describe = describe_gelu,
                        .run = run_gelu,
                        .prepare = prepare_gelu};

/* ---- expectations ---- */

/* To add a fault: a row, and what it does above. */
static const struct {
    const char *what;
    Fault fault;
    const Op *op;
    Sizes d;
} cases[] = {
    {"forward",                  NO_FAULT,      &forward,  {.B = 2, .T = 129, .NH = 2, .HD = 64}                      },
    {"one query",                NO_FAULT,      &forward,  {.B = 1, .T = 1, .NH = 3, .HD = 64}                        },
    {"few queries",              NO_FAULT,      &forward,  {.B = 2, .T = 7, .NH = 1, .HD = 128}                       },
    {"scores alike",             NO_FAULT,      &forward,  {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_EQUAL}  },
    {"growing scores",           NO_FAULT,      &forward,  {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_GROWING}},
    {"a huge score",             NO_FAULT,      &forward,  {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_HUGE}   },
    {"falling scores",           NO_FAULT,      &forward,  {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_FALLING}},
    {"peaks",                    NO_FAULT,      &forward,  {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_PEAKS}  },
    {"backward",                 NO_FAULT,      &backward, {.B = 2, .T = 129, .NH = 2, .HD = 64}                      },
    {"backward, one query",      NO_FAULT,      &backward, {.B = 1, .T = 1, .NH = 3, .HD = 64}                        },
    {"backward, few queries",    NO_FAULT,      &backward, {.B = 2, .T = 7, .NH = 1, .HD = 128}                       },
    {"backward, longer",         NO_FAULT,      &backward, {.B = 1, .T = 515, .NH = 2, .HD = 64}                      },
    {"backward, scores alike",
     NO_FAULT,                                  &backward,
     {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_EQUAL}                                                        },
    {"backward, growing scores",
     NO_FAULT,                                  &backward,
     {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_GROWING}                                                      },
    {"backward, a huge score",   NO_FAULT,      &backward, {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_HUGE}   },
    {"backward, falling scores",
     NO_FAULT,                                  &backward,
     {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_FALLING}                                                      },
    {"backward, peaks",          NO_FAULT,      &backward, {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_PEAKS}  },
    {"GELU",                     NO_FAULT,      &gelu,     {.N = 125, .IC = 8}                                        },
    {"no redo, falling scores",
     NO_REDO,                                   &forward,
     {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_FALLING}                                                      },
    {"no redo, peaks",           NO_REDO,       &forward,  {.B = 1, .T = 195, .NH = 2, .HD = 64, .fill = FILL_PEAKS}  },
    {"output truncated",         OUT_TRUNCATED, &forward,  {.B = 1, .T = 65, .NH = 2, .HD = 64}                       },
    {"P 0.3 % off in backward",  P_OFF,         &backward, {.B = 1, .T = 515, .NH = 2, .HD = 64}                      },
    {"dS truncated",             DS_TRUNCATED,  &backward, {.B = 1, .T = 515, .NH = 2, .HD = 64}                      },
    {"one dK element times 1.5", LONE_DK,       &backward, {.B = 1, .T = 515, .NH = 2, .HD = 64}                      },
    {"a long sequence",          NO_FAULT,      NULL,      {.T = 300, .HD = 64}                                       },
    {"one dK element of a long", LONE_DK,       NULL,      {.T = 300, .HD = 64}                                       },
    {"GELU by erf",              GELU_ERF,      &gelu,     {.N = 125, .IC = 8}                                        },
};

/* Checks that fail on the way; what they say is shown with -v alone. op NULL: the test of long sequences. */
static int failures_of(const Ops *ops, Fault with, const Op *op, Sizes d) {
    const int passed = check_passed, failed = check_failed;
    fflush(stdout);
    const int shown = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    if (shown < 0 || nowhere < 0) abort();
    if (!op_verbose) dup2(nowhere, STDOUT_FILENO);
    fault = with;
    if (op)
        op_case(ops, op, d);
    else
        test_long_sequence(ops, (Sizes){.T = d.T, .HD = d.HD});
    fflush(stdout);
    dup2(shown, STDOUT_FILENO);
    close(shown);
    close(nowhere);
    const int failures = check_failed - failed;
    check_passed = passed;
    check_failed = failed;
    return failures;
}

int main(int argc, char **argv) {
    Error err = {0};
    if (!ops_cpu.device->open(0, &err)) die(&err);
    op_verbose = argc > 1 && strcmp(argv[1], "-v") == 0;
    Ops stand_in = ops_cpu;
    stand_in.name = "stand-in bf16";
    stand_in.dtype = DTYPE_BF16;
    stand_in.attention_forward = stand_in_forward;
    stand_in.attention_backward = stand_in_backward;
    stand_in.linear_forward = stand_in_linear;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int failures = failures_of(&stand_in, cases[i].fault, cases[i].op, cases[i].d);
        CHECK((failures == 0) == (cases[i].fault == NO_FAULT), "%s: %d checks failed", cases[i].what,
              failures);
    }
    return check_finish("limits");
}
