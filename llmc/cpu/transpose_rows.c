/* The first two dimensions of an array change places. */
#include "cpu.h"
#include "llmc/base/parallel.h"
#include <string.h>

enum { ROWS = 16, STRIP = 4096 }; /* of a task: rows of out, elements of each */

typedef struct Rows {
    float *out;
    const float *in;
    int64_t a, b, width, strips; /* strips of a row */
} Rows;

/* Task: a strip of ROWS rows. */
static void move_rows(const void *args, int64_t task) {
    const Rows *r = args;
    const int64_t first = task / r->strips * ROWS, begin = task % r->strips * STRIP;
    const size_t bytes = sizeof(float) * (size_t)min_i64(STRIP, r->width - begin);
    for (int64_t row = first; row < min_i64(r->a * r->b, first + ROWS); row++) {
        const int64_t from = row % r->a * r->b + row / r->a;
        memcpy(r->out + row * r->width + begin, r->in + from * r->width + begin, bytes);
    }
}

void cpu_transpose_rows(floatX *out, const floatX *in, int64_t a, int64_t b, int64_t width) {
    const Rows r = {out, in, a, b, width, ceil_div(width, STRIP)};
    cpu_parallel_for(ceil_div(a * b, ROWS) * r.strips, move_rows, &r);
}
