#include "profile_run.h"
#include "stop.h" /* stop_clock */

typedef struct Steps {
    GPT2 *model;
    QueueStep queue;
    void *user;
    int64_t last; /* queued so far */
} Steps;

/* Plain steps, at least `least`, until `seconds` have passed; returns the wall clock of one in seconds, or -1
 * with err. */
static double time_steps(Steps *steps, int least, double seconds, Error *err) {
    const Ops *ops = steps->model->ops;
    int n = 0;
    ops->device->synchronize();
    const double begun = stop_clock();
    while (n < least || stop_clock() - begun < seconds) {
        if (!steps->queue(steps->user, ++steps->last, err)) return -1;
        if (n++ > 0) gpt2_take_stats(steps->model, (int)((steps->last - 1) % READBACK_SLOTS));
    }
    ops->device->synchronize();
    return (stop_clock() - begun) / (double)n;
}

/* Steps with every op noted, each queued behind a plain one, so that the host is ahead of the device. */
static bool profile_steps(Steps *steps, Profile *profile, double seconds, Error *err) {
    GPT2 *model = steps->model;
    const Ops *plain = model->ops, *wrapped = profile_ops(plain);
    const double begun = stop_clock();
    do {
        if (!steps->queue(steps->user, ++steps->last, err)) return false;
        model->ops = wrapped;
        const bool ok = steps->queue(steps->user, ++steps->last, err);
        model->ops = plain;
        if (!ok) return false;
        profile_collect(profile);
    } while (stop_clock() - begun < seconds);
    return true;
}

bool profile_run(FILE *out, GPT2 *model, QueueStep queue_step, void *user, Error *err) {
    const double warm_up = 1, timed = 2; /* seconds: a card settles at its sustained clock within 0.1 s */
    const Roofs before = profile_roofs(model->ops);
    Profile profile = {0};
    Steps steps = {.model = model, .queue = queue_step, .user = user};
    if (time_steps(&steps, 2, warm_up, err) < 0) return false;
    profile.seconds_a_step = time_steps(&steps, 1, timed, err);
    if (profile.seconds_a_step < 0 || !profile_steps(&steps, &profile, timed, err)) return false;
    const Roofs after = profile_roofs(model->ops), roofs = profile_higher_roofs(&before, &after);
    profile_print(out, &profile, &roofs);
    return true;
}
