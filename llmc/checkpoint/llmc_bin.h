/* llm.c's model checkpoint (.bin): a header of 256 int32, then the 16 tensors, each for all layers in turn, fp32 or
 * bf16.
 *
 * [0] 20240326  [1] 3 = fp32, 5 = bf16  [2] context  [3] vocabulary  [4] layers  [5] heads  [6] channels
 * [7] padded vocabulary. Little-endian; matrices are (out, in), as in the flat buffer. */
#pragma once
#include "llmc/model/gpt2.h"

/* Checks magic, version, every size, and the file's length to the byte. */
bool llmc_bin_read_config(const char *path, GPT2Config *config, Error *err);
/* The new file DIRECTORY/NAME, on the disk; version 3 or 5 by dtype. */
bool llmc_bin_save(const char *directory, const char *name, GPT2 *model, DType dtype, Error *err);
/* Loads the weights into a model of that config; the file's padding rows of wte are not read. */
bool llmc_bin_load_weights(const char *path, GPT2 *model, Error *err);
