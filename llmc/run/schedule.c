#include "schedule.h"
#include <math.h>

double schedule_lr(const Schedule *schedule, int64_t step) {
    const double pi = 3.14159265358979323846;
    double max = schedule->max_lr, min = schedule->final_fraction * max;
    double s = (double)step, W = (double)schedule->warmup, N = (double)schedule->n_steps;
    if (step < schedule->warmup) return max * (s + 1) / W;
    if (schedule->kind == SCHEDULE_CONSTANT) return max;
    if (step >= schedule->n_steps) return min;
    double p = (s - W) / (N - W); /* W <= s < N, so the divisor is positive */
    switch (schedule->kind) {
    case SCHEDULE_COSINE:
        return min + (max - min) * 0.5 * (1 + cos(pi * p));
    case SCHEDULE_LINEAR:
        return max - (max - min) * p;
    case SCHEDULE_WSD:
        return s < 0.8 * N ? max : min + (max - min) * (1 - sqrt((s - 0.8 * N) / (0.2 * N)));
    case SCHEDULE_CONSTANT:
        break;
    }
    return max;
}
