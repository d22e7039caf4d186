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

enum { CHUNK_BYTES = 1 << 18 }; /* of memory operations: large enough to leave small ones on one core */

typedef struct Bytes {
    char *dst;
    const char *src; /* NULL: zeros */
    size_t n;
} Bytes;

static void move_chunk(const void *args, int64_t chunk) {
    const Bytes *b = args;
    size_t begin = (size_t)chunk * CHUNK_BYTES, n = (size_t)min_i64((int64_t)(b->n - begin), CHUNK_BYTES);
    if (b->src)
        memcpy(b->dst + begin, b->src + begin, n);
    else
        memset(b->dst + begin, 0, n);
}

void cpu_zero(void *dst, size_t bytes) {
    cpu_parallel_for(ceil_div((int64_t)bytes, CHUNK_BYTES), move_chunk, &(Bytes){dst, NULL, bytes});
}

void cpu_zero_rows(void *dst, size_t bytes, size_t stride, int64_t rows) {
    for (int64_t row = 0; row < rows; row++) cpu_zero((char *)dst + (size_t)row * stride, bytes);
}

void cpu_copy(void *dst, const void *src, size_t bytes) {
    cpu_parallel_for(ceil_div((int64_t)bytes, CHUNK_BYTES), move_chunk, &(Bytes){dst, src, bytes});
}

void cpu_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t bytes,
                   int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)dst + (size_t)i * dst_stride, (const char *)src + (size_t)i * src_stride, bytes);
}
