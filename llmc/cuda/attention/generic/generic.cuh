/* Tiles of the generic attention kernels: fp32 in shared memory whatever the storage type, multiplied by
 * FFMA.
 *
 * A thread block of OWN / R * 16 threads owns OWN rows and walks the others STREAM at a time. Thread (y, x),
 * x < 16, holds rows R y .. R y + R - 1, score columns x, x + 16, .. and head columns 2 x, 2 x + 1, 2 x + 32,
 * ..; the 16 threads of a row are one half of a warp, so what a row's threads write to shared memory needs
 * only __syncwarp. Rows of tiles are 4 floats longer than the head size: float4 reads of 8 neighbouring rows
 * hit all 32 banks. */
#pragma once
#include "llmc/cuda/attention/launch.cuh"

/* One row per head-size bucket: as large as 99 KB of shared memory and 255 registers allow. Results do not
 * depend on a row's values beyond fp32 rounding. */
template <int HDP> struct GenericSize;
template <> struct GenericSize<32> { static constexpr int OWN = 64, STREAM = 64, R = 8; };
template <> struct GenericSize<64> { static constexpr int OWN = 64, STREAM = 64, R = 8; };
template <> struct GenericSize<96> { static constexpr int OWN = 32, STREAM = 32, R = 4; };
template <> struct GenericSize<128> { static constexpr int OWN = 32, STREAM = 32, R = 4; };
template <> struct GenericSize<192> { static constexpr int OWN = 32, STREAM = 16, R = 4; };
template <> struct GenericSize<256> { static constexpr int OWN = 16, STREAM = 16, R = 2; };

/* HDP: head size rounded up to a bucket; the columns from HD on are 0. */
template <int HDP> struct GenericConfig : GenericSize<HDP> {
    using Size = GenericSize<HDP>;
    static constexpr int THREADS = Size::OWN / Size::R * 16;
    static constexpr int PITCH = HDP + 4;                 /* floats from row to row of a tile */
    static constexpr int WEIGHT_PITCH = Size::STREAM + 4; /* of the tile of P or dS, (OWN, STREAM) */
    static constexpr int COLUMNS = Size::STREAM / 16;     /* score columns of a thread */
    static constexpr int PAIRS = HDP / 32;                /* head column pairs of a thread */
    static constexpr int OWN_FLOATS = Size::OWN * PITCH, STREAM_FLOATS = Size::STREAM * PITCH;
    static constexpr int WEIGHT_FLOATS = Size::OWN * WEIGHT_PITCH;
    static_assert(Size::OWN % Size::STREAM == 0, "tiles before row0 and from row0 + OWN on need no mask");
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
    static_assert((2 * OWN_FLOATS + 2 * STREAM_FLOATS + WEIGHT_FLOATS) * 4 <= 99 * 1024,
                  "fits sm_86 and sm_89");
};

/* Scores of a thread's rows and columns; sums over the head columns of a thread. */
template <int HDP> using GenericScores = float[GenericSize<HDP>::R][GenericConfig<HDP>::COLUMNS];
template <int HDP> using GenericSums = float2[GenericSize<HDP>::R][GenericConfig<HDP>::PAIRS];

/* tile (ROWS, HDP) = global rows as fp32; rows >= rows_valid and columns >= HD become 0. */
template <int HDP, int ROWS, typename X>
__device__ __forceinline__ void generic_load(float *tile, const X *global, int stride, int rows_valid,
                                             int HD) {
    constexpr int N = Vec<X>::N, VECS = HDP / N;
    for (int i = threadIdx.x; i < ROWS * VECS; i += GenericConfig<HDP>::THREADS) {
        const int row = i / VECS, column = i % VECS * N;
        float x[N] = {};
        if (row < rows_valid && column < HD) {
            const Vec<X> loaded = load_vec(global + row * stride + column);
#pragma unroll
            for (int j = 0; j < N; j++) x[j] = to_float(loaded.v[j]);
        }
        float *to = tile + row * GenericConfig<HDP>::PITCH + column;
#pragma unroll
        for (int j = 0; j < N; j += 4)
            *reinterpret_cast<float4 *>(to + j) = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
    }
}

