/* Matrix product with 8 x 8 outputs a thread, 16-byte accesses, and fetches ahead; multiply-adds in fp32.
 *
 * Algorithm: a block of 256 threads owns 128 x 128 outputs. For every 16 of k: the strips of x and W that were
 * fetched into registers go to shared memory, k outside, so that what a thread needs for one k are two times four
 * neighbours; the next strips are asked for; then each k costs 16 values from shared memory for 64 multiply-adds.
 * Teaches: a sum is cheap where its operands already are. Shared memory is read once for four multiply-adds, not
 * twice for one, and the wait for memory lies behind the arithmetic. This is as far as the ordinary cores go: an
 * eighth (fp32) or less of what the tensor cores of an H200 do in bf16.
 *
 *   FLOP   2 N OC IC
 *   bytes  a block reads 128 rows of x and of W */
#include "matmul.cuh"

enum {
    SIDE = 128,
    DEPTH = 16,
    THREADS = 256,
    HALF = SIDE / 2,
    LD = SIDE + 4 /* 16-byte rows, other banks */
};

/* A thread's share of a strip: SIDE rows of DEPTH elements. */
template <typename X> struct Share {
    enum { A_ROW = DEPTH / Vec<X>::N, N = SIDE * A_ROW / THREADS };
    Vec<X> v[N];
};

/* Rows from src on, `rows` of them valid, elements [k, k + DEPTH); 0 outside. IC is a multiple of a vector. */
template <typename X> __device__ inline Share<X> fetch(const X *src, int64_t rows, int IC, int k) {
    Share<X> share;
#pragma unroll
    for (int i = 0; i < Share<X>::N; i++) {
        const int index = threadIdx.x + i * THREADS, row = index / Share<X>::A_ROW;
        const int at = k + index % Share<X>::A_ROW * Vec<X>::N;
        share.v[i] = row < rows && at < IC ? load_vec(src + (int64_t)row * IC + at) : Vec<X>{};
    }
    return share;
}
template <typename X> __device__ inline void put(float (&strip)[DEPTH][LD], const Share<X> &share) {
#pragma unroll
    for (int i = 0; i < Share<X>::N; i++) {
        const int index = threadIdx.x + i * THREADS, row = index / Share<X>::A_ROW;
        const int k = index % Share<X>::A_ROW * Vec<X>::N;
#pragma unroll
        for (int j = 0; j < Vec<X>::N; j++) strip[k + j][row] = to_float(share.v[i].v[j]);
    }
}

/* sum[h][i][g][j]: row 64 h + i and column 64 g + j from the thread's first: halves, so that the 16-byte reads of
 * a quarter of a warp lie side by side. */
typedef float Sums[2][4][2][4];

/* Four neighbours from the thread's first, and the four that lie 64 further. */
__device__ inline void take(float (&v)[2][4], const float *strip) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const Vec<float> four = load_vec(strip + h * HALF);
#pragma unroll
        for (int i = 0; i < 4; i++) v[h][i] = four.v[i];
    }
}
__device__ inline void multiply(Sums &sum, const float (&x)[DEPTH][LD], const float (&w)[DEPTH][LD], int row,
                                int column) {
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        float a[2][4], b[2][4];
        take(a, &x[k][row]);
        take(b, &w[k][column]);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum[i / 4][i % 4][j / 4][j % 4] += a[i / 4][i % 4] * b[j / 4][j % 4];
    }
}

template <typename X> static __global__ void __launch_bounds__(THREADS, 2) registers_kernel(Linear<X> l) {
    __shared__ alignas(16) float x[DEPTH][LD];
    __shared__ alignas(16) float w[DEPTH][LD];
    const Corner corner = corner_of(l, SIDE, SIDE);
    const X *from_x = l.x + corner.row * l.IC, *from_w = l.weight + (int64_t)corner.column * l.IC;
    const int64_t rows = l.N - corner.row;
    const int columns = l.OC - corner.column, row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    Sums sum = {};
    Share<X> next_x = fetch(from_x, rows, l.IC, 0), next_w = fetch(from_w, columns, l.IC, 0);
    for (int k = 0; k < l.IC; k += DEPTH) {
        put(x, next_x);
        put(w, next_w);
        __syncthreads();
        next_x = fetch(from_x, rows, l.IC, k + DEPTH); /* beyond the end: zeros, no access */
        next_w = fetch(from_w, columns, l.IC, k + DEPTH);
        multiply(sum, x, w, row, column);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int g = 0; g < 2; g++)
            finish(l, corner.row + i / 4 * HALF + row + i % 4, corner.column + g * HALF + column,
                   sum[i / 4][i % 4][g]);
}

template <typename X> static void run(const Call *c) {
    const Linear<X> l = linear_of<X>(c);
    launch("registers_kernel", registers_kernel<X>, tiles_of(l, SIDE, SIDE), THREADS, 0, l);
}
extern "C" void matmul_registers(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
extern "C" double matmul_registers_bytes(const Sizes *s, int elem) {
    return tile_bytes(s, elem, SIDE, SIDE);
}
