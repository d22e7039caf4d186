/* F2, the naive fused kernel: one launch, no T*T matrix, and yet slow.
 *
 * Teaches: fusing alone is not enough. A block owns a tile of queries, one thread each, and has tiles of K and V
 * in shared memory; but it takes one key at a time and keeps m, l and O in memory, so that every key reads and
 * writes a row of O (caches hold what they can), and nothing is computed more than once from what is loaded.
 *
 *   FLOP   2 (HD + DV) for each pair
 *   bytes  q and O read and O written for each pair (O in fp32); K and V once for each tile of queries */
#include "ladder.cuh"

enum { QUERIES = 64, KEYS = 32 };

/* O, m, l in memory: (B,NH,T,DV), (B,NH,T), (B,NH,T) fp32 */
extern "C" size_t naive_fused_scratch(const Sizes *s, int elem) {
    return (size_t)s->B * s->NH * s->T * (s->DV + 2) * sizeof(float);
}

template <typename X>
static __global__ void naive_fused_kernel(Tensors<X> t, float *o_all, float *m_all, float *l_all) {
    extern __shared__ float memory[];
    const Sizes *s = &t.s;
    const int HD = s->HD, DV = s->DV, i0 = blockIdx.y * QUERIES, i = i0 + threadIdx.x;
    const Head head = head_of(t, blockIdx.x);
    float *next = memory;
    const Tile k = take_tile(next, KEYS, HD), v = take_tile(next, KEYS, DV);
    const X *q = t.qkv + head.q + i * t.l.q_stride;
    float *o = o_all + (head.row + i) * DV, *m = m_all + head.row + i, *l = l_all + head.row + i;
    if (i < s->T) {
        *m = -INFINITY, *l = 0;
        for (int d = 0; d < DV; d++) o[d] = 0;
    }
    for (int j0 = 0; j0 < keys_end(s, i0, QUERIES); j0 += KEYS) {
        __syncthreads();
        load_tile(k, t.qkv + head.k + j0 * t.l.k_stride, t.l.k_stride, KEYS, HD, s->Tk - j0);
        load_tile(v, t.qkv + head.v + j0 * t.l.v_stride, t.l.v_stride, KEYS, DV, s->Tk - j0);
        __syncthreads();
        for (int j = 0; j < KEYS; j++) {
            if (!sees(s, i, j0 + j)) continue;
            float score = 0;
            for (int d = 0; d < HD; d++) score += to_float(q[d]) * k(j, d);
            score *= t.scale;
            if (score == -INFINITY) continue; /* adds nothing; -inf - -inf below would be NaN */
            const float max = fmaxf(*m, score), alpha = expf(*m - max), p = expf(score - max);
            for (int d = 0; d < DV; d++) o[d] = o[d] * alpha + p * v(j, d);
            *l = *l * alpha + p;
            *m = max;
        }
    }
    if (i >= s->T) return;
    for (int d = 0; d < DV; d++)
        t.out[head.out + i * t.l.out_stride + d] = from_float<X>(*l == 0 ? 0 : o[d] / *l);
    t.lse[head.row + i] = *m + logf(*l);
}

template <typename X> static void run(const Call *c) {
    const Tensors<X> t = forward_tensors<X>(c);
    const Sizes *s = &t.s;
    const int64_t rows = (int64_t)s->B * s->NH * s->T;
    float *o = (float *)t.scratch;
    const size_t floats = tile_floats(KEYS, s->HD) + tile_floats(KEYS, s->DV);
    launch("naive_fused_kernel", naive_fused_kernel<X>, dim3(s->B * s->NH, ceil_div(s->T, (int)QUERIES)),
           QUERIES, floats * sizeof(float), t, o, o + rows * s->DV, o + rows * (s->DV + 1));
}

extern "C" void naive_fused(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}

extern "C" double naive_fused_bytes(const Sizes *s, int elem) {
    const double pairs = attention_pairs(s);
    return pairs * (elem * s->HD + 8 * s->DV + 16) + pairs / (int)QUERIES * elem * (s->HD + s->DV);
}
