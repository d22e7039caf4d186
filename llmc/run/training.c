#include "training.h"
#include "llmc/base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/checkpoint/checkpoint_directory.h"
#include "llmc/comm/watchdog.h"
#include "schedule.h"
#include "stop.h"
#include "verify.h"

const char *training_what_stands(const Training *t, char *text, size_t size) {
    snprintf(text, size,
             t->saving.last_saved < 0 ? "nothing was saved before"
                                      : "earlier checkpoints stand, up to step %lld",
             (long long)t->saving.last_saved);
    return text;
}

void training_tell_watchdog(const Training *t) {
    watchdog_set_saved(t->run->settings.out, t->saving.last_saved);
}

/* A step that is queued as a whole comes to its end, and so does one of many ranks. */
static StopPhase phase_of_step(const Training *t) {
    const bool ends = t->run->ops->device->is_async || t->run->comm->ranks.n_ranks > 1;
    return ends ? STOP_IN_QUEUE : STOP_IN_STEP;
}

/* Before the first step ends, where that takes a while: what one micro-step of it says of the run. */
static void estimate_run(Training *t, int64_t n_micro, double seconds) {
    const double step = seconds * (double)n_micro;
    const int64_t steps = t->run->settings.steps - t->state.step;
    char left[FORMAT_NUMBER];
    if (step < 1) return;
    console_note(&t->console, "a micro-step takes %.2f s: about %.1f s a step, %s for the run", seconds, step,
                 format_duration(left, step * (double)steps));
    stop_expect(phase_of_step(t), clock_seconds() + step - seconds);
}

/* When the step at hand will be done, for who waits for it. */
static void expect_step(const Training *t) {
    const bool behind_another = t->queued.step > 0;
    stop_expect(phase_of_step(t), clock_seconds() + t->step_seconds * (1 + behind_another));
}

/* The step before, while the first of several micro-steps keeps the device busy: a device takes a few of them ahead, so
 * behind the last of many the host would hear of that step's end almost a step late. */
static bool settle_before_rest(Training *t, Error *err) {
    if (!t->queued.step) return true;
    if (!training_settle(t, err)) return false;
    expect_step(t);
    return true;
}

static void set_probe(Probe *probe, const int32_t *tokens, const int32_t *targets, const Settings *s) {
    const int n = s->seq < PROBE_TOKENS ? (int)s->seq : PROBE_TOKENS;
    probe->n = n - n % (int)s->context_gpus; /* ranks share it out */
    memcpy(probe->tokens, tokens, (size_t)probe->n * sizeof *tokens);
    memcpy(probe->targets, targets, (size_t)probe->n * sizeof *targets);
}

/* The step at hand is left out. Ranks do not: they end every step together. */
static bool is_cut(const Training *t) {
    return t->run->comm->ranks.n_ranks == 1 && stop_now();
}

/* The micro-steps of a step, or those of them that come before a stop. */
static bool forward_backward(Training *t, int64_t step, Error *err) {
    const Settings *s = &t->run->settings;
    const Ops *ops = t->run->ops;
    const int groups = setup_data_ranks(t->run).n_ranks;
    const int64_t n_micro = s->tokens_per_step / (s->batch * s->seq * groups);
    const bool first = t->state.step == t->run->resumed.step;
    gpt2_begin_step(&t->run->model, n_micro);
    for (int64_t i = 0; i < n_micro && !is_cut(t); i++) {
        const int32_t *tokens, *targets;
        /* A device warms up in the first; behind the first step there is the bar. */
        const bool timed = first && n_micro > 1 && i == ops->device->is_async;
        if (first)
            console_status(&t->console, "first step: micro-step %lld of %lld", (long long)i + 1,
                           (long long)n_micro);
        if (s->overfit) dataloader_seek(t->run->train, 0);
        if (!dataloader_next(t->run->train, &tokens, &targets, err)) return fail_flag("train", err);
        if (timed) ops->device->synchronize();
        const double begun = clock_seconds();
        gpt2_micro_step(&t->run->model, tokens, targets, (int)s->batch, (int)s->seq,
                        1.0f / (float)(n_micro * groups));
        if (timed) ops->device->synchronize();
        if (timed && !is_cut(t)) estimate_run(t, n_micro, clock_seconds() - begun);
        if (i == 0) set_probe(&t->fed[step % 2], tokens, targets, s);
        if (i == 0 && n_micro > 1 && !settle_before_rest(t, err)) return false;
    }
    return true;
}

