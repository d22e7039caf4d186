/* The next token of each sequence, drawn on the device: a block a sequence, a thread a column of ids (ops.h,
 * DRAW_COLUMNS). Of top-k's few candidates there is a list, of which a warp draws; else the logits are read some twenty times,
 * and lie in shared memory where they fit. The largest alone is draw_largest.cu's.
 *
 * The floor of top-k and top-p is found bit by bit (draw_tokens.c has the same steps): a pass counts, or adds, what is at
 * least as large. Of bf16 there are at most 16 passes, of fp32 32; a list has a quarter of them. */
#include <math_constants.h>
#include "llmc/cuda/cuda_ops.cuh"
#include "llmc/cuda/decode/steps.cuh"
#include "llmc/cuda/device/early.cuh"
#include "draw_row.cuh"

/* ---- what may be drawn ---- */

__device__ __forceinline__ float value_of_key(uint32_t key) {
    return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

struct Weights {
    float largest, scale; /* log2(e) / temperature */

    /* exp((x - largest) / temperature) */
    __device__ float of(float x) const { return isfinite(x) ? ex2((x - largest) * scale) : 0.0f; }
};

/* The logits of a row, which threads have in the order of the draw: one thread's behind the other's. */
template <typename X> struct WholeRow {
    typedef Block Group;
    enum { STEP = DRAW_COLUMNS };
    Weights weights;
    const X *z;
    int V;

    __device__ int first() const { return threadIdx.x; }
    __device__ int end() const { return V; }
    __device__ float value(int i) const { return to_float(z[i]); }
    __device__ int id(int i) const { return i; }
};

/* Some of them; of the others none is drawn. Few are one warp's, which needs no barriers. */
enum { LIST = 2 * DRAW_COLUMNS };
struct List {
    alignas(16) uint32_t keys[LIST];
    int ids[LIST];
};
struct ListedRow {
    typedef OneWarp Group;
    enum { STEP = 1 };
    Weights weights;
    const List *list;
    int n, of_lane; /* odd: lanes then read different banks */

    __device__ int first() const { return OneWarp::index() * of_lane; }
    __device__ int end() const { return min(n, first() + of_lane); }
    __device__ float value(int i) const { return value_of_key(list->keys[i]); }
    __device__ int id(int i) const { return list->ids[i]; }
};

/* ---- what stays ---- */

template <typename X> __device__ int count_from(const WholeRow<X> &row, uint32_t key) {
    int n = 0;
    for (int i = row.first(); i < row.end(); i += row.STEP) n += order_key(row.value(i)) >= key;
    return Block::join(n, Sum());
}
template <typename R> __device__ double weight_from(const R &row, uint32_t key) {
    double sum = 0;
    for (int i = row.first(); i < row.end(); i += R::STEP) {
        const float x = row.value(i);
        if (order_key(x) >= key) sum += row.weights.of(x);
    }
    return R::Group::join(sum, Sum());
}

/* Keys below it are left out; of those equal to it `ties` stay. */
struct Floor {
    uint32_t key;
    int ties;
};

/* Of bf16 the low half of a key says nothing: it is 0, or all ones in negative numbers. */
template <typename X> __device__ __forceinline__ uint32_t whole_key(uint32_t key) {
    return sizeof(X) == 2 && !(key >> 31) ? key | 0xffffu : key;
}
template <typename X> constexpr int LEAST_BIT = sizeof(X) == 2 ? 16 : 0;

/* The largest key of which `enough` is true, as it is of all below; not below `low`. */
template <typename X, typename F> __device__ uint32_t floor_of(uint32_t low, uint32_t high, F enough) {
    const uint32_t open = low == high ? 0 : 0xffffffffu >> __clz(low ^ high); /* bits that are not known */
    uint32_t key = low & ~open;
    for (uint32_t bit = open ^ open >> 1; bit >= 1u << LEAST_BIT<X>; bit >>= 1)
        if (enough(key | bit)) key |= bit;
    return whole_key<X>(key);
}

template <typename X> __device__ Floor keep_top_k(const WholeRow<X> &row, int k) {
    Floor floor;
    floor.key = floor_of<X>(0, order_key(row.weights.largest),
                            [&](uint32_t key) { return count_from(row, key) >= k; });
    floor.ties = k - count_from(row, floor.key + 1);
    return floor;
}

/* The same of n keys in shared memory, n a multiple of KEYS_AT_ONCE. The k-th is not below `low`, though others may be, and none is above
 * `high`. A round settles four bits: of 16 keys a warp each counts what is not below it. Between two calls is a barrier. */
enum { KEYS_AT_ONCE = 4 * WARP_SIZE };
template <typename X>
__device__ Floor kth_largest(const uint32_t *keys, int n, int k, uint32_t low, uint32_t high) {
    enum { BITS = 4, TRIED = 1 << BITS };
    __shared__ int counts[2][TRIED];
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int top = low == high ? LEAST_BIT<X> : (31 - __clz(low ^ high)) / BITS * BITS;
    uint32_t key = (low >> top & ~(TRIED - 1u)) << top;
    int above = 0;
#pragma unroll 1
    for (int shift = top; shift >= LEAST_BIT<X>; shift -= BITS) {
        int *of_round = counts[shift / BITS % 2];
        if (warp < TRIED) {
            const uint32_t tried = key | (uint32_t)warp << shift;
            int n_of[4] = {};
#pragma unroll 2
            for (int i = 4 * lane; i < n; i += KEYS_AT_ONCE) {
                const uint4 four = *reinterpret_cast<const uint4 *>(keys + i);
                n_of[0] += four.x >= tried;
                n_of[1] += four.y >= tried;
                n_of[2] += four.z >= tried;
                n_of[3] += four.w >= tried;
            }
            const int own = __reduce_add_sync(0xffffffffu, n_of[0] + n_of[1] + n_of[2] + n_of[3]);
            if (lane == 0) of_round[warp] = own;
        }
        __syncthreads();
        const bool enough = lane < TRIED && of_round[lane % TRIED] >= k;
        const int digit = 31 - __clz((int)(__ballot_sync(0xffffffffu, enough) | 1));
        if (digit < TRIED - 1) above = of_round[digit + 1];
        key |= (uint32_t)digit << shift;
    }
    return {whole_key<X>(key), k - above};
}

/* So many equals of weight `each` add up to `missing`: one at least, `most` at most. */
__device__ int ties_for(double missing, double each, int most) {
    const double n = ceil(missing / each);
    return n > 1 ? (n < most ? (int)n : most) : 1;
}

/* Of what top-k left. X: the storage type of what the row's values come from. */
template <typename X, typename R> __device__ Floor keep_top_p(const R &row, Floor floor, float p) {
    if (!(p < 1)) return floor;
    const double above = weight_from(row, floor.key + 1);
    const double each = row.weights.of(value_of_key(floor.key));
    const double wanted = p * (floor.key ? above + floor.ties * each : weight_from(row, 0));
    if (floor.key && above < wanted) return {floor.key, ties_for(wanted - above, each, floor.ties)};
    const uint32_t largest = order_key(row.weights.largest);
    floor.key = floor_of<X>(floor.key, largest, [&](uint32_t key) {
        return key <= largest && weight_from(row, key) >= wanted; /* p may be 0 */
    });
    floor.ties =
        ties_for(wanted - weight_from(row, floor.key + 1), row.weights.of(value_of_key(floor.key)), 1 << 30);
    return floor;
}

/* ---- the draw ---- */

/* f(id, weight) for those of this thread that have one; `equals` of the floor stand before it. Ends where f is true. */
template <typename R, typename F>
__device__ void each_weight(const R &row, const Floor &floor, int equals, float min_p, F f) {
    int left = floor.ties - equals;
    for (int i = row.first(); i < row.end(); i += R::STEP) {
        const float x = row.value(i);
        const uint32_t key = order_key(x);
        if (key < floor.key || (key == floor.key && left-- <= 0)) continue;
        const float weight = row.weights.of(x);
        if (weight > 0 && weight >= min_p && f(row.id(i), weight)) return;
    }
}

/* Of what the floor leaves; by the row's group. */
template <typename R>
__device__ int draw_from(const R &row, const Floor &floor, float min_p, double uniform) {
    typedef typename R::Group Group;
    __shared__ int chosen;
    int equals = 0, n_equals;
    if (floor.key) { /* 0 is NaN's */
        for (int i = row.first(); i < row.end(); i += R::STEP) equals += order_key(row.value(i)) == floor.key;
        equals = Group::exclusive(equals, &n_equals);
    }
    double own = 0, total;
    each_weight(row, floor, equals, min_p, [&](int, float weight) {
        own += weight;
        return false;
    });
    const double before = Group::exclusive(own, &total), point = uniform * total;
    const int index = Group::index();
    int first = Group::join(own > 0 && before + own > point ? index : (int)Group::THREADS, Least());
    if (first == Group::THREADS) first = Group::join(own > 0 ? index : 0, Largest()); /* rounding */
    if (index == first) {
        double sum = before;
        each_weight(row, floor, equals, min_p, [&](int id, float weight) {
            chosen = id;
            sum += weight;
            return sum > point;
        });
    }
    Group::sync();
    return chosen;
}

/* ---- candidates of top-k ---- */

/* Of the keys of all threads, and whether any of them says that it is bad. */
struct Extent {
    uint32_t largest, least;
    bool any_bad;
};
__device__ __forceinline__ Extent extent_of_block(const First &own) {
    __shared__ uint32_t largest[WARPS], least[WARPS];
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, own.key);
    const uint32_t least_of_warp = __reduce_min_sync(0xffffffffu, own.key);
    if (lane == 0) largest[warp] = of_warp, least[warp] = least_of_warp;
    const bool any_bad = __syncthreads_or(own.is_bad);
    return {__reduce_max_sync(0xffffffffu, largest[lane]), __reduce_min_sync(0xffffffffu, least[lane]),
            any_bad};
}

