/* The MLP's GEMMs with GELU, for sm_90a: out = gelu(x W^T + b) and dx = (dout W) gelu'(pre), bias gradient
 * included.
 *
 * GELU of a tile takes about half as long as its product. The library does one after the other (586 us of
 * which 488 are the product, on an H200 at d12); here they overlap: two consumer warpgroups multiply and put
 * the rounded product into shared memory, and while they are at the next tile three epilogue warps apply GELU
 * there, sum columns, and send the tile off by TMA. The twelfth warp is the producer.
 *
 * A tile is 128 x 256, so that shared memory feeds wgmma at 5/8 of its rate; blocks are persistent. Two blocks
 * form a cluster: neighbours in rows that share the columns, so each fetches half of B for both (TMA delivers
 * 35 bytes a clock and SM without multicast, 44 with; the tensor cores ask for up to 48). */
#include "linear_gelu_sm90.cuh"
#include "attention/sm90_common.cuh"
#include "cuda_ops.cuh"

enum {
    TILE_M = 128,
    TILE_N = 256,
    TILE_K = 64,
    STAGES = 3,
    CLUSTER = 2,
    CONSUMERS = 2, /* warpgroups, 64 rows each */
    BOX = 64,      /* rows and columns of a box of 8 KB, the unit of the epilogue */
    BOXES = TILE_N / BOX,
    BOX_ELEMS = BOX * BOX,
    THREADS = (CONSUMERS + 1) * WARPGROUP, /* more would leave wgmma's 256 columns too few registers */
    CONSUMER_REGISTERS = 200,
    OTHER_REGISTERS = 104,
    EPILOGUE_WARPS = 3,
    MAX_BIAS = 7168, /* columns whose bias fits beside the tiles */
    BATCH = 4,       /* 16-byte chunks that an epilogue lane works on together */
};
static_assert(CONSUMERS * CONSUMER_REGISTERS + OTHER_REGISTERS <= 3 * 168, "setmaxnreg");

typedef enum { GELU_FORWARD, GELU_BACKWARD } Pass;

/* Rows of 64 bf16, swizzled by TMA (ptx.cuh). b: forward (256 columns of out, 64 of k), k contiguous;
 * backward four tiles of (64 of k, 64 columns of out). */
struct alignas(1024) Shared {
    bf16 a[STAGES][TILE_M * TILE_K];
    bf16 b[STAGES][TILE_N * TILE_K];
    bf16 staging[CONSUMERS][BOXES][BOX_ELEMS]; /* the rounded product, then what GELU made of it */
    bf16 bias[MAX_BIAS];
    uint64_t full[STAGES], empty[STAGES];
    uint64_t staged[CONSUMERS], drained[CONSUMERS];
};

struct GeluArgs {
    CUtensorMap a, b, out, pre; /* (columns / 64, rows, 64); pre: forward only */
    const bf16 *bias;           /* (N) or NULL, forward */
    const bf16 *pre_gelu;       /* (M,N), backward */
    float *partials;            /* (ceil(M / BOX), N) column sums of a box, or NULL; backward */
    int M, N, K;                /* out (M,N), sum over K */
};

/* A tile of this block: all roles walk through the same list. The two blocks of a cluster take neighbours in
 * rows; tiles of the same rows follow one another, so A comes from HBM once and all of B stays in L2. */
struct Tile {
    int index, m, n; /* first row and column */
};
__device__ __forceinline__ Tile tile_at(const GeluArgs &args, int index) {
    const int across = ceil_div<int>(args.N, TILE_N);
    return {index, (index / across * CLUSTER + (int)cluster_rank()) * TILE_M, index % across * TILE_N};
}
__device__ __forceinline__ Tile first_tile(const GeluArgs &args) {
    return tile_at(args, blockIdx.x / CLUSTER);
}
__device__ __forceinline__ Tile next_tile(const GeluArgs &args, Tile tile) {
    return tile_at(args, tile.index + gridDim.x / CLUSTER);
}
__host__ __device__ inline int cluster_tiles(int M, int N) {
    return ceil_div<int>(M, TILE_M * CLUSTER) * ceil_div<int>(N, TILE_N);
}

/* ---- producer ---- */

