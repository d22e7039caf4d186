#include "saving.h"
#include <stdlib.h>

static bool save(Run *run, RunLog *log, const TrainerState *state, const SaveOptions *options, Error *err) {
    bool moved;
    if (!setup_follow_output(run, &moved, err)) return false;
    if (moved) log_follow(log);
    TrainerState with_flags = *state;
    char *flags = flags_to_json(&run->settings);
    with_flags.flags = flags;
    const bool ok =
        checkpoint_save(run->settings.out, &run->model, run->tokenizer, &with_flags, options, err);
    free(flags);
    return ok;
}

bool saving_save(Saving *saving, Run *run, RunLog *log, const TrainerState *state, const SaveOptions *options,
                 Error *err) {
    if (!run->settings.out || saving->last_saved == state->step) return true;
    if (!ranks_leads(run->comm->ranks)) {
        saving->last_saved = state->step;
        return true;
    }
    const bool ok = save(run, log, state, options, err);
    if (ok)
        saving->last_saved = state->step;
    else
        log_failed_save(log, state->step, err->text);
    saving->retry_gap = ok ? 0 : saving->retry_gap ? 2 * saving->retry_gap : 1;
    saving->retry_step = ok ? 0 : state->step + saving->retry_gap;
    return ok;
}

bool saving_retries(const Saving *saving, int64_t step) {
    return saving->retry_step && step >= saving->retry_step;
}
