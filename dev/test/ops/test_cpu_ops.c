/* The ops of the CPU backend but those with a file test_cpu_NAME.c, such as attention. */
#include "llmc/cpu/vec.h"
#include "dev/test/cpu_case.h"

/* sums (columns), 1 everywhere before, went up by the column sums of x (rows, columns). */
static void has_column_sums(const char *name, Buffer sums, Buffer x) {
    for (int64_t c = 0; c < sums.n; c++) sums.d[c] = 1;
    for (int64_t i = 0; i < x.n; i++) sums.d[i % sums.n] += x.f[i];
    close_to(name, sums, sums.d);
}

/* ---- linear and GELU ---- */

static double gelu_double(double x) {
    return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

typedef struct Linear {
    int64_t N, OC, IC;
    Buffer x, w, bias, dout, y; /* y.d: result of linear_double */
    bool has_bias, gelu_in, gelu_out;
} Linear;

static Matrix m(Buffer b, int64_t rows, int64_t columns) {
    return matrix(b.f, DTYPE_F32, rows, columns);
}

static double linear_double(const void *context) {
    const Linear *l = context;
    for (int64_t n = 0; n < l->N; n++)
        for (int64_t o = 0; o < l->OC; o++) {
            double sum = l->has_bias ? l->bias.d[o] : 0;
            for (int64_t i = 0; i < l->IC; i++) {
                double x = l->x.d[n * l->IC + i];
                sum += (l->gelu_in ? gelu_double(x) : x) * l->w.d[o * l->IC + i];
            }
            l->y.d[n * l->OC + o] = l->gelu_out ? gelu_double(sum) : sum;
        }
    return weighted_sum(l->dout, l->y.d);
}

/* out (n) = gelu(x), as linear_forward has it: the identity as weight. */
static void gelu_of(float *out, const float *x, int64_t n) {
    enum { C = 8 };
    Buffer identity = filled(C * C, 0, 0), pre = poisoned(n);
    for (int i = 0; i < C; i++) identity.f[i * C + i] = 1;
    ops->linear_forward(matrix(out, DTYPE_F32, n / C, C), m(pre, n / C, C), matrix(x, DTYPE_F32, n / C, C),
                        m(identity, C, C), NULL);
}

/* gelu beside dx and in the place of pre_gelu: the bits of linear_forward's and, for dx, of the call without. */
static void test_backward_input_and_gelu(const char *name, const Linear *l, Buffer dx_alone) {
    const int64_t n = l->N * l->IC, N = l->N, OC = l->OC, IC = l->IC;
    const size_t bytes = (size_t)n * sizeof(float);
    Buffer want = poisoned(n), dx = poisoned(n), gelu = poisoned(n), inplace = poisoned(n);
    gelu_of(want.f, l->x.f, n);
    ops->linear_backward_input(m(dx, N, IC), NULL, m(gelu, N, IC), m(l->dout, N, OC), m(l->w, OC, IC),
                               m(l->x, N, IC), NULL);
    CHECK(!memcmp(dx.f, dx_alone.f, bytes), "%s: with gelu, dx has other bits", name);
    CHECK(!memcmp(gelu.f, want.f, bytes), "%s: gelu is not linear_forward's", name);
    memcpy(inplace.f, l->x.f, bytes);
    ops->linear_backward_input(m(dx, N, IC), NULL, m(inplace, N, IC), m(l->dout, N, OC), m(l->w, OC, IC),
                               m(inplace, N, IC), NULL);
    CHECK(!memcmp(dx.f, dx_alone.f, bytes), "%s: with gelu in the place of pre_gelu, dx has other bits",
          name);
    CHECK(!memcmp(inplace.f, want.f, bytes), "%s: gelu in the place of pre_gelu has other bits", name);
}

static void test_linear(int64_t N, int OC, int IC) {
    char name[64];
    snprintf(name, sizeof name, "linear %d x %d x %d", (int)N, OC, IC);
    double scale = 1 / sqrt(IC);
    Linear l = {N,
                OC,
                IC,
                filled(N * IC, 2, 0),
                filled((int64_t)OC * IC, scale, 0),
                filled(OC, 1, 0),
                filled(N * OC, 1, 0),
                poisoned(N * OC),
                false,
                false,
                false};
    Buffer pre = poisoned(N * OC), dx = poisoned(N * IC), dx_gelu = poisoned(N * IC), scratch = poisoned(1);
    Buffer dw = filled(OC * (int64_t)IC, 1, 0), dbias = filled(OC, 1, 0);
    float *start = malloc(sizeof(float) * (size_t)(dw.n + dbias.n));
    memcpy(start, dw.f, sizeof(float) * (size_t)dw.n);
    memcpy(start + dw.n, dbias.f, sizeof(float) * (size_t)dbias.n);

    const Matrix x = m(l.x, N, IC), y = m(l.y, N, OC), w = m(l.w, OC, IC), dout = m(l.dout, N, OC);
    ops->linear_forward(y, no_matrix(), x, w, NULL);
    if (pass == 0) linear_double(&l);
    close_to(name, l.y, l.y.d);
    l.has_bias = true;
    ops->linear_forward(y, m(pre, N, OC), x, w, l.bias.f);
    if (pass == 0) linear_double(&l);
    close_to(name, pre, l.y.d);
    l.gelu_out = true;
    if (pass == 0) linear_double(&l);
    close_to(name, l.y, l.y.d);

    l.gelu_out = false;
    Buffer sums = filled(IC, 0, 1);
    ops->linear_backward_input(m(dx, N, IC), NULL, no_matrix(), dout, w, no_matrix(), scratch.f);
    ops->linear_backward_input(m(dx_gelu, N, IC), sums.f, no_matrix(), dout, w, x, scratch.f);
    has_column_sums(name, sums, dx_gelu);
    test_backward_input_and_gelu(name, &l, dx_gelu);
    ops->linear_backward_weight(m(dw, OC, IC), dbias.f, dout, x, ACCUMULATE, scratch.f);
    is_gradient(name, linear_double, &l, l.x, dx, NULL);
    is_gradient(name, linear_double, &l, l.w, dw, start);
    is_gradient(name, linear_double, &l, l.bias, dbias, start + dw.n);
    l.gelu_in = true;
    is_gradient(name, linear_double, &l, l.x, dx_gelu, NULL);
    ops->linear_backward_weight(m(dw, OC, IC), NULL, dout, x, ACCUMULATE, scratch.f);
    same_bits(name, dw);
    Buffer first = poisoned((int64_t)OC * IC);
    ops->linear_backward_weight(m(first, OC, IC), NULL, dout, x, OVERWRITE, scratch.f);
    l.gelu_in = false;
    is_gradient(name, linear_double, &l, l.w, first, NULL);
    free(start);
    end_case(name);
}

static void test_gelu(void) {
    enum { N = 4000 };
    Buffer x = poisoned(N), y = poisoned(N);
    for (int i = 0; i < N; i++) x.f[i] = (i - 2000) * 0.0055f;
    x.f[0] = 1e4f, x.f[1] = -1e4f;
    gelu_of(y.f, x.f, N);
    same_bits("gelu", y);
    double worst =
        0; /* relative, so that the far negative tail counts; the truth in the form that does not cancel */
    for (int i = 2; i < N; i++) {
        double truth = x.f[i] / (1 + exp(-2 * 0.79788456080286536 * (x.f[i] + 0.044715 * pow(x.f[i], 3))));
        double error = fabs(y.f[i] - truth) / (fabs(truth) + 1e-30);
        worst = worse(worst, error);
    }
    CHECK(worst <= 1e-5, "gelu: relative error %g", worst);
    CHECK(y.f[0] == 1e4f && y.f[1] == 0, "gelu of 1e4 and -1e4: %g %g", y.f[0], y.f[1]);
    x.f[8 + 3] = NAN;
    gelu_of(y.f, x.f, N);
    CHECK(isnan(y.f[8 + 3]), "gelu of NaN: %g", y.f[8 + 3]);
    end_case("gelu");
}

/* q's bias gets dq's column sums on top of what it had, k's keeps what it had, v's are the column sums of dproj W;
 * dk and dv, here NaN, are not read. */
static void test_qkv_bias(int64_t N, int C) {
    Buffer dbias = filled(3 * (int64_t)C, 1, 0), dqkv = filled(N * 3 * C, 1, 0), dproj = filled(N * C, 1, 0);
    Buffer weight = filled((int64_t)C * C, 1 / sqrt(C), 0), dproj_bias = poisoned(C), scratch = poisoned(1);
    for (int c = 0; c < C; c++) {
        double sum = 0;
        for (int64_t n = 0; n < N; n++) sum += dproj.d[n * C + c];
        dproj_bias.f[c] = (float)sum;
        dbias.d[2 * C + c] = 0;
    }
    for (int64_t n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            float *dq = dqkv.f + n * 3 * C + c;
            dbias.d[c] += dq[0];
            dq[C] = dq[2 * C] = NAN;
            for (int i = 0; i < C; i++) dbias.d[2 * C + i] += dproj.d[n * C + c] * weight.d[c * C + i];
        }
    ops->qkv_bias_backward(dbias.f, dqkv.f, dproj_bias.f, weight.f, scratch.f, N, C);
    close_to("qkv_bias_backward", dbias, dbias.d);
    int changed = 0;
    for (int c = C; c < 2 * C; c++) changed += !((double)dbias.f[c] == dbias.d[c]);
    CHECK(changed == 0, "qkv_bias_backward: %d of %d elements of k's are not what they were", changed, C);
    end_case("qkv_bias_backward");
}

/* gelu' alone: the identity as weight and ones as dout. */
static void test_gelu_derivative(void) {
    enum { N = 500, C = 8 };
    Buffer x = poisoned(N * C), dx = poisoned(N * C), identity = filled(C * C, 0, 0),
           ones = filled(N * C, 0, 1);
    for (int i = 0; i < C; i++) identity.f[i * C + i] = 1;
    for (int i = 0; i < N * C; i++) x.f[i] = (i - N * C / 2) * 0.005f;
    to_double(x);
    ops->linear_backward_input(m(dx, N, C), NULL, no_matrix(), m(ones, N, C), m(identity, C, C), m(x, N, C),
                               NULL);
    double worst = 0;
    for (int i = 0; i < N * C; i++) {
        double h = 1e-5,
               error = fabs(dx.f[i] - (gelu_double(x.d[i] + h) - gelu_double(x.d[i] - h)) / (2 * h));
        worst = worse(worst, error);
    }
    CHECK(worst <= 1e-6, "gelu': error %g", worst);
    end_case("gelu derivative");
}

/* The exponential behind softmax and GELU: its stated error over the whole range, and its ends. */
static void test_exp(void) {
    double worst = 0;
    for (double x = -87.3; x < 88.7; x += 0.0007) {
        double truth = exp((float)x), error = fabs(vec_exp(vec_set((float)x))[VEC - 1] - truth) / truth;
        worst = worse(worst, error);
    }
    CHECK(worst <= 1.5e-7, "exp: relative error %g", worst);
    static const float ends[][2] = {
        {0,         1       },
        {89,        INFINITY},
        {INFINITY,  INFINITY},
        {-104,      0       },
        {-INFINITY, 0       }
    };
    for (int i = 0; i < 5; i++) {
        float got = vec_exp(vec_set(ends[i][0]))[0];
        CHECK(got == ends[i][1], "exp(%g) is %g", ends[i][0], got);
    }
    CHECK(isnan(vec_exp(vec_set(NAN))[0]), "exp(NaN) is a number");
}

/* ---- layernorm ---- */

typedef struct LayerNorm {
    int64_t N, C;
    Buffer x, weight, bias, residual, dout, y;
    double *mean, *rstd;
} LayerNorm;

static double layernorm_double(const void *context) {
    const LayerNorm *l = context;
    for (int64_t n = 0; n < l->N; n++) {
        const double *x = l->x.d + n * l->C;
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < l->C; c++) mean += x[c] / (double)l->C;
        for (int64_t c = 0; c < l->C; c++) variance += (x[c] - mean) * (x[c] - mean) / (double)l->C;
        l->mean[n] = mean, l->rstd[n] = 1 / sqrt(variance + 1e-5);
        for (int64_t c = 0; c < l->C; c++)
            l->y.d[n * l->C + c] = (x[c] - mean) * l->rstd[n] * l->weight.d[c] + l->bias.d[c];
    }
    return weighted_sum(l->dout, l->y.d);
}

