#include "random.h"

uint64_t random_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* 2^64 / golden ratio, odd: the step between the states of SplitMix64, so that neighbours differ in many
 * bits. */
static const uint64_t golden = 0x9e3779b97f4a7c15u;

uint64_t random_stream(uint64_t seed, uint64_t purpose) {
    return random_mix(random_mix(seed + golden) + golden * (purpose + 1));
}

double random_uniform(uint64_t *state) {
    *state += golden;
    return (double)(random_mix(*state) >> 11) * 0x1p-53;
}
