/* A model's files for other programs. PATH's end says the kind:
 *
 *   NAME.gguf   llama.cpp and what is built on it: GPT-2 with the tokenizer in the file (gguf.h). Beside it
 *               NAME.Modelfile, for ollama
 *   NAME.bin    llm.c: version 3 (f32) or 5 (bf16); beside it gpt2_tokenizer.bin
 *   else        a Hugging Face directory, as a checkpoint is one, without what a resume needs
 *
 * Written in a temporary directory beside PATH, fsync'ed, renamed. PATH must be free: nothing is replaced. Where
 * file_writes_end (files.h) comes true meanwhile, it fails, and nothing is left. */
#pragma once
#include "gguf.h"
#include "llmc/model/gpt2.h"
#include "llmc/tokenizer/tokenizer.h"

/* What stands in the way, as far as it can be seen before the weights are read: something of that name, a type that the
 * kind has not, a window that it has not, no tokenizer (NULL). */
bool export_check(const char *path, ExportType type, const GPT2Config *config, const Tokenizer *tokenizer,
                  Error *err);
/* On failure nothing of that name is there, unless its folder alone could not be synced. *bytes = the size of all files. */
bool export_model(const char *path, ExportType type, GPT2 *model, const Tokenizer *tokenizer, int64_t *bytes,
                  Error *err);
/* How PATH is opened elsewhere, as one line for the user. */
const char *export_hint(const char *path, ExportType type);
