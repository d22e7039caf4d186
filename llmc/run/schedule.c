#include "schedule.h"
#include <math.h>

double schedule_lr(const Settings *settings, int64_t step) {
    const double pi = 3.14159265358979323846;
    double max = settings->lr, min = settings->final_lr_fraction * max;
    double s = (double)step, W = (double)settings->warmup, N = (double)settings->steps;
    if (step < settings->warmup) return max * (s + 1) / W;
    if (settings->schedule == SCHEDULE_CONSTANT) return max;
    if (step >= settings->steps) return min;
    double p = (s - W) / (N - W); /* W <= s < N, so the divisor is positive */
    const double D = fmax(0.8 * N, W);
    switch (settings->schedule) {
    case SCHEDULE_COSINE:
        return min + (max - min) * 0.5 * (1 + cos(pi * p));
    case SCHEDULE_LINEAR:
        return max - (max - min) * p;
    case SCHEDULE_WSD:
        return s < D ? max : min + (max - min) * (1 - sqrt((s - D) / (N - D)));
    case SCHEDULE_CONSTANT:
        break;
    }
    return max;
}
