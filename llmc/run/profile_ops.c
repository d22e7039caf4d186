/* The wrapped table of --profile: every op between two timestamps, with its least work (llmc/model/op_cost.h).
 *
 * An op that is new in ops.h needs a row here, NOTED(...), that calls it and says its sizes; without one this file does
 * not compile. */
#include <string.h>
#include "profile.h"

/* Timestamps of call i are 2 i and 2 i + 1. */
enum { MAX_CALLS = TIMESTAMPS_MAX / 2 };
static ProfileCall *calls; /* MAX_CALLS, of the step at hand */
static int n_calls, n_collected;
static int64_t n_unnoted; /* calls beyond MAX_CALLS: they run, and are only counted */
static const Ops *inner;
static const PassPlace *place;

static void begin(void) {
    if (n_calls == MAX_CALLS) {
        n_unnoted++;
        return;
    }
    inner->kernel_ran(); /* of the ops before */
    inner->device->timestamp(2 * n_calls);
}

static void end(const char *name, OpCost cost) {
    const char *kernel = inner->kernel_ran();
    if (n_calls == MAX_CALLS) return;
    inner->device->timestamp(2 * n_calls + 1);
    calls[n_calls] = (ProfileCall){
        .kernel = kernel, .cost = cost, .at = place ? *place : (PassPlace){NULL, -1, -1}
    };
    snprintf(calls[n_calls++].name, OP_LABEL, "%s", name);
}

static void end_op(OpId op, const OpSizes *s) {
    char label[OP_LABEL];
    op_label(label, op, s);
    end(label, op_cost(op, s, inner->dtype));
}

/* ---- memory ---- */

static void zero(void *dst, size_t bytes) {
    begin();
    inner->device->zero(dst, bytes);
    end("zero", (OpCost){0, (double)bytes});
}

static void zero_rows(void *dst, size_t bytes, size_t stride, int64_t rows) {
    begin();
    inner->device->zero_rows(dst, bytes, stride, rows);
    end("zero", (OpCost){0, (double)bytes * (double)rows});
}

static void copy(void *dst, const void *src, size_t bytes) {
    begin();
    inner->device->copy(dst, src, bytes);
    end("copy", (OpCost){0, 2 * (double)bytes});
}

static void upload(void *dst, const void *src, size_t bytes) {
    begin();
    inner->device->upload(dst, src, bytes);
    end("upload", (OpCost){0, 2 * (double)bytes});
}

static bool capture_begin(void) {
    return false;
}

/* ---- ops ---- */

static int given(const void *optional, int with) {
    return optional ? with : 0;
}

static int own_weights(const floatX *weights, const float *master) {
    return weights == (const floatX *)master ? 0 : OWN_WEIGHTS;
}

