/* Attention on sm_90a (Hopper): TMA, wgmma, warp specialisation; bf16, head size 64 and 128.
 *
 * The math, shapes and `=` are those of Ops.attention_forward and attention_backward (llmc/ops.h), with one
 * more argument: causal = false lets every query see every key. All launch on main_stream and return at once;
 * same inputs, same bits. The files also compile for other architectures, where the kernels are empty: call
 * these only on compute capability 9.0. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "../../ops.h"

void attention_forward_sm90(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                            bool causal);

/* d (B,T,NH): rowsum(dout * out) of every head where it is known, or NULL. scratch:
 * attention_backward_sm90_scratch_bytes. */
void attention_backward_sm90(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                             const float *lse, const float *d, void *scratch, int B, int T, int NH, int HD,
                             bool causal);
size_t attention_backward_sm90_scratch_bytes(int B, int T, int NH);

/* ---- for the lab: the steps that led here, and the parts of backward ---- */

typedef enum Sm90Softmax {
    SM90_ONLINE, /* the classic running max, O rescaled at every tile of keys */
    SM90_FROZEN, /* the max of the first tile stays; tiles that it does not suit are done again with
                    SM90_ONLINE */
} Sm90Softmax;

typedef enum Sm90Order {
    SM90_FREE,  /* warpgroups issue their products when they are ready */
    SM90_TURNS, /* in turns, so that one multiplies while the others take exponentials */
} Sm90Order;

void attention_forward_sm90_variant(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                    bool causal, Sm90Softmax softmax, Sm90Order order);

/* The two forms that attention_forward_sm90 chooses from, at any T: blocks alone, at head size 64, causal, of four
 * warpgroups; and pairs of tiles in clusters of two blocks. */
void attention_forward_sm90_alone(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                  bool causal);
void attention_forward_sm90_paired(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                   bool causal);

/* Steps of forward that can be left out, to see what each gives (see sm90_forward.cu). */
typedef enum Sm90ForwardStep {
    SM90_WIDE_TILES = 1,       /* head size 128: 192 queries x 64 keys, in place of 128 x 128 */
    SM90_PIPELINED_BORDER = 2, /* between two tiles */
    SM90_TILES_FROM_END = 4,
    SM90_ROTATION = 8,    /* of rows among the warpgroups */
    SM90_EARLY_REDO = 16, /* the second launch is made ready during the first */
} Sm90ForwardStep;

/* Without pairs of tiles, and at head size 64 without the fourth warpgroup, at any T. without: steps left out, added
 * up. */
void attention_forward_sm90_without(floatX *out, float *lse, const floatX *qkv, int B, int T, int NH, int HD,
                                    bool causal, Sm90Softmax softmax, Sm90Order order, unsigned without);

/* dq reads lse and writes dQ and scratch; dkv reads scratch and writes dK and dV. */
void attention_backward_sm90_dq(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                                const float *lse, void *scratch, int B, int T, int NH, int HD, bool causal);
void attention_backward_sm90_dkv(floatX *dqkv, const floatX *dout, const floatX *qkv, const void *scratch,
                                 int B, int T, int NH, int HD, bool causal);

/* Backward in one pass of five products, for the head size that ends the name: the two forms that
 * attention_backward_sm90 chooses from, at any T. Tiles alone; pairs of tiles in clusters of two blocks, which at head
 * size 128 exchange dS. d: as above; scratch: the bytes below. */
typedef void Sm90OnePass(floatX *dqkv, const floatX *dout, const floatX *out, const floatX *qkv,
                         const float *lse, const float *d, void *scratch, int B, int T, int NH, bool causal);
Sm90OnePass attention_backward_sm90_alone64, attention_backward_sm90_paired64,
    attention_backward_sm90_alone128, attention_backward_sm90_paired128;
size_t attention_backward_sm90_one_pass_scratch_bytes(int B, int T, int NH, int HD);
