/* What the kernels share that draw tokens: reductions, and passes over a row of logits. */
#pragma once
#include "llmc/cuda/device/cuda_common.cuh"
#include "llmc/cuda/ptx/sm80.cuh"
#include "draw_tokens.cuh"

/* ---- over the block, or a warp of it ---- */

enum { WARPS = DRAW_COLUMNS / WARP_SIZE };
static_assert((int)WARPS == (int)WARP_SIZE, "the second step of a reduction is one warp's");

struct Sum {
    template <typename A> __device__ A operator()(A a, A b) const { return a + b; }
};
struct Largest {
    template <typename A> __device__ A operator()(A a, A b) const { return a > b ? a : b; }
};
struct Least {
    template <typename A> __device__ A operator()(A a, A b) const { return a < b ? a : b; }
};

/* join: in a fixed order; every thread gets the result. exclusive: the sum of the threads before this one; *total that of
 * all. */
struct OneWarp {
    enum { THREADS = WARP_SIZE };
    static __device__ int index() { return threadIdx.x % WARP_SIZE; }
    static __device__ void sync() { __syncwarp(); }
    template <typename A, typename F> static __device__ A join(A x, F join) {
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2)
            x = join(x, (A)__shfl_xor_sync(0xffffffffu, x, offset));
        return x;
    }
    template <typename A> static __device__ A inclusive(A x) {
#pragma unroll
        for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
            const A left = __shfl_up_sync(0xffffffffu, x, offset);
            if (index() >= offset) x += left;
        }
        return x;
    }
    template <typename A> static __device__ A exclusive(A own, A *total) {
        const A sum = inclusive(own), left = __shfl_up_sync(0xffffffffu, sum, 1);
        *total = __shfl_sync(0xffffffffu, sum, WARP_SIZE - 1);
        return index() == 0 ? A(0) : left;
    }
};
struct Block {
    enum { THREADS = DRAW_COLUMNS };
    static __device__ int index() { return threadIdx.x; }
    static __device__ void sync() { __syncthreads(); }
    template <typename A, typename F> static __device__ A join(A x, F join) {
        __shared__ A partial[WARPS];
        x = OneWarp::join(x, join);
        if (threadIdx.x % WARP_SIZE == 0) partial[threadIdx.x / WARP_SIZE] = x;
        __syncthreads();
        x = OneWarp::join(partial[threadIdx.x % WARP_SIZE], join);
        __syncthreads();
        return x;
    }
    template <typename A> static __device__ A exclusive(A own, A *total) {
        __shared__ A ends[WARPS];
        const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
        A of_warp;
        const A before = OneWarp::exclusive(own, &of_warp);
        if (lane == 0) ends[warp] = of_warp;
        __syncthreads();
        const A warps = OneWarp::exclusive(ends[lane], total);
        __syncthreads();
        return __shfl_sync(0xffffffffu, warps, warp) + before;
    }
};

/* ---- passes over a row, 16 bytes at a time ---- */

enum { AT_ONCE = 7 }; /* loads: a thread has seven of 50,257 bf16 */

/* A thread's vectors of a row: `first` and each `apart` behind it. */
struct Share {
    int first, apart;
};
__device__ __forceinline__ Share share_of_block() {
    return {(int)threadIdx.x, DRAW_COLUMNS};
}

template <int LOADS, typename X>
__device__ __forceinline__ void load_vecs(int4 (&vecs)[LOADS], const X *logits, int V, int v0, int apart) {
#pragma unroll
    for (int u = 0; u < LOADS; u++)
        if ((v0 + u * apart) * Vec<X>::N < V)
            vecs[u] = reinterpret_cast<const int4 *>(logits)[v0 + u * apart];
}

/* f(v, bits) for the vectors of a share, LOADS of which are under way. */
template <int LOADS, typename X, typename F>
__device__ void each_vec(const X *logits, int V, const Share &share, F f) {
    constexpr int N = Vec<X>::N;
    for (int v0 = share.first; v0 * N < V; v0 += LOADS * share.apart) {
        int4 bits[LOADS];
        load_vecs(bits, logits, V, v0, share.apart);
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if ((v0 + u * share.apart) * N < V) f(v0 + u * share.apart, bits[u]);
    }
}

