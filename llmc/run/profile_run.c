#include "profile_run.h"
#include "llmc/base/clock.h"
#include "llmc/base/terminal.h"
#include "llmc/base/version.h"
#include "profile_trace.h"

/* Plain steps, at least `least`, until `seconds` have passed; returns the wall clock of one in seconds, or -1
 * with err. */
static double time_steps(Training *t, int least, double seconds, Error *err) {
    GPT2 *model = &t->run->model;
    const Ops *ops = model->ops;
    int n = 0;
    ops->device->synchronize();
    const double begun = clock_seconds();
    while (n < least || clock_seconds() - begun < seconds) {
        if (!training_queue(t, err)) return -1;
        if (n++ > 0) gpt2_take_stats(model, (int)((t->state.step - 1) % READBACK_SLOTS));
    }
    ops->device->synchronize();
    return (clock_seconds() - begun) / (double)n;
}

/* Steps with every op noted, each queued behind a plain one, so that the host is ahead of the device. */
static bool profile_steps(Training *t, Profile *profile, double seconds, Error *err) {
    GPT2 *model = &t->run->model;
    const Ops *plain = model->ops, *wrapped = profile_ops(plain, &model->at);
    const double begun = clock_seconds();
    do {
        if (!training_queue(t, err)) return false;
        model->ops = wrapped;
        const bool ok = training_queue(t, err);
        model->ops = plain;
        if (!ok) return false;
        profile_collect(profile);
    } while (clock_seconds() - begun < seconds);
    return true;
}

/* --profile-trace, of the last profiled step */
static bool write_trace(FILE *out, const Training *t, double seconds_a_step, Error *err) {
    const char *path = t->run->settings.profile_trace;
    const TraceHead head = {.program = program_version(),
                            .device = t->run->ops->device->name(),
                            .model = setup_model_name(t->run),
                            .seconds_a_step = seconds_a_step};
    int n;
    const ProfileCall *calls = profile_calls(&n);
    if (!path) return true;
    if (!trace_write(path, &head, calls, n, err)) return fail_flag("profile-trace", err);
    print_line(out, "trace: %s, the %d ops of one step; https://ui.perfetto.dev and chrome://tracing open it",
               path, n);
    return true;
}

bool profile_run(FILE *out, Training *t, Error *err) {
    const double warm_up = 1, timed = 2; /* seconds: a card settles at its sustained clock within 0.1 s */
    Roofs roofs = {0};
    Profile profile = {0};
    profile_roofs(&roofs, t->run->ops); /* before the steps and behind them */
    if (time_steps(t, 2, warm_up, err) < 0) return false;
    profile.seconds_a_step = time_steps(t, 1, timed, err);
    if (profile.seconds_a_step < 0 || !profile_steps(t, &profile, timed, err)) return false;
    profile_roofs(&roofs, t->run->ops);
    profile_print(out, &profile, &roofs);
    return write_trace(out, t, profile.seconds_a_step, err);
}
