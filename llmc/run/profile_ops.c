/* The wrapped table of --profile: every op between two timestamps, with its least work.
 *
 * To wrap an op that is new in ops.h: a function here that counts its FLOP and bytes, and a line in
 * profile_ops(). */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "profile.h"

/* One call of the step at hand; its timestamps are 2 i and 2 i + 1. */
typedef struct Call {
    char name[64];
    const char *kernel;
    double flops, bytes;
} Call;

enum { MAX_CALLS = TIMESTAMPS_MAX / 2 };
static Call *calls; /* MAX_CALLS */
static int n_calls;
static int64_t n_unnoted; /* calls beyond MAX_CALLS: they run, and are only counted */
static const Ops *inner;

/* Bytes of n elements of the storage type. */
static double stored(double n) {
    return n * (double)dtype_bytes(inner->dtype);
}

static double stored_if(const void *optional, double n) {
    return optional ? stored(n) : 0;
}

__attribute__((format(printf, 3, 4))) static void begin(double flops, double bytes, const char *format, ...) {
    if (n_calls == MAX_CALLS) {
        n_unnoted++;
        return;
    }
    Call *call = &calls[n_calls];
    va_list args;
    va_start(args, format);
    vsnprintf(call->name, sizeof call->name, format, args);
    va_end(args);
    call->flops = flops;
    call->bytes = bytes;
    inner->kernel_ran(); /* of the ops before */
    inner->device->timestamp(2 * n_calls);
}

/* What the call that has begun turned out to do as well. */
static void also(const char *what, double bytes) {
    if (n_calls == MAX_CALLS) return;
    Call *call = &calls[n_calls];
    const size_t length = strlen(call->name);
    snprintf(call->name + length, sizeof call->name - length, " + %s", what);
    call->bytes += bytes;
}

static void end(void) {
    const char *kernel = inner->kernel_ran();
    if (n_calls == MAX_CALLS) return;
    calls[n_calls].kernel = kernel;
    inner->device->timestamp(2 * n_calls++ + 1);
}

/* ---- memory ---- */

static void zero(void *dst, size_t bytes) {
    begin(0, (double)bytes, "zero");
    inner->device->zero(dst, bytes);
    end();
}

static void zero_rows(void *dst, size_t bytes, size_t stride, int64_t rows) {
    begin(0, (double)bytes * (double)rows, "zero");
    inner->device->zero_rows(dst, bytes, stride, rows);
    end();
}

static void copy(void *dst, const void *src, size_t bytes) {
    begin(0, 2 * (double)bytes, "copy");
    inner->device->copy(dst, src, bytes);
    end();
}

static void upload(void *dst, const void *src, size_t bytes) {
    begin(0, 2 * (double)bytes, "upload");
    inner->device->upload(dst, src, bytes);
    end();
}

static bool capture_begin(void) {
    return false;
}

/* ---- embedding, norms, residual ---- */

static void embedding_forward(floatX *out, const int32_t *tokens, const floatX *wte, const floatX *wpe, int B,
                              int T, int C) {
    const double N = (double)B * T;
    begin(0, stored(2 * N * C + (double)T * C) + 4 * N, "embedding_forward");
    inner->embedding_forward(out, tokens, wte, wpe, B, T, C);
    end();
}

static void embedding_backward(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens,
                               void *scratch, int B, int T, int C, int V) {
    const double N = (double)B * T, rows = N < V ? N : V; /* of dwte, at most */
    begin(0, stored(N * C) + 4 * N + 8 * C * (rows + T), "embedding_backward");
    inner->embedding_backward(dwte, dwpe, dout, tokens, scratch, B, T, C, V);
    end();
}

static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *x, const floatX *weight,
                              const floatX *bias, int64_t N, int C) {
    begin(0, stored(2.0 * (double)N * C) + 8.0 * (double)N, "layernorm_forward");
    inner->layernorm_forward(out, mean, rstd, x, weight, bias, N, C);
    end();
}

static void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd,
                                       const floatX *a, const floatX *b, const floatX *weight,
                                       const floatX *bias, int64_t N, int C) {
    begin(0, stored(4.0 * (double)N * C) + 8.0 * (double)N, "residual_layernorm_forward");
    inner->residual_layernorm_forward(residual, out, mean, rstd, a, b, weight, bias, N, C);
    end();
}

static void layernorm_backward(floatX *dx, float *dweight, float *dbias, float *dx_sums,
                               const floatX *dresidual, const floatX *dout, const floatX *x,
                               const floatX *weight, const float *mean, const float *rstd, void *scratch,
                               int64_t N, int C) {
    const double n = (double)N * C;
    begin(0, stored(3 * n) + stored_if(dresidual, n) + 8.0 * (double)N, "layernorm_backward%s",
          dx_sums ? " + sums" : "");
    inner->layernorm_backward(dx, dweight, dbias, dx_sums, dresidual, dout, x, weight, mean, rstd, scratch, N,
                              C);
    end();
}

