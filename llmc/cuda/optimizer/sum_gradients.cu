/* Sums of gradients whose order is the caller's: out = a + b.
 *
 * Nothing but memory traffic, 12 bytes an element in 16-byte accesses, each used once. A thread takes four neighbours and
 * ends, as in AdamW, where a grid that fills the device once was slower. */
#include "llmc/cuda/cuda_ops.cuh"

enum { THREADS = 256, QUAD = Vec<float>::N };

/* out may be a or b: a thread has read what it writes. */
__global__ void __launch_bounds__(THREADS)
    sum_gradients_kernel(float *out, const float *a, const float *b, int64_t n) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD;
    if (i + QUAD <= n) {
        const Vec<float> x = load_vec_once(a + i), y = load_vec_once(b + i);
        Vec<float> sum;
#pragma unroll
        for (int k = 0; k < QUAD; k++) sum.v[k] = x.v[k] + y.v[k];
        store_vec(out + i, sum);
    } else {
        for (int64_t j = i; j < n; j++) out[j] = a[j] + b[j];
    }
}

template <typename T> void sum_gradients(float *out, const float *a, const float *b, int64_t n) {
    sum_gradients_kernel<<<(unsigned)ceil_div<int64_t>(n, THREADS * QUAD), THREADS, 0, main_stream>>>(out, a,
                                                                                                      b, n);
    launch_check("sum_gradients");
}

/* One storage type, fp32, whatever that of the weights. */
template SumGradients sum_gradients<float>;
template SumGradients sum_gradients<bf16>;
