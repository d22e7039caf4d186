/* Which path serves which device, storage type, head size and mask. */
#include "attention.cuh"
#include "llmc/model/ops_testing.h"
#include "paths.cuh"

enum { ANY = 1 << 30 };

/* What a kernel serves. */
typedef struct Serves {
    int min_capability, max_capability; /* as cuda_compute_capability() gives it: 80 for sm_80 */
    DType dtype;
    int head_size; /* 0: any */
    int min_T;
} Serves;

/* What a call leaves out beside the keys behind a query; bits. */
enum {
    RANGES = 1 /* keys before a window, of other documents */,
    DROPOUT = 2 /* up to one half */,
    STRONG_DROPOUT = 4,
    SPARSE = 8,
    ANY_MASK = 15
};

typedef struct ForwardPath {
    Serves serves;
    const char *name;
    PlainAttentionForward *plain; /* NULL: masks alone */
    AttentionForward *masked;     /* NULL: plain causal attention alone */
    int masks;                    /* those that `masked` serves */
} ForwardPath;

typedef struct BackwardPath {
    Serves serves;
    const char *name;
    PlainAttentionBackward *plain;
    AttentionBackward *masked;
    int masks;
} BackwardPath;

#define NAMED(function) #function, function
#define MASKED(function) #function, NULL, function

/* The first row that fits is taken; the last two take whatever comes to them. To add a path, write its file, declare it
 * in paths.cuh and put its rows above those it beats. sm_90a code runs on capability 9.0 alone.
 *
 * Clusters, forward: head size 128 is 3 % slower with them at T = 1024 and 2 % faster at 4096 (2048 was not timed); at
 * head size 64 four warpgroups take 8 to 12 % less time at 1024 (sm90_forward.cu). */
/* clang-format off */
static const ForwardPath forward_paths[] = {
    {{90, 90,  DTYPE_BF16, 64,  4096}, NAMED(sm90_forward_hd64_2cta),         NULL, 0},
    {{90, 90,  DTYPE_BF16, 64,  0},    NAMED(sm90_forward_hd64_1cta),         NULL, 0},
    {{90, 90,  DTYPE_BF16, 128, 4096}, NAMED(sm90_forward_hd128_2cta),        NULL, 0},
    {{90, 90,  DTYPE_BF16, 128, 0},    NAMED(sm90_forward_hd128_1cta),        NULL, 0},
    {{90, 90,  DTYPE_BF16, 80,  0},    NAMED(sm90_forward_hd80),              NULL, 0},
    {{90, 90,  DTYPE_BF16, 96,  0},    NAMED(sm90_forward_hd96),              NULL, 0},
    {{90, 90,  DTYPE_BF16, 112, 0},    NAMED(sm90_forward_hd112),             NULL, 0},
    {{90, 90,  DTYPE_BF16, 256, 0},    NAMED(sm90_forward_hd256),             NULL, 0},
    {{90, 90,  DTYPE_BF16, 64,  0},    MASKED(sm90_forward_hd64_ranges),          RANGES},
    {{90, 90,  DTYPE_BF16, 80,  0},    MASKED(sm90_forward_hd80_ranges),          RANGES},
    {{90, 90,  DTYPE_BF16, 96,  0},    MASKED(sm90_forward_hd96_ranges),          RANGES},
    {{90, 90,  DTYPE_BF16, 112, 0},    MASKED(sm90_forward_hd112_ranges),         RANGES},
    {{90, 90,  DTYPE_BF16, 128, 0},    MASKED(sm90_forward_hd128_ranges),         RANGES},
    {{90, 90,  DTYPE_BF16, 64,  0},    MASKED(sm90_forward_hd64_sparse),          SPARSE},
    {{90, 90,  DTYPE_BF16, 80,  0},    MASKED(sm90_forward_hd80_sparse),          SPARSE},
    {{90, 90,  DTYPE_BF16, 96,  0},    MASKED(sm90_forward_hd96_sparse),          SPARSE},
    {{90, 90,  DTYPE_BF16, 112, 0},    MASKED(sm90_forward_hd112_sparse),         SPARSE},
    {{90, 90,  DTYPE_BF16, 128, 0},    MASKED(sm90_forward_hd128_sparse),         SPARSE},
    {{90, 90,  DTYPE_BF16, 64,  0},    MASKED(sm90_forward_hd64_dropout),         DROPOUT},
    {{90, 90,  DTYPE_BF16, 80,  0},    MASKED(sm90_forward_hd80_dropout),         DROPOUT},
    {{90, 90,  DTYPE_BF16, 96,  0},    MASKED(sm90_forward_hd96_dropout),         DROPOUT},
    {{90, 90,  DTYPE_BF16, 112, 0},    MASKED(sm90_forward_hd112_dropout),        DROPOUT},
    {{90, 90,  DTYPE_BF16, 128, 0},    MASKED(sm90_forward_hd128_dropout),        DROPOUT},
    {{80, ANY, DTYPE_BF16, 0,   0},    NAMED(sm80_attention_forward),         sm80_masked_attention_forward, ANY_MASK},
    {{0,  ANY, DTYPE_F32,  0,   0},    NAMED(generic_attention_forward_f32),  generic_masked_attention_forward_f32, ANY_MASK},
};

