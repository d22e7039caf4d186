#include "pieces.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/integers.h"

int list_buffers(int ids[MAX_BUFFERS], OptimizerKind optimizer, bool model_only) {
    int n = 0;
    ids[n++] = FLAT_MASTER;
    for (int i = 0; i < N_STATES && !model_only; i++)
        if (optimizer_has(optimizer, (StateId)i)) ids[n++] = i;
    return n;
}

static Piece piece_of(const GPT2 *model, int id, int layer) {
    const Tensor *t = &model->tensors[id];
    Piece piece = {.tensor = t,
                   .id = id,
                   .layer = layer,
                   .begin = tensor_at(t, layer),
                   .rows = id == WTE ? model->config.vocab_size : t->rows,
                   .cols = t->cols};
    const char *mark = strstr(t->name, "%d");
    if (mark)
        snprintf(piece.name, sizeof piece.name, "%.*s%d%s", (int)(mark - t->name), t->name, layer, mark + 2);
    else
        snprintf(piece.name, sizeof piece.name, "%s", t->name);
    piece.n_elems = piece.rows * piece.cols;
    return piece;
}

Piece *list_pieces(const GPT2 *model, int *n, Error *err) {
    *n = 0;
    for (int id = 0; id < N_TENSORS; id++) *n += model->tensors[id].n_layers;
    Piece *pieces = malloc((size_t)*n * sizeof *pieces), *next = pieces;
    if (!pieces) fail(err, EXIT_RUN, "no memory for the list of %d tensors", *n);
    for (int id = 0; pieces && id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++)
            *next++ = piece_of(model, id, layer);
    return pieces;
}

const float *gather_buffer(GPT2 *model, int id) {
    return id == FLAT_MASTER ? gpt2_gather_master(model) : gpt2_gather_state(model, (StateId)id);
}

void set_buffer(GPT2 *model, int id, const float *host, int64_t begin, int64_t n) {
    if (id == FLAT_MASTER)
        gpt2_set_weights(model, host, begin, n);
    else
        gpt2_set_state(model, (StateId)id, host, begin, n);
}

void zero_padding(GPT2 *model, int id) {
    static const float zeros[1 << 14];
    enum { MOST = sizeof zeros / sizeof *zeros };
    const Tensor *wte = &model->tensors[WTE];
    const int64_t end = tensor_at(wte, 0) + wte->layer_elems;
    for (int64_t at = end - (wte->rows - model->config.vocab_size) * wte->cols; at < end; at += MOST)
        set_buffer(model, id, zeros, at, min_i64(end - at, MOST));
}