static void dropout(floatX *out, const floatX *x, const Dropout *mask, int64_t rows, int columns) {
    begin(0, stored(2.0 * (double)rows * columns), "dropout");
    inner->dropout(out, x, mask, rows, columns);
    end();
}

/* ---- linear ---- */

static double matrix_bytes(Matrix m) {
    return m.data ? (double)m.rows * m.columns * (double)dtype_bytes(m.dtype) : 0;
}

/* FLOP of y = x W^T, or of one of its gradients. */
static double linear_flops(Matrix x, int64_t outputs) {
    return 2.0 * (double)x.rows * x.columns * (double)outputs;
}

static void linear_forward(Matrix out, Matrix pre_gelu, Matrix x, Matrix weight, const floatX *bias) {
    begin(linear_flops(x, weight.rows),
          matrix_bytes(out) + matrix_bytes(pre_gelu) + matrix_bytes(x) + matrix_bytes(weight),
          "linear_forward %d->%d%s", x.columns, out.columns, pre_gelu.data ? " + gelu" : "");
    inner->linear_forward(out, pre_gelu, x, weight, bias);
    end();
}

static void linear_backward_input(Matrix dx, float *dx_sums, Matrix gelu, Matrix dout, Matrix weight,
                                  Matrix pre_gelu, void *scratch) {
    begin(linear_flops(dx, weight.rows),
          matrix_bytes(dx) + matrix_bytes(gelu) + matrix_bytes(dout) + matrix_bytes(weight) +
              matrix_bytes(pre_gelu),
          "linear_backward_input %d->%d%s%s%s", dx.columns, dout.columns, pre_gelu.data ? " + gelu" : "",
          gelu.data ? " both ways" : "", dx_sums ? " + sums" : "");
    inner->linear_backward_input(dx, dx_sums, gelu, dout, weight, pre_gelu, scratch);
    end();
}

static bool linear_backward_input_row_dots(Matrix dx, float *row_dots, Matrix dout, Matrix weight,
                                           Matrix other, void *scratch, int group) {
    begin(linear_flops(dx, weight.rows), matrix_bytes(dx) + matrix_bytes(dout) + matrix_bytes(weight),
          "linear_backward_input %d->%d", dx.columns, dout.columns);
    const bool done =
        inner->linear_backward_input_row_dots(dx, row_dots, dout, weight, other, scratch, group);
    if (done) also("dots", matrix_bytes(other) + 4.0 * (double)dx.rows * dx.columns / group);
    end();
    return done;
}

static void linear_backward_weight(Matrix dweight, float *dbias, Matrix dout, Matrix x, WriteMode mode,
                                   void *scratch) {
    begin(linear_flops(x, dweight.rows),
          matrix_bytes(dout) + matrix_bytes(x) + (mode == OVERWRITE ? 1 : 2) * matrix_bytes(dweight),
          "linear_backward_weight %d->%d%s%s", x.columns, dout.columns, mode == OVERWRITE ? " overwrite" : "",
          dbias ? " + sums" : "");
    inner->linear_backward_weight(dweight, dbias, dout, x, mode, scratch);
    end();
}

static void qkv_bias_backward(float *dbias, const floatX *dqkv, const float *dproj_bias,
                              const floatX *proj_weight, void *scratch, int64_t N, int C) {
    const double n = (double)N, c = C;
    begin(2 * c * c, stored(n * c + c * c), "qkv_bias_backward");
    inner->qkv_bias_backward(dbias, dqkv, dproj_bias, proj_weight, scratch, N, C);
    end();
}

/* ---- attention ---- */

/* FLOP of one T x T product of all heads, its causal half. */
static double square_flops(int B, int T, int NH, int HD) {
    return (double)B * T * T * NH * HD;
}

/* The part of a T x T product's causal half that a window leaves. */
static double window_part(const AttentionMask *mask, int T) {
    const double w = (double)attention_window(mask, T) / T;
    return 2 * w - w * w;
}

static void attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                              int T, int NH, int HD) {
    const double rows = (double)B * T * NH;
    begin(2 * window_part(mask, T) * square_flops(B, T, NH, HD), stored(4 * rows * HD) + 4 * rows,
          "attention_forward");
    inner->attention_forward(out, lse, qkv, mask, B, T, NH, HD);
    end();
}

static void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                               const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                               int B, int T, int NH, int HD) {
    const double rows = (double)B * T * NH;
    const double out_or_d = d ? 4 * rows : stored(rows * HD); /* D takes the place of what it is made from */
    begin(5 * window_part(mask, T) * square_flops(B, T, NH, HD), stored(7 * rows * HD) + 4 * rows + out_or_d,
          "attention_backward");
    inner->attention_backward(dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD);
    end();
}

static void attention_standard_forward(floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                       const AttentionMask *mask, int B, int T, int NH, int HD) {
    const double rows = (double)B * T * NH;
    begin(2 * square_flops(B, T, NH, HD), stored(4 * rows * HD + rows * T), "attention_standard_forward");
    inner->attention_standard_forward(out, probs, dropped, qkv, mask, B, T, NH, HD);
    end();
}

