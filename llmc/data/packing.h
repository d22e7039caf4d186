/* Windows made of whole documents where they fit: best-fit-decreasing, over groups of neighbouring windows. Private to the
 * data loader.
 *
 * A document is what ends with the end-of-text token. A group is a run of the stream that fills some hundred windows
 * exactly. Its documents are packed longest first, each into the window with the least room that takes it (Ding et al.
 * 2024). Those longer than a window fill whole ones, and their rests are packed behind all others: what then fits nowhere
 * is cut once more to fill the room that is left. So few of the others are cut, no slot is empty, and every token of a
 * group stands in one window. A piece without its end stands last in its window: documents never touch without an
 * end-of-text token between them.
 *
 * Each epoch takes the groups in an order of its own (window_order.h), some at a time: a pool, whose windows come
 * shuffled. So a window is a function of its index, and memory is bounded. */
#pragma once
#include "llmc/base/error.h"
#include "window_order.h"

/* Tokens [first, first + n) of a ring of tokens into out. */
typedef bool ReadRing(void *ring, int64_t first, int64_t n, int32_t *out, Error *err);

typedef struct PackingStats {
    int64_t n_documents; /* that end in the groups, and fit a window */
    int64_t n_cut;       /* of those, in more than one piece */
    int64_t n_cut_plain; /* the same of windows that take the stream as it comes */
} PackingStats;

typedef struct Packing Packing;

/* Windows of T + 1 of order's tokens, T + 2 or more, whatever order.shuffle says of windows. NULL: no memory. */
Packing *packing_open(const WindowOrder *order, int end_of_text, Error *err);
void packing_close(Packing *packing); /* NULL is fine */
/* Windows in an epoch. */
int64_t packing_count(const Packing *packing);
/* *window = T + 1 tokens, valid until the next call, of window `index` >= 0 over all epochs. */
bool packing_window(Packing *packing, int64_t index, ReadRing *read, void *ring, const int32_t **window,
                    Error *err);
/* Of the pool that was packed last. */
PackingStats packing_stats(const Packing *packing);
/* At most so many bytes for windows of T + 1 tokens, but for documents shorter than 16 tokens on average. */
int64_t packing_bytes(int64_t T);
