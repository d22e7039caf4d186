/* Hash of a buffer. */
#include "cpu.h"
#include "llmc/model/hash.h"
#include "llmc/base/parallel.h"

enum { TASK_PIECES = 1 << 16 };

typedef struct Hash {
    uint64_t *hash; /* += */
    const char *x;
    int64_t n_pieces;
} Hash;

/* Task: TASK_PIECES pieces. */
static void hash_pieces(const void *args, int64_t task) {
    const Hash *h = args;
    const int64_t first = task * TASK_PIECES, end = min_i64(h->n_pieces, first + TASK_PIECES);
    uint64_t sum = 0, words[2];
    for (int64_t i = first; i < end; i++) {
        memcpy(words, h->x + i * HASH_PIECE, sizeof words);
        sum += hash_piece(words[0], words[1], i);
    }
    __atomic_fetch_add(h->hash, sum, __ATOMIC_RELAXED);
}

void cpu_hash_bytes(uint64_t *hash, const void *x, int64_t n_bytes) {
    const Hash h = {hash, x, n_bytes / HASH_PIECE};
    cpu_parallel_for(ceil_div(h.n_pieces, TASK_PIECES), hash_pieces, &h);
}
