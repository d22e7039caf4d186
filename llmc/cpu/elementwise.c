/* Ops on single elements, cut into chunks of one fixed size. */
#include "cpu.h"
#include "gelu.h"
#include "parallel.h"

enum { CHUNK = 16384 }; /* elements of a task */

typedef struct Elements {
    float *out;
    const float *x;
    int64_t n;
} Elements;

static void gelu_chunk(const void *args, int64_t chunk) {
    const Elements *e = args;
    for (int64_t i = chunk * CHUNK, end = min_i64(e->n, i + CHUNK); i < end; i += VEC)
        vec_store_n(e->out + i, gelu(vec_load_n(e->x + i, end - i)), end - i);
}

void cpu_gelu(float *out, const float *x, int64_t n) {
    cpu_parallel_for(ceil_div(n, CHUNK), gelu_chunk, &(Elements){out, x, n});
}

typedef struct Sum {
    float *out;
    const float *a, *b;
    int64_t n;
} Sum;

static void sum_chunk(const void *args, int64_t chunk) {
    const Sum *s = args;
    for (int64_t i = chunk * CHUNK, end = min_i64(s->n, i + CHUNK); i < end; i += VEC)
        vec_store_n(s->out + i, vec_load_n(s->a + i, end - i) + vec_load_n(s->b + i, end - i), end - i);
}

void cpu_sum_gradients(float *out, const float *a, const float *b, int64_t n) {
    cpu_parallel_for(ceil_div(n, CHUNK), sum_chunk, &(Sum){out, a, b, n});
}
