/* A token's forward pass as one kernel, where a cluster of eight blocks for each head does not run at once: GPT-2 350M to 1.5B.
 *
 * As in token.cu a cluster has a head, 256 hidden channels, and their parts of the two sums that a layer adds to the residual
 * stream; here it is four blocks. A layer's weights do not fit in their shared memory, and take longer from the memory than the
 * exchanges do. So they are a stream: the loaders bring a warp's rows in the order of use, over all layers, through a ring of
 * slots, which fills while the warp waits for a sum. */
#include "llmc/cuda/device/at_once.cuh"
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/ops/gelu.cuh"
#include "token_wide_loader.cuh"

/* ---- the warps that compute ---- */

template <int VECS> struct Warp {
    typedef Shared<VECS> S;
    enum { PLACES = S::PLACES, SLOT_ROUNDS = S::SLOT_ROUNDS };
    /* So many slots' instructions in a row: at C = 1024 loops take 1 to 7 % more, beyond it straight code does, 3 to 10 %, as a
     * layer's instructions are many, too. */
    static constexpr int LOOPS = VECS == 4 ? 4 : 1;
    const TokenArgs &a;
    S &s;
    const Place<VECS> place;
    const int lane, warp, rank, head;
    typename S::At at;
    /* Of the residual stream: this lane's channels of the warp's rows of the projections, the lane-th and 32 behind it. */
    float x[2];
    float pivot;      /* the last norm's mean: squares about 0 would lose what one far from it leaves */
    int places[8];    /* in s.x, of this thread's channels of a norm */
    const float of_C; /* 1 / C */
    uint64_t *sums;
    int key_begin, position;

    __device__ __forceinline__ Warp(const TokenArgs &a_, S &s_)
        : a(a_), s(s_), place(a_), lane(place.lane), warp(threadIdx.x / WARP_SIZE), rank(place.rank),
          head(place.head), pivot(0), of_C(1.0f / (float)a_.C) {
        const Seen seen = seen_keys(a.positions, a.begins, a.window, 0);
        key_begin = (int)seen.begin;
        position = (int)seen.end - 1;
        sums = sums_of(a);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int c = min(8 * (int)threadIdx.x + k, a.C - 1), n = place.n_proj_rows();
            places[k] = c / n * PLACES + c % n;
        }
    }

    /* ---- the residual stream ---- */

    __device__ __forceinline__ bool has(int i) const {
        return lane + i * WARP_SIZE < place.n_proj_rows();
    }
    __device__ __forceinline__ int channel_of(int i) const {
        return place.proj_row(warp) + lane + i * WARP_SIZE;
    }
    __device__ __forceinline__ void embed() {
#pragma unroll
        for (int i = 0; i < 2; i++)
            x[i] = has(i) ? rounded(to_float(a.wte[(int64_t)a.tokens[0] * a.C + channel_of(i)]) +
                                    to_float(a.wpe[(int64_t)position * a.C + channel_of(i)]))
                          : 0;
    }
    __device__ __forceinline__ void take_bias(float (&to)[2], const bf16 *bias) const {
#pragma unroll
        for (int i = 0; i < 2; i++) to[i] = has(i) ? to_float(bias[channel_of(i)]) : 0;
    }
    /* The stream += sum i + bias, rounded as a linear layer's output is. */
    __device__ __forceinline__ void add_sum(int i, const float (&bias)[2]) {
        const uint64_t *from = sums + (int64_t)i * a.C + channel_of(0);
        uint64_t sum[2];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (has(k)) {
                    sum[k] = load_relaxed_8(from + k * WARP_SIZE);
                    all = all && has_all(sum[k], a.NH);
                }
        } while (!all);
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (has(k)) x[k] = rounded(x[k] + rounded(value_of<WIDE_UNIT_BITS>(sum[k], a.NH) + bias[k]));
    }
    __device__ __forceinline__ void send_stream() const {
        __syncwarp();
#pragma unroll
        for (int from = 0; from < 2 * VECS * CLUSTER; from += WARP_SIZE) {
            const int i = from + lane, piece = i % (2 * VECS), to = i / (2 * VECS);
            float four[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int at = 4 * piece + k;
                const float low = __shfl_sync(0xffffffffu, x[0], at % WARP_SIZE),
                            high = __shfl_sync(0xffffffffu, x[1], at % WARP_SIZE);
                four[k] = at < WARP_SIZE ? low : high;
            }
            if (to < CLUSTER)
                send(&s.x[(rank * WARPS + warp) * PLACES + 4 * piece],
                     make_uint2(cvt_bf16x2(four[0], four[1]), cvt_bf16x2(four[2], four[3])),
                     to_block<CLUSTER>(to), &s.x_full);
        }
    }

    /* ---- norms: a thread has eight channels ---- */

    /* Before the n-th half of a layer, or the head: what is added to the stream beside the sum, and the norm's. */
    struct NormOf {
        const bf16 *added, *weight, *bias;
    };
    __device__ __forceinline__ NormOf norm_of(int n) const {
        const DecodeLayer &layer = s.layers[min(n / 2, a.n_layers - 1)];
        if (n == 2 * a.n_layers) return {layer.mlp_proj_bias, a.ln_f_weight, a.ln_f_bias};
        if (n % 2) return {layer.attn_proj_bias, layer.ln_2_weight, layer.ln_2_bias};
        return {s.layers[max(n / 2 - 1, 0)].mlp_proj_bias, layer.ln_1_weight, layer.ln_1_bias};
    }
    /* The n-th norm of the token: y, of this lane. */
    __device__ __forceinline__ void normed(float (&y)[VECS][8], int n) {
        const int c = 8 * threadIdx.x;
        const NormOf norm = norm_of(n);
        float z[8], w[8], b[8], added[2], sum = 0, squares = 0;
        to_floats(w, *reinterpret_cast<const int4 *>(norm.weight + min(c, a.C - 8)));
        to_floats(b, *reinterpret_cast<const int4 *>(norm.bias + min(c, a.C - 8)));
        take_bias(added, norm.added);
        if (n > 0) add_sum(n - 1, added);
        send_stream();
        wait_sent(&s.x_full, CLUSTER * WARPS * PLACES * (int)sizeof *s.x, n);
#pragma unroll
        for (int k = 0; k < 8; k++) z[k] = to_float(s.x[places[k]]) - pivot;
        if (c < a.C)
#pragma unroll
            for (int k = 0; k < 8; k++) {
                sum += z[k];
                squares = fmaf(z[k], z[k], squares);
            }
        const float2 row = row_statistics<WARPS>(s, sum, squares, of_C);
        pivot += row.x;
#pragma unroll
        for (int k = 0; k < 8; k++) z[k] = (z[k] - row.x) * row.y * w[k] + b[k];
        if (c < a.C)
            *reinterpret_cast<int4 *>(&s.normed[c]) =
                make_int4(cvt_bf16x2(z[0], z[1]), cvt_bf16x2(z[2], z[3]), cvt_bf16x2(z[4], z[5]),
                          cvt_bf16x2(z[6], z[7]));
        named_barrier_sync<THREADS>(1);
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            int4 own = {0, 0, 0, 0};
            if (v < place.n_vecs) own = *reinterpret_cast<const int4 *>(&s.normed[v * ROUND + lane * 8]);
            to_floats(y[v], own);
        }
    }

    /* ---- products ---- */

    static __device__ __forceinline__ float dot(const float (&y)[8], const int4 &w, float sum) {
        float f[8];
        to_floats(f, w);
#pragma unroll
        for (int k = 0; k < 8; k++) sum = fmaf(y[k], f[k], sum);
        return sum;
    }
    /* The next slot's rounds. */
    __device__ __forceinline__ void take(int4 (&w)[SLOT_ROUNDS]) {
        mbarrier_wait(shared_address(&s.full[at.stage][warp / 2]), at.parity);
#pragma unroll
        for (int i = 0; i < SLOT_ROUNDS; i++) w[i] = s.slots[at.stage][warp][i][lane];
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&s.empty[at.stage][warp / 2]));
        at.advance();
    }
    /* Of the next two rows of C channels, this lane's share. */
    __device__ __forceinline__ void multiply_rows(float *sum, const float (&y)[VECS][8]) {
        int4 w[SLOT_ROUNDS];
        take(w);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float of[2] = {}; /* two chains of additions */
#pragma unroll
            for (int v = 0; v < VECS; v++) of[v % 2] = dot(y[v], w[r * VECS + v], of[v % 2]);
            sum[r] = of[0] + of[1];
        }
    }

    /* The same of the next N. */
    template <int N>
    __device__ __forceinline__ void multiply_slots(float (&sum)[N], const float (&y)[VECS][8]) {
#pragma unroll LOOPS
        for (int r = 0; r < N; r += 2) {
            float two[2];
            multiply_rows(two, y);
#pragma unroll
            for (int i = 0; i < N; i++)
                if (i / 2 * 2 == r) sum[i] = two[i % 2];
        }
    }

    /* ---- attention: the blocks of the cluster take turns by key ---- */

    __device__ __forceinline__ int score_key(int round) const {
        return ((round * SCORE_KEYS + lane / SCORE_LANES) * WARPS + warp) * CLUSTER + rank;
    }
    __device__ __forceinline__ bool is_cached(int key) const {
        return key >= key_begin && key < position;
    }
    __device__ __forceinline__ bf16 *key_at(int l, int key) const {
        return s.layers[l].cache + (int64_t)key * 2 * a.C + head * HD;
    }
    __device__ __forceinline__ void load_keys(int4 (&keys)[SCORE_ROUNDS][2], int l) const {
        take_keys(
            keys, [&](int r) { return is_cached(score_key(r)); },
            [&](int r) { return key_at(l, score_key(r)) + lane % SCORE_LANES * 16; });
    }
    /* Values that are cached, before they are wanted. */
    __device__ __forceinline__ void begin_values(int l) const {
        const int C = a.C;
        if (l < a.n_layers)
            load_values<CLUSTER, THREADS>(
                s, (int)cluster_rank(), position, [&](int key) { return is_cached(key); },
                [&](int key) { return key_at(l, key) + C; });
        cp_async_commit();
    }
    /* The new key and value, by the block whose turn it is; key: where the key goes. */
    static __device__ __forceinline__ void keep_new(S &s, int C, int position, bf16 *key) {
        const int piece = threadIdx.x % 8, row = position / CLUSTER;
        if (threadIdx.x >= 16 || position % CLUSTER != (int)cluster_rank()) return;
        const uint2 *of_piece = &s.qkv[place_of(8 * piece)];
        keep_piece(s, of_piece, row, piece, reinterpret_cast<int4 *>(key + threadIdx.x / 8 * C) + piece);
    }
    __device__ __forceinline__ void score(const int4 (&keys)[SCORE_ROUNDS][2]) const {
        float q[2][8];
        const float of_new = take_query(s, lane, q);
#pragma unroll
        for (int r = 0; r < SCORE_ROUNDS; r++) {
            if (r * (BLOCK_KEYS / SCORE_ROUNDS * CLUSTER) > position) break; /* nor does weigh read them */
            const int key = score_key(r);
            float v = key == position ? of_new : dot(q[0], keys[r][0], dot(q[1], keys[r][1], 0));
            v += __shfl_xor_sync(0xffffffffu, v, 1);
            v += __shfl_xor_sync(0xffffffffu, v, 2);
            if (lane % SCORE_LANES == 0)
                s.scores[key / CLUSTER] =
                    key >= key_begin && key <= position ? v * (LOG2E / 8) /* sqrt(HD) */ : NO_SCORE;
        }
    }
    /* Eight channels of attention's output, from 8 (lane % 8) on. */
    __device__ __forceinline__ void joined(float (&o)[8]) const {
        float weight[CLUSTER], max = NO_SCORE, total = 0;
#pragma unroll
        for (int p = 0; p < CLUSTER; p++) {
            weight[p] = s.weights_of_parts[p].x;
            max = fmaxf(max, weight[p]);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) o[k] = 0;
#pragma unroll
        for (int p = 0; p < CLUSTER; p++) {
            weight[p] = ex2(weight[p] - max);
            total += weight[p];
#pragma unroll
            for (int k = 0; k < 8; k++) o[k] = fmaf(weight[p], s.parts[p][lane % 8 * 8 + k], o[k]);
        }
        const float of_total = rcp(total);
#pragma unroll
        for (int k = 0; k < 8; k++) o[k] = rounded(o[k] * of_total);
    }

    /* ---- a layer ---- */

    __device__ __forceinline__ void add(int i, int row, float part) const {
        if (row < place.n_proj_rows())
            add_part<WIDE_UNIT_BITS>(sums + (int64_t)i * a.C + place.proj_row(warp) + row, part);
    }
    /* The bias of this lane's row of c_attn or of fc, of which several lanes have one. */
    enum { QKV_ALL = 3 * QKV_ROWS };
    __device__ __forceinline__ float take_row_bias(int n) const {
        const DecodeLayer &layer = s.layers[n / 2];
        const int row = n % 2 ? summed_row<FC_ROWS>() : max(summed_row<QKV_ALL>(), 0);
        return to_float(n % 2 ? layer.fc_bias[place.fc_row(warp) + row]
                              : layer.qkv_bias[row / QKV_ROWS * a.C + place.qkv_row(warp) + row % QKV_ROWS]);
    }
    __device__ __forceinline__ void attention(const float (&y)[VECS][8], const int4 (&keys)[SCORE_ROUNDS][2],
                                              float bias, int l) {
        const int channel = (rank * WARPS + warp) * QKV_ROWS;
        float sum[QKV_ALL];
        static_assert(QKV_ROWS == 2, "a slot");
        multiply_slots(sum, y);
        const float of_row = sum_rows(sum) + bias;
        const int which = lane / CLUSTER % 2; /* rows 0 to 5 are with lanes 0, 4, 8, 16, 20, 24 */
        const float q = __shfl_sync(0xffffffffu, of_row, 4 * which),
                    k = __shfl_sync(0xffffffffu, of_row, 8 + 8 * which),
                    v = __shfl_sync(0xffffffffu, of_row, 20 + 4 * which);
        if (lane < 2 * CLUSTER)
            send(&s.qkv[place_of(channel + which)], make_uint2(cvt_bf16x2(q, k), cvt_bf16x2(v, 0)),
                 to_block<CLUSTER>(lane % CLUSTER), &s.qkv_full);
        wait_sent(&s.qkv_full, HD * (int)sizeof(uint2), l);
        cp_async_wait<0>();
        keep_new(s, a.C, position, key_at(l, position));
        score(keys);
        named_barrier_sync<THREADS>(1);
        weigh<CLUSTER>(s, threadIdx.x / WARP_SIZE, threadIdx.x % WARP_SIZE, (int)cluster_rank(),
                       [&](int r) { return r * (int)(WARP_SIZE * CLUSTER) <= position; });
        wait_sent(&s.parts_full, (int)(sizeof s.parts + sizeof s.weights_of_parts), l);
        float o[8];
        joined(o);
        int4 w[SLOT_ROUNDS];
        float own[2] = {};
        take(w);
#pragma unroll
        for (int i = 0; i < SLOT_ROUNDS; i++) { /* eight lanes have a row; each keeps one of eight */
            float sum = dot(o, w[i], 0);
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
            if (lane % 8 == i % 8) own[i / 8] = sum;
        }
        add(2 * l, 4 * (lane % 8) + lane / 8, own[0]);
        if (SLOT_ROUNDS > 8) add(2 * l, 4 * (8 + lane % 8) + lane / 8, own[1]);
    }
    __device__ __forceinline__ void mlp(const float (&y)[VECS][8], float bias, int l) {
        float sum[FC_ROWS], h[8];
        begin_values(l + 1); /* those of this layer have been read, as all warps are here */
        multiply_slots(sum, y);
        static_assert(FC_ROWS == 8, "four lanes have a row");
        const float of_row = gelu<bf16>(sum_rows(sum) + bias);
        const uint32_t pair = cvt_bf16x2(of_row, __shfl_down_sync(0xffffffffu, of_row, 4));
        const int piece = lane / CLUSTER % 2;
        const uint2 four = make_uint2(__shfl_sync(0xffffffffu, pair, 16 * piece),
                                      __shfl_sync(0xffffffffu, pair, 16 * piece + 8));
        if (lane < 2 * CLUSTER)
            send(&s.hidden[(rank * WARPS + warp) * FC_ROWS + 4 * piece], four,
                 to_block<CLUSTER>(lane % CLUSTER), &s.hidden_full);
        wait_sent(&s.hidden_full, sizeof s.hidden, l);
        to_floats(h, *reinterpret_cast<const int4 *>(&s.hidden[8 * lane]));
        enum { N = 2 * SLOT_ROUNDS };
#pragma unroll LOOPS
        for (int first = 0; first < 2 * N; first += N) { /* four slots: 2 NH rows, of 2 VECS each */
            float part[N];
#pragma unroll
            for (int i = 0; i < N; i += SLOT_ROUNDS) {
                int4 w[SLOT_ROUNDS];
                take(w);
#pragma unroll
                for (int k = 0; k < SLOT_ROUNDS; k++) part[i + k] = dot(h, w[k], 0);
            }
            const float of_part = sum_rows(part);
            const int row = summed_row<N>();
            if (row >= 0 && lane % lanes_of_row(N) == 0) add(2 * l + 1, first + row, of_part);
        }
    }
    __device__ __forceinline__ void logits(const float (&y)[VECS][8]) {
        const int first = place.head_row(warp);
#pragma unroll 1
        for (int r = 0; r < place.n_head_rows(); r += 2) {
            float sum[2];
            multiply_rows(sum, y);
            const float logit = sum_rows(sum);
            const int row = r + lane / 16;
            if (lane % 16 == 0 && row < place.n_head_rows() && first + row < a.V)
                a.logits[first + row] = from_float<bf16>(logit);
        }
    }
    __device__ __forceinline__ void run() {
        begin_values(0);
        embed();
#pragma unroll 1
        for (int n = 0;; n++) {
            float y[VECS][8], bias = 0;
            int4 keys[SCORE_ROUNDS][2] = {};
            if (n < 2 * a.n_layers) bias = take_row_bias(n);
            if (n % 2 == 0 && n < 2 * a.n_layers) load_keys(keys, n / 2);
            normed(y, n);
            if (n == 2 * a.n_layers) return logits(y);
            if (n % 2)
                mlp(y, bias, n / 2);
            else
                attention(y, keys, bias, n / 2);
        }
    }
};