/* The objective with the residual stream beside the norm: its gradient is dresidual. */
static double residual_and_layernorm_double(const void *context) {
    const LayerNorm *l = context;
    return layernorm_double(l) + weighted_sum(l->residual, l->x.d);
}

static void test_layernorm(int64_t N, int C) {
    char name[64];
    snprintf(name, sizeof name, "layernorm %d x %d", (int)N, C);
    LayerNorm l = {N,
                   C,
                   filled(N * C, 2, 3),
                   filled(C, 0.5, 1),
                   filled(C, 1, 0),
                   filled(N * C, 1, 0),
                   filled(N * C, 1, 0),
                   poisoned(N * C),
                   NULL,
                   NULL};
    Buffer mean = poisoned(N), rstd = poisoned(N), dx = poisoned(N * C), a = filled(N * C, 1, 0),
           b = poisoned(N * C);
    Buffer dweight = filled(C, 1, 0), dbias = filled(C, 1, 0), start_w = poisoned(C), start_b = poisoned(C);
    OpShape shape = {.C = C};
    Buffer scratch = poisoned((int64_t)ops->scratch_bytes(&shape) / 4);
    l.mean = mean.d, l.rstd = rstd.d;
    memcpy(start_w.f, dweight.f, sizeof(float) * (size_t)C);
    memcpy(start_b.f, dbias.f, sizeof(float) * (size_t)C);

    ops->layernorm_forward(l.y.f, mean.f, rstd.f, l.x.f, l.weight.f, l.bias.f, N, C);
    if (pass == 0) layernorm_double(&l);
    close_to(name, l.y, l.y.d);
    close_to(name, mean, mean.d);
    close_to(name, rstd, rstd.d);
    ops->layernorm_backward(dx.f, dweight.f, dbias.f, NULL, NULL, l.dout.f, l.x.f, l.weight.f, mean.f, rstd.f,
                            scratch.f, N, C);
    is_gradient(name, layernorm_double, &l, l.x, dx, NULL);
    is_gradient(name, layernorm_double, &l, l.weight, dweight, start_w.f);
    is_gradient(name, layernorm_double, &l, l.bias, dbias, start_b.f);
    memcpy(dx.f, l.residual.f, sizeof(float) * (size_t)dx.n);
    Buffer sums = filled(C, 0, 1);
    ops->layernorm_backward(dx.f, dweight.f, dbias.f, sums.f, dx.f, l.dout.f, l.x.f, l.weight.f, mean.f,
                            rstd.f, scratch.f, N, C);
    has_column_sums(name, sums, dx);
    is_gradient(name, residual_and_layernorm_double, &l, l.x, dx, NULL);

    /* a + b = x to rounding; in place and beside: the sum is exact, the rest equal to the norm of the sum */
    Buffer sum = poisoned(N * C), y = poisoned(N * C);
    for (int64_t i = 0; i < b.n; i++) b.f[i] = l.x.f[i] - a.f[i];
    ops->residual_layernorm_forward(sum.f, y.f, mean.f, rstd.f, a.f, b.f, l.weight.f, l.bias.f, N, C);
    bool exact = true;
    for (int64_t i = 0; i < sum.n; i++) exact = exact && sum.f[i] == a.f[i] + b.f[i];
    CHECK(exact, "%s: residual is not a + b", name);
    close_to(name, y, l.y.d);
    Buffer in_place = N % 2 ? a : b;
    ops->residual_layernorm_forward(in_place.f, l.y.f, mean.f, rstd.f, a.f, b.f, l.weight.f, l.bias.f, N, C);
    CHECK(memcmp(in_place.f, sum.f, sizeof(float) * (size_t)sum.n) == 0, "%s: residual in place", name);
    CHECK(memcmp(l.y.f, y.f, sizeof(float) * (size_t)y.n) == 0, "%s: norm of a residual in place", name);
    end_case(name);
}