/* The step's micro-steps once more, with the same data and masks: the gradients must have the same bits. */
static bool forward_backward_again(Training *t, int64_t step, int64_t data_position, Error *err) {
    GPT2 *model = &t->run->model;
    char stands[80];
    const uint64_t first = gpt2_hash_gradients(model);
    dataloader_seek(t->run->train, data_position);
    model->step--; /* begun once more */
    if (!forward_backward(t, step, err)) return false;
    if (is_cut(t) || gpt2_hash_gradients(model) == first) return true;
    t->untrusted = true;
    return fail(
        err, EXIT_RUN,
        "step %lld was computed twice, and its gradients differ: the device or its memory makes errors; "
        "stopped and not saved, %s",
        (long long)step, training_what_stands(t, stands, sizeof stands));
}

/* The micro-steps of a step, twice where --verify-every says so. */
static bool forward_backward_checked(Training *t, int64_t step, Error *err) {
    const int64_t every = t->run->settings.verify_every, position = dataloader_position(t->run->train);
    if (!forward_backward(t, step, err)) return false;
    return every == 0 || step % every != 0 || is_cut(t) || forward_backward_again(t, step, position, err);
}

/* What may help against NaN: where no step went well, the weights were bad from the start. */
static void divergence_hint(const Training *t, char *text, size_t size) {
    const Run *run = t->run;
    const char *precision = run->ops->dtype == DTYPE_BF16 ? ", --precision fp32" : "";
    if (t->good.n || !run->model_path[0])
        snprintf(text, size, "a lower --lr, a longer --warmup%s", precision);
    else if (run->checkpoint[0])
        snprintf(text, size, "with %s out of the way --resume goes on from the checkpoint before it",
                 run->checkpoint);
    else
        snprintf(text, size, "see whether the weights of %s are whole%s", run->model_path, precision);
}

/* A NaN or inf never reached the weights (ops.h, StepStats); here it is reported, and too many in a row end
 * the run. */
static bool check_step(Training *t, int64_t step, const StepStats *stats, Error *err) {
    char stands[80], hint[1200];
    t->bad_in_a_row = stats->bad ? t->bad_in_a_row + 1 : 0;
    if (!stats->bad) {
        t->good = t->fed[step % 2];
        return true;
    }
    console_note(&t->console, "step %lld: loss %g, gradient norm %g: update skipped, weights untouched",
                 (long long)step, stats->loss, stats->grad_norm);
    if (t->bad_in_a_row < MAX_BAD_STEPS) return true;
    t->untrusted = true;
    divergence_hint(t, hint, sizeof hint);
    return fail(
        err, place_diverged(&t->run->place),
        "%d steps in a row had a NaN or infinite loss or gradient; stopped at step %lld and not saved, %s; "
        "hint: %s",
        MAX_BAD_STEPS, (long long)step, training_what_stands(t, stands, sizeof stands), hint);
}

double training_mfu(Training *t, double flops) {
    const double of_a_rank = flops / t->run->comm->ranks.n_ranks;
    const char *how;
    if (of_a_rank > t->peak_flops) {
        const double again = t->run->ops->device->peak_flops(t->run->ops->dtype, &how);
        if (strcmp(how, "measured") == 0) t->peak_flops = fmax(of_a_rank, again);
    }
    return of_a_rank / t->peak_flops;
}

/* Ranks must have had the same weights in this step. */
static bool check_weights(Training *t, const QueuedStep *q, uint64_t hash, Error *err) {
    if (!q->hashed) return true;
    if (verify_weights(t->run->comm, &t->run->rendezvous, hash, q->step, err)) {
        t->saving.last_verified = t->saving.last_begun;
        return true;
    }
    const Error differ = *err;
    t->untrusted = true;
    training_collect_save(t, true);
    if (t->saving.last_verified > t->saving.last_saved) t->saving.last_verified = t->saving.last_saved;
    return fail(
        err, EXIT_RUN,
        t->saving.last_verified < 0
            ? "%s; stopped and not saved; no checkpoint was saved while they were equal"
            : "%s; stopped and not saved; the checkpoint of step %lld was saved while they were equal",
        differ.text, (long long)t->saving.last_verified);
}