/* Bits of ids that are candidates: of 32 ids of a column a word. */
__host__ __device__ inline int mark_words(int V) {
    return ceil_div(V, WARP_SIZE * (int)DRAW_COLUMNS) * DRAW_COLUMNS;
}
__host__ __device__ inline bool lists_candidates(int k, int V) {
    return k > 0 && k < V && k <= DRAW_COLUMNS;
}

/* All ones in the halves of a that are not below b's. */
__device__ __forceinline__ uint32_t at_least_bf16x2(uint32_t a, uint32_t b) {
    return __hge2_mask(*reinterpret_cast<const __nv_bfloat162 *>(&a),
                       *reinterpret_cast<const __nv_bfloat162 *>(&b));
}

/* Which of a vector's values are not below a floor, as bits; at_bit: which value a bit is of. NaN is below all. */
template <typename X> struct AtLeast;
template <> struct AtLeast<float> {
    static __device__ uint32_t bits(const int4 &vec, float floor) {
        float x[4];
        uint32_t bits = 0;
        to_floats(x, vec);
#pragma unroll
        for (int k = 0; k < 4; k++) bits |= x[k] >= floor ? 1u << k : 0u;
        return bits;
    }
    static __device__ int at_bit(int bit) {
        return bit;
    }
};
/* Of pairs: the low halves' bits before the high ones'. */
template <> struct AtLeast<bf16> {
    static __device__ uint32_t bits(const int4 &vec, float floor) {
        const uint32_t pairs[4] = {(uint32_t)vec.x, (uint32_t)vec.y, (uint32_t)vec.z, (uint32_t)vec.w};
        uint32_t bits = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            bits |= at_least_bf16x2(pairs[k], cvt_bf16x2(floor, floor)) & 0x00010001u << k;
        return (bits & 0xf) | (bits >> 12 & 0xf0);
    }
    static __device__ int at_bit(int bit) {
        return bit % 4 * 2 + bit / 4;
    }
};