/* ---- embedding ---- */

static void test_embedding(int B, int T, int C, int V) {
    char name[64];
    snprintf(name, sizeof name, "embedding %d x %d x %d", B, T, C);
    int64_t N = (int64_t)B * T;
    Buffer wte = filled((int64_t)V * C, 1, 0), wpe = filled((int64_t)T * C, 1, 0), out = poisoned(N * C);
    Buffer dout = filled(N * C, 1, 0), scratch = poisoned(1);
    int32_t *tokens = malloc(sizeof *tokens * (size_t)N);
    for (int64_t n = 0; n < N; n++) tokens[n] = (int32_t)((uniform(&input_stream) + 1) / 2 * V);
    ops->embedding_forward(out.f, tokens, NULL, wte.f, wpe.f, B, T, C);
    bool exact = true;
    for (int64_t i = 0; i < out.n; i++) {
        int64_t n = i / C, c = i % C;
        exact = exact && out.f[i] == wte.f[tokens[n] * C + c] + wpe.f[n % T * C + c];
        wte.d[tokens[n] * C + c] += dout.f[i];
        wpe.d[n % T * C + c] += dout.f[i];
    }
    CHECK(exact, "%s: not wte + wpe", name);
    ops->embedding_backward(wte.f, wpe.f, dout.f, tokens, scratch.f, B, T, C, V);
    close_to(name, wte, wte.d);
    close_to(name, wpe, wpe.d);
    free(tokens);
    end_case(name);
}

