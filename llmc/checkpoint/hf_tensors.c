#include "hf_tensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/integers.h"

enum { STAGING_ELEMS = 1 << 20 };

const char *const hf_file_names[HF_FILES] = {"model.safetensors", "optimizer.safetensors"};

void file_shape(const Piece *piece, int64_t shape[2]) {
    const bool transposed = piece->tensor->transposed;
    shape[0] = piece->tensor->rank == 1 || transposed ? piece->cols : piece->rows;
    shape[1] = transposed ? piece->rows : piece->cols;
}

bool buffer_has(const GPT2 *model, int buffer, const Piece *piece) {
    return buffer == FLAT_MASTER ||
           optimizer_of(model->options.optimizer, piece->tensor->group) == optimizer_states[buffer].kind;
}

void tensor_name(char name[TENSOR_NAME], int buffer, const Piece *piece) {
    snprintf(name, TENSOR_NAME, "%s.%s",
             buffer == FLAT_MASTER ? "transformer" : optimizer_states[buffer].name, piece->name);
}

int64_t staging_elems(const GPT2 *model, const Piece *pieces, int n) {
    int64_t elems = min_i64(model->n_parameters, STAGING_ELEMS);
    for (int i = 0; i < n; i++)
        if (pieces[i].tensor->transposed) elems = max_i64(elems, pieces[i].n_elems);
    return elems;
}

float *open_staging(int64_t elems, Error *err) {
    float *staging = malloc((size_t)elems * sizeof *staging);
    if (!staging)
        fail(err, EXIT_RUN, "no memory for %zu bytes to convert tensors", (size_t)elems * sizeof *staging);
    return staging;
}

/* One tile through a local copy, so that both matrices are touched in runs of 128 bytes: columns read
 * directly are strides of a power of two apart and evict each other. One column more than 32 keeps the copy's
 * apart. */
void transpose_tile(float *out, const float *in, int64_t rows, int64_t cols, int64_t i0, int64_t j0,
                    int64_t first) {
    float tile[TILE][TILE + 1];
    const int64_t n_i = min_i64(rows - i0, TILE), n_j = min_i64(cols - j0, TILE);
    for (int64_t i = 0; i < n_i; i++) memcpy(tile[i], in + (i0 + i) * cols + j0, (size_t)n_j * sizeof *in);
    for (int64_t j = 0; j < n_j; j++)
        for (int64_t i = 0; i < n_i; i++) out[(j0 + j - first) * rows + i0 + i] = tile[i][j];
}