/* Clusters, backward: at head size 64 they gain 1 % at T = 32768, nothing at 16384, and lose 2 % at 8192 and 7 % at 4096;
 * at 128, TFLOP/s of blocks alone and of clusters: 479 and 467 at 2048, 520 and 540 at 4096; at 96 340 and 329 at 1024,
 * 403 and 416 at 2048. */
static const BackwardPath backward_paths[] = {
    {{90, 90,  DTYPE_BF16, 64,  32768}, NAMED(sm90_backward_hd64_2cta),         NULL, 0},
    {{90, 90,  DTYPE_BF16, 64,  0},     NAMED(sm90_backward_hd64_1cta),         NULL, 0},
    {{90, 90,  DTYPE_BF16, 128, 4096},  NAMED(sm90_backward_hd128_2cta),        NULL, 0},
    {{90, 90,  DTYPE_BF16, 128, 0},     NAMED(sm90_backward_hd128_1cta),        NULL, 0},
    {{90, 90,  DTYPE_BF16, 80,  0},     NAMED(sm90_backward_hd80),              NULL, 0},
    {{90, 90,  DTYPE_BF16, 96,  2048},  NAMED(sm90_backward_hd96_2cta),         NULL, 0},
    {{90, 90,  DTYPE_BF16, 96,  0},     NAMED(sm90_backward_hd96_1cta),         NULL, 0},
    {{90, 90,  DTYPE_BF16, 112, 2048},  NAMED(sm90_backward_hd112_2cta),        NULL, 0},
    {{90, 90,  DTYPE_BF16, 112, 0},     NAMED(sm90_backward_hd112_1cta),        NULL, 0},
    {{90, 90,  DTYPE_BF16, 64,  0},     MASKED(sm90_backward_hd64_ranges),         RANGES},
    {{90, 90,  DTYPE_BF16, 80,  0},     MASKED(sm90_backward_hd80_ranges),         RANGES},
    {{90, 90,  DTYPE_BF16, 96,  0},     MASKED(sm90_backward_hd96_ranges),         RANGES},
    {{90, 90,  DTYPE_BF16, 112, 0},     MASKED(sm90_backward_hd112_ranges),        RANGES},
    {{90, 90,  DTYPE_BF16, 128, 0},     MASKED(sm90_backward_hd128_ranges),        RANGES},
    {{90, 90,  DTYPE_BF16, 64,  0},     MASKED(sm90_backward_hd64_sparse),         SPARSE},
    {{90, 90,  DTYPE_BF16, 80,  0},     MASKED(sm90_backward_hd80_sparse),         SPARSE},
    {{90, 90,  DTYPE_BF16, 96,  0},     MASKED(sm90_backward_hd96_sparse),         SPARSE},
    {{90, 90,  DTYPE_BF16, 112, 0},     MASKED(sm90_backward_hd112_sparse),        SPARSE},
    {{90, 90,  DTYPE_BF16, 128, 0},     MASKED(sm90_backward_hd128_sparse),        SPARSE},
    {{90, 90,  DTYPE_BF16, 64,  0},     MASKED(sm90_backward_hd64_dropout),        DROPOUT},
    {{90, 90,  DTYPE_BF16, 80,  0},     MASKED(sm90_backward_hd80_dropout),        DROPOUT},
    {{90, 90,  DTYPE_BF16, 96,  0},     MASKED(sm90_backward_hd96_dropout),        DROPOUT},
    {{90, 90,  DTYPE_BF16, 112, 0},     MASKED(sm90_backward_hd112_dropout),       DROPOUT},
    {{90, 90,  DTYPE_BF16, 128, 0},     MASKED(sm90_backward_hd128_dropout),       DROPOUT},
    {{80, ANY, DTYPE_BF16, 0,   0},     NAMED(sm80_attention_backward),         sm80_masked_attention_backward, ANY_MASK},
    {{0,  ANY, DTYPE_F32,  0,   0},     NAMED(generic_attention_backward_f32),  generic_masked_attention_backward_f32, ANY_MASK},
};
/* clang-format on */