/* ---- loss ---- */

static void test_cross_entropy(int64_t N, int V, int Vp, double spread) {
    char name[64];
    snprintf(name, sizeof name, "cross entropy %d x %d spread %g", (int)N, V, spread);
    Buffer z = filled(N * Vp, spread, 0), losses = poisoned(N), forward = poisoned(N), want = poisoned(N);
    int32_t *targets = malloc(sizeof *targets * (size_t)N);
    const double dloss = 0.25;
    for (int64_t n = 0; n < N; n++) {
        targets[n] = (int32_t)((uniform(&input_stream) + 1) / 2 * V);
        double max = -INFINITY, sum = 0, *row = z.d + n * Vp, target = row[targets[n]];
        for (int c = 0; c < V; c++) max = row[c] > max ? row[c] : max;
        for (int c = 0; c < V; c++) sum += exp(row[c] - max);
        want.d[n] = max + log(sum) - target;
        for (int c = 0; c < Vp; c++)
            row[c] = c < V ? dloss * (exp(row[c] - max) / sum - (c == targets[n])) : 0;
        for (int c = V; c < Vp; c++) z.f[n * Vp + c] = c % 2 ? 1e30f : NAN; /* padding never counts */
    }
    ops->cross_entropy_forward(forward.f, z.f, targets, N, V, Vp);
    ops->cross_entropy_backward_inplace(losses.f, z.f, targets, (float)dloss, N, V, Vp);
    close_to(name, forward, want.d);
    close_to(name, losses, want.d);
    close_to(name, z, z.d);
    free(targets);
    end_case(name);
}

