/* What the sm_90a attention kernels share: TMA maps, rings of barriers, accumulator fragments.
 *
 * All kernels here have one shape: persistent blocks, one per SM; one producer thread (a cluster of blocks may share
 * it: sm90_cluster.cuh) that fetches tiles by TMA into rings of shared memory; consumer warpgroups that own 64 rows
 * each and multiply with wgmma (backward of head sizes 64 and 80 has one more, which owns none and computes dQ). Every stage
 * of a ring has two mbarriers: `full` completes when TMA has written it, `empty` when every consumer warp has
 * released it (a few have others, said at their init). Each warp waits on `full` itself and arrives on `empty`
 * itself, in the order of the stages and also for stages that it skips, so no barrier can get more than one
 * phase ahead of any warp and one parity bit tells the phases apart. */
#pragma once
#include <math_constants.h>
#include <cudaTypedefs.h>
#include "llmc/cuda/device/cuda_common.cuh"
#include "llmc/cuda/ptx/wgmma.cuh"

/* The kernels' bodies exist only in sm_90a code: wgmma and setmaxnreg are in no other. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SM90_BODY 1
#endif

enum { WARPGROUP = 128, WG_ROWS = 64 /* rows of a warpgroup: M of wgmma */, SM90_SHARED_LIMIT = 227 * 1024 };

/* One row of a kernel's shape table. Results do not depend on it beyond fp32 rounding. */
typedef struct Sm90Shape {
    int warpgroups;         /* consumers, 64 rows each */
    int columns;            /* rows of the other matrices fetched at a time: N of the scores */
    int stages;             /* ring of those */
    int own_buffers;        /* of the rows that the warpgroups own: 2 lets the next tile's load run ahead */
    int registers;          /* per consumer thread */
    int producer_registers; /* per producer thread */
    bool flag;              /* the table says what it means; backward has no use for it */
} Sm90Shape;

constexpr int sm90_threads(Sm90Shape s) {
    return (s.warpgroups + 1) * WARPGROUP;
}

/* An SM has 65536 registers; at launch every thread gets the same number, a multiple of 8, and setmaxnreg can
 * only move those about. */
constexpr bool sm90_registers_fit(Sm90Shape s) {
    const int at_launch = 65536 / sm90_threads(s) / 8 * 8;
    return s.registers % 8 == 0 && s.registers <= 256 && s.producer_registers % 8 == 0 &&
           s.producer_registers >= 24 &&
           s.warpgroups * s.registers + s.producer_registers <= (s.warpgroups + 1) * at_launch;
}

/* ---- rings ---- */

template <int STAGES> struct Ring {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ Ring next() const {
        Ring r = *this;
        r.advance();
        return r;
    }
};

/* Where a ring of two is that advances with every step. */
__device__ __forceinline__ Ring<2> ring_after(int steps) {
    return {steps & 1, (uint32_t)(steps >> 1 & 1)};
}

template <int STAGES> struct RingBarriers {
    uint64_t full[STAGES], empty[STAGES];

    /* writers: threads that arrive on `full`; one where TMA writes. */
    __device__ __forceinline__ void init(int consumer_warps, int writers = 1) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(shared_address(&full[i]), writers);
            mbarrier_init(shared_address(&empty[i]), consumer_warps);
        }
    }
    /* Producer: wait until the stage is free; then say how many bytes TMA will write. What the producer
     * itself writes for the consumers goes in between. Returns the barrier that TMA reports to. */
    __device__ __forceinline__ void wait_free(Ring<STAGES> at) {
        mbarrier_wait(shared_address(&empty[at.stage]), at.parity ^ 1);
    }
    __device__ __forceinline__ uint32_t expect(Ring<STAGES> at, uint32_t bytes) {
        const uint32_t barrier = shared_address(&full[at.stage]);
        mbarrier_arrive_expect_tx(barrier, bytes);
        return barrier;
    }
    __device__ __forceinline__ uint32_t acquire(Ring<STAGES> at, uint32_t bytes) {
        wait_free(at);
        return expect(at, bytes);
    }
    /* Consumers: every lane waits; one arrives for its warp, which must have converged since its last access.
     */
    __device__ __forceinline__ void wait(Ring<STAGES> at) {
        mbarrier_wait(shared_address(&full[at.stage]), at.parity);
    }
    __device__ __forceinline__ void release(Ring<STAGES> at) {
        __syncwarp(); /* lane 0's arrival then stands for the reads of all 32 */
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&empty[at.stage]));
    }
};

