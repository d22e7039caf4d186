/* Block-sparse attention: which blocks of 64 keys a block of 64 queries sees (Zaheer et al. 2020, the pattern of Big
 * Bird, causal). Besides its own block up to the diagonal a block of queries sees, all of it:
 *
 *   window   as many blocks before its own
 *   first    as many blocks at the start of the sequence
 *   random   as many of the blocks between those two, one in each of `random` equal parts; all where there are no more
 *
 * The random blocks are a hash of (layer, block of queries, part), not of a run's seed: a model sees the same in every
 * run that reads it, at any length of the sequence, and in each layer others. All heads see the same.
 *
 * Kernels read them from a table in device memory. Forward and decoding need `chosen` alone. Backward of tiles of 128
 * keys needs `visits`, the way round: which blocks of queries see a tile. To dQ of a block of queries its tiles add in one
 * order: those at the start of the sequence, the first one first, then the others from the diagonal down. For a tile at the
 * start is seen by all: it begins before the others and goes from the last block to the first, so that nobody waits for it
 * at the end; the others' visits rise. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dropout.h"

#ifdef __CUDACC__
#define SPARSE_FUNCTION static __host__ __device__ __forceinline__
#else
#define SPARSE_FUNCTION static inline
#endif

enum { MASK_BLOCK = 64, VISITED_BLOCKS = 2 /* of keys in a tile of the visits */, MOST_BLOCKS = 1 << 20 };

/* In blocks; window 0: there is no pattern. */
typedef struct SparsePattern {
    int window, first, random;
} SparsePattern;

/* A block of queries sees keys of a tile: keys of its first half, of its second; it is the last visit of those of the
 * first half, of the second; the tile is the last to add to its dQ. */
enum {
    SEES_FIRST = 1,
    SEES_SECOND = 2,
    ENDS_FIRST = 4,
    ENDS_SECOND = 8,
    ADDS_LAST = 16,
};
typedef struct SparseVisit {
    int32_t block;  /* of queries */
    int32_t flags;  /* SEES_FIRST, .. */
    int32_t before; /* tiles that add to its dQ before this one */
} SparseVisit;

typedef struct BlockSparse {
    SparsePattern pattern;
    const int32_t *chosen;     /* (blocks, random): the random blocks, rising; -1: none */
    const int32_t *begins;     /* (tiles + 1): where the visits of a tile begin */
    const SparseVisit *visits; /* of all tiles, for sequences of exactly the table's T */
} BlockSparse;

SPARSE_FUNCTION int sparse_blocks(int T) {
    return (T + MASK_BLOCK - 1) / MASK_BLOCK;
}

/* Tiles that have keys at the start, if there are as many. */
SPARSE_FUNCTION int sparse_first_tiles(SparsePattern p) {
    return (p.first + VISITED_BLOCKS - 1) / VISITED_BLOCKS;
}

/* Random blocks that a block of queries sees. */
SPARSE_FUNCTION int sparse_n_chosen(SparsePattern p, int query_block) {
    const int n = query_block - p.window - p.first;
    return n < 0 ? 0 : n < p.random ? n : p.random;
}

/* Which block the r-th of those is: of n = sparse_n_chosen parts of what lies between the start and the window one each. */
SPARSE_FUNCTION int32_t sparse_choice(SparsePattern p, int layer, int query_block, int r) {
    const int64_t room = query_block - p.window - p.first, n = sparse_n_chosen(p, query_block);
    const int64_t begin = room * r / n, size = room * (r + 1) / n - begin;
    const uint64_t bits =
        dropout_mix(dropout_mix((uint64_t)layer << 32 | (uint64_t)query_block) + (uint64_t)r);
    return (int32_t)(p.first + begin + (int64_t)(bits % (uint64_t)size));
}

/* key_block <= query_block */
SPARSE_FUNCTION bool sparse_sees(const BlockSparse *s, int query_block, int key_block) {
    if (key_block >= query_block - s->pattern.window || key_block < s->pattern.first) return true;
    for (int r = 0; r < s->pattern.random; r++)
        if (s->chosen[(int64_t)query_block * s->pattern.random + r] == key_block) return true;
    return false;
}

/* The same of positions, key <= query; without a pattern all are seen. */
SPARSE_FUNCTION bool sparse_sees_key(const BlockSparse *s, int64_t query, int64_t key) {
    return s->pattern.window == 0 || sparse_sees(s, (int)(query / MASK_BLOCK), (int)(key / MASK_BLOCK));
}

/* Whether the pattern leaves out anything of T positions. */
SPARSE_FUNCTION bool sparse_cuts(const BlockSparse *s, int T) {
    const SparsePattern p = s->pattern;
    return p.window > 0 && sparse_blocks(T) - 1 - p.window - p.first > p.random;
}

#ifdef __cplusplus
extern "C" {
#endif

/* "W,G,R", tokens, tokens, blocks, or "0": none. False: it says something else. */
bool sparse_read(SparsePattern *pattern, const char *text);
/* Returns buffer. */
const char *sparse_text(char *buffer, size_t size, SparsePattern pattern);

/* Pairs of query and key that are seen, of one head, those of a block on the diagonal counted as half. */
double sparse_pairs(SparsePattern pattern, int T);

/* The table of a layer: random blocks for sequences up to most_T, visits for T (T <= most_T). Words: as many as any layer
 * needs. */
size_t sparse_table_words(SparsePattern pattern, int T, int most_T);
/* Of a layer at most; the table counts them in int32. */
int64_t sparse_most_visits(SparsePattern pattern, int T);
void sparse_table(int32_t *table, SparsePattern pattern, int T, int most_T, int layer);
/* The table, wherever it lies. */
BlockSparse sparse_of(SparsePattern pattern, const int32_t *table, int T, int most_T);

#ifdef __cplusplus
}
#endif
