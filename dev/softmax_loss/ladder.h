/* The ladder of softmax cross-entropy. Operands: losses (N) =, logits (N,Vp), targets (N). Backward turns the logits
 * into dlogits = softmax - onehot in place (dloss = 1), columns from V on into 0. */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

void loss_passes_forward(const Call *c);
void loss_passes_backward(const Call *c);
double loss_passes_forward_bytes(const Sizes *s, int elem);
double loss_passes_backward_bytes(const Sizes *s, int elem);
void loss_online_forward(const Call *c);
void loss_online_backward(const Call *c);
double loss_online_backward_bytes(const Sizes *s, int elem);
void loss_fused_backward(const Call *c);

#ifdef __cplusplus
}
#endif
