/* Token and position embedding, and their gradients without atomics.
 *
 * dwte sums rows of dout that share a token. Positions are sorted by token (sort.cu), the sorted list is cut
 * into chunks of equal length, and each chunk adds up its runs of equal tokens. A run inside a chunk goes
 * straight to dwte; what touches a chunk's edge goes to scratch and is joined by a second kernel, so a token
 * that fills half of the batch is still summed by half of the device. */
#include "llmc/cuda/linear/column_sums.cuh"
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/decode/steps.cuh"
#include "llmc/cuda/device/early.cuh"

/* ---- forward ---- */

enum { FORWARD_WARPS = 8 };

/* One warp a row. */
template <typename T>
__global__ void embedding_forward_kernel(T *out, const int32_t *__restrict__ tokens,
                                         const int32_t *__restrict__ positions, const T *__restrict__ wte,
                                         const T *__restrict__ wpe, int64_t N, int T_, int C) {
    constexpr int VEC = Vec<T>::N;
    const int64_t row = (int64_t)blockIdx.x * FORWARD_WARPS + threadIdx.x / WARP_SIZE;
    if (positions) wait_early();
    if (row >= N) return;
    const int64_t position = row % T_ + (positions ? positions[row / T_] : 0);
    const T *token_row = wte + (int64_t)tokens[row] * C, *position_row = wpe + position * C;
    for (int c = threadIdx.x % WARP_SIZE * VEC; c < C; c += WARP_SIZE * VEC) {
        Vec<T> a = load_vec(token_row + c);
        const Vec<T> b = load_vec(position_row + c);
#pragma unroll
        for (int k = 0; k < VEC; k++) a.v[k] = from_float<T>(to_float(a.v[k]) + to_float(b.v[k]));
        store_vec(out + row * C + c, a);
    }
}

template <typename T>
static Step captured_embedding(floatX *out, const int32_t *tokens, const int32_t *positions,
                               const floatX *wte, const floatX *wpe, int64_t N, int C) {
    Step step = step_of<T>(STEP_EMBEDDING, N, out, NULL);
    step.tokens = tokens;
    step.positions = positions;
    step.weight = wte;
    step.bias = wpe;
    step.IC = C;
    return step;
}

template <typename T>
void embedding_forward(floatX *out, const int32_t *tokens, const int32_t *positions, const floatX *wte,
                       const floatX *wpe, int B, int T_, int C) {
    const int64_t N = (int64_t)B * T_;
    const unsigned blocks = (unsigned)ceil_div<int64_t>(N, FORWARD_WARPS);
    if (positions) step_captured(captured_embedding<T>(out, tokens, positions, wte, wpe, N, C));
    if (positions) { /* decoding, whose launches begin early */
        launch_early("embedding_forward", embedding_forward_kernel<T>, dim3(blocks),
                     FORWARD_WARPS * WARP_SIZE, 0, 1, (T *)out, tokens, positions, (const T *)wte,
                     (const T *)wpe, N, T_, C);
        return;
    }
    embedding_forward_kernel<<<blocks, FORWARD_WARPS * WARP_SIZE, 0, main_stream>>>(
        (T *)out, tokens, positions, (const T *)wte, (const T *)wpe, N, T_, C);
    launch_check("embedding_forward");
}

/* ---- backward ---- */

enum {
    MIN_CHUNK = 8,     /* sorted positions that one thread column adds up */
    MAX_CHUNKS = 2048, /* with C = 768 in bf16: 196,000 threads, about what an H200 holds */
    CHUNKS_PER_BLOCK = 4,
    BATCH = 4, /* rows that a thread has in flight */
};

typedef struct Chunks {
    int length, n; /* n = ceil(N / length) */
} Chunks;

static Chunks chunks_of(int64_t N) {
    const int64_t length = ceil_div<int64_t>(N, MAX_CHUNKS);
    Chunks chunks = {length < MIN_CHUNK ? (int)MIN_CHUNK : (int)length, 0};
    chunks.n = (int)ceil_div<int64_t>(N, chunks.length);
    return chunks;
}

/* What a chunk's runs at its edges sum to. edges (n_chunks, 2, C) fp32: row 0 the run that enters from the
 * left (also if it leaves on the right), row 1 a run that begins in the chunk and leaves on the right. */
template <typename T>
__global__ void __launch_bounds__(WARP_SIZE *CHUNKS_PER_BLOCK)
    chunk_sums_kernel(float *dwte, float *edges, SortedTokens sorted, const T *__restrict__ dout, int64_t N,
                      Chunks chunks, int C) {
    constexpr int VEC = Vec<T>::N;
    const int chunk = blockIdx.x * CHUNKS_PER_BLOCK + threadIdx.y;
    const int c = (blockIdx.y * WARP_SIZE + threadIdx.x) * VEC;
    if (chunk >= chunks.n || c >= C) return;
    const int64_t begin = (int64_t)chunk * chunks.length, end = min(begin + chunks.length, N);
    const int32_t *__restrict__ tokens = sorted.tokens, *__restrict__ positions = sorted.positions;
    bool from_left = begin > 0 && tokens[begin - 1] == tokens[begin];
    float sum[VEC] = {};
    for (int64_t batch = begin; batch < end; batch += BATCH) {
        Vec<T> rows[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (batch + j < end) rows[j] = load_vec(dout + (int64_t)positions[batch + j] * C + c);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int64_t i = batch + j;
            if (i >= end) break;
#pragma unroll
            for (int k = 0; k < VEC; k++) sum[k] += to_float(rows[j].v[k]);
            const int32_t token = tokens[i];
            const bool goes_on = i + 1 < N && tokens[i + 1] == token;
            if (goes_on && i + 1 < end) continue;
            const bool at_edge = from_left || goes_on;
            float *out = at_edge ? edges + ((int64_t)chunk * 2 + !from_left) * C : dwte + (int64_t)token * C;
#pragma unroll
            for (int k = 0; k < VEC; k += Vec<float>::N) {
                Vec<float> v = {};
                if (!at_edge) v = load_vec(out + c + k);
#pragma unroll
                for (int l = 0; l < Vec<float>::N; l++) {
                    v.v[l] += sum[k + l];
                    sum[k + l] = 0;
                }
                store_vec(out + c + k, v);
            }
            from_left = false;
        }
    }
}