/* ---- the kernel ---- */

template <int VECS> __global__ void __launch_bounds__(BLOCK_THREADS, 1) token_wide_kernel(TokenArgs a) {
#if __CUDA_ARCH__ >= 900
    static_assert(sizeof(Shared<VECS>) <= SM90_SHARED_LIMIT, "a block's shared memory");
    extern __shared__ __align__(128) char memory[];
    Shared<VECS> &s = *reinterpret_cast<Shared<VECS> *>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shared<VECS>::SLOTS * LOADERS; i++) {
            mbarrier_init(shared_address(&s.full[0][0] + i), WARP_SIZE);
            mbarrier_init(shared_address(&s.empty[0][0] + i), WARPS / LOADERS);
        }
        init_messages(s);
        fence_mbarrier_init();
    }
    const uint64_t *from = reinterpret_cast<const uint64_t *>(a.layers);
    for (int i = threadIdx.x; i < a.n_layers * (int)(sizeof(DecodeLayer) / 8); i += BLOCK_THREADS)
        reinterpret_cast<uint64_t *>(s.layers)[i] = from[i];
    cluster_sync();
    if (threadIdx.x >= THREADS) {
        setmaxnreg_dec<72>();
        Loader<VECS>(a, s).run();
    } else {
        setmaxnreg_inc<216>();
        wait_early();
        clear_sums(a, threadIdx.x, THREADS);
        Warp<VECS>(a, s).run();
    }
