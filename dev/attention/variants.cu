/* The lab's rows of attention on the GPU: the trainer's kernels, called as they are, and the ladder of this
 * folder.
 *
 * To add a variant: write NAME.cu with `extern "C" void NAME(const Call *call)` (operands and layouts:
 * attention.h), declare it in ladder.h, add a row. The first row that fits is the forward that timed backward
 * rows read. */
#include <cuda_profiler_api.h>
#include <stdio.h>
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/attention/paths.cuh"
#include "llmc/cuda/device/cuda_common.cuh"
#include "generic_bf16.cuh"
#include "hopper.h"
#include "ladder.h"

/* ---- the trainer's kernels ---- */

template <PlainAttentionForward *FORWARD> static void forward(const Call *c) {
    FORWARD(c->p[FORWARD_OUT], (float *)c->p[FORWARD_LSE], c->p[FORWARD_QKV], c->s.B, c->s.T, c->s.NH,
            c->s.HD);
}
template <PlainAttentionBackward *BACKWARD> static void backward(const Call *c) {
    BACKWARD(c->p[BACKWARD_DQKV], c->p[BACKWARD_DOUT], c->p[BACKWARD_OUT], c->p[BACKWARD_QKV],
             (const float *)c->p[BACKWARD_LSE], NULL, c->p[BACKWARD_SCRATCH], c->s.B, c->s.T, c->s.NH,
             c->s.HD);
}

/* The same with a window and dropout: the trainer's --window and --dropout. */
template <AttentionForward *FORWARD> static void masked_forward(const Call *c) {
    const AttentionMask mask = attention_mask(c);
    FORWARD(c->p[FORWARD_OUT], (float *)c->p[FORWARD_LSE], c->p[FORWARD_QKV], &mask, c->s.B, c->s.T, c->s.NH,
            c->s.HD);
}
template <AttentionBackward *BACKWARD> static void masked_backward(const Call *c) {
    const AttentionMask mask = attention_mask(c);
    BACKWARD(c->p[BACKWARD_DQKV], c->p[BACKWARD_DOUT], c->p[BACKWARD_OUT], c->p[BACKWARD_QKV],
             (const float *)c->p[BACKWARD_LSE], NULL, &mask, c->p[BACKWARD_SCRATCH], c->s.B, c->s.T, c->s.NH,
             c->s.HD);
}

/* What the trainer takes for the mask: dispatch.cu. */
static void trained_backward(const Call *c) {
    const AttentionMask mask = attention_mask(c);
    attention_backward<bf16>(c->p[BACKWARD_DQKV], c->p[BACKWARD_DOUT], c->p[BACKWARD_OUT], c->p[BACKWARD_QKV],
                             (const float *)c->p[BACKWARD_LSE], NULL, &mask, c->p[BACKWARD_SCRATCH], c->s.B,
                             c->s.T, c->s.NH, c->s.HD);
}

template <HopperForward *FORWARD> static void hopper_forward(const Call *c) {
    FORWARD(c->p[FORWARD_OUT], (float *)c->p[FORWARD_LSE], c->p[FORWARD_QKV], c->s.B, c->s.T, c->s.NH,
            c->s.HD, c->s.causal);
}
template <bool FROZEN, bool TURNS> static void hopper_forward_step(const Call *c) {
    hopper_forward_step(c->p[FORWARD_OUT], (float *)c->p[FORWARD_LSE], c->p[FORWARD_QKV], c->s.B, c->s.T,
                        c->s.NH, c->s.HD, c->s.causal, FROZEN, TURNS);
}
template <HopperStep STEP> static void hopper_forward_without(const Call *c) {
    hopper_forward_without(c->p[FORWARD_OUT], (float *)c->p[FORWARD_LSE], c->p[FORWARD_QKV], c->s.B, c->s.T,
                           c->s.NH, c->s.HD, c->s.causal, STEP);
}

