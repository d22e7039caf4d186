/* Muon's orthogonalisation: what becomes of singular values that are known, for the matrices of every model size, in
 * every storage type. Values of the three ops, one by one: test_ops.c and test_cpu_muon.c.
 *
 * x = U S V^T of orthonormal U and V (cosines of the discrete cosine transform, rows with signs). Then U^T y V of the
 * result y is diag(p(s)) and an error E; the singular values of y are the diagonal, each at most ||E|| off (Weyl). */
#include "dev/test/op_test.h"
#include "llmc/cpu/matmul.h"

#define LEAST 0.7
#define MOST 1.25

/* out (n, columns): the first columns of an orthonormal matrix of n rows. */
static float *orthonormal(int n, int columns, uint64_t seed) {
    float *out = op_malloc((size_t)n * (size_t)columns * sizeof *out);
    const double pi = acos(-1.0);
    for (int i = 0; i < n; i++) {
        const double sign = op_mix(seed + (uint64_t)i) & 1 ? -1 : 1;
        for (int j = 0; j < columns; j++) {
            const int64_t angle = (int64_t)(2 * i + 1) * j % (4 * (int64_t)n);
            out[(int64_t)i * columns + j] =
                (float)(sign * sqrt((j ? 2.0 : 1.0) / n) * cos(pi * (double)angle / (2 * n)));
        }
    }
    return out;
}

/* c (M, N) = op(a) b; a is (K, M) where transposed. */
static void multiply(float *c, const float *a, bool is_transposed, const float *b, int M, int N, int K) {
    cpu_matmul(&(Matmul){.a = is_transposed ? transposed(view(a, K, M)) : view(a, M, K),
                         .b = view(b, K, N),
                         .c = view(c, M, N)});
}

/* The spectral norm of e (n, n), by power iteration on e^T e. */
static double spectral_norm(const float *e, int n) {
    double *v = op_malloc((size_t)n * sizeof *v), *w = op_malloc((size_t)n * sizeof *w), norm = 0;
    for (int i = 0; i < n; i++) v[i] = op_normal(9, i);
    for (int round = 0; round < 12; round++) {
        double length = 0, stretched = 0;
        for (int i = 0; i < n; i++) length += v[i] * v[i];
        for (int i = 0; i < n; i++) {
            w[i] = 0;
            for (int j = 0; j < n; j++) w[i] += e[(int64_t)i * n + j] * v[j];
            stretched += w[i] * w[i];
        }
        norm = sqrt(stretched / length);
        for (int j = 0; j < n; j++) v[j] = 0;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) v[j] += e[(int64_t)i * n + j] * w[i];
        for (int j = 0; j < n && stretched > 0; j++) v[j] /= stretched;
        if (stretched == 0) break;
    }
    free(v);
    free(w);
    return norm;
}

/* Singular values from the largest down to `least` times the norm of all, evenly in their logarithm. */
static void spectrum(double *s, int n, double least) {
    double low = least, norm = 0;
    for (int round = 0; round < 40; round++) { /* the norm depends on them */
        norm = 0;
        for (int i = 0; i < n; i++) s[i] = pow(low, n > 1 ? (double)i / (n - 1) : 0), norm += s[i] * s[i];
        low = least * sqrt(norm);
    }
    for (int i = 0; i < n; i++) s[i] /= sqrt(norm);
}

typedef struct Shape {
    int rows, cols;
    bool transposed;
    double least; /* singular value, of the norm */
    PolynomialId polynomial;
} Shape;

/* y (rows, cols) = the op's result, x given so */
static void run_op(const Ops *ops, const Shape *shape, float *y, const float *x) {
    const int R = shape->rows, C = shape->cols;
    const int64_t n = (int64_t)R * C;
    const size_t scratch_bytes = orthogonalise_scratch_bytes(R, C, ops->dtype);
    float *in_memory = op_malloc((size_t)n * sizeof *in_memory);
    void *device = ops->device->alloc((size_t)n * dtype_bytes(ops->dtype)),
         *scratch = ops->device->alloc(scratch_bytes);
    OrthogonaliseArgs args = {.x = device,
                              .n_blocks = 1,
                              .stride = n,
                              .n_matrices = 1,
                              .rows = R,
                              .cols = C,
                              .gain = 1,
                              .polynomial = &newton_schulz[shape->polynomial],
                              .scratch = scratch,
                              .scratch_bytes = scratch_bytes};
    args.transposed[0] = shape->transposed;
    for (int64_t i = 0; i < n; i++) in_memory[shape->transposed ? i % C * R + i / C : i] = x[i];
    upload_floats(ops, device, ops->dtype, in_memory, n);
    ops->orthogonalise(&args);
    download_floats(ops, in_memory, device, ops->dtype, n);
    for (int64_t i = 0; i < n; i++) y[i] = in_memory[shape->transposed ? i % C * R + i / C : i];
    ops->device->free(device);
    ops->device->free(scratch);
    free(in_memory);
}

