#include "bpe.h"
#include <stdlib.h>
#include <string.h>

/* ---- the table of tokens by their bytes: open addressing, linear probing ---- */

/* FNV-1a (Fowler, Noll, Vo), 64 bits, folded. */
static size_t hash_of(const uint8_t *bytes, size_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ bytes[i]) * 0x100000001B3u;
    return (size_t)(h ^ h >> 32);
}

/* The slot that holds the token of these bytes, or the empty one where it would go. */
static int32_t *slot_of(const Bpe *bpe, const uint8_t *bytes, size_t n) {
    size_t i = hash_of(bytes, n) & (bpe->n_slots - 1);
    for (;; i = (i + 1) & (bpe->n_slots - 1)) {
        if (bpe->slots[i] < 0 || vocabulary_is(bpe->vocabulary, bpe->slots[i], bytes, n))
            return &bpe->slots[i];
    }
}

/* Token of these bytes, -1: none. */
static int32_t token_of(const Bpe *bpe, const uint8_t *bytes, size_t n) {
    return n > bpe->longest ? -1 : *slot_of(bpe, bytes, n);
}

/* ---- merging one piece: a list of symbols and a heap of the pairs that may merge ---- */

/* A symbol is named by the index of its first byte in the piece. */
typedef struct Symbol {
    int32_t token;   /* -1: merged into the symbol before it */
    size_t end;      /* one past its last byte: the next symbol's index */
    size_t previous; /* SIZE_MAX: it is the first */
} Symbol;

/* Ordered by (rank, left). Stale once its symbols were merged otherwise: then `end` no longer agrees. */
typedef struct Pair {
    int32_t rank;     /* id of the merged token */
    size_t left, end; /* the bytes [left, end) of the piece */
} Pair;

typedef struct Merger {
    Symbol *symbols; /* one a byte of the piece */
    Pair *heap;
    size_t n_heap;
    size_t capacity; /* bytes of the longest piece that fits */
} Merger;

