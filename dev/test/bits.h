/* Lines that other bits change, which dev/test/delays.sh compares. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static bool op_bits; /* whether they are asked for */

static inline uint64_t op_mix(uint64_t x) { /* SplitMix64's finaliser (Steele, Lea & Flood 2014) */
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline void op_print_bits(const char *label, const char *output, const void *bytes, size_t n) {
    uint64_t hash = n;
    if (!op_bits) return;
    for (size_t i = 0; i < n; i++) hash = op_mix(hash + ((const unsigned char *)bytes)[i]);
    printf("bits %s%s: %016llx\n", label, output, (unsigned long long)hash);
}
