#include "window_order.h"
#include "llmc/base/random.h"

/* 4 make a Feistel network pseudorandom (Luby & Rackoff 1988); the halves here are short. */
enum { N_ROUNDS = 6 };
static const uint64_t stream_order = 0x6F72646572, stream_offset = 0x6F6666736574; /* "order", "offset" */

int64_t window_count(const WindowOrder *order) {
    return (order->n_tokens - 1) / order->T;
}

/* A permutation of the numbers below 4^half_bits: a balanced Feistel network. */
static uint64_t feistel(uint64_t x, int half_bits, uint64_t key) {
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, left = x >> half_bits, right = x & mask;
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t mixed = left ^ (random_mix(random_mix(key + (uint64_t)round) ^ right) & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

/* A value of the network past n is put through it again until it falls inside (cycle walking: Black & Rogaway 2002);
 * 4^half_bits < 4 n, so 4 times at most on average. */
int64_t window_permute(int64_t index, int64_t n, uint64_t key) {
    int half_bits = 1;
    while ((uint64_t)1 << (2 * half_bits) < (uint64_t)n) half_bits++;
    uint64_t x = (uint64_t)index;
    do x = feistel(x, half_bits, key);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t window_start(const WindowOrder *order, int64_t position) {
    int64_t n = window_count(order), epoch = position / n, index = position % n;
    if (!order->shuffle) return index * order->T;
    uint64_t key = random_stream(random_stream(order->seed, stream_order), (uint64_t)epoch);
    uint64_t shift =
        random_stream(random_stream(order->seed, stream_offset), (uint64_t)epoch) % (uint64_t)order->T;
    int64_t offset = epoch == 0 ? 0 : (int64_t)shift;
    return (window_permute(index, n, key) * order->T + offset) % order->n_tokens;
}