static bool comes_before(const Pair *a, const Pair *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void heap_push(Merger *m, Pair pair) {
    size_t i = m->n_heap++;
    for (; i > 0 && comes_before(&pair, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = pair;
}

static Pair heap_pop(Merger *m) {
    Pair top = m->heap[0], pair = m->heap[--m->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < m->n_heap; i = child) {
        if (child + 1 < m->n_heap && comes_before(&m->heap[child + 1], &m->heap[child])) child++;
        if (!comes_before(&m->heap[child], &pair)) break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = pair;
    return top;
}

/* Room for a piece of n bytes. n - 1 pairs at the start, and each of at most n - 1 merges pushes two: 3 n. */
static bool merger_reserve(Merger *m, size_t n) {
    if (n <= m->capacity) return true;
    size_t capacity = n < 256 ? 256 : n;
    free(m->symbols);
    free(m->heap);
    m->symbols = malloc(capacity * sizeof *m->symbols);
    m->heap = malloc(3 * capacity * sizeof *m->heap);
    m->capacity = m->symbols && m->heap ? capacity : 0;
    return m->capacity > 0;
}

static void merger_free(Merger *m) {
    free(m->symbols);
    free(m->heap);
}

/* Queues the merge of the symbol at `left` with its right neighbour, if together they are a token. */
static void offer_pair(const Bpe *bpe, Merger *m, const uint8_t *piece, size_t n, size_t left) {
    size_t middle = m->symbols[left].end;
    if (middle == n) return;
    size_t end = m->symbols[middle].end;
    int32_t rank = token_of(bpe, piece + left, end - left);
    if (rank >= 0) heap_push(m, (Pair){rank, left, end});
}

/* Merges the n bytes of piece; the tokens are then m->symbols from 0, each followed by the one at its end.
 * m has room for n. */
static void merge_piece(const Bpe *bpe, Merger *m, const uint8_t *piece, size_t n) {
    m->n_heap = 0;
    for (size_t i = 0; i < n; i++) m->symbols[i] = (Symbol){bpe->byte_token[piece[i]], i + 1, i - 1};
    for (size_t i = 0; i < n; i++) offer_pair(bpe, m, piece, n, i);
    while (m->n_heap > 0) {
        Pair pair = heap_pop(m);
        Symbol *left = &m->symbols[pair.left];
        size_t middle = left->end;
        bool stale = left->token < 0 || middle >= pair.end || m->symbols[middle].end != pair.end;
        if (stale) continue;
        left->token = pair.rank;
        left->end = pair.end;
        m->symbols[middle].token = -1;
        if (pair.end < n) m->symbols[pair.end].previous = pair.left;
        if (pair.left > 0) offer_pair(bpe, m, piece, n, left->previous);
        offer_pair(bpe, m, piece, n, pair.left);
    }
}

/* ---- opening ---- */

/* Enters the tokens of one byte, which every other token is made of. */
static bool enter_bytes(Bpe *bpe, Error *err) {
    const Vocabulary *v = bpe->vocabulary;
    for (int b = 0; b < 256; b++) bpe->byte_token[b] = -1;
    for (int i = 0; i < v->n_tokens; i++) {
        size_t n;
        const uint8_t *bytes = vocabulary_bytes(v, i, &n);
        if (i == v->eot || n != 1) continue;
        int32_t *slot = slot_of(bpe, bytes, 1);
        if (*slot >= 0)
            return fail(err, EXIT_INPUT, "tokens %d and %d are the same byte 0x%02x", *slot, i, *bytes);
        *slot = bpe->byte_token[*bytes] = i;
    }
    for (int b = 0; b < 256; b++) {
        if (bpe->byte_token[b] < 0)
            return fail(err, EXIT_INPUT,
                        "no token for byte 0x%02x: byte-level BPE needs a token for each of the 256 bytes",
                        b);
    }
    return true;
}

/* Enters the longer tokens in the order of their ids: when the merges so far leave exactly two symbols of a
 * token's bytes, those are its parts. */
static bool enter_merges(Bpe *bpe, Merger *m, Error *err) {
    for (int i = 0; i < bpe->vocabulary->n_tokens; i++) {
        size_t n;
        const uint8_t *bytes = vocabulary_bytes(bpe->vocabulary, i, &n);
        if (i == bpe->vocabulary->eot || n == 1) continue;
        if (!merger_reserve(m, n)) return fail(err, EXIT_RUN, "out of memory for the merges of token %d", i);
        merge_piece(bpe, m, bytes, n);
        size_t middle = m->symbols[0].end;
        if (middle == n)
            return fail(err, EXIT_INPUT, "tokens %d and %d are the same %zu bytes", m->symbols[0].token, i,
                        n);
        if (m->symbols[middle].end != n) continue;
        bpe->parts[i][0] = m->symbols[0].token;
        bpe->parts[i][1] = m->symbols[middle].token;
        if (n > bpe->longest) bpe->longest = n;
        *slot_of(bpe, bytes, n) = i;
    }
    return true;
}

bool bpe_open(Bpe *bpe, const Vocabulary *vocabulary, Error *err) {
    const int n_tokens = vocabulary->n_tokens;
    *bpe = (Bpe){.vocabulary = vocabulary, .longest = 1, .n_slots = 1};
    for (int i = 0; i < n_tokens; i++)
        if (vocabulary->offsets[i + 1] == vocabulary->offsets[i])
            return fail(err, EXIT_INPUT, "token %d is empty", i);
    while (bpe->n_slots < 2 * (size_t)n_tokens) bpe->n_slots *= 2; /* at most half full: short probes */
    bpe->slots = malloc(bpe->n_slots * sizeof *bpe->slots);
    bpe->parts = malloc((size_t)n_tokens * sizeof *bpe->parts);
    bool ok = bpe->slots && bpe->parts;
    if (!ok) {
        fail(err, EXIT_RUN, "out of memory for a vocabulary of %d tokens", n_tokens);
    } else {
        memset(bpe->slots, 0xFF, bpe->n_slots * sizeof *bpe->slots);
        memset(bpe->parts, 0xFF, (size_t)n_tokens * sizeof *bpe->parts);
        Merger m = {0};
        ok = enter_bytes(bpe, err) && enter_merges(bpe, &m, err);
        merger_free(&m);
    }
    if (!ok) bpe_close(bpe);
    return ok;
}

void bpe_close(Bpe *bpe) {
    free(bpe->slots);
    free(bpe->parts);
    bpe->slots = NULL;
    bpe->parts = NULL;
}

bool bpe_is_special(const Bpe *bpe, int token) {
    const uint32_t *offsets = bpe->vocabulary->offsets;
    return token == bpe->vocabulary->eot ||
           (offsets[token + 1] - offsets[token] > 1 && bpe->parts[token][0] < 0);
}

/* ---- encoding ---- */

/* Room for `more` tokens after the first n. */
static bool reserve_tokens(int32_t **tokens, size_t *capacity, size_t n, size_t more) {
    if (n + more <= *capacity) return true;
    size_t grown = *capacity + *capacity / 2;
    if (grown < n + more) grown = n + more;
    int32_t *moved = realloc(*tokens, grown * sizeof **tokens);
    if (!moved) return false;
    *tokens = moved;
    *capacity = grown;
    return true;
}

/* Appends the tokens of one piece, at most `length` of them, to tokens[*n]. */
static bool encode_piece(const Bpe *bpe, Merger *m, const uint8_t *piece, size_t length, int32_t *tokens,
                         size_t *n) {
    int32_t whole = token_of(bpe, piece, length); /* most pieces are a token: no merging needed */
    if (whole >= 0) {
        tokens[(*n)++] = whole;
        return true;
    }
    if (!merger_reserve(m, length)) return false;
    merge_piece(bpe, m, piece, length);
    for (size_t i = 0; i < length; i = m->symbols[i].end) tokens[(*n)++] = m->symbols[i].token;
    return true;
}

bool bpe_encode(const Bpe *bpe, const char *text, size_t length, int32_t **tokens, size_t *n, Error *err) {
    size_t capacity = *n, at = 0;
    Merger m = {0};
    bool ok = reserve_tokens(tokens, &capacity, *n, length / 4 + 16); /* English: about 4.5 bytes a token */
    while (ok && at < length) {
        size_t piece = bpe_split(text + at, length - at);
        ok = reserve_tokens(tokens, &capacity, *n, piece) &&
             encode_piece(bpe, &m, (const uint8_t *)text + at, piece, *tokens, n);
        at += piece;
    }
    merger_free(&m);
    return ok || fail(err, EXIT_RUN, "out of memory at byte %zu of %zu of a text to encode", at, length);
}