/* ---- TMA maps ---- */

/* Columns of a swizzled tile: 64 with the 128-byte swizzle; 16 with the 32-byte one, in which a head that is a multiple of 16
 * needs no padding. */
enum { SW128_COLUMNS = 64, SW32_COLUMNS = 16 };

/* Columns of a head in shared memory: whole tiles of 64. Those beyond the head size are 0. */
constexpr int tile_columns(int HD) {
    return (HD + 63) / 64 * 64;
}

/* A packed tensor (B,T,n_heads,HD) of bf16 seen as (B, n_heads, HD/64, T, 64), the last the fastest: a box is
 * 64 columns of `box_rows` positions of one head, for each 64 columns of the head, one swizzled tile after
 * another. T ends with its own sequence, so a box that passes the end gets zeros.
 * Other head sizes: (B, n_heads, 1, T, columns), `columns` of the head from `base` on. A box is 64 columns, the last of a
 * head's boxes with zeros beyond them. In tiles of 16 columns (atom) a head is seen as those of whole tiles, 16 for 64.
 * Pairs: of T that is a multiple of 16 and heads of whole tiles. A box of 16 positions has the 8 even ones and then the odd; it
 * may reach into the next sequence. Seen as (HD/64, B T/16, 2, 8, n_heads HD), of which a box begins at its head. */
typedef struct MapKey {
    const void *base;
    int B, T, n_heads, HD, box_rows, columns, atom;
    bool pairs;
} MapKey;

inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    if (encode) return encode;
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &found));
#else
    CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found));
#endif
    if (found != cudaDriverEntryPointSuccess || !function) CUDA_CHECK(cudaErrorNotSupported);
    encode = (PFN_cuTensorMapEncodeTiled_v12000)function;
    return encode;
}

/* A map of bf16 in boxes that are swizzled tiles of box[0] columns. dims and box (rank), the fastest first; strides
 * (rank - 1) in bytes, of all but the fastest. */
inline CUtensorMap encode_tiles(const void *base, int rank, const cuuint64_t *dims, const cuuint64_t *strides,
                                const cuuint32_t *box) {
    const CUtensorMapSwizzle swizzle =
        box[0] == SW32_COLUMNS ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_128B;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)base, dims,
                             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) CUDA_CHECK(cudaErrorInvalidValue);
    return map;
}

inline CUtensorMap encode_map(const MapKey &key) {
    const cuuint64_t position = (cuuint64_t)key.n_heads * key.HD * 2;
    const bool whole = key.HD % key.atom == 0;
    const cuuint32_t atom = (cuuint32_t)key.atom, tiles = whole ? key.HD / atom : 1;
    const cuuint64_t dims[5] = {whole ? atom : (cuuint64_t)key.columns, (cuuint64_t)key.T, tiles,
                                (cuuint64_t)key.n_heads, (cuuint64_t)key.B};
    const cuuint64_t strides[4] = {position, 2 * atom, (cuuint64_t)key.HD * 2, position * key.T};
    const cuuint32_t box[5] = {atom, (cuuint32_t)key.box_rows, tiles, 1, 1};
    return encode_tiles(key.base, 5, dims, strides, box);
}
inline CUtensorMap encode_pairs_map(const MapKey &key) {
    const cuuint64_t position = (cuuint64_t)key.n_heads * key.HD * 2;
    const cuuint32_t tiles = key.HD / SW128_COLUMNS;
    const cuuint64_t dims[5] = {position / 2, 8, 2, (cuuint64_t)key.B * key.T / 16, tiles};
    const cuuint64_t strides[4] = {2 * position, position, 16 * position, 2 * SW128_COLUMNS};
    const cuuint32_t box[5] = {SW128_COLUMNS, 8, 2, (cuuint32_t)key.box_rows / 16, tiles};
    return encode_tiles(key.base, 5, dims, strides, box);
}

