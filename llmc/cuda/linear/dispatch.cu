/* The linear ops: which kernel of the table in kernels.cuh serves a call. */
#include "kernels.cuh"
#include "llmc/cuda/cuda_ops.cuh"

#define ROW(name, ...) {#name, name, __VA_ARGS__},
static const KernelRow kernels[] = {LINEAR_KERNELS(ROW)};
#undef ROW

static bool fits(const KernelRow *row, const LinearCall *c) {
    const int capability = cuda_compute_capability();
    const DType dtype = c->product == GEMM_FORWARD ? c->x.dtype : c->y.dtype;
    return row->product == c->product && capability >= row->min_capability &&
           capability <= row->max_capability && (row->dtype == ANY_DTYPE || row->dtype == (int)dtype) &&
           gemm_alignment_limit() >= row->tma && (c->wants & row->must_want) == row->must_want &&
           (c->wants & ~(row->must_want | row->may_want)) == 0;
}

/* Matrix.scale: no kernel takes one yet. */
static bool is_scaled(const LinearCall *c) {
    return c->y.scale || c->x.scale || c->w.scale || c->pre_gelu.scale || c->gelu.scale || c->other.scale;
}

/* False where no kernel serves the call. */
static bool run(const LinearCall *c) {
    if (is_scaled(c)) return false;
    for (const KernelRow &row : kernels)
        if (fits(&row, c) && row.run(c)) {
            cuda_kernel_ran = row.name;
            return true;
        }
    return false;
}

static void must_run(const LinearCall *c) {
    if (run(c)) return;
    const char *names[] = {"forward", "backward_input", "backward_weight"};
    cuda_fail("no kernel of llmc/cuda/linear/kernels.cuh serves linear_%s with N %lld, OC %lld, IC %d, "
              "%zu-byte elements",
              names[c->product], (long long)c->y.rows, (long long)c->w.rows, c->w.columns,
              dtype_bytes(c->product == GEMM_FORWARD ? c->x.dtype : c->y.dtype));
}

/* ---- the ops ---- */

static unsigned wanted(const void *operand, unsigned what) {
    return operand ? what : 0;
}

template <typename T>
void linear_forward(Matrix out, Matrix pre_gelu, Matrix x, Matrix weight, const floatX *bias) {
    LinearCall c = {};
    c.product = GEMM_FORWARD;
    c.wants = wanted(bias, WANT_BIAS) | wanted(pre_gelu.data, WANT_GELU);
    c.y = out;
    c.x = x;
    c.w = weight;
    c.pre_gelu = pre_gelu;
    c.bias = bias;
    must_run(&c);
}

static LinearCall input_gradient(Matrix dx, Matrix dout, Matrix weight, void *scratch) {
    LinearCall c = {};
    c.product = GEMM_BACKWARD_INPUT;
    c.y = dout;
    c.x = dx;
    c.w = weight;
    c.scratch = scratch;
    return c;
}

template <typename T>
void linear_backward_input(Matrix dx, float *dx_sums, Matrix gelu, Matrix dout, Matrix weight,
                           Matrix pre_gelu, void *scratch) {
    LinearCall c = input_gradient(dx, dout, weight, scratch);
    c.wants =
        wanted(pre_gelu.data, WANT_GELU) | wanted(gelu.data, WANT_GELU_AGAIN) | wanted(dx_sums, WANT_SUMS);
    c.pre_gelu = pre_gelu;
    c.gelu = gelu;
    c.sums = dx_sums;
    must_run(&c);
}

template <typename T>
bool linear_backward_input_row_dots(Matrix dx, float *row_dots, Matrix dout, Matrix weight, Matrix other,
                                    void *scratch, int group) {
    LinearCall c = input_gradient(dx, dout, weight, scratch);
    c.wants = WANT_ROW_DOTS;
    c.other = other;
    c.row_dots = row_dots;
    c.group = group;
    if (run(&c)) return true;
    c.wants = 0;
    must_run(&c);
    return false;
}

template <typename T>
void linear_backward_weight(Matrix dweight, float *dbias, Matrix dout, Matrix x, WriteMode mode,
                            void *scratch) {
    LinearCall c = {};
    c.product = GEMM_BACKWARD_WEIGHT;
    c.wants = wanted(dbias, WANT_SUMS);
    c.y = dout;
    c.x = x;
    c.w = dweight;
    c.sums = dbias;
    c.mode = mode;
    c.scratch = scratch;
    must_run(&c);
}

size_t linear_scratch_bytes(int64_t N, int IC) {
    return linear_gelu_backward_sm90_scratch_bytes(N, IC);
}

template LinearForward linear_forward<float>;
template LinearForward linear_forward<bf16>;
template LinearBackwardInput linear_backward_input<float>;
template LinearBackwardInput linear_backward_input<bf16>;
template LinearBackwardInputRowDots linear_backward_input_row_dots<float>;
template LinearBackwardInputRowDots linear_backward_input_row_dots<bf16>;
template LinearBackwardWeight linear_backward_weight<float>;
template LinearBackwardWeight linear_backward_weight<bf16>;
