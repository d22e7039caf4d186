/* The next token of each sequence, drawn on the device: a block a sequence, a thread a column of ids (ops.h,
 * DRAW_COLUMNS). Top-k lists the few candidates; else the logits are read some twenty times, and lie in shared memory where
 * they fit. Where the largest logit is all that is asked for, a cluster of blocks has a sequence; or a block, where the kernel
 * before has found it but for 1,024 candidates (draw_tokens.cuh).
 *
 * The floor of top-k and top-p is found bit by bit (draw_tokens.c has the same steps): a pass counts, or adds, what is at
 * least as large. bf16 needs 16 passes. */
#include <math_constants.h>
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/decode/steps.cuh"
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/ptx/sm80.cuh"
#include "draw_tokens.cuh"

/* ---- over the block ---- */

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

template <typename A, typename F> __device__ A warp_join(A x, F join) {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2)
        x = join(x, (A)__shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
/* In a fixed order; every thread gets the result. */
template <typename A, typename F> __device__ A block_join(A x, F join) {
    __shared__ A partial[WARPS];
    x = warp_join(x, join);
    if (threadIdx.x % WARP_SIZE == 0) partial[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    x = warp_join(partial[threadIdx.x % WARP_SIZE], join);
    __syncthreads();
    return x;
}

template <typename A> __device__ A warp_inclusive(A x) {
#pragma unroll
    for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
        const A left = __shfl_up_sync(0xffffffffu, x, offset);
        if ((int)(threadIdx.x % WARP_SIZE) >= offset) x += left;
    }
    return x;
}
/* The sum of the threads before this one; *total that of all. */
template <typename A> __device__ A block_exclusive(A own, A *total) {
    __shared__ A ends[WARPS];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const A inclusive = warp_inclusive(own);
    if (lane == WARP_SIZE - 1) ends[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
        const A sum = warp_inclusive(ends[lane]);
        __syncwarp();
        ends[lane] = sum;
    }
    __syncthreads();
    const A before = warp == 0 ? A(0) : ends[warp - 1];
    *total = ends[WARPS - 1];
    __syncthreads();
    const A left = __shfl_up_sync(0xffffffffu, inclusive, 1);
    return lane == 0 ? before : before + left;
}

/* ---- what stays ---- */

__device__ __forceinline__ float value_of_key(uint32_t key) {
    return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

template <typename X> struct Row {
    const X *z;
    int V;
    float largest, scale; /* log2(e) / temperature */

    __device__ float value(int i) const { return to_float(z[i]); }
    /* exp((x - largest) / temperature) */
    __device__ float weight(float x) const { return isfinite(x) ? ex2((x - largest) * scale) : 0.0f; }
};

template <typename X> __device__ int count_from(const Row<X> &row, uint32_t key) {
    int n = 0;
    if (row.V <= DRAW_COLUMNS)
        return __syncthreads_count((int)threadIdx.x < row.V && order_key(row.value(threadIdx.x)) >= key);
    for (int i = threadIdx.x; i < row.V; i += DRAW_COLUMNS) n += order_key(row.value(i)) >= key;
    return block_join(n, Sum());
}
template <typename X> __device__ double weight_from(const Row<X> &row, uint32_t key) {
    double sum = 0;
    for (int i = threadIdx.x; i < row.V; i += DRAW_COLUMNS) {
        const float x = row.value(i);
        if (order_key(x) >= key) sum += row.weight(x);
    }
    return block_join(sum, Sum());
}

/* Keys below it are left out; of those equal to it `ties` stay. */
struct Floor {
    uint32_t key;
    int ties;
};

/* The largest key of which `enough` is true, as it is of all below. Of bf16 the low half of a key says nothing: it is 0,
 * or all ones in negative numbers. */
template <typename X, typename F> __device__ uint32_t floor_of(F enough) {
    uint32_t key = 0;
    for (uint32_t bit = 0x80000000u; bit >= (sizeof(X) == 2 ? 0x10000u : 1u); bit >>= 1)
        if (enough(key | bit)) key |= bit;
    return sizeof(X) == 2 && !(key >> 31) ? key | 0xffffu : key;
}

/* X: the storage type of what the row's values come from. */
template <typename X, typename R> __device__ Floor keep_top_k(const R &row, int k) {
    Floor floor;
    floor.key = floor_of<X>([&](uint32_t key) { return count_from(row, key) >= k; });
    floor.ties = k - count_from(row, floor.key + 1);
    return floor;
}

/* So many equals of weight `each` add up to `missing`: one at least, `most` at most. */
__device__ int ties_for(double missing, double each, int most) {
    const double n = ceil(missing / each);
    return n > 1 ? (n < most ? (int)n : most) : 1;
}

/* Of what top-k left. */
template <typename X, typename R> __device__ Floor keep_top_p(const R &row, Floor floor, float p) {
    if (!(p < 1)) return floor;
    const double above = weight_from(row, floor.key + 1);
    const double each = row.weight(value_of_key(floor.key));
    const double wanted = p * (floor.key ? above + floor.ties * each : weight_from(row, 0));
    if (floor.key && above < wanted) return {floor.key, ties_for(wanted - above, each, floor.ties)};
    floor.key = floor_of<X>(
        [&](uint32_t key) { return count_from(row, key) >= 1 && weight_from(row, key) >= wanted; });
    floor.ties =
        ties_for(wanted - weight_from(row, floor.key + 1), row.weight(value_of_key(floor.key)), 1 << 30);
    return floor;
}

/* ---- passes over a row, 16 bytes at a time ---- */

enum { AT_ONCE = 7 }; /* loads: a thread has seven of 50,257 bf16 */

/* A thread's vectors of a row: `first` and each `apart` behind it. */
struct Share {
    int first, apart;
};
__device__ __forceinline__ Share share_of_block() {
    return {(int)threadIdx.x, DRAW_COLUMNS};
}

/* f(v, bits) for the vectors of a share, LOADS of which are under way. */
template <int LOADS, typename X, typename F>
__device__ void each_vec(const X *logits, int V, const Share &share, F f) {
    constexpr int N = Vec<X>::N;
    for (int v0 = share.first; v0 * N < V; v0 += LOADS * share.apart) {
        int4 bits[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if ((v0 + u * share.apart) * N < V)
                bits[u] = reinterpret_cast<const int4 *>(logits)[v0 + u * share.apart];
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

/* ---- candidates of top-k ---- */

/* Ids of a row that may stay: all, or those that are listed, a column's one behind the other in both cases. */
enum { LIST = 2048 };
struct List {
    float values[LIST];
    int ids[LIST];
};
template <typename X> struct Candidates {
    Row<X> row;
    const List *list; /* NULL: all */
    int first, n;     /* of this thread's column, where there is a list */
    int n_listed;

    /* f(id, value) for those of this thread's column, until it is true. */
    template <typename F> __device__ void each(F f) const {
        if (list) {
            for (int i = first; i < first + n; i++)
                if (f(list->ids[i], list->values[i])) return;
            return;
        }
        for (int i = threadIdx.x; i < row.V; i += DRAW_COLUMNS)
            if (f(i, row.value(i))) return;
    }
};

/* Bits of ids that are candidates: of 32 ids of a column a word. */
__host__ __device__ inline int mark_words(int V) {
    return ceil_div(V, WARP_SIZE * (int)DRAW_COLUMNS) * DRAW_COLUMNS;
}
__host__ __device__ inline bool lists_candidates(int k, int V) {
    return k > 0 && k < V && k <= DRAW_COLUMNS;
}

/* Each thread has the largest key of some ids. The k-th largest of those is a bound below the k-th largest of all, and not
 * many are above it: these are marked, and listed where the list has room for them. */
template <typename X>
__device__ Candidates<X> candidates(const Row<X> &row, List &list, uint32_t *marks, uint32_t largest, int k) {
    const Candidates<X> all = {row, NULL, 0, 0, 0};
    if (!lists_candidates(k, row.V)) return all;
    const int words = mark_words(row.V);
    for (int w = threadIdx.x; w < words; w += DRAW_COLUMNS)
        marks[w] = 0; /* before the barriers of the bound */
    const uint32_t bound =
        floor_of<X>([&](uint32_t key) { return __syncthreads_count(largest >= key) >= k; });
    const float floor = value_of_key(bound); /* as values -0 and NaN pass, too: keep leaves them out */
    if (largest >= bound)
        each_chosen<AT_ONCE>(
            row.z, row.V, share_of_block(), [&](float x) { return !(x < floor); },
            [&](int id) {
                const int at = id / DRAW_COLUMNS; /* of its column */
                atomicOr(&marks[at / WARP_SIZE * DRAW_COLUMNS + id % DRAW_COLUMNS], 1u << at % WARP_SIZE);
            });
    __syncthreads();
    int own = 0, n;
    for (int w = threadIdx.x; w < words; w += DRAW_COLUMNS) own += __popc(marks[w]);
    const int first = block_exclusive(own, &n);
    if (n > LIST) return all;
    int to = first;
    for (int w = threadIdx.x; w < words; w += DRAW_COLUMNS)
        for (uint32_t left = marks[w]; left; left &= left - 1) {
            const int id = w / DRAW_COLUMNS * WARP_SIZE * DRAW_COLUMNS + (__ffs(left) - 1) * DRAW_COLUMNS +
                           (int)threadIdx.x;
            list.values[to] = row.value(id);
            list.ids[to++] = id;
        }
    __syncthreads();
    return {row, &list, first, own, n};
}

template <typename X> __device__ Floor keep(const Candidates<X> &c, const DrawArgs &a) {
    const Row<X> &row = c.row;
    if (c.list) {
        const Row<float> listed = {c.list->values, c.n_listed, row.largest, row.scale};
        return keep_top_p<X>(listed, keep_top_k<X>(listed, a.top_k), a.top_p);
    }
    const Floor all = {0, row.V};
    return keep_top_p<X>(row, a.top_k > 0 && a.top_k < row.V ? keep_top_k<X>(row, a.top_k) : all, a.top_p);
}

/* ---- the draw ---- */

/* f(id, weight) for the ids of this thread's column that have one; `equals` of the floor stand before the column.
 * Ends where f is true. */
template <typename X, typename F>
__device__ void each_weight(const Candidates<X> &c, const Floor &floor, int equals, float min_p, F f) {
    int left = floor.ties - equals;
    c.each([&](int id, float x) {
        const uint32_t key = order_key(x);
        if (key < floor.key || (key == floor.key && left-- <= 0)) return false;
        const float weight = c.row.weight(x);
        return weight > 0 && weight >= min_p && f(id, weight);
    });
}

template <typename X> __device__ int draw(const Candidates<X> &c, const DrawArgs &a, double uniform) {
    __shared__ int chosen;
    const Floor floor = keep(c, a);
    int equals = 0, n_equals;
    c.each([&](int, float x) {
        equals += order_key(x) == floor.key;
        return false;
    });
    equals = block_exclusive(equals, &n_equals);
    double own = 0, total;
    each_weight(c, floor, equals, a.min_p, [&](int, float weight) {
        own += weight;
        return false;
    });
    const double before = block_exclusive(own, &total), point = uniform * total;
    const int column = threadIdx.x;
    int first = block_join(own > 0 && before + own > point ? column : DRAW_COLUMNS, Least());
    if (first == DRAW_COLUMNS) first = block_join(own > 0 ? column : 0, Largest()); /* rounding */
    if (column == first) {
        double sum = before;
        each_weight(c, floor, equals, a.min_p, [&](int id, float weight) {
            chosen = id;
            sum += weight;
            return sum > point;
        });
    }
    __syncthreads();
    return chosen;
}

/* ---- the kernels ---- */

/* position: of the token. */
__device__ __forceinline__ void write_token(const DrawArgs &a, int b, int position, int token, int n_bad) {
    a.tokens[b] = token;
    a.positions[b] = position;
    a.drawn[(int64_t)(position % DRAWN_ROWS) * a.B + b] = n_bad ? -n_bad : token;
}

/* dynamic: the row, where it is staged, or the marks of candidates. */
template <typename X> __global__ void __launch_bounds__(DRAW_COLUMNS) draw_kernel(DrawArgs a, bool staged) {
    extern __shared__ int4 dynamic[];
    __shared__ List list;
    const int b = blockIdx.x;
    const Share share = share_of_block();
    wait_early();
    const X *logits = (const X *)a.logits + (int64_t)b * a.Vp;
    const First own = first_pass<AT_ONCE>(logits, a.V, share, staged ? dynamic : NULL);
    const uint32_t largest = block_join(own.key, Largest()); /* behind its barriers the row is staged */
    const bool any_bad = __syncthreads_or(own.is_bad);
    const int n_bad = any_bad ? block_join(count_bad<AT_ONCE>(logits, a.V, share), Sum()) : 0;
    const Row<X> row = {staged ? reinterpret_cast<const X *>(dynamic) : logits, a.V, value_of_key(largest),
                        fminf(LOG2E / a.temperature, FLT_MAX)};
    int token;
    if (isfinite(row.largest)) {
        const uint64_t state = a.rng[b] + 0x9e3779b97f4a7c15u; /* as random_uniform */
        uint32_t *marks = reinterpret_cast<uint32_t *>(dynamic);
        token = draw(candidates(row, list, marks, own.key, a.top_k), a,
                     (double)(dropout_mix(state) >> 11) * 0x1p-53);
        if (threadIdx.x == 0) a.rng[b] = state;
    } else {
        const int first = own.key == largest ? first_of_key<AT_ONCE>(logits, a.V, share, largest) : a.V;
        token = block_join(first, Least());
    }
    if (threadIdx.x == 0) write_token(a, b, a.positions[b] + 1, token, n_bad);
}

/* Of the largest alone: its key, the lowest id that has it, and how many are not finite. */
struct Found {
    uint32_t key;
    int first, n_bad;
};
enum {
    PART_THREADS = 512,
    PART_WARPS = PART_THREADS / WARP_SIZE,
    PART_AT_ONCE = 4,
    MAX_PARTS = 8 /* blocks of a sequence */
};
struct Parts {
    int4 found[MAX_PARTS]; /* by the blocks behind the first, as they send it */
    uint64_t full;
    uint32_t keys[PART_WARPS];
    int first, n_bad;
};

/* Of this block, known to thread 0. */
template <typename X>
__device__ Found find_largest(Parts &shared, const X *logits, int V, const Share &share) {
    const First own = first_pass<PART_AT_ONCE>(logits, V, share, NULL);
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, own.key);
    if (threadIdx.x % WARP_SIZE == 0) shared.keys[threadIdx.x / WARP_SIZE] = of_warp;
    const bool any_bad = __syncthreads_or(own.is_bad);
    const uint32_t largest = __reduce_max_sync(0xffffffffu, shared.keys[threadIdx.x % PART_WARPS]);
    if (own.key == largest) atomicMin(&shared.first, first_of_key<PART_AT_ONCE>(logits, V, share, largest));
    if (any_bad) atomicAdd(&shared.n_bad, count_bad<PART_AT_ONCE>(logits, V, share));
    __syncthreads();
    return {largest, shared.first, shared.n_bad};
}

/* Of all blocks of the cluster, in order. */
__device__ __forceinline__ Found join_parts(Parts &shared, Found all) {
#if __CUDA_ARCH__ >= 900
    if (gridDim.y > 1) mbarrier_wait(shared_address(&shared.full), 0);
    for (int part = 1; part < gridDim.y; part++) {
        const int4 sent = shared.found[part];
        const Found x = {(uint32_t)sent.x, sent.y, sent.z};
        all.first = x.key < all.key ? all.first : x.key > all.key ? x.first : min(all.first, x.first);
        all.key = max(all.key, x.key);
        all.n_bad += x.n_bad;
    }
#endif
    return all;
}

/* Blocks (sequence, part). Few registers and little memory: they come while the head still runs. */
template <typename X>
__global__ void __launch_bounds__(PART_THREADS, sizeof(X) == 2 ? 4 : 3) largest_kernel(DrawArgs a) {
    __shared__ Parts shared;
    const int b = blockIdx.x, part = blockIdx.y;
    const Share share = {part * PART_THREADS + (int)threadIdx.x, (int)gridDim.y * PART_THREADS};
    if (threadIdx.x == 0) {
        shared.first = a.V;
        shared.n_bad = 0;
    }
#if __CUDA_ARCH__ >= 900
    const uint32_t full = shared_address(&shared.full);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(full, (gridDim.y - 1) * sizeof(int4));
    }
    cluster_arrive();
    cluster_wait(); /* all blocks have their barriers */
#endif
    wait_early();
    const Found found = find_largest(shared, (const X *)a.logits + (int64_t)b * a.Vp, a.V, share);
    if (threadIdx.x > 0) return;
#if __CUDA_ARCH__ >= 900
    if (part > 0) {
        store_async_16(cluster_address(shared_address(&shared.found[part]), 0),
                       make_int4((int)found.key, found.first, found.n_bad, 0), cluster_address(full, 0));
        return;
    }
#endif
    const Found all = join_parts(shared, found);
    write_token(a, b, a.positions[b] + 1, all.first, all.n_bad);
}

/* A block, a thread a word. It begins while the logits are made, and takes their words as they come. The next launch begins with
 * it, so that what comes behind the last logit is short: the launch of a token takes 3 us. Its wait is for the end of the launch
 * before, behind which the one after it may overwrite. */
__global__ void __launch_bounds__(MAX_WORDS) words_kernel(DrawArgs a, LargestArgs of) {
    static_assert(MAX_WORDS == WARPS * WARP_SIZE, "and a warp a word of the last step");
    __shared__ uint32_t keys[WARPS], ids[WARPS];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    begin_next_early();
    const int position = __ldcg(a.positions) + 1; /* before the wait L1 may have an old one */
    const bool has_word = (int)threadIdx.x < of.n;
    uint64_t word;
    do word = has_word ? load_relaxed_8(of.words + threadIdx.x) : of.tag;
    while ((uint16_t)word != of.tag);
    const uint32_t key = (uint32_t)(word >> WORD_KEY_AT), id = (uint32_t)(word >> WORD_ID_AT) & MAX_ID;
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, key);
    const uint32_t id_of_warp = __reduce_max_sync(0xffffffffu, key == of_warp ? id : 0);
    if (lane == 0) keys[warp] = of_warp, ids[warp] = id_of_warp;
    const bool any_bad = __syncthreads_or((int)(word >> WORD_BAD_AT & 1));
    const uint32_t largest = __reduce_max_sync(0xffffffffu, keys[lane]);
    const int token = MAX_ID - (int)__reduce_max_sync(0xffffffffu, keys[lane] == largest ? ids[lane] : 0);
    if ((int)threadIdx.x * 64 < of.C)
        prefetch_to_l2(of.wte + (int64_t)token * of.C + threadIdx.x * 64); /* a line of 128 bytes */
    wait_for_last();
    const bf16 *logits = (const bf16 *)a.logits;
    const int n_bad = any_bad ? block_join(count_bad<AT_ONCE>(logits, a.V, share_of_block()), Sum()) : 0;
    if (threadIdx.x == 0) write_token(a, 0, position, token, n_bad);
}
void draw_largest(const DrawArgs *args, const LargestArgs *largest) {
    launch_early("draw_tokens", words_kernel, dim3(1), MAX_WORDS, 0, 1, *args, *largest);
}

/* As many blocks a sequence as the card has at once. */
template <typename T> static void launch_largest(const DrawArgs *args) {
    int parts = cuda_compute_capability() == 90 ? (int)MAX_PARTS : 1;
    while (parts > 1 && args->B * parts > cuda_sm_count()) parts /= 2;
    launch_early("draw_tokens", largest_kernel<T>, dim3(args->B, parts), PART_THREADS, 0, parts, *args);
}

template <typename T> static void launch_draw(const DrawArgs *args) {
    enum { STATIC_BYTES = 20480 };
    const bool lists = lists_candidates(args->top_k, args->V);
    const int row_bytes = ceil_div(args->V, (int)Vec<T>::N) * 16;
    const bool staged =
        !lists && row_bytes <= cuda_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - STATIC_BYTES;
    const int bytes = lists ? mark_words(args->V) * (int)sizeof(uint32_t) : staged ? row_bytes : 0;
    CUDA_CHECK(cudaFuncSetAttribute(draw_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    launch_early("draw_tokens", draw_kernel<T>, dim3(args->B), DRAW_COLUMNS, bytes, 1, *args, staged);
}

template <typename T> void draw_tokens(const DrawArgs *args) {
    Step step = step_of<T>(STEP_DRAW, args->B, NULL, args->logits);
    step.draw = *args;
    step_captured(step);
    if (draws_largest(args))
        launch_largest<T>(args);
    else
        launch_draw<T>(args);
}

template DrawTokens draw_tokens<float>;
template DrawTokens draw_tokens<bf16>;