/* Encoding is host work at every launch, so the last map of each slot is kept. A map is a function of its key
 * alone: it stays right when memory is freed and given out again. */
inline const CUtensorMap &part_map(const void *base, int B, int T, int n_heads, int HD, int box_rows,
                                   int columns, int atom = SW128_COLUMNS, bool pairs = false) {
    enum { SLOTS = 1024 };
    static struct {
        MapKey key;
        CUtensorMap map;
    } slots[SLOTS];
    const MapKey key = {base, B, T, n_heads, HD, box_rows, columns, atom, pairs};
    const uint64_t mixed = ((uint64_t)base >> 8) * 31 + (uint64_t)T * 7 + B * 131 + n_heads * 17 + HD +
                           box_rows * 3 + columns * 5 + atom * 11 + pairs * 13;
    auto &slot = slots[mixed * 0x9e3779b97f4a7c15ull >> 54];
    const MapKey &old = slot.key;
    if (old.base != base || old.B != B || old.T != T || old.n_heads != n_heads || old.HD != HD ||
        old.box_rows != box_rows || old.columns != columns || old.atom != atom || old.pairs != pairs) {
        slot.map = pairs ? encode_pairs_map(key) : encode_map(key);
        slot.key = key;
    }
    return slot.map;
}
inline const CUtensorMap &tensor_map(const void *base, int B, int T, int n_heads, int HD, int box_rows,
                                     int atom = SW128_COLUMNS, bool pairs = false) {
    return part_map(base, B, T, n_heads, HD, box_rows, HD, atom, pairs);
}

/* ---- shared memory ---- */

/* The block's dynamic shared memory, from its first multiple of 1024 bytes on. */
template <typename Shared> __device__ __forceinline__ Shared &shared_memory() {
    extern __shared__ __align__(1024) uint8_t dynamic_shared[];
    const uint32_t address = shared_address(dynamic_shared);
    return *reinterpret_cast<Shared *>(dynamic_shared + ((1024 - address % 1024) % 1024));
}
template <typename Shared> constexpr int shared_bytes() {
    static_assert(sizeof(Shared) <= SM90_SHARED_LIMIT, "fits the SM");
    /* with room to align; whoever takes all there is needs none: it begins at a multiple of 1024 */
    return sizeof(Shared) + 1023 <= SM90_SHARED_LIMIT ? sizeof(Shared) + 1023 : (int)SM90_SHARED_LIMIT;
}

/* The same object at an address that has gone through a shuffle, for kernels whose warps have one role each: the
 * compiler then keeps it, and every descriptor and barrier that follows from it, in uniform registers. */
__device__ __forceinline__ uint32_t uniform_address(uint32_t address) {
    const uint32_t lane = threadIdx.x % 32; /* or the shuffle would be seen to do nothing */
    return __shfl_sync(0xffffffffu, address + lane, 0);
}
template <typename Shared> __device__ __forceinline__ Shared &at_uniform_address(Shared &shared) {
    return *static_cast<Shared *>(__cvta_shared_to_generic(uniform_address(shared_address(&shared))));
}