#endif
}

/* ---- the launch ---- */

typedef struct WideLaunch {
    void (*kernel)(TokenArgs);
    int bytes;
} WideLaunch;

template <int VECS> static constexpr WideLaunch launch = {token_wide_kernel<VECS>, sizeof(Shared<VECS>)};

static const WideLaunch &launch_of(int NH) {
    static const WideLaunch launches[] = {launch<4>, launch<5>, launch<6>, launch<7>};
    return launches[ceil_div(NH * (int)HD, (int)ROUND) - 4];
}
static_assert(3 * ROUND < WIDE_MIN_NH * HD && MAX_C <= 7 * ROUND, "a kernel for every width");

bool token_wide_fits(int NH) {
    if (cuda_compute_capability() != 90 || NH < WIDE_MIN_NH || NH > WIDE_MAX_NH) return false;
    const WideLaunch &of = launch_of(NH);
    return clusters_at_once(of.kernel, CLUSTER, BLOCK_THREADS, of.bytes) >= NH;
}

void token_wide_launch(const TokenArgs &args) {
    const WideLaunch &of = launch_of(args.NH);
    launch_early("token_wide_kernel", of.kernel, dim3(1, args.NH * CLUSTER), BLOCK_THREADS, of.bytes, CLUSTER,
                 args);
}
