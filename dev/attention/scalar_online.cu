/* F7, the scalar online softmax: one warp owns one query, one key at a time, no tiles.
 *
 * Teaches: the recurrence itself, in powers of two (exp2 is what the hardware has), O normalised at every step:
 *
 *   m' = max(m, s)   l' = l 2^(m-m') + 2^(s-m')   O' = (O l 2^(m-m') + 2^(s-m') v) / l'
 *
 * After every key O is the attention over the keys so far. Equals Online up to rounding. K and V come from the
 * caches for every query, which is what tiles are for.
 *
 *   FLOP   2 (HD + DV) for each pair
 *   bytes  K and V for each pair, q and O once */
#include "ladder.cuh"

enum { LARGEST = 256, PER_LANE = LARGEST / WARP_SIZE };

template <typename X> static __global__ void scalar_online_kernel(Tensors<X> t) {
    const Sizes *s = &t.s;
    const int i = blockIdx.y * N_WARPS + threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const Head head = head_of(t, blockIdx.x);
    if (i >= s->T) return;
    float q[PER_LANE], o[PER_LANE] = {}, m = -INFINITY, l = 0; /* element d of the row: d % 32 is the lane */
    for (int x = 0; x < PER_LANE; x++) {
        const int d = x * WARP_SIZE + lane;
        q[x] = d < s->HD ? to_float(t.qkv[head.q + i * t.l.q_stride + d]) * t.scale * 1.4426950408889634f : 0;
    }
    for (int j = 0; j < keys_end(s, i, 1); j++) {
        const X *k = t.qkv + head.k + j * t.l.k_stride, *v = t.qkv + head.v + j * t.l.v_stride;
        float score = 0;
        for (int x = 0; x < PER_LANE; x++)
            if (x * WARP_SIZE + lane < s->HD) score += q[x] * to_float(k[x * WARP_SIZE + lane]);
        score = warp_sum(score);
        if (score == -INFINITY) continue; /* adds nothing; -inf - -inf below would be NaN */
        const float max = fmaxf(m, score), old = l * exp2f(m - max), p = exp2f(score - max);
        l = old + p;
        m = max;
        for (int x = 0; x < PER_LANE; x++)
            if (x * WARP_SIZE + lane < s->DV) o[x] = (o[x] * old + p * to_float(v[x * WARP_SIZE + lane])) / l;
    }
    for (int x = 0; x < PER_LANE; x++)
        if (x * WARP_SIZE + lane < s->DV)
            t.out[head.out + i * t.l.out_stride + x * WARP_SIZE + lane] = from_float<X>(o[x]);
    if (lane == 0) t.lse[head.row + i] = (m + log2f(l)) * 0.6931471805599453f;
}

template <typename X> static void run(const Call *c) {
    launch("scalar_online_kernel", scalar_online_kernel<X>,
           dim3(c->s.B * c->s.NH, ceil_div(c->s.T, (int)N_WARPS)), LADDER_THREADS, 0, forward_tensors<X>(c));
}

extern "C" void scalar_online(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}

extern "C" double scalar_online_bytes(const Sizes *s, int elem) {
    return attention_pairs(s) * elem * (s->HD + s->DV) +
           (double)s->B * s->NH * s->T * (elem * (s->HD + s->DV) + 4);
}
