/* Materialised attention, for comparison only: scores, probabilities and their gradients exist as T x T matrices.
 *
 *     S  = scale Q K^T          P  = softmax(S)             O  = P V
 *     dP = dO V^T               dS = P * (dP - rowsum(P * dP))
 *     dQ = scale dS K           dK = scale dS^T Q           dV = P^T dO
 *
 * Six batched products by one tiled FFMA kernel, and two kernels that own a row each. probs, out, dprobs and dqkv are
 * written (=). Products that the mask makes 0 are skipped, as in the flash kernels; the T x T traffic remains. */
#include <math_constants.h>
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/attention/launch.cuh"
#include "llmc/cuda/attention/mask.cuh"

enum { TILE = 64, DEPTH = 16, TILE_THREADS = 256, ROW_THREADS = 256, MAX_GRID_Y = 65535 };

/* A batch of matrices: element (i, j) of head h of sequence b is data[b*batch + h*head + i*row + j*column]. */
template <typename X> struct View {
    X *data;
    int64_t batch, head, row, column;
};

template <typename X> __host__ __device__ View<X> transposed(View<X> a) {
    return {a.data, a.batch, a.head, a.column, a.row};
}

/* What the causal mask leaves of a product. */
typedef enum {
    LOWER_RESULT, /* only tiles that reach below the diagonal are wanted */
    LOWER_LEFT,   /* a(i, k) is 0 for k > i */
    UPPER_LEFT,   /* a(i, k) is 0 for k < i */
} Causal;

/* tile (DEPTH, TILE) = a(i0 + column, k0 + row), 0 outside (rows, depth). Reads along the contiguous
 * direction. */
template <typename X>
__device__ __forceinline__ void load_slice(float (*tile)[TILE + 4], const X *a, int64_t row, int64_t column,
                                           int i0, int k0, int rows, int depth) {
    for (int e = threadIdx.x; e < TILE * DEPTH; e += TILE_THREADS) {
        const int i = column == 1 ? e / DEPTH : e % TILE, k = column == 1 ? e % DEPTH : e / TILE;
        const bool inside = i0 + i < rows && k0 + k < depth;
        tile[k][i] = inside ? to_float(a[(i0 + i) * row + (k0 + k) * column]) : 0.0f;
    }
}

