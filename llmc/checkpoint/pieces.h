/* The model's flat buffers, and the tensors of a file in them: a piece is one layer's. Matrices are (out, in); wte has
 * vocab_size rows in a file, padded_vocab_size in the buffer, where the rest is 0. */
#pragma once
#include "llmc/model/gpt2.h"

/* A flat buffer's id: FLAT_MASTER, or a StateId. */
enum { FLAT_MASTER = -1, MAX_BUFFERS = 1 + N_STATES, PIECE_NAME = 96 };

/* The master weights, and the states that the optimizer has; returns how many. */
int list_buffers(int ids[MAX_BUFFERS], OptimizerKind optimizer, bool model_only);

typedef struct Piece {
    char name[PIECE_NAME]; /* Hugging Face's: "h.3.attn.c_attn.weight" */
    const Tensor *tensor;
    int id, layer;
    int64_t begin;      /* element of the flat buffer */
    int64_t rows, cols; /* in the flat buffer; of wte the rows of real tokens */
    int64_t n_elems;
} Piece;

/* All of them, each tensor for all layers in turn; wte is the first. malloc'ed, *n long. */
Piece *list_pieces(const GPT2 *model, int *n, Error *err);

/* A buffer of the model on the device, whole: all ranks make the call. Valid until the next. */
const float *gather_buffer(GPT2 *model, int id);
/* n host floats at element `begin` of a buffer; with the master weights go their copies. */
void set_buffer(GPT2 *model, int id, const float *host, int64_t begin, int64_t n);
/* 0 in a buffer's rows of wte that stand for no token. */
void zero_padding(GPT2 *model, int id);
