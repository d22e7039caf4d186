/* Newton-Schulz in strided batches, the polynomial in the products.
 *
 * Teaches: d = alpha a b + beta c is the polynomial already, with c = x x^T in one product and c = x in another. */
#include "steps.cuh"

extern "C" void newton_schulz_fused(const Call *c) {
    orthogonalise_in({false, true}, c);
}