template <HopperBackward *BACKWARD> static void hopper_backward(const Call *c) {
    BACKWARD(c->p[BACKWARD_DQKV], c->p[BACKWARD_DOUT], c->p[BACKWARD_OUT], c->p[BACKWARD_QKV],
             (const float *)c->p[BACKWARD_LSE], NULL, c->p[BACKWARD_SCRATCH], c->s.B, c->s.T, c->s.NH,
             c->s.HD, c->s.causal);
}
static void hopper_dq(const Call *c) {
    hopper_two_pass_dq(c->p[BACKWARD_DQKV], c->p[BACKWARD_DOUT], c->p[BACKWARD_OUT], c->p[BACKWARD_QKV],
                       (const float *)c->p[BACKWARD_LSE], c->p[BACKWARD_SCRATCH], c->s.B, c->s.T, c->s.NH,
                       c->s.HD, c->s.causal);
}
static void hopper_dkv(const Call *c) {
    hopper_two_pass_dkv(c->p[BACKWARD_DQKV], c->p[BACKWARD_DOUT], c->p[BACKWARD_QKV], c->p[BACKWARD_SCRATCH],
                        c->s.B, c->s.T, c->s.NH, c->s.HD, c->s.causal);
}
static void hopper_split(const Call *c) {
    hopper_dq(c);
    hopper_dkv(c);
}

static size_t hopper_scratch(const Sizes *s, int elem) {
    return hopper_backward_scratch_bytes(s->B, s->T, s->NH);
}

/* The first pass of two makes S, dP and dQ: 3 products of 5; the second S, dP, dV and dK: 4. */
static double dq_flops(const Sizes *s) {
    return attention_pairs(s) * 6 * s->HD;
}
static double dkv_flops(const Sizes *s) {
    return attention_pairs(s) * 8 * s->HD;
}
static double split_flops(const Sizes *s) {
    return dq_flops(s) + dkv_flops(s);
}

/* ---- the standard form: the trainer's T*T path ---- */

static size_t probs_elems(const Sizes *s) {
    return (size_t)s->B * s->NH * s->T * s->Tk;
}
template <int TENSORS> static size_t standard_scratch(const Sizes *s, int elem) {
    return elem * (TENSORS * probs_elems(s) + attention_out_elems(s));
}
/* Tensor `index` of size T*T in scratch; the one after the last is of the size of out. */
static void *probs_at(void *scratch, const Call *c, int index) {
    return (char *)scratch + index * probs_elems(&c->s) * dtype_bytes(c->ops->dtype);
}
static const AttentionMask no_mask = {};
static void standard_forward(const Call *c) {
    c->ops->attention_standard_forward(c->p[FORWARD_OUT], c->p[FORWARD_SCRATCH], NULL, c->p[FORWARD_QKV],
                                       &no_mask, c->s.B, c->s.T, c->s.NH, c->s.HD);
}
static void standard_backward_prepare(const Call *c) {
    void *scratch = c->p[BACKWARD_SCRATCH];
    c->ops->attention_standard_forward(probs_at(scratch, c, 2), scratch, NULL, c->p[BACKWARD_QKV], &no_mask,
                                       c->s.B, c->s.T, c->s.NH, c->s.HD);
}
static void standard_backward(const Call *c) {
    void *scratch = c->p[BACKWARD_SCRATCH];
    c->ops->attention_standard_backward(c->p[BACKWARD_DQKV], probs_at(scratch, c, 1), c->p[BACKWARD_DOUT],
                                        scratch, c->p[BACKWARD_QKV], &no_mask, c->s.B, c->s.T, c->s.NH,
                                        c->s.HD);
}
/* S written, read and written by the softmax, P read: all of size T*T, masked half or not. */
static double standard_forward_bytes(const Sizes *s, int elem) {
    return elem * (4.0 * probs_elems(s) + attention_qkv_elems(s) + attention_out_elems(s));
}
/* dV, dP, dQ and dK: S and P are there. */
static double standard_backward_flops(const Sizes *s) {
    return attention_pairs(s) * 8 * s->HD;
}
/* P read for dV and for dS, dP written and read, dS written and read twice. */
static double standard_backward_bytes(const Sizes *s, int elem) {
    return elem * (7.0 * probs_elems(s) + 2.0 * attention_qkv_elems(s) + 2.0 * attention_out_elems(s));
}

/* ---- the table ---- */

enum { PARTS_DQ = 1, PARTS_DK = 2, PARTS_DV = 4, PARTS_LSE = 2 };

/* Head sizes of the ladder's rows. As names: clang-format would align the lists over the whole table. */
#define HEADS_TO_64                                                                                          \
    { 16, 32, 64 }