/* One thread. A stage is free once the consumers of both blocks have left it, because both write into it. */
template <Pass PASS> __device__ __forceinline__ void produce(Shared &s, const GeluArgs &args) {
    const int rank = (int)cluster_rank(), tiles = cluster_tiles(args.M, args.N);
    constexpr uint16_t EVERY_BLOCK = (1 << CLUSTER) - 1;
    Ring<STAGES> ring;
    for (Tile tile = first_tile(args); tile.index < tiles; tile = next_tile(args, tile)) {
        for (int k = 0; k < args.K; k += TILE_K, ring.advance()) {
            const uint32_t full = shared_address(&s.full[ring.stage]);
            const uint32_t b = shared_address(s.b[ring.stage]) + rank * (int)sizeof s.b[0] / CLUSTER;
            mbarrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
            mbarrier_arrive_expect_tx(full, sizeof s.a[0] + sizeof s.b[0]);
            tma_load_3d(shared_address(s.a[ring.stage]), &args.a, 0, tile.m, k / BOX, full);
            if (PASS == GELU_FORWARD)
                tma_multicast_3d(b, &args.b, 0, tile.n + rank * TILE_N / CLUSTER, k / BOX, full, EVERY_BLOCK);
            else
                tma_multicast_3d(b, &args.b, 0, k, tile.n / BOX + rank * BOXES / CLUSTER, full, EVERY_BLOCK);
        }
    }
}

/* ---- consumers ---- */

/* d = bias of the thread's columns, or 0 */
__device__ __forceinline__ void start_sums(float (&d)[TILE_N / 2], const bf16 *bias) {
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i += 4) {
        float2 pair = {0, 0};
        if (bias) pair = __bfloat1622float2(*(const __nv_bfloat162 *)&bias[i * 2 + thread_column()]);
        d[i] = d[i + 2] = pair.x;
        d[i + 1] = d[i + 3] = pair.y;
    }
}

/* Every warp tells the producers of both blocks. */
__device__ __forceinline__ void release_stage(Shared &s, int stage) {
    __syncwarp();
    if (threadIdx.x % 32 < CLUSTER)
        mbarrier_arrive_cluster(shared_address(&s.empty[stage]), threadIdx.x % 32);
}

/* d += the 64 rows of this warpgroup times B, over all of K */
template <Pass PASS>
__device__ __forceinline__ void multiply(float (&d)[TILE_N / 2], Shared &s, Ring<STAGES> &ring, int group,
                                         int K) {
    int previous = -1;
    for (int k = 0; k < K; k += TILE_K, ring.advance()) {
        mbarrier_wait(shared_address(&s.full[ring.stage]), ring.parity);
        const uint64_t a = descriptor_k_major(shared_address(s.a[ring.stage] + group * BOX_ELEMS));
        const uint32_t b = shared_address(s.b[ring.stage]);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < TILE_K / 16; step++) {
            if (PASS == GELU_FORWARD)
                wgmma<D_ADD, B_K_MAJOR>(d, a + step * 2, descriptor_k_major(b) + step * 2);
            else
                wgmma<D_ADD, B_MN_MAJOR>(d, a + step * 2,
                                         descriptor_mn_major(b, BOX_ELEMS * 2) + step * (2048 >> 4));
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0) release_stage(s, previous);
        previous = ring.stage;
    }
    wgmma_wait<0>();
    wgmma_results(d);
    release_stage(s, previous);
}

/* The warpgroup's 64 x 256 sums, rounded, to its part of the staging area. */
__device__ __forceinline__ void stage_sums(bf16 (&staging)[BOXES][BOX_ELEMS], const float (&d)[TILE_N / 2]) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < TILE_N / 16; j++) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) r[i] = cvt_bf16x2(d[8 * j + 2 * i], d[8 * j + 2 * i + 1]);
        const int chunk = j % 4 * 2 + lane / 16;
        stmatrix_x4(shared_address(&staging[j / 4][row * BOX + (chunk ^ row % 8) * 8]), r);
    }
}

