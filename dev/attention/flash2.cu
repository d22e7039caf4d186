/* F4, FlashAttention-2 forward (Dao 2023, Algorithm 1), with F9 (tiles by length), F10
 * (block-sparse mask) and F11 (dropout) as forms of it.
 *
 * Teaches: a block owns a tile of queries and walks over the keys; O stays on the chip, unnormalised until the
 * end, so memory sees Q, K, V, O and L once (K and V once a tile of queries). Key tiles beyond the diagonal, or
 * with no bit in the block mask, are never visited. Any T, Tk, HD and DV.
 *
 *   FLOP   2 (HD + DV) for each pair that is not masked
 *   bytes  Q, O, L once; K and V once for each tile of queries that sees them */
#include "ladder.cuh"

/* Softmax of one tile of scores, rows over warps (Algorithm 1, line 9). Scores become P, times dropout; row r's
 * m, l follow and alpha[r] is what O must shrink by (line 10). */
static __device__ void online_softmax(const Sizes *s, Tile scores, float *m, float *l, float *alpha, int rows,
                                      int i0, int j0, int columns, int64_t row0) {
    const int lane = threadIdx.x % WARP_SIZE;
    for (int r = threadIdx.x / WARP_SIZE; r < rows; r += blockDim.x / WARP_SIZE) {
        float max = m[r], sum = 0;
        for (int c = lane; c < columns; c += WARP_SIZE) {
            if (!sees(s, i0 + r, j0 + c)) scores(r, c) = -INFINITY;
            max = fmaxf(max, scores(r, c));
        }
        max = warp_max(max);
        const float base = max == -INFINITY ? 0 : max; /* a row that sees nothing yet: exp(-inf - 0) = 0 */
        for (int c = lane; c < columns; c += WARP_SIZE) {
            const float p = expf(scores(r, c) - base);
            sum += p;
            scores(r, c) = p * attention_dropout(s, row0 + r, j0 + c);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            alpha[r] = expf(m[r] - base);
            l[r] = l[r] * alpha[r] + sum;
            m[r] = max;
        }
        __syncwarp();
    }
}

/* R queries and C keys a tile. */
template <typename X> static __global__ void flash2_kernel(Tensors<X> t, int R, int C) {
    extern __shared__ float memory[];
    const Sizes *s = &t.s;
    const int HD = s->HD, DV = s->DV, i0 = (gridDim.y - 1 - blockIdx.y) * R;
    const Head head = head_of(t, blockIdx.x); /* the longest tiles of all heads first */
    float *next = memory;
    const Tile q = take_tile(next, R, HD), k = take_tile(next, C, HD), v = take_tile(next, C, DV);
    const Tile scores = take_tile(next, R, C), o = take_tile(next, R, DV);
    float *m = next, *l = m + R, *alpha = l + R;
    load_tile(q, t.qkv + head.q + i0 * t.l.q_stride, t.l.q_stride, R, HD, s->T - i0);
    fill_tile(o, R, DV, 0);
    for (int r = threadIdx.x; r < R; r += blockDim.x) m[r] = -INFINITY, l[r] = 0;
    for (int j0 = keys_begin(s, i0, C); j0 < keys_end(s, i0, R); j0 += C) {
        if (!attention_block_set(s, i0 / SPARSE_BLOCK, j0 / SPARSE_BLOCK)) continue;
        load_tile(k, t.qkv + head.k + j0 * t.l.k_stride, t.l.k_stride, C, HD, s->Tk - j0);
        load_tile(v, t.qkv + head.v + j0 * t.l.v_stride, t.l.v_stride, C, DV, s->Tk - j0);
        __syncthreads();
        product(scores, rows_of(q), rows_of(k), R, C, HD, t.scale, false); /* line 8: S = Q K^T */
        __syncthreads();
        online_softmax(s, scores, m, l, alpha, R, i0, j0, C, head.row + i0);
        __syncthreads();
        for (int i = threadIdx.x; i < R * DV; i += blockDim.x) o(i / DV, i % DV) *= alpha[i / DV];
        __syncthreads();
        product(o, rows_of(scores), columns_of(v), R, DV, C, 1, true); /* line 10: O += P V */
        __syncthreads();
    }
    for (int r = threadIdx.x; r < R && i0 + r < s->T; r += blockDim.x) { /* lines 12 to 14 */
        t.lse[head.row + i0 + r] = m[r] + logf(l[r]);
        alpha[r] = l[r] == 0 ? 0 : 1 / l[r];
    }
    __syncthreads();
    store_tile(t.out + head.out + i0 * t.l.out_stride, t.l.out_stride, o, DV, min(R, s->T - i0), alpha);
}

template <typename X> static void run(const Call *c, int R, int C, int warps) {
    const Sizes *s = &c->s;
    const size_t floats = tile_floats(R, s->HD) + tile_floats(C, s->HD) + tile_floats(C, s->DV) +
                          tile_floats(R, s->DV) + tile_floats(R, C) + 3 * R;
    launch("flash2_kernel", flash2_kernel<X>, dim3(s->B * s->NH, ceil_div(s->T, R)), warps * WARP_SIZE,
           floats * sizeof(float), forward_tensors<X>(c), R, C);
}
static void run_tiles(const Call *c, int R, int C, int warps) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c, R, C, warps) : run<float>(c, R, C, warps);
}

extern "C" void flash2_forward(const Call *c) {
    run_tiles(c, tile_rows(&c->s), tile_rows(&c->s), N_WARPS);
}

static double bytes_with_tiles(const Sizes *s, int elem, int rows) {
    const double heads = (double)s->B * s->NH;
    return heads * s->T * (elem * (s->HD + s->DV) + 4) + attention_pairs(s) / rows * elem * (s->HD + s->DV);
}
extern "C" double flash2_forward_bytes(const Sizes *s, int elem) {
    return bytes_with_tiles(s, elem, tile_rows(s));
}

/* ---- F9: tiles by length ---- */

typedef struct TileChoice {
    int largest_T, rows, warps;
} TileChoice;

/* A published starting point, for tensor cores; what these kernels prefer is measured (dev/README.md). */
static const TileChoice tile_choices[] = {
    {1024,    64,  4},
    {2048,    128, 4},
    {4096,    128, 8},
    {1 << 30, 256, 8}
};
enum { CHOICE_KEYS = 32 };

static const TileChoice *choice_for(int T) {
    const TileChoice *choice = tile_choices;
    while (choice->largest_T < T) choice++;
    return choice;
}
static void run_choice(const Call *c, const TileChoice *choice) {
    run_tiles(c, choice->rows, CHOICE_KEYS, choice->warps);
}
extern "C" void flash2_by_length(const Call *c) {
    run_choice(c, choice_for(c->s.T));
}
extern "C" double flash2_by_length_bytes(const Sizes *s, int elem) {
    return bytes_with_tiles(s, elem, choice_for(s->T)->rows);
}
extern "C" void flash2_64x4(const Call *c) {
    run_choice(c, &tile_choices[0]);
}
extern "C" void flash2_128x4(const Call *c) {
    run_choice(c, &tile_choices[1]);
}
extern "C" void flash2_128x8(const Call *c) {
    run_choice(c, &tile_choices[2]);
}
extern "C" void flash2_256x8(const Call *c) {
    run_choice(c, &tile_choices[3]);
}
