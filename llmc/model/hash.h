/* A hash of a buffer: the sum of what its pieces of 16 bytes give, each mixed with its place. Integers are added, so the
 * order does not show: one value on every backend, over any number of threads. A flipped bit always changes it, and two
 * buffers of the same hash that differ are one chance in 2^64. */
#pragma once
#include "dropout.h" /* dropout_mix */

enum { HASH_PIECE = 16 }; /* bytes */

/* Of piece `i`, two words. */
DROPOUT_FUNCTION uint64_t hash_piece(uint64_t first, uint64_t second, int64_t i) {
    const uint64_t step = 0x9e3779b97f4a7c15u, place = 2 * (uint64_t)i;
    return dropout_mix(first + step * (place + 1)) + dropout_mix(second + step * (place + 2));
}
