/* The MLP half of a layer (rows.cuh): a block makes 32 hidden channels of all rows, which go to all blocks of its cluster,
 * and each has its share of the second projection's channels. */
#include "llmc/cuda/ops/gelu.cuh"
#include "rows_kernels.cuh"

enum {
    CLUSTER = ROWS_BLOCKS,
    HIDDEN = 4 * DECODE_HD, /* of a cluster */
    OWN = HIDDEN / CLUSTER,
    HIDDEN_TILES = HIDDEN / TILE_COLUMNS,
    EIGHT_BYTES = 8 * ROWS_MAX * 2, /* of hidden, which is not swizzled: eight channels of all rows */
    OWN_BYTES = OWN / 8 * EIGHT_BYTES
};

template <int NH> struct MlpShared {
    enum {
        X_BYTES = NH * TILE_BYTES,
        FC_BYTES = NH * OWN * ROW_BYTES,
        PROJ_BYTES = HIDDEN_TILES * ROWS_OF_BLOCK * NH * ROW_BYTES,
        HIDDEN_BYTES = CLUSTER * OWN_BYTES
    };
    alignas(1024) char x[X_BYTES];
    char fc[FC_BYTES], hidden[HIDDEN_BYTES], proj[PROJ_BYTES];
    uint64_t x_full[NH], hidden_full;
};

/* The block's hidden channels, by the first warpgroup: to all blocks. */
template <int NH>
__device__ __forceinline__ void make_hidden(MlpShared<NH> &s, const float2 (&bias)[OWN / 8]) {
    char *own = s.hidden + cluster_rank() * OWN_BYTES;
    float d[OWN / 2];
    multiply_x<NH, ROWS_MAX>(d, s.x, s.fc, s.x_full);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < OWN / 8; j++)
            *reinterpret_cast<uint32_t *>(own + j * EIGHT_BYTES + (thread_row() + 8 * half) * 16 +
                                          2 * thread_column()) =
                cvt_bf16x2(gelu<bf16>(d[4 * j + 2 * half] + bias[j].x),
                           gelu<bf16>(d[4 * j + 2 * half + 1] + bias[j].y));
    fence_proxy_async();
    named_barrier_sync<WARPGROUP>(1);
    if (threadIdx.x < CLUSTER - 1)
        copy_to_block(own, own, OWN_BYTES, &s.hidden_full, other_block<CLUSTER>(threadIdx.x));
}

template <int NH> __device__ __forceinline__ void load_proj(MlpShared<NH> &s, const DecodeLayer &layer) {
    constexpr int C = NH * DECODE_HD;
    load_weight<ROWS_OF_BLOCK * NH, HIDDEN_TILES>(
        s.proj, layer.mlp_proj_weight + blockIdx.y / CLUSTER * HIDDEN, 4 * C,
        [&](int r) { return (int)cluster_rank() * (C / CLUSTER) + r; });
}

template <int NH>
__global__ void __launch_bounds__(ROWS_THREADS, 1) rows_mlp_kernel(RowsArgs a, DecodeLayer layer) {
#ifdef SM90_BODY
    typedef MlpShared<NH> S;
    constexpr int C = NH * DECODE_HD;
    static_assert(sizeof(S) <= ROWS_SHARED_LIMIT, "room for a norm");
    S &s = shared_memory<S>();
    const int first = blockIdx.y * OWN; /* of the hidden channels */
    if (threadIdx.x == 0) {
        expect_x<NH, ROWS_MAX>(s.x_full);
        mbarrier_init(shared_address(&s.hidden_full), 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(shared_address(&s.hidden_full), S::HIDDEN_BYTES - OWN_BYTES);
    }
    cluster_arrive();
    load_weight<OWN, NH>(s.fc, layer.fc_weight, C, [&](int r) { return first + r; });
    load_proj(s, layer);
    float2 bias[OWN / 8];
#pragma unroll
    for (int j = 0; j < OWN / 8; j++) bias[j] = pair_of(layer.fc_bias + first + 8 * j + thread_column());
    cluster_wait(); /* all blocks have their barriers */
    wait_early();
    if (threadIdx.x == WARPGROUP) multicast_x<NH, CLUSTER, ROWS_MAX>(s.x, a.x, 0, s.x_full);
    wait_weights<1>();
    if (threadIdx.x < WARPGROUP) make_hidden<NH>(s, bias);
    wait_weights<0>(); /* and this block's channels are there */
    mbarrier_wait(shared_address(&s.hidden_full), 0);
    cluster_arrive(); /* what others have sent is here */
    const uint32_t hidden = uniform_descriptor(shared_address(s.hidden));
    multiply_part<NH, CLUSTER, ROWS_MAX, HIDDEN>(a, s.proj, s.fc, blockIdx.y / CLUSTER, 0, [&](int k) {
        return unswizzled(hidden + k * (2 * EIGHT_BYTES >> 4), EIGHT_BYTES);
    });
    cluster_wait(); /* what this block has sent has been read */
#endif
}

template <int NH> static constexpr RowsLaunch launch = {rows_mlp_kernel<NH>, CLUSTER, sizeof(MlpShared<NH>)};
static const RowsLaunch launches[] = FOR_HEADS(launch);

bool rows_mlp_fits(int NH) {
    return run_at_once(launches, NH);
}

void rows_mlp(const RowsArgs &a, const DecodeLayer &layer) {
    launch_rows("rows_mlp", launches, a, layer);
}
