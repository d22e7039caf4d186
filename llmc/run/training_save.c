/* Checkpoints of a run: written at once, or by a thread from a snapshot while training goes on. */
#include <stdlib.h>
#include <sys/resource.h>
#include "llmc/base/clock.h"
#include "llmc/base/thread.h"
#include "llmc/comm/watchdog.h"
#include "training.h"

enum { NICENESS = 10 }; /* of the thread: training's threads come first */

/* ---- what became of a save ---- */

static void record(Training *t, int64_t step, bool ok, const char *why, double seconds) {
    Saving *saving = &t->saving;
    if (ok) {
        saving->last_saved = saving->last_begun = step;
        log_checkpoint(&t->log, step, seconds);
    } else if (ranks_leads(t->run->comm->ranks)) {
        log_failed_save(&t->log, step, why);
    }
    if (ok && saving->retry_gap)
        console_note(&t->console, "step %lld is saved; the saves before it had failed", (long long)step);
    saving->retry_gap = ok ? 0 : saving->retry_gap ? 2 * saving->retry_gap : 1;
    saving->retry_step = ok ? 0 : step + saving->retry_gap;
    training_tell_watchdog(t);
}

bool training_take_retry(Training *t, int64_t step) {
    if (!t->saving.retry_step || step < t->saving.retry_step) return false;
    t->saving.retry_step = 0;
    return true;
}

/* Waits for the thread. */
static bool end_background(Training *t) {
    BackgroundSave *b = &t->saving.background;
    watchdog_waits_for_disk(true);
    pthread_join(b->thread, NULL);
    watchdog_waits_for_disk(false);
    b->running = false;
    record(t, b->state.step, b->ok, b->err.text, b->seconds);
    return b->ok;
}

void training_collect_save(Training *t, bool wait) {
    BackgroundSave *b = &t->saving.background;
    if (!b->running || !(wait || atomic_load(&b->ended))) return;
    if (!end_background(t)) warn(&b->err);
    if (b->ok && t->saving.asked)
        console_note(&t->console, "saved step %lld on request", (long long)b->state.step);
    t->saving.asked = false;
}

/* Once, where it is long enough to matter. */
static void say_wait(Training *t, double waited) {
    const BackgroundSave *b = &t->saving.background;
    if (t->saving.said_wait || waited < 0.05) return;
    t->saving.said_wait = true;
    console_note(&t->console,
                 "a save took %.1f s, longer than the steps to the next, which waited %.1f s for it; hint: a "
                 "larger --save-every",
                 b->seconds, waited);
}

void training_await_save(Training *t) {
    Comm *comm = t->run->comm;
    const bool running = t->saving.background.running;
    const double begun = clock_seconds();
    training_collect_save(t, true);
    if (running && !training_stops(t) && t->state.step < t->run->settings.steps)
        say_wait(t, clock_seconds() - begun);
    comm->broadcast_on_host(comm, &t->saving.last_saved, sizeof t->saving.last_saved);
}

/* ---- a save ---- */

static bool write_checkpoint(Run *run, const TrainerState *at, const SaveOptions *options, Error *err) {
    TrainerState state = *at;
    char *flags = flags_to_json(&run->settings);
    state.flags = flags;
    const bool ok = checkpoint_save(run->settings.out, &run->model, run->tokenizer, &state, options, err);
    free(flags);
    return ok;
}

static void *write_in_background(void *argument) {
    BackgroundSave *b = argument;
    if (b->overlaps) setpriority(PRIO_PROCESS, 0, NICENESS); /* of this thread alone, on Linux */
    snapshot_wait(b->options.snapshot);
    b->ok = write_checkpoint(b->run, &b->state, &b->options, &b->err);
    b->seconds = clock_seconds() - b->begun;
    if (b->ok) watchdog_set_saved(b->run->settings.out, b->state.step);
    watchdog_saves(false);
    atomic_store(&b->ended, true);
    return NULL;
}

