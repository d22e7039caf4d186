/* F3 and B2, FlashAttention-1 (Dao et al. 2022, Algorithms 1 and 4), forward and backward.
 *
 * Teaches: keys in the outer loop, queries in the inner one. K and V are read once, but O, l and m (backward: dQ)
 * are read, changed and written for every pair of blocks, and a head is one thread block's work: for 48 heads an
 * H200's 132 SMs stay mostly idle. O is normalised at every step. Block sizes follow from the on-chip memory M.
 * Backward recomputes P from m and l, saved by forward. Compare FlashAttention-2: the loops the other way round.
 *
 *   forward   FLOP 2 (HD + DV), bytes of O, l, m both ways and Q, for each pair of blocks; K and V once
 *   backward  FLOP 2 (3 HD + 2 DV), bytes of dQ both ways, Q, O, dO, for each pair of blocks; K, V, dK, dV once */
#include "ladder.cuh"

/* On-chip memory of a block in floats (96 KiB). Line 1: Bc = ceil(M / 4d), Br = min(Bc, d). */
enum { ON_CHIP_FLOATS = 24576 };

HOST_DEVICE int width(const Sizes *s) {
    return s->HD > s->DV ? s->HD : s->DV;
}
HOST_DEVICE int key_rows(const Sizes *s) {
    return (ON_CHIP_FLOATS + 4 * width(s) - 1) / (4 * width(s));
}
HOST_DEVICE int query_rows(const Sizes *s) {
    return key_rows(s) < width(s) ? key_rows(s) : width(s);
}
/* Backward holds more tiles: smaller ones. */
HOST_DEVICE int backward_rows(const Sizes *s) {
    return width(s) > 64 ? 32 : 64;
}

/* What lies in memory between the steps, fp32. */
struct State {
    float *o, *m, *l; /* (B,NH,T,DV), (B,NH,T), (B,NH,T) */
    float *dq;        /* (B,NH,T,HD), backward only */
};
static State state_in(void *scratch, const Sizes *s) {
    const int64_t rows = (int64_t)s->B * s->NH * s->T;
    float *o = (float *)scratch;
    return {o, o + rows * s->DV, o + rows * s->DV + rows, o + rows * (s->DV + 2)};
}
extern "C" size_t flash1_scratch(const Sizes *s, int elem) {
    return (size_t)s->B * s->NH * s->T * (s->DV + 2 + s->HD) * sizeof(float);
}

/* ---- forward ---- */

/* Lines 10 to 13 for the rows of one pair of blocks: scores become P~ scaled to the new maximum; o shrinks. */
static __device__ void merge_rows(const Sizes *s, Tile p, Tile o, float *m, float *l, int rows, int columns,
                                  int i0, int j0) {
    const int lane = threadIdx.x % WARP_SIZE;
    for (int r = threadIdx.x / WARP_SIZE; r < rows; r += N_WARPS) {
        float max = -INFINITY, sum = 0;
        for (int c = lane; c < columns; c += WARP_SIZE) {
            if (!sees(s, i0 + r, j0 + c)) p(r, c) = -INFINITY;
            max = fmaxf(max, p(r, c));
        }
        const float new_max = fmaxf(m[r], warp_max(max)), base = new_max == -INFINITY ? 0 : new_max;
        for (int c = lane; c < columns; c += WARP_SIZE) sum += p(r, c) = expf(p(r, c) - base);
        const float kept = expf(m[r] - base) * l[r], new_sum = kept + warp_sum(sum);
        const float factor = new_sum == 0 ? 0 : 1 / new_sum;
        for (int c = lane; c < columns; c += WARP_SIZE) p(r, c) *= factor;
        for (int d = lane; d < s->DV; d += WARP_SIZE) o(r, d) *= kept * factor;
        __syncwarp();
        if (lane == 0) m[r] = new_max, l[r] = new_sum;
    }
}

