/* A token's forward pass as one kernel, whose blocks, one on an SM, stay for all layers.
 *
 * With launches, a token of GPT-2 124M is a chain of 88 kernels that each wait for the one before to end, five times as
 * long as its weights take from memory. Here blocks wait for numbers alone.
 *
 * A cluster of eight blocks is to a layer what a rank is in tensor parallelism (Shoeybi et al. 2019, section 3): it has a
 * head's rows of c_attn, that head's attention and columns of the projection behind it, 256 hidden channels of the MLP
 * and their columns of the second projection. So only the two sums that a layer adds to the residual stream go over all
 * clusters, through L2 (token_sums.cuh). Everything else goes from block to block of a cluster through shared memory,
 * in a third of the time.
 *
 * A warp computes rows of its block's matrices: it has them in registers before their input is there, and its lanes
 * share a row's channels. So a product needs no barrier; a stage is a chain of a few hundred instructions, and how long
 * that is counts, not how much it does. The loaders (token_loaders.cuh) bring the rows.
 *
 * Of the residual stream a block has the channels of its rows of the projections, which all clusters have. It sends them
 * to the others of its cluster, and each block has the norm to itself.
 *
 * The clusters that the card has room for besides, an H200 3 beside 12 heads, have rows of the head alone. They have the first of them
 * in shared memory long before, and bring the next ones of all blocks to L2 while the layers leave memory idle. A token of GPT-2
 * 124M takes 2 us less with them.
 *
 * Values are rounded where the launches round them, but sums have another order: the last bits are not theirs. */
#include "llmc/cuda/device/at_once.cuh"
#include "llmc/cuda/device/early.cuh"
#include "llmc/cuda/ops/draw_tokens.cuh"
#include "llmc/cuda/ops/gelu.cuh"
#include "token_loaders.cuh"

/* ---- the warps that compute ---- */

