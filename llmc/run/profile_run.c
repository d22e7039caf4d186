#include "profile_run.h"
#include "llmc/base/clock.h"

static bool queue_next(Training *t, Error *err) {
    return training_queue(t, t->state.step + 1, err);
}

/* Plain steps, at least `least`, until `seconds` have passed; returns the wall clock of one in seconds, or -1
 * with err. */
static double time_steps(Training *t, int least, double seconds, Error *err) {
    GPT2 *model = &t->run->model;
    const Ops *ops = model->ops;
    int n = 0;
    ops->device->synchronize();
    const double begun = clock_seconds();
    while (n < least || clock_seconds() - begun < seconds) {
        if (!queue_next(t, err)) return -1;
        if (n++ > 0) gpt2_take_stats(model, (int)((t->state.step - 1) % READBACK_SLOTS));
    }
    ops->device->synchronize();
    return (clock_seconds() - begun) / (double)n;
}

/* Steps with every op noted, each queued behind a plain one, so that the host is ahead of the device. */
static bool profile_steps(Training *t, Profile *profile, double seconds, Error *err) {
    GPT2 *model = &t->run->model;
    const Ops *plain = model->ops, *wrapped = profile_ops(plain);
    const double begun = clock_seconds();
    do {
        if (!queue_next(t, err)) return false;
        model->ops = wrapped;
        const bool ok = queue_next(t, err);
        model->ops = plain;
        if (!ok) return false;
        profile_collect(profile);
    } while (clock_seconds() - begun < seconds);
    return true;
}

bool profile_run(FILE *out, Training *t, Error *err) {
    const double warm_up = 1, timed = 2; /* seconds: a card settles at its sustained clock within 0.1 s */
    const Roofs before = profile_roofs(t->run->ops);
    Profile profile = {0};
    if (time_steps(t, 2, warm_up, err) < 0) return false;
    profile.seconds_a_step = time_steps(t, 1, timed, err);
    if (profile.seconds_a_step < 0 || !profile_steps(t, &profile, timed, err)) return false;
    const Roofs after = profile_roofs(t->run->ops), roofs = profile_higher_roofs(&before, &after);
    profile_print(out, &profile, &roofs);
    return true;
}
