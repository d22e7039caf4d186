/* Random numbers from a counter: value i of a stream depends on (seed, i) alone, so a stream can be entered
 * anywhere and its state is one number. */
#pragma once
#include <stdint.h>

/* 64 well-mixed bits: the finaliser of SplitMix64 (Steele, Lea & Flood 2014, figure 16). */
uint64_t random_mix(uint64_t x);
/* Start of an independent stream: seed and purpose (any constant) mixed. */
uint64_t random_stream(uint64_t seed, uint64_t purpose);
/* Uniform in [0, 1), 53 bits; advances *state. */
double random_uniform(uint64_t *state);
