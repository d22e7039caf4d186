/* The AdamW step. */
#include <math.h>
#include "cpu.h"
#include "llmc/base/parallel.h"
#include "vec.h"

enum { TASK_TILES = 16 }; /* tiles of a task */

typedef struct Step {
    const AdamWArgs *args;
    float grad_scale, m_scale, v_scale; /* clipping; 1 / (1 - beta^t) of both moments */
} Step;

/* Tile i of the list. */
static void update_tile(const Step *step, int64_t i_of_list) {
    const AdamWArgs *args = step->args;
    const int64_t tile = args->tiles ? args->tiles[i_of_list] : i_of_list,
                  of_moments = i_of_list * PARAMETER_TILE;
    const AdamWGroup *group = &args->groups[args->tile_groups[tile]];
    const int64_t begin = tile * PARAMETER_TILE;
    float *restrict w = args->master + begin;
    float *restrict m = args->m + of_moments, *restrict v = args->v + of_moments;
    const float *restrict grads = args->grads + begin;
    float beta1 = args->update.beta1, beta2 = args->update.beta2, one_beta1 = 1.0f - beta1,
          one_beta2 = 1.0f - beta2;
    float lr = group->lr, eps = args->update.eps, decay = group->weight_decay;
    for (int64_t i = 0; i < PARAMETER_TILE; i++) {
        float g = grads[i] * step->grad_scale;
        m[i] = beta1 * m[i] + one_beta1 * g;
        v[i] = beta2 * v[i] + one_beta2 * g * g;
        float mhat = m[i] * step->m_scale, vhat = v[i] * step->v_scale;
        w[i] -= lr * (mhat / (sqrtf(vhat) + eps) + decay * w[i]);
    }
    float *weights = (float *)args->weights + begin;
    if (weights != w) memcpy(weights, w, sizeof(float) * PARAMETER_TILE);
}

/* Task: TASK_TILES tiles. */
static void update_tiles(const void *step, int64_t task) {
    const int64_t first = task * TASK_TILES;
    const int64_t end = min_i64(first + TASK_TILES, ((const Step *)step)->args->n_tiles);
    for (int64_t tile = first; tile < end; tile++) update_tile(step, tile);
}

void cpu_adamw(const AdamWArgs *args) {
    const StepStats *stats = args->stats;
    if (stats->bad) return;
    double t = (double)(args->update.step - stats->n_skipped);
    const Step step = {args, cpu_clip_scale(stats, args->update.clip),
                       (float)(1 / (1 - pow(args->update.beta1, t))),
                       (float)(1 / (1 - pow(args->update.beta2, t)))};
    cpu_parallel_for(ceil_div(args->n_tiles, TASK_TILES), update_tiles, &step);
}

void cpu_weights_from_master(floatX *weights, const float *master, int64_t n) {
    if (weights != master) device_cpu.copy(weights, master, sizeof(float) * (size_t)n);
}
