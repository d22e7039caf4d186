/* Sums of doubles without rounding: fixed point, 608 bits from 2^-320 up in bins of 32. What a value adds are integers,
 * so a sum has the same bits whatever the order of its values, on every backend, over any number of threads and ranks.
 * Every square of an fp32 number fits, and every fp32 number. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define EXACT_FUNCTION static __host__ __device__ __forceinline__
#else
#define EXACT_FUNCTION static inline
#endif

/* Bins of 64 bits take 2^31 values before they run over. One more counts the values that are not finite or too large. */
enum { EXACT_LOWEST = -320, EXACT_NOT_FINITE = 19, EXACT_BINS = 20 };

/* All 0: an empty sum. Two sums are added bin by bin. */
typedef struct ExactSum {
    int64_t bins[EXACT_BINS];
} ExactSum;

/* What one value adds to bins `at`, at + 1 and at + 2. */
typedef struct ExactTerm {
    int at;
    int64_t parts[3];
} ExactTerm;

EXACT_FUNCTION ExactTerm exact_term(double x) {
    const uint64_t low_32 = 0xffffffffu;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)((bits >> 52) & 0x7ff);
    uint64_t mantissa = (bits & 0xfffffffffffff) | 0x10000000000000;
    int place = exponent - 1075 - EXACT_LOWEST; /* of the mantissa's last bit */
    if (place < 0) {                            /* the bits that go are 0, but for values under the range */
        mantissa = place > -64 ? mantissa >> -place : 0;
        place = 0;
    }
    if (place / 32 + 2 >= EXACT_NOT_FINITE) {
        const ExactTerm none = {
            EXACT_NOT_FINITE - 2, {0, 0, 1}
        };
        return none;
    }
    const uint64_t low = (mantissa & low_32) << place % 32;
    const uint64_t high = ((mantissa >> 32) << place % 32) + (low >> 32);
    const int64_t sign = bits >> 63 ? -1 : 1;
    const ExactTerm term = {
        place / 32,
        {sign * (int64_t)(low & low_32), sign * (int64_t)(high & low_32), sign * (int64_t)(high >> 32)}
    };
    return term;
}

/* The sum in double, the same for the same sum; NaN where a value was not finite. */
EXACT_FUNCTION double exact_value(const ExactSum *sum) {
    int64_t digits[EXACT_NOT_FINITE], carry = 0;
    for (int i = 0; i < EXACT_NOT_FINITE; i++) {
        const int64_t digit = sum->bins[i] + carry;
        digits[i] = digit & 0xffffffff;
        carry = digit >> 32;
    }
    double weight = ldexp(1.0, EXACT_LOWEST + 32 * EXACT_NOT_FINITE), value = (double)carry * weight;
    for (int i = EXACT_NOT_FINITE - 1; i >= 0; i--) {
        weight *= 0x1p-32;
        value += (double)digits[i] * weight;
    }
    return sum->bins[EXACT_NOT_FINITE] ? (double)NAN : value;
}
