/* Attention on the CPU in its three forms (tiled, textbook, one row) against plain loops in double. */
#include "cpu_case.h"

typedef struct Attention {
    int B, T, NH, HD;
    Buffer qkv, dout, out, lse;
} Attention;

static double attention_double(const void *context) {
    const Attention *a = context;
    int64_t T = a->T, NH = a->NH, HD = a->HD, row = 3 * NH * HD;
    double *p = malloc(sizeof(double) * (size_t)T);
    for (int64_t i = 0; i < a->B * NH * T; i++) {
        int64_t t = i % T, head = i / T % NH, batch = i / T / NH;
        const double *q = a->qkv.d + (batch * T + t) * row + head * HD;
        const double *k = a->qkv.d + batch * T * row + (NH + head) * HD, *v = k + NH * HD;
        double max = -INFINITY, sum = 0, *out = a->out.d + ((batch * T + t) * NH + head) * HD;
        for (int64_t j = 0; j <= t; j++) {
            p[j] = 0;
            for (int64_t d = 0; d < HD; d++) p[j] += q[d] * k[j * row + d];
            p[j] /= sqrt((double)HD);
            max = p[j] > max ? p[j] : max;
        }
        for (int64_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - max);
        for (int64_t d = 0; d < HD; d++) out[d] = 0;
        for (int64_t j = 0; j <= t; j++)
            for (int64_t d = 0; d < HD; d++) out[d] += p[j] / sum * v[j * row + d];
        a->lse.d[i] = max + log(sum);
    }
    free(p);
    return weighted_sum(a->dout, a->out.d);
}

/* spread: of the inputs; large ones make one key take nearly all the weight. */
static void test_attention(int B, int T, int NH, int HD, double spread) {
    char name[64];
    snprintf(name, sizeof name, "attention B %d T %d NH %d HD %d spread %g", B, T, NH, HD, spread);
    int64_t n = (int64_t)B * T * NH * HD;
    Attention a = {
        B, T, NH, HD, filled(3 * n, spread, 0), filled(n, 1, 0), poisoned(n), poisoned((int64_t)B * NH * T)};
    Buffer dqkv = poisoned(3 * n), decoded = poisoned(NH * HD), scratch = poisoned(1);
    Buffer probs = poisoned((int64_t)B * NH * T * T), dprobs = poisoned(probs.n);
    ops->attention_forward(a.out.f, a.lse.f, a.qkv.f, B, T, NH, HD);
    if (pass == 0) attention_double(&a);
    close_to(name, a.out, a.out.d);
    close_to(name, a.lse, a.lse.d);
    ops->attention_backward(dqkv.f, a.dout.f, a.out.f, a.qkv.f, a.lse.f, scratch.f, B, T, NH, HD);
    is_gradient(name, attention_double, &a, a.qkv, dqkv, NULL);
    for (int64_t i = 0; i < dqkv.n; i++) dqkv.f[i] = NAN;

    ops->attention_standard_forward(a.out.f, probs.f, a.qkv.f, B, T, NH, HD);
    close_to(name, a.out, a.out.d);
    ops->attention_standard_backward(dqkv.f, dprobs.f, a.dout.f, probs.f, a.qkv.f, B, T, NH, HD);
    is_gradient(name, attention_double, &a, a.qkv, dqkv, NULL);
    for (int t = T / 2; t < T; t += T / 2 + 1) { /* of the first sequence */
        ops->attention_decode(decoded.f, a.qkv.f, t, NH, HD);
        close_to(name, decoded, a.out.d + (int64_t)t * NH * HD);
    }
    end_case(name);
}

/* Rows do not see what comes behind them, to the bit; and a NaN in a query reaches its own row alone. */
static void test_attention_causal(void) {
    enum { T = 150, NH = 2, HD = 24, CUT = 101, C = NH * HD };
    Buffer qkv = filled(T * 3 * C, 1, 0), out = poisoned(T * C), changed = poisoned(T * C),
           lse = poisoned(NH * T);
    ops->attention_forward(out.f, lse.f, qkv.f, 1, T, NH, HD);
    for (int64_t i = CUT * 3 * C; i < qkv.n; i++) qkv.f[i] = (float)uniform(&input_stream);
    qkv.f[50 * 3 * C] = NAN; /* head 0, query 50 */
    ops->attention_forward(changed.f, lse.f, qkv.f, 1, T, NH, HD);
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
    ops->attention_forward(out.f, lse.f, qkv.f, 1, T, 1, HD);
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
            if (!(error <= worst)) worst = error;
        }
        CHECK(worst <= TOLERANCE, "attention long: row %d error %g", (int)t, worst);
        CHECK(fabs(lse.f[t] - log(sum)) <= TOLERANCE * 10, "attention long: lse %g, truth %g", lse.f[t],
              log(sum));
    }
    end_case("attention long");
}

static void run_cases(void) {
    static const int context[] = {1, 7, 64, 65, 127}, head_size[] = {8, 24, 32, 64, 128};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) test_attention(1 + j % 2, context[i], 1 + i % 3, head_size[j], 2);
    test_attention(1, 200, 1, 256, 1);
    test_attention(1, 90, 2, 40, 6);
    test_attention_causal();
    test_attention_long();
}

int main(void) {
    return check_cpu_cases("cpu_attention", run_cases);
}
