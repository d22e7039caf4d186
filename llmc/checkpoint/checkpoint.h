/* Checkpoints: a directory that Hugging Face transformers loads as it is, plus what a bitwise resume needs.
 *
 *   OUT/step_00000200/
 *     model.safetensors      fp32 master weights, Hugging Face names and orientation (Conv1D transposed)
 *     config.json            and the tokenizer's files
 *     optimizer.safetensors  the optimizer's states: m and v ("m.h.0.attn.c_attn.weight", oriented as the weights); with
 *                            Muon "momentum.h.0.attn.c_attn.weight", and m and v of what has AdamW
 *     trainer_state.json     step, seed, data position, skipped updates, flags; sizes and checksums
 *
 * Written to a temporary directory beside it, every file and directory fsync'ed, then renamed. Never in
 * place. The wte rows past vocab_size are not stored. */
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/tokenizer/tokenizer.h"
#include "snapshot.h"
#include "trainer_state.h"

typedef struct SaveOptions {
    int64_t keep;   /* newest whole checkpoints that stay; 0: all */
    bool keep_best; /* that of the lowest validation loss stays beside them; others that were best_only go */
    /* The data of that loss, as the flags name them: losses on others do not count; NULL: all do. */
    const char *validation;
    bool model_only;
    bool replaces; /* the new one takes the place of all others, of later steps, too */
    /* What is saved, on any thread, while training goes on; NULL: the model as it is. */
    const Snapshot *snapshot;
} SaveOptions;

/* Saves OUT/step_%08d; then, once it is durable, removes what `options` leave no place for: only whole checkpoints
 * of earlier steps, never through a symbolic link (the link goes, its target stays), none that holds files of others.
 * Where the disk has no room for one more, those go before, as long as a whole one stays. model_only: no optimizer;
 * such a checkpoint serves --model, not --resume. On failure (disk full, no permission) the previous checkpoints stand,
 * the temporary directory is gone, err says. */
bool checkpoint_save(const char *out, GPT2 *model, const Tokenizer *tokenizer, const TrainerState *state,
                     const SaveOptions *options, Error *err);
/* What of a checkpoint others open, into an empty directory: weights, config.json, the tokenizer's files (NULL: none). A
 * note is shown by a reader that does not know it ("note.TEXT"; NULL: none). */
bool checkpoint_write_model(const char *directory, GPT2 *model, const Tokenizer *tokenizer, const char *note,
                            Error *err);
/* From a snapshot, what is to go is renamed at once and removed by a thread: waits for that. A run's last call. */
void checkpoint_end_removal(void);
/* Behind every save of a run, on every rank: rank 0 has called checkpoint_save, or failed before it, and says how that
 * ended; the others bring the parts of weights and states that it asks for until then. Returns rank 0's result. So a disk
 * that fails in the middle leaves nobody waiting. The files know no ranks. */
bool checkpoint_share(GPT2 *model, bool ok);
/* Removes what dead saves left in the run's folder, and puts back what they had moved aside. The caller holds the
 * run's lock: whatever is there, no living process writes it. */
void checkpoint_clean(const char *out);
/* The most bytes that a checkpoint takes on the disk. */
int64_t checkpoint_bytes(const GPT2Config *config, OptimizerKind optimizer, bool model_only);
/* False where the disk of `out`, which need not be there yet, has no room for one more checkpoint, those counted that may
 * go before it. */
bool checkpoint_check_room(const char *out, const GPT2Config *config, OptimizerKind optimizer,
                           const SaveOptions *options, Error *err);

/* ---- reading: changes nothing on the disk ---- */
/* What --model PATH stands for: itself, or the newest whole checkpoint of a run's folder. */
bool checkpoint_model_path(const char *path, char *resolved, size_t size, Error *err);
/* Reads the config of X before a model is opened: a checkpoint or Hugging Face directory (also OpenAI's and
 * sharded safetensors with an index), a run's folder (its newest whole checkpoint), or a llm.c .bin. */
bool checkpoint_read_config(const char *path, GPT2Config *config, Error *err);
/* Loads the weights into an open model of the same config. Every field, size, range and checksum is checked
 * before use. */
bool checkpoint_load_weights(const char *path, GPT2 *model, Error *err);
/* Newest whole checkpoint under `out` (sizes and checksums verified), also one that a killed save left aside;
 * damaged ones are named on stderr and skipped. One that a run beside removes meanwhile is looked for anew. False with
 * err->exit_code 0 if there is none, EXIT_INPUT if there are some that cannot be used. */
bool checkpoint_find(const char *out, char *path, size_t path_size, int64_t *step, Error *err);
/* Weights, moments and state of one checkpoint directory; state->flags is malloc'ed. */
bool checkpoint_resume(const char *path, GPT2 *model, TrainerState *state, Error *err);
