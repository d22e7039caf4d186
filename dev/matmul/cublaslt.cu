/* Matrix product by the library alone: cuBLASLt with bias, and GELU, in its epilogue. bf16.
 *
 * Teaches: the yardstick. The shipped row differs only where a kernel of our own is faster: GELU on Hopper. */
#include "llmc/cuda/linear/gemm.cuh"
#include "ladder.h"

extern "C" void matmul_cublaslt(const Call *c) {
    const Sizes *s = &c->s;
    const GemmBuffers buffers = {c->p[0], c->p[3], c->p[2], c->p[4], c->p[1], false};
    const cublasLtEpilogue_t epilogue = c->p[1] ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_BIAS;
    if (gemm<bf16>(GEMM_FORWARD, epilogue, &buffers, s->N, s->OC, s->IC)) return;
    /* the library refuses some small shapes: then as the trainer does it */
    c->ops->linear_forward(matrix(c->p[0], DTYPE_BF16, s->N, s->OC), matrix(c->p[1], DTYPE_BF16, s->N, s->OC),
                           matrix(c->p[2], DTYPE_BF16, s->N, s->IC),
                           matrix(c->p[3], DTYPE_BF16, s->OC, s->IC), c->p[4]);
}