/* Of every ROUND channels a lane has eight. VECS rounds: C / ROUND, rounded up. */
template <int VECS> struct Warp {
    enum {
        PROJ_ROWS = 4 * VECS, /* of a warp, NH or more */
        SCORE_ROUNDS = BLOCK_KEYS / WARPS / SCORE_KEYS
    };
    const TokenArgs &a;
    Shared &s;
    const int lane, warp, rank, head;
    int n_vecs;       /* this lane's */
    float x;          /* of the residual stream: the channel of this lane's row of the projections */
    float pivot;      /* near the mean of a norm: squares about 0 would lose what one far from it leaves */
    int places[4];    /* in s.x, of this thread's channels of a norm */
    const float of_C; /* 1 / C */
    uint64_t *sums;
    int token, position, key_begin; /* the new token, where it stands, the first key that it sees */

    __device__ __forceinline__ Warp(const TokenArgs &a_, Shared &s_)
        : a(a_), s(s_), lane(threadIdx.x % WARP_SIZE), warp(threadIdx.x / WARP_SIZE), rank(cluster_rank()),
          head(this_head()), x(0), pivot(0), of_C(1.0f / (float)a_.C) {
        token = a.tokens[0];
        const Seen seen = seen_keys(a.positions, a.begins, a.window, 0);
        key_begin = (int)seen.begin;
        position = (int)seen.end - 1;
        n_vecs = lane * 8 + (VECS - 1) * ROUND < a.C ? VECS : VECS - 1;
        sums = sums_of(a);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int c = min(4 * (int)threadIdx.x + k, a.C - 1);
            places[k] = c / a.NH * PROJ_ROWS + c % a.NH;
        }
    }

    __device__ __forceinline__ int channel(int v) const {
        return v * ROUND + lane * 8;
    }

    /* ---- the residual stream ---- */

    __device__ __forceinline__ int own_channel() const {
        return rank * (a.C / CLUSTER) + warp * a.NH + lane;
    }
    __device__ __forceinline__ void embed() {
        if (lane < a.NH)
            x = rounded(to_float(a.wte[(int64_t)token * a.C + own_channel()]) +
                        to_float(a.wpe[(int64_t)position * a.C + own_channel()]));
    }
    __device__ __forceinline__ void add(uint64_t sum) {
        x = rounded(x + rounded(value_of<UNIT_BITS>(sum, a.NH)));
    }
    /* The stream += sum i, rounded as a linear layer's output is. */
    __device__ __forceinline__ void add_sum(int i) {
        const uint64_t *from = sums + (int64_t)i * a.C + own_channel();
        uint64_t sum;
        if (lane >= a.NH) return;
        do sum = load_relaxed_8(from);
        while (!has_all(sum, a.NH));
        add(sum);
    }
    __device__ __forceinline__ void add_sum_late(int i) {
        if (lane < a.NH) add(wait_all(sums + (int64_t)i * a.C + own_channel(), a.NH));
    }
    /* To all blocks of the cluster, by one instruction. */
    __device__ __forceinline__ void send_stream() const {
        const int piece = lane % VECS, to = lane / VECS;
        float four[4];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++) four[k] = __shfl_sync(0xffffffffu, x, 4 * piece + k);
        if (to < CLUSTER)
            send(&s.x[(rank * WARPS + warp) * PROJ_ROWS + 4 * piece],
                 make_uint2(cvt_bf16x2(four[0], four[1]), cvt_bf16x2(four[2], four[3])),
                 to_block<CLUSTER>(to), &s.x_full);
    }

    /* ---- norms: a thread has four channels ---- */

    struct NormOf {
        float weight[4], bias[4];
    };
    __device__ __forceinline__ void take_norm(NormOf &norm, int which) const {
        take_four(norm.weight, &s.norms[which].weight[4 * threadIdx.x]); /* past C: what is not used */
        take_four(norm.bias, &s.norms[which].bias[4 * threadIdx.x]);
    }
    static __device__ __forceinline__ void take_four(float (&x)[4], const bf16 *from) {
        const uint2 bits = *reinterpret_cast<const uint2 *>(from);
        x[0] = bf16_low(bits.x), x[1] = bf16_high(bits.x), x[2] = bf16_low(bits.y), x[3] = bf16_high(bits.y);
        keep(x);
    }
    /* The n-th norm of the token: y, of this lane. KNOWS_MEAN: the pivot is the mean of the norm before; else it is a channel, which
     * is not further from the mean than sqrt(C) deviations. */
    template <bool KNOWS_MEAN = true>
    __device__ __forceinline__ void normed(float (&y)[VECS][8], const NormOf &norm, int n) {
        const int c = 4 * threadIdx.x;
        float z[4], sum = 0, squares = 0;
        wait_sent(&s.x_full, CLUSTER * WARPS * PROJ_ROWS * (int)sizeof *s.x, n);
        if (!KNOWS_MEAN) pivot = to_float(s.x[0]);
#pragma unroll
        for (int k = 0; k < 4; k++) z[k] = to_float(s.x[places[k]]) - pivot;
        if (c < a.C) {
            sum = (z[0] + z[1]) + (z[2] + z[3]);
            squares = fmaf(z[0], z[0], z[1] * z[1]) + fmaf(z[2], z[2], z[3] * z[3]);
        }
        const float2 row = row_statistics<WARPS>(s, sum, squares, of_C);
        pivot += row.x;
#pragma unroll
        for (int k = 0; k < 4; k++) z[k] = (z[k] - row.x) * row.y * norm.weight[k] + norm.bias[k];
        if (c < a.C)
            *reinterpret_cast<uint2 *>(&s.normed[c]) =
                make_uint2(cvt_bf16x2(z[0], z[1]), cvt_bf16x2(z[2], z[3]));
        named_barrier_sync<THREADS>(1);
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            int4 own = {0, 0, 0, 0};
            if (v < n_vecs) own = *reinterpret_cast<const int4 *>(&s.normed[channel(v)]);
            to_floats(y[v], own);
        }
    }

    /* ---- weights, in registers as fp32 before their input is there ---- */

    __device__ __forceinline__ void wait_weights(int which, int phase) const {
        mbarrier_wait(shared_address(&s.full[which]), phase & 1);
    }
    /* What is in registers may be overwritten. */
    __device__ __forceinline__ void release(int which) const {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&s.empty[which]));
    }
    /* N rows of C, `apart` rows from one to the next. */
    template <int N>
    __device__ __forceinline__ void take_rows(float (&w)[N][VECS][8], const char *first, int apart) const {
#pragma unroll
        for (int r = 0; r < N; r++)
#pragma unroll
            for (int v = 0; v < VECS; v++) {
                int4 own = {0, 0, 0, 0};
                if (v < n_vecs)
                    own = *reinterpret_cast<const int4 *>(first + (r * apart * a.C + channel(v)) * 2);
                to_floats(w[r][v], own);
            }
#pragma unroll
        for (int r = 0; r < N; r++)
#pragma unroll
            for (int v = 0; v < VECS; v++) keep(w[r][v]);
    }
    template <int N>
    static __device__ __forceinline__ float multiply_rows(const float (&y)[VECS][8],
                                                          const float (&w)[N][VECS][8]) {
        float sum[N] = {};
#pragma unroll
        for (int v = 0; v < VECS; v++)
#pragma unroll
            for (int k = 0; k < 8; k++)
#pragma unroll
                for (int r = 0; r < N; r++) sum[r] = fmaf(y[v][k], w[r][v][k], sum[r]);
        return sum_rows(sum);
    }

    __device__ __forceinline__ float take_proj_bias(const bf16 *bias) const {
        const int row = summed_row<PROJ_ROWS>();
        return head == 0 && row >= 0 && row < a.NH ? to_float(bias[warp * a.NH + row]) : 0.0f;
    }
    /* Of this warp's rows of a projection: to the sum over clusters, where the first one adds the bias. */
    __device__ __forceinline__ void add_to_sum(int i, float (&part)[PROJ_ROWS], float bias) const {
        const float sum = sum_rows(part) + bias;
        const int row = summed_row<PROJ_ROWS>();
        if (row >= 0 && row < a.NH && lane % lanes_of_row(PROJ_ROWS) == 0)
            add_part<UNIT_BITS>(sums + (int64_t)i * a.C + rank * (a.C / CLUSTER) + warp * a.NH + row, sum);
    }

    /* ---- attention: the blocks of the cluster take turns by key ---- */

    __device__ __forceinline__ int score_key(int round) const {
        return ((round * SCORE_KEYS + lane / SCORE_LANES) * WARPS + warp) * CLUSTER + rank;
    }
    __device__ __forceinline__ bool is_cached(int key) const {
        return key >= key_begin && key < position;
    }
    __device__ __forceinline__ bf16 *key_at(int l, int key) const {
        return s.caches[l] + (int64_t)key * 2 * a.C + head * HD;
    }
    __device__ __forceinline__ void prefetch_keys(int l) const {
        const int key = threadIdx.x / 2 * CLUSTER + rank;
        if (l < a.n_layers && is_cached(key)) prefetch_to_l2(key_at(l, key) + threadIdx.x % 2 * a.C);
    }
    struct Keys {
        int4 loaded[SCORE_ROUNDS][2];
        float unpacked[SCORE_ROUNDS][2][8];
    };
    /* Keys to registers, values to shared memory, by lines of 128 bytes. */
    __device__ __forceinline__ void load_keys(Keys &keys, int l) const {
        take_keys(
            keys.loaded, [&](int r) { return is_cached(score_key(r)); },
            [&](int r) { return key_at(l, score_key(r)) + lane % SCORE_LANES * 16; });
        load_values<CLUSTER, THREADS>(
            s, rank, position, [&](int key) { return is_cached(key); },
            [&](int key) { return key_at(l, key) + a.C; });
        cp_async_commit();
    }
    static __device__ __forceinline__ void unpack_keys(Keys &keys) {
#pragma unroll
        for (int r = 0; r < SCORE_ROUNDS; r++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                to_floats(keys.unpacked[r][i], keys.loaded[r][i]);
                keep(keys.unpacked[r][i]);
            }
    }

    /* Lanes 0 to 7 have q's channel, the next ones k's and v's. */
    __device__ __forceinline__ void send_qkv(float q) const {
        const float k = __shfl_down_sync(0xffffffffu, q, 8), v = __shfl_down_sync(0xffffffffu, q, 16);
        if (lane < CLUSTER)
            send(&s.qkv[place_of(rank * QKV_ROWS + warp)], make_uint2(cvt_bf16x2(q, k), cvt_bf16x2(v, 0)),
                 to_block<CLUSTER>(lane), &s.qkv_full);
    }
    /* The new key and value, by the block whose turn it is. */
    __device__ __forceinline__ void keep_new(int l) const {
        const int piece = threadIdx.x % 8, row = position / CLUSTER;
        if (threadIdx.x >= 16 || position % CLUSTER != rank) return;
        const uint2 *of_piece = &s.qkv[place_of(8 * piece)];
        keep_piece(s, of_piece, row, piece,
                   reinterpret_cast<int4 *>(key_at(l, position) + threadIdx.x / 8 * a.C) + piece);
    }
    /* The block's scores. */
    __device__ __forceinline__ void score(const Keys &keys) const {
        float q[2][8];
        const float of_new = take_query(s, lane, q);
#pragma unroll
        for (int r = 0; r < SCORE_ROUNDS; r++) {
            const int key = score_key(r);
            float of[2] = {};
#pragma unroll
            for (int k = 0; k < 8; k++) {
                of[0] = fmaf(q[0][k], keys.unpacked[r][0][k], of[0]);
                of[1] = fmaf(q[1][k], keys.unpacked[r][1][k], of[1]);
            }
            float x = key == position ? of_new : of[0] + of[1];
            x += __shfl_xor_sync(0xffffffffu, x, 1);
            x += __shfl_xor_sync(0xffffffffu, x, 2);
            if (lane % SCORE_LANES == 0)
                s.scores[key / CLUSTER] =
                    key >= key_begin && key <= position ? x * (LOG2E / 8) /* sqrt(HD) */ : NO_SCORE;
        }
    }
    /* Two channels of attention's output. */
    __device__ __forceinline__ float2 joined() const {
        float log_weight[CLUSTER], max = NO_SCORE, total = 0, x = 0, y = 0;
#pragma unroll
        for (int p = 0; p < CLUSTER; p++) {
            log_weight[p] = s.weights_of_parts[p].x;
            max = fmaxf(max, log_weight[p]);
        }
#pragma unroll
        for (int p = 0; p < CLUSTER; p++) {
            const float weight = ex2(log_weight[p] - max);
            const float2 part = *reinterpret_cast<const float2 *>(&s.parts[p][2 * lane]);
            total += weight;
            x = fmaf(weight, part.x, x);
            y = fmaf(weight, part.y, y);
        }
        const float of_total = rcp(total);
        return {rounded(x * of_total), rounded(y * of_total)};
    }

    /* ---- a layer ---- */

    __device__ __forceinline__ void attention(int l) {
        Keys keys;
        uint32_t pairs[PROJ_ROWS];
        float proj_bias;
        {
            float y[VECS][8], w[3][VECS][8];
            NormOf norm;
            wait_weights(QKV, l);
            take_rows(w, weights_of(a, s, QKV) + warp * 2 * a.C, QKV_ROWS);
            take_norm(norm, 0);
            const float bias = to_float(s.qkv_bias[min(lane / 8, 2)][warp]);
            release(QKV);
            load_keys(keys, l);
            proj_bias = take_attn_proj(pairs, l);
            if (l > 0) add_sum(2 * l - 1);
            send_stream();
            normed(y, norm, 2 * l);
            send_qkv(multiply_rows(y, w) + bias);
        }
        prefetch_keys(l + 1);
        unpack_keys(keys);
        wait_sent(&s.qkv_full, HD * (int)sizeof(uint2), l);
        cp_async_wait<0>();
        keep_new(l);
        score(keys);
        named_barrier_sync<THREADS>(1);
        weigh<CLUSTER>(s, warp, lane, rank, [](int) { return true; });
        float part[PROJ_ROWS];
        wait_sent(&s.parts_full, (int)(sizeof s.parts + sizeof s.weights_of_parts), l);
        const float2 o = joined();
#pragma unroll
        for (int r = 0; r < PROJ_ROWS; r++)
            part[r] = fmaf(bf16_low(pairs[r]), o.x, bf16_high(pairs[r]) * o.y);
        add_to_sum(2 * l, part, proj_bias);
    }
    /* Two channels of each row; the bias is returned. */
    __device__ __forceinline__ float take_attn_proj(uint32_t (&pairs)[PROJ_ROWS], int l) const {
        wait_weights(ATTN_PROJ, l);
        const uint32_t *weights = reinterpret_cast<const uint32_t *>(weights_of(a, s, ATTN_PROJ));
#pragma unroll
        for (int r = 0; r < PROJ_ROWS; r++)
            pairs[r] = r < a.NH ? weights[(warp * a.NH + r) * (HD / 2) + lane] : 0;
        const float bias = take_proj_bias(s.attn_proj_bias);
        release(ATTN_PROJ);
        return bias;
    }
    /* The same of eight channels. */
    __device__ __forceinline__ float take_mlp_proj(int4 (&rows)[PROJ_ROWS], int l) const {
        wait_weights(MLP_PROJ, l);
        const int4 *weights = reinterpret_cast<const int4 *>(weights_of(a, s, MLP_PROJ));
#pragma unroll
        for (int r = 0; r < PROJ_ROWS; r++)
            rows[r] = r < a.NH ? weights[(warp * a.NH + r) * (HIDDEN / 8) + lane] : make_int4(0, 0, 0, 0);
        const float bias = take_proj_bias(s.mlp_proj_bias);
        release(MLP_PROJ);
        return bias;
    }
    __device__ __forceinline__ void mlp(int l) {
        int4 rows[PROJ_ROWS];
        float proj_bias;
        {
            float y[VECS][8], w[WARP_FC_ROWS][VECS][8];
            NormOf norm;
            wait_weights(FC, l);
            take_rows(w, weights_of(a, s, FC) + warp * WARP_FC_ROWS * 2 * a.C, 1);
            take_norm(norm, 1);
            const float bias = to_float(s.fc_bias[warp * WARP_FC_ROWS + lane / 8]);
            release(FC);
            if (VECS < 4) proj_bias = take_mlp_proj(rows, l); /* with four, registers lack */
            add_sum(2 * l);
            send_stream();
            normed(y, norm, 2 * l + 1);
            const float h = gelu<bf16>(multiply_rows(y, w) + bias);
            const uint32_t pair = cvt_bf16x2(h, __shfl_down_sync(0xffffffffu, h, 8)),
                           next = __shfl_down_sync(0xffffffffu, pair, 16);
            if (lane < CLUSTER)
                send(&s.hidden[rank * FC_ROWS + warp * WARP_FC_ROWS], make_uint2(pair, next),
                     to_block<CLUSTER>(lane), &s.hidden_full);
        }
        if (VECS == 4) proj_bias = take_mlp_proj(rows, l);
        float part[PROJ_ROWS], w[PROJ_ROWS][8];
#pragma unroll
        for (int r = 0; r < PROJ_ROWS; r++) {
            to_floats(w[r], rows[r]);
            keep(w[r]);
        }
        float h[8];
        wait_sent(&s.hidden_full, sizeof s.hidden, l);
        to_floats(h, *reinterpret_cast<const int4 *>(&s.hidden[8 * lane]));
#pragma unroll
        for (int r = 0; r < PROJ_ROWS; r++) {
            part[r] = 0;
#pragma unroll
            for (int k = 0; k < 8; k++) part[r] = fmaf(h[k], w[r][k], part[r]);
        }
        add_to_sum(2 * l + 1, part, proj_bias);
    }

    /* ---- the head; phase: the first one of its buffers ---- */

    /* Of a tile, this warp's rows. */
    typedef int4 HeadTile[WARP_FC_ROWS][VECS];
    __device__ __forceinline__ void take_tile(HeadTile &rows, int tile, int phase) const {
        const int which = ATTN_PROJ + tile % 3;
        const char *first = s.weights + (tile % 3 * 64 + warp * WARP_FC_ROWS * 2) * a.C;
        wait_weights(which, phase + tile / 3);
#pragma unroll
        for (int r = 0; r < WARP_FC_ROWS; r++)
#pragma unroll
            for (int v = 0; v < VECS; v++)
                rows[r][v] = v < n_vecs ? *reinterpret_cast<const int4 *>(first + (r * a.C + channel(v)) * 2)
                                        : make_int4(0, 0, 0, 0);
        release(which);
    }
    /* The first tile is in registers before the stream is there, so that a fourth one comes meanwhile. The draw begins with
     * this: earlier, its polling would hold up the layers. */
    template <bool HAS_LAYERS> __device__ __forceinline__ void logits() {
        const int phase = HAS_LAYERS ? a.n_layers : 0;
        begin_next_early();
        const HeadRows own(a, blockIdx.y);
        const int n_tiles = own.n_tiles();
        int row = own.first + warp * WARP_FC_ROWS + lane / 8;
        const bool is_first = lane % 8 == 0;
        NormOf norm;
        HeadTile rows;
        float y[VECS][8];
        uint32_t largest = 0;
        int largest_row = is_first && row < own.end ? row : a.V;
        bool is_bad = false;
        wait_weights(QKV, phase);
        take_norm(norm, 0);
        if (n_tiles > 0) take_tile(rows, 0, phase);
        add_sum(2 * a.n_layers - 1);
        send_stream();
        normed<HAS_LAYERS>(y, norm, 2 * phase);
        for (int tile = 0; tile < n_tiles; tile++, row += FC_ROWS) {
            float w[WARP_FC_ROWS][VECS][8];
            if (tile > 0) take_tile(rows, tile, phase);
#pragma unroll
            for (int r = 0; r < WARP_FC_ROWS; r++)
#pragma unroll
                for (int v = 0; v < VECS; v++) to_floats(w[r][v], rows[r][v]);
            const float logit = rounded(multiply_rows(y, w));
            const bool is_own = is_first && row < own.end;
            const uint32_t key = is_own ? order_key(logit) : 0;
            if (is_own) a.logits[row] = from_float<bf16>(logit);
            largest_row = key > largest ? row : largest_row;
            largest = max(largest, key);
            is_bad |= is_own && !isfinite(logit);
        }
        tell_largest(largest, largest_row, is_bad);
    }
    /* Of this warp's logits. */
    __device__ __forceinline__ void tell_largest(uint32_t own_key, int own_row, bool is_bad) const {
        const uint32_t key = __reduce_max_sync(0xffffffffu, own_key);
        const int row = __reduce_min_sync(0xffffffffu, own_key == key ? own_row : a.V);
        const bool any_bad = __any_sync(0xffffffffu, is_bad);
        if (lane == 0)
            store_relaxed_8(&a.largest[blockIdx.y * WARPS + warp],
                            largest_word(key, row, any_bad, (uint16_t)a.launch));
    }

    /* ---- a token ---- */

    __device__ __forceinline__ void run() {
        prefetch_keys(0);
        embed();
        for (int l = 0; l < a.n_layers; l++) {
            attention(l);
            mlp(l);
        }
        logits<true>();
    }
    /* Of a cluster that has rows of the head alone. They are asked for when the first layer has its weights and its attention. */
    __device__ __forceinline__ void run_head() {
        embed();
        for (int i = 0; i < 2 * a.n_layers - 1; i++) {
            add_sum_late(i);
            for (int which = 0; which < N_WEIGHTS && i == 0; which++) release(which);
        }
        logits<false>();
    }
};

