/* Checkpoints: a directory that Hugging Face transformers loads as it is, plus what a bitwise resume needs.
 *
 *   OUT/step_00000200/
 *     model.safetensors      fp32 master weights, Hugging Face names and orientation (Conv1D transposed)
 *     config.json            and the tokenizer's files
 *     optimizer.safetensors  m and v ("m.h.0.attn.c_attn.weight", same orientation as the weights)
 *     trainer_state.json     step, seed, data position, skipped updates, flags; sizes and checksums
 *
 * Written to a temporary directory beside it, every file and directory fsync'ed, then renamed. Never in
 * place. The wte rows past vocab_size are not stored. */
#pragma once
#include "gpt2.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TrainerState {
    int64_t step;          /* optimizer steps done */
    int64_t data_position; /* dataloader_position */
    int64_t tokens_seen;
    int64_t n_skipped; /* StepStats.n_skipped */
    uint64_t seed;
    double best_val_loss; /* NAN before the first evaluation; stored as null */
    const char *flags;    /* the run's flags as flags_to_json writes them; may be NULL */
} TrainerState;

/* Saves OUT/step_%08d; then, where keep > 0, removes all but the newest `keep` whole checkpoints. model_only:
 * no optimizer; such a checkpoint serves --model, not --resume. On failure (disk full, no permission) the
 * previous checkpoints stand, the temporary directory is gone, err says. */
bool checkpoint_save(const char *out, GPT2 *model, const Tokenizer *tokenizer, const TrainerState *state,
                     int keep, bool model_only, Error *err);
/* What --model PATH stands for: itself, or the newest whole checkpoint of a run's folder. */
bool checkpoint_model_path(const char *path, char *resolved, size_t size, Error *err);
/* Reads the config of X before a model is opened: a checkpoint or Hugging Face directory (also OpenAI's and
 * sharded safetensors with an index), a run's folder (its newest whole checkpoint), or a llm.c .bin. */
bool checkpoint_read_config(const char *path, GPT2Config *config, Error *err);
/* Loads the weights into an open model of the same config. Every field, size, range and checksum is checked
 * before use. */
bool checkpoint_load_weights(const char *path, GPT2 *model, Error *err);
/* Newest whole checkpoint under `out` (sizes and checksums verified); damaged ones are named on stderr and
 * skipped. False with err->exit_code 0 if there is none, EXIT_INPUT if there are some that cannot be used. */
bool checkpoint_find(const char *out, char *path, size_t path_size, Error *err);
/* Weights, moments and state of one checkpoint directory; state->flags is malloc'ed. */
bool checkpoint_resume(const char *path, GPT2 *model, TrainerState *state, Error *err);

#ifdef __cplusplus
}
#endif