/* f(id) for this thread's ids whose value is not below the floor. Few are: all vectors are looked at before one loop. */
template <typename X, typename F> __device__ void each_from(const X *logits, int V, float floor, F f) {
    constexpr int N = Vec<X>::N, BITS = 8;
    static_assert(AT_ONCE * BITS <= 64 && N <= BITS, "a bit a value");
    for (int v0 = threadIdx.x; v0 * N < V; v0 += AT_ONCE * DRAW_COLUMNS) {
        int4 vecs[AT_ONCE];
        uint64_t hits = 0;
        load_vecs(vecs, logits, V, v0, DRAW_COLUMNS);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if ((v0 + u * DRAW_COLUMNS) * N < V)
                hits |= (uint64_t)AtLeast<X>::bits(vecs[u], floor) << BITS * u;
        for (; hits; hits &= hits - 1) {
            const int bit = __ffsll((long long)hits) - 1;
            const int id = (v0 + bit / BITS * DRAW_COLUMNS) * N + AtLeast<X>::at_bit(bit % BITS);
            if (id < V) f(id);
        }
    }
}

/* Each thread has the largest key of some ids. The k-th largest of those, the bound, is not above the k-th largest of all, and not
 * many logits are above it: these are marked, and then listed. Returns how many there are; with more than LIST there is no
 * list. */
