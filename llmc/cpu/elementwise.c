/* Ops on single elements, cut into chunks of one fixed size. */
#include "cpu.h"
#include "gelu.h"
#include "llmc/base/parallel.h"

enum { CHUNK = 16384 }; /* elements of a task */

typedef struct Elements {
    float *out;
    const float *a, *b; /* b is read where there are two */
    int64_t n;
} Elements;

static void gelu_chunk(const void *args, int64_t chunk) {
    const Elements *e = args;
    for (int64_t i = chunk * CHUNK, end = min_i64(e->n, i + CHUNK); i < end; i += VEC)
        vec_store_n(e->out + i, gelu(vec_load_n(e->a + i, end - i)), end - i);
}

void cpu_gelu(float *out, const float *x, int64_t n) {
    cpu_parallel_for(ceil_div(n, CHUNK), gelu_chunk, &(Elements){out, x, NULL, n});
}

static void sum_chunk(const void *args, int64_t chunk) {
    const Elements *e = args;
    for (int64_t i = chunk * CHUNK, end = min_i64(e->n, i + CHUNK); i < end; i += VEC)
        vec_store_n(e->out + i, vec_load_n(e->a + i, end - i) + vec_load_n(e->b + i, end - i), end - i);
}

void cpu_sum_gradients(float *out, const float *a, const float *b, int64_t n) {
    cpu_parallel_for(ceil_div(n, CHUNK), sum_chunk, &(Elements){out, a, b, n});
}
