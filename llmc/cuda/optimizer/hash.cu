/* Hash of a buffer. A thread adds the pieces of a grid-wide stride, a block its threads, and the sum in memory takes one
 * atomic addition of an integer a block. */
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/model/hash.h"

enum { THREADS = 256, BLOCKS_PER_SM = 8 };
static_assert(sizeof(ulonglong2) == HASH_PIECE, "a thread loads a piece at once");

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    hash_kernel(unsigned long long *hash, const ulonglong2 *__restrict__ x, int64_t n_pieces) {
    __shared__ unsigned long long sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    unsigned long long own = 0;
#pragma unroll 4
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n_pieces;
         i += (int64_t)gridDim.x * THREADS) {
        const ulonglong2 piece = x[i];
        own += hash_piece(piece.x, piece.y, i);
    }
    atomicAdd(&sum, own);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(hash, sum);
}

template <typename T> void hash_bytes(uint64_t *hash, const void *x, int64_t n_bytes) {
    const int64_t n_pieces = n_bytes / HASH_PIECE, wanted = ceil_div<int64_t>(n_pieces, THREADS);
    const int64_t most = (int64_t)cuda_sm_count() * BLOCKS_PER_SM;
    hash_kernel<<<(unsigned)(wanted < most ? wanted : most), THREADS, 0, main_stream>>>(
        (unsigned long long *)hash, (const ulonglong2 *)x, n_pieces);
    launch_check("hash_bytes");
}

/* Bytes, whatever the storage type. */
template HashBytes hash_bytes<float>;
template HashBytes hash_bytes<bf16>;