static void attention_standard_backward(floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                        const floatX *qkv, const AttentionMask *mask, int B, int T, int NH,
                                        int HD) {
    const double rows = (double)B * T * NH;
    begin(4 * square_flops(B, T, NH, HD), stored(7 * rows * HD + 2 * rows * T),
          "attention_standard_backward");
    inner->attention_standard_backward(dqkv, dprobs, dout, probs, qkv, mask, B, T, NH, HD);
    end();
}

/* ---- loss and update ---- */

static void cross_entropy_backward_inplace(float *losses, floatX *logits, const int32_t *targets, float dloss,
                                           int64_t N, int V, int Vp) {
    begin(0, stored(2.0 * (double)N * Vp) + 8.0 * (double)N, "cross_entropy_backward_inplace");
    inner->cross_entropy_backward_inplace(losses, logits, targets, dloss, N, V, Vp);
    end();
}

static void loss_sum(StepStats *stats, const float *losses, float scale, void *scratch, int64_t N) {
    begin(0, 4.0 * (double)N, "loss_sum");
    inner->loss_sum(stats, losses, scale, scratch, N);
    end();
}

static void sum_squares(StepStats *stats, const float *grads, void *scratch, int64_t n) {
    begin(0, 4.0 * (double)n, "sum_squares");
    inner->sum_squares(stats, grads, scratch, n);
    end();
}

static void grad_norm(StepStats *stats) {
    begin(0, sizeof *stats, "grad_norm");
    inner->grad_norm(stats);
    end();
}

static void adamw(const AdamWArgs *args) {
    const double n = (double)args->n_tiles * PARAMETER_TILE;
    const bool own_weights = args->weights != (const floatX *)args->master;
    begin(0, 28 * n + stored(own_weights ? n : 0), "adamw"); /* master, m, v: 8 each; gradients 4 */
    inner->adamw(args);
    end();
}

const Ops *profile_ops(const Ops *ops) {
    static Ops wrapped;
    static Device device;
    if (!calls) calls = malloc(MAX_CALLS * sizeof *calls);
    if (!calls) abort();
    inner = ops;
    n_calls = 0;
    n_unnoted = 0;
    wrapped = *ops;
    device = *ops->device;
    wrapped.device = &device;
    device.zero = zero;
    device.zero_rows = zero_rows;
    device.copy = copy;
    device.upload = upload;
    device.capture_begin = capture_begin;
    wrapped.embedding_forward = embedding_forward;
    wrapped.embedding_backward = embedding_backward;
    wrapped.layernorm_forward = layernorm_forward;
    wrapped.residual_layernorm_forward = residual_layernorm_forward;
    wrapped.layernorm_backward = layernorm_backward;
    wrapped.dropout = dropout;
    wrapped.linear_forward = linear_forward;
    wrapped.linear_backward_input = linear_backward_input;
    wrapped.linear_backward_input_row_dots = linear_backward_input_row_dots;
    wrapped.linear_backward_weight = linear_backward_weight;
    wrapped.qkv_bias_backward = qkv_bias_backward;
    wrapped.attention_forward = attention_forward;
    wrapped.attention_backward = attention_backward;
    wrapped.attention_standard_forward = attention_standard_forward;
    wrapped.attention_standard_backward = attention_standard_backward;
    wrapped.cross_entropy_backward_inplace = cross_entropy_backward_inplace;
    wrapped.loss_sum = loss_sum;
    wrapped.sum_squares = sum_squares;
    wrapped.grad_norm = grad_norm;
    wrapped.adamw = adamw;
    return &wrapped;
}

/* ---- what the device noted ---- */

static ProfileRow *row_of(Profile *profile, const char *name, const char *kernel) {
    for (int i = 0; i < profile->n_rows; i++)
        if (strcmp(profile->rows[i].name, name) == 0 && profile->rows[i].kernel == kernel)
            return &profile->rows[i];
    if (profile->n_rows == PROFILE_MAX_ROWS) return &profile->rows[PROFILE_MAX_ROWS - 1];
    ProfileRow *row = &profile->rows[profile->n_rows++];
    *row = (ProfileRow){.kernel = kernel};
    snprintf(row->name, sizeof row->name, "%s", profile->n_rows == PROFILE_MAX_ROWS ? "other" : name);
    return row;
}

void profile_collect(Profile *profile) {
    if (n_calls == 0) return;
    profile->seconds += inner->device->seconds_between(0, 2 * n_calls - 1); /* waits for the last */
    for (int i = 0; i < n_calls; i++) {
        ProfileRow *row = row_of(profile, calls[i].name, calls[i].kernel);
        row->calls++;
        row->seconds += inner->device->seconds_between(2 * i, 2 * i + 1);
        row->flops += calls[i].flops;
        row->bytes += calls[i].bytes;
    }
    profile->n_steps++;
    profile->n_unnoted += n_unnoted;
    n_calls = 0;
    n_unnoted = 0;
}
