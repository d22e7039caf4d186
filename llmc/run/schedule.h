/* The learning rate of every step: warm-up, then one of four shapes. */
#pragma once
#include <stdint.h>

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;

typedef struct Schedule {
    ScheduleKind kind;
    double max_lr;         /* reached at the end of the warm-up */
    double final_fraction; /* of max_lr, approached at step n_steps; unused by SCHEDULE_CONSTANT */
    int64_t warmup;        /* steps, 0: none */
    int64_t n_steps;       /* of the whole run, also when resumed */
} Schedule;

/* Learning rate of `step`, counted from 0. Steps past n_steps keep the final rate.
 *   warm-up   max (s+1)/W for s < W                    p = (s-W)/(N-W), min = final_fraction max
 *   cosine    min + (max-min) (1 + cos(pi p))/2        (Loshchilov & Hutter 2017, equation 5)
 *   linear    max - (max-min) p
 *   wsd       max up to 0.8 N, then min + (max-min) (1 - sqrt((s-0.8N)/(0.2N)))   (Haegele et al. 2024)
 *   constant  max */
double schedule_lr(const Schedule *schedule, int64_t step);
