/* Causal self-attention without a (T,T) matrix: FlashAttention-2 (Dao 2023, Algorithms 1 and 2) on a CPU.
 *
 * Tiles of TILE queries by TILE keys. Scores are held transposed, (key, query): a vector is VEC queries, so
 * the running maximum, the sum and exp(S - lse) are vertical operations without a reduction across lanes, and
 * the transposed copy of the queries that the product needs is made once per query tile and not once per pair
 * of tiles. All products are tile.h's register tile; on the diagonal they skip what the mask hides; tiles that
 * the mask hides are not visited. Memory: the tiles, on the stack. */
#include <math.h>
#include "cpu.h"
#include "llmc/base/parallel.h"
#include "tile.h"

enum { TILE = 64, MAX_HD = 256 };
_Static_assert(TILE % TILE_COLS == 0 && TILE % TILE_ROWS == 0, "a tile is whole register tiles");
_Static_assert((int)TILE == MASK_BLOCK, "a tile's keys are seen by a tile's queries, or not");

/* (TILE, width): rows of one head, zeros to the right of HD and below the last */
typedef float Rows[TILE * MAX_HD];
/* (HD, TILE): rows of one head transposed, zeros to the right of the last */
typedef float Columns[MAX_HD * TILE];
typedef float Scores[TILE * TILE]; /* (TILE keys, TILE queries) */

typedef struct Attention {
    float *out, *lse, *dqkv;
    const float *qkv, *dout, *saved_out, *saved_lse;
    int64_t T, NH, HD;
    int64_t width;         /* HD rounded up to whole register tiles: the row length of Rows */
    int64_t n_tiles;       /* of TILE rows in T */
    float scale;           /* 1 / sqrt(HD) */
    int64_t window;        /* positions that a query sees, itself among them; T where there is no window */
    const int32_t *starts; /* (B,T) of documents; NULL: there are none */
    uint64_t site;         /* of the dropout's mask */
    uint32_t threshold;    /* of its bits; 0: no dropout */
    float kept_scale;
    BlockSparse sparse;
} Attention;

/* What the mask hides of a product on the diagonal, where tile row i and tile column i are the same position. */
typedef enum {
    WHOLE,
    COLS_FROM_ROW,  /* c (key, query): queries before the key are not needed */
    STEPS_TO_ROW,   /* c (query, ..), summed over keys: none behind the query */
    STEPS_FROM_ROW, /* c (key, ..), summed over queries: none before the key */
} Trim;

/* c (M,N) = or += a b, summed over K; a by its two strides, b rows contiguous. a is read up to whole
 * TILE_ROWS, b up to whole TILE_COLS. */
static void product(float *c, int64_t c_row, int64_t M, int64_t N, bool accumulate, const float *a,
                    int64_t a_row, int64_t a_k, const float *b, int64_t b_row, int64_t K, Trim trim) {
    for (int64_t m = 0; m < M; m += TILE_ROWS) {
        int64_t first_col = trim == COLS_FROM_ROW ? m / TILE_COLS * TILE_COLS : 0;
        int64_t begin = trim == STEPS_FROM_ROW ? m : 0,
                end = trim == STEPS_TO_ROW ? min_i64(K, m + TILE_ROWS) : K;
        for (int64_t n = first_col; n < N; n += TILE_COLS) {
            TileSum sum = tile_product(end - begin, a + m * a_row + begin * a_k, a_row, a_k,
                                       b + begin * b_row + n, b_row);
            for (int64_t i = 0; i < min_i64(M - m, TILE_ROWS); i++)
                for (int64_t j = 0, left = N - n; j < TILE_VECS && left > 0; j++, left -= VEC) {
                    float *at = c + (m + i) * c_row + n + j * VEC;
                    vec_store_n(at, accumulate ? sum.v[i][j] + vec_load_n(at, left) : sum.v[i][j], left);
                }
        }
    }
}

/* Rows from memory, `stride` apart, into a tile. */
static void load_rows(const Attention *f, Rows tile, const float *src, int64_t stride, int64_t n_rows) {
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t d = 0; d < f->width; d += VEC)
            vec_store(tile + i * f->width + d,
                      d < f->HD ? vec_load_n(src + i * stride + d, f->HD - d) : (vec){0});
    memset(tile + n_rows * f->width, 0, sizeof(float) * (size_t)((TILE - n_rows) * f->width));
}

static void transpose(const Attention *f, Columns columns, const Rows tile) {
    for (int64_t i = 0; i < TILE; i += 4)
        for (int64_t d = 0; d < f->HD; d += 4)
            transpose_4x4(columns + d * TILE + i, TILE, tile + i * f->width + d, f->width);
}

