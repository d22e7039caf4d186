/* Linear layers: the three products of y = x W^T + b. */
#include "cpu.h"
#include "matmul.h"
#include "parallel.h"
#include "vec.h"

void cpu_linear_forward(floatX *out, floatX *pre_gelu, const floatX *x, const floatX *weight,
                        const floatX *bias, int64_t N, int OC, int IC) {
    cpu_matmul(&(Matmul){
        .M = N,
        .N = OC,
        .K = IC,
        .a = x,
        .a_row = IC,
        .a_col = 1,
        .b = weight,
        .b_row = 1,
        .b_col = IC,
        .c = pre_gelu ? pre_gelu : out,
        .c_row = OC,
        .bias = bias,
        .gelu_out = pre_gelu ? out : NULL,
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
        vec_store_n(at, vec_load_n(at, left) + total[j], left);
    }
}

void cpu_column_sums(float *out, const float *x, int64_t N, int columns, int stride) {
    const ColumnSums sums = {out, x, N, columns, stride};
    cpu_parallel_for(ceil_div(columns, STRIP), sum_columns, &sums);
}

void cpu_linear_backward_input(floatX *dx, float *dx_sums, floatX *gelu, const floatX *dout,
                               const floatX *weight, const floatX *pre_gelu, void *scratch, int64_t N, int OC,
                               int IC) {
    cpu_matmul(&(Matmul){
        .M = N,
        .N = IC,
        .K = OC,
        .a = dout,
        .a_row = OC,
        .a_col = 1,
        .b = weight,
        .b_row = IC,
        .b_col = 1,
        .c = dx,
        .c_row = IC,
        .gelu_in = pre_gelu,
    });
    if (dx_sums) cpu_column_sums(dx_sums, dx, N, IC, IC);
    if (gelu) cpu_gelu_forward(gelu, pre_gelu, N * IC);
}

/* No row_dots: made here or by who needs them, they take the same pass. */
bool cpu_linear_backward_input_row_dots(floatX *dx, float *row_dots, const floatX *dout, const floatX *weight,
                                        const floatX *other, void *scratch, int64_t N, int OC, int IC,
                                        int group) {
    (void)row_dots, (void)other, (void)group;
    cpu_linear_backward_input(dx, NULL, NULL, dout, weight, NULL, scratch, N, OC, IC);
    return false;
}

void cpu_linear_backward_weight(float *dweight, float *dbias, const floatX *dout, const floatX *x,
                                WriteMode mode, void *scratch, int64_t N, int OC, int IC) {
    cpu_matmul(&(Matmul){
        .M = OC,
        .N = IC,
        .K = N,
        .a = dout,
        .a_row = 1,
        .a_col = OC,
        .b = x,
        .b_row = IC,
        .b_col = 1,
        .c = dweight,
        .c_row = IC,
        .accumulate = mode == ACCUMULATE,
    });
    if (dbias) cpu_column_sums(dbias, dout, N, OC, OC);
}

void cpu_qkv_bias_backward(float *dbias, const floatX *dqkv, const float *dproj_bias,
                           const floatX *proj_weight, void *scratch, int64_t N, int C) {
    cpu_column_sums(dbias, dqkv, N, C, 3 * C);
    cpu_linear_backward_input(dbias + 2 * (int64_t)C, NULL, NULL, dproj_bias, proj_weight, NULL, scratch, 1,
                              C, C);
}