/* The snapshot is queued; a system that has no thread left writes here and now. */
static bool save_in_background(Training *t, const SaveOptions *options, bool overlap, Error *err) {
    Run *run = t->run;
    BackgroundSave *b = &t->saving.background;
    const double begun = clock_seconds();
    t->saving.last_begun = t->state.step;
    snapshot_take(&run->snapshot, &run->model, options->model_only);
    if (!ranks_leads(run->comm->ranks)) return true;
    *b = (BackgroundSave){
        .run = run, .state = t->state, .options = *options, .overlaps = overlap, .begun = begun};
    b->options.snapshot = &run->snapshot;
    watchdog_saves(true);
    b->running = thread_start(&b->thread, write_in_background, b);
    if (b->running) return true;
    watchdog_saves(false);
    snapshot_wait(&run->snapshot);
    const bool ok = write_checkpoint(run, &b->state, &b->options, err);
    record(t, t->state.step, ok, err->text, clock_seconds() - begun);
    return ok;
}

/* The whole copy, then files: half the time of a save without a snapshot, which copies tensor by tensor. */
static bool save_from_snapshot(Training *t, const SaveOptions *options, Error *err) {
    Comm *comm = t->run->comm;
    bool ok = save_in_background(t, options, false, err);
    if (t->saving.background.running && !(ok = end_background(t))) *err = t->saving.background.err;
    comm->broadcast_on_host(comm, &ok, sizeof ok);
    if (!ranks_leads(comm->ranks)) record(t, t->state.step, ok, "", 0);
    return ok;
}

static bool save_at_once(Training *t, const SaveOptions *options, Error *err) {
    const bool leads = ranks_leads(t->run->comm->ranks);
    const double begun = clock_seconds();
    watchdog_waits_for_disk(true); /* in between for the GPUs, too: who waits for which is not known here */
    const bool ok =
        checkpoint_share(&t->run->model, !leads || write_checkpoint(t->run, &t->state, options, err));
    watchdog_waits_for_disk(false);
    record(t, t->state.step, ok, err->text, clock_seconds() - begun);
    return ok;
}

/* Rank 0 decides. */
static SaveWay choose_way(Training *t, bool overlap, Error *err) {
    bool moved;
    watchdog_waits_for_disk(true);
    const bool ok = setup_follow_output(t->run, &moved, err);
    watchdog_waits_for_disk(false);
    if (!ok) return SAVE_REFUSED;
    if (moved) log_follow(&t->log, t->run->settings.out);
    if (!snapshot_is_open(&t->run->snapshot)) return SAVE_AT_ONCE;
    return overlap ? SAVE_IN_BACKGROUND : SAVE_FROM_SNAPSHOT;
}

/* Behind the last save; behind others a thread removes what is old while training goes on. */
static void await_removal(void) {
    watchdog_waits_for_disk(true);
    checkpoint_end_removal();
    watchdog_waits_for_disk(false);
}

bool training_save(Training *t, const SaveOptions *options, bool overlap, Error *err) {
    Comm *comm = t->run->comm;
    const bool leads = ranks_leads(comm->ranks);
    SaveWay way = SAVE_REFUSED;
    bool ok = false;
    watchdog_set(PHASE_SAVE, t->state.step);
    if (leads) way = choose_way(t, overlap, err);
    comm->broadcast_on_host(comm, &way, sizeof way);
    if (way == SAVE_IN_BACKGROUND) return save_in_background(t, options, true, err);
    if (way == SAVE_FROM_SNAPSHOT) ok = save_from_snapshot(t, options, err);
    if (way == SAVE_AT_ONCE) ok = save_at_once(t, options, err);
    if (way == SAVE_REFUSED) record(t, t->state.step, false, err->text, 0);
    if (!ok && !leads) fail(err, EXIT_RUN, "rank 0 could not save step %lld", (long long)t->state.step);
    if (!overlap) await_removal();
    return ok;
}