/* Number of keys that a vector of queries from `query` on can need: all, or on the diagonal those up to its
 * last lane, in whole register tiles because the products read them so. */
static int64_t visible_keys(int64_t query, int64_t n_keys, bool diagonal) {
    const int64_t limit = round_up(query + VEC, TILE_ROWS);
    return diagonal ? min_i64(n_keys, limit) : n_keys;
}

/* Lanes whose query (from `query` on) comes before the key, on the diagonal. */
static vec_mask hidden(int64_t query, int64_t key) {
    return vec_iota() < (int32_t)(key - query);
}

/* The first keys that a tile's queries see, from q0 on, by position; they grow with the query. 0 beyond the sequence. */
typedef struct FirstKeys {
    int32_t key[TILE];
} FirstKeys;
static FirstKeys first_keys(const Attention *f, int64_t batch, int64_t q0) {
    FirstKeys first = {{0}};
    for (int64_t q = 0; q < min_i64(f->T - q0, TILE); q++) {
        const int64_t begin = f->starts ? f->starts[batch * f->T + q0 + q] : 0;
        first.key[q] = (int32_t)max_i64(q0 + q - f->window + 1, begin);
    }
    return first;
}

/* Keys from this position on lie before the first key of no query of a vector (from `query` of the tile on). */
static int64_t last_first(const FirstKeys *first, int64_t query) {
    int32_t last = 0;
    for (int64_t i = 0; i < VEC; i++) last = first->key[query + i] > last ? first->key[query + i] : last;
    return last;
}

/* Lanes whose query does not see the key at a position, for it comes before its first. */
static vec_mask unseen(const FirstKeys *first, int64_t query, int64_t key) {
    vec_int keys;
    memcpy(&keys, first->key + query, sizeof keys);
    return keys > (int32_t)key;
}

/* Dropout of a tile of scores, (TILE keys, TILE queries), of head `head` of B*NH, from query q0 and key k0 on. */
static void drop_tile(const Attention *f, Scores s, int64_t head, int64_t q0, int64_t k0, int64_t n_keys) {
    _Static_assert(TILE % 2 == 0, "whole words of the mask");
    if (f->threshold == 0) return;
    const DropoutMatrix matrix = dropout_matrix(f->site, head);
    for (int64_t k = 0; k < n_keys; k += 2)
        for (int64_t q = 0; q < TILE; q++) {
            const uint32_t word = dropout_word(matrix, (uint32_t)(q0 + q), (uint32_t)(k0 + k));
            for (int64_t key = k; key < min_i64(n_keys, k + 2); key++)
                s[key * TILE + q] = dropout_dropped_by(word, (uint32_t)key, f->threshold)
                                        ? 0.0f
                                        : s[key * TILE + q] * f->kept_scale;
        }
}

/* State of the online softmax of a query tile. */
typedef struct Softmax {
    float max[TILE], sum[TILE], alpha[TILE]; /* of scale * S; alpha: what the sums so far shrink by */
} Softmax;

/* S becomes P = exp(scale S - max); max, sum and alpha follow. k0: position of the first key. A row that has seen no key
 * yet has max -inf, and takes 0 for it: exp(-inf - 0) = 0. */
static void softmax_tile(const Attention *f, Softmax *state, Scores s, int64_t n_queries, int64_t n_keys,
                         bool diagonal, const FirstKeys *first, int64_t k0) {
    for (int64_t q = 0; q < n_queries; q += VEC) {
        int64_t n = visible_keys(q, n_keys, diagonal);
        vec old_max = vec_load(state->max + q), max = old_max, sum = {0};
        const int64_t last = last_first(first, q);
        for (int64_t k = 0; k < n; k++) {
            vec score = f->scale * vec_load(s + k * TILE + q);
            if (diagonal && k > q) score = vec_select(hidden(q, k), vec_set(-INFINITY), score);
            if (k0 + k < last) score = vec_select(unseen(first, q, k0 + k), vec_set(-INFINITY), score);
            vec_store(s + k * TILE + q, score);
            max = vec_max(score, max);
        }
        const vec base = vec_select(max == vec_set(-INFINITY), (vec){0}, max);
        for (int64_t k = 0; k < n; k++) {
            vec p = vec_exp(vec_load(s + k * TILE + q) - base);
            vec_store(s + k * TILE + q, p);
            sum += p;
        }
        vec alpha = vec_exp(old_max - base);
        vec_store(state->alpha + q, alpha);
        vec_store(state->sum + q, vec_load(state->sum + q) * alpha + sum);
        vec_store(state->max + q, max);
    }
}

/* Rows i of a tile times factor[i]. */
static void scale_rows(const Attention *f, Rows tile, const float *factor, int64_t n_rows) {
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t d = 0; d < f->width; d += VEC)
            vec_store(tile + i * f->width + d, vec_load(tile + i * f->width + d) * factor[i]);
}

