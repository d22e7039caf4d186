/* bf16 tiles in shared memory for the mma.sync attention kernels: loads, fragments, products, stores.
 *
 * A tile is ROWS x HD, row-major, HD a multiple of 16 that may be more than the head size: the columns beyond it are 0.
 * The 16-byte chunks are permuted inside each row: of rows of whole 128-byte lines, chunk c of row r lies at c ^ (r & 7);
 * of others, chunks change places in smaller groups. Eight rows of one chunk column then fall into eight different bank
 * groups, so that every ldmatrix and every 16-byte access here is free of conflicts. Tiles start at multiples of 256
 * bytes. */
#pragma once
#include <math_constants.h>
#include "llmc/cuda/ptx/sm80.cuh"
#include "llmc/cuda/attention/launch.cuh"

/* The largest power of two that divides n, at most `most`. */
constexpr int power_of_two_in(int n, int most) {
    int power = 1;
    while (power < most && n % (2 * power) == 0) power *= 2;
    return power;
}

template <int HD> struct Tile {
    static_assert(HD % 16 == 0, "fragments are 16 columns wide");
    static constexpr int ROW_BYTES = HD * 2;
    static constexpr int CHUNKS = HD / 8;
    static constexpr int GROUP = power_of_two_in(CHUNKS, 8);  /* chunks that change places */
    static constexpr int LANES = power_of_two_in(CHUNKS, 16); /* threads of a row where tiles are copied */

    static __device__ __forceinline__ uint32_t offset(int row, int chunk) {
        return row * ROW_BYTES + ((chunk ^ (row / (8 / GROUP) & (GROUP - 1))) << 4);
    }
    /* Address that this lane gives to ldmatrix for the 16 x 16 block at (row 0, column 0) of a tile; the
     * block at (row, column 16 k) is at block(lane_address, row, k), row a multiple of 16. by_rows: matrices
     * 0, 1 are rows 0-7, 8-15 and 2, 3 the next 8 columns: an A fragment; with .trans two B fragments of a
     * tile stored [k][n]. by_columns: matrices 0, 1 are columns 0-7, 8-15 and 2, 3 the next 8 rows: two B
     * fragments of a tile stored [n][k]. */
    static __device__ __forceinline__ uint32_t by_rows(uint32_t tile, int lane) {
        return tile + offset(lane & 15, lane >> 4);
    }
    static __device__ __forceinline__ uint32_t by_columns(uint32_t tile, int lane) {
        return tile + offset((lane & 7) | ((lane >> 4) << 3), (lane >> 3) & 1);
    }
    static __device__ __forceinline__ uint32_t block(uint32_t lane_address, int row, int k) {
        /* of a row, so many that the tile's address and the row's leave their low bits to the chunk's */
        constexpr int BYTES = HD == 128 ? ROW_BYTES : GROUP * 16;
        return (lane_address ^ (k * 32 & (BYTES - 1))) + row * ROW_BYTES + (k * 32 & -BYTES);
    }
};

/* The head size of a kernel with tiles of HD columns: HD itself, or, PADDED, what the launch says, at most HD. */
template <int HD, bool PADDED> struct HeadSize {
    int launched;
    __device__ __forceinline__ int columns() const { return PADDED ? launched : HD; }
};

/* Starts copying rows [0, ROWS) of a (.., stride)-strided global matrix into a tile; rows >= rows_valid and columns
 * beyond the head size become 0 (never NaN: 0 * NaN would leak through the products). Call cp_async_commit after it. */
template <int ROWS, int THREADS, int HD, bool PADDED>
__device__ __forceinline__ void load_tile(uint32_t tile, const bf16 *global, int stride, int rows_valid,
                                          HeadSize<HD, PADDED> size) {
    using S = Tile<HD>;
    constexpr int STEP = THREADS / S::LANES;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "a thread keeps its columns and its row modulo 8");
    const int row = threadIdx.x / S::LANES, chunk = threadIdx.x % S::LANES;
    const uint32_t to = tile + S::offset(row, chunk);
    const bf16 *from = global + row * stride + chunk * 8;
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c += S::LANES)
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP)
            cp_async_16(to + i * S::ROW_BYTES + c * 16, from + i * stride + c * 8,
                        row + i < rows_valid && (chunk + c) * 8 < size.columns());
}

/* Tiles of KEYS keys of one head in two stages of shared memory, K then V, from a last tile down to tile 0:
 * while one is used, the next is under way. All threads of the block call all functions. */
