/* The model's flat buffers as safetensors with Hugging Face's names and orientation.
 *
 * The flat buffer holds matrices as (out, in); transformers' Conv1D stores (in, out), so all matrices but wte
 * and wpe are transposed on the way. One tensor at a time passes through host memory. */
#pragma once
#include "llmc/model/gpt2.h"
#include "manifest.h"
#include "safetensors.h"
#include "snapshot.h"

/* One buffer of a file: its tensors are called PREFIX.name. */
typedef struct FlatBuffer {
    const char
        *prefix; /* "transformer" for weights, "m" and so on for the optimizer's states; a dot follows */
    int id;      /* FLAT_MASTER, or a StateId */
} FlatBuffer;

/* The optimizer's states that the model has; returns how many. */
int optimizer_buffers(FlatBuffer buffers[N_STATES], const GPT2 *model);

/* A file with the tensors of some buffers. */
typedef struct SavedFile {
    const char *name;
    const FlatBuffer *buffers;
    int n_buffers;
    /* The name of one more tensor, "note.TEXT", of one 0: a program that does not know it says so when it loads the file. NULL: none. */
    const char *note;
} SavedFile;

/* Writes one or two files into the directory, and their entries into the manifest. Rank 0 writes. From a snapshot it does
 * so on any thread, beside training; without one (NULL) it asks the other ranks for their parts of each buffer, which they
 * bring in checkpoint_share. */
bool hf_tensors_save(const char *directory, GPT2 *model, const Snapshot *snapshot, const SavedFile *files,
                     int n_files, JsonWriter *manifest, Error *err);

/* model.safetensors of a directory, or the shards that model.safetensors.index.json lists. Names with and
 * without "transformer."; lm_head.weight must equal wte.weight where it is there; mask buffers (attn.bias)
 * and notes are ignored; any other tensor is refused, as is a missing one. Everything is checked before the model is
 * touched. */
bool hf_weights_load(const char *directory, GPT2 *model, Error *err);
/* The same for one file and given buffers, as hf_tensors_save wrote it. */
bool hf_tensors_load(const char *directory, const char *name, GPT2 *model, const FlatBuffer *buffers,
                     int n_buffers, Error *err);