template <Pass PASS> __device__ __forceinline__ void consume(Shared &s, const GeluArgs &args, int group) {
    const int tiles = cluster_tiles(args.M, args.N);
    Ring<STAGES> ring;
    Ring<1> staging;
    float d[TILE_N / 2];
    for (Tile tile = first_tile(args); tile.index < tiles; tile = next_tile(args, tile), staging.advance()) {
        start_sums(d, PASS == GELU_FORWARD ? s.bias + tile.n : NULL);
        multiply<PASS>(d, s, ring, group, args.K);
        mbarrier_wait(shared_address(&s.drained[group]), staging.parity ^ 1);
        stage_sums(s.staging[group], d);
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&s.staged[group]));
    }
}

/* ---- epilogue ---- */

/* With the bare ex2 and rcp: 2 ulp, far below the rounding to bf16. */
struct GeluParts {
    float gate, x2; /* logistic(2u) as in gelu.cuh; x squared */
};
__device__ __forceinline__ GeluParts gelu_parts(float x) {
    const float c = -1.5957691216f * SM90_LOG2E, x2 = x * x;
    return {rcp(1.0f + ex2(x * fmaf(c * 0.044715f, x2, c))), x2};
}
__device__ __forceinline__ float fast_gelu(float x) {
    return x * gelu_parts(x).gate;
}
__device__ __forceinline__ float fast_gelu_derivative(float x) {
    const GeluParts p = gelu_parts(x);
    const float two_du = fmaf(1.5957691216f * 3 * 0.044715f, p.x2, 1.5957691216f);
    return fmaf(x * two_du, fmaf(-p.gate, p.gate, p.gate), p.gate);
}

/* A warp takes a box four rows at a time, a lane 16 bytes of one of them: always the same columns. */
struct Box {
    bf16 *shared;
    int m, n; /* where it begins in out */
};
__device__ __forceinline__ int lane_row(int step) {
    return step * 4 + threadIdx.x % 32 / 8;
}
__device__ __forceinline__ int lane_column() {
    return threadIdx.x % 8 * 8;
}
__device__ __forceinline__ bf16 *lane_chunk(const Box &box, int step) {
    const int row = lane_row(step);
    return box.shared + row * BOX + (threadIdx.x % 8 ^ row % 8) * 8;
}

__device__ __forceinline__ void store_box(const CUtensorMap &map, const Box &box) {
    if (threadIdx.x % 32 != 0) return;
    tma_store_3d(&map, 0, box.m, box.n / BOX, shared_address(box.shared));
    bulk_commit();
}

/* pre_gelu leaves as it is; then, in its place, gelu of it. */
__device__ __forceinline__ void finish_forward(const GeluArgs &args, const Box &box) {
    store_box(args.pre, box);
    for (int batch = 0; batch < BOX / 4; batch += BATCH) {
        Vec<bf16> v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float x[8];
            to_floats(x, load_vec(lane_chunk(box, batch + i)));
#pragma unroll
            for (int k = 0; k < 8; k++) v[i].v[k] = from_float<bf16>(fast_gelu(x[k]));
        }
        if (batch == 0 && threadIdx.x % 32 == 0) bulk_wait_read<0>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < BATCH; i++) store_vec(lane_chunk(box, batch + i), v[i]);
    }
}

/* A lane's chunks of pre_gelu; what is not there is 0. */
__device__ __forceinline__ void load_pre(Vec<bf16> (&pre)[BATCH], const GeluArgs &args, const Box &box,
                                         int batch) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const int row = box.m + lane_row(batch + i), column = box.n + lane_column();
        pre[i] = Vec<bf16>{};
        if (row < args.M && column < args.N)
            pre[i] = load_vec_once(args.pre_gelu + (int64_t)row * args.N + column);
    }
}

/* Brings the pre_gelu of a box to L2. */
__device__ __forceinline__ void prefetch_pre(const GeluArgs &args, const Tile &tile, int i) {
    const int n = tile.n + i % BOXES * BOX;
    for (int row = threadIdx.x % 32; row < BOX; row += 32) {
        const int m = tile.m + i / BOXES * BOX + row;
        if (m < args.M && n < args.N) prefetch_l2(args.pre_gelu + (int64_t)m * args.N + n);
    }
}