#define HEADS_TO_128                                                                                         \
    { 16, 32, 64, 128 }

/* A kernel of the Hopper path; the last arguments are head sizes. */
#define HOPPER_FORWARD(row_name, function, more_flags, text, ...)                                            \
    {                                                                                                        \
        .op = "attention_forward", .name = row_name, .run = function, .needs = NEEDS_HOPPER,                 \
        .dtype = DTYPE_BF16, .head_sizes = {__VA_ARGS__}, .flags = PACKED_ONLY | (more_flags),               \
        .teaches = text                                                                                      \
    }
#define HOPPER_BACKWARD(row_name, function, text, ...)                                                       \
    {                                                                                                        \
        .op = "attention_backward", .name = row_name, .run = function, .needs = NEEDS_HOPPER,                \
        .dtype = DTYPE_BF16, .head_sizes = {__VA_ARGS__}, .flags = PACKED_ONLY,                              \
        .scratch_bytes = hopper_scratch, .teaches = text                                                     \
    }

/* A kernel of the Hopper path that the lab has for causal attention alone, as the trainer. */
#define CAUSAL_HOPPER(op_name, row_name, function, scratch, text, ...)                                       \
    {                                                                                                        \
        .op = op_name, .name = row_name, .run = function, .needs = NEEDS_HOPPER, .dtype = DTYPE_BF16,        \
        .head_sizes = {__VA_ARGS__}, .flags = CAUSAL_ONLY | PACKED_ONLY, .scratch_bytes = scratch,           \
        .teaches = text                                                                                      \
    }

/* A kernel of the trainer with a window and dropout; the last arguments are head sizes, 0 for any. */
#define MASKED(op_name, row_name, function, type, formula, text, ...)                                        \
    {                                                                                                        \
        .op = op_name, .name = row_name, .run = function, .needs = NEEDS_GPU, .dtype = type,                 \
        .head_sizes = {__VA_ARGS__},                                                                         \
        .flags = CAUSAL_ONLY | PACKED_ONLY | TAKES_DROPOUT | TAKES_WINDOW | TAKES_BLOCKS, .flops = formula,  \
        .teaches = text                                                                                      \
    }

/* A Hopper kernel with a window. */
#define WINDOWED(op_name, row_name, function, size, text)                                                    \
    {                                                                                                        \
        .op = op_name, .name = row_name, .run = function, .needs = NEEDS_HOPPER, .dtype = DTYPE_BF16,        \
        .head_sizes = {size}, .flags = CAUSAL_ONLY | PACKED_ONLY | TAKES_WINDOW,                             \
        .scratch_bytes = hopper_scratch, .teaches = text                                                     \
    }

/* The same with a pattern of blocks. */
#define SPARSE(op_name, row_name, function, size, text)                                                      \
    {                                                                                                        \
        .op = op_name, .name = row_name, .run = function, .needs = NEEDS_HOPPER, .dtype = DTYPE_BF16,        \
        .head_sizes = {size}, .flags = CAUSAL_ONLY | PACKED_ONLY | TAKES_BLOCKS | NEEDS_BLOCKS,              \
        .teaches = text                                                                                      \
    }

