/* Newton-Schulz, all matrices of a shape in one strided batch.
 *
 * Teaches: the card is full, and the launches are as many as for one matrix. The polynomial's passes now read and write
 * what no cache holds. */
#include "steps.cuh"

extern "C" void newton_schulz_batched(const Call *c) {
    orthogonalise_in({false, false}, c);
}