/* times gelu'(pre), in place. pre: the first batch; the next is always on its way. */
__device__ __forceinline__ void finish_backward(const GeluArgs &args, const Box &box,
                                                Vec<bf16> (&pre)[BATCH]) {
    float sum[8] = {};
    for (int batch = 0; batch < BOX / 4; batch += BATCH) {
        Vec<bf16> next[BATCH];
        if (batch + BATCH < BOX / 4) load_pre(next, args, box, batch + BATCH);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            bf16 *at = lane_chunk(box, batch + i);
            float product[8], x[8];
            Vec<bf16> out;
            to_floats(product, load_vec(at));
            to_floats(x, pre[i]);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float dx = product[k] * fast_gelu_derivative(x[k]);
                sum[k] += dx;
                out.v[k] = from_float<bf16>(dx);
            }
            store_vec(at, out);
            pre[i] = next[i];
        }
    }
    if (!args.partials) return;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], 8);
        sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], 16);
    }
    if (threadIdx.x % 32 >= 8 || box.m >= args.M || box.n >= args.N) return;
    float *to = args.partials + (int64_t)(box.m / BOX) * args.N + box.n + lane_column();
    store_vec(to, Vec<float>{
                      {sum[0], sum[1], sum[2], sum[3]}
    });
    store_vec(to + 4, Vec<float>{
                          {sum[4], sum[5], sum[6], sum[7]}
    });
}

/* Three warps take the boxes of all tiles in turns. */
template <Pass PASS> __device__ __forceinline__ void finish_tiles(Shared &s, const GeluArgs &args, int warp) {
    enum { TILE_BOXES = CONSUMERS * BOXES };
    const int tiles = cluster_tiles(args.M, args.N);
    Ring<1> staging;
    int turn = 0; /* of the tile's first box */
    for (Tile tile = first_tile(args); tile.index < tiles; tile = next_tile(args, tile), staging.advance()) {
        for (int i = (warp + EPILOGUE_WARPS - turn) % EPILOGUE_WARPS; i < TILE_BOXES; i += EPILOGUE_WARPS) {
            const int group = i / BOXES, q = i % BOXES;
            const Box box = {s.staging[group][q], tile.m + group * BOX, tile.n + q * BOX};
            Vec<bf16> pre[BATCH];
            if (PASS == GELU_BACKWARD) {
                const int next = i + EPILOGUE_WARPS;
                load_pre(pre, args, box, 0);
                if (next < TILE_BOXES)
                    prefetch_pre(args, tile, next);
                else
                    prefetch_pre(args, next_tile(args, tile), next - TILE_BOXES);
            }
            mbarrier_wait(shared_address(&s.staged[group]), staging.parity);
            if (PASS == GELU_FORWARD)
                finish_forward(args, box);
            else
                finish_backward(args, box, pre);
            fence_proxy_async();
            __syncwarp();
            store_box(args.out, box);
            if (threadIdx.x % 32 == 0) {
                bulk_wait_read<0>();
                mbarrier_arrive(shared_address(&s.drained[group]));
            }
            __syncwarp();
        }
        turn = (turn + TILE_BOXES) % EPILOGUE_WARPS;
    }
    if (threadIdx.x % 32 == 0) bulk_wait<0>();
}

/* ---- kernel ---- */

template <Pass PASS> __device__ __forceinline__ void open_shared(Shared &s, const GeluArgs &args) {
    const int columns = ceil_div<int>(args.N, TILE_N) * TILE_N;
    if (PASS == GELU_FORWARD)
        for (int i = threadIdx.x; i < columns; i += THREADS)
            s.bias[i] = args.bias && i < args.N ? args.bias[i] : bf16(0.0f);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(shared_address(&s.full[i]), 1);
            mbarrier_init(shared_address(&s.empty[i]), CLUSTER * CONSUMERS * 4);
        }
        for (int i = 0; i < CONSUMERS; i++) {
            mbarrier_init(shared_address(&s.staged[i]), 4);
            mbarrier_init(shared_address(&s.drained[i]), BOXES);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    cluster_sync(); /* nobody reaches into a block whose barriers are not ready */
}

