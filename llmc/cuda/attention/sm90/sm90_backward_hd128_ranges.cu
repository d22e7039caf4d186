/* Attention backward for sm_90a, head size 128, where queries do not see all keys before them: the 1-CTA kernel of
 * sm90_backward_hd128.cu, in which a tile's blocks of queries end where no query sees its keys. The first 64 keys' blocks
 * may end before those of the second: behind them their dS is 0 (trailing_block). */
#include "sm90_backward_hd128.cuh"
#include "llmc/cuda/attention/paths.cuh"

struct Hd128Ranges : Hd128Config<true, 1, 128> {
    static constexpr bool RANGES = true;
};

static __global__ void __launch_bounds__(Hd128Ranges::THREADS, 1)
    sm90_backward_hd128_ranges_kernel(const __grid_constant__ KernelArgs args) {
    run_kernel<Hd128Kernel<Hd128Ranges>>(args);
}

void sm90_backward_hd128_ranges(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, const AttentionMask *mask, void *scratch, int B, int T,
                                int NH, int HD) {
    launch_one_pass<Hd128Ranges, Hd128Shared<Hd128Ranges>>(
        "sm90_backward_hd128_ranges_kernel", sm90_backward_hd128_ranges_kernel,
        kernel_args<128>(dqkv, dout, out, qkv, lse, NULL, scratch, B, T, NH, true, seen_keys(mask, T)));
}
