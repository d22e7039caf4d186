/* Dropout of a matrix; the mask is dropout.h's. */
#include "cpu.h"
#include "llmc/base/parallel.h"

enum { ROWS = 16 }; /* of a task */

typedef struct Elements {
    float *out;
    const float *x;
    int64_t rows, matrix_rows, columns;
    uint64_t site;
    uint32_t threshold;
    float scale;
} Elements;

/* Task: ROWS rows. */
static void drop_rows(const void *args, int64_t task) {
    const Elements *e = args;
    for (int64_t n = task * ROWS; n < min_i64(e->rows, (task + 1) * ROWS); n++) {
        const DropoutMatrix matrix = dropout_matrix(e->site, n / e->matrix_rows);
        const uint32_t row = (uint32_t)(n % e->matrix_rows);
        const float *x = e->x + n * e->columns;
        float *out = e->out + n * e->columns;
        for (int64_t c = 0; c < e->columns; c += 2) {
            const uint32_t word = dropout_word(matrix, row, (uint32_t)c);
            for (int64_t k = c; k < min_i64(e->columns, c + 2); k++)
                out[k] = dropout_dropped_by(word, (uint32_t)k, e->threshold) ? 0.0f : x[k] * e->scale;
        }
    }
}

void cpu_dropout_matrices(floatX *out, const floatX *x, const Dropout *dropout, int64_t rows,
                          int64_t matrix_rows, int columns) {
    const uint32_t threshold = dropout_threshold(dropout->p);
    cpu_parallel_for(ceil_div(rows, ROWS), drop_rows,
                     &(Elements){out, x, rows, matrix_rows, columns,
                                 dropout_site(*dropout->key, dropout->site), threshold,
                                 dropout_scale(threshold)});
}

void cpu_dropout(floatX *out, const floatX *x, const Dropout *dropout, int64_t rows, int columns) {
    cpu_dropout_matrices(out, x, dropout, rows, DROPOUT_MATRIX_ROWS, columns);
}
