/* Which tokens the window at a position of the run starts from: a pure function, so that a run can be entered
 * anywhere and no list of windows is kept, however many there are. Private to the data loader. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct WindowOrder {
    int64_t n_tokens; /* of the stream; at least T + 1 */
    int64_t T;        /* a window is T inputs and, one further, T targets */
    bool shuffle;
    uint64_t seed; /* of the shuffle */
} WindowOrder;

/* Windows in one epoch: (n_tokens - 1) / T. */
int64_t window_count(const WindowOrder *order);

/* Where `index` goes in a permutation of [0, n), one for each key. */
int64_t window_permute(int64_t index, int64_t n, uint64_t key);

/* Start of the window at `position` >= 0, in [0, n_tokens). In stream order it is window position % count,
 * from token 0 on. Shuffled, every epoch visits each of its windows once, in an order of its own; from the
 * second epoch on they are also shifted by an offset of the epoch in [0, T), and the stream is then a ring:
 * the last window may run on into token 0. */
int64_t window_start(const WindowOrder *order, int64_t position);
