/* How a piece stands in Hugging Face's files: its name, its shape, its orientation. Shared by the saving and the loading
 * side of hf_weights.h. */
#pragma once
#include "pieces.h"

enum { HF_FILES = 2, TENSOR_NAME = 2 * PIECE_NAME, TILE = 32 };
/* That of the weights, that of the optimizer's states. */
extern const char *const hf_file_names[HF_FILES];

/* Rows and columns as the file has them: transposed where the buffer's are. A piece of rank 1 has shape[0] elements alone. */
void file_shape(const Piece *piece, int64_t shape[2]);
/* Whether the buffer has this tensor: states have those of their kind of optimizer. */
bool buffer_has(const GPT2 *model, int buffer, const Piece *piece);
/* "transformer.h.0.attn.c_attn.weight"; of a state with its own name, exp_avg, for transformer. */
void tensor_name(char name[TENSOR_NAME], int buffer, const Piece *piece);
/* Elements that pass through host memory at a time: at least the largest transposed matrix. */
int64_t staging_elems(const GPT2 *model, const Piece *pieces, int n);
/* malloc'ed, for the caller to free; NULL with err. */
float *open_staging(int64_t elems, Error *err);
/* The tile at row i0, column j0 of in (rows, cols), transposed; out begins with column `first` of in. */
void transpose_tile(float *out, const float *in, int64_t rows, int64_t cols, int64_t i0, int64_t j0,
                    int64_t first);