/* s = A B^T: own rows of tile a (OWN, HDP) with all rows of tile b (STREAM, HDP). */
template <int HDP>
__device__ __forceinline__ void generic_scores(GenericScores<HDP> &s, const float *a, const float *b) {
    using Config = GenericConfig<HDP>;
    const float *a_row = a + threadIdx.x / 16 * Config::R * Config::PITCH;
    const float *b_row = b + threadIdx.x % 16 * Config::PITCH;
#pragma unroll
    for (int i = 0; i < Config::R; i++)
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++) s[i][j] = 0.0f;
#pragma unroll 2
    for (int d = 0; d < HDP; d += 4) {
        float4 y[Config::COLUMNS];
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++)
            y[j] = *reinterpret_cast<const float4 *>(b_row + 16 * j * Config::PITCH + d);
#pragma unroll
        for (int i = 0; i < Config::R; i++) {
            const float4 x = *reinterpret_cast<const float4 *>(a_row + i * Config::PITCH + d);
#pragma unroll
            for (int j = 0; j < Config::COLUMNS; j++) {
                s[i][j] = fmaf(x.x, y[j].x, s[i][j]);
                s[i][j] = fmaf(x.y, y[j].y, s[i][j]);
                s[i][j] = fmaf(x.z, y[j].z, s[i][j]);
                s[i][j] = fmaf(x.w, y[j].w, s[i][j]);
            }
        }
    }
}

/* Puts the scores into the weights tile, where the 16 threads of a row find them. */
template <int HDP>
__device__ __forceinline__ void generic_share(float *weights, const GenericScores<HDP> &s) {
    using Config = GenericConfig<HDP>;
    float *row = weights + threadIdx.x / 16 * Config::R * Config::WEIGHT_PITCH + threadIdx.x % 16;
    __syncwarp(); /* the last reads of the tile are done */
#pragma unroll
    for (int i = 0; i < Config::R; i++)
#pragma unroll
        for (int j = 0; j < Config::COLUMNS; j++) row[i * Config::WEIGHT_PITCH + 16 * j] = s[i][j];
    __syncwarp();
}

/* sums += W B: weights tile (OWN, STREAM) times tile b (STREAM, HDP). */
template <int HDP>
__device__ __forceinline__ void generic_multiply(GenericSums<HDP> &sums, const float *weights,
                                                 const float *b) {
    using Config = GenericConfig<HDP>;
    const float *w_row = weights + threadIdx.x / 16 * Config::R * Config::WEIGHT_PITCH;
    const float *b_column = b + threadIdx.x % 16 * 2;
#pragma unroll 1
    for (int k = 0; k < Config::STREAM; k += 4) {
        float w[Config::R][4];
#pragma unroll
        for (int i = 0; i < Config::R; i++)
            *reinterpret_cast<float4 *>(w[i]) =
                *reinterpret_cast<const float4 *>(w_row + i * Config::WEIGHT_PITCH + k);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < Config::PAIRS; c++) {
                const float2 y =
                    *reinterpret_cast<const float2 *>(b_column + (k + j) * Config::PITCH + 32 * c);
#pragma unroll
                for (int i = 0; i < Config::R; i++) {
                    sums[i][c].x = fmaf(w[i][j], y.x, sums[i][c].x);
                    sums[i][c].y = fmaf(w[i][j], y.y, sums[i][c].y);
                }
            }
    }
}

template <int HDP> __device__ __forceinline__ void generic_clear(GenericSums<HDP> &sums) {
#pragma unroll
    for (int i = 0; i < GenericConfig<HDP>::R; i++)
#pragma unroll
        for (int c = 0; c < GenericConfig<HDP>::PAIRS; c++) sums[i][c] = make_float2(0.0f, 0.0f);
}

/* Global rows = sums * factor, own rows below rows_valid, columns below HD. */
template <int HDP, typename X>
__device__ __forceinline__ void generic_store(X *global, int stride, int rows_valid, int HD,
                                              const GenericSums<HDP> &sums,
                                              const float (&factor)[GenericSize<HDP>::R]) {
    using Config = GenericConfig<HDP>;
#pragma unroll
    for (int i = 0; i < Config::R; i++) {
        const int row = threadIdx.x / 16 * Config::R + i;
#pragma unroll
        for (int c = 0; c < Config::PAIRS; c++) {
            const int column = threadIdx.x % 16 * 2 + 32 * c;
            if (row >= rows_valid || column >= HD) continue;
            global[row * stride + column] = from_float<X>(sums[i][c].x * factor[i]);
            global[row * stride + column + 1] = from_float<X>(sums[i][c].y * factor[i]);
        }
    }
}

/* Reductions over the 16 threads of a row. */
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
