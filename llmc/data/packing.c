#include "packing.h"
#include <stdlib.h>
#include <string.h>
#include "llmc/base/integers.h"
#include "llmc/base/random.h"

enum {
    GROUP_TOKENS = 1 << 20, /* at most, but for LEAST_WINDOWS: where windows are long, a group has few */
    MOST_WINDOWS = 256,
    LEAST_WINDOWS = 16,
    POOL_TOKENS = 4 << 20, /* at most, but for one group */
    POOL_GROUPS = 8,
};
enum { STREAM_POOL = 0x706F6F6C }; /* "pool" */

/* Part of a group's tokens, in one window. */
typedef struct Item {
    int32_t begin, length;
    int32_t window; /* of the group; NOWHERE: it did not fit, and is cut */
    bool is_rest;   /* of a document longer than a window */
} Item;
enum { NOWHERE = -1 };

struct Packing {
    WindowOrder order; /* of groups: order.T is a group's tokens */
    int32_t width;     /* tokens of a window: T + 1 */
    int end_of_text;
    int n_windows, n_groups; /* windows of a group, groups of a pool */
    int64_t pool;            /* that is in rows, counted over all epochs; -1: none */
    int32_t *rows;           /* (n_groups, n_windows, width) */
    PackingStats stats;

    /* of the group that is being packed */
    int32_t *tokens; /* (n_windows, width) as they come */
    Item *items;     /* (n_items) in the order of the tokens */
    int n_items, capacity;
    Item **in_order;  /* (capacity) whole documents, then rests, the longest first */
    int32_t *room;    /* (n_windows) left in a window */
    int32_t *by_room; /* (n_free) windows, least room first */
    int32_t *filled;  /* (n_windows) tokens that are in place */
    int n_free;
    int last; /* the item that ends with the group, not with end-of-text; -1: none */
};

/* ---- sizes ---- */

static int most_windows(int64_t width) {
    return (int)clamp_i64(GROUP_TOKENS / width, LEAST_WINDOWS, MOST_WINDOWS);
}

static int groups_of_pool(int64_t group_tokens) {
    return (int)clamp_i64(POOL_TOKENS / group_tokens, 1, POOL_GROUPS);
}

/* So that few of the stream's windows are in no group. */
static int choose_windows(int64_t n, int64_t width) {
    const int most = most_windows(width);
    int best = most;
    if (n <= most) return (int)n;
    for (int size = most; size > most / 2; size--)
        if (n % size < n % best) best = size;
    return best;
}

int64_t packing_bytes(int64_t T) {
    const int64_t width = T + 1, group = most_windows(width) * width;
    return (groups_of_pool(group) + 1) * group * 4 + group * 3; /* an item takes 24 bytes */
}

/* ---- open, close ---- */

Packing *packing_open(const WindowOrder *order, int end_of_text, Error *err) {
    Packing *p = calloc(1, sizeof *p);
    const int64_t width = order->T + 1;
    if (!p) {
        fail(err, EXIT_RUN, "out of memory for packed windows");
        return NULL;
    }
    p->width = (int32_t)width;
    p->end_of_text = end_of_text;
    p->n_windows = choose_windows((order->n_tokens - 1) / width, width);
    if (p->n_windows < 1) p->n_windows = 1;
    p->order = *order;
    p->order.T = p->n_windows * width;
    p->n_groups = (int)clamp_i64(groups_of_pool(p->order.T), 1, window_count(&p->order));
    p->pool = -1;
    const size_t n = (size_t)p->n_windows, group = n * (size_t)width;
    p->rows = malloc((size_t)p->n_groups * group * sizeof *p->rows);
    p->tokens = malloc(group * sizeof *p->tokens);
    p->room = malloc(n * sizeof *p->room);
    p->by_room = malloc(n * sizeof *p->by_room);
    p->filled = malloc(n * sizeof *p->filled);
    if (p->rows && p->tokens && p->room && p->by_room && p->filled) return p;
    fail(err, EXIT_RUN, "out of memory for %d groups of %d packed windows", p->n_groups, p->n_windows);
    packing_close(p);
    return NULL;
}