/* Task: one query tile of one head. */
static void forward_tile(const void *args, int64_t task) {
    const Attention *f = args;
    int64_t head = task % (f->NH * f->n_tiles) / f->n_tiles, batch = task / (f->NH * f->n_tiles);
    int64_t tile = f->n_tiles - 1 - task % f->n_tiles; /* the longest first */
    int64_t C = f->NH * f->HD, row = 3 * C, q0 = tile * TILE, n_queries = min_i64(f->T - q0, TILE);
    const float *q = f->qkv + batch * f->T * row + head * f->HD, *k = q + C, *v = k + C;
    Rows rows, values, sums;
    Columns queries;
    Scores scores;
    Softmax state;
    load_rows(f, rows, q + q0 * row, row, n_queries);
    transpose(f, queries, rows);
    for (int i = 0; i < TILE; i++) state.max[i] = -INFINITY, state.sum[i] = 0;
    const FirstKeys first = first_keys(f, batch, q0);
    const int64_t k_begin = first.key[0] / TILE * TILE, mask_head = batch * f->NH + head;
    bool begun = false;
    for (int64_t k0 = k_begin; k0 <= q0; k0 += TILE) {
        if (!sparse_sees_key(&f->sparse, q0, k0)) continue;
        bool diagonal = k0 == q0;
        int64_t n_keys = min_i64(f->T - k0, TILE);
        load_rows(f, rows, k + k0 * row, row, n_keys);
        load_rows(f, values, v + k0 * row, row, n_keys);
        product(scores, TILE, n_keys, TILE, false, rows, f->width, 1, queries, TILE, f->HD,
                diagonal ? COLS_FROM_ROW : WHOLE);
        softmax_tile(f, &state, scores, n_queries, n_keys, diagonal, &first, k0);
        drop_tile(f, scores, mask_head, q0, k0, n_keys);
        if (begun) scale_rows(f, sums, state.alpha, n_queries);
        product(sums, f->width, n_queries, f->width, begun, scores, 1, TILE, values, f->width, n_keys,
                diagonal ? STEPS_TO_ROW : WHOLE);
        begun = true;
    }
    float *out = f->out + (batch * f->T + q0) * C + head * f->HD,
          *lse = f->lse + (batch * f->NH + head) * f->T + q0;
    for (int64_t i = 0; i < n_queries; i++) {
        float norm = 1.0f / state.sum[i];
        for (int64_t d = 0; d < f->HD; d += VEC)
            vec_store_n(out + i * C + d, vec_load(sums + i * f->width + d) * norm, f->HD - d);
        lse[i] = state.max[i] + logf(state.sum[i]);
    }
}

static Attention attention_args(const AttentionMask *mask, int T, int NH, int HD) {
    const Dropout *d = &mask->dropout;
    const uint32_t threshold = dropout_threshold(d->p);
    return (Attention){.T = T,
                       .NH = NH,
                       .HD = HD,
                       .width = ceil_div(HD, TILE_COLS) * TILE_COLS,
                       .n_tiles = ceil_div(T, TILE),
                       .scale = 1.0f / sqrtf((float)HD),
                       .window = attention_window(mask, T),
                       .starts = mask->starts,
                       .site = d->p > 0 ? dropout_site(*d->key, d->site) : 0,
                       .threshold = threshold,
                       .kept_scale = dropout_scale(threshold),
                       .sparse = mask->sparse};
}

void cpu_attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                           int T, int NH, int HD) {
    Attention f = attention_args(mask, T, NH, HD);
    f.out = out, f.lse = lse, f.qkv = qkv;
    cpu_parallel_for((int64_t)B * NH * f.n_tiles, forward_tile, &f);
}

/* One query tile in backward. */
typedef struct QueryTile {
    Rows q, dout, dq;
    Columns q_columns, dout_columns;
    float lse[TILE], dot[TILE]; /* dot: D = rowsum(dout * out) */
    int64_t begin, n;
    FirstKeys first;
} QueryTile;

/* From S and dP to P = exp(scale S - lse) and dS = scale P (dP - D). */
static void backward_scores(const Attention *f, const QueryTile *tile, Scores s, Scores dp, int64_t n_keys,
                            bool diagonal, int64_t k0) {
    for (int64_t q = 0; q < tile->n; q += VEC) {
        const int64_t last = last_first(&tile->first, q);
        vec lse = vec_load(tile->lse + q), dot = vec_load(tile->dot + q);
        for (int64_t k = 0, n = visible_keys(q, n_keys, diagonal); k < n; k++) {
            float *s_at = s + k * TILE + q, *dp_at = dp + k * TILE + q;
            vec p = vec_exp(f->scale * vec_load(s_at) - lse);
            if (diagonal && k > q) p = vec_select(hidden(q, k), (vec){0}, p);
            if (k0 + k < last) p = vec_select(unseen(&tile->first, q, k0 + k), (vec){0}, p);
            vec_store(s_at, p);
            vec_store(dp_at, f->scale * p * (vec_load(dp_at) - dot));
        }
    }
}

