/* F13, flash-decoding (Dao et al. 2023): few queries against a long cache, split over the keys.
 *
 * Teaches: with one query a head, B*NH blocks cannot fill the card; so the keys of one head are cut into pieces of
 * 256, each a block with its own m, l and O, and a second kernel puts the pieces of a query together:
 *
 *   m = max m_s   l = sum l_s e^(m_s - m)   O = sum O_s e^(m_s - m) / l
 *
 *   FLOP   2 (HD + DV) for each pair
 *   bytes  K and V once for each query; O, m, l of every piece both ways */
#include "ladder.cuh"

enum { PIECE = 256, LARGEST = 256, PER_LANE = LARGEST / WARP_SIZE };

static int n_pieces(const Sizes *s) {
    return ceil_div(s->Tk, (int)PIECE);
}

/* O, m and l of every piece: (B*NH*T, pieces, DV + 2) fp32 */
extern "C" size_t flash_decoding_scratch(const Sizes *s, int elem) {
    return (size_t)s->B * s->NH * s->T * n_pieces(s) * (s->DV + 2) * sizeof(float);
}

/* One block a piece of keys: its warps take every eighth key, then add up in shared memory, warp 0 first. */
template <typename X> static __global__ void piece_kernel(Tensors<X> t, float *pieces) {
    __shared__ float all_o[N_WARPS][LARGEST], all_m[N_WARPS], all_l[N_WARPS];
    const Sizes *s = &t.s;
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE, i = blockIdx.x % s->T;
    const Head head = head_of(t, blockIdx.x / s->T);
    const int begin = blockIdx.y * PIECE, end = min(begin + PIECE, keys_end(s, i, 1));
    float q[PER_LANE], o[PER_LANE] = {}, m = -INFINITY, l = 0;
    for (int x = 0; x < PER_LANE; x++)
        q[x] = x * WARP_SIZE + lane < s->HD
                   ? to_float(t.qkv[head.q + i * t.l.q_stride + x * WARP_SIZE + lane]) * t.scale
                   : 0;
    for (int j = begin + warp; j < end; j += N_WARPS) {
        const X *k = t.qkv + head.k + j * t.l.k_stride, *v = t.qkv + head.v + j * t.l.v_stride;
        float score = 0;
        for (int x = 0; x < PER_LANE; x++)
            if (x * WARP_SIZE + lane < s->HD) score += q[x] * to_float(k[x * WARP_SIZE + lane]);
        score = warp_sum(score);
        if (score == -INFINITY) continue; /* adds nothing; -inf - -inf below would be NaN */
        const float max = fmaxf(m, score), alpha = expf(m - max), p = expf(score - max);
        for (int x = 0; x < PER_LANE; x++)
            if (x * WARP_SIZE + lane < s->DV) o[x] = o[x] * alpha + p * to_float(v[x * WARP_SIZE + lane]);
        l = l * alpha + p;
        m = max;
    }
    for (int x = 0; x < PER_LANE; x++) all_o[warp][x * WARP_SIZE + lane] = o[x];
    if (lane == 0) all_m[warp] = m, all_l[warp] = l;
    __syncthreads();
    float max = -INFINITY, sum = 0,
          *to = pieces + ((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * (s->DV + 2);
    for (int w = 0; w < N_WARPS; w++) max = fmaxf(max, all_m[w]);
    const float base = max == -INFINITY ? 0 : max;
    for (int w = 0; w < N_WARPS; w++) sum += all_l[w] * expf(all_m[w] - base);
    for (int d = threadIdx.x; d < s->DV; d += blockDim.x) {
        float total = 0;
        for (int w = 0; w < N_WARPS; w++) total += all_o[w][d] * expf(all_m[w] - base);
        to[d] = total;
    }
    if (threadIdx.x == 0) to[s->DV] = max, to[s->DV + 1] = sum;
}

/* One block a query: its pieces in order. */
template <typename X> static __global__ void combine_kernel(Tensors<X> t, const float *pieces, int n) {
    const Sizes *s = &t.s;
    const int i = blockIdx.x % s->T, stride = s->DV + 2;
    const Head head = head_of(t, blockIdx.x / s->T);
    const float *from = pieces + (int64_t)blockIdx.x * n * stride;
    float max = -INFINITY, sum = 0;
    for (int p = 0; p < n; p++) max = fmaxf(max, from[p * stride + s->DV]);
    const float base = max == -INFINITY ? 0 : max;
    for (int p = 0; p < n; p++) sum += from[p * stride + s->DV + 1] * expf(from[p * stride + s->DV] - base);
    for (int d = threadIdx.x; d < s->DV; d += blockDim.x) {
        float total = 0;
        for (int p = 0; p < n; p++) total += from[p * stride + d] * expf(from[p * stride + s->DV] - base);
        t.out[head.out + i * t.l.out_stride + d] = from_float<X>(sum == 0 ? 0 : total / sum);
    }
    if (threadIdx.x == 0) t.lse[head.row + i] = max + logf(sum);
}

template <typename X> static void run(const Call *c) {
    const Tensors<X> t = forward_tensors<X>(c);
    const Sizes *s = &t.s;
    const int queries = s->B * s->NH * s->T, n = n_pieces(s);
    launch("piece_kernel", piece_kernel<X>, dim3(queries, n), LADDER_THREADS, 0, t, (float *)t.scratch);
    launch("combine_kernel", combine_kernel<X>, queries, 64, 0, t, (const float *)t.scratch, n);
}

extern "C" void flash_decoding(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