/* f(id) for those of a share whose value is chosen. */
template <int LOADS, typename X, typename C, typename F>
__device__ void each_chosen(const X *logits, int V, const Share &share, C is_chosen, F f) {
    constexpr int N = Vec<X>::N;
    each_vec<LOADS>(logits, V, share, [&](int v, const int4 &bits) {
        float x[N];
        to_floats(x, bits);
        uint32_t chosen = 0;
#pragma unroll
        for (int k = 0; k < N; k++) chosen |= is_chosen(x[k]) ? 1u << k : 0u;
        if (V - v * N < N) chosen &= (1u << (V - v * N)) - 1;
        for (; chosen; chosen &= chosen - 1) f(v * N + __ffs(chosen) - 1);
    });
}

/* The largest of some values, NaN where there is no other; and a sum of nothing, NaN once one of them is not finite. */
template <typename X> struct Extremes;
template <> struct Extremes<float> {
    float largest = NAN, nothing = 0.0f;

    __device__ void add(const int4 &bits) {
        float x[Vec<float>::N];
        to_floats(x, bits);
#pragma unroll
        for (int k = 0; k < Vec<float>::N; k++) {
            largest = fmaxf(largest, x[k]); /* 0 is above -0, as keys have it */
            nothing = fmaf(x[k], 0.0f, nothing);
        }
    }
};
/* Of pairs. */
template <> struct Extremes<bf16> {
    uint32_t largest = 0x7fff7fffu, nothing = 0;

    __device__ void add(const int4 &bits) {
        const uint32_t pairs[4] = {(uint32_t)bits.x, (uint32_t)bits.y, (uint32_t)bits.z, (uint32_t)bits.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            largest = max_bf16x2(largest, pairs[k]);
            nothing = fma_bf16x2(pairs[k], 0, nothing);
        }
    }
};
__device__ __forceinline__ Extremes<float> joined(const Extremes<float> &x) {
    return x;
}
__device__ __forceinline__ Extremes<float> joined(const Extremes<bf16> &x) {
    return {fmaxf(bf16_low(x.largest), bf16_high(x.largest)), bf16_low(x.nothing) + bf16_high(x.nothing)};
}

/* The first `left` of its values, at least one, which stands in place of the others. */
template <typename X> __device__ __forceinline__ int4 only_first(const int4 &bits, int left) {
    constexpr int IN_WORD = 4 / sizeof(X);
    uint32_t words[4];
    memcpy(words, &bits, sizeof words);
    const uint32_t first = IN_WORD == 1 ? words[0] : __byte_perm(words[0], 0, 0x1010);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (left < (k + 1) * IN_WORD)
            words[k] = left > k * IN_WORD ? __byte_perm(words[k], first, 0x5410) /* its low half */ : first;
    return make_int4(words[0], words[1], words[2], words[3]);
}

/* Of the ids of a share: the largest key; whether any is not finite. */
struct First {
    uint32_t key;
    bool is_bad;
};
/* The row goes to `stage`, where there is one. The vector that is not whole is loaded first and looked at last. */
template <int LOADS, typename X>
__device__ First first_pass(const X *logits, int V, const Share &share, int4 *stage) {
    constexpr int N = Vec<X>::N;
    const int last = V / N, left = V % N;
    const bool has_last = left > 0 && last % share.apart == share.first;
    int4 rest;
    if (has_last) rest = reinterpret_cast<const int4 *>(logits)[last];
    Extremes<X> seen;
    each_vec<LOADS>(logits, V - left, share, [&](int v, const int4 &bits) {
        if (stage) stage[v] = bits;
        seen.add(bits);
    });
    if (has_last) {
        if (stage) stage[V / N] = rest;
        seen.add(only_first<X>(rest, left));
    }
    const Extremes<float> both = joined(seen);
    return {order_key(both.largest), isnan(both.nothing)};
}

/* The lowest id of a share whose key this is; V where there is none. */
template <int LOADS, typename X>
__device__ int first_of_key(const X *logits, int V, const Share &share, uint32_t key) {
    int first = V;
    each_chosen<LOADS>(
        logits, V, share, [&](float x) { return order_key(x) == key; },
        [&](int id) { first = min(first, id); });
    return first;
}
template <int LOADS, typename X> __device__ int count_bad(const X *logits, int V, const Share &share) {
    int n = 0;
    each_chosen<LOADS>(
        logits, V, share, [](float x) { return !isfinite(x); }, [&](int) { n++; });
    return n;
}

/* ---- what is drawn ---- */

/* position: of the token. */
__device__ __forceinline__ void write_token(const DrawArgs &a, int b, int position, int token, int n_bad) {
    a.tokens[b] = token;
    a.positions[b] = position;
    a.drawn[(int64_t)(position % DRAWN_ROWS) * a.B + b] = n_bad ? -n_bad : token;
}