static void test_loss_sum(void) {
    enum { N = 1027 };
    Buffer losses = filled(N, 1, 3);
    double sum = 0;
    for (int i = 0; i < N; i++) sum += losses.f[i];
    StepSums sums = {.stop = 3};
    StepStats stats = {.n_skipped = 4};
    ops->loss_sum(&sums.loss, losses.f, 0.5f, N);
    ops->loss_sum(&sums.loss, losses.f, 0.25f, N);
    ops->finish_stats(&stats, &sums);
    CHECK(fabs(stats.loss - 0.75 * sum) <= 1e-7 * sum && !stats.bad, "loss_sum %g, truth %g", stats.loss,
          0.75 * sum);
    CHECK(stats.stop == 1 && stats.n_skipped == 4, "stop %d, %lld steps skipped", stats.stop,
          (long long)stats.n_skipped);
    losses.f[N - 1] = NAN;
    ops->loss_sum(&sums.loss, losses.f, 0.5f, N);
    ops->finish_stats(&stats, &sums);
    CHECK(stats.bad == 1 && isnan(stats.loss), "loss_sum: a NaN did not set bad");
    int32_t target = 0;
    float logits[8] = {1, 2, NAN, 3, 4, 5, 6, 7}, loss = 0;
    ops->cross_entropy_forward(&loss, logits, &target, 1, 8, 8);
    CHECK(isnan(loss), "cross entropy: a NaN logit gave loss %g", loss);
    end_case("loss_sum");
}

/* ---- update ---- */

/* In a buffer of its own, in the place of a, in the place of b. */
static void test_sum_gradients(int64_t n) {
    Buffer a = filled(n, 1, 0), b = filled(n, 100, 0), out = poisoned(n);
    int64_t wrong = 0;
    ops->sum_gradients(out.f, a.f, b.f, n);
    for (int64_t i = 0; i < n; i++) wrong += out.f[i] != a.f[i] + b.f[i];
    CHECK(wrong == 0, "sum_gradients: %d of %d sums are wrong", (int)wrong, (int)n);
    ops->sum_gradients(a.f, a.f, b.f, n);
    CHECK(!memcmp(a.f, out.f, (size_t)n * sizeof(float)), "sum_gradients in the place of a: other bits");
    for (int64_t i = 0; i < n; i++) a.f[i] = (float)a.d[i];
    ops->sum_gradients(b.f, a.f, b.f, n);
    CHECK(!memcmp(b.f, out.f, (size_t)n * sizeof(float)), "sum_gradients in the place of b: other bits");
    end_case("sum_gradients");
}

