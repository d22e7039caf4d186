/* Muon on the CPU, against plain loops in double: momentum, update, and Newton-Schulz written out. */
#include "dev/test/cpu_case.h"

/* ---- element by element ---- */

/* Of five tiles those of the list, backwards; momentum is as long as the list. */
static const int32_t tiles[] = {4, 2, 1};
enum { ALL = 5 * PARAMETER_TILE, LISTED = 3, OF_LIST = LISTED * PARAMETER_TILE };

static int64_t listed_at(int64_t i) {
    return tiles[i / PARAMETER_TILE] * PARAMETER_TILE + i % PARAMETER_TILE;
}

/* grad_norm is 4. */
static void test_momentum(float clip, double scale) {
    Buffer m = filled(OF_LIST, 1, 0), g = filled(ALL, 3, 0), x = filled(ALL, 1, 0);
    StepStats stats = {.grad_norm = 4};
    const MuonArgs args = {.m = m.f,
                           .x = x.f,
                           .grads = g.f,
                           .stats = &stats,
                           .tiles = tiles,
                           .n_tiles = LISTED,
                           .momentum = 0.9f,
                           .clip = clip};
    for (int64_t i = 0; i < OF_LIST; i++) {
        const double grad = scale * g.d[listed_at(i)];
        m.d[i] = 0.9 * m.d[i] + 0.1 * grad;
        x.d[listed_at(i)] = 0.9 * m.d[i] + 0.1 * grad;
    }
    ops->muon_momentum(&args);
    close_to("momentum", m, m.d);
    close_to("what passes on", x, x.d);
    const float before = m.f[7];
    stats.bad = 1;
    ops->muon_momentum(&args);
    CHECK(memcmp(&before, &m.f[7], sizeof before) == 0, "momentum: a bad step changed it");
    end_case("muon_momentum");
}

static void test_update(bool same_buffer) {
    Buffer w = filled(ALL, 1, 0), x = filled(ALL, 1, 0), copy = poisoned(ALL);
    StepStats stats = {.grad_norm = 4};
    if (!same_buffer) memcpy(copy.f, w.f, sizeof(float) * ALL);
    const MuonArgs args = {.master = w.f,
                           .weights = same_buffer ? w.f : copy.f,
                           .x = x.f,
                           .stats = &stats,
                           .tiles = tiles,
                           .n_tiles = LISTED,
                           .lr = 0.02f,
                           .weight_decay = 0.3f};
    for (int64_t i = 0; i < OF_LIST; i++) {
        const int64_t at = listed_at(i);
        w.d[at] -= 0.02 * (x.d[at] + 0.3 * w.d[at]);
    }
    ops->muon_update(&args);
    close_to("muon w", w, w.d);
    if (!same_buffer)
        CHECK(memcmp(copy.f, w.f, sizeof(float) * ALL) == 0, "muon_update: weights are not the master");
    const float before = w.f[tiles[0] * PARAMETER_TILE];
    stats.bad = 1;
    ops->muon_update(&args);
    CHECK(w.f[tiles[0] * PARAMETER_TILE] == before, "muon_update: a bad step changed the weights");
    end_case("muon_update");
}

/* ---- orthogonalise ---- */

/* out (rows, cols) = a (rows, n) b; b_transposed: b is (cols, n). */
static void product(double *out, const double *a, const double *b, bool b_transposed, int rows, int cols,
                    int n) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[b_transposed ? j * n + k : k * cols + j];
            out[i * cols + j] = sum;
        }
}

/* x (rows, cols), rows <= cols, in place. */
static void newton_schulz_double(double *x, int rows, int cols, const NewtonSchulz *of) {
    const int n = rows * cols;
    double *gram = calloc((size_t)(2 * rows * rows + n), sizeof *gram), *square = gram + rows * rows,
           *y = square + rows * rows, squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    for (int i = 0; i < n && squares > 0; i++) x[i] /= (double)of->margin * sqrt(squares);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const float *c = of->steps[step];
        product(gram, x, x, true, rows, rows, cols);
        product(square, gram, gram, false, rows, rows, rows);
        for (int i = 0; i < rows * rows; i++)
            square[i] =
                (double)c[1] * gram[i] + (double)c[2] * square[i] + (i % (rows + 1) == 0 ? (double)c[0] : 0);
        product(y, square, x, false, rows, cols, rows);
        memcpy(x, y, (size_t)n * sizeof *x);
    }
    free(gram);
}

static double at(const double *matrix, int rows, int cols, bool transposed, int i) {
    return matrix[transposed ? i % cols * rows + i / cols : i];
}

/* Two blocks of two matrices, the second transposed, the first of all zero where `zero`. */
static void test_orthogonalise(int rows, int cols, PolynomialId polynomial, bool zero) {
    enum { BLOCKS = 2, GAP = 24 };
    const int n = rows * cols, stride = 2 * (n + GAP);
    Buffer x = filled(BLOCKS * stride, 0.01, 0);
    double *matrix = calloc((size_t)n, sizeof *matrix);
    const size_t scratch_bytes = orthogonalise_scratch_bytes(rows, cols, DTYPE_F32);
    OrthogonaliseArgs args = {
        .x = x.f,
        .n_blocks = BLOCKS,
        .stride = stride,
        .n_matrices = 2,
        .offsets = {8,     n + GAP},
        .transposed = {false, true   },
        .rows = rows,
        .cols = cols,
        .gain = 3,
        .polynomial = &newton_schulz[polynomial],
        .scratch = malloc(scratch_bytes),
        .scratch_bytes = scratch_bytes
    };
    if (zero) memset(x.f + args.offsets[0], 0, (size_t)n * sizeof *x.f);
    to_double(x);
    for (int b = 0; b < BLOCKS; b++)
        for (int k = 0; k < 2; k++) {
            double *there = x.d + b * stride + args.offsets[k];
            for (int i = 0; i < n; i++) matrix[i] = at(there, rows, cols, k == 1, i);
            newton_schulz_double(matrix, rows, cols, args.polynomial);
            for (int i = 0; i < n; i++) there[k == 1 ? i % cols * rows + i / cols : i] = 3 * matrix[i];
        }
    ops->orthogonalise(&args);
    close_to("orthogonalise", x, x.d);
    free(args.scratch);
    free(matrix);
    end_case("orthogonalise");
}

static void run_cases(void) {
    test_momentum(0, 1);
    test_momentum(1, 0.25);
    test_momentum(100, 1);
    test_update(true);
    test_update(false);
    test_orthogonalise(8, 8, POLAR_EXPRESS, false);
    test_orthogonalise(24, 24, JORDAN, false);
    test_orthogonalise(16, 40, POLAR_EXPRESS, false);
    test_orthogonalise(8, 32, JORDAN, true);
    test_orthogonalise(40, 104, POLAR_EXPRESS, false);
}

int main(void) {
    return check_cpu_cases("cpu_muon", run_cases);
}
