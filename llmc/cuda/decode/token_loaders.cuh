/* The warps of token.cu that bring weights. Their order is that of use, a layer ahead: a buffer takes the next layer's as soon
 * as this layer's are in registers, so no weight waits for a result. */
#pragma once
#include "llmc/cuda/device/early.cuh"
#include "token_shared.cuh"

struct Loader {
    const TokenArgs &a;
    Shared &s;
    const int lane, rank, head;

    __device__ __forceinline__ Loader(const TokenArgs &a_, Shared &s_)
        : a(a_), s(s_), lane(threadIdx.x % WARP_SIZE), rank(cluster_rank()), head(this_head()) {}

    /* Waits until the buffer is free, and says how much comes. */
    __device__ __forceinline__ uint32_t begin(int which, int phase, int bytes) const {
        const uint32_t full = shared_address(&s.full[which]);
        mbarrier_wait(shared_address(&s.empty[which]), (phase & 1) ^ 1);
        if (lane == 0) mbarrier_arrive_expect_tx(full, bytes);
        __syncwarp();
        return full;
    }
    __device__ __forceinline__ void norm(int which, const bf16 *weight, const bf16 *bias,
                                         uint32_t full) const {
        if (lane == 30) bulk_load(shared_address(s.norms[which].weight), weight, 2 * a.C, full);
        if (lane == 31) bulk_load(shared_address(s.norms[which].bias), bias, 2 * a.C, full);
    }
    __device__ void qkv(const DecodeLayer &layer, int l) const {
        enum { ROWS = QKV_ROWS };
        const uint32_t full = begin(QKV, l, 3 * ROWS * 2 * a.C + 4 * a.C + 3 * ROWS * 2);
        const int64_t row = lane * (int64_t)a.C + head * HD + rank * ROWS;
        norm(0, layer.ln_1_weight, layer.ln_1_bias, full);
        if (lane >= 3) return;
        bulk_load(shared_address(weights_of(a, s, QKV) + lane * ROWS * 2 * a.C), layer.qkv_weight + row * a.C,
                  ROWS * 2 * a.C, full);
        bulk_load(shared_address(s.qkv_bias[lane]), layer.qkv_bias + row, ROWS * 2, full);
    }
    /* The block's rows, COLUMNS of them from the cluster's first on. */
    template <int COLUMNS>
    __device__ void proj(int which, int l, const bf16 *weight, const bf16 *bias, bf16 *bias_to,
                         int IC) const {
        const int rows = a.C / CLUSTER;
        const uint32_t full = begin(which, l, rows * COLUMNS * 2 + rows * 2);
        const char *to = weights_of(a, s, which);
        if (lane == 0) bulk_load(shared_address(bias_to), bias + rank * rows, rows * 2, full);
        for (int row = lane; row < rows; row += WARP_SIZE)
            bulk_load(shared_address(to + row * COLUMNS * 2),
                      weight + (int64_t)(rank * rows + row) * IC + head * COLUMNS, COLUMNS * 2, full);
    }
    __device__ void fc(const DecodeLayer &layer, int l) const {
        const int first = head * HIDDEN + rank * FC_ROWS;
        const uint32_t full = begin(FC, l, FC_ROWS * 2 * a.C + 4 * a.C + FC_ROWS * 2);
        norm(1, layer.ln_2_weight, layer.ln_2_bias, full);
        if (lane > 0) return;
        bulk_load(shared_address(weights_of(a, s, FC)), layer.fc_weight + (int64_t)first * a.C,
                  FC_ROWS * 2 * a.C, full);
        bulk_load(shared_address(s.fc_bias), layer.fc_bias + first, FC_ROWS * 2, full);
    }
    /* Every third tile, to the buffer that ends with this one. The first one has QKV's place, too, which is free: a warp
     * releases ATTN_PROJ behind it. */
    __device__ void head_rows(int which) const {
        const HeadRows own(a, blockIdx.y);
        for (int tile = which - ATTN_PROJ; tile < own.n_tiles(); tile += 3) {
            const int row = own.first + tile * FC_ROWS, bytes = min((int)FC_ROWS, own.end - row) * 2 * a.C;
            const uint32_t full = begin(which, head_phase() + tile / 3, bytes);
            if (lane == 0)
                bulk_load(shared_address(s.weights + tile % 3 * 64 * a.C), a.head_weight + (int64_t)row * a.C,
                          bytes, full);
        }
    }
    /* Without layers, a warp that computes releases each buffer once before. */
    __device__ __forceinline__ int head_phase() const { return has_layers(a) ? a.n_layers : 1; }
    /* Of all blocks, a tile in each of the last layers. */
    __device__ __forceinline__ void prefetch_head() const {
        const int n = (int)gridDim.y - a.NH * CLUSTER; /* blocks without layers, of which this is one */
        for (int tile = 0; tile < L2_TILES; tile++) {
            const int sum = 2 * (a.n_layers + tile - L2_TILES) - 1;
            if (sum < 0) continue;
            wait_all(sums_of(a) + (int64_t)sum * a.C, a.NH);
            for (int block = (int)blockIdx.y - a.NH * CLUSTER + lane * n; block < (int)gridDim.y;
                 block += WARP_SIZE * n) {
                const HeadRows of(a, block);
                const int row = of.first + (HELD_TILES + tile) * FC_ROWS,
                          rows = min((int)FC_ROWS, of.end - row);
                if (rows > 0) bulk_prefetch(a.head_weight + (int64_t)row * a.C, rows * 2 * a.C);
            }
        }
    }
    /* A warp for each buffer: a copy takes 50 clocks to begin, a projection's share is C / 8 copies. */
    __device__ void run(int which) const {
        for (int l = 0; l < a.n_layers && has_layers(a); l++) {
            const DecodeLayer &layer = a.layers[l];
            if (which == QKV) qkv(layer, l);
            if (which == ATTN_PROJ)
                proj<HD>(which, l, layer.attn_proj_weight, layer.attn_proj_bias, s.attn_proj_bias, a.C);
            if (which == FC) fc(layer, l);
            if (which == MLP_PROJ)
                proj<HIDDEN>(which, l, layer.mlp_proj_weight, layer.mlp_proj_bias, s.mlp_proj_bias, 4 * a.C);
        }
        if (which == QKV) {
            wait_for_last();
            if (!has_layers(a)) prefetch_head();
            norm(0, a.ln_f_weight, a.ln_f_bias, begin(QKV, head_phase(), 4 * a.C));
            clear_sums(a, lane, WARP_SIZE);
        } else {
            head_rows(which);
        }
    }
};
