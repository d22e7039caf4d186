/* Arithmetic of counts. */
#pragma once
#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t clamp_i64(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

/* a >= 0, b > 0 */
static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* The first multiple of `to` that is not below n. */
static inline int64_t round_up(int64_t n, int64_t to) {
    return ceil_div(n, to) * to;
}
