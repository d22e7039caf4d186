/* The loss of every CUDA backend against the CPU oracle, case by case, and of logits that are not finite.
 * -v prints every error and limit. */
#include "dev/test/op_case.h"

/* To add a case: a row. */
static const struct {
    const Op *op;
    Sizes s;
} cases[] = {
    {&op_cross_entropy_backward_inplace, {.N = 1, .V = 1, .Vp = 128}                          },
    {&op_cross_entropy_backward_inplace, {.N = 65, .V = 211, .Vp = 256}                       },
    {&op_cross_entropy_backward_inplace, {.N = 127, .V = 50257, .Vp = 50304, .scale = 3}      },
    {&op_cross_entropy_backward_inplace, {.N = 130, .V = 256, .Vp = 256, .fill = FILL_EQUAL}  },
    {&op_cross_entropy_backward_inplace, {.N = 65, .V = 50257, .Vp = 50304, .fill = FILL_HUGE}},
    {&op_cross_entropy_backward_inplace, {.N = 33, .V = 60001, .Vp = 60032}                   }, /* past shared memory */
    {&op_cross_entropy_forward,          {.N = 1, .V = 1, .Vp = 128}                          },
    {&op_cross_entropy_forward,          {.N = 65, .V = 211, .Vp = 256}                       },
    {&op_cross_entropy_forward,          {.N = 127, .V = 50257, .Vp = 50304, .scale = 3}      },
    {&op_cross_entropy_forward,          {.N = 65, .V = 50257, .Vp = 50304, .fill = FILL_HUGE}},
};

/* ---- losses of logits that are not finite ---- */

/* NaN and +inf reach the loss of their row, which sets the flag; -inf is a probability of 0, and other rows lose
 * nothing by any of them. */
static void test_bad_logits(const Ops *ops, int vocabulary, int padded) {
    enum { FINE, HAS_NAN, HAS_INF, ONLY_TARGET, FINE_AGAIN, N };
    const int32_t targets[N] = {vocabulary / 3, vocabulary / 3, vocabulary / 3, vocabulary / 3,
                                vocabulary / 3};
    const int64_t n = (int64_t)N * padded;
    if (!op_wanted("cross_entropy_bad_logits", ops->name)) return;
    float *z = op_malloc((size_t)n * sizeof *z), losses[N];
    for (int64_t i = 0; i < n; i++) z[i] = op_normal(7, i % padded);
    z[HAS_NAN * padded + vocabulary / 2] = NAN;
    z[HAS_INF * padded + vocabulary - 1] = INFINITY;
    for (int i = 0; i < vocabulary; i++)
        if (i != targets[ONLY_TARGET]) z[ONLY_TARGET * padded + i] = -INFINITY;
    Guarded logits, out, in;
    bool ok = guarded_alloc(&logits, ops, (size_t)n * dtype_bytes(ops->dtype), 16);
    ok = guarded_alloc(&out, ops, sizeof losses, 0) && ok;
    ok = guarded_alloc(&in, ops, sizeof targets, 0) && ok;
    if (!CHECK(ok, "%s: device memory", ops->name)) return;
    upload_floats(ops, logits.data, ops->dtype, z, n);
    ops->device->upload(in.data, targets, sizeof targets);
    ops->cross_entropy_backward_inplace((float *)(void *)out.data, logits.data, (int32_t *)(void *)in.data, 1,
                                        N, vocabulary, padded);
    ops->device->download(losses, out.data, sizeof losses);
    download_floats(ops, z, logits.data, ops->dtype, n);
    float largest = 0;
    for (int i = 0; i < vocabulary; i++) largest = fmaxf(largest, fabsf(z[ONLY_TARGET * padded + i]));
    CHECK(!isfinite(losses[HAS_NAN]) && !isfinite(losses[HAS_INF]), "%s, V %d: losses %g of NaN, %g of inf",
          ops->name, vocabulary, (double)losses[HAS_NAN], (double)losses[HAS_INF]);
    CHECK(fabsf(losses[ONLY_TARGET]) <= 1e-6f && largest <= 1e-6f,
          "%s, V %d: loss %g, gradient %g where only the target is possible", ops->name, vocabulary,
          (double)losses[ONLY_TARGET], (double)largest);
    CHECK(isfinite(losses[FINE]) && losses[FINE] == losses[FINE_AGAIN] &&
              memcmp(z, z + FINE_AGAIN * padded, (size_t)vocabulary * sizeof *z) == 0,
          "%s, V %d: other rows change a row: losses %g and %g", ops->name, vocabulary, (double)losses[FINE],
          (double)losses[FINE_AGAIN]);
    guarded_free(&logits);
    guarded_free(&out);
    guarded_free(&in);
    free(z);
}

/* More than racecheck gets through in some seconds. */
static bool too_large(const Sizes *d) {
    return d->N * d->Vp > 1 << 19;
}

static void test_backend(const Ops *ops) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!op_small || !too_large(&cases[i].s)) op_case(ops, cases[i].op, cases[i].s);
    test_bad_logits(ops, 211, 256);
    test_bad_logits(ops, 50257, 50304);
    /* two such rows do not fit in an SM's shared memory, in bf16 either */
    test_bad_logits(ops, 60001, 60032);
}

int main(int argc, char **argv) {
    return op_main("ops_loss", argc, argv, test_backend);
}