template <typename X> static __global__ void flash1_kernel(Tensors<X> t, State state) {
    extern __shared__ float memory[];
    const Sizes *s = &t.s;
    const int HD = s->HD, DV = s->DV, BC = key_rows(s), BR = query_rows(s);
    const Head head = head_of(t, blockIdx.x);
    float *next = memory;
    const Tile k = take_tile(next, BC, HD), v = take_tile(next, BC, DV), q = take_tile(next, BR, HD);
    const Tile o = take_tile(next, BR, DV), p = take_tile(next, BR, BC);
    float *m = next, *l = m + BR, *head_o = state.o + head.row * DV;
    for (int64_t i = threadIdx.x; i < (int64_t)s->T * DV; i += blockDim.x) head_o[i] = 0; /* line 2 */
    for (int i = threadIdx.x; i < s->T; i += blockDim.x)
        state.m[head.row + i] = -INFINITY, state.l[head.row + i] = 0;
    __syncthreads();
    for (int j0 = 0; j0 < s->Tk; j0 += BC) { /* line 5 */
        load_tile(k, t.qkv + head.k + j0 * t.l.k_stride, t.l.k_stride, BC, HD, s->Tk - j0);
        load_tile(v, t.qkv + head.v + j0 * t.l.v_stride, t.l.v_stride, BC, DV, s->Tk - j0);
        for (int i0 = queries_begin(s, j0) / BR * BR; i0 < s->T;
             i0 += BR) { /* line 7; masked pairs left out */
            load_tile(q, t.qkv + head.q + i0 * t.l.q_stride, t.l.q_stride, BR, HD, s->T - i0);
            load_tile(o, head_o + (int64_t)i0 * DV, DV, BR, DV, s->T - i0);
            for (int r = threadIdx.x; r < BR; r += blockDim.x) {
                m[r] = i0 + r < s->T ? state.m[head.row + i0 + r] : -INFINITY;
                l[r] = i0 + r < s->T ? state.l[head.row + i0 + r] : 0;
            }
            __syncthreads();
            product(p, rows_of(q), rows_of(k), BR, BC, HD, t.scale, false); /* line 9 */
            __syncthreads();
            merge_rows(s, p, o, m, l, BR, BC, i0, j0);
            __syncthreads();
            product(o, rows_of(p), columns_of(v), BR, DV, BC, 1, true); /* line 12 */
            __syncthreads();
            store_tile(head_o + (int64_t)i0 * DV, DV, o, DV, min(BR, s->T - i0), NULL);
            for (int r = threadIdx.x; r < BR && i0 + r < s->T; r += blockDim.x)
                state.m[head.row + i0 + r] = m[r], state.l[head.row + i0 + r] = l[r]; /* line 13 */
            __syncthreads();
        }
    }
    if (!t.out) return; /* only m and l are wanted */
    for (int64_t i = threadIdx.x; i < (int64_t)s->T * DV; i += blockDim.x)
        t.out[head.out + i / DV * t.l.out_stride + i % DV] = from_float<X>(head_o[i]);
    for (int i = threadIdx.x; i < s->T; i += blockDim.x)
        t.lse[head.row + i] = state.m[head.row + i] + logf(state.l[head.row + i]);
}

template <typename X> static void run_forward(const Tensors<X> &t) {
    const Sizes *s = &t.s;
    const int BC = key_rows(s), BR = query_rows(s);
    const size_t floats = tile_floats(BC, s->HD) + tile_floats(BC, s->DV) + tile_floats(BR, s->HD) +
                          tile_floats(BR, s->DV) + tile_floats(BR, BC) + 2 * BR;
    launch("flash1_kernel", flash1_kernel<X>, s->B * s->NH, LADDER_THREADS, floats * sizeof(float), t,
           state_in(t.scratch, s));
}
extern "C" void flash1_forward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run_forward(forward_tensors<bf16>(c))
                                : run_forward(forward_tensors<float>(c));
}

extern "C" double flash1_forward_bytes(const Sizes *s, int elem) {
    const double pairs = attention_pairs(s) / key_rows(s); /* rows of queries over blocks of keys */
    return pairs * (elem * s->HD + 8 * s->DV + 16) + (double)s->B * s->NH * s->Tk * elem * (s->HD + s->DV);
}

/* ---- backward ---- */

/* Lines 13 to 20 for one pair of blocks: p holds S and becomes P; dp becomes dS. */
static __device__ void gradient_rows(const Sizes *s, Tile p, Tile dp, const float *m, const float *l,
                                     const float *d, int rows, int i0, int j0) {
    for (int i = threadIdx.x; i < rows * rows; i += blockDim.x) {
        const int r = i / rows, c = i % rows;
        const bool seen = sees(s, i0 + r, j0 + c);
        p(r, c) = seen ? expf(p(r, c) - m[r]) / l[r] : 0;
        dp(r, c) = seen ? p(r, c) * (dp(r, c) - d[r]) : 0;
    }
}

/* m, l and D of the queries from i0 on; line 19: D = rowsum(dO O). */
template <typename X>
static __device__ void load_statistics(const Tensors<X> &t, const State &state, const Head &head, int i0,
                                       int rows, float *m, float *l, float *d) {
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        const bool there = i0 + r < t.s.T;
        const int64_t at = head.out + (i0 + r) * t.l.out_stride;
        float sum = 0;
        for (int i = 0; there && i < t.s.DV; i++) sum += to_float(t.dout[at + i]) * to_float(t.out[at + i]);
        m[r] = there ? state.m[head.row + i0 + r] : 0;
        l[r] = there ? state.l[head.row + i0 + r] : 1;
        d[r] = sum;
    }
}