static void check_values(const Ops *ops, const Shape *shape, const float *diagonal, double error) {
    const bool settles = shape->polynomial == POLAR_EXPRESS;
    double least = INFINITY, most = 0;
    for (int i = 0; i < shape->rows; i++) {
        const double s = diagonal[(int64_t)i * shape->rows + i];
        if (s < least) least = s;
        if (s > most) most = s;
    }
    least -= error;
    most += error;
    CHECK(least >= (settles ? LEAST : 0.6) && most <= MOST,
          "%s, %d x %d%s, singular values down to %g of the norm: they become %.3f to %.3f", ops->name,
          shape->rows, shape->cols, shape->transposed ? " transposed" : "", shape->least, least, most);
    if (op_verbose)
        printf("%-10s %4d x %4d %s %-13s from %.0e: %.3f to %.3f, error %.1e\n", ops->name, shape->rows,
               shape->cols, shape->transposed ? "T" : " ", newton_schulz[shape->polynomial].name,
               shape->least, least, most, error);
}

static void test_spectrum(const Ops *ops, Shape shape) {
    const int R = shape.rows, C = shape.cols;
    const size_t n = (size_t)R * (size_t)C, square = (size_t)R * (size_t)R;
    float *u = orthonormal(R, R, 1), *v = orthonormal(C, R, 2), *vt = op_malloc(n * sizeof *vt);
    float *x = op_malloc(n * sizeof *x), *y = op_malloc(n * sizeof *y), *us = op_malloc(square * sizeof *us),
          *found = op_malloc(square * sizeof *found);
    double *s = op_malloc((size_t)R * sizeof *s);
    spectrum(s, R, shape.least);
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) us[(int64_t)i * R + j] = (float)(1e-3 * s[j]) * u[(int64_t)i * R + j];
    for (int j = 0; j < C; j++)
        for (int i = 0; i < R; i++) vt[(int64_t)i * C + j] = v[(int64_t)j * R + i];
    multiply(x, us, false, vt, R, C, R);
    run_op(ops, &shape, y, x);
    multiply(us, y, false, v, R, R, C);
    multiply(found, u, true, us, R, R, R);
    memcpy(us, found, square * sizeof *us);
    for (int i = 0; i < R; i++) us[(int64_t)i * R + i] = 0;
    check_values(ops, &shape, found, spectral_norm(us, R));
    free(u), free(v), free(vt), free(x), free(y), free(us), free(found), free(s);
}

/* Widths of the models; the CPU, which is the slow one, has the smaller. In bf16 a rounding of the smallest values turns
 * their vectors, so that at 0.001 the bound is wider than the limits, though the values are not. */
static void test_widths(const Ops *ops, const int *widths, int n) {
    const double least = ops->dtype == DTYPE_BF16 ? 2e-3 : 1e-3;
    for (int i = 0; i < n; i++) {
        const int C = widths[i];
        if (!op_wanted("orthogonalise", "")) return;
        test_spectrum(ops, (Shape){C, C, false, least, POLAR_EXPRESS});
        test_spectrum(ops, (Shape){C, 4 * C, true, least, POLAR_EXPRESS});
    }
    test_spectrum(ops, (Shape){128, 512, false, 2e-3, JORDAN});
    test_spectrum(ops, (Shape){96, 96, false, 0.05, POLAR_EXPRESS});
}

static void test_card(const Ops *ops) {
    static const int widths[] = {128, 384, 768, 1024, 1280, 1600}; /* nano, baby, d12, d24, d36, d48 */
    test_widths(ops, widths, op_small ? 1 : 6);
}

static void test_cpu(const Ops *ops) {
    static const int widths[] = {128, 384, 768};
    test_widths(ops, widths, 3);
}

int main(int argc, char **argv) {
    op_without_card = test_cpu;
    return op_main("ops_muon", argc, argv, test_card);
}
