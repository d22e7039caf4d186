/* The MLP's first layer for sm_90a: pre_gelu = x W^T + b and out = gelu(pre_gelu) in one kernel.
 *
 * GELU of a tile and its way to memory take about half as long as its product. The library does one after the
 * other; here they overlap: two consumer warpgroups multiply and put the rounded product into shared memory,
 * and while they are at the next tile three epilogue warps send it off by TMA, apply GELU in place, and send
 * that. The twelfth warp is the producer.
 *
 * On an H200, 65536 x 768 -> 3072: 572 to 583 us; in the same run the library's epilogue 615 (the best of its
 * algorithms; its first choice 657), its product with bias alone 507. The same structure for dx = (dout W)
 * gelu'(pre_gelu) with column sums took 765 us, the library's epilogue and a pass for the sums 722: it has to
 * fetch pre_gelu as well. So only this half is here.
 *
 * A tile is 128 x 256, so that shared memory feeds wgmma at 5/8 of its rate; blocks are persistent. Two
 * blocks form a cluster: neighbours in rows that share the columns, so each fetches half of W for both (TMA
 * delivers 35 bytes a clock and SM without multicast, 44 with; the tensor cores ask for up to 48). */
#include "linear_gelu_sm90.cuh"
#include "attention/sm90_common.cuh"
#include "cuda_ops.cuh"
#include "gelu.cuh"

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

/* Rows of 64 bf16, swizzled by TMA (ptx.cuh). */
struct alignas(1024) Shared {
    bf16 a[STAGES][TILE_M * TILE_K];
    bf16 b[STAGES][TILE_N * TILE_K];
    bf16 staging[CONSUMERS][BOXES][BOX_ELEMS]; /* pre_gelu, then out */
    bf16 bias[MAX_BIAS];
    uint64_t full[STAGES], empty[STAGES];
    uint64_t staged[CONSUMERS], drained[CONSUMERS];
};

struct GeluArgs {
    CUtensorMap x, weight, out, pre_gelu; /* (columns / 64, rows, 64) */
    const bf16 *bias;                     /* (OC) or NULL */
    int N, OC, IC;
};

/* A tile of this block: all roles walk through the same list. The two blocks of a cluster take neighbours in
 * rows; tiles of the same rows follow one another, so x comes from HBM once and W stays in L2. */
struct Tile {
    int index, m, n; /* first row and column */
};
__device__ __forceinline__ Tile tile_at(const GeluArgs &args, int index) {
    const int across = ceil_div<int>(args.OC, TILE_N);
    return {index, (index / across * CLUSTER + (int)cluster_rank()) * TILE_M, index % across * TILE_N};
}
__device__ __forceinline__ Tile first_tile(const GeluArgs &args) {
    return tile_at(args, blockIdx.x / CLUSTER);
}
__device__ __forceinline__ Tile next_tile(const GeluArgs &args, Tile tile) {
    return tile_at(args, tile.index + gridDim.x / CLUSTER);
}
__host__ __device__ inline int cluster_tiles(int N, int OC) {
    return ceil_div<int>(N, TILE_M * CLUSTER) * ceil_div<int>(OC, TILE_N);
}

/* ---- producer ---- */

/* One thread. A stage is free once the consumers of both blocks have left it, because both write into it. */
__device__ __forceinline__ void produce(Shared &s, const GeluArgs &args) {
    const int rank = (int)cluster_rank(), tiles = cluster_tiles(args.N, args.OC);
    constexpr uint16_t EVERY_BLOCK = (1 << CLUSTER) - 1;
    Ring<STAGES> ring;
    for (Tile tile = first_tile(args); tile.index < tiles; tile = next_tile(args, tile)) {
        for (int k = 0; k < args.IC; k += TILE_K, ring.advance()) {
            const uint32_t full = shared_address(&s.full[ring.stage]);
            const uint32_t b = shared_address(s.b[ring.stage]) + rank * (int)sizeof s.b[0] / CLUSTER;
            mbarrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
            mbarrier_arrive_expect_tx(full, sizeof s.a[0] + sizeof s.b[0]);
            tma_load_3d(shared_address(s.a[ring.stage]), &args.x, 0, tile.m, k / BOX, full);
            tma_multicast_3d(b, &args.weight, 0, tile.n + rank * TILE_N / CLUSTER, k / BOX, full,
                             EVERY_BLOCK);
        }
    }
}

