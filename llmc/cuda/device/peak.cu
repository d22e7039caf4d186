/* The device's peak matrix rate: SMs x clock x multiply-adds per clock and SM, times two.
 *
 * The rates per SM are properties of the architecture, not of a product, so a card in no table still gets its
 * own figure. Source: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions" (fp32), and
 * the architecture whitepapers (dense bf16 tensor rate with fp32 accumulation). */
#include "llmc/cuda/cuda_ops.cuh"

static const struct Rate {
    int min_capability, max_capability; /* both included */
    double bf16, fp32;                  /* FLOP per clock and SM */
} rates[] = {
    {80,  80,  2048, 128}, /* A100 */
    {86,  89,  1024, 256}, /* Ampere and Ada cards */
    {90,  90,  4096, 256}, /* H100, H200 */
    {100, 109, 8192, 256}, /* B200, B300 */
    {120, 129, 1024, 256}, /* Blackwell cards */
    {0,   999, 2048, 256}, /* unknown */
};

static const struct Rate *device_rate(void) {
    const int capability = cuda_compute_capability();
    const struct Rate *rate = rates;
    while (capability < rate->min_capability || capability > rate->max_capability) rate++;
    return rate;
}

static double clocks_per_second(void) {
    return (double)cuda_sm_count() * 1e3 * cuda_device_attribute(cudaDevAttrClockRate); /* kHz */
}

double cuda_peak_flops(DType dtype, const char **how) {
    const struct Rate *rate = device_rate();
    *how = "derived";
    return (dtype == DTYPE_BF16 ? rate->bf16 : rate->fp32) * clocks_per_second();
}
