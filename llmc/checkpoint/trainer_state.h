/* Where a run stands, as a checkpoint keeps it beside the weights and moments. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct TrainerState {
    int64_t step;          /* optimizer steps done */
    int64_t data_position; /* dataloader_position */
    int64_t data_tokens; /* dataloader_n_tokens, of which the order is made; 0: an earlier program wrote it */
    int64_t data_fingerprint; /* dataloader_fingerprint; 0: an earlier program wrote it */
    int64_t tokens_seen;
    int64_t n_skipped; /* StepStats.n_skipped */
    int64_t seed;
    double best_val_loss; /* NAN before the first evaluation; stored as null */
    double val_loss;      /* of this very step; NAN: it was not evaluated; stored as null */
    bool best_only;       /* saved for its validation loss alone: it goes when a lower one is saved */
    const char *flags;    /* the run's flags as flags_to_json writes them; may be NULL */
} TrainerState;
