/* Draws tokens from logits. What top-k and top-p leave is found as a floor: a logit, and how many of those equal to it
 * stay. */
#include <float.h>
#include <math.h>
#include <string.h>
#include "cpu.h"
#include "llmc/base/random.h"
#include "llmc/base/parallel.h"

/* Maps floats to integers in the same order; NaN is below everything. */
static uint32_t order_key(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return isnan(x) ? 0 : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

static int argmax(const float *logits, int V) {
    int best = 0;
    for (int i = 1; i < V; i++)
        if (order_key(logits[i]) > order_key(logits[best])) best = i;
    return best;
}

typedef struct Draw {
    const float *logits;
    int V;
    float largest, temperature, min_p;
    uint32_t floor; /* order_key below which logits are left out */
    int ties;       /* of those equal to it, so many stay */
} Draw;

static double weight_of(const Draw *d, float z) {
    return isfinite(z) ? (double)expf((z - d->largest) / d->temperature) : 0;
}

/* Of the logits whose key is at least `key`: how many, or their weights exp((z - largest) / temperature). */
typedef double AmountFrom(const Draw *d, uint32_t key);
static double count_from(const Draw *d, uint32_t key) {
    int n = 0;
    for (int i = 0; i < d->V; i++) n += order_key(d->logits[i]) >= key;
    return n;
}
static double weight_from(const Draw *d, uint32_t key) {
    double weight = 0;
    for (int i = 0; i < d->V; i++)
        if (order_key(d->logits[i]) >= key) weight += weight_of(d, d->logits[i]);
    return weight;
}

/* The largest key from which on there is `wanted`, more than 0; 32 passes, one a bit: no sorting, no memory. */
static uint32_t floor_of(const Draw *d, AmountFrom *amount_from, double wanted) {
    uint32_t key = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1)
        if (amount_from(d, key | bit) >= wanted) key |= bit;
    return key;
}

static void keep_top_k(Draw *d, int k) {
    if (k <= 0 || k >= d->V) return;
    d->floor = floor_of(d, count_from, k);
    d->ties = k - (int)count_from(d, d->floor + 1);
}

static float value_of_key(uint32_t key) {
    const uint32_t bits = key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* What top-k left adds up to `total`; of that. */
static void keep_top_p(Draw *d, float p) {
    if (!(p < 1)) return;
    const uint32_t floor = d->floor; /* without top-k NaN's, which weighs nothing */
    const double total = weight_from(d, floor + 1) + d->ties * weight_of(d, value_of_key(floor));
    const double wanted = fmax(p * total, DBL_MIN); /* of p = 0 the largest stays */
    d->floor = floor_of(d, weight_from, wanted);
    const double each = weight_of(d, value_of_key(d->floor)),
                 n = ceil((wanted - weight_from(d, d->floor + 1)) / each);
    d->ties = n > 1 ? (int)fmin(n, d->floor == floor ? d->ties : d->V) : 1;
}

/* Walks the ids in the order of the draw until the weights passed `point`. Returns the id that passed it (the last with
 * a weight, should rounding let none pass); *sum is what was added up. */
static int walk(const Draw *d, double point, double *sum) {
    int chosen = 0, left = d->ties;
    *sum = 0;
    for (int column = 0; column < DRAW_COLUMNS; column++)
        for (int i = column; i < d->V; i += DRAW_COLUMNS) {
            const uint32_t key = order_key(d->logits[i]);
            if (key < d->floor || (key == d->floor && left-- <= 0)) continue;
            const double weight = weight_of(d, d->logits[i]);
            if (!(weight > 0) || weight < d->min_p) continue;
            chosen = i;
            *sum += weight;
            if (*sum > point) return chosen;
        }
    return chosen;
}

static int draw_one(const DrawArgs *a, const float *logits, uint64_t *rng) {
    const int best = argmax(logits, a->V);
    if (!(a->temperature > 0) || a->top_k == 1 || !isfinite(logits[best])) return best;
    Draw d = {logits, a->V, logits[best], a->temperature, a->min_p, 0, a->V};
    double sum;
    keep_top_k(&d, a->top_k);
    keep_top_p(&d, a->top_p);
    walk(&d, INFINITY, &sum);
    return walk(&d, random_uniform(rng) * sum, &sum);
}

/* Task: one sequence. */
static void draw_sequence(const void *args, int64_t b) {
    const DrawArgs *a = args;
    const float *logits = (const float *)a->logits + b * a->Vp;
    int n_bad = 0;
    for (int v = 0; v < a->V; v++) n_bad += !isfinite(logits[v]);
    a->tokens[b] = draw_one(a, logits, &a->rng[b]);
    const int32_t position = ++a->positions[b];
    a->drawn[(int64_t)(position % DRAWN_ROWS) * a->B + b] = n_bad ? -n_bad : a->tokens[b];
}

void cpu_draw_tokens(const DrawArgs *args) {
    cpu_parallel_for(args->B, draw_sequence, args);
}
