/* out[i] = F::apply(a[i], b[i]) over n elements, 16 bytes a thread. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"

template <typename T, typename F>
__global__ void elementwise_kernel(T *out, const T *a, const T *b, int64_t n) {
    constexpr int VEC = Vec<T>::N;
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (i + VEC <= n) {
        Vec<T> x = load_vec(a + i), y = load_vec(b + i);
#pragma unroll
        for (int k = 0; k < VEC; k++) x.v[k] = from_float<T>(F::apply(to_float(x.v[k]), to_float(y.v[k])));
        store_vec(out + i, x);
    } else {
        for (int64_t j = i; j < n; j++) out[j] = from_float<T>(F::apply(to_float(a[j]), to_float(b[j])));
    }
}

/* out may be a or b. An F of one argument takes a for b. */
template <typename T, typename F>
void elementwise(const char *name, floatX *out, const floatX *a, const floatX *b, int64_t n) {
    enum { THREADS = 256 };
    const int64_t blocks = ceil_div<int64_t>(n, THREADS * Vec<T>::N);
    elementwise_kernel<T, F>
        <<<(unsigned)blocks, THREADS, 0, main_stream>>>((T *)out, (const T *)a, (const T *)b, n);
    launch_check(name);
}
