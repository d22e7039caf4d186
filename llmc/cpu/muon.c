/* The three ops of a Muon step. */
#include <float.h>
#include <math.h>
#include "cpu.h"
#include "matmul.h"
#include "parallel.h"
#include "vec.h"

/* ---- element by element; a task is a tile ---- */

static void average_tile(const void *args_, int64_t i) {
    const MuonArgs *args = args_;
    const int64_t begin = (int64_t)args->tiles[i] * PARAMETER_TILE;
    const float *restrict grads = args->grads + begin;
    float *restrict m = args->m + i * PARAMETER_TILE, *restrict x = (float *)args->x + begin;
    const float scale = cpu_clip_scale(args->stats, args->clip), keep = args->momentum, take = 1.0f - keep;
    for (int64_t k = 0; k < PARAMETER_TILE; k++) {
        const float new = take *(grads[k] * scale);
        m[k] = keep * m[k] + new;
        x[k] = keep * m[k] + new;
    }
}

void cpu_muon_momentum(const MuonArgs *args) {
    if (!args->stats->bad) cpu_parallel_for(args->n_tiles, average_tile, args);
}

static void update_tile(const void *args_, int64_t i) {
    const MuonArgs *args = args_;
    const int64_t begin = (int64_t)args->tiles[i] * PARAMETER_TILE;
    float *restrict w = args->master + begin;
    const float *restrict x = (const float *)args->x + begin;
    const float lr = args->lr, decay = args->weight_decay;
    for (int64_t k = 0; k < PARAMETER_TILE; k++) w[k] -= lr * (x[k] + decay * w[k]);
    float *weights = (float *)args->weights + begin;
    if (weights != w) memcpy(weights, w, sizeof(float) * PARAMETER_TILE);
}

void cpu_muon_update(const MuonArgs *args) {
    if (!args->stats->bad) cpu_parallel_for(args->n_tiles, update_tile, args);
}

/* ---- orthogonalise: a matrix at a time, its products on all threads ---- */

/* 1 / (margin norm); 0 of a matrix that is 0. */
static float inverse_norm(const float *x, int64_t n, float margin) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    const double norm = margin * sqrt(squares);
    return norm > FLT_MIN ? (float)(1 / norm) : 0;
}

/* out = scale * in; transposed: in is (cols, rows). */
static void copy_scaled(float *out, const float *in, float scale, int rows, int cols, bool transposed) {
    const int64_t row = transposed ? 1 : cols, col = transposed ? rows : 1;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) out[i * cols + j] = scale * in[i * row + j * col];
}

/* c (M,N) = or += a (M,K) b; b is (K,N), or (N,K) where its rows are taken for columns. */
static void product(float *c, const float *a, const float *b, int64_t M, int64_t N, int64_t K, bool b_rows,
                    bool accumulate) {
    const Matmul of = {
        .M = M,
        .N = N,
        .K = K,
        .a = a,
        .a_row = K,
        .a_col = 1,
        .b = b,
        .b_row = b_rows ? 1 : N,
        .b_col = b_rows ? K : 1,
        .c = c,
        .c_row = N,
        .accumulate = accumulate,
    };
    cpu_matmul(&of);
}

/* y = a x + (b A + c A A) x, A = x x^T; gram, square: (rows, rows) */
static void newton_schulz_step(float *y, const float *x, float *gram, float *square, int rows, int cols,
                               const float of[3]) {
    const int64_t R = rows, C = cols;
    product(gram, x, x, R, R, C, true, false);
    product(square, gram, gram, R, R, R, false, false);
    for (int64_t i = 0; i < R * R; i++) square[i] = of[1] * gram[i] + of[2] * square[i];
    for (int64_t i = 0; i < R * C; i++) y[i] = of[0] * x[i];
    product(y, square, x, R, C, R, false, true);
}

static void orthogonalise(const OrthogonaliseArgs *args, float *matrix, bool transposed) {
    const int rows = args->rows, cols = args->cols;
    const int64_t n = (int64_t)rows * cols;
    float *x = args->scratch, *y = x + n, *gram = y + n, *square = gram + (int64_t)rows * rows;
    copy_scaled(x, matrix, inverse_norm(matrix, n, args->polynomial->margin), rows, cols, transposed);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        newton_schulz_step(y, x, gram, square, rows, cols, args->polynomial->steps[step]);
        float *const next = y;
        y = x;
        x = next;
    }
    /* the other way round: (cols, rows) in memory is x read by columns */
    copy_scaled(matrix, x, args->gain, transposed ? cols : rows, transposed ? rows : cols, transposed);
}

void cpu_orthogonalise(const OrthogonaliseArgs *args) {
    for (int64_t block = 0; block < args->n_blocks; block++)
        for (int i = 0; i < args->n_matrices; i++)
            orthogonalise(args, (float *)args->x + block * args->stride + args->offsets[i],
                          args->transposed[i]);
}