template <typename X> static __global__ void flash1_backward_kernel(Tensors<X> t, State state) {
    extern __shared__ float memory[];
    const Sizes *s = &t.s;
    const int HD = s->HD, DV = s->DV, R = backward_rows(s);
    const Head head = head_of(t, blockIdx.x);
    float *next = memory;
    const Tile k = take_tile(next, R, HD), v = take_tile(next, R, DV), dk = take_tile(next, R, HD);
    const Tile dv = take_tile(next, R, DV), q = take_tile(next, R, HD), dout = take_tile(next, R, DV);
    const Tile p = take_tile(next, R, R), ds = take_tile(next, R, R), dq = take_tile(next, R, HD);
    float *m = next, *l = m + R, *d = l + R, *head_dq = state.dq + head.row * HD;
    for (int64_t i = threadIdx.x; i < (int64_t)s->T * HD; i += blockDim.x) head_dq[i] = 0; /* line 5 */
    for (int j0 = 0; j0 < s->Tk; j0 += R) {                                                /* line 6 */
        load_tile(k, t.qkv + head.k + j0 * t.l.k_stride, t.l.k_stride, R, HD, s->Tk - j0);
        load_tile(v, t.qkv + head.v + j0 * t.l.v_stride, t.l.v_stride, R, DV, s->Tk - j0);
        fill_tile(dk, R, HD, 0);
        fill_tile(dv, R, DV, 0);
        for (int i0 = queries_begin(s, j0) / R * R; i0 < s->T; i0 += R) { /* line 9 */
            __syncthreads();
            load_tile(q, t.qkv + head.q + i0 * t.l.q_stride, t.l.q_stride, R, HD, s->T - i0);
            load_tile(dout, t.dout + head.out + i0 * t.l.out_stride, t.l.out_stride, R, DV, s->T - i0);
            load_tile(dq, head_dq + (int64_t)i0 * HD, HD, R, HD, s->T - i0);
            load_statistics(t, state, head, i0, R, m, l, d);
            __syncthreads();
            product(p, rows_of(q), rows_of(k), R, R, HD, t.scale, false); /* line 11 */
            product(ds, rows_of(dout), rows_of(v), R, R, DV, 1, false);   /* line 17 */
            __syncthreads();
            gradient_rows(s, p, ds, m, l, d, R, i0, j0); /* lines 13, 19, 20 */
            __syncthreads();
            product(dv, columns_of(p), columns_of(dout), R, DV, R, 1, true);     /* line 16 */
            product(dq, rows_of(ds), columns_of(k), R, HD, R, t.scale, true);    /* line 21 */
            product(dk, columns_of(ds), columns_of(q), R, HD, R, t.scale, true); /* line 22 */
            __syncthreads();
            store_tile(head_dq + (int64_t)i0 * HD, HD, dq, HD, min(R, s->T - i0), NULL);
        }
        __syncthreads();
        store_tile(t.dqkv + head.k + j0 * t.l.k_stride, t.l.k_stride, dk, HD, min(R, s->Tk - j0),
                   NULL); /* line 24 */
        store_tile(t.dqkv + head.v + j0 * t.l.v_stride, t.l.v_stride, dv, DV, min(R, s->Tk - j0), NULL);
        __syncthreads();
    }
    for (int64_t i = threadIdx.x; i < (int64_t)s->T * HD; i += blockDim.x)
        t.dqkv[head.q + i / HD * t.l.q_stride + i % HD] = from_float<X>(head_dq[i]);
}

template <typename X> static void run_backward(const Call *c) {
    const Tensors<X> t = backward_tensors<X>(c);
    const Sizes *s = &t.s;
    const int R = backward_rows(s);
    const size_t floats =
        4 * tile_floats(R, s->HD) + 3 * tile_floats(R, s->DV) + 2 * tile_floats(R, R) + 3 * R;
    launch("flash1_backward_kernel", flash1_backward_kernel<X>, s->B * s->NH, LADDER_THREADS,
           floats * sizeof(float), t, state_in(t.scratch, s));
}
extern "C" void flash1_backward(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run_backward<bf16>(c) : run_backward<float>(c);
}

/* m and l as forward leaves them; out and lse, which are inputs here, stay. */
template <typename X> static void run_prepare(const Call *c) {
    Tensors<X> t = backward_tensors<X>(c);
    t.out = NULL;
    run_forward(t);
}
extern "C" void flash1_prepare(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run_prepare<bf16>(c) : run_prepare<float>(c);
}

extern "C" double flash1_backward_bytes(const Sizes *s, int elem) {
    const double pairs = attention_pairs(s) / backward_rows(s);
    return pairs * (elem * (s->HD + 2 * s->DV) + 8 * s->HD + 8) +
           (double)s->B * s->NH * s->Tk * 2 * elem * (s->HD + s->DV);
}