/* Matrix descriptors (PTX ISA, "Matrix descriptor"), for swizzled tiles. The 64-bit value
 * counts in units of 16 bytes: add bytes / 16 to step. k contiguous ("K-major"): the next 16 of k are 32
 * bytes on (inside a tile: step_of_columns). m or n contiguous ("MN-major"): the next 16 of k are 16 rows on;
 * chunk_bytes: from ATOM_COLUMNS columns to the next. */
template <int ATOM_COLUMNS = SW128_COLUMNS>
__device__ __forceinline__ uint64_t descriptor_k_major(uint32_t tile) {
    constexpr uint64_t SWIZZLE = ATOM_COLUMNS == SW128_COLUMNS ? 1 : 3 /* 128 bytes, 32 */,
                       EIGHT_ROWS = 8 * ATOM_COLUMNS * 2;
    return SWIZZLE << 62 | (EIGHT_ROWS >> 4) << 32 | ((tile & 0x3ffff) >> 4);
}
template <int ATOM_COLUMNS = SW128_COLUMNS>
__device__ __forceinline__ uint64_t descriptor_mn_major(uint32_t tile, uint32_t chunk_bytes) {
    return descriptor_k_major<ATOM_COLUMNS>(tile) | ((uint64_t)(chunk_bytes >> 4) << 16);
}
/* K-major: what step i of 16 columns adds, in tiles of `rows` rows. */
template <int ATOM_COLUMNS> constexpr int step_of_columns(int i, int rows) {
    return i / (ATOM_COLUMNS / 16) * (rows * ATOM_COLUMNS * 2 >> 4) + i % (ATOM_COLUMNS / 16) * 2;
}
/* Bytes from a tile's start to a 16-byte chunk of a row. */
template <int ATOM_COLUMNS> __device__ __forceinline__ uint32_t swizzled_at(int row, int chunk) {
    return row * (ATOM_COLUMNS * 2) + (chunk ^ (ATOM_COLUMNS == SW128_COLUMNS ? row & 7 : row >> 2 & 1)) * 16;
}
/* No swizzle, K-major: blocks of 8 rows x 16 bytes, 128 bytes each, one after another; k_bytes: from 8 of k
 * to the next 8. */
__device__ __forceinline__ uint64_t descriptor_unswizzled(uint32_t tile, uint32_t k_bytes) {
    return ((uint64_t)(128 >> 4) << 32) | ((uint64_t)(k_bytes >> 4) << 16) | ((tile & 0x3ffff) >> 4);
}

/* A place in shared memory as the low half of a matrix descriptor. It is the same for all threads of a warp,
 * and the compiler must know: descriptors are uniform registers, and converting each costs 12 instructions. */
__device__ __forceinline__ uint32_t uniform_descriptor(uint32_t address) {
    return __shfl_sync(0xffffffffu, (address & 0x3ffff) >> 4, 0);
}
/* Swizzled tiles of 64 columns, as descriptor_k_major and descriptor_mn_major; without swizzle, as descriptor_unswizzled. */
__device__ __forceinline__ uint64_t swizzled(uint32_t place) {
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | place;
}
__device__ __forceinline__ uint64_t unswizzled(uint32_t place, uint32_t k_bytes) {
    return (uint64_t)(128 >> 4) << 32 | (place + (k_bytes << 12));
}

/* When a launch may begin: once all before it are done, or as early as the launch before lets it
 * (launch_dependents); its kernel then calls wait_on_dependency before it reads what that launch writes. */
typedef enum LaunchStart { START_AFTER, START_EARLY } LaunchStart;

/* Launches a persistent kernel: one block per SM, or per tile if there are fewer, in clusters of `cluster` blocks. */
template <typename Args>
static void launch_persistent(const char *name, void (*kernel)(Args), const Args &args, int tiles,
                              int threads, int bytes, LaunchStart start = START_AFTER, int cluster = 1) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = start == START_EARLY;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(tiles < cuda_sm_count() ? tiles : cuda_sm_count() / cluster * cluster);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = main_stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
    launch_check(name);
}

