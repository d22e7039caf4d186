/* Linear layers: products by gemm.cu, bias gradients by our own column sums.
 *
 * GELU after a layer comes with the product: on Hopper by a kernel of our own (linear_gelu_sm90.cu; 574 us at d12's
 * shape, the library's epilogue 652, the product alone 457), elsewhere and for small shapes by the library's
 * epilogue. So does its derivative, with the column sums and, for a layer that kept pre_gelu alone, GELU again: on
 * Hopper by a kernel of our own (linear_gelu_backward_sm90.cu; 636 us at d12's shape, 716 with GELU). Elsewhere the
 * derivative comes by the library's epilogue where the gradient is too large for L2 and the library has a kernel of
 * the card's generation for it (gemm.cu), else by a pass that finds the gradient in L2 (on an H200 epilogue and sums
 * take 768 us, product and pass 776; at 4 x 1024 tokens 59 and 53); GELU again always by that pass (853 us). The
 * library's bias-gradient epilogues are slower than a pass that reads dout once more (fc 628 against 462 + 95 us), so
 * they are not used. In fp32, GELU is ours: the library's is an approximation.
 *
 * What attention's way back needs of the gradient of its output, D, comes on Hopper with the product that makes it
 * (linear_row_dots_sm90.cu; 35 us less than product and pass at d12's shape). */
#include <stdio.h>
#include <stdlib.h>
#include "llmc/cuda/cuda_ops.cuh"
#include "gemm.cuh"
#include "linear_gelu_backward_sm90.cuh"
#include "linear_gelu_sm90.cuh"
#include "linear_row_dots_sm90.cuh"

/* Gradients of at most so many elements go through GELU in the pass that sums them: they are still in L2. */
static const int64_t PASS_ELEMENTS = 16 << 20;

template <typename T>
static void plain_gemm(GemmKind kind, const GemmBuffers *buffers, int64_t N, int OC, int IC) {
    if (gemm<T>(kind, CUBLASLT_EPILOGUE_DEFAULT, buffers, N, OC, IC)) return;
    const char *names[] = {"forward", "backward_input", "backward_weight"};
    fprintf(stderr,
            "error: cuBLASLt has no algorithm for linear_%s with N %lld, OC %d, IC %d, %zu-byte elements\n",
            names[kind], (long long)N, OC, IC, sizeof(T));
    exit(EXIT_RUN);
}

/* ---- the ops ---- */

template <typename T>
void linear_forward(floatX *out, floatX *pre_gelu, const floatX *x, const floatX *weight, const floatX *bias,
                    int64_t N, int OC, int IC) {
    const bool is_bf16 = sizeof(T) == sizeof(bf16), tma_aligned = gemm_alignment_limit() >= 16;
    if (pre_gelu && is_bf16 && tma_aligned && linear_gelu_sm90_serves(N, OC, IC)) {
        linear_gelu_sm90((bf16 *)out, (bf16 *)pre_gelu, (const bf16 *)x, (const bf16 *)weight,
                         (const bf16 *)bias, N, OC, IC);
        return;
    }
    const GemmBuffers buffers = {out, weight, x, bias, pre_gelu, false};
    const cublasLtEpilogue_t epilogue =
        pre_gelu ? bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX
        : bias   ? CUBLASLT_EPILOGUE_BIAS
                 : CUBLASLT_EPILOGUE_DEFAULT;
    if ((!pre_gelu || is_bf16) && gemm<T>(GEMM_FORWARD, epilogue, &buffers, N, OC, IC)) return;
    plain_gemm<T>(GEMM_FORWARD, &buffers, N, OC, IC);
    if (bias || pre_gelu) bias_gelu_inplace<T>(out, pre_gelu, bias, N, OC);
}

template <typename T>
void linear_backward_input(floatX *dx, float *dx_sums, floatX *gelu, const floatX *dout, const floatX *weight,
                           const floatX *pre_gelu, void *scratch, int64_t N, int OC, int IC) {
    const bool is_bf16 = sizeof(T) == sizeof(bf16), tma_aligned = gemm_alignment_limit() >= 16;
    if (pre_gelu && is_bf16 && tma_aligned && linear_gelu_backward_sm90_serves(N, OC, IC)) {
        linear_gelu_backward_sm90((bf16 *)dx, dx_sums, (bf16 *)gelu, (const bf16 *)dout, (const bf16 *)weight,
                                  (const bf16 *)pre_gelu, scratch, N, OC, IC);
        return;
    }
    const GemmBuffers buffers = {dx, weight, dout, NULL, pre_gelu, false};
    const bool epilogue_gelu = pre_gelu && !gelu && is_bf16 && N * IC > PASS_ELEMENTS;
    if (epilogue_gelu && gemm<T>(GEMM_BACKWARD_INPUT, CUBLASLT_EPILOGUE_DGELU, &buffers, N, OC, IC)) {
        if (dx_sums) column_sums<T>(dx_sums, (const T *)dx, scratch, N, IC, IC);
        return;
    }
    plain_gemm<T>(GEMM_BACKWARD_INPUT, &buffers, N, OC, IC);
    if (pre_gelu && (dx_sums || gelu))
        gelu_backward_sums<T>((T *)dx, dx_sums, (T *)gelu, (const T *)pre_gelu, scratch, N, IC);
    else if (pre_gelu)
        gelu_backward_inplace<T>(dx, pre_gelu, N * IC);
    else if (dx_sums)
        column_sums<T>(dx_sums, (const T *)dx, scratch, N, IC, IC);
}

template <typename T>
bool linear_backward_input_row_dots(floatX *dx, float *row_dots, const floatX *dout, const floatX *weight,
                                    const floatX *other, void *scratch, int64_t N, int OC, int IC,
                                    int group) {
    const bool is_bf16 = sizeof(T) == sizeof(bf16), tma_aligned = gemm_alignment_limit() >= 16;
    const bool served = is_bf16 && tma_aligned && linear_row_dots_sm90_serves(N, OC, IC, group);
    if (served)
        linear_row_dots_sm90((bf16 *)dx, row_dots, (const bf16 *)dout, (const bf16 *)weight,
                             (const bf16 *)other, N, OC, IC, group);
    else
        linear_backward_input<T>(dx, NULL, NULL, dout, weight, NULL, scratch, N, OC, IC);
    return served;
}

size_t linear_scratch_bytes(int64_t N, int IC) {
    return linear_gelu_backward_sm90_scratch_bytes(N, IC);
}

template <typename T>
void linear_backward_weight(float *dweight, float *dbias, const floatX *dout, const floatX *x, WriteMode mode,
                            void *scratch, int64_t N, int OC, int IC) {
    const GemmBuffers buffers = {dweight, x, dout, NULL, NULL, mode == OVERWRITE};
    plain_gemm<T>(GEMM_BACKWARD_WEIGHT, &buffers, N, OC, IC);
    if (dbias) column_sums<T>(dbias, (const T *)dout, scratch, N, OC, OC);
}

template LinearForward linear_forward<float>;
template LinearForward linear_forward<bf16>;
template LinearBackwardInput linear_backward_input<float>;
template LinearBackwardInput linear_backward_input<bf16>;
template LinearBackwardInputRowDots linear_backward_input_row_dots<float>;
template LinearBackwardInputRowDots linear_backward_input_row_dots<bf16>;
template LinearBackwardWeight linear_backward_weight<float>;
template LinearBackwardWeight linear_backward_weight<bf16>;
