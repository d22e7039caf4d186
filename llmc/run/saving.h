/* Saving while the run goes on: where to, what of a failure, when again. */
#pragma once
#include "log.h"
#include "setup.h"

typedef struct Saving {
    int64_t last_saved; /* step; -1: none */
    int64_t retry_step; /* a save failed: the step after which the next is tried; 0: none failed */
    int64_t retry_gap;  /* steps from the failed one to that: 1, then twice as many each time */
} Saving;

/* Saves the run at `state`, unless that step is saved already or there is no --out; state->flags is filled here. A
 * failure is written to the log, too, and sets the time of the next try. */
bool saving_save(Saving *saving, Run *run, RunLog *log, const TrainerState *state, const SaveOptions *options,
                 Error *err);
/* True after the step in which a save that failed is tried again. */
bool saving_retries(const Saving *saving, int64_t step);