/* ---- fragments: index i of an accumulator is row 8 * (i/2%2), column 8 * (i/4) + i%2 from the thread's
 * first ---- */

__device__ __forceinline__ int thread_row() {
    return threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
}
/* The same where rows i and i + 8 of 16 are neighbours, 2 i and 2 i + 1. */
__device__ __forceinline__ int thread_pair_row() {
    return threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4 * 2;
}
__device__ __forceinline__ int thread_column() {
    return threadIdx.x % 4 * 2;
}

/* Accumulators to the A operand of the next product. */
template <int N> __device__ __forceinline__ void pack(uint32_t (&a)[N / 8][4], const float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) a[i / 4][i % 4] = cvt_bf16x2(c[2 * i], c[2 * i + 1]);
}

/* Sum over the four threads that share a row. */
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* r[i] of thread t of a quad becomes r[t] of thread i. */
__device__ __forceinline__ void quad_transpose(uint32_t (&r)[4]) {
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & distance) continue;
            const uint32_t sent = upper ? r[i] : r[i + distance];
            const uint32_t received = __shfl_xor_sync(0xffffffffu, sent, distance);
            r[i] = upper ? received : r[i];
            r[i + distance] = upper ? r[i + distance] : received;
        }
    }
}

/* Rounds a warpgroup's 64 x 2N accumulators, times a factor per row, to bf16 and writes them 16 bytes at a
 * time. to: where the warpgroup's first row goes; rows at or beyond `rows` are left alone. */
template <int N>
__device__ __forceinline__ void store_rows(bf16 *to, int64_t stride, int rows, const float (&c)[N],
                                           const float (&factor)[2]) {
    const int row = thread_row();
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int block = 0; block < N / 4; block += 4) {
            uint32_t r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = (block + i) * 4 + 2 * half;
                r[i] = cvt_bf16x2(c[at] * factor[half], c[at + 1] * factor[half]);
            }
            quad_transpose(r);
            if (row + 8 * half < rows)
                *reinterpret_cast<uint4 *>(to + (row + 8 * half) * stride + (block + threadIdx.x % 4) * 8) =
                    make_uint4(r[0], r[1], r[2], r[3]);
        }
}

/* The same of a warp's 16 rows, by TMA. map: boxes of 16 rows; position: of the first of them; what lies
 * beyond the sequence or the head is not written. PAIRS: the thread's rows are those of thread_pair_row(). buffer: the warp's own,
 * a multiple of 1024, of 256 in tiles of 16 columns; TMA reads it until bulk_wait_read in lane 0. */
template <int ATOM_COLUMNS = SW128_COLUMNS, bool PAIRS = false, int N>
__device__ __forceinline__ void tma_store_rows(const CUtensorMap *map, uint32_t buffer, const float (&c)[N],
                                               const float (&factor)[2], int position, int head, int batch) {
    const int lane = threadIdx.x % 32, half = lane / 16;
    const int row = PAIRS ? lane % 8 * 2 + lane / 8 % 2 : lane % 16;
#pragma unroll
    for (int block = 0; block < N / 4; block += 2) {
        constexpr int CHUNKS = ATOM_COLUMNS / 8;
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = (block + i / 2) * 4 + i % 2 * 2;
            r[i] = cvt_bf16x2(c[at] * factor[i % 2], c[at + 1] * factor[i % 2]);
        }
        stmatrix_x4(buffer + block / CHUNKS * (16 * ATOM_COLUMNS * 2) +
                        swizzled_at<ATOM_COLUMNS>(row, block % CHUNKS + half),
                    r);
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        constexpr int BOXES = ATOM_COLUMNS == SW128_COLUMNS && N % 32 ? (N + 31) / 32 : 1;
#pragma unroll
        for (int i = 0; i < BOXES; i++)
            tma_store_5d(map, 64 * i, position, 0, head, batch, buffer + i * 2048);
        bulk_commit();
    }
}
