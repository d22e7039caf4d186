/* The linear layers' kernels that are cuBLASLt's, and the passes of our own behind them.
 *
 * Bias gradients are column sums in a pass that reads the gradient once more: the library's epilogue for them is slower
 * (fc's at d12: 628 us for 462 + 95). GELU's derivative comes by that pass, too, where it finds the gradient in L2. */
#include "kernels.cuh"
#include "llmc/cuda/cuda_ops.cuh"

/* Gradients of at most so many elements go through GELU in the pass that sums them: they are still in L2. */
static const int64_t PASS_ELEMENTS = 16 << 20;

/* The product alone or with an epilogue. False: the library has no algorithm for it. */
template <typename T> static bool multiply(const LinearCall *c, cublasLtEpilogue_t epilogue) {
    GemmBuffers buffers = {};
    if (c->product == GEMM_FORWARD)
        buffers = {c->y.data, c->w.data, c->x.data, c->bias, c->pre_gelu.data, false};
    else if (c->product == GEMM_BACKWARD_INPUT)
        buffers = {c->x.data, c->w.data, c->y.data, NULL, c->pre_gelu.data, false};
    else
        buffers = {c->w.data, c->x.data, c->y.data, NULL, NULL, c->mode == OVERWRITE};
    return gemm<T>(c->product, epilogue, &buffers, c->y.rows, (int)c->w.rows, c->w.columns);
}

/* sums += column sums of the gradient m */
template <typename T> static void add_sums(const LinearCall *c, Matrix m) {
    if (c->wants & WANT_SUMS)
        column_sums<T>(c->sums, (const T *)m.data, c->scratch, m.rows, m.columns, m.columns);
}

/* ---- forward ---- */

template <typename T> static bool forward(const LinearCall *c) {
    const bool bias = c->wants & WANT_BIAS;
    const cublasLtEpilogue_t plain = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const cublasLtEpilogue_t gelu = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return multiply<T>(c, c->wants & WANT_GELU ? gelu : plain);
}

template <typename T> static bool forward_pass(const LinearCall *c) {
    if (!multiply<T>(c, CUBLASLT_EPILOGUE_DEFAULT)) return false;
    if (c->wants) bias_gelu_inplace<T>(c->y.data, c->pre_gelu.data, c->bias, c->y.rows, c->y.columns);
    return true;
}

/* ---- input gradient ---- */

template <typename T> static bool gelu_backward(const LinearCall *c) {
    if (c->x.rows * c->x.columns <= PASS_ELEMENTS || !multiply<T>(c, CUBLASLT_EPILOGUE_DGELU)) return false;
    add_sums<T>(c, c->x);
    return true;
}

template <typename T> static bool backward_input(const LinearCall *c) {
    const Matrix dx = c->x;
    if (!multiply<T>(c, CUBLASLT_EPILOGUE_DEFAULT)) return false;
    if (!(c->wants & WANT_GELU))
        add_sums<T>(c, dx);
    else
        gelu_backward_sums<T>((T *)dx.data, c->sums, (T *)c->gelu.data, (const T *)c->pre_gelu.data,
                              c->scratch, dx.rows, dx.columns);
    return true;
}

/* ---- weight gradient ---- */

template <typename T> static bool backward_weight(const LinearCall *c) {
    if (!multiply<T>(c, CUBLASLT_EPILOGUE_DEFAULT)) return false;
    add_sums<T>(c, c->y);
    return true;
}

/* ---- the kernels of the table ---- */

bool cublaslt_forward(const LinearCall *c) {
    return c->x.dtype == DTYPE_BF16 ? forward<bf16>(c) : forward<float>(c);
}
bool cublaslt_forward_pass(const LinearCall *c) {
    return c->x.dtype == DTYPE_BF16 ? forward_pass<bf16>(c) : forward_pass<float>(c);
}
bool cublaslt_gelu_backward(const LinearCall *c) {
    return gelu_backward<bf16>(c);
}
bool cublaslt_backward_input(const LinearCall *c) {
    return c->y.dtype == DTYPE_BF16 ? backward_input<bf16>(c) : backward_input<float>(c);
}
bool cublaslt_backward_weight(const LinearCall *c) {
    return c->y.dtype == DTYPE_BF16 ? backward_weight<bf16>(c) : backward_weight<float>(c);
}
