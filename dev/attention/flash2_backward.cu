/* B3, FlashAttention-2 backward (Dao 2023, Algorithm 2), with dropout and block-sparse masks as forward has them.
 *
 * Teaches: P comes back from L alone, P = exp(S - L); a block owns a tile of keys, so dK and dV stay on the chip,
 * and shares of dQ from all tiles meet in memory by atomic adds, whose order changes from run to run: the last
 * bits do too. D = rowsum(dO O) is a pass of its own. Under dropout the mask is drawn again from its counter.
 *
 * flash2_backward_p_only leaves the softmax's own derivative out and takes P in the place of dS for dQ and dK,
 * as one published write-up does: the gradient check shows that it is wrong.
 *
 *   FLOP   2 (3 HD + 2 DV) for each pair
 *   bytes  K, V, dK, dV once; Q, dO, L, D and dQ's adds once for each tile of keys that they see */
#include "ladder.cuh"

HOST_DEVICE int backward_rows(const Sizes *s) {
    return s->HD > 64 || s->DV > 64 ? 32 : 64;
}

extern "C" size_t flash2_backward_scratch(const Sizes *s, int elem) {
    return (size_t)s->B * s->NH * s->T * (s->HD + 1) * sizeof(float);
}

/* Queries of one block of the two small kernels. */
enum { ROWS = 64 };

/* D of every query: one warp a row. */
template <typename X> static __global__ void d_kernel(Tensors<X> t, float *d) {
    const Head head = head_of(t, blockIdx.x);
    const int i0 = blockIdx.y * ROWS, lane = threadIdx.x % WARP_SIZE;
    for (int i = i0 + threadIdx.x / WARP_SIZE; i < min(i0 + ROWS, t.s.T); i += N_WARPS) {
        const int64_t at = head.out + i * t.l.out_stride;
        float sum = 0;
        for (int x = lane; x < t.s.DV; x += WARP_SIZE)
            sum += to_float(t.dout[at + x]) * to_float(t.out[at + x]);
        sum = warp_sum(sum);
        if (lane == 0) d[head.row + i] = sum;
    }
}

/* The sums of dQ, rounded, to their place. */
template <typename X> static __global__ void dq_kernel(Tensors<X> t, const float *dq) {
    const Head head = head_of(t, blockIdx.x);
    const int i0 = blockIdx.y * ROWS, HD = t.s.HD, n = min((int)ROWS, t.s.T - i0);
    for (int i = threadIdx.x; i < n * HD; i += blockDim.x)
        t.dqkv[head.q + (i0 + i / HD) * t.l.q_stride + i % HD] = from_float<X>(dq[(head.row + i0) * HD + i]);
}

/* p holds S and becomes P times dropout, for dV; dp holds dO V^T and becomes dS (line 14). */
template <bool P_ONLY>
static __device__ void gradient_rows(const Sizes *s, Tile p, Tile dp, const float *lse, const float *d,
                                     int rows, int i0, int j0, int64_t row0) {
    for (int i = threadIdx.x; i < rows * rows; i += blockDim.x) {
        const int r = i / rows, c = i % rows;
        const bool seen = sees(s, i0 + r, j0 + c);
        const float prob = seen ? expf(p(r, c) - lse[r]) : 0; /* line 11 */
        const float factor = seen ? attention_dropout(s, row0 + r, j0 + c) : 0;
        dp(r, c) = !seen ? 0 : P_ONLY ? prob : prob * (factor * dp(r, c) - d[r]);
        p(r, c) = prob * factor;
    }
}

