/* Drawing one token from its logits; host arithmetic only. */
#include <math.h>
#include <string.h>
#include "llmc/base/random.h"
#include "sampler.h"

/* Maps floats to integers in the same order; NaN is below everything. */
static uint32_t order_key(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return isnan(x) ? 0 : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

static int count_from(const float *logits, int V, uint32_t key) {
    int n = 0;
    for (int i = 0; i < V; i++) n += order_key(logits[i]) >= key;
    return n;
}

/* Key of the k-th largest logit, 1 <= k <= V: 32 counting passes, one a bit; no sorting, no memory. */
static uint32_t kth_largest_key(const float *logits, int V, int k) {
    uint32_t key = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1)
        if (count_from(logits, V, key | bit) >= k) key |= bit;
    return key;
}

static int argmax(const float *logits, int V) {
    int best = 0;
    for (int i = 1; i < V; i++)
        if (order_key(logits[i]) > order_key(logits[best])) best = i;
    return best;
}

/* Softmax weights, not normalised: exp((z - largest) / temperature), 0 for what top-k leaves out. */
typedef struct Weights {
    const float *logits;
    int V;
    double largest, temperature;
    uint32_t floor_key; /* logits below are left out */
    int ties;           /* of those equal to floor_key, so many stay: the lowest ids */
} Weights;

/* Adds up the weights in the order of the ids until the sum passes `point`. Returns the id that passed it
 * (the last with a weight, should rounding let none pass); *sum is what was added up. */
static int walk(const Weights *w, double point, double *sum) {
    int chosen = 0, left = w->ties;
    *sum = 0;
    for (int i = 0; i < w->V && *sum <= point; i++) {
        const uint32_t key = order_key(w->logits[i]);
        if (key < w->floor_key || !isfinite(w->logits[i]) || (key == w->floor_key && left-- <= 0)) continue;
        const double weight = exp((w->logits[i] - w->largest) / w->temperature);
        if (weight > 0) chosen = i;
        *sum += weight;
    }
    return chosen;
}

int sample_token(const float *logits, int V, float temperature, int top_k, uint64_t *rng) {
    const int best = argmax(logits, V);
    if (!(temperature > 0) || top_k == 1 || !isfinite(logits[best])) return best;
    Weights w = {.logits = logits, .V = V, .largest = logits[best], .temperature = temperature, .ties = V};
    if (top_k > 0 && top_k < V) {
        w.floor_key = kth_largest_key(logits, V, top_k);
        w.ties = top_k - count_from(logits, V, w.floor_key + 1);
    }
    double sum;
    walk(&w, INFINITY, &sum);
    return walk(&w, random_uniform(rng) * sum, &sum);
}