template <typename X>
__device__ int make_list(List &list, uint32_t *marks, const X *logits, int V, uint32_t own_key,
                         const Extent &all, int k, uint32_t *bound) {
    const int words = mark_words(V);
    for (int w = threadIdx.x; w < words; w += DRAW_COLUMNS)
        marks[w] = 0; /* before the barriers of the bound */
    list.keys[threadIdx.x] = own_key;
    __syncthreads();
    *bound = kth_largest<X>(list.keys, DRAW_COLUMNS, k, all.least, all.largest).key;
    const float floor = value_of_key(*bound);
    if (own_key >= *bound)
        each_from(logits, V, isnan(floor) ? -INFINITY : floor, [&](int id) {
            const int at = id / DRAW_COLUMNS; /* of its column */
            atomicOr(&marks[at / WARP_SIZE * DRAW_COLUMNS + id % DRAW_COLUMNS], 1u << at % WARP_SIZE);
        });
    __syncthreads();
    int own = 0, n;
    for (int w = threadIdx.x; w < words; w += DRAW_COLUMNS) own += __popc(marks[w]);
    int to = Block::exclusive(own, &n);
    if (n > LIST) return n;
    for (int w = threadIdx.x; w < words; w += DRAW_COLUMNS)
        for (uint32_t left = marks[w]; left; left &= left - 1, to++) {
            const int id = w / DRAW_COLUMNS * WARP_SIZE * DRAW_COLUMNS + (__ffs(left) - 1) * DRAW_COLUMNS +
                           (int)threadIdx.x;
            list.keys[to] = order_key(to_float(logits[id]));
            list.ids[to] = id;
        }
    if ((int)threadIdx.x < KEYS_AT_ONCE && n + (int)threadIdx.x < LIST) list.keys[n + threadIdx.x] = 0;
    __syncthreads();
    return n;
}

/* One of the k largest, which are listed; known to the first warp. */
template <typename X>
__device__ int draw_of_list(const List &list, int n, uint32_t bound, const Weights &weights,
                            const DrawArgs &a, double uniform) {
    const int filled = ceil_div(n, (int)KEYS_AT_ONCE) * KEYS_AT_ONCE;
    const Floor floor = kth_largest<X>(list.keys, filled, a.top_k, bound, order_key(weights.largest));
    if (threadIdx.x >= WARP_SIZE) return 0;
    const ListedRow row = {weights, &list, n, ceil_div(n, (int)WARP_SIZE) | 1};
    return draw_from(row, keep_top_p<X>(row, floor, a.top_p), a.min_p, uniform);
}

template <typename X> __device__ int draw_of_all(const WholeRow<X> &row, const DrawArgs &a, double uniform) {
    const bool cuts = a.top_k > 0 && a.top_k < a.V;
    const Floor all = {0, a.V}, floor = cuts ? keep_top_k(row, a.top_k) : all;
    return draw_from(row, keep_top_p<X>(row, floor, a.top_p), a.min_p, uniform);
}

/* ---- the kernels ---- */

/* dynamic: the row, where it is staged, or the marks of candidates. */
template <typename X> __global__ void __launch_bounds__(DRAW_COLUMNS) draw_kernel(DrawArgs a, bool staged) {
    extern __shared__ int4 dynamic[];
    __shared__ List list;
    const int b = blockIdx.x;
    const Share share = share_of_block();
    wait_early();
    const int position = a.positions[b];
    const uint64_t rng = a.rng[b];
    const X *logits = (const X *)a.logits + (int64_t)b * a.Vp;
    const First own = first_pass<AT_ONCE>(logits, a.V, share, staged ? dynamic : NULL);
    const Extent all = extent_of_block(own); /* behind its barrier the row is staged */
    const int n_bad = all.any_bad ? Block::join(count_bad<AT_ONCE>(logits, a.V, share), Sum()) : 0;
    const Weights weights = {value_of_key(all.largest), fminf(LOG2E / a.temperature, FLT_MAX)};
    int token;
    if (isfinite(weights.largest)) {
        const uint64_t state = rng + 0x9e3779b97f4a7c15u; /* as random_uniform */
        const double uniform = (double)(dropout_mix(state) >> 11) * 0x1p-53;
        uint32_t bound = 0;
        const int n = lists_candidates(a.top_k, a.V)
                          ? make_list(list, (uint32_t *)dynamic, logits, a.V, own.key, all, a.top_k, &bound)
                          : LIST + 1;
        token = n > LIST ? draw_of_all<X>({weights, staged ? (const X *)dynamic : logits, a.V}, a, uniform)
                         : draw_of_list<X>(list, n, bound, weights, a, uniform);
        if (threadIdx.x == 0) a.rng[b] = state;
    } else {
        const int first =
            own.key == all.largest ? first_of_key<AT_ONCE>(logits, a.V, share, all.largest) : a.V;
        token = Block::join(first, Least());
    }
    if (threadIdx.x == 0) write_token(a, b, position + 1, token, n_bad);
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
        draw_largest<T>(args);
    else
        launch_draw<T>(args);
}

template DrawTokens draw_tokens<float>;
template DrawTokens draw_tokens<bf16>;
