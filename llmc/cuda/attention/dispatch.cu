/* Which path serves which device, storage type, head size and mask. */
#include "attention.cuh"
#include "paths.cuh"
#include "sm90.cuh"

typedef struct Kernels {
    AttentionForward *forward;
    AttentionBackward *backward;
    MaskedAttentionForward *masked_forward; /* NULL: plain causal attention alone */
    MaskedAttentionBackward *masked_backward;
} Kernels;

typedef struct Path {
    int min_capability, max_capability; /* as cuda_compute_capability() gives it: 80 for sm_80 */
    DType dtype;
    int head_size; /* 0: any */
    const Kernels *kernels;
} Path;

enum { ANY = 1 << 30 };

static void sm90_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    attention_forward_sm90(out, lse, qkv, B, T, NH, HD, true);
}
static void sm90_backward(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                          const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD) {
    attention_backward_sm90(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, HD, true);
}

static const Kernels sm90 = {sm90_forward, sm90_backward, NULL, NULL};
static const Kernels sm80 = {sm80_attention_forward, sm80_attention_backward, sm80_masked_attention_forward,
                             sm80_masked_attention_backward};
static const Kernels generic_bf16 = {generic_attention_forward_bf16, generic_attention_backward_bf16,
                                     generic_masked_attention_forward_bf16,
                                     generic_masked_attention_backward_bf16};
static const Kernels generic_f32 = {generic_attention_forward_f32, generic_attention_backward_f32,
                                    generic_masked_attention_forward_f32,
                                    generic_masked_attention_backward_f32};

/* The first row that fits is taken. To add a path, write its file, declare it in paths.cuh and put its rows
 * above those it beats. sm_90a code runs on capability 9.0 alone. */
static const Path paths[] = {
    {90, 90,  DTYPE_BF16, 64,  &sm90        },
    {90, 90,  DTYPE_BF16, 128, &sm90        },
    {80, ANY, DTYPE_BF16, 64,  &sm80        },
    {80, ANY, DTYPE_BF16, 128, &sm80        },
    {0,  ANY, DTYPE_BF16, 0,   &generic_bf16},
    {0,  ANY, DTYPE_F32,  0,   &generic_f32 },
};

static int capability_limit = ANY;

void cuda_limit_capability(int capability) {
    capability_limit = capability ? capability : ANY;
}

/* masked: kernels that serve a window and dropout. */
static const Kernels *kernels_for(DType dtype, int HD, bool masked) {
    const int device = cuda_compute_capability(),
              capability = device < capability_limit ? device : capability_limit;
    const Path *path = paths; /* the last two rows take whatever comes to them */
    while (path->dtype != dtype || (path->head_size != 0 && path->head_size != HD) ||
           path->min_capability > capability || path->max_capability < capability ||
           (masked && !path->kernels->masked_forward))
        path++;
    return path->kernels;
}

void attention_forward_bf16(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    kernels_for(DTYPE_BF16, HD, false)->forward(out, lse, qkv, B, T, NH, HD);
}
void attention_forward_f32(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD) {
    kernels_for(DTYPE_F32, HD, false)->forward(out, lse, qkv, B, T, NH, HD);
}
void attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, void *scratch, int B, int T, int NH, int HD) {
    kernels_for(DTYPE_BF16, HD, false)->backward(dqkv, dout, out, qkv, lse, NULL, scratch, B, T, NH, HD);
}
void attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                            const float *lse, void *scratch, int B, int T, int NH, int HD) {
    kernels_for(DTYPE_F32, HD, false)->backward(dqkv, dout, out, qkv, lse, NULL, scratch, B, T, NH, HD);
}

void masked_attention_forward_bf16(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask,
                                   int B, int T, int NH, int HD) {
    if (attention_is_plain(mask, T)) return attention_forward_bf16(out, lse, qkv, B, T, NH, HD);
    kernels_for(DTYPE_BF16, HD, true)->masked_forward(out, lse, qkv, mask, B, T, NH, HD);
}
void masked_attention_forward_f32(floatX *out, float *lse, const floatX *qkv, const AttentionMask *mask,
                                  int B, int T, int NH, int HD) {
    if (attention_is_plain(mask, T)) return attention_forward_f32(out, lse, qkv, B, T, NH, HD);
    kernels_for(DTYPE_F32, HD, true)->masked_forward(out, lse, qkv, mask, B, T, NH, HD);
}

void masked_attention_backward_bf16(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                    const float *lse, const float *d, const AttentionMask *mask,
                                    void *scratch, int B, int T, int NH, int HD) {
    if (attention_is_plain(mask, T))
        return kernels_for(DTYPE_BF16, HD, false)
            ->backward(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, HD);
    kernels_for(DTYPE_BF16, HD, true)
        ->masked_backward(dqkv, dout, out, qkv, lse, mask, scratch, B, T, NH, HD);
}
void masked_attention_backward_f32(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                   const float *lse, const float *d, const AttentionMask *mask, void *scratch,
                                   int B, int T, int NH, int HD) {
    if (attention_is_plain(mask, T))
        return kernels_for(DTYPE_F32, HD, false)
            ->backward(dqkv, dout, out, qkv, lse, d, scratch, B, T, NH, HD);
    kernels_for(DTYPE_F32, HD, true)->masked_backward(dqkv, dout, out, qkv, lse, mask, scratch, B, T, NH, HD);
}

/* Enough for every path: the plan must not depend on the device. */
size_t attention_scratch_bytes(const OpShape *shape, DType dtype) {
    (void)dtype;
    const size_t stats = (size_t)shape->B * shape->NH * shape->T * sizeof(RowStats);
    const size_t sm90 = attention_backward_sm90_scratch_bytes(shape->B, shape->T, shape->NH);
    return stats > sm90 ? stats : sm90;
}
