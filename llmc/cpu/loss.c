/* Cross-entropy on logits in place: loss = logsumexp(z) - z[target]. */
#include <math.h>
#include "cpu.h"
#include "llmc/base/parallel.h"
#include "vec.h"

enum { ROWS = 8 }; /* rows of a task */

typedef struct CrossEntropy {
    float *losses, *dlogits; /* dlogits is logits, or NULL: the loss alone */
    const float *logits;
    const int32_t *targets;
    float dloss;
    int64_t N, V, Vp;
} CrossEntropy;

static float row_max(const float *z, int64_t V) {
    vec max = vec_set(-INFINITY);
    for (int64_t c = 0; c + VEC <= V; c += VEC) max = vec_max(vec_load(z + c), max);
    float best = vec_max_lane(max);
    for (int64_t c = V / VEC * VEC; c < V; c++) best = z[c] > best ? z[c] : best;
    return best;
}

/* Sum of exp(z - max); keeps the terms in `terms` unless that is NULL. A NaN among z makes the sum NaN. */
static float sum_exp(float *terms, const float *z, float max, int64_t V) {
    vec sum = {0};
    for (int64_t c = 0; c < V; c += VEC) {
        vec e = vec_exp(vec_load_n(z + c, V - c) - max);
        sum += vec_first_n(e, V - c);
        if (terms) vec_store_n(terms + c, e, V - c);
    }
    return vec_sum(sum);
}

/* Task: ROWS rows. */
static void cross_entropy_rows(const void *args, int64_t task) {
    const CrossEntropy *f = args;
    for (int64_t n = task * ROWS; n < min_i64(f->N, (task + 1) * ROWS); n++) {
        const float *z = f->logits + n * f->Vp;
        float max = row_max(z, f->V), target = z[f->targets[n]];
        float *d = f->dlogits ? f->dlogits + n * f->Vp : NULL;
        float sum = sum_exp(d, z, max, f->V);
        f->losses[n] = (max - target) + logf(sum); /* the difference first: exact where both are large */
        if (!d) continue;
        float scale = f->dloss / sum;
        for (int64_t c = 0; c < f->V; c += VEC)
            vec_store_n(d + c, vec_load_n(d + c, f->V - c) * scale, f->V - c);
        d[f->targets[n]] -= f->dloss;
        memset(d + f->V, 0, sizeof(float) * (size_t)(f->Vp - f->V));
    }
}

void cpu_cross_entropy_backward_inplace(float *losses, floatX *logits, const int32_t *targets, float dloss,
                                        int64_t N, int V, int Vp) {
    cpu_parallel_for(ceil_div(N, ROWS), cross_entropy_rows,
                     &(CrossEntropy){losses, logits, logits, targets, dloss, N, V, Vp});
}

void cpu_cross_entropy_forward(float *losses, const floatX *logits, const int32_t *targets, int64_t N, int V,
                               int Vp) {
    cpu_parallel_for(ceil_div(N, ROWS), cross_entropy_rows,
                     &(CrossEntropy){losses, NULL, logits, targets, 0, N, V, Vp});
}
