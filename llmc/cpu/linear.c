/* Linear layers: the three products of y = x W^T + b. */
#include "cpu.h"
#include "llmc/base/error.h"
#include "matmul.h"
#include "llmc/base/parallel.h"
#include "vec.h"

/* Matrix.scale: no kernel takes one yet. */
static void refuse_scale(Matrix y, Matrix x, Matrix w) {
    if (!y.scale && !x.scale && !w.scale) return;
    Error err = {0};
    fail(&err, EXIT_RUN, "a linear layer on the CPU has a matrix with a scale, which no kernel takes");
    die(&err);
}

static View view_of(Matrix m) {
    return view(m.data, m.rows, m.columns);
}

void cpu_linear_forward(Matrix out, Matrix pre_gelu, Matrix x, Matrix weight, const floatX *bias) {
    refuse_scale(out, x, weight);
    cpu_matmul(&(Matmul){
        .a = view_of(x),
        .b = transposed(view_of(weight)),
        .c = view_of(pre_gelu.data ? pre_gelu : out),
        .bias = bias,
        .gelu_out = pre_gelu.data ? out.data : NULL,
    });
}

enum { STRIP_VECS = 4, STRIP = STRIP_VECS * VEC, BLOCK_ROWS = 128 };

typedef struct ColumnSums {
    float *sums;    /* (columns) += */
    const float *x; /* (N, columns), rows `stride` elements apart */
    int64_t N, columns, stride;
} ColumnSums;

/* Task: STRIP columns. Sums of BLOCK_ROWS rows are added up in a second level, so that the rounding error
 * grows with BLOCK_ROWS + N / BLOCK_ROWS rather than with N. */
static void sum_columns(const void *args, int64_t task) {
    const ColumnSums *s = args;
    int64_t begin = task * STRIP;
    vec total[STRIP_VECS] = {{0}};
    for (int64_t block = 0; block < s->N; block += BLOCK_ROWS) {
        vec sum[STRIP_VECS] = {{0}};
        for (int64_t n = block; n < min_i64(s->N, block + BLOCK_ROWS); n++)
            for (int j = 0; j < STRIP_VECS; j++)
                sum[j] += vec_load_n(s->x + n * s->stride + begin + j * VEC, s->columns - begin - j * VEC);
        for (int j = 0; j < STRIP_VECS; j++) total[j] += sum[j];
    }
    for (int j = 0; j < STRIP_VECS; j++) {
        float *at = s->sums + begin + j * VEC;
        int64_t left = s->columns - begin - j * VEC;
        vec_add_n(at, total[j], left);
    }
}

void cpu_column_sums(float *out, const float *x, int64_t N, int columns, int stride) {
    const ColumnSums sums = {out, x, N, columns, stride};
    cpu_parallel_for(ceil_div(columns, STRIP), sum_columns, &sums);
}

void cpu_linear_backward_input(Matrix dx, float *dx_sums, Matrix gelu, Matrix dout, Matrix weight,
                               Matrix pre_gelu, void *scratch) {
    refuse_scale(dout, dx, weight);
    cpu_matmul(
        &(Matmul){.a = view_of(dout), .b = view_of(weight), .c = view_of(dx), .gelu_in = pre_gelu.data});
    if (dx_sums) cpu_column_sums(dx_sums, dx.data, dx.rows, dx.columns, dx.columns);
    if (gelu.data) cpu_gelu(gelu.data, pre_gelu.data, gelu.rows * gelu.columns);
}

/* No row_dots: made here or by who needs them, they take the same pass. */
bool cpu_linear_backward_input_row_dots(Matrix dx, float *row_dots, Matrix dout, Matrix weight, Matrix other,
                                        void *scratch, int group) {
    cpu_linear_backward_input(dx, NULL, no_matrix(), dout, weight, no_matrix(), scratch);
    return false;
}

void cpu_linear_backward_weight(Matrix dweight, float *dbias, Matrix dout, Matrix x, WriteMode mode,
                                void *scratch) {
    refuse_scale(dout, x, dweight);
    cpu_matmul(&(Matmul){
        .a = transposed(view_of(dout)),
        .b = view_of(x),
        .c = view_of(dweight),
        .accumulate = mode == ACCUMULATE,
    });
    if (dbias) cpu_column_sums(dbias, dout.data, dout.rows, dout.columns, dout.columns);
}

void cpu_qkv_bias_backward(float *dbias, const floatX *dqkv, const float *dproj_bias,
                           const floatX *proj_weight, void *scratch, int64_t N, int C) {
    cpu_column_sums(dbias, dqkv, N, C, 3 * C);
    const Matrix dv_bias = matrix(dbias + 2 * (int64_t)C, DTYPE_F32, 1, C);
    cpu_linear_backward_input(dv_bias, NULL, no_matrix(), matrix(dproj_bias, DTYPE_F32, 1, C),
                              matrix(proj_weight, DTYPE_F32, C, C), no_matrix(), scratch);
}