/* An op between two timestamps: its parameters, as in ops.h, the same as arguments, and the sizes of the call. */
#define NOTED(op, parameters, arguments, ...)                                                                \
    static void op parameters {                                                                              \
        begin();                                                                                             \
        inner->op arguments;                                                                                 \
        end_op(OP_##op, &(OpSizes){__VA_ARGS__});                                                            \
    }

/* clang-format off */
NOTED(embedding_forward, (floatX *out, const int32_t *tokens, const int32_t *positions, const floatX *wte,
                          const floatX *wpe, int B, int T, int C),
      (out, tokens, positions, wte, wpe, B, T, C), .B = B, .T = T, .C = C)
NOTED(embedding_backward, (float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens, void *scratch,
                           int B, int T, int C, int V),
      (dwte, dwpe, dout, tokens, scratch, B, T, C, V), .B = B, .T = T, .C = C, .V = V)
NOTED(layernorm_forward, (floatX *out, float *mean, float *rstd, const floatX *x, const floatX *weight,
                          const floatX *bias, int64_t N, int C),
      (out, mean, rstd, x, weight, bias, N, C), .N = N, .C = C)
NOTED(residual_layernorm_forward, (floatX *residual, floatX *out, float *mean, float *rstd, const floatX *a,
                                   const floatX *b, const floatX *weight, const floatX *bias, int64_t N, int C),
      (residual, out, mean, rstd, a, b, weight, bias, N, C), .N = N, .C = C)
NOTED(layernorm_backward, (floatX *dx, float *dweight, float *dbias, float *dx_sums, const floatX *dresidual,
                           const floatX *dout, const floatX *x, const floatX *weight, const float *mean,
                           const float *rstd, void *scratch, int64_t N, int C),
      (dx, dweight, dbias, dx_sums, dresidual, dout, x, weight, mean, rstd, scratch, N, C), .N = N, .C = C,
      .with = given(dresidual, WITH_DRESIDUAL) | given(dx_sums, WITH_SUMS))
NOTED(dropout, (floatX *out, const floatX *x, const Dropout *dropout, int64_t rows, int columns),
      (out, x, dropout, rows, columns), .N = rows, .C = columns)
NOTED(linear_forward, (Matrix out, Matrix pre_gelu, Matrix x, Matrix weight, const floatX *bias),
      (out, pre_gelu, x, weight, bias), .N = x.rows, .OC = out.columns, .IC = x.columns,
      .with = given(pre_gelu.data, WITH_PRE_GELU))
NOTED(linear_backward_input, (Matrix dx, float *dx_sums, Matrix gelu, Matrix dout, Matrix weight, Matrix pre_gelu,
                              void *scratch),
      (dx, dx_sums, gelu, dout, weight, pre_gelu, scratch), .N = dx.rows, .OC = dout.columns, .IC = dx.columns,
      .with = given(pre_gelu.data, WITH_PRE_GELU) | given(gelu.data, WITH_GELU) | given(dx_sums, WITH_SUMS))
NOTED(linear_backward_weight, (Matrix dweight, float *dbias, Matrix dout, Matrix x, WriteMode mode, void *scratch),
      (dweight, dbias, dout, x, mode, scratch), .N = x.rows, .OC = dout.columns, .IC = x.columns,
      .with = given(dbias, WITH_SUMS) | (mode == OVERWRITE ? OVERWRITES : 0))
NOTED(qkv_bias_backward, (float *dbias, const floatX *dqkv, const float *dproj_bias, const floatX *proj_weight,
                          void *scratch, int64_t N, int C),
      (dbias, dqkv, dproj_bias, proj_weight, scratch, N, C), .N = N, .C = C)
NOTED(attention_forward, (floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B, int T,
                          int NH, int HD),
      (out, lse, qkv, mask, B, T, NH, HD), .B = B, .T = T, .NH = NH, .HD = HD,
      .window = mask->window, .sparse = mask->sparse.pattern)
NOTED(attention_backward, (floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                           const float *lse, const float *d, const AttentionMask *mask, void *scratch, int B,
                           int T, int NH, int HD),
      (dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD), .B = B, .T = T, .NH = NH, .HD = HD,
      .window = mask->window, .sparse = mask->sparse.pattern, .with = given(d, WITH_D))
NOTED(attention_standard_forward, (floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                   const AttentionMask *mask, int B, int T, int NH, int HD),
      (out, probs, dropped, qkv, mask, B, T, NH, HD), .B = B, .T = T, .NH = NH, .HD = HD)
NOTED(attention_standard_backward, (floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                    const floatX *qkv, const AttentionMask *mask, int B, int T, int NH, int HD),
      (dqkv, dprobs, dout, probs, qkv, mask, B, T, NH, HD), .B = B, .T = T, .NH = NH, .HD = HD)
/* Its cost is that of a full cache: positions are the device's. */
NOTED(attention_decode, (floatX *out, floatX *cache, const floatX *qkv, const int32_t *positions,
                         const int32_t *begins, float *scratch, const AttentionMask *mask, int B, int T, int NH,
                         int HD),
      (out, cache, qkv, positions, begins, scratch, mask, B, T, NH, HD), .B = B, .T = T, .NH = NH, .HD = HD)
NOTED(transpose_rows, (floatX *out, const floatX *in, int64_t a, int64_t b, int64_t width),
      (out, in, a, b, width), .N = a * b * width, .C = 1)
NOTED(cross_entropy_backward_inplace, (float *losses, floatX *logits, const int32_t *targets, float dloss,
                                       int64_t N, int V, int Vp),
      (losses, logits, targets, dloss, N, V, Vp), .N = N, .Vp = Vp)
NOTED(cross_entropy_forward, (float *losses, const floatX *logits, const int32_t *targets, int64_t N, int V, int Vp),
      (losses, logits, targets, N, V, Vp), .N = N, .Vp = Vp)
NOTED(loss_sum, (ExactSum *sum, const float *losses, float scale, int64_t N), (sum, losses, scale, N), .N = N)
NOTED(draw_tokens, (const DrawArgs *args), (args), .N = args->B, .V = args->V)
NOTED(sum_gradients, (float *out, const float *a, const float *b, int64_t n), (out, a, b, n), .N = n)
NOTED(sum_squares, (ExactSum *sum, const float *grads, int64_t n), (sum, grads, n), .N = n)
NOTED(finish_stats, (StepStats *stats, const StepSums *sums), (stats, sums), .N = 1)
NOTED(adamw, (const AdamWArgs *args), (args), .N = args->n_tiles * PARAMETER_TILE,
      .with = own_weights(args->weights, args->master))
NOTED(muon_momentum, (const MuonArgs *args), (args), .N = args->n_tiles * PARAMETER_TILE,
      .with = own_weights(args->weights, args->master))
NOTED(orthogonalise, (const OrthogonaliseArgs *args), (args), .N = args->n_blocks * args->n_matrices,
      .OC = args->rows, .IC = args->cols)
NOTED(muon_update, (const MuonArgs *args), (args), .N = args->n_tiles * PARAMETER_TILE,
      .with = own_weights(args->weights, args->master))
NOTED(weights_from_master, (floatX *weights, const float *master, int64_t n), (weights, master, n), .N = n)
NOTED(hash_bytes, (uint64_t *hash, const void *x, int64_t n_bytes), (hash, x, n_bytes), .N = n_bytes)
/* clang-format on */

/* Whether the dots came is known behind the call. */
static bool linear_backward_input_row_dots(Matrix dx, float *row_dots, Matrix dout, Matrix weight,
                                           Matrix other, void *scratch, int group) {
    OpSizes s = {.N = dx.rows, .OC = dout.columns, .IC = dx.columns, .group = group};
    begin();
    const bool came =
        inner->linear_backward_input_row_dots(dx, row_dots, dout, weight, other, scratch, group);
    s.with = came ? WITH_ROW_DOTS : 0;
    end_op(OP_linear_backward_input_row_dots, &s);
    return came;
}

const Ops *profile_ops(const Ops *ops, const PassPlace *at) {
    static Ops wrapped;
    static Device device;
    if (!calls) calls = must_allocate(MAX_CALLS * sizeof *calls, "the profile");
    inner = ops;
    place = at;
    n_calls = 0;
    n_unnoted = 0;
    device = *ops->device;
    device.zero = zero;
    device.zero_rows = zero_rows;
    device.copy = copy;
    device.upload = upload;
    device.capture_begin = capture_begin;
    wrapped = *ops;
    wrapped.device = &device;
/* "'x' undeclared" here: the op x has no row above (llmc/model/ADD_AN_OP.md, place 3). */
#define WRAP(Type, name) wrapped.name = name;
    EACH_OP(WRAP)
#undef WRAP
    return &wrapped;
}

/* ---- what the device noted ---- */

static ProfileRow *row_of(Profile *profile, const char *name, const char *kernel) {
    for (int i = 0; i < profile->n_rows; i++)
        if (strcmp(profile->rows[i].name, name) == 0 && profile->rows[i].kernel == kernel)
            return &profile->rows[i];
    if (profile->n_rows == PROFILE_MAX_ROWS) return &profile->rows[PROFILE_MAX_ROWS - 1];
    ProfileRow *row = &profile->rows[profile->n_rows++];
    const bool is_last = profile->n_rows == PROFILE_MAX_ROWS; /* which all others share */
    *row = (ProfileRow){.kernel = is_last ? NULL : kernel};
    snprintf(row->name, sizeof row->name, "%s", is_last ? "other" : name);
    return row;
}

void profile_collect(Profile *profile) {
    n_collected = n_calls;
    if (n_calls == 0) return;
    profile->seconds += inner->device->seconds_between(0, 2 * n_calls - 1); /* waits for the last */
    for (int i = 0; i < n_calls; i++) {
        ProfileRow *row = row_of(profile, calls[i].name, calls[i].kernel);
        row->calls++;
        row->seconds += inner->device->seconds_between(2 * i, 2 * i + 1);
        row->flops += calls[i].cost.flops;
        row->bytes += calls[i].cost.bytes;
        calls[i].begin = inner->device->seconds_between(0, 2 * i);
        calls[i].end = inner->device->seconds_between(0, 2 * i + 1);
    }
    profile->n_steps++;
    profile->n_unnoted += n_unnoted;
    n_calls = 0;
    n_unnoted = 0;
}

const ProfileCall *profile_calls(int *n) {
    *n = n_collected;
    return calls;
}
