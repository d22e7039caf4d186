/* Maximum and sum of a row in one pass (Milakov & Gimelshein 2018, Algorithm 3): the sum is kept relative to the
 * largest logit so far, and shrinks by exp(old - new) when a larger one comes. */
#pragma once
#include "rows.cuh"

__device__ inline void take(RowSums &r, float z) {
    if (z > r.max) {
        r.sum *= expf(r.max - z);
        r.max = z;
    }
    r.sum += expf(z - r.max);
}

/* Every thread its own columns, then the threads' sums, each brought to the row's maximum. */
template <typename X> __device__ inline RowSums online_pass(const X *row, int V) {
    RowSums r = {-FLT_MAX, 0};
    for (int i = threadIdx.x; i < V; i += blockDim.x) take(r, to_float(row[i]));
    const float max = block_max(r.max);
    return {max, block_sum(r.sum * expf(r.max - max))};
}