/* Waits for a queued step and reports it: console, log, NaN. A step lasts from the end of the one before it. */
static bool report_step(Training *t, const QueuedStep *q, Error *err) {
    Run *run = t->run;
    const Settings *s = &run->settings;
    const StepStats stats = gpt2_take_stats(&run->model, (int)(q->step % READBACK_SLOTS));
    watchdog_progress();
    const double ended = clock_seconds(), seconds = ended - fmax(q->begun, t->result_read);
    const double rate = (double)s->tokens_per_step / seconds;
    t->result_read = ended;
    t->seconds_training += seconds;
    t->step_seconds = seconds;
    t->train_loss = stats.loss;
    t->state.n_skipped = stats.n_skipped;
    t->stop_agreed = t->stop_agreed || stats.stop;
    t->save_agreed = t->save_agreed || stats.save;
    if (q->none_in_flight) t->memory_bytes = setup_memory_in_use(run);
    if (t->memory_bytes > t->peak_memory_bytes) t->peak_memory_bytes = t->memory_bytes;
    const StepReport report = {
        .step = q->step,
        .loss = t->train_loss,
        .lr = q->lr,
        .norm = stats.grad_norm,
        .ms = seconds * 1e3,
        .tokens_per_second = rate,
        .mfu = training_mfu(t, rate * q->flops_per_token),
        .memory_bytes = t->memory_bytes,
        .n_skipped = stats.n_skipped,
    };
    console_step(&t->console, &report);
    log_step(&t->log, &report);
    return check_step(t, q->step, &stats, err) && check_weights(t, q, stats.hash, err);
}

bool training_settle(Training *t, Error *err) {
    const QueuedStep q = t->queued;
    t->queued.step = 0;
    return q.step == 0 || report_step(t, &q, err);
}

/* Leaves *q without a step where a stop left it out. */
static bool queue_step(Training *t, QueuedStep *q, int64_t step, Error *err) {
    Run *run = t->run;
    const Settings *s = &run->settings;
    *q = (QueuedStep){.step = step,
                      .begun = clock_seconds(),
                      .lr = schedule_lr(s, step - 1),
                      .none_in_flight = !t->queued.step,
                      .hashed =
                          verify_weights_due(run->comm->ranks, step, t->state.step == run->resumed.step)};
    expect_step(t);
    if (!forward_backward_checked(t, step, err)) return false;
    if (is_cut(t)) {
        q->step = 0;
        return true;
    }
    if (stop_requested()) gpt2_request_stop(&run->model);
    if (run->comm->ranks.n_ranks > 1 && (stop_take_save_request() || training_take_retry(t, step)))
        gpt2_request_save(&run->model);
    if (q->hashed) gpt2_hash_weights(&run->model);
    gpt2_update(&run->model, &(UpdateArgs){.step = step,
                                           .lr = (float)q->lr,
                                           .beta1 = (float)s->beta1,
                                           .beta2 = (float)s->beta2,
                                           .eps = (float)s->eps,
                                           .weight_decay = (float)s->weight_decay,
                                           .clip = (float)s->clip,
                                           .momentum = (float)s->momentum,
                                           .polynomial = s->muon_polynomial});
    q->flops_per_token = gpt2_step_flops_per_token(&run->model, (int)s->seq);
    gpt2_queue_stats(&run->model, (int)(step % READBACK_SLOTS));
    t->state.step = step;
    t->state.val_loss = NAN;
    t->state.tokens_seen += s->tokens_per_step;
    t->state.data_position = dataloader_position(run->train);
    t->state.data_tokens = dataloader_n_tokens(run->train);
    t->state.data_fingerprint = dataloader_fingerprint(run->train);
    return true;
}

/* Of text that the tokens stand for: end-of-text is none. */
static double text_bytes(const Tokenizer *tokenizer, const int32_t *tokens, int64_t n) {
    double sum = 0;
    size_t length;
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] != tokenizer_eot(tokenizer) && tokenizer_bytes(tokenizer, tokens[i], &length))
            sum += (double)length;
    return sum;
}