/* ---- consumers ---- */

/* d = bias of the thread's columns */
__device__ __forceinline__ void start_sums(float (&d)[TILE_N / 2], const bf16 *bias) {
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i += 4) {
        const float2 pair = __bfloat1622float2(*(const __nv_bfloat162 *)&bias[i * 2 + thread_column()]);
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

/* d += the 64 rows of this warpgroup times W^T, over all of IC */
__device__ __forceinline__ void multiply(float (&d)[TILE_N / 2], Shared &s, Ring<STAGES> &ring, int group,
                                         int IC) {
    int previous = -1;
    for (int k = 0; k < IC; k += TILE_K, ring.advance()) {
        mbarrier_wait(shared_address(&s.full[ring.stage]), ring.parity);
        const uint64_t a = descriptor_k_major(shared_address(s.a[ring.stage] + group * BOX_ELEMS));
        const uint64_t b = descriptor_k_major(shared_address(s.b[ring.stage]));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < TILE_K / 16; step++) /* 16 of k are 32 bytes, two units of a descriptor */
            wgmma<D_ADD, B_K_MAJOR>(d, a + step * 2, b + step * 2);
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

__device__ __forceinline__ void consume(Shared &s, const GeluArgs &args, int group) {
    const int tiles = cluster_tiles(args.N, args.OC);
    Ring<STAGES> ring;
    Ring<1> staging;
    float d[TILE_N / 2];
    for (Tile tile = first_tile(args); tile.index < tiles; tile = next_tile(args, tile), staging.advance()) {
        start_sums(d, s.bias + tile.n);
        multiply(d, s, ring, group, args.IC);
        mbarrier_wait(shared_address(&s.drained[group]), staging.parity ^ 1);
        stage_sums(s.staging[group], d);
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&s.staged[group]));
    }
}

/* ---- epilogue ---- */

/* A warp takes a box four rows at a time, a lane 16 bytes of one of them. */
struct Box {
    bf16 *shared;
    int m, n; /* where it begins in out */
};
__device__ __forceinline__ bf16 *lane_chunk(const Box &box, int step) {
    const int row = step * 4 + threadIdx.x % 32 / 8;
    return box.shared + row * BOX + (threadIdx.x % 8 ^ row % 8) * 8;
}

__device__ __forceinline__ void store_box(const CUtensorMap &map, const Box &box) {
    if (threadIdx.x % 32 != 0) return;
    tma_store_3d(&map, 0, box.m, box.n / BOX, shared_address(box.shared));
    bulk_commit();
}

/* pre_gelu leaves; then, in its place, gelu of it. */
__device__ __forceinline__ void finish_box(const GeluArgs &args, const Box &box) {
    store_box(args.pre_gelu, box);
    for (int batch = 0; batch < BOX / 4; batch += BATCH) {
        Vec<bf16> v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float x[8];
            to_floats(x, load_vec(lane_chunk(box, batch + i)));
#pragma unroll
            for (int k = 0; k < 8; k++) v[i].v[k] = from_float<bf16>(gelu<bf16>(x[k]));
        }
        if (batch == 0 && threadIdx.x % 32 == 0) bulk_wait_read<0>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < BATCH; i++) store_vec(lane_chunk(box, batch + i), v[i]);
    }
}

