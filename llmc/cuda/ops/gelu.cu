/* GELU where no product takes it along: fp32, and shapes that the library refuses. */
#include "gelu.cuh"
#include "llmc/cuda/cuda_ops.cuh"

/* One thread per 16 bytes of x (N,OC); OC is a multiple of 8, so they lie in one row. bias, pre_gelu or NULL. */
template <typename T>
__global__ void bias_gelu_kernel(T *x, T *pre_gelu, const T *bias, int64_t n_vecs, int OC) {
    constexpr int VEC = Vec<T>::N;
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_vecs) return;
    Vec<T> out = load_vec(x + i * VEC), pre = out;
    Vec<T> b = {};
    if (bias) b = load_vec(bias + i % (OC / VEC) * VEC);
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        const float sum = to_float(out.v[k]) + to_float(b.v[k]);
        pre.v[k] = from_float<T>(sum);
        out.v[k] = from_float<T>(pre_gelu ? gelu<T>(sum) : sum);
    }
    if (pre_gelu) store_vec(pre_gelu + i * VEC, pre);
    store_vec(x + i * VEC, out);
}

template <typename T>
void bias_gelu_inplace(floatX *x, floatX *pre_gelu, const floatX *bias, int64_t N, int OC) {
    enum { THREADS = 256 };
    const int64_t n_vecs = N * (OC / Vec<T>::N);
    bias_gelu_kernel<<<(unsigned)ceil_div<int64_t>(n_vecs, THREADS), THREADS, 0, main_stream>>>(
        (T *)x, (T *)pre_gelu, (const T *)bias, n_vecs, OC);
    launch_check("bias_gelu");
}

template void bias_gelu_inplace<float>(floatX *, floatX *, const floatX *, int64_t, int);
template void bias_gelu_inplace<bf16>(floatX *, floatX *, const floatX *, int64_t, int);
