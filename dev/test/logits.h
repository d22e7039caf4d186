/* Logits of a forward pass, on the host. */
#pragma once
#include <stdlib.h>
#include "llmc/base/dtype.h"
#include "llmc/base/error.h"
#include "llmc/model/gpt2_pass.h"

/* host (rows,V) fp32: the logits of positions [first_row, first_row + rows) of the last forward pass. */
static void logits_of(GPT2 *model, float *host, int64_t first_row, int64_t rows) {
    const int V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    Batch b = batch_of(model, 1, 1);
    b.N = first_row + rows; /* head_forward stops there */
    for (int64_t done = 0; done < rows;) {
        const Chunk c = head_forward(model, &b, first_row + done);
        const size_t row_bytes = (size_t)Vp * dtype_bytes(model->ops->dtype);
        char *stage = must_allocate((size_t)c.n * row_bytes, "logits on the host");
        model->ops->device->download(stage, c.logits, (size_t)c.n * row_bytes);
        for (int64_t i = 0; i < c.n; i++)
            floats_from_storage(host + (done + i) * V, stage + (size_t)i * row_bytes, V, model->ops->dtype);
        free(stage);
        done += c.n;
    }
}
