/* Attention in the textbook form, with the whole (T,T) matrix of probabilities: for comparison with
 * attention.c. */
#include <math.h>
#include "cpu.h"
#include "matmul.h"
#include "llmc/base/parallel.h"
#include "vec.h"

/* c = a b */
static void product(View c, View a, View b) {
    cpu_matmul(&(Matmul){.a = a, .b = b, .c = c});
}

/* q, k or v (which = 0, 1, 2) of head i of B*NH in a packed (B,T,3,NH,HD): (T,HD). */
static View packed_head(const floatX *qkv, int which, int64_t i, int64_t T, int64_t NH, int64_t HD) {
    return (View){(float *)qkv + ((i / NH * T * 3 + which) * NH + i % NH) * HD, T, HD, 3 * NH * HD, 1};
}

/* Head i of a (B,T,NH,HD): (T,HD). */
static View head(const floatX *x, int64_t i, int64_t T, int64_t NH, int64_t HD) {
    return (View){(float *)x + (i / NH * T * NH + i % NH) * HD, T, HD, NH * HD, 1};
}

/* Matrix i of a (B*NH,T,T). */
static View square(const floatX *x, int64_t i, int64_t T) {
    return view((const float *)x + i * T * T, T, T);
}

typedef struct Rows {
    float *probs, *dprobs; /* (T,T) of one head */
    int64_t T, window;
    const int32_t *starts; /* (T) of documents; NULL: there are none */
    float scale;
    BlockSparse sparse;
} Rows;

/* The first key that query t sees. */
static int64_t first_key(const Rows *r, int64_t t) {
    return max_i64(t + 1 - r->window, r->starts ? r->starts[t] : 0);
}
static const int32_t *starts_of(const AttentionMask *mask, int64_t head, int64_t T, int64_t NH) {
    return mask->starts ? mask->starts + head / NH * T : NULL;
}

/* Scores of blocks that query t does not see become -inf. */
static void hide_blocks(const Rows *r, int64_t t) {
    for (int64_t key = 0; key < t / MASK_BLOCK * MASK_BLOCK; key += MASK_BLOCK)
        for (int j = 0; j < MASK_BLOCK && !sparse_sees_key(&r->sparse, t, key); j++)
            r->probs[t * r->T + key + j] = -INFINITY;
}

/* Task: row t of scores becomes softmax(scale * scores) over the keys that query t sees, and 0 over the others. */
static void softmax_row(const void *args, int64_t t) {
    const Rows *r = args;
    const int64_t first = first_key(r, t), n = t + 1 - first;
    float *row = r->probs + t * r->T + first, max = -INFINITY;
    hide_blocks(r, t);
    for (int64_t j = 0; j < n; j++) max = row[j] * r->scale > max ? row[j] * r->scale : max;
    vec sum = {0};
    for (int64_t j = 0; j < n; j += VEC) {
        vec e = vec_exp(vec_load_n(row + j, n - j) * r->scale - max);
        vec_store_n(row + j, e, n - j);
        sum += vec_first_n(e, n - j);
    }
    float norm = 1.0f / vec_sum(sum);
    for (int64_t j = 0; j < n; j += VEC) vec_store_n(row + j, vec_load_n(row + j, n - j) * norm, n - j);
    memset(row + n, 0, sizeof(float) * (size_t)(r->T - first - n));
    memset(row - first, 0, sizeof(float) * (size_t)first);
}

/* Task: row t of dprobs becomes dscores = scale * probs * (dprobs - sum(probs * dprobs)). */
static void softmax_backward_row(const void *args, int64_t t) {
    const Rows *r = args;
    const int64_t first = first_key(r, t), n = t + 1 - first;
    const float *p = r->probs + t * r->T + first;
    float *dp = r->dprobs + t * r->T + first;
    vec sum = {0};
    for (int64_t j = 0; j < n; j += VEC) sum += vec_load_n(p + j, n - j) * vec_load_n(dp + j, n - j);
    float mean = vec_sum(sum);
    for (int64_t j = 0; j < n; j += VEC)
        vec_store_n(dp + j, r->scale * vec_load_n(p + j, n - j) * (vec_load_n(dp + j, n - j) - mean), n - j);
    memset(dp + n, 0, sizeof(float) * (size_t)(r->T - first - n));
    memset(dp - first, 0, sizeof(float) * (size_t)first);
}

void cpu_attention_standard_forward(floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                    const AttentionMask *mask, int B, int T, int NH, int HD) {
    const bool drops = mask->dropout.p > 0;
    for (int64_t i = 0; i < (int64_t)B * NH; i++) {
        View q = packed_head(qkv, 0, i, T, NH, HD), k = packed_head(qkv, 1, i, T, NH, HD);
        View p = square(probs, i, T);
        product(p, q, transposed(k));
        cpu_parallel_for(T, softmax_row,
                         &(Rows){p.data, NULL, T, attention_window(mask, T), starts_of(mask, i, T, NH),
                                 1.0f / sqrtf((float)HD), mask->sparse});
    }
    if (drops) cpu_dropout_matrices(dropped, probs, &mask->dropout, (int64_t)B * NH * T, T, T);
    for (int64_t i = 0; i < (int64_t)B * NH; i++) {
        View p = square(drops ? dropped : probs, i, T);
        product(head(out, i, T, NH, HD), p, packed_head(qkv, 2, i, T, NH, HD));
    }
}

/* dprobs holds the dropped probabilities until dv is known, then the gradient of probs. */
void cpu_attention_standard_backward(floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                     const floatX *qkv, const AttentionMask *mask, int B, int T, int NH,
                                     int HD) {
    const int64_t rows = (int64_t)B * NH * T;
    const bool drops = mask->dropout.p > 0;
    if (drops) cpu_dropout_matrices(dprobs, probs, &mask->dropout, rows, T, T);
    for (int64_t i = 0; i < (int64_t)B * NH; i++) {
        View v = packed_head(qkv, 2, i, T, NH, HD), d = head(dout, i, T, NH, HD);
        View kept = square(drops ? dprobs : probs, i, T);
        product(packed_head(dqkv, 2, i, T, NH, HD), transposed(kept), d);
        product(square(dprobs, i, T), d, transposed(v));
    }
    if (drops) cpu_dropout_matrices(dprobs, dprobs, &mask->dropout, rows, T, T);
    for (int64_t i = 0; i < (int64_t)B * NH; i++) {
        View q = packed_head(qkv, 0, i, T, NH, HD), k = packed_head(qkv, 1, i, T, NH, HD);
        View dp = square(dprobs, i, T);
        cpu_parallel_for(T, softmax_backward_row,
                         &(Rows){square(probs, i, T).data, dp.data, T, attention_window(mask, T),
                                 starts_of(mask, i, T, NH), 1.0f / sqrtf((float)HD), mask->sparse});
        product(packed_head(dqkv, 0, i, T, NH, HD), dp, k);
        product(packed_head(dqkv, 1, i, T, NH, HD), transposed(dp), q);
    }
}
