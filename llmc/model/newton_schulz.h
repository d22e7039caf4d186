/* Newton-Schulz: polynomials of a matrix that bring its singular values to about 1, with products alone. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* x = x / (margin * norm(x)), then for each step, with A = x x^T:  x = a x + (b A + c A A) x.
 *
 * A singular value s of x / norm(x) becomes p(s), p the product of the steps. To add one: a name here, a row in
 * newton_schulz.c, a choice of --muon-polynomial. */
enum { NEWTON_SCHULZ_STEPS = 5 };
typedef struct NewtonSchulz {
    const char *name; /* as the flag has it */
    float margin;     /* what rounding may add to the largest singular value */
    float steps[NEWTON_SCHULZ_STEPS][3];
} NewtonSchulz;

typedef enum { POLAR_EXPRESS, JORDAN, N_POLYNOMIALS } PolynomialId;
extern const NewtonSchulz newton_schulz[N_POLYNOMIALS];

#ifdef __cplusplus
}
#endif
