/* Newton-Schulz, one matrix after the other.
 *
 * Teaches: a matrix of 768 x 768 has 18 tiles for 132 SMs, and 15 launches. The polynomial is a pass of its own behind
 * each product: it reads and writes what the product has just written.
 *
 *   FLOP   5 steps of 4 R R C + 2 R R R, R <= C
 *   bytes  of a step: 2 (5 C + 9 R) R in bf16, from L2 as far as it holds them */
#include "steps.cuh"

extern "C" void newton_schulz_one_matrix(const Call *c) {
    orthogonalise_in({true, false}, c);
}
