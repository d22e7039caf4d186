/* F5 "Lite" and F6 "Online": the same kernel without and with running statistics.
 *
 * Lite takes the softmax of every tile of 64 keys by itself and adds the tiles' outputs: right for one tile,
 * wrong beyond (each tile's rows sum to 1, all of them to T/64). Online carries the maximum and the sum from
 * tile to tile and rescales what it has (Milakov & Gimelshein 2018): exact, and the `if (ONLINE)` lines below are
 * all that it takes. Teaches: what the running statistics are for.
 *
 *   FLOP, bytes  as FlashAttention-2's forward with tiles of 64 */
#include "ladder.cuh"

enum { ROWS = 64 };

template <typename X, bool ONLINE> static __global__ void tiles_kernel(Tensors<X> t) {
    extern __shared__ float memory[];
    const Sizes *s = &t.s;
    const int HD = s->HD, DV = s->DV, i0 = blockIdx.y * ROWS, warp = threadIdx.x / WARP_SIZE,
              lane = threadIdx.x % WARP_SIZE;
    const Head head = head_of(t, blockIdx.x);
    float *next = memory;
    const Tile q = take_tile(next, ROWS, HD), k = take_tile(next, ROWS, HD), v = take_tile(next, ROWS, DV);
    const Tile p = take_tile(next, ROWS, ROWS), o = take_tile(next, ROWS, DV);
    float *m = next, *l = m + ROWS, *factor = l + ROWS;
    load_tile(q, t.qkv + head.q + i0 * t.l.q_stride, t.l.q_stride, ROWS, HD, s->T - i0);
    fill_tile(o, ROWS, DV, 0);
    for (int r = threadIdx.x; r < ROWS; r += blockDim.x) m[r] = -INFINITY, l[r] = 0;
    for (int j0 = 0; j0 < keys_end(s, i0, ROWS); j0 += ROWS) {
        load_tile(k, t.qkv + head.k + j0 * t.l.k_stride, t.l.k_stride, ROWS, HD, s->Tk - j0);
        load_tile(v, t.qkv + head.v + j0 * t.l.v_stride, t.l.v_stride, ROWS, DV, s->Tk - j0);
        __syncthreads();
        product(p, rows_of(q), rows_of(k), ROWS, ROWS, HD, t.scale, false);
        __syncthreads();
        for (int r = warp; r < ROWS; r += N_WARPS) {
            float max = ONLINE ? m[r] : -INFINITY, sum = 0;
            for (int c = lane; c < ROWS; c += WARP_SIZE) {
                if (!sees(s, i0 + r, j0 + c)) p(r, c) = -INFINITY;
                max = fmaxf(max, p(r, c));
            }
            max = warp_max(max);
            const float base = max == -INFINITY ? 0 : max;
            for (int c = lane; c < ROWS; c += WARP_SIZE) sum += p(r, c) = expf(p(r, c) - base);
            sum = warp_sum(sum);
            float alpha = 1; /* what the output so far shrinks by */
            if (ONLINE) alpha = expf(m[r] - base);
            if (ONLINE) sum += l[r] * alpha;
            if (!ONLINE) /* this tile's rows sum to 1, whatever the others hold */
                for (int c = lane; c < ROWS; c += WARP_SIZE) p(r, c) *= sum > 0 ? 1 / sum : 0;
            for (int d = lane; d < DV; d += WARP_SIZE) o(r, d) *= alpha;
            __syncwarp();
            if (lane == 0) m[r] = max, l[r] = sum;
        }
        __syncthreads();
        product(o, rows_of(p), columns_of(v), ROWS, DV, ROWS, 1, true);
        __syncthreads();
    }
    for (int r = threadIdx.x; r < ROWS && i0 + r < s->T; r += blockDim.x) {
        t.lse[head.row + i0 + r] = m[r] + logf(l[r]);
        factor[r] = !ONLINE ? 1 : l[r] == 0 ? 0 : 1 / l[r];
    }
    __syncthreads();
    store_tile(t.out + head.out + i0 * t.l.out_stride, t.l.out_stride, o, DV, min((int)ROWS, s->T - i0),
               factor);
}

template <typename X, bool ONLINE> static void run(const Call *c) {
    const Sizes *s = &c->s;
    const size_t floats =
        2 * tile_floats(ROWS, s->HD) + 2 * tile_floats(ROWS, s->DV) + tile_floats(ROWS, ROWS) + 3 * ROWS;
    launch("tiles_kernel", tiles_kernel<X, ONLINE>, dim3(s->B * s->NH, ceil_div(s->T, (int)ROWS)),
           LADDER_THREADS, floats * sizeof(float), forward_tensors<X>(c));
}

extern "C" void lite(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16, false>(c) : run<float, false>(c);
}
extern "C" void online(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16, true>(c) : run<float, true>(c);
}
