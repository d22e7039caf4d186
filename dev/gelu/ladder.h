/* The ladder of GELU. Operands in the order of gelu_forward (out, x) and gelu_backward (dx, pre_gelu, scratch). */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* textbook.c, on the CPU, fp32 */
void gelu_textbook_forward(const Call *c);
void gelu_textbook_backward(const Call *c);
void gelu_forward_reference(Case *c);
void gelu_backward_reference(Case *c);

/* scalar.cu, vectorised.cu */
void gelu_scalar_forward(const Call *c);
void gelu_scalar_backward(const Call *c);
void gelu_vectorised_forward(const Call *c);
void gelu_vectorised_backward(const Call *c);

#ifdef __cplusplus
}
#endif
