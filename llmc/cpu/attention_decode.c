/* One query of each sequence against the keys and values of its own cache: sampling. */
#include <math.h>
#include "cpu.h"
#include "llmc/base/parallel.h"
#include "vec.h"

enum { KEYS = 64, MAX_HD = 256 }; /* keys between two updates of the running maximum */

typedef struct Decode {
    float *out, *cache;
    const float *qkv;
    const int32_t *positions, *begins;
    int64_t window, T, NH, HD;
    BlockSparse sparse;
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

/* Keys [begin, end), whose rows of k and v are 2 C apart, with the online softmax of attention.c for a single row. */
static void attend(float *out, const float *q, const float *k, int64_t C, int64_t HD, int64_t begin,
                   int64_t end, const BlockSparse *sparse) {
    _Static_assert((int)KEYS == MASK_BLOCK, "blocks are seen or not");
    const int64_t row = 2 * C;
    const float *v = k + C, scale = 1.0f / sqrtf((float)HD);
    float max = -INFINITY, total = 0, sum[MAX_HD] = {0}, weights[KEYS];
    for (; begin < end; begin += KEYS) {
        if (!sparse_sees_key(sparse, end - 1, begin)) continue;
        int64_t n = min_i64(end - begin, KEYS);
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
    for (int64_t d = 0; d < HD; d++) out[d] = sum[d] / total;
}

/* Task: one head of one sequence. */
static void decode_head(const void *args, int64_t task) {
    const Decode *f = args;
    const int64_t HD = f->HD, C = f->NH * HD, b = task / f->NH, at = task % f->NH * HD,
                  position = f->positions[b];
    const float *q = f->qkv + b * 3 * C + at;
    float *k = f->cache + b * f->T * 2 * C + at, *new_k = k + position * 2 * C;
    memcpy(new_k, q + C, (size_t)HD * sizeof *k);
    memcpy(new_k + C, q + 2 * C, (size_t)HD * sizeof *k);
    int64_t begin = f->window && position >= f->window ? position + 1 - f->window : 0;
    if (f->begins && f->begins[b] > begin) begin = f->begins[b];
    attend(f->out + b * C + at, q, k, C, HD, begin, position + 1, &f->sparse);
}

void cpu_attention_decode(floatX *out, floatX *cache, const floatX *qkv, const int32_t *positions,
                          const int32_t *begins, float *scratch, const AttentionMask *mask, int B, int T,
                          int NH, int HD) {
    cpu_parallel_for((int64_t)B * NH, decode_head,
                     &(Decode){out, cache, qkv, positions, begins, mask->window, T, NH, HD, mask->sparse});
}
