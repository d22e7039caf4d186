/* The model's flat buffers as safetensors with Hugging Face's names and orientation.
 *
 * The flat buffer holds matrices as (out, in); transformers' Conv1D stores (in, out), so all matrices but wte
 * and wpe are transposed on the way. One tensor at a time passes through host memory. */
#pragma once
#include "llmc/model/gpt2.h"
#include "manifest.h"
#include "safetensors.h"
#include "snapshot.h"

/* Writes model.safetensors and, unless model_only, optimizer.safetensors into the directory, and their entries into the
 * manifest. Rank 0 writes. From a snapshot it does so on any thread, beside training; without one (NULL) it asks the other
 * ranks for their parts of each buffer, which they bring in checkpoint_share. note: the name of one more tensor of the
 * weights, "note.TEXT", of one 0: a program that does not know it says so when it loads the file. NULL: none. */
bool hf_weights_save(const char *directory, GPT2 *model, const Snapshot *snapshot, bool model_only,
                     const char *note, JsonWriter *manifest, Error *err);

/* model.safetensors of a directory, or the shards that model.safetensors.index.json lists. Names with and
 * without "transformer."; lm_head.weight must equal wte.weight where it is there; mask buffers (attn.bias)
 * and notes are ignored; any other tensor is refused, as is a missing one. Everything is checked before the model is
 * touched. */
bool hf_weights_load(const char *directory, GPT2 *model, Error *err);
/* The same of optimizer.safetensors: the optimizer's states. */
bool hf_states_load(const char *directory, GPT2 *model, Error *err);
