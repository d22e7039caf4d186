/* Layer normalisation (Ba et al. 2016), alone and with the residual sum before it. */
#include <math.h>
#include "cpu.h"
#include "llmc/base/parallel.h"
#include "vec.h"

enum { ROWS = 16, MAX_CHUNKS = 64 }; /* rows of a forward task; parts of the sums over rows in backward */
static const float EPS = 1e-5f;

typedef struct Forward {
    float *residual, *out, *mean, *rstd;
    const float *a, *b; /* x = a + b; b may be NULL, then x is a and residual is not written */
    const float *weight, *bias;
    int64_t N, C;
} Forward;

/* out = (x - mean) * rstd * weight + bias of one row. */
static void normalize_row(const Forward *f, const float *x, int64_t n) {
    vec sum = {0}, squares = {0};
    for (int64_t c = 0; c < f->C; c += VEC) sum += vec_load_n(x + c, f->C - c);
    float mean = vec_sum(sum) / (float)f->C;
    for (int64_t c = 0; c < f->C; c += VEC) {
        vec d = vec_first_n(vec_load_n(x + c, f->C - c) - mean, f->C - c);
        squares += d * d;
    }
    float rstd = 1.0f / sqrtf(vec_sum(squares) / (float)f->C + EPS);
    for (int64_t c = 0; c < f->C; c += VEC) {
        vec norm = (vec_load_n(x + c, f->C - c) - mean) * rstd;
        vec y = norm * vec_load_n(f->weight + c, f->C - c) + vec_load_n(f->bias + c, f->C - c);
        vec_store_n(f->out + n * f->C + c, y, f->C - c);
    }
    f->mean[n] = mean;
    f->rstd[n] = rstd;
}

/* Task: ROWS rows. */
static void forward_rows(const void *args, int64_t task) {
    const Forward *f = args;
    for (int64_t n = task * ROWS; n < min_i64(f->N, (task + 1) * ROWS); n++) {
        const float *x = f->a + n * f->C;
        if (f->b) {
            float *sum = f->residual + n * f->C;
            for (int64_t c = 0; c < f->C; c += VEC)
                vec_store_n(sum + c, vec_load_n(x + c, f->C - c) + vec_load_n(f->b + n * f->C + c, f->C - c),
                            f->C - c);
            x = sum;
        }
        normalize_row(f, x, n);
    }
}

void cpu_layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *x, const floatX *weight,
                           const floatX *bias, int64_t N, int C) {
    Forward f = {NULL, out, mean, rstd, x, NULL, weight, bias, N, C};
    cpu_parallel_for(ceil_div(N, ROWS), forward_rows, &f);
}

void cpu_residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd, const floatX *a,
                                    const floatX *b, const floatX *weight, const floatX *bias, int64_t N,
                                    int C) {
    Forward f = {residual, out, mean, rstd, a, b, weight, bias, N, C};
    cpu_parallel_for(ceil_div(N, ROWS), forward_rows, &f);
}

typedef struct Backward {
    float *dx;
    const float *dresidual, *dout, *x, *weight, *mean, *rstd; /* dresidual may be NULL */
    float *partial; /* (chunks, 2, C): the sums of dweight and dbias over the rows of a chunk */
    int64_t N, C, chunk_rows;
} Backward;

/* dx = rstd (dnorm - mean(dnorm) - norm mean(dnorm norm)) + dresidual of one row, where dnorm = dout *
 * weight; adds the row's dout * norm and dout to the chunk's sums. */
static void backward_row(const Backward *f, int64_t n, float *dweight, float *dbias) {
    const float *dout = f->dout + n * f->C, *x = f->x + n * f->C;
    float mean = f->mean[n], rstd = f->rstd[n];
    vec sum = {0}, sum_norm = {0};
    for (int64_t c = 0; c < f->C; c += VEC) {
        int64_t left = f->C - c;
        vec d = vec_load_n(dout + c, left), norm = (vec_load_n(x + c, left) - mean) * rstd;
        vec dnorm = d * vec_load_n(f->weight + c, left);
        sum += dnorm;
        sum_norm += vec_first_n(dnorm * norm, left);
        vec_add_n(dweight + c, d * norm, left);
        vec_add_n(dbias + c, d, left);
    }
    float mean_dnorm = vec_sum(sum) / (float)f->C, mean_dnorm_norm = vec_sum(sum_norm) / (float)f->C;
    for (int64_t c = 0; c < f->C; c += VEC) {
        int64_t left = f->C - c, at = n * f->C + c;
        vec norm = (vec_load_n(x + c, left) - mean) * rstd;
        vec dnorm = vec_load_n(dout + c, left) * vec_load_n(f->weight + c, left);
        vec dx = (dnorm - mean_dnorm - norm * mean_dnorm_norm) * rstd;
        if (f->dresidual) dx += vec_load_n(f->dresidual + at, left);
        vec_store_n(f->dx + at, dx, left);
    }
}

/* Task: one chunk of rows. */
static void backward_chunk(const void *args, int64_t chunk) {
    const Backward *f = args;
    float *dweight = f->partial + chunk * 2 * f->C, *dbias = dweight + f->C;
    memset(dweight, 0, sizeof(float) * 2 * f->C);
    for (int64_t n = chunk * f->chunk_rows; n < min_i64(f->N, (chunk + 1) * f->chunk_rows); n++)
        backward_row(f, n, dweight, dbias);
}

void cpu_layernorm_backward(floatX *dx, float *dweight, float *dbias, float *dx_sums, const floatX *dresidual,
                            const floatX *dout, const floatX *x, const floatX *weight, const float *mean,
                            const float *rstd, void *scratch, int64_t N, int C) {
    /* The cut into chunks depends on N alone, so the sums have one order whatever the number of threads. */
    Backward f = {dx, dresidual, dout, x, weight, mean, rstd, scratch, N, C, ceil_div(N, MAX_CHUNKS)};
    int64_t n_chunks = ceil_div(N, f.chunk_rows);
    cpu_parallel_for(n_chunks, backward_chunk, &f);
    for (int64_t c = 0; c < C; c += VEC) {
        vec dw = {0}, db = {0};
        for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
            dw += vec_load_n(f.partial + chunk * 2 * C + c, C - c);
            db += vec_load_n(f.partial + chunk * 2 * C + C + c, C - c);
        }
        vec_add_n(dweight + c, dw, C - c);
        vec_add_n(dbias + c, db, C - c);
    }
    if (dx_sums) cpu_column_sums(dx_sums, dx, N, C, C);
}

size_t cpu_layernorm_scratch_bytes(const OpShape *shape) {
    return sizeof(float) * MAX_CHUNKS * 2 * (size_t)shape->C;
}