template <int HD, bool PADDED, int KEYS, int THREADS> struct KeyTiles {
    static constexpr int TILE_BYTES = KEYS * HD * 2, STAGE_BYTES = 2 * TILE_BYTES;
    int tile;              /* the one at `stage`; its first key is KEYS * tile */
    uint32_t stage, other; /* addresses */
    const bf16 *next_k;    /* first row of the tile to fetch next */
    int C;                 /* V lies C elements after K, the next row 3 C */
    HeadSize<HD, PADDED> size;

    __device__ __forceinline__ void fetch(uint32_t to, int rows_valid) {
        load_tile<KEYS, THREADS>(to, next_k, 3 * C, rows_valid, size);
        load_tile<KEYS, THREADS>(to + TILE_BYTES, next_k + C, 3 * C, rows_valid, size);
        cp_async_commit();
        next_k -= KEYS * 3 * C;
    }
    /* The tile has landed and nobody reads the other stage any more: fetches the next into it, unless this is
     * tile `last`. */
    __device__ __forceinline__ void begin(int last) {
        cp_async_wait<0>();
        __syncthreads();
        if (tile > last) fetch(other, KEYS);
    }
    __device__ __forceinline__ void end() {
        const uint32_t swap = stage;
        stage = other;
        other = swap;
        tile--;
    }
};

/* The tiles that rows [at.row0, at.row0 + rows) see, none fetched yet. */
template <int KEYS, int THREADS, int HD, bool PADDED>
__device__ __forceinline__ KeyTiles<HD, PADDED, KEYS, THREADS>
key_tiles(const bf16 *qkv, uint32_t stages, BlockRows at, int rows, int T, int C, HeadSize<HD, PADDED> size) {
    KeyTiles<HD, PADDED, KEYS, THREADS> keys;
    keys.tile = (min(at.row0 + rows, T) - 1) / KEYS;
    keys.stage = stages;
    keys.other = stages + keys.STAGE_BYTES;
    keys.next_k = qkv + (at.token - at.row0 + (int64_t)keys.tile * KEYS) * 3 * C + C + at.column;
    keys.C = C;
    keys.size = size;
    return keys;
}

/* A fragment of columns [16 k, 16 k + 16) from a row of C blocks: the accumulator layout is the operand
 * layout. */
template <int N>
__device__ __forceinline__ void pack_fragment(uint32_t (&a)[4], const float (&c)[N][4], int k) {
    a[0] = cvt_bf16x2(c[2 * k][0], c[2 * k][1]);
    a[1] = cvt_bf16x2(c[2 * k][2], c[2 * k][3]);
    a[2] = cvt_bf16x2(c[2 * k + 1][0], c[2 * k + 1][1]);
    a[3] = cvt_bf16x2(c[2 * k + 1][2], c[2 * k + 1][3]);
}

/* The warp's 16*BLOCKS rows of a tile as left operand of a product over the head size: held in registers for
 * good where HELD, else read from shared memory each time. */
template <int HD, int BLOCKS, bool HELD> struct RowOperand {
    uint32_t address; /* this lane's, by_rows, at the warp's first row */
    uint32_t held[HELD ? HD / 16 : 1][BLOCKS][4];
};

/* The tile must have landed. */
template <int HD, int BLOCKS, bool HELD>
__device__ __forceinline__ void hold_rows(RowOperand<HD, BLOCKS, HELD> &operand, uint32_t rows) {
    operand.address = Tile<HD>::by_rows(rows, threadIdx.x % 32);
    if constexpr (HELD) {
#pragma unroll
        for (int k = 0; k < HD / 16; k++)
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                ldmatrix_x4(operand.held[k][b], Tile<HD>::block(operand.address, 16 * b, k));
    }
}

/* Scores of one warp: C blocks of 16*BLOCKS rows x N columns. */
template <int BLOCKS, int N> using Scores = float[BLOCKS][N / 8][4];

/* c += A B^T over the head size, B the N rows of a tile whose by_columns lane address is `columns`. */
template <int HD, int BLOCKS, bool HELD, int N8>
__device__ __forceinline__ void multiply_rows(float (&c)[BLOCKS][N8][4],
                                              const RowOperand<HD, BLOCKS, HELD> &operand, uint32_t columns) {
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint32_t loaded[BLOCKS][4];
        if constexpr (!HELD) {
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                ldmatrix_x4(loaded[b], Tile<HD>::block(operand.address, 16 * b, k));
        }
#pragma unroll
        for (int n = 0; n < N8; n += 2) {
            uint32_t column[4];
            ldmatrix_x4(column, Tile<HD>::block(columns, 8 * n, k));
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const uint32_t *a = HELD ? operand.held[HELD ? k : 0][b] : loaded[b];
                mma_m16n8k16(c[b][n], a, column[0], column[1]);
                mma_m16n8k16(c[b][n + 1], a, column[2], column[3]);
            }
        }
    }
}