static void test_grad_norm(int64_t n, double scale) {
    Buffer grads = filled(n, scale, 0), norm = poisoned(1);
    StepSums sums = {0};
    StepStats stats = {.bad = 1};
    if (n > 1) ops->sum_squares(&sums.squares, grads.f, n / 2);
    ops->sum_squares(&sums.squares, grads.f + n / 2, n - n / 2);
    ops->finish_stats(&stats, &sums);
    norm.f[0] = stats.grad_norm;
    norm.d[0] = 0;
    for (int64_t i = 0; i < n; i++) norm.d[0] += grads.d[i] * grads.d[i];
    norm.d[0] = sqrt(norm.d[0]);
    close_to("grad_norm", norm, norm.d);
    CHECK(!stats.bad && stats.n_skipped == 0, "grad_norm: bad after finite gradients");
    grads.f[n / 2] = INFINITY;
    ops->sum_squares(&sums.squares, grads.f, n);
    ops->finish_stats(&stats, &sums);
    CHECK(stats.bad == 1 && stats.n_skipped == 1, "grad_norm: an inf did not set bad");
    end_case("grad_norm");
}

static void add_value(ExactSum *sum, double x) {
    const ExactTerm term = exact_term(x);
    for (int k = 0; k < 3; k++) sum->bins[term.at + k] += term.parts[k];
}

/* Exact sums: every value alone, one that cancels large ones, any order, and what does not fit. */
static void test_exact_sum(void) {
    const double values[] = {
        0,       1,        -1.0 / 3,       1e-30,      -7e20, 0x1p-298, 0x1.fffffffffffffp-200,
        0x1p265, -0x1p265, 12345678901.25, 0x1.8p-149, 3e-300};
    enum { N = sizeof values / sizeof *values };
    ExactSum forth = {0}, back = {0};
    for (int i = 0; i < N; i++) {
        ExactSum one = {0};
        add_value(&one, values[i]);
        add_value(&forth, values[i]);
        add_value(&back, values[N - 1 - i]);
        const double want = fabs(values[i]) < 1e-100 ? 0 : values[i]; /* under the range */
        CHECK(exact_value(&one) == (i == 11 ? want : values[i]), "%a is taken for %a", values[i],
              exact_value(&one));
    }
    CHECK(memcmp(&forth, &back, sizeof back) == 0, "the order shows");
    ExactSum rest = {0};
    add_value(&rest, 0x1p265);
    add_value(&rest, 0x1p-298);
    add_value(&rest, -0x1p265);
    CHECK(exact_value(&rest) == 0x1p-298, "of large values that cancel %a is left", exact_value(&rest));
    const double bad[] = {NAN, INFINITY, -INFINITY, 0x1p276, -0x1p300, 1e300};
    for (int i = 0; i < 6; i++) {
        ExactSum sum = forth;
        add_value(&sum, bad[i]);
        CHECK(isnan(exact_value(&sum)), "%g leaves %g", bad[i], exact_value(&sum));
    }
}

/* Groups: 0 decays, 1 does not and is slower. Every third tile is another optimizer's: it is not in the list, and has no
 * moments; without a list there is none. */
