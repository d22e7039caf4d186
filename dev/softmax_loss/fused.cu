/* Softmax cross-entropy and its gradient with one read and one write of the logits.
 *
 * Teaches: a row of 100 KB fits the shared memory of an SM (227 KB on Hopper), so it is fetched once, 16 bytes a
 * thread, and all passes after that are over shared memory. Where it does not fit (fp32 on an A100), the online
 * form reads it again.
 *
 *   FLOP   about 2 V exponentials a row
 *   bytes  logits read once and written once: the least that backward needs */
#include "online.cuh"

template <typename X, bool FITS> static __global__ void fused_kernel(Logits<X> l) {
    extern __shared__ int4 shared_row[];
    X *row = l.logits + (int64_t)blockIdx.x * l.Vp, *in = FITS ? (X *)shared_row : row;
    const int target = l.targets[blockIdx.x];
    for (int i = threadIdx.x * Vec<X>::N; FITS && i < l.Vp; i += blockDim.x * Vec<X>::N)
        store_vec(in + i, load_vec_once(row + i));
    __syncthreads();
    const float z_target = to_float(in[target]);
    const RowSums r = online_pass(in, l.V);
    write_loss(l, r, z_target);
    for (int i = threadIdx.x * Vec<X>::N; i < l.Vp; i += blockDim.x * Vec<X>::N) {
        Vec<X> v = load_vec(in + i);
        for (int k = 0; k < Vec<X>::N; k++) v.v[k] = dlogit(l, r, target, i + k, to_float(v.v[k]));
        store_vec_once(row + i, v);
    }
}

template <typename X> static void run(const Call *c) {
    enum { STATIC_BYTES = 2048 }; /* of the reductions, and what the system keeps of a block's memory */
    const Logits<X> l = logits_of<X>(c);
    const bool fits = row_bytes(l) + STATIC_BYTES <= most_shared_bytes();
    launch("fused_kernel", fits ? fused_kernel<X, true> : fused_kernel<X, false>, blocks_for(c->s.N, 1),
           2 * LOSS_THREADS, fits ? row_bytes(l) : 0, l);
}
extern "C" void loss_fused_backward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