/* c += A B for 16 columns of A and 16 rows of a tile, `row` and on; rows: the tile's by_rows lane address. */
template <int HD, int BLOCKS>
__device__ __forceinline__ void multiply_tile(float (&c)[BLOCKS][HD / 8][4], const uint32_t (&a)[BLOCKS][4],
                                              uint32_t rows, int row) {
#pragma unroll
    for (int n = 0; n < HD / 8; n += 2) {
        uint32_t column[4];
        ldmatrix_x4_trans(column, Tile<HD>::block(rows, row, n / 2));
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            mma_m16n8k16(c[b][n], a[b], column[0], column[1]);
            mma_m16n8k16(c[b][n + 1], a[b], column[2], column[3]);
        }
    }
}

/* Sets c to 0. */
template <int BLOCKS, int N8> __device__ __forceinline__ void clear(float (&c)[BLOCKS][N8][4]) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < N8; n++) c[b][n][0] = c[b][n][1] = c[b][n][2] = c[b][n][3] = 0.0f;
}

/* Sets scores of keys after their query to -inf. row, column: positions of s[0]'s first row and column; rows
 * are queries and columns keys, or, TRANSPOSED, the other way round. */
template <bool TRANSPOSED, int BLOCKS, int N8>
__device__ __forceinline__ void mask_scores(float (&s)[BLOCKS][N8][4], int row, int column) {
    const int lane = threadIdx.x % 32;
    const int ahead = column + lane % 4 * 2 - row - lane / 4; /* column minus row at s[0][0][0] */
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int by = ahead + 8 * n + i % 2 - 16 * b - 8 * (i / 2);
                if (TRANSPOSED ? by < 0 : by > 0) s[b][n][i] = -CUDART_INF_F;
            }
}

/* c *= factor. */
template <int BLOCKS, int N8> __device__ __forceinline__ void scale(float (&c)[BLOCKS][N8][4], float factor) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[b][n][i] *= factor;
}

/* Writes the head's columns of one warp's accumulators (BLOCKS*16 rows x HD) as bf16 to strided global rows, by way of
 * `tile`, that warp's own rows of a tile that it no longer reads. */
template <int HD, bool PADDED, int BLOCKS>
__device__ __forceinline__ void store_rows(bf16 *global, int stride, int rows_valid, uint8_t *tile,
                                           const float (&sums)[BLOCKS][HD / 8][4],
                                           HeadSize<HD, PADDED> size) {
    using S = Tile<HD>;
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t at = S::offset(16 * b + 8 * h + lane / 4, n) + lane % 4 * 4;
                *reinterpret_cast<uint32_t *>(tile + at) =
                    cvt_bf16x2(sums[b][n][2 * h], sums[b][n][2 * h + 1]);
            }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BLOCKS * 16; i += 32 / S::LANES)
#pragma unroll
        for (int c = 0; c < S::CHUNKS; c += S::LANES) {
            const int row = i + lane / S::LANES, chunk = lane % S::LANES + c;
            if (row < rows_valid && chunk * 8 < size.columns())
                *reinterpret_cast<uint4 *>(global + row * stride + chunk * 8) =
                    *reinterpret_cast<const uint4 *>(tile + S::offset(row, chunk));
        }
}

/* ---- host ---- */

/* A function for each size of tiles; the first row that fits takes a head size. Kernels are many and long to compile, so
 * head sizes share them, padded to these. */
template <typename Function> struct Sm80HeadSizes {
    struct {
        int from, to; /* head sizes */
        Function *function;
    } rows[8];
    Function *of(int head_size) const {
        int i = 0;
        while (head_size < rows[i].from || head_size > rows[i].to) i++;
        return rows[i].function;
    }
};

/* clang-format off */
#define SM80_HEAD_SIZES(function)                                                                            \
    {{                                                                                                       \
        {64,  64,  function<64,  false, Mask>},                                                              \
        {128, 128, function<128, false, Mask>},                                                              \
        {8,   32,  function<32,  true,  Mask>},                                                              \
        {40,  56,  function<64,  true,  Mask>},                                                              \
        {72,  96,  function<96,  true,  Mask>},                                                              \
        {104, 120, function<128, true,  Mask>},                                                              \
        {136, 192, function<192, true,  Mask>},                                                              \
        {200, 256, function<256, true,  Mask>},                                                              \
    }}
/* clang-format on */