/* To add a variant: a row, fields in the order of Variant (lab.h). */
static const Variant rows[] = {
    HOPPER_FORWARD(
        "sm90", hopper_forward<hopper_forward>, 0,
        "F12, what ships: TMA, wgmma, warp specialisation; by T and head size one of the four below", 64,
        128),
    HOPPER_FORWARD("sm90_forward_hd64_1cta", hopper_forward<hopper_forward_1cta>, CAUSAL_ONLY,
                   "below T = 4096: four warpgroups hide each other's borders and waits", 64),
    HOPPER_FORWARD("sm90_forward_hd64_2cta", hopper_forward<hopper_forward_2cta>, 0,
                   "from T = 4096 on: two thread blocks share the loads of K and V by multicast", 64),
    HOPPER_FORWARD("sm90_forward_hd128_1cta", hopper_forward<hopper_forward_1cta>, CAUSAL_ONLY,
                   "below T = 4096: tiles of 192 queries, blocks of 64 keys", 128),
    HOPPER_FORWARD("sm90_forward_hd128_2cta", hopper_forward<hopper_forward_2cta>, 0,
                   "from T = 4096 on: two thread blocks share the loads of K and V by multicast", 128),
    CAUSAL_HOPPER("attention_forward", "sm90_forward_hd80", forward<sm90_forward_hd80>, NULL,
                  "the kernel of 128: 128 columns in shared memory, products as wide as the head", 80),
    CAUSAL_HOPPER("attention_forward", "sm90_forward_hd96", forward<sm90_forward_hd96>, NULL,
                  "the same for 96", 96),
    CAUSAL_HOPPER("attention_forward", "sm90_forward_hd112", forward<sm90_forward_hd112>, NULL,
                  "the same for 112", 112),
    CAUSAL_HOPPER("attention_forward", "sm90_forward_hd256", forward<sm90_forward_hd256>, NULL,
                  "tiles of 128 queries, blocks of 64 keys; one buffer of Q", 256),
 /* The steps that led there, 1-CTA. */
    HOPPER_FORWARD("sm90_running_max", (hopper_forward_step<false, false>), 0,
                   "the running maximum of FlashAttention-2 on wgmma: O is rescaled at every block of keys",
                   64, 128),
    HOPPER_FORWARD("sm90_running_max_pingpong", (hopper_forward_step<false, true>), 0,
                   "and ping-pong scheduling: one warpgroup multiplies while the others take exponentials",
                   64, 128),
    HOPPER_FORWARD("sm90_fixed_max", (hopper_forward_step<true, false>), 0,
                   "the maximum of the first keys stays, tiles that outgrow it are done again: no rescaling",
                   64, 128),
    HOPPER_FORWARD("sm90_fixed_max_pingpong", (hopper_forward_step<true, true>), 0,
                   "fixed maximum, ping-pong scheduling", 64, 128),
 /* Without one step: beside sm90_fixed_max_pingpong at head size 64, sm90_fixed_max at 128. */
    HOPPER_FORWARD("sm90_no_wide_tiles", hopper_forward_without<HOPPER_WIDE_TILES>, 0,
                   "head size 128 with tiles of 128 x 128, in place of 192 x 64", 64, 128),
    HOPPER_FORWARD("sm90_no_border", hopper_forward_without<HOPPER_PIPELINED_BORDER>, 0,
                   "nothing queued between two tiles", 64, 128),
    HOPPER_FORWARD("sm90_no_from_end", hopper_forward_without<HOPPER_TILES_FROM_END>, 0,
                   "causal tiles counted from the start: the last one is ragged", 64, 128),
    HOPPER_FORWARD("sm90_no_rotation", hopper_forward_without<HOPPER_ROTATION>, 0,
                   "the same rows of a tile for the same warpgroup, always", 64, 128),
    HOPPER_FORWARD("sm90_no_early_redo", hopper_forward_without<HOPPER_EARLY_REDO>, 0,
                   "the second launch waits for the first to end", 64, 128),
    HOPPER_FORWARD("sm90_no_steps", hopper_forward_without<HOPPER_ALL_STEPS>, 0, "none of these steps", 64,
                   128),
    {.op = "attention_forward",
       .name = "sm80",
       .run = forward<sm80_attention_forward>,
       .needs = NEEDS_GPU,
       .dtype = DTYPE_BF16,
       .flags = CAUSAL_ONLY | PACKED_ONLY,
       .teaches = "the shipped kernel of older cards: FlashAttention-2 on mma.sync, cp.async, ldmatrix (F8)"},
    {.op = "attention_forward",
       .name = "generic",
       .run = forward<generic_attention_forward_bf16>,
       .needs = NEEDS_GPU,
       .dtype = DTYPE_BF16,
       .flags = CAUSAL_ONLY | PACKED_ONLY,
       .teaches = "any head size without tensor cores: register tiles of multiply-adds"},
    {.op = "attention_forward",
       .name = "generic_fp32",
       .run = forward<generic_attention_forward_f32>,
       .needs = NEEDS_GPU,
       .dtype = DTYPE_F32,
       .flags = CAUSAL_ONLY | PACKED_ONLY,
       .teaches = "the same source with fp32 storage: the trainer's --precision fp32"},

    WINDOWED("attention_forward", "sm90_forward_hd64_ranges", masked_forward<sm90_forward_hd64_ranges>, 64,
             "sm90 with --window: blocks of keys outside the window are never loaded"),
    WINDOWED("attention_forward", "sm90_forward_hd128_ranges", masked_forward<sm90_forward_hd128_ranges>, 128,
             "the same"),
    SPARSE("attention_forward", "sm90_forward_hd64_sparse", masked_forward<sm90_forward_hd64_sparse>, 64,
           "sm90 with --sparse: a list of blocks of keys for each tile"),
    SPARSE("attention_forward", "sm90_forward_hd128_sparse", masked_forward<sm90_forward_hd128_sparse>, 128,
           "the same"),
    MASKED("attention_forward", "masked", masked_forward<attention_forward<bf16>>, DTYPE_BF16, NULL,
           "what ships for --window and --dropout: on Hopper the kernels above with a mask", 0),
    MASKED("attention_forward", "sm80_masked", masked_forward<sm80_masked_attention_forward>, DTYPE_BF16,
           NULL, "sm80 with --window and --dropout: tiles outside the window are not visited", 0),
    MASKED("attention_forward", "generic_masked", masked_forward<generic_masked_attention_forward_bf16>,
           DTYPE_BF16, NULL, "the same without tensor cores", 0),
    MASKED("attention_forward", "generic_masked_fp32", masked_forward<generic_masked_attention_forward_f32>,
           DTYPE_F32, NULL, "the same with fp32 storage", 0),

    LADDER("attention_forward", "standard", standard_forward,
           "F1: S, softmax and P V as three steps over T*T in memory",
           .flags = CAUSAL_ONLY | PACKED_ONLY | ROUNDS_SCORES, .scratch_bytes = standard_scratch<1>,
           .bytes = standard_forward_bytes, .skips_parts = PARTS_LSE),
    LADDER("attention_forward", "naive_fused", naive_fused,
           "F2: one launch, yet slow: O goes through memory at every key",
           .scratch_bytes = naive_fused_scratch, .bytes = naive_fused_bytes),
    LADDER("attention_forward", "flash1", flash1_forward,
           "F3: keys in the outer loop; O, l, m re-read for every block pair", .head_sizes = HEADS_TO_128,
           .scratch_bytes = flash1_scratch, .bytes = flash1_forward_bytes),
    LADDER("attention_forward", "flash2", flash2_forward,
           "F4: queries outer, O stays on the chip; any Tq, Tk, dv",
           .flags = TAKES_SPARSE | TAKES_DROPOUT | TAKES_WINDOW | TAKES_BLOCKS,
           .bytes = flash2_forward_bytes),
    LADDER("attention_forward", "flash2_by_length", flash2_by_length,
           "F9: tile and warps by a published table over T", .head_sizes = HEADS_TO_64,
           .bytes = flash2_by_length_bytes),
    LADDER("attention_forward", "flash2_64x4", flash2_64x4, "F9: tiles of 64 queries, 4 warps",
           .head_sizes = HEADS_TO_64),
    LADDER("attention_forward", "flash2_128x4", flash2_128x4, "F9: 128 queries, 4 warps",
           .head_sizes = HEADS_TO_64),
    LADDER("attention_forward", "flash2_128x8", flash2_128x8, "F9: 128 queries, 8 warps",
           .head_sizes = HEADS_TO_64),
    LADDER("attention_forward", "flash2_256x8", flash2_256x8, "F9: 256 queries, 8 warps",
           .head_sizes = HEADS_TO_64),
    LADDER("attention_forward", "lite", lite, "F5: every tile's softmax by itself: wrong beyond one tile",
           .head_sizes = HEADS_TO_128, .flags = INEXACT, .bytes = flash2_forward_bytes),
    LADDER("attention_forward", "online", online, "F6: and the running max and sum, ten lines more: exact",
           .head_sizes = HEADS_TO_128, .bytes = flash2_forward_bytes),
    LADDER("attention_forward", "scalar_online", scalar_online,
           "F7: the recurrence alone, a warp a query, exp2", .bytes = scalar_online_bytes),
    LADDER("attention_forward", "flash_decoding", flash_decoding, "F13: few queries, keys split over blocks",
           .max_T = 16, .scratch_bytes = flash_decoding_scratch),

    HOPPER_BACKWARD("sm90", hopper_backward<hopper_backward>,
                    "what ships (B5): by T and head size one of the four below", 64, 128),
    HOPPER_BACKWARD(
        "sm90_backward_hd64_1cta", hopper_backward<hopper_backward_1cta>,
        "below T = 32768: one pass of five products, dQ in a warpgroup of its own; partial dQ is added in "
        "order, so the bits are always the same",
        64),
    HOPPER_BACKWARD("sm90_backward_hd64_2cta", hopper_backward<hopper_backward_2cta>,
                    "from T = 32768 on: two thread blocks share the loads of Q and dO by multicast", 64),
    HOPPER_BACKWARD("sm90_backward_hd128_1cta", hopper_backward<hopper_backward_1cta>,
                    "below T = 4096: each of two warpgroups computes half of dQ's columns", 128),
    HOPPER_BACKWARD("sm90_backward_hd128_2cta", hopper_backward<hopper_backward_2cta>,
                    "from T = 4096 on: and two thread blocks exchange dS", 128),
    CAUSAL_HOPPER("attention_backward", "sm90_backward_hd80", backward<sm90_backward_hd80>, hopper_scratch,
                  "the kernel of 64, in tiles of 16 columns", 80),
    CAUSAL_HOPPER("attention_backward", "sm90_backward_hd96_1cta", backward<sm90_backward_hd96_1cta>,
                  hopper_scratch, "below T = 2048: the kernel of 128, products as wide as the head", 96),
    CAUSAL_HOPPER("attention_backward", "sm90_backward_hd96_2cta", backward<sm90_backward_hd96_2cta>,
                  hopper_scratch, "from T = 2048 on", 96),
    CAUSAL_HOPPER("attention_backward", "sm90_backward_hd112_1cta", backward<sm90_backward_hd112_1cta>,
                  hopper_scratch, "below T = 2048: the kernel of 128, products as wide as the head", 112),
    CAUSAL_HOPPER("attention_backward", "sm90_backward_hd112_2cta", backward<sm90_backward_hd112_2cta>,
                  hopper_scratch, "from T = 2048 on", 112),
    {.op = "attention_backward",
       .name = "sm90_two_pass",
       .run = hopper_split,
       .needs = NEEDS_HOPPER,
       .dtype = DTYPE_BF16,
       .head_sizes = {64, 128},
       .flags = PACKED_ONLY,
       .scratch_bytes = hopper_scratch,
       .flops = split_flops,
       .teaches = "two passes of 3 and 4 products, no atomics; logsumexp and D in augmented K (B4)"},
    {.op = "attention_backward",
       .name = "sm90_two_pass_dq",
       .run = hopper_dq,
       .needs = NEEDS_HOPPER,
       .dtype = DTYPE_BF16,
       .head_sizes = {64, 128},
       .flags = PACKED_ONLY,
       .scratch_bytes = hopper_scratch,
       .flops = dq_flops,
       .skips_parts = PARTS_DK | PARTS_DV,
       .teaches = "the first pass alone: dQ, and D = rowsum(dO O) on the way"},
    {.op = "attention_backward",
       .name = "sm90_two_pass_dkv",
       .run = hopper_dkv,
       .needs = NEEDS_HOPPER,
       .dtype = DTYPE_BF16,
       .head_sizes = {64, 128},
       .flags = PACKED_ONLY,
       .scratch_bytes = hopper_scratch,
       .prepare = hopper_dq,
       .flops = dkv_flops,
       .skips_parts = PARTS_DQ,
       .teaches = "the second pass alone: dK and dV"},
    {.op = "attention_backward",
       .name = "sm80",
       .run = backward<sm80_attention_backward>,
       .needs = NEEDS_GPU,
       .dtype = DTYPE_BF16,
       .flags = CAUSAL_ONLY | PACKED_ONLY,
       .flops = split_flops,
       .teaches = "two passes on mma.sync, no atomics (B4)"},
    {.op = "attention_backward",
       .name = "generic",
       .run = backward<generic_attention_backward_bf16>,
       .needs = NEEDS_GPU,
       .dtype = DTYPE_BF16,
       .flags = CAUSAL_ONLY | PACKED_ONLY,
       .flops = split_flops,
       .teaches = "any head size, two passes of multiply-adds"},
    {.op = "attention_backward",
       .name = "generic_fp32",
       .run = backward<generic_attention_backward_f32>,
       .needs = NEEDS_GPU,
       .dtype = DTYPE_F32,
       .flags = CAUSAL_ONLY | PACKED_ONLY,
       .flops = split_flops,
       .teaches = "the same source with fp32 storage"},
    WINDOWED("attention_backward", "sm90_backward_hd64_ranges", masked_backward<sm90_backward_hd64_ranges>,
             64, "tiles of keys end with the last query whose window has them"),
    WINDOWED("attention_backward", "sm90_backward_hd128_ranges", masked_backward<sm90_backward_hd128_ranges>,
             128, "the same"),
    SPARSE("attention_backward", "sm90_backward_hd64_sparse", masked_backward<sm90_backward_hd64_sparse>, 64,
           "a list of blocks of queries for each tile of keys"),
    SPARSE("attention_backward", "sm90_backward_hd128_sparse", masked_backward<sm90_backward_hd128_sparse>,
           128, "the same"),
    MASKED("attention_backward", "masked", trained_backward, DTYPE_BF16, NULL,
           "what ships for --window and --dropout", 0),
    MASKED("attention_backward", "sm80_masked", masked_backward<sm80_masked_attention_backward>, DTYPE_BF16,
           split_flops, "the masks of forward, drawn again from their counter", 0),
    MASKED("attention_backward", "generic_masked", masked_backward<generic_masked_attention_backward_bf16>,
           DTYPE_BF16, split_flops, "the same without tensor cores", 0),
    MASKED("attention_backward", "generic_masked_fp32",
           masked_backward<generic_masked_attention_backward_f32>, DTYPE_F32, split_flops,
           "the same with fp32 storage", 0),
    LADDER("attention_backward", "standard", standard_backward, "B1: from the P that forward stored, T*T",
           .flags = CAUSAL_ONLY | PACKED_ONLY | ROUNDS_SCORES, .scratch_bytes = standard_scratch<2>,
           .prepare = standard_backward_prepare, .flops = standard_backward_flops,
           .bytes = standard_backward_bytes),
    LADDER("attention_backward", "flash1", flash1_backward,
           "B2: P again from m and l; a head is one block's work", .head_sizes = HEADS_TO_128,
           .scratch_bytes = flash1_scratch, .prepare = flash1_prepare, .bytes = flash1_backward_bytes),
    LADDER("attention_backward", "flash2", flash2_backward, "B3: P again from L; dQ by atomic adds",
           .head_sizes = HEADS_TO_128,
           .flags = NOT_BITWISE | TAKES_SPARSE | TAKES_DROPOUT | TAKES_WINDOW | TAKES_BLOCKS,
           .scratch_bytes = flash2_backward_scratch, .bytes = flash2_backward_bytes),
    LADDER("attention_backward", "p_only", flash2_backward_p_only,
           "dQ and dK from P without dS, as once published: wrong", .head_sizes = HEADS_TO_128,
           .flags = INEXACT | NOT_BITWISE, .scratch_bytes = flash2_backward_scratch,
           .bytes = flash2_backward_bytes),
    {.name = NULL                                                        },
};

extern "C" const Variant *const cuda_variants = rows;

/* ---- the machine ---- */

extern "C" int lab_compute_capability(void) {
    return cuda_available() ? cuda_compute_capability() : 0;
}

/* By its name a profiler's list of kernels shows where the calls begin. */
static __global__ void lab_call_begins_kernel() {}

extern "C" void lab_profile(bool on) {
    if (!cuda_available()) return;
    CUDA_CHECK(on ? cudaProfilerStart() : cudaProfilerStop());
    if (!on) return;
    lab_call_begins_kernel<<<1, 1, 0, main_stream>>>();
    launch_check("lab_call_begins_kernel");
}

extern "C" const char *lab_cuda_versions(void) {
    static char text[96];
    int driver = 0, runtime = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    snprintf(text, sizeof text, "CUDA driver %d.%d, runtime %d.%d", driver / 1000, driver % 1000 / 10,
             runtime / 1000, runtime % 1000 / 10);
    return text;
}
