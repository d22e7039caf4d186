/* A vector of floats as wide as the registers of the machine compiled for: GCC's and clang's vector
 * extension, no intrinsics, so the same source is AVX-512, AVX, SSE2 or NEON.
 *
 * Tails: vec_load_n and vec_store_n touch only the first n <= VEC floats, so one loop serves any size:
 *     for (int64_t i = 0; i < n; i += VEC) vec_store_n(out + i, f(vec_load_n(x + i, n - i)), n - i);
 * Every element takes the same arithmetic wherever it stands, so results do not depend on how a loop is cut.
 */
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { VEC = 16 };
#elif defined(__AVX__)
enum { VEC = 8 };
#else
enum { VEC = 4 };
#endif

typedef float vec __attribute__((vector_size(4 * VEC)));
typedef int32_t vec_int __attribute__((vector_size(4 * VEC)));
typedef vec_int vec_mask; /* -1 where true, 0 where false: what a comparison of vectors gives */

static inline vec vec_load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(float *p, vec v) {
    memcpy(p, &v, sizeof v);
}

static inline vec vec_set(float x) {
    return x - (vec){0};
}

/* The first n floats (all where n >= VEC), the rest 0. */
static inline vec vec_load_n(const float *p, int64_t n) {
    if (n >= VEC) return vec_load(p);
    float lanes[VEC] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i];
    return vec_load(lanes);
}

static inline void vec_store_n(float *p, vec v, int64_t n) {
    if (n >= VEC) {
        vec_store(p, v);
        return;
    }
    for (int i = 0; i < n; i++) p[i] = v[i];
}

/* The first n floats at p += those of v. */
static inline void vec_add_n(float *p, vec v, int64_t n) {
    vec_store_n(p, vec_load_n(p, n) + v, n);
}

static inline vec vec_select(vec_mask mask, vec yes, vec no) {
    return (vec)(((vec_int)yes & mask) | ((vec_int)no & ~mask));
}

static inline vec vec_abs(vec v) {
    return (vec)((vec_int)v & 0x7fffffff);
}

/* Of two numbers the larger; b where either is NaN. */
static inline vec vec_max(vec a, vec b) {
    return vec_select(a > b, a, b);
}

/* Lane indices 0, 1, ... VEC-1. */
static inline vec_int vec_iota(void) {
    vec_int v;
    for (int i = 0; i < VEC; i++) v[i] = i;
    return v;
}

/* The first n lanes of v, the rest 0. */
static inline vec vec_first_n(vec v, int64_t n) {
    return n >= VEC ? v : vec_select(vec_iota() < (int32_t)n, v, (vec){0});
}

/* Sum of the lanes, in a fixed order (halves folded onto each other). */
static inline float vec_sum(vec v) {
    float lanes[VEC];
    vec_store(lanes, v);
    for (int half = VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

static inline float vec_max_lane(vec v) {
    float lanes[VEC];
    vec_store(lanes, v);
    for (int half = VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
    return lanes[0];
}

/* e^x with a relative error below 1.5e-7 wherever the result is a normal number; inf above 88.73, denormals
 * and then 0 below -87.34; NaN gives NaN.
 *
 * x = n ln2 + r with |r| <= ln2/2; e^r is 1 + r + r^2 P(r), P the minimax polynomial of degree 4 (error
 * 8e-9); 2^n is multiplied in as two factors, so that the ends of the range overflow and underflow as they
 * should. */
static inline vec vec_exp(vec x) {
    const float round_to_int =
        12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    x = vec_select(x > 89.0f, vec_set(89.0f), x);
    x = vec_select(x < -104.0f, vec_set(-104.0f), x);
    vec shifted = x * 1.44269504f + round_to_int;
    vec n = shifted - round_to_int;
    vec r = (x - n * 0.693145751953125f) -
            n * 1.42860682031e-6f; /* ln2 in two parts; the first product is exact */
    vec p = r * 0.001392621347f + 0.008363202972f;
    p = p * r + 0.04166655444f;
    p = p * r + 0.1666657685f;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    vec_int n_int = (vec_int)shifted - 0x4B400000; /* 0x4B400000 are the bits of round_to_int */
    vec_int half = n_int >> 1;
    return p * (vec)((half + 127) << 23) * (vec)((n_int - half + 127) << 23);
}