/* Three warps take the boxes of all tiles in turns. */
__device__ __forceinline__ void finish_tiles(Shared &s, const GeluArgs &args, int warp) {
    enum { TILE_BOXES = CONSUMERS * BOXES };
    const int tiles = cluster_tiles(args.N, args.OC);
    Ring<1> staging;
    int turn = 0; /* of the tile's first box */
    for (Tile tile = first_tile(args); tile.index < tiles; tile = next_tile(args, tile), staging.advance()) {
        for (int i = (warp + EPILOGUE_WARPS - turn) % EPILOGUE_WARPS; i < TILE_BOXES; i += EPILOGUE_WARPS) {
            const int group = i / BOXES, q = i % BOXES;
            const Box box = {s.staging[group][q], tile.m + group * BOX, tile.n + q * BOX};
            mbarrier_wait(shared_address(&s.staged[group]), staging.parity);
            finish_box(args, box);
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

__device__ __forceinline__ void open_shared(Shared &s, const GeluArgs &args) {
    const int columns = ceil_div<int>(args.OC, TILE_N) * TILE_N;
    for (int i = threadIdx.x; i < columns; i += THREADS)
        s.bias[i] = args.bias && i < args.OC ? args.bias[i] : bf16(0.0f);
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

__global__ void __launch_bounds__(THREADS, 1) linear_gelu_kernel(const __grid_constant__ GeluArgs args) {
#ifdef SM90_BODY
    Shared &s = shared_memory<Shared>();
    const int group = threadIdx.x / WARPGROUP;
    open_shared(s, args);
    if (group < CONSUMERS) {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume(s, args, group);
    } else {
        const int warp = threadIdx.x % WARPGROUP / 32;
        setmaxnreg_dec<OTHER_REGISTERS>();
        if (warp < EPILOGUE_WARPS)
            finish_tiles(s, args, warp);
        else if (threadIdx.x % 32 == 0)
            produce(s, args);
        __syncwarp();
    }
    cluster_sync(); /* nor into one that has gone */
#endif
}

/* ---- launch ---- */

/* A row-major (rows, columns) matrix as (columns / 64, rows, 64); a box is 64 columns of box_rows rows. */
static CUtensorMap matrix_map(const void *base, int64_t rows, int columns, int box_rows) {
    const cuuint64_t dims[3] = {BOX, (cuuint64_t)rows, (cuuint64_t)columns / BOX};
    const cuuint64_t strides[2] = {(cuuint64_t)columns * sizeof(bf16), BOX * sizeof(bf16)};
    const cuuint32_t box[3] = {BOX, (cuuint32_t)box_rows, 1};
    return encode_tiles(base, 3, dims, strides, box);
}

bool linear_gelu_sm90_serves(int64_t N, int OC, int IC) {
    const int padded = ceil_div<int>(OC, TILE_N) * TILE_N;
    return cuda_compute_capability() == 90 && OC % BOX == 0 && IC % TILE_K == 0 && padded <= MAX_BIAS &&
           N <= INT32_MAX - TILE_M * CLUSTER && CLUSTER * cluster_tiles((int)N, OC) >= cuda_sm_count();
}

static void launch(const GeluArgs &args) {
    static bool ready;
    const int bytes = shared_bytes<Shared>();
    if (!ready)
        CUDA_CHECK(
            cudaFuncSetAttribute(linear_gelu_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    ready = true;
    const int tiles = CLUSTER * cluster_tiles(args.N, args.OC);
    const int fill = cuda_sm_count() / CLUSTER * CLUSTER;
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
    CUDA_CHECK(cudaLaunchKernelEx(&config, linear_gelu_kernel, args));
    launch_check("linear_gelu");
}

void linear_gelu_sm90(bf16 *out, bf16 *pre_gelu, const bf16 *x, const bf16 *weight, const bf16 *bias,
                      int64_t N, int OC, int IC) {
    GeluArgs args = {};
    args.x = matrix_map(x, N, IC, TILE_M);
    args.weight = matrix_map(weight, OC, IC, TILE_N / CLUSTER);
    args.out = matrix_map(out, N, OC, BOX);
    args.pre_gelu = matrix_map(pre_gelu, N, OC, BOX);
    args.bias = bias;
    args.N = (int)N;
    args.OC = OC;
    args.IC = IC;
    launch(args);
}
