#include "block_sparse.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/error.h"
#include "llmc/base/integers.h"

static int min_int(int a, int b) {
    return a < b ? a : b;
}

bool sparse_read(SparsePattern *pattern, const char *text) {
    int n[3] = {0}, end = 0;
    const bool none = strcmp(text, "0") == 0;
    bool ok = none || (strspn(text, "0123456789,") == strlen(text) &&
                       sscanf(text, "%8d,%8d,%8d%n", &n[0], &n[1], &n[2], &end) == 3 && text[end] == 0);
    ok = ok && (none || n[0] > 0) && n[0] % MASK_BLOCK == 0 && n[1] % MASK_BLOCK == 0 && n[2] <= MOST_BLOCKS;
    if (ok) *pattern = (SparsePattern){n[0] / MASK_BLOCK, n[1] / MASK_BLOCK, n[2]};
    return ok;
}

const char *sparse_text(char *buffer, size_t size, SparsePattern p) {
    snprintf(buffer, size, "%d,%d,%d", p.window * MASK_BLOCK, p.first * MASK_BLOCK, p.random);
    return buffer;
}

static int tiles_of(int T) {
    return (int)ceil_div(sparse_blocks(T), VISITED_BLOCKS);
}

/* A block sees all of what lies before it in the window and at the start. */
static int n_certain(SparsePattern p, int block) {
    return min_int(block, p.window + p.first);
}

double sparse_pairs(SparsePattern pattern, int T) {
    double pairs = 0;
    for (int block = 0; block < sparse_blocks(T); block++) {
        const double rows = min_int(T - block * MASK_BLOCK, MASK_BLOCK);
        pairs +=
            rows * (MASK_BLOCK * (n_certain(pattern, block) + sparse_n_chosen(pattern, block)) + rows / 2);
    }
    return pairs;
}

/* A block of queries sees so many tiles: those of a range of n blocks, wherever it begins, are n / 2 + 1. */
int64_t sparse_most_visits(SparsePattern p, int T) {
    const int64_t n = (p.window + 1) / VISITED_BLOCKS + 1 + sparse_first_tiles(p) + p.random;
    return sparse_blocks(T) * (n < tiles_of(T) ? n : tiles_of(T));
}

/* The parts of the table in their order. */
static size_t begins_at(SparsePattern pattern, int most_T) {
    return (size_t)sparse_blocks(most_T) * (size_t)pattern.random;
}
static size_t visits_at(SparsePattern pattern, int T, int most_T) {
    return begins_at(pattern, most_T) + (size_t)tiles_of(T) + 1;
}

size_t sparse_table_words(SparsePattern pattern, int T, int most_T) {
    const size_t words = sizeof(SparseVisit) / sizeof(int32_t);
    return visits_at(pattern, T, most_T) + words * (size_t)sparse_most_visits(pattern, T);
}

BlockSparse sparse_of(SparsePattern pattern, const int32_t *table, int T, int most_T) {
    return (BlockSparse){
        .pattern = pattern,
        .chosen = table,
        .begins = table + begins_at(pattern, most_T),
        .visits = (const SparseVisit *)(const void *)(table + visits_at(pattern, T, most_T)),
    };
}

/* How many of a block's random blocks, which rise, lie before key_block. With hundreds of them a table of 16,384 blocks took
 * seconds where each was looked at. */