void packing_close(Packing *p) {
    if (!p) return;
    free(p->rows);
    free(p->tokens);
    free(p->items);
    free(p->in_order);
    free(p->room);
    free(p->by_room);
    free(p->filled);
    free(p);
}

int64_t packing_count(const Packing *p) {
    return window_count(&p->order) * p->n_windows;
}

PackingStats packing_stats(const Packing *p) {
    return p->stats;
}

/* ---- a group's documents ---- */

static bool grow(Packing *p, Error *err) {
    const int capacity = p->capacity ? 2 * p->capacity : 1024;
    Item *items = realloc(p->items, (size_t)capacity * sizeof *items);
    if (items) p->items = items;
    Item **in_order = realloc(p->in_order, (size_t)capacity * sizeof *in_order);
    if (in_order) p->in_order = in_order;
    p->capacity = capacity;
    return (items && in_order) ||
           fail(err, EXIT_RUN, "out of memory for %d documents to be packed", capacity);
}

/* The document [begin, end): whole windows of a long one are in place at once, the rest is an item. */
static bool add_document(Packing *p, int32_t begin, int32_t end, int32_t **row, Error *err) {
    const bool is_rest = end - begin > p->width;
    for (; end - begin > p->width; begin += p->width, *row += p->width)
        memcpy(*row, p->tokens + begin, (size_t)p->width * sizeof **row);
    if (p->n_items == p->capacity && !grow(p, err)) return false;
    p->items[p->n_items++] = (Item){begin, end - begin, NOWHERE, is_rest};
    return true;
}

/* Whether a document of the stream is in one piece where window k has tokens [k T, k T + T]. */
static bool is_whole_plain(int32_t begin, int32_t end, int32_t T) {
    return end - 1 <= begin / T * T + T;
}

/* End-of-text alone is none: shards begin with it. */
static void count_document(Packing *p, int32_t begin, int32_t end) {
    if (end - begin == 1 || end - begin > p->width) return;
    p->stats.n_documents++;
    p->stats.n_cut += begin == 0; /* it may have begun in the group before */
    p->stats.n_cut_plain += begin == 0 || !is_whole_plain(begin, end, p->width - 1);
}

/* All tokens as documents. *row is moved behind the windows that are full. */
static bool find_documents(Packing *p, int32_t **row, Error *err) {
    const int32_t n = p->n_windows * p->width;
    p->n_items = 0;
    p->last = -1;
    for (int32_t begin = 0, t = 0; t < n; t++) {
        const bool ends = p->tokens[t] == p->end_of_text;
        if (!ends && t < n - 1) continue;
        if (ends) count_document(p, begin, t + 1);
        if (!add_document(p, begin, t + 1, row, err)) return false;
        if (!ends) p->last = p->n_items - 1;
        begin = t + 1;
    }
    return true;
}

/* Whole documents before rests, the longest first, as they come among equals. */
static int compare_items(const void *a, const void *b) {
    const Item *x = *(Item *const *)a, *y = *(Item *const *)b;
    if (x->is_rest != y->is_rest) return x->is_rest - y->is_rest;
    return x->length != y->length ? y->length - x->length : x->begin - y->begin;
}

static void sort_items(Packing *p) {
    for (int i = 0; i < p->n_items; i++) p->in_order[i] = &p->items[i];
    qsort(p->in_order, (size_t)p->n_items, sizeof *p->in_order, compare_items);
}

/* ---- best fit ---- */

