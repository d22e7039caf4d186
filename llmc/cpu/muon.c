/* The three ops of a Muon step. */
#include <float.h>
#include <math.h>
#include "cpu.h"
#include "matmul.h"
#include "llmc/base/parallel.h"
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

/* out = scale * in, of one shape. */
static void copy_scaled(View out, View in, float scale) {
    for (int64_t i = 0; i < in.rows; i++)
        for (int64_t j = 0; j < in.cols; j++)
            out.data[i * out.row + j * out.col] = scale * in.data[i * in.row + j * in.col];
}

/* y = a x + (b A + c A A) x, A = x x^T; gram, square: (rows, rows) */
static void newton_schulz_step(View y, View x, View gram, View square, const float of[3]) {
    cpu_matmul(&(Matmul){.a = x, .b = transposed(x), .c = gram});
    cpu_matmul(&(Matmul){.a = gram, .b = gram, .c = square});
    for (int64_t i = 0; i < gram.rows * gram.cols; i++)
        square.data[i] = of[1] * gram.data[i] + of[2] * square.data[i];
    for (int64_t i = 0; i < x.rows * x.cols; i++) y.data[i] = of[0] * x.data[i];
    cpu_matmul(&(Matmul){.a = square, .b = x, .c = y, .accumulate = true});
}

static void orthogonalise(const OrthogonaliseArgs *args, float *data, bool is_transposed) {
    const int rows = args->rows, cols = args->cols;
    const int64_t n = (int64_t)rows * cols;
    const View matrix = is_transposed ? transposed(view(data, cols, rows)) : view(data, rows, cols);
    View x = view(args->scratch, rows, cols), y = view(x.data + n, rows, cols);
    const View gram = view(y.data + n, rows, rows),
               square = view(gram.data + (int64_t)rows * rows, rows, rows);
    copy_scaled(x, matrix, inverse_norm(data, n, args->polynomial->margin));
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        newton_schulz_step(y, x, gram, square, args->polynomial->steps[step]);
        const View next = y;
        y = x;
        x = next;
    }
    copy_scaled(matrix, x, args->gain);
}

void cpu_orthogonalise(const OrthogonaliseArgs *args) {
    for (int64_t block = 0; block < args->n_blocks; block++)
        for (int i = 0; i < args->n_matrices; i++)
            orthogonalise(args, (float *)args->x + block * args->stride + args->offsets[i],
                          args->transposed[i]);
}