static void test_adamw(int64_t n_all, bool same_buffer, float clip, bool listed) {
    const int64_t n = n_all * PARAMETER_TILE;
    Buffer w = filled(n, 1, 0), m = filled(n, 0.1, 0), v = filled(n, 0.01, 0.02), g = filled(n, 3, 0);
    Buffer copy = poisoned(n);
    StepStats stats = {.grad_norm = 4, .n_skipped = 2};
    int32_t *tile_groups = malloc((size_t)n_all * sizeof *tile_groups), tiles[64];
    int64_t n_tiles = 0;
    for (int64_t i = 0; i < n_all; i++) {
        tile_groups[i] = (int32_t)(i % 3 % 2);
        if (!listed || i % 3 != 2) tiles[n_tiles++] = (int32_t)i;
    }
    if (!same_buffer) memcpy(copy.f, w.f, sizeof(float) * (size_t)n);
    AdamWArgs args = {.master = w.f, .m = m.f, .v = v.f, .grads = g.f, .stats = &stats};
    args.weights = same_buffer ? w.f : copy.f;
    args.tile_groups = tile_groups;
    args.n_tiles = n_tiles;
    args.tiles = listed ? tiles : NULL;
    args.update =
        (UpdateArgs){.step = 7, .lr = NAN, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = clip};
    args.groups[0] = (AdamWGroup){1e-2f, 0.1f};
    args.groups[1] = (AdamWGroup){5e-3f, 0};
    for (int64_t i = 0; i < n_tiles * PARAMETER_TILE; i++) {
        const int64_t tile = tiles[i / PARAMETER_TILE], at = tile * PARAMETER_TILE + i % PARAMETER_TILE;
        const int group = tile_groups[tile];
        double grad = g.d[at] * (clip > 0 && clip < 4 ? clip / 4 : 1);
        m.d[i] = 0.9 * m.d[i] + 0.1 * grad;
        v.d[i] = 0.95 * v.d[i] + 0.05 * grad * grad;
        double mhat = m.d[i] / (1 - pow(0.9, 5)), vhat = v.d[i] / (1 - pow(0.95, 5));
        w.d[at] -= (group ? 5e-3 : 1e-2) * (mhat / (sqrt(vhat) + 1e-8) + (group ? 0 : 0.1) * w.d[at]);
    }
    ops->adamw(&args);
    close_to("adamw m", m, m.d);
    close_to("adamw v", v, v.d);
    close_to("adamw w", w, w.d);
    if (!same_buffer)
        CHECK(memcmp(copy.f, w.f, sizeof(float) * (size_t)n) == 0, "adamw: weights are not the master");
    CHECK(stats.n_skipped == 2, "adamw: counted a skip");

    float *before = malloc(sizeof(float) * (size_t)n);
    memcpy(before, w.f, sizeof(float) * (size_t)n);
    stats.bad = 1;
    ops->adamw(&args);
    CHECK(memcmp(before, w.f, sizeof(float) * (size_t)n) == 0, "adamw: a bad step changed the weights");
    CHECK(stats.n_skipped == 2, "adamw: counted a skip");
    free(before);
    free(tile_groups);
    end_case("adamw");
}

/* ---- NaN, memory, device ---- */

static void test_nan_in_linear(void) {
    enum { N = 30, OC = 40, IC = 24 };
    Buffer x = filled(N * IC, 1, 0), w = filled(OC * IC, 1, 0), y = poisoned(N * OC);
    x.f[7 * IC + 3] = NAN;
    x.f[9 * IC + 3] = INFINITY;
    ops->linear_forward(m(y, N, OC), no_matrix(), m(x, N, IC), m(w, OC, IC), NULL);
    int wrong = 0;
    for (int i = 0; i < N * OC; i++) {
        int row = i / OC;
        wrong += row == 7 ? !isnan(y.f[i]) : row == 9 ? !isinf(y.f[i]) : !isfinite(y.f[i]);
    }
    CHECK(wrong == 0, "linear: %d elements do not follow the NaN and the inf of their row", wrong);
    end_case("nan in linear");
}

static void test_device(void) {
    size_t free_bytes = 0, total_bytes = 0;
    ops->device->memory_info(&free_bytes, &total_bytes);
    CHECK(free_bytes > 0 && free_bytes <= total_bytes, "memory %zu of %zu", free_bytes, total_bytes);
    const char *how = "";
    CHECK(ops->device->peak_flops(ops->dtype, &how) > 1e9 && strcmp(how, "measured") == 0, "peak is %s", how);
    CHECK(strlen(ops->device->name()) > 5, "device name '%s'", ops->device->name());
    CHECK(ops->device->alloc(SIZE_MAX / 2) == NULL, "half of the address space was allocated");
    size_t bytes = 1000003;
    unsigned char *p = ops->device->alloc(bytes), *q = ops->device->alloc(bytes);
    if (!CHECK(p && q && (uintptr_t)p % 256 == 0, "alloc is 256-byte aligned")) return;
    memset(p, 1, bytes);
    for (size_t i = 0; i < bytes; i++) q[i] = (unsigned char)(i * 7);
    ops->device->copy(p, q, bytes - 1);
    CHECK(memcmp(p, q, bytes - 1) == 0 && p[bytes - 1] == 1, "copy moves exactly its bytes");
    ops->device->zero(p, bytes - 2);
    CHECK(p[0] == 0 && p[bytes - 3] == 0 && p[bytes - 2] == q[bytes - 2], "zero clears exactly its bytes");
    ops->device->free(p);
    ops->device->free(q);
    ops->device->free(NULL);
}

