/* The attention kernels as a shared object with a C interface, for programs that are not built with the trainer
 * (scripts/compare_attention.py): `make build/libattention.so`.
 *
 * The kernels are those that the trainer's dispatch takes on this device. Shapes, types and `=` are those of
 * Ops.attention_forward and attention_backward (llmc/model/ops.h), bf16: qkv, dqkv (B,T,3,NH,HD); out, dout
 * (B,T,NH,HD); lse (B,NH,T) fp32. All pointers are device memory, 16-byte aligned. Work is queued on the stream
 * that attention_open was given; the calls return at once. A CUDA error ends the process with one line. */
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/device/cuda_common.cuh"
#include "dev/attention/hopper.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

/* stream: a cudaStream_t of the current device, NULL for the legacy default stream. May be called again. */
EXPORT void attention_open(void *stream) {
    main_stream = (cudaStream_t)stream;
}

/* 1 if attention_forward and attention_backward have kernels for this case, else 0. */
EXPORT int attention_serves(int HD, int causal) {
    if (cuda_compute_capability() < 80) return 0;
    if (causal) return HD >= 8 && HD <= 256 && HD % 8 == 0;
    return cuda_compute_capability() == 90 && (HD == 64 || HD == 128);
}

/* Bytes of the scratch buffer of attention_backward. */
EXPORT size_t attention_scratch(int B, int T, int NH, int HD) {
    OpShape shape = {};
    shape.B = B;
    shape.T = T;
    shape.C = NH * HD;
    shape.NH = NH;
    return attention_scratch_bytes(&shape);
}

static AttentionMask mask_of(int window, const int32_t *starts, const int32_t *ends, float p,
                             const uint64_t *key) {
    AttentionMask mask = {};
    mask.window = window;
    mask.starts = starts;
    mask.ends = ends;
    mask.dropout.p = p;
    mask.dropout.key = key;
    return mask;
}

/* out =, lse =; attention_serves(HD, causal) holds. Of a causal call: window, 0: none; starts and ends of documents (B,T),
 * NULL: none; p of dropout, 0: none, and its key, of which the masks are those of site 0 (llmc/model/dropout.h). */
EXPORT void attention_forward(void *out, float *lse, const void *qkv, int B, int T, int NH, int HD,
                              int causal, int window, const int32_t *starts, const int32_t *ends, float p,
                              const uint64_t *key) {
    const AttentionMask mask = mask_of(window, starts, ends, p, key);
    if (causal)
        attention_forward<bf16>(out, lse, qkv, &mask, B, T, NH, HD);
    else
        hopper_forward(out, lse, qkv, B, T, NH, HD, false);
}

/* dqkv =; attention_serves(HD, causal) holds. */
EXPORT void attention_backward(void *dqkv, const void *dout, const void *out, const void *qkv,
                               const float *lse, void *scratch, int B, int T, int NH, int HD, int causal,
                               int window, const int32_t *starts, const int32_t *ends, float p,
                               const uint64_t *key) {
    const AttentionMask mask = mask_of(window, starts, ends, p, key);
    if (causal)
        attention_backward<bf16>(dqkv, dout, out, qkv, lse, NULL, &mask, scratch, B, T, NH, HD);
    else
        hopper_backward(dqkv, dout, out, qkv, lse, NULL, scratch, B, T, NH, HD, false);
}