/* dwte += the runs that cross chunk edges. The block of the chunk where a run begins joins it: its own right
 * edge, then the left edges of the chunks that follow, as far as they begin with the same token. */
__global__ void __launch_bounds__(WARP_SIZE *COLUMN_ROWS)
    join_chunks_kernel(float *dwte, const float *__restrict__ edges, const int32_t *__restrict__ tokens,
                       Chunks chunks, int C) {
    constexpr int VEC = Vec<float>::N;
    const int chunk = blockIdx.x, c = (blockIdx.y * WARP_SIZE + threadIdx.x) * VEC;
    if (chunk + 1 >= chunks.n) return;
    const int64_t begin = (int64_t)chunk * chunks.length, end = begin + chunks.length;
    const int32_t token = tokens[end];
    if (tokens[end - 1] != token) return;                /* no run crosses this edge */
    if (begin > 0 && tokens[begin - 1] == token) return; /* it began further left */
    int last = chunk + 1, beyond = chunks.n;             /* chunks chunk+1..last begin with token */
    while (beyond - last > 1) {
        const int middle = last + (beyond - last) / 2;
        if (tokens[(int64_t)middle * chunks.length] == token)
            last = middle;
        else
            beyond = middle;
    }
    float sum[VEC] = {};
    if (c < C) {
        /* y = 0 takes the right edge of the first chunk, y = i the left edge of chunk + i, + i + 8, ... */
#pragma unroll 4
        for (int k = chunk + threadIdx.y; k <= last; k += COLUMN_ROWS) {
            const Vec<float> v = load_vec(edges + ((int64_t)k * 2 + (k == chunk)) * C + c);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += v.v[j];
        }
    }
    const float total = tile_column_total<VEC>(sum);
    const int column = tile_column<VEC>(C);
    if (column >= 0) dwte[(int64_t)token * C + column] += total;
}

/* dwpe[t] += sum over the batch; block (t, tile of columns), its rows take every eighth sequence. */
template <typename T>
__global__ void __launch_bounds__(WARP_SIZE *COLUMN_ROWS)
    position_sums_kernel(float *dwpe, const T *__restrict__ dout, int B, int T_, int C) {
    constexpr int VEC = Vec<T>::N;
    const int t = blockIdx.x, c = (blockIdx.y * WARP_SIZE + threadIdx.x) * VEC;
    float sum[VEC] = {};
    if (c < C) {
#pragma unroll 4
        for (int b = threadIdx.y; b < B; b += COLUMN_ROWS) {
            const Vec<T> v = load_vec(dout + ((int64_t)b * T_ + t) * C + c);
#pragma unroll
            for (int k = 0; k < VEC; k++) sum[k] += to_float(v.v[k]);
        }
    }
    const float total = tile_column_total<VEC>(sum);
    const int column = tile_column<VEC>(C);
    if (column >= 0) dwpe[(int64_t)t * C + column] += total;
}

template <typename T>
void embedding_backward(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens, void *scratch,
                        int B, int T_, int C, int V) {
    const int64_t N = (int64_t)B * T_;
    const T *rows = (const T *)dout;
    const Chunks chunks = chunks_of(N);
    const SortedTokens sorted = sort_tokens(tokens, scratch, N, V);
    float *edges = (float *)((char *)scratch + sort_tokens_scratch_bytes(N));
    const int tile = WARP_SIZE * Vec<T>::N;

    chunk_sums_kernel<<<dim3(ceil_div<int>(chunks.n, CHUNKS_PER_BLOCK), ceil_div(C, tile)),
                        dim3(WARP_SIZE, CHUNKS_PER_BLOCK), 0, main_stream>>>(dwte, edges, sorted, rows, N,
                                                                             chunks, C);
    launch_check("chunk_sums");
    const dim3 block(WARP_SIZE, COLUMN_ROWS);
    join_chunks_kernel<<<dim3(chunks.n, ceil_div<int>(C, WARP_SIZE * Vec<float>::N)), block, 0,
                         main_stream>>>(dwte, edges, sorted.tokens, chunks, C);
    launch_check("join_chunks");
    position_sums_kernel<<<dim3(T_, ceil_div(C, tile)), block, 0, main_stream>>>(dwpe, rows, B, T_, C);
    launch_check("position_sums");
}

/* Also enough for every smaller N: the number of chunks does not grow evenly, its bound does. */
size_t embedding_scratch_bytes(int64_t N, int C) {
    const int64_t n = ceil_div<int64_t>(N, MIN_CHUNK);
    return sort_tokens_scratch_bytes(N) +
           (size_t)(n < MAX_CHUNKS ? n : (int64_t)MAX_CHUNKS) * 2 * C * sizeof(float);
}

template EmbeddingForward embedding_forward<float>;
template EmbeddingForward embedding_forward<bf16>;
template EmbeddingBackward embedding_backward<float>;
template EmbeddingBackward embedding_backward<bf16>;
