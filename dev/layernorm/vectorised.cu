/* Layernorm forward, one warp a row, 16 bytes a lane at a time; and the row kept in registers.
 *
 * Teaches: an eighth of the loads (bf16), then no second and third ones: a row of 768 bf16 is three vectors a
 * lane, which the compiler keeps in registers if the loops over them are unrolled. All loads of a row are then
 * issued before the first sum needs one. Rows too wide for registers take the form that reads again.
 *
 *   FLOP   about 8 an element
 *   bytes  x read, out written */
#include "forward.cuh"

static constexpr int MAX_VECS = 8; /* of a lane: 32 registers; rows up to 2048 bf16 or 1024 fp32 */

template <typename X> __device__ inline float sum_of(const Vec<X> &v) {
    float sum = 0;
    for (int k = 0; k < Vec<X>::N; k++) sum += to_float(v.v[k]);
    return sum;
}
template <typename X> __device__ inline float squares_of(const Vec<X> &v, float mean) {
    float squares = 0;
    for (int k = 0; k < Vec<X>::N; k++) squares += squared(to_float(v.v[k]) - mean);
    return squares;
}
template <typename X>
__device__ inline void write_vec(const Norm<X> &n, Vec<X> v, float mean, float rstd, int64_t row, int c) {
    const Vec<X> weight = load_vec(n.weight + c), bias = load_vec(n.bias + c);
    for (int k = 0; k < Vec<X>::N; k++)
        v.v[k] =
            from_float<X>((to_float(v.v[k]) - mean) * rstd * to_float(weight.v[k]) + to_float(bias.v[k]));
    store_vec(n.out + row * n.C + c, v);
}
template <typename X> __device__ inline void write_statistics(const Norm<X> &n, float mean, float rstd) {
    if (threadIdx.x % WARP_SIZE != 0) return;
    n.mean[warp_row()] = mean;
    n.rstd[warp_row()] = rstd;
}

template <typename X> static __global__ void vectorised_kernel(Norm<X> n) {
    constexpr int STEP = WARP_SIZE * Vec<X>::N;
    const int64_t row = warp_row();
    const int first = threadIdx.x % WARP_SIZE * Vec<X>::N;
    if (row >= n.N) return;
    const X *x = n.x + row * n.C;
    float sum = 0, squares = 0;
    for (int c = first; c < n.C; c += STEP) sum += sum_of(load_vec(x + c));
    const float mean = warp_sum(sum) / (float)n.C;
    for (int c = first; c < n.C; c += STEP) squares += squares_of(load_vec(x + c), mean);
    const float rstd = rstd_of(warp_sum(squares), n.C);
    for (int c = first; c < n.C; c += STEP) write_vec(n, load_vec(x + c), mean, rstd, row, c);
    write_statistics(n, mean, rstd);
}

/* C <= MAX_VECS * STEP. Conditions instead of loop bounds, so that v[] has constant indices. */
template <typename X> static __global__ void registers_kernel(Norm<X> n) {
    constexpr int STEP = WARP_SIZE * Vec<X>::N;
    const int64_t row = warp_row();
    const int first = threadIdx.x % WARP_SIZE * Vec<X>::N;
    if (row >= n.N) return;
    Vec<X> v[MAX_VECS];
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < MAX_VECS; i++)
        if (first + i * STEP < n.C) v[i] = load_vec(n.x + row * n.C + first + i * STEP);
#pragma unroll
    for (int i = 0; i < MAX_VECS; i++)
        if (first + i * STEP < n.C) sum += sum_of(v[i]);
    const float mean = warp_sum(sum) / (float)n.C;
#pragma unroll
    for (int i = 0; i < MAX_VECS; i++)
        if (first + i * STEP < n.C) squares += squares_of(v[i], mean);
    const float rstd = rstd_of(warp_sum(squares), n.C);
#pragma unroll
    for (int i = 0; i < MAX_VECS; i++)
        if (first + i * STEP < n.C) write_vec(n, v[i], mean, rstd, row, first + i * STEP);
    write_statistics(n, mean, rstd);
}

template <typename X> static void run(const Call *c) {
    launch("vectorised_kernel", vectorised_kernel<X>, blocks_for(c->s.N, NORM_WARPS), NORM_THREADS, 0,
           norm_of<X>(c));
}
template <typename X> static void run_registers(const Call *c) {
    if (c->s.C > MAX_VECS * WARP_SIZE * Vec<X>::N) return run<X>(c);
    launch("registers_kernel", registers_kernel<X>, blocks_for(c->s.N, NORM_WARPS), NORM_THREADS, 0,
           norm_of<X>(c));
}
extern "C" void norm_vectorised(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run<bf16>(c) : run<float>(c);
}
extern "C" void norm_registers(const Call *c) {
    c->ops->dtype == DTYPE_BF16 ? run_registers<bf16>(c) : run_registers<float>(c);
}