/* The first of by_room[0, n) with room for `length`; n: none. */
static int find_room(const Packing *p, int n, int32_t length) {
    int low = 0, high = n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (p->room[p->by_room[middle]] < length)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void place(Packing *p, Item *item) {
    const int at = find_room(p, p->n_free, item->length);
    if (at == p->n_free) return;
    item->window = p->by_room[at];
    p->room[item->window] -= item->length;
    const int to = find_room(p, at, p->room[item->window]);
    memmove(p->by_room + to + 1, p->by_room + to, (size_t)(at - to) * sizeof *p->by_room);
    p->by_room[to] = item->window;
}

/* The one that ends with the group first: it must not be cut, so that it can stand last. */
static void place_all(Packing *p) {
    for (int i = 0; i < p->n_free; i++) p->by_room[i] = i, p->room[i] = p->width, p->filled[i] = 0;
    Item *last = p->last >= 0 ? &p->items[p->last] : NULL;
    if (last) place(p, last);
    for (int i = 0; i < p->n_items; i++)
        if (p->in_order[i] != last) place(p, p->in_order[i]);
}

/* ---- the windows ---- */

static void copy_tokens(Packing *p, int32_t *rows, int32_t window, int32_t begin, int32_t n) {
    memcpy(rows + (int64_t)window * p->width + p->filled[window], p->tokens + begin,
           (size_t)n * sizeof *rows);
    p->filled[window] += n;
}

/* What fits nowhere, mostly rests, fills the windows with most room; that of the last item comes last, so that what ends
 * in front of it ends with end-of-text. */
static void fill_rest(Packing *p, int32_t *rows) {
    const int32_t kept = p->last >= 0 ? p->items[p->last].window : NOWHERE;
    int next = p->n_free - 1;
    for (int i = 0; i < p->n_items; i++) {
        const Item *item = p->in_order[i];
        if (item->window != NOWHERE) continue;
        const bool is_document = item->begin > 0 && p->tokens[item->begin - 1] == p->end_of_text;
        bool is_cut = false;
        for (int32_t begin = item->begin, left = item->length; left > 0;) {
            while (next >= 0 && (p->by_room[next] == kept || !p->room[p->by_room[next]])) next--;
            const int32_t window = next >= 0 ? p->by_room[next] : kept;
            const int32_t n = left < p->room[window] ? left : p->room[window];
            copy_tokens(p, rows, window, begin, n);
            p->room[window] -= n;
            is_cut = is_cut || n < left;
            begin += n;
            left -= n;
        }
        p->stats.n_cut += is_document && is_cut;
    }
}

/* Documents of a window stand in the order of the stream. */
static void copy_whole(Packing *p, int32_t *rows) {
    for (int i = 0; i < p->n_items; i++) {
        const Item *item = &p->items[i];
        if (item->window != NOWHERE && i != p->last)
            copy_tokens(p, rows, item->window, item->begin, item->length);
    }
}

static bool pack_group(Packing *p, int32_t *rows, Error *err) {
    int32_t *row = rows;
    if (!find_documents(p, &row, err)) return false;
    p->n_free = p->n_windows - (int)((row - rows) / p->width);
    sort_items(p);
    place_all(p);
    copy_whole(p, row);
    fill_rest(p, row);
    const Item *last = p->last >= 0 ? &p->items[p->last] : NULL;
    if (last) copy_tokens(p, row, last->window, last->begin, last->length);
    return true;
}

/* ---- pools ---- */

/* Groups [first, first + n) of an epoch's order into rows. */
static bool pack_pool(Packing *p, int64_t first, int n, ReadRing *read, void *ring, Error *err) {
    p->stats = (PackingStats){0};
    for (int i = 0; i < n; i++)
        if (!read(ring, window_start(&p->order, first + i), p->order.T, p->tokens, err) ||
            !pack_group(p, p->rows + i * p->order.T, err))
            return false;
    return true;
}

bool packing_window(Packing *p, int64_t index, ReadRing *read, void *ring, const int32_t **window,
                    Error *err) {
    const int64_t of_epoch = window_count(&p->order), epoch = index / (of_epoch * p->n_windows);
    const int64_t pools = ceil_div(of_epoch, p->n_groups);
    const int64_t in_epoch = index % (of_epoch * p->n_windows);
    const int64_t of_pool = (int64_t)p->n_groups * p->n_windows, pool = in_epoch / of_pool;
    const int64_t first = pool * p->n_groups;
    const int n = (int)min_i64(of_epoch - first, p->n_groups);
    if (p->pool != epoch * pools + pool) {
        p->pool = -1;
        if (!pack_pool(p, epoch * of_epoch + first, n, read, ring, err)) return false;
        p->pool = epoch * pools + pool;
    }
    const uint64_t key = random_stream(random_stream(p->order.seed, STREAM_POOL), (uint64_t)p->pool);
    *window = p->rows + window_permute(in_epoch % of_pool, (int64_t)n * p->n_windows, key) * p->width;
    return true;
}