/* Of this rank's batches in their order the next one: batch i of all. *loss is the rank's part. */
static bool eval_batch(Training *t, int64_t i, double *loss, Error *err) {
    Run *run = t->run;
    const Settings *s = &run->settings;
    const int32_t *tokens, *targets;
    console_status(&t->console, "validating: batch %lld of %lld", (long long)i + 1,
                   (long long)s->eval_batches);
    if (!dataloader_next(run->val, &tokens, &targets, err)) return setup_fail_val(run, err);
    *loss = gpt2_eval(&run->model, tokens, targets, (int)s->batch, (int)s->seq);
    watchdog_progress();
    if (s->eval_only && run->tokenizer)
        t->val_bytes += text_bytes(run->tokenizer, targets, s->batch * s->seq);
    return true;
}

/* What --keep-best compares with: a checkpoint that could not be written is not the best so far. All ranks. */
static void find_lowest_saved(Training *t) {
    Comm *comm = t->run->comm;
    TrainerState *state = &t->state;
    watchdog_set(PHASE_SAVE, state->step);
    training_collect_save(t, true);
    watchdog_waits_for_disk(true);
    if (ranks_leads(comm->ranks))
        state->best_val_loss =
            checkpoint_lowest_loss(t->run->settings.out, state->step, setup_save_options(t->run).validation);
    watchdog_waits_for_disk(false);
    comm->broadcast_on_host(comm, &state->best_val_loss, sizeof state->best_val_loss);
}

/* The sum of the losses of n batches, added in their order, which ranks take in turn. Not whole where the run stops. */
static bool sum_losses(Training *t, int64_t n, double *sum, Error *err) {
    enum { OF_A_RANK = 8 }; /* batches until the ranks ask each other whether to stop */
    Comm *comm = t->run->comm;
    const Ranks data = setup_data_ranks(t->run);
    const int most = OF_A_RANK * data.n_ranks; /* no rank waits in a block for one that has more of it */
    double *losses = must_allocate((size_t)most * sizeof *losses, "losses of batches");
    bool ok = true;
    *sum = 0;
    for (int64_t first = 0; ok && first < n; first += most) {
        const int block = n - first < most ? (int)(n - first) : most;
        for (int i = 0; ok && i < block && !training_stops(t); i++) {
            const bool own = (first + i) % data.n_ranks == data.rank;
            losses[i] = 0;
            if (own) ok = eval_batch(t, first + i, &losses[i], err);
        }
        if (!ok || training_agrees_to_stop(t)) break;
        comm->sum_on_host(comm, losses, block);
        for (int i = 0; i < block; i++) *sum += losses[i];
    }
    free(losses);
    return ok;
}

bool training_validate(Training *t, double *mean, Error *err) {
    Comm *comm = t->run->comm;
    const int64_t n = t->run->settings.eval_batches;
    double sum;
    watchdog_set(PHASE_VALIDATION, t->state.step);
    dataloader_seek(t->run->val, 0);
    t->val_bytes = 0;
    if (!sum_losses(t, n, &sum, err)) return false;
    if (training_stops(t)) return true;
    if (t->run->settings.eval_only) comm->sum_on_host(comm, &t->val_bytes, 1);
    t->val_bytes /= (double)t->run->settings.context_gpus; /* which all have the same tokens */
    *mean = sum / (double)n;
    if (t->run->settings.keep_best) find_lowest_saved(t);
    return true;
}

bool training_take_save_request(Training *t) {
    if (t->run->comm->ranks.n_ranks == 1) return stop_take_save_request();
    const bool asked = t->save_agreed;
    t->save_agreed = false;
    return asked;
}

bool training_stops(const Training *t) {
    return t->stop_agreed || (t->run->comm->ranks.n_ranks == 1 && stop_requested());
}

bool training_agrees_to_stop(Training *t) {
    Comm *comm = t->run->comm;
    double asked = stop_requested();
    if (comm->ranks.n_ranks == 1) return training_stops(t);
    comm->sum_on_host(comm, &asked, 1);
    t->stop_agreed = t->stop_agreed || asked > 0;
    return t->stop_agreed;
}

bool training_step(Training *t, int64_t step, Error *err) {
    QueuedStep q;
    watchdog_set(PHASE_STEP, step);
    if (!queue_step(t, &q, step, err)) return false;
    const bool ok = training_settle(t, err);
    t->queued = q;
    return ok && (t->run->ops->device->is_async || training_settle(t, err));
}

bool training_queue(Training *t, Error *err) {
    QueuedStep q;
    return queue_step(t, &q, t->state.step + 1, err);
}