/* c = alpha a b, a (M,K), b (K,N), for n_heads matrices, NH of them to a sequence. */
template <typename X>
__global__ void __launch_bounds__(TILE_THREADS)
    standard_multiply_kernel(View<X> c, View<const X> a, View<const X> b, float alpha, int M, int N, int K,
                             int n_heads, int NH, Causal causal) {
    __shared__ __align__(16) float a_tile[DEPTH][TILE + 4], b_tile[DEPTH][TILE + 4];
    const int columns = ceil_div(N, (int)TILE);
    const int i0 = (int)blockIdx.x / columns * TILE, j0 = (int)blockIdx.x % columns * TILE;
    if (causal == LOWER_RESULT && j0 >= i0 + TILE) return;
    const int k_begin = causal == UPPER_LEFT ? i0 : 0;
    const int k_end = causal == LOWER_LEFT ? min(K, i0 + TILE) : K;
    const int y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
    for (int h = blockIdx.y; h < n_heads; h += gridDim.y) {
        const X *a_head = a.data + h / NH * a.batch + h % NH * a.head;
        const X *b_head = b.data + h / NH * b.batch + h % NH * b.head;
        X *c_head = c.data + h / NH * c.batch + h % NH * c.head;
        float sum[4][4] = {};
        for (int k0 = k_begin; k0 < k_end; k0 += DEPTH) {
            __syncthreads();
            load_slice(a_tile, a_head, a.row, a.column, i0, k0, M, K);
            load_slice(b_tile, b_head, b.column, b.row, j0, k0, N, K);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                const Vec<float> u = load_vec(&a_tile[k][y]), v = load_vec(&b_tile[k][x]);
#pragma unroll
                for (int i = 0; i < 16; i++)
                    sum[i / 4][i % 4] = fmaf(u.v[i / 4], v.v[i % 4], sum[i / 4][i % 4]);
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (i0 + y + i / 4 < M && j0 + x + i % 4 < N)
                c_head[(i0 + y + i / 4) * c.row + (j0 + x + i % 4) * c.column] =
                    from_float<X>(alpha * sum[i / 4][i % 4]);
    }
}

/* j <= i */
__device__ __forceinline__ bool sees_block(const BlockSparse &sparse, int i, int j) {
    return sparse.pattern.window == 0 || sparse_sees(&sparse, i / (int)MASK_BLOCK, j / (int)MASK_BLOCK);
}

/* Row i of a head's scores becomes its probabilities: 0 for keys that it does not see. One block a row of
 * (B*NH*T). */
template <typename X>
__global__ void __launch_bounds__(ROW_THREADS)
    standard_softmax_kernel(X *probs, int T, int NH, SeenKeys seen, BlockSparse sparse) {
    const int i = blockIdx.x % T, first = seen.first_key(blockIdx.x / T / NH, i);
    X *row = probs + (int64_t)blockIdx.x * T;
    float max = -CUDART_INF_F, sum = 0.0f;
    for (int j = first + threadIdx.x; j <= i; j += ROW_THREADS)
        if (sees_block(sparse, i, j)) max = fmaxf(max, to_float(row[j]));
    max = block_max(max);
    for (int j = first + threadIdx.x; j <= i; j += ROW_THREADS)
        if (sees_block(sparse, i, j)) sum += exp2f((to_float(row[j]) - max) * LOG2E);
    const float inverse = 1.0f / block_sum(sum);
    for (int j = threadIdx.x; j < T; j += ROW_THREADS)
        row[j] = from_float<X>(j >= first && j <= i && sees_block(sparse, i, j)
                                   ? exp2f((to_float(row[j]) - max) * LOG2E) * inverse
                                   : 0.0f);
}

/* Row i of a head's dP becomes dS = P * (dP - sum(P * dP)): 0 for keys that it does not see. One block a row of
 * (B*NH*T). */
template <typename X>
__global__ void __launch_bounds__(ROW_THREADS)
    standard_softmax_backward_kernel(X *dprobs, const X *probs, int T, int NH, SeenKeys seen,
                                     BlockSparse sparse) {
    const int i = blockIdx.x % T, first = seen.first_key(blockIdx.x / T / NH, i);
    X *drow = dprobs + (int64_t)blockIdx.x * T;
    const X *row = probs + (int64_t)blockIdx.x * T;
    float sum = 0.0f;
    for (int j = first + threadIdx.x; j <= i; j += ROW_THREADS)
        sum = fmaf(to_float(row[j]), to_float(drow[j]), sum);
    sum = block_sum(sum);
    for (int j = threadIdx.x; j < T; j += ROW_THREADS)
        drow[j] = from_float<X>(j >= first && j <= i ? to_float(row[j]) * (to_float(drow[j]) - sum) : 0.0f);
}

template <typename X>
static void multiply(View<X> c, View<const X> a, View<const X> b, float alpha, int M, int N, int K, int B,
                     int NH, Causal causal) {
    const int tiles = ceil_div(M, (int)TILE) * ceil_div(N, (int)TILE), n_heads = B * NH;
    const dim3 grid(tiles, n_heads < MAX_GRID_Y ? n_heads : (int)MAX_GRID_Y);
    standard_multiply_kernel<X>
        <<<grid, TILE_THREADS, 0, main_stream>>>(c, a, b, alpha, M, N, K, n_heads, NH, causal);
    launch_check("standard_multiply_kernel");
}

/* The (T,HD) matrices of packed qkv (part 0 Q, 1 K, 2 V), of (B,T,C), and the (T,T) ones of (B,NH,T,T). */
template <typename X> static View<X> packed_view(X *qkv, int part, int T, int NH, int HD) {
    const int64_t C = (int64_t)NH * HD;
    return {qkv + part * C, T * 3 * C, HD, 3 * C, 1};
}
template <typename X> static View<X> rows_view(X *x, int T, int NH, int HD) {
    const int64_t C = (int64_t)NH * HD;
    return {x, T * C, HD, C, 1};
}
template <typename X> static View<X> square_view(X *x, int T, int NH) {
    return {x, (int64_t)NH * T * T, (int64_t)T * T, T, 1};
}

/* dropped: where there is dropout, what O is made of in place of probs. */
template <typename X>
void attention_standard_forward(floatX *out, floatX *probs, floatX *dropped, const floatX *qkv,
                                const AttentionMask *mask, int B, int T, int NH, int HD) {
    const bool drops = mask->dropout.p > 0;
    const View<const X> q = packed_view((const X *)qkv, 0, T, NH, HD),
                        k = packed_view((const X *)qkv, 1, T, NH, HD),
                        v = packed_view((const X *)qkv, 2, T, NH, HD),
                        p = square_view((const X *)(drops ? dropped : probs), T, NH);
    multiply(square_view((X *)probs, T, NH), q, transposed(k), 1.0f / sqrtf(HD), T, T, HD, B, NH,
             LOWER_RESULT);
    standard_softmax_kernel<X>
        <<<B * NH * T, ROW_THREADS, 0, main_stream>>>((X *)probs, T, NH, seen_keys(mask, T), mask->sparse);
    launch_check("standard_softmax_kernel");
    if (drops) dropout_matrices<X>(dropped, probs, &mask->dropout, (int64_t)B * NH, T, T);
    multiply(rows_view((X *)out, T, NH, HD), p, v, 1.0f, T, HD, T, B, NH, LOWER_LEFT);
}

/* dprobs holds the dropped probabilities until dV is known, then dP, then dS. */
template <typename X>
void attention_standard_backward(floatX *dqkv, floatX *dprobs, const floatX *dout, const floatX *probs,
                                 const floatX *qkv, const AttentionMask *mask, int B, int T, int NH, int HD) {
    const bool drops = mask->dropout.p > 0;
    const View<const X> q = packed_view((const X *)qkv, 0, T, NH, HD),
                        k = packed_view((const X *)qkv, 1, T, NH, HD),
                        v = packed_view((const X *)qkv, 2, T, NH, HD),
                        d_o = rows_view((const X *)dout, T, NH, HD),
                        p = square_view((const X *)(drops ? dprobs : probs), T, NH),
                        ds = square_view((const X *)dprobs, T, NH);
    const float scale = 1.0f / sqrtf(HD);
    X *dx = (X *)dqkv;
    if (drops) dropout_matrices<X>(dprobs, probs, &mask->dropout, (int64_t)B * NH, T, T);
    multiply(packed_view(dx, 2, T, NH, HD), transposed(p), d_o, 1.0f, T, HD, T, B, NH, UPPER_LEFT);
    multiply(square_view((X *)dprobs, T, NH), d_o, transposed(v), 1.0f, T, T, HD, B, NH, LOWER_RESULT);
    if (drops) dropout_matrices<X>(dprobs, dprobs, &mask->dropout, (int64_t)B * NH, T, T);
    standard_softmax_backward_kernel<X><<<B * NH * T, ROW_THREADS, 0, main_stream>>>(
        (X *)dprobs, (const X *)probs, T, NH, seen_keys(mask, T), mask->sparse);
    launch_check("standard_softmax_backward_kernel");
    multiply(packed_view(dx, 0, T, NH, HD), ds, k, scale, T, HD, T, B, NH, LOWER_LEFT);
    multiply(packed_view(dx, 1, T, NH, HD), transposed(ds), q, scale, T, HD, T, B, NH, UPPER_LEFT);
}

template AttentionStandardForward attention_standard_forward<float>;
template AttentionStandardForward attention_standard_forward<bf16>;
template AttentionStandardBackward attention_standard_backward<float>;
template AttentionStandardBackward attention_standard_backward<bf16>;
