/* The learning rate of every step: warm-up, then one of four shapes. */
#pragma once
#include "flags.h"

/* Learning rate of `step`, counted from 0. Steps past the run's last keep the final rate.
 *   warm-up   max (s+1)/W for s < W                    p = (s-W)/(N-W), max = --lr, min = --final-lr-fraction max
 *   cosine    min + (max-min) (1 + cos(pi p))/2        (Loshchilov & Hutter 2017, equation 5)
 *   linear    max - (max-min) p
 *   wsd       max up to D, then min + (max-min) (1 - sqrt((s-D)/(N-D)))   (Haegele et al. 2024)
 *             D = the later of 0.8 N and W
 *   constant  max
 * W = --warmup, N = --steps, also of a resumed run. */
double schedule_lr(const Settings *settings, int64_t step);
