/* The norms of rows.cuh: a block a sequence. The halves of a warp have the same channels, four a lane, and half of the parts
 * each, so that all are under way at once, by whole lines. */
#include "llmc/cuda/ops/layernorm.cuh"
#include "rows_kernels.cuh"

enum { SHARE = 2, /* lanes that have the same channels, */ APART = WARP_SIZE / SHARE /* from each other */ };

struct NormArgs {
    RowsArgs rows;
    const bf16 *part_bias, *weight, *bias;
    bf16 *out;
};

/* A thread's channels. */
struct Four {
    float x[4];
};
__device__ __forceinline__ Four load_four(const bf16 *at) {
    const uint2 bits = *reinterpret_cast<const uint2 *>(at);
    return {
        {bf16_low(bits.x), bf16_high(bits.x), bf16_low(bits.y), bf16_high(bits.y)}
    };
}
__device__ __forceinline__ void store_four(void *at, const Four &f) {
    *reinterpret_cast<uint2 *>(at) = make_uint2(cvt_bf16x2(f.x[0], f.x[1]), cvt_bf16x2(f.x[2], f.x[3]));
}
/* a + b, rounded */
__device__ __forceinline__ Four rounded_sum(const Four &a, const Four &b) {
    Four sum;
#pragma unroll
    for (int k = 0; k < 4; k++) sum.x[k] = to_float(from_float<bf16>(a.x[k] + b.x[k]));
    return sum;
}
/* Over the row, of what each half of a warp has. */
__device__ __forceinline__ float2 sum_over_row(float2 x) {
    __shared__ float2 partial[WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int offset = 1; offset < APART; offset *= 2) {
        x.x += __shfl_xor_sync(0xffffffffu, x.x, offset);
        x.y += __shfl_xor_sync(0xffffffffu, x.y, offset);
    }
    if (lane == 0) partial[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    x = lane < blockDim.x / WARP_SIZE ? partial[lane] : make_float2(0, 0);
    return make_float2(warp_sum(x.x), warp_sum(x.y));
}

__device__ __forceinline__ float2 pair_of_parts(uint32_t bits) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&bits));
}
/* The sum over heads; parts: of the thread's first. */
template <int NH> __device__ __forceinline__ Four sum_parts(const HeadPart *parts) {
    constexpr int N = NH / SHARE;
    uint2 part[N];
    Four sum = {};
#pragma unroll
    for (int i = 0; i < N; i++) part[i] = ld_global_once_8(parts + i * (ROWS_MAX * NH * DECODE_HD));
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float2 low = pair_of_parts(part[i].x), high = pair_of_parts(part[i].y);
        sum.x[0] += low.x, sum.x[1] += low.y, sum.x[2] += high.x, sum.x[3] += high.y;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int offset = APART; offset < WARP_SIZE; offset *= 2)
            sum.x[k] += __shfl_xor_sync(0xffffffffu, sum.x[k], offset);
        sum.x[k] *= 1 / PART_UNIT;
    }
    return sum;
}

template <int NH> __global__ void __launch_bounds__(NH *DECODE_HD / 4 * SHARE) rows_norm_kernel(NormArgs a) {
    constexpr int C = NH * DECODE_HD;
    const int b = blockIdx.x, row = tile_row(b), lane = threadIdx.x % WARP_SIZE,
              c = (threadIdx.x / WARP_SIZE * APART + lane % APART) * 4;
    begin_next_early(); /* it loads weights, and keys by positions and begins */
    const Four weight = load_four(a.weight + c), bias = load_four(a.bias + c);
    Four part_bias;
    if (a.part_bias) part_bias = load_four(a.part_bias + c);
    bf16 *residual = a.rows.residual + (int64_t)b * C + c;
    const HeadPart *parts = a.rows.parts + ((int64_t)(lane / APART * (NH / SHARE)) * ROWS_MAX + row) * C + c;
    wait_early();
    Four x = load_four(residual);
    if (a.part_bias) {
        x = rounded_sum(x, rounded_sum(sum_parts<NH>(parts), part_bias));
        if (lane < APART) store_four(residual, x);
    }
    /* In one pass: what squares about 0 lose where the mean is large is less than the stream's own rounding to bf16. */
    float2 sums = {0, 0};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        sums.x += x.x[k];
        sums.y = fmaf(x.x[k], x.x[k], sums.y);
    }
    sums = sum_over_row(sums);
    const float mean = sums.x / C, rstd = rsqrtf(fmaxf(sums.y / C - mean * mean, 0.0f) + LAYERNORM_EPSILON);
#pragma unroll
    for (int k = 0; k < 4; k++) x.x[k] = (x.x[k] - mean) * rstd * weight.x[k] + bias.x[k];
    char *tile = (char *)(a.rows.x + c / TILE_COLUMNS * TILE_VALUES);
    if (lane >= APART) return;
    if (a.out)
        store_four(a.out + (int64_t)b * C + c, x);
    else
        store_four(tile + swizzled_at<TILE_COLUMNS>(row, c % TILE_COLUMNS / 8) + c % 8 * 2, x);
}

void rows_norm(const RowsArgs &a, const bf16 *part_bias, const bf16 *weight, const bf16 *bias, bf16 *out) {
    static void (*const kernels[])(NormArgs) = FOR_HEADS(rows_norm_kernel);
    void (*const kernel)(NormArgs) = kernels[heads_index(a.NH)];
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    (int)cudaSharedmemCarveoutMaxShared));
    launch_early("rows_norm", kernel, dim3(a.B), a.NH * DECODE_HD / 4 * SHARE, 0, 1,
                 NormArgs{a, part_bias, weight, bias, out});
}
