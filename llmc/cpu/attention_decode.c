/* One query against the keys and values of its own sequence: sampling with a cache. */
#include <math.h>
#include "cpu.h"
#include "parallel.h"
#include "vec.h"

enum { KEYS = 64, MAX_HD = 256 }; /* keys between two updates of the running maximum */

typedef struct Decode {
    float *out;
    const float *qkv;
    int64_t n_keys, C, HD;
} Decode;

static float dot(const float *a, const float *b, int64_t n) {
    vec sum = {0};
    for (int64_t i = 0; i < n; i += VEC) sum += vec_load_n(a + i, n - i) * vec_load_n(b + i, n - i);
    return vec_sum(sum);
}

/* y = alpha * y + x * factor */
static void scale_add(float *y, float alpha, const float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i += VEC)
        vec_store_n(y + i, vec_load_n(y + i, n - i) * alpha + vec_load_n(x + i, n - i) * factor, n - i);
}

/* Task: one head, with the online softmax of attention.c for a single row. */
static void decode_head(const void *args, int64_t task) {
    const Decode *f = args;
    int64_t HD = f->HD, row = 3 * f->C;
    const float *k = f->qkv + f->C + task * HD, *v = k + f->C;
    const float *q = f->qkv + (f->n_keys - 1) * row + task * HD;
    float scale = 1.0f / sqrtf((float)HD), max = -INFINITY, total = 0, sum[MAX_HD] = {0}, weights[KEYS];
    for (int64_t begin = 0; begin < f->n_keys; begin += KEYS) {
        int64_t n = min_i64(f->n_keys - begin, KEYS);
        float new_max = max;
        for (int64_t j = 0; j < n; j++) {
            weights[j] = dot(q, k + (begin + j) * row, HD) * scale;
            new_max = weights[j] > new_max ? weights[j] : new_max;
        }
        float alpha = expf(max - new_max);
        total *= alpha;
        for (int64_t j = 0; j < n; j++) {
            float weight = expf(weights[j] - new_max);
            scale_add(sum, j == 0 ? alpha : 1.0f, v + (begin + j) * row, weight, HD);
            total += weight;
        }
        max = new_max;
    }
    for (int64_t d = 0; d < HD; d++) f->out[task * HD + d] = sum[d] / total;
}

void cpu_attention_decode(floatX *out, const floatX *qkv, float *scratch, int t, int NH, int HD) {
    cpu_parallel_for(NH, decode_head, &(Decode){out, qkv, (int64_t)t + 1, (int64_t)NH * HD, HD});
}
