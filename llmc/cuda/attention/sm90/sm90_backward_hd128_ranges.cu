/* Attention backward for sm_90a, head sizes 96, 112 and 128, where queries do not see all keys before them: the kernels of
 * sm90_backward_hd128.cu, in which the blocks of queries of a tile or pair end where no query sees its keys. Some of its keys
 * are seen by fewer blocks than others: where none sees a warpgroup's, their dS is 0 (skip_block, trailing_block). */
#include "sm90_backward_hd128.cuh"
#include "llmc/cuda/attention/paths.cuh"

template <int CLUSTER, int HEAD> struct Hd128Ranges : Hd128Config<true, CLUSTER, HEAD> {
    static constexpr bool RANGES = true, TURNS = CLUSTER > 1;
};

template <int CLUSTER, int HEAD>
__global__ void __launch_bounds__(Hd128Ranges<CLUSTER, HEAD>::THREADS, 1)
    sm90_backward_hd128_ranges_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd128Kernel<Hd128Ranges<CLUSTER, HEAD>>>(args);
}

template <int CLUSTER, int HEAD> static void launch_ranges(KernelArgs &args, floatX *dqkv, int B) {
    launch_hd128<Hd128Ranges<CLUSTER, HEAD>>("sm90_backward_hd128_ranges_kernel",
                                             sm90_backward_hd128_ranges_kernel<CLUSTER, HEAD>, args, dqkv, B);
}

/* Clusters where tiles may be long: of a pair 256 keys, not 128, may straddle the start of a window or document. */
enum { PAIRS_FROM_T = 16384, PAIRS_FROM_WINDOW = 2048 };

void sm90_backward_hd128_ranges(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                int B, int T, int NH, int HD) {
    KernelArgs args =
        kernel_args<128>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, true, seen_keys(mask, T));
    const bool pairs = T >= PAIRS_FROM_T && args.seen.window >= PAIRS_FROM_WINDOW;
    (pairs ? launch_ranges<2, 128> : launch_ranges<1, 128>)(args, dqkv, B);
}

#define BACKWARD(name, head_size)                                                                            \
    void name(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv, const float *lse,      \
              const float *d, const AttentionMask *mask, void *scratch, int B, int T, int NH, int HD) {      \
        KernelArgs args = kernel_args<head_size>(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, true,      \
                                                 seen_keys(mask, T));                                        \
        launch_ranges<1, head_size>(args, dqkv, B);                                                          \
    }

BACKWARD(sm90_backward_hd96_ranges, 96)
BACKWARD(sm90_backward_hd112_ranges, 112)