/* in (a,b,width) -> (b,a,width); twice gives in again. */
static void test_transpose_rows(int64_t a, int64_t b, int64_t width) {
    const int64_t n = a * b * width;
    Buffer in = filled(n, 1, 0), out = poisoned(n), back = poisoned(n);
    int64_t wrong = 0;
    ops->transpose_rows(out.f, in.f, a, b, width);
    ops->transpose_rows(back.f, out.f, b, a, width);
    for (int64_t i = 0; i < n; i++)
        wrong += out.f[(i / width % b * a + i / width / b) * width + i % width] != in.f[i];
    CHECK(wrong == 0 && !memcmp(back.f, in.f, sizeof(float) * (size_t)n), "%lld x %lld x %lld: %lld wrong",
          (long long)a, (long long)b, (long long)width, (long long)wrong);
    end_case("transpose_rows");
}

/* The value of 48 bytes was computed by another program from the words of hash.h. Over several tasks every bit counts. */
static void test_hash_bytes(void) {
    enum { TASK = 1 << 20, N = TASK + (1 << 18) }; /* bytes */
    const int64_t bits[] = {0, 63, 64, 8 * TASK - 1, 8 * TASK, 8 * N - 1};
    unsigned char small[48], *large = calloc(1, N);
    uint64_t hash = 7, zero = 0, flipped;
    for (int i = 0; i < 48; i++) small[i] = (unsigned char)i;
    ops->hash_bytes(&hash, small, sizeof small);
    CHECK(hash == 0x13293dd12f13260d + 7, "hash of 48 bytes: %llx", (unsigned long long)hash);
    if (!large) abort();
    ops->hash_bytes(&zero, large, N);
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        large[bits[i] / 8] ^= (unsigned char)(1 << bits[i] % 8);
        flipped = 0;
        ops->hash_bytes(&flipped, large, N);
        large[bits[i] / 8] ^= (unsigned char)(1 << bits[i] % 8);
        CHECK(flipped != zero, "bit %lld does not show", (long long)bits[i]);
    }
    memcpy(large + TASK, small, 48);
    hash = flipped = 0;
    ops->hash_bytes(&hash, large, N);
    memset(large + TASK, 0, 48);
    memcpy(large, small, 48);
    ops->hash_bytes(&flipped, large, N);
    CHECK(hash != flipped, "the same pieces at other places have the same hash");
    free(large);
}

static void run_cases(void) {
    static const int linear[][3] = {
        {1,   8,    8   },
        {7,   24,   40  },
        {65,  40,   24  },
        {127, 128,  264 },
        {300, 72,   520 },
        {33,  2056, 16  },
        {5,   1048, 1032},
        {768, 128,  128 }
    };
    static const int rows[] = {1, 7, 65, 127}, channels[] = {8, 24, 40, 128};
    test_hash_bytes();
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++)
        test_linear(linear[i][0], linear[i][1], linear[i][2]);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            test_layernorm(rows[i], channels[j]);
            test_embedding(3, rows[i], channels[j], 11);
        }
    test_cross_entropy(1, 1, 8, 1);
    test_cross_entropy(9, 17, 24, 5);
    test_cross_entropy(70, 256, 256, 3);
    test_cross_entropy(5, 50257, 50304, 3);
    test_cross_entropy(33, 100, 128, 1e4);
    test_loss_sum();
    test_exact_sum();
    test_sum_gradients(1);
    test_sum_gradients(100003);
    test_grad_norm(1, 1);
    test_grad_norm(100003, 1e-3);
    test_grad_norm(999, 1e25);
    test_adamw(50, false, 1, true);
    test_adamw(3, true, 0, true);
    test_adamw(2, true, 100, false);
    test_gelu();
    test_gelu_derivative();
    test_qkv_bias(1, 8);
    test_qkv_bias(65, 40);
    test_qkv_bias(300, 128);
    test_transpose_rows(1, 1, 8);
    test_transpose_rows(3, 35, 40);
    test_transpose_rows(2, 3, 9000);
    test_nan_in_linear();
    CHECK(!ops_cpu.kernel_ran(), "the CPU, which has one kernel for each op, names one");
}

int main(void) {
    test_device();
    test_exp();
    return check_cpu_cases("cpu_ops", run_cases);
}
