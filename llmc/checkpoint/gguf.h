/* GGUF, llama.cpp's file of one model: its "gpt2", which has GPT-2's computation, with the tokenizer.
 *
 *   "GGUF", version 3, number of tensors, number of keys; the keys; for each tensor its name, sizes (the fastest first),
 *   type and offset; the data, each tensor at a multiple of 32 bytes. Little-endian.
 *
 * Matrices are (out, in), as in the flat buffer. The head is tied: there is no output.weight. wte has the real rows alone.
 * Vectors and positions are fp32 in files of every type. q8_0: 32 values share a scale, an f16 d = max |x| / 127, and
 * are stored as x / d rounded to 8 bits. */
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/tokenizer/tokenizer.h"

typedef enum { EXPORT_F32, EXPORT_F16, EXPORT_BF16, EXPORT_Q8_0, N_EXPORT_TYPES } ExportType;
extern const char *const export_type_names[N_EXPORT_TYPES];

/* False where the type cannot hold matrices of that size. */
bool gguf_check(const GPT2Config *config, ExportType type, Error *err);
/* The new file DIRECTORY/NAME, on the disk. `title`: the model's name in it. Refuses a weight that the type cannot hold. */
bool gguf_save(const char *directory, const char *name, const char *title, ExportType type, GPT2 *model,
               const Tokenizer *tokenizer, Error *err);