template <Pass PASS>
__global__ void __launch_bounds__(THREADS, 1) linear_gelu_kernel(const __grid_constant__ GeluArgs args) {
#ifdef SM90_BODY
    Shared &s = shared_memory<Shared>();
    const int group = threadIdx.x / WARPGROUP;
    open_shared<PASS>(s, args);
    if (group < CONSUMERS) {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume<PASS>(s, args, group);
    } else {
        const int warp = threadIdx.x % WARPGROUP / 32;
        setmaxnreg_dec<OTHER_REGISTERS>();
        if (warp < EPILOGUE_WARPS)
            finish_tiles<PASS>(s, args, warp);
        else if (threadIdx.x % 32 == 0)
            produce<PASS>(s, args);
        __syncwarp();
    }
    cluster_sync(); /* nor into one that has gone */
#endif
}

/* ---- launch ---- */

/* A row-major (rows, columns) matrix as (columns / 64, rows, 64). A box is 64 columns of box_rows rows, for
 * `chunks` of the columns' sixty-fours one after another. */
static CUtensorMap matrix_map(const void *base, int64_t rows, int columns, int box_rows, int chunks) {
    const cuuint64_t dims[3] = {BOX, (cuuint64_t)rows, (cuuint64_t)columns / BOX};
    const cuuint64_t strides[2] = {(cuuint64_t)columns * sizeof(bf16), BOX * sizeof(bf16)};
    const cuuint32_t box[3] = {BOX, (cuuint32_t)box_rows, (cuuint32_t)chunks}, steps[3] = {1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)base, dims, strides, box,
                             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) CUDA_CHECK(cudaErrorInvalidValue);
    return map;
}

bool linear_gelu_sm90_serves(int64_t rows, int columns, int inner) {
    const int padded = ceil_div<int>(columns, TILE_N) * TILE_N;
    return cuda_compute_capability() == 90 && columns % BOX == 0 && inner % TILE_K == 0 &&
           padded <= MAX_BIAS && rows <= INT32_MAX - TILE_M * CLUSTER &&
           CLUSTER * cluster_tiles((int)rows, columns) >= cuda_sm_count();
}

template <Pass PASS> static void launch(const char *name, const GeluArgs &args) {
    static bool ready;
    const int bytes = shared_bytes<Shared>();
    const auto kernel = linear_gelu_kernel<PASS>;
    if (!ready) CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    ready = true;
    const int tiles = CLUSTER * cluster_tiles(args.M, args.N), fill = cuda_sm_count() / CLUSTER * CLUSTER;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(tiles < fill ? tiles : fill);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = main_stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
    launch_check(name);
}

void linear_gelu_forward_sm90(bf16 *out, bf16 *pre_gelu, const bf16 *x, const bf16 *weight, const bf16 *bias,
                              int64_t N, int OC, int IC) {
    GeluArgs args = {};
    args.a = matrix_map(x, N, IC, TILE_M, 1);
    args.b = matrix_map(weight, OC, IC, TILE_N / CLUSTER, 1);
    args.out = matrix_map(out, N, OC, BOX, 1);
    args.pre = matrix_map(pre_gelu, N, OC, BOX, 1);
    args.bias = bias;
    args.M = (int)N, args.N = OC, args.K = IC;
    launch<GELU_FORWARD>("linear_gelu_forward", args);
}

void linear_gelu_backward_sm90(bf16 *dx, float *dx_sums, const bf16 *dout, const bf16 *weight,
                               const bf16 *pre_gelu, void *scratch, int64_t N, int OC, int IC) {
    GeluArgs args = {};
    args.a = matrix_map(dout, N, OC, TILE_M, 1);
    args.b = matrix_map(weight, OC, IC, TILE_K, BOXES / CLUSTER);
    args.out = matrix_map(dx, N, IC, BOX, 1);
    args.pre_gelu = pre_gelu;
    args.partials = dx_sums ? (float *)scratch : NULL;
    args.M = (int)N, args.N = IC, args.K = OC;
    launch<GELU_BACKWARD>("linear_gelu_backward", args);
    if (dx_sums)
        add_partial_rows(PartialSums{{dx_sums}, 1, 1}, args.partials, (int)ceil_div<int64_t>(N, BOX), IC);
}

size_t linear_gelu_sm90_scratch_bytes(int64_t N, int IC) {
    return sizeof(float) * (size_t)ceil_div<int64_t>(N, BOX) * (size_t)IC;
}
