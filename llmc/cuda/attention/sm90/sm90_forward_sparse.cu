/* Attention forward for sm_90a where queries see a pattern of blocks (block_sparse.h). The kernel is that of
 * sm90_forward.cu with a list of blocks for each tile in place of a range (ForwardSparse): the producer writes beside each
 * block which warpgroups see it, and the others release it. Only the diagonal is masked within a block. */
#include "llmc/cuda/attention/paths.cuh"
#include "sm90_forward_launch.cuh"

template <int HD, const Sm90Shape &TILES>
static void forward_sparse(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B,
                           int T, int NH) {
    forward<ForwardSparse<ForwardConfig<HD, true, TILES, SM90_FIXED_MAX, SM90_FREE, false>>,
            ForwardSparse<ForwardConfig<HD, true, TILES, SM90_ONLINE_MAX, SM90_FREE, false>>>(
        out, lse, qkv, B, T, NH, {}, {}, mask->sparse);
}

#define FORWARD(name, head_size, tiles)                                                                      \
    void name(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B, int T, int NH,   \
              int HD) {                                                                                      \
        forward_sparse<head_size, tiles>(out, lse, qkv, mask, B, T, NH);                                     \
    }

FORWARD(sm90_forward_hd64_sparse, 64, TILES_256_64)
FORWARD(sm90_forward_hd80_sparse, 80, TILES_192_64)
FORWARD(sm90_forward_hd96_sparse, 96, TILES_192_64)
FORWARD(sm90_forward_hd112_sparse, 112, TILES_192_64)
FORWARD(sm90_forward_hd128_sparse, 128, TILES_192_64)