static int capability_limit = ANY;

void cuda_limit_capability(int capability) {
    capability_limit = capability ? capability : ANY;
}

template <typename X> static constexpr DType dtype_of() {
    return sizeof(X) == sizeof(float) ? DTYPE_F32 : DTYPE_BF16;
}

static bool fits(const Serves *s, DType dtype, int T, int HD) {
    const int device = cuda_compute_capability(),
              capability = device < capability_limit ? device : capability_limit;
    return s->dtype == dtype && (s->head_size == 0 || s->head_size == HD) && T >= s->min_T &&
           capability >= s->min_capability && capability <= s->max_capability;
}

static int masks_of(const AttentionMask *mask, int T) {
    const int drops = dropout_threshold(mask->dropout.p) <= MOST_SM90_THRESHOLD ? DROPOUT : STRONG_DROPOUT;
    return (attention_window(mask, T) < T || mask->starts ? RANGES : 0) | (mask->dropout.p > 0 ? drops : 0) |
           (sparse_cuts(&mask->sparse, T) ? SPARSE : 0);
}

template <class Path> static bool takes(const Path *path, int masks) {
    return masks ? path->masked && (masks & ~path->masks) == 0 : path->plain != NULL;
}
template <class Path> static const Path *path_for(const Path *path, DType dtype, int T, int HD, int masks) {
    while (!fits(&path->serves, dtype, T, HD) || !takes(path, masks)) path++;
    return path;
}

/* The same for plain attention in bf16, by the capability that the row wants. */
template <class Path> static int plain_capability(const Path *paths, int HD) {
    return path_for(paths, DTYPE_BF16, 1, HD, 0)->serves.min_capability;
}
bool cuda_attention_tuned(int HD) {
    return plain_capability(forward_paths, HD) == plain_capability(forward_paths, 64) &&
           plain_capability(backward_paths, HD) == plain_capability(backward_paths, 64);
}

template <typename X>
void attention_forward(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask, int B, int T,
                       int NH, int HD) {
    const int masks = masks_of(mask, T);
    const ForwardPath *path = path_for(forward_paths, dtype_of<X>(), T, HD, masks);
    cuda_kernel_ran = path->name;
    if (masks == 0)
        path->plain(out, lse, qkv, B, T, NH, HD);
    else
        path->masked(out, lse, qkv, mask, B, T, NH, HD);
}

template <typename X>
void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                        const float *lse, const float *d, const AttentionMask *mask, void *scratch, int B,
                        int T, int NH, int HD) {
    const int masks = masks_of(mask, T);
    const BackwardPath *path = path_for(backward_paths, dtype_of<X>(), T, HD, masks);
    cuda_kernel_ran = path->name;
    if (masks == 0)
        path->plain(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, HD);
    else
        path->masked(dqkv, dout, out, qkv, lse, d, mask, scratch, B, T, NH, HD);
}

template AttentionForward attention_forward<float>;
template AttentionForward attention_forward<bf16>;
template AttentionBackward attention_backward<float>;
template AttentionBackward attention_backward<bf16>;

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Enough for every path: the plan must not depend on the device. */
size_t attention_scratch_bytes(const OpShape *shape) {
    const int B = shape->B, T = shape->T, NH = shape->NH;
    const size_t stats = (size_t)B * NH * T * sizeof(RowStats);
    const bool lists = shape->sparse.window > 0 && shape->C / NH <= 128;
    const size_t sparse = lists ? sm90_backward_sparse_scratch_bytes(B, T, NH, shape->C / NH) : 0;
    const size_t others = larger(stats, sparse);
    return larger(others, larger(sm90_backward_hd64_scratch_bytes(B, T, NH),
                                 sm90_backward_hd128_scratch_bytes(B, T, NH)));
}