static int n_chosen_before(const BlockSparse *s, int query_block, int key_block) {
    const int32_t *chosen = s->chosen + (int64_t)query_block * s->pattern.random;
    int low = 0, high = sparse_n_chosen(s->pattern, query_block);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (chosen[middle] < key_block)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* As sparse_sees, of any two blocks. */
static bool sees(const BlockSparse *s, int query_block, int key_block) {
    const SparsePattern p = s->pattern;
    if (key_block > query_block) return false;
    if (key_block >= query_block - p.window || key_block < p.first) return true;
    const int n = n_chosen_before(s, query_block, key_block);
    return n < sparse_n_chosen(p, query_block) && s->chosen[(int64_t)query_block * p.random + n] == key_block;
}

/* SEES_FIRST and SEES_SECOND of a tile. */
static int seen_halves(const BlockSparse *s, int query_block, int tile) {
    return (sees(s, query_block, VISITED_BLOCKS * tile) ? SEES_FIRST : 0) |
           (sees(s, query_block, VISITED_BLOCKS * tile + 1) ? SEES_SECOND : 0);
}

/* The highest tile below `tile` that a block of queries sees for its window or a random block, or -1. */
static int next_tile(const BlockSparse *s, int query_block, int tile) {
    const SparsePattern p = s->pattern;
    if (VISITED_BLOCKS * tile - 1 >= query_block - p.window) return tile - 1;
    const int n = n_chosen_before(s, query_block, VISITED_BLOCKS * tile);
    return n > 0 ? s->chosen[(int64_t)query_block * p.random + n - 1] / VISITED_BLOCKS : -1;
}

/* The tiles that a block sees, in the order in which they add to its dQ. Returns how many. */
static int adding_tiles(int32_t *tiles, const BlockSparse *s, int block) {
    const int n_first = min_int(sparse_first_tiles(s->pattern), block / VISITED_BLOCKS + 1);
    int n = 0;
    for (; n < n_first; n++) tiles[n] = n;
    for (int tile = block / VISITED_BLOCKS; tile >= n_first; tile = next_tile(s, block, tile))
        tiles[n++] = tile;
    return n;
}

/* Visits tile by tile: counted (visits NULL), then written; begins: of each tile, moves on. */
static void each_visit(const BlockSparse *s, int blocks, int32_t *begins, SparseVisit *visits) {
    int32_t *tiles = must_allocate(((size_t)blocks / VISITED_BLOCKS + 1) * sizeof *tiles, "a block's tiles");
    for (int block = 0; block < blocks; block++)
        for (int i = 0, n = adding_tiles(tiles, s, block); i < n; i++) {
            const int tile = tiles[i];
            if (visits)
                visits[begins[tile]] =
                    (SparseVisit){block, seen_halves(s, block, tile) | (i == n - 1 ? ADDS_LAST : 0), i};
            begins[tile]++;
        }
    free(tiles);
}

/* Of a tile at the start: from the last block down. */
static void turn_round(SparseVisit *visits, int n) {
    for (int i = 0; i < n / 2; i++) {
        const SparseVisit visit = visits[i];
        visits[i] = visits[n - 1 - i];
        visits[n - 1 - i] = visit;
    }
}

/* Each half's last visit of a tile. */
static void mark_ends(SparseVisit *visits, int n) {
    for (int half = 0; half < VISITED_BLOCKS; half++) {
        int last = n - 1;
        while (last >= 0 && !(visits[last].flags & SEES_FIRST << half)) last--;
        if (last >= 0) visits[last].flags |= ENDS_FIRST << half;
    }
}

void sparse_table(int32_t *table, SparsePattern pattern, int T, int most_T, int layer) {
    const int tiles = tiles_of(T);
    const BlockSparse s = sparse_of(pattern, table, T, most_T);
    int32_t *begins = table + begins_at(pattern, most_T);
    SparseVisit *visits = (SparseVisit *)(void *)(table + visits_at(pattern, T, most_T));
    for (int block = 0; block < sparse_blocks(most_T); block++)
        for (int r = 0; r < pattern.random; r++)
            table[(int64_t)block * pattern.random + r] =
                r < sparse_n_chosen(pattern, block) ? sparse_choice(pattern, layer, block, r) : -1;
    for (int tile = 0; tile <= tiles; tile++) begins[tile] = 0;
    each_visit(&s, sparse_blocks(T), begins + 1, NULL);
    for (int tile = 0; tile < tiles; tile++) begins[tile + 1] += begins[tile];
    each_visit(&s, sparse_blocks(T), begins, visits);
    for (int tile = tiles; tile > 0; tile--) begins[tile] = begins[tile - 1];
    begins[0] = 0;
    for (int tile = 0; tile < min_int(sparse_first_tiles(pattern), tiles); tile++)
        turn_round(visits + begins[tile], begins[tile + 1] - begins[tile]);
    for (int tile = 0; tile < tiles; tile++)
        mark_ends(visits + begins[tile], begins[tile + 1] - begins[tile]);
}