template <typename X, bool P_ONLY>
static __global__ void flash2_backward_kernel(Tensors<X> t, const float *d_all, float *dq_all) {
    extern __shared__ float memory[];
    const Sizes *s = &t.s;
    const int HD = s->HD, DV = s->DV, R = backward_rows(s), j0 = blockIdx.y * R;
    const Head head = head_of(t, blockIdx.x);
    float *next = memory;
    const Tile k = take_tile(next, R, HD), v = take_tile(next, R, DV), dk = take_tile(next, R, HD);
    const Tile dv = take_tile(next, R, DV), q = take_tile(next, R, HD), dout = take_tile(next, R, DV);
    const Tile p = take_tile(next, R, R), ds = take_tile(next, R, R), dq = take_tile(next, R, HD);
    float *lse = next, *d = lse + R;
    load_tile(k, t.qkv + head.k + j0 * t.l.k_stride, t.l.k_stride, R, HD, s->Tk - j0);
    load_tile(v, t.qkv + head.v + j0 * t.l.v_stride, t.l.v_stride, R, DV, s->Tk - j0);
    fill_tile(dk, R, HD, 0);
    fill_tile(dv, R, DV, 0);
    for (int i0 = queries_begin(s, j0) / R * R; i0 < queries_end(s, j0, R); i0 += R) { /* line 8 */
        if (!attention_block_set(s, i0 / SPARSE_BLOCK, j0 / SPARSE_BLOCK)) continue;
        load_tile(q, t.qkv + head.q + i0 * t.l.q_stride, t.l.q_stride, R, HD, s->T - i0);
        load_tile(dout, t.dout + head.out + i0 * t.l.out_stride, t.l.out_stride, R, DV, s->T - i0);
        for (int r = threadIdx.x; r < R; r += blockDim.x) {
            lse[r] = i0 + r < s->T ? t.lse[head.row + i0 + r] : 0;
            d[r] = i0 + r < s->T ? d_all[head.row + i0 + r] : 0;
        }
        __syncthreads();
        product(p, rows_of(q), rows_of(k), R, R, HD, t.scale, false); /* line 10 */
        product(ds, rows_of(dout), rows_of(v), R, R, DV, 1, false);   /* line 13 */
        __syncthreads();
        gradient_rows<P_ONLY>(s, p, ds, lse, d, R, i0, j0, head.row + i0);
        __syncthreads();
        product(dv, columns_of(p), columns_of(dout), R, DV, R, 1, true);     /* line 12 */
        product(dk, columns_of(ds), columns_of(q), R, HD, R, t.scale, true); /* line 16 */
        product(dq, rows_of(ds), columns_of(k), R, HD, R, t.scale, false);   /* line 15 */
        __syncthreads();
        for (int i = threadIdx.x; i < R * HD; i += blockDim.x)
            if (i0 + i / HD < s->T)
                atomicAdd(&dq_all[(head.row + i0 + i / HD) * HD + i % HD], dq(i / HD, i % HD));
        __syncthreads();
    }
    __syncthreads();
    store_tile(t.dqkv + head.k + j0 * t.l.k_stride, t.l.k_stride, dk, HD, min(R, s->Tk - j0), NULL);
    store_tile(t.dqkv + head.v + j0 * t.l.v_stride, t.l.v_stride, dv, DV, min(R, s->Tk - j0), NULL);
}

template <typename X, bool P_ONLY> static void run(const Call *c) {
    const Tensors<X> t = backward_tensors<X>(c);
    const Sizes *s = &t.s;
    const int R = backward_rows(s), heads = s->B * s->NH;
    const int64_t rows = (int64_t)heads * s->T;
    float *dq = (float *)t.scratch, *d = dq + rows * s->HD;
    const size_t floats =
        4 * tile_floats(R, s->HD) + 3 * tile_floats(R, s->DV) + 2 * tile_floats(R, R) + 2 * R;
    const dim3 small(heads, ceil_div(s->T, (int)ROWS));
    CUDA_CHECK(cudaMemsetAsync(dq, 0, rows * s->HD * sizeof(float), main_stream));
    launch("d_kernel", d_kernel<X>, small, LADDER_THREADS, 0, t, d);
    launch("flash2_backward_kernel", flash2_backward_kernel<X, P_ONLY>, dim3(heads, ceil_div(s->Tk, R)),
           LADDER_THREADS, floats * sizeof(float), t, (const float *)d, dq);
    launch("dq_kernel", dq_kernel<X>, small, LADDER_THREADS, 0, t, (const float *)dq);
}

extern "C" void flash2_backward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16, false>(c) : run<float, false>(c);
}
extern "C" void flash2_backward_p_only(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16, true>(c) : run<float, true>(c);
}

extern "C" double flash2_backward_bytes(const Sizes *s, int elem) {
    const double rows = (double)s->B * s->NH * s->T, keys = (double)s->B * s->NH * s->Tk;
    const double visits = attention_pairs(s) / backward_rows(s); /* rows of queries over tiles of keys */
    return keys * 2 * elem * (s->HD + s->DV) + visits * (elem * (s->HD + s->DV) + 8 + 8 * s->HD) +
           rows * (2 * elem * s->DV + 4 + s->HD * (8 + elem));
}