/* ---- the kernel ---- */

template <int VECS> __global__ void __launch_bounds__(BLOCK_THREADS, 1) token_kernel(TokenArgs a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    Shared &s = *reinterpret_cast<Shared *>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_WEIGHTS; i++) {
            mbarrier_init(shared_address(&s.full[i]), 1);
            mbarrier_init(shared_address(&s.empty[i]), WARPS);
        }
        init_messages(s);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        cluster_arrive(); /* the loaders need none of the other blocks */
        setmaxnreg_dec<64>();
        Loader(a, s).run((int)(threadIdx.x / WARP_SIZE) - WARPS);
    } else {
        for (int l = threadIdx.x; l < a.n_layers; l += THREADS) s.caches[l] = a.layers[l].cache;
        cluster_sync(); /* all blocks have their barriers */
        setmaxnreg_inc<216>();
        wait_for_last();
        if (has_layers(a))
            Warp<VECS>(a, s).run();
        else
            Warp<VECS>(a, s).run_head();
    }
#endif
}

typedef void (*Kernel)(TokenArgs);
static Kernel kernel_of(int C) {
    static const Kernel kernels[] = {token_kernel<1>, token_kernel<2>, token_kernel<3>, token_kernel<4>};
    return kernels[ceil_div(C, (int)ROUND) - 1];
}
static_assert(MAX_C <= 4 * ROUND, "a kernel for every width");

int token_clusters(int NH) {
    if (cuda_compute_capability() != 90 || NH > TOKEN_MAX_NH) return 0;
    const int n = clusters_at_once(kernel_of(NH * HD), CLUSTER, BLOCK_THREADS, shared_bytes(NH * HD));
    return n < NH ? 0 : min(n, MAX_WORDS / (CLUSTER * WARPS));
}

LargestArgs token_launch(const TokenArgs &args, int n_clusters) {
    launch_early("token_kernel", kernel_of(args.C), dim3(1, n_clusters * CLUSTER), BLOCK_THREADS,
                 shared_bytes(args.C), CLUSTER, args);
    return {args.largest, n_clusters * CLUSTER * WARPS, (uint16_t)args.launch, args.wte, args.C};
}