static void load_query_tile(const Attention *f, QueryTile *tile, int64_t batch, int64_t head) {
    int64_t C = f->NH * f->HD, at = (batch * f->T + tile->begin) * C + head * f->HD;
    load_rows(f, tile->q, f->qkv + at * 3 - 2 * head * f->HD, 3 * C, tile->n);
    load_rows(f, tile->dout, f->dout + at, C, tile->n);
    transpose(f, tile->q_columns, tile->q);
    transpose(f, tile->dout_columns, tile->dout);
    for (int64_t i = 0; i < TILE; i++) {
        vec dot = {0};
        for (int64_t d = 0; i < tile->n && d < f->HD; d += VEC)
            dot += vec_load(tile->dout + i * f->width + d) *
                   vec_load_n(f->saved_out + at + i * C + d, f->HD - d);
        tile->dot[i] = vec_sum(dot);
        tile->lse[i] = i < tile->n ? f->saved_lse[(batch * f->NH + head) * f->T + tile->begin + i] : 0;
    }
}

/* Task: one head. Query tiles in order, so the tile on the diagonal is the first to reach its keys and sets
 * dk and dv where the later ones add. */
static void backward_head(const void *args, int64_t task) {
    const Attention *f = args;
    int64_t head = task % f->NH, batch = task / f->NH, C = f->NH * f->HD, row = 3 * C, width = f->width;
    int64_t q_at = batch * f->T * row + head * f->HD;
    const float *k = f->qkv + q_at + C, *v = k + C;
    float *dq = f->dqkv + q_at, *dk = dq + C, *dv = dk + C;
    QueryTile tile;
    Rows keys, values;
    Scores scores, dscores;
    for (int64_t q0 = 0; q0 < f->T; q0 += TILE) {
        tile.begin = q0, tile.n = min_i64(f->T - q0, TILE);
        load_query_tile(f, &tile, batch, head);
        tile.first = first_keys(f, batch, q0);
        const int64_t k_begin = tile.first.key[0] / TILE * TILE;
        bool begun = false;
        for (int64_t k0 = k_begin; k0 <= q0; k0 += TILE) {
            if (!sparse_sees_key(&f->sparse, q0, k0)) continue;
            bool diagonal = k0 == q0;
            int64_t n_keys = min_i64(f->T - k0, TILE);
            Trim scores_trim = diagonal ? COLS_FROM_ROW : WHOLE,
                 keys_trim = diagonal ? STEPS_FROM_ROW : WHOLE;
            load_rows(f, keys, k + k0 * row, row, n_keys);
            load_rows(f, values, v + k0 * row, row, n_keys);
            product(scores, TILE, n_keys, TILE, false, keys, width, 1, tile.q_columns, TILE, f->HD,
                    scores_trim);
            product(dscores, TILE, n_keys, TILE, false, values, width, 1, tile.dout_columns, TILE, f->HD,
                    scores_trim);
            drop_tile(f, dscores, task, q0, k0, n_keys);
            backward_scores(f, &tile, scores, dscores, n_keys, diagonal, k0);
            drop_tile(f, scores, task, q0, k0, n_keys);
            product(dv + k0 * row, row, n_keys, f->HD, !diagonal, scores, TILE, 1, tile.dout, width, tile.n,
                    keys_trim);
            product(dk + k0 * row, row, n_keys, f->HD, !diagonal, dscores, TILE, 1, tile.q, width, tile.n,
                    keys_trim);
            product(tile.dq, width, tile.n, width, begun, dscores, 1, TILE, keys, width, n_keys,
                    diagonal ? STEPS_TO_ROW : WHOLE);
            begun = true;
        }
        for (int64_t i = 0; i < tile.n; i++)
            memcpy(dq + (q0 + i) * row, tile.dq + i * width, sizeof(float) * (size_t)f->HD);
    }
}

/* d is not read: a tile has D from its rows of dout and out while they are at hand. */
void cpu_attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                            const float *lse, const float *d, const AttentionMask *mask, void *scratch, int B,
                            int T, int NH, int HD) {
    Attention f = attention_args(mask, T, NH, HD);
    f.dqkv = dqkv, f.dout = dout, f.saved_out = out, f.qkv = qkv, f.saved_lse = lse;
    cpu_parallel_for((int64_t)B * NH, backward_head, &f);
}
