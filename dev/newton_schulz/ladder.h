/* The ladder of Newton-Schulz. op_orthogonalise_args gives the arguments that the shipped op gets. */
#pragma once
#include "dev/driver/lab.h"

#ifdef __cplusplus
extern "C" {
#endif

void newton_schulz_one_matrix(const Call *c); /* a product a matrix */
void newton_schulz_batched(const Call *c);    /* a product for all */
void newton_schulz_fused(const Call *c);      /* and the polynomial with it */

#ifdef __cplusplus
}
#endif
