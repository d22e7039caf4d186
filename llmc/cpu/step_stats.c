/* Mean loss and gradient norm of a step, and the flag that stops a NaN or inf. */
#include <math.h>
#include "cpu.h"
#include "llmc/base/parallel.h"

enum {
    TASK_TILES = 16, /* tiles of a task */
    ROW = 128,       /* values that a warp of the CUDA kernel reads at once */
};

/* Sum of n <= PARAMETER_TILE values, or of their squares, in double, so that neither 1e-25 nor 1e25 leaves the range when
 * squared. In the order of the CUDA kernel: a thread has four sums, each of every 128th value. */
static double tile_sum(const float *x, int64_t n, bool squares) {
    double sums[ROW] = {0};
    for (int64_t i = 0; i < n; i += ROW) {
        const int64_t width = min_i64(n - i, ROW);
        for (int64_t j = 0; j < width; j++)
            sums[j] += squares ? (double)x[i + j] * x[i + j] : (double)x[i + j];
    }
    for (int j = 0; j < ROW / 4; j++)
        sums[j] = (sums[4 * j] + sums[4 * j + 1]) + (sums[4 * j + 2] + sums[4 * j + 3]);
    for (int half = ROW / 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

typedef struct Sum {
    ExactSum *sum; /* += */
    const float *x;
    int64_t n;
    float scale;
    bool squares;
} Sum;

/* Task: TASK_TILES tiles. Integers are added, so the order of the threads does not show. */
static void sum_tiles(const void *args, int64_t task) {
    const Sum *s = args;
    const int64_t first = task * TASK_TILES * PARAMETER_TILE;
    const int64_t end = min_i64(s->n, first + TASK_TILES * PARAMETER_TILE);
    ExactSum own = {0};
    for (int64_t i = first; i < end; i += PARAMETER_TILE) {
        const double sum = tile_sum(s->x + i, min_i64(end - i, PARAMETER_TILE), s->squares);
        const ExactTerm term = exact_term(s->scale * sum);
        for (int k = 0; k < 3; k++) own.bins[term.at + k] += term.parts[k];
    }
    for (int k = 0; k < EXACT_BINS; k++)
        if (own.bins[k]) __atomic_fetch_add(&s->sum->bins[k], own.bins[k], __ATOMIC_RELAXED);
}

static void add_sum(const Sum *s) {
    cpu_parallel_for(ceil_div(s->n, TASK_TILES * PARAMETER_TILE), sum_tiles, s);
}

void cpu_loss_sum(ExactSum *sum, const float *losses, float scale, int64_t N) {
    add_sum(&(Sum){sum, losses, N, scale, false});
}

void cpu_sum_squares(ExactSum *sum, const float *grads, int64_t n) {
    add_sum(&(Sum){sum, grads, n, 1, true});
}

void cpu_finish_stats(StepStats *stats, const StepSums *sums) {
    stats->loss = (float)exact_value(&sums->loss);
    stats->grad_norm = (float)sqrt(exact_value(&sums->squares));
    stats->bad = !isfinite(stats->loss) || !isfinite(stats->grad_norm);
    stats->stop = sums->stop != 0;
    stats->save = sums->save != 0;
    stats->n_skipped += stats->bad;
}
