/* GPT-2 training: the whole program in one page. Plain C, no kernel; `make train_gpt2` builds it for the CPU
 * alone.
 *
 *   flags -> settings -> backend -> output -> model size -> memory -> data -> weights -> steps -> done
 *
 * Every part is a file of llmc/: flags, setup, gpt2 (the model over ops.h), dataloader, schedule, sampler,
 * checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "llmc/checkpoint.h"
#include "llmc/console.h"
#include "llmc/flags.h"
#include "llmc/gpt2.h"
#include "llmc/log.h"
#include "llmc/profile.h"
#include "llmc/sampler.h"
#include "llmc/schedule.h"
#include "llmc/setup.h"
#include "llmc/terminal.h"

enum { MAX_BAD_STEPS = 3 }; /* skipped updates in a row after which the run stops */

/* A step whose ops are all queued on the device. Its loss and norm are read once the next step is queued as
 * well, so the device never waits for the host. */
typedef struct QueuedStep {
    int64_t step; /* 0: none */
    double begun; /* seconds: when the host began to queue it */
    double lr;
    bool alone; /* no step was running before it: it may have loaded kernels and grown the memory in use */
} QueuedStep;

typedef struct Training {
    Run *run;
    Console console;
    RunLog log;
    double peak_flops;
    double seconds_training; /* wall clock of the steps alone: no evaluation, sampling, saving */
    double train_loss, val_loss;
    TrainerState state; /* of the last step queued: what a checkpoint says beside the model */
    QueuedStep queued;  /* the one whose result is still to be read */
    double result_read; /* seconds: when the last result was there, which is when its step ended */
    int64_t last_saved; /* step; -1: none */
    int bad_in_a_row;
    size_t memory_bytes, peak_memory_bytes; /* measured on the device */
} Training;

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number) {
    (void)signal_number;
    stop_requested = 1;
}

/* The first SIGTERM, SIGINT or SIGHUP (a closed terminal) ends the run after the current step, saved; a
 * second one ends it at once. A reader that leaves (SIGPIPE) does not end it: the failed write is seen where
 * it is made. */
static void catch_signals(void) {
    struct sigaction stop = {.sa_handler = request_stop, .sa_flags = SA_RESETHAND | SA_RESTART};
    const int stopping[] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 3; i++) sigaction(stopping[i], &stop, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* A closed stdin, stdout or stderr is opened on /dev/null, so that no file of ours gets its number. A write
 * beyond a file-size limit fails where it is made (SIGXFSZ would kill, a log or a checkpoint half written). */
static void prepare_files(void) {
    int fd;
    signal(SIGXFSZ, SIG_IGN);
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- evaluation, samples, checkpoints ---- */

/* Mean loss over the first --eval-batches batches of the validation stream: the same ones every time. */
static bool evaluate(Training *t, int64_t step, Error *err) {
    Run *run = t->run;
    if (!run->val) return true;
    double sum = 0;
    const int64_t n = run->settings.eval_batches;
    dataloader_seek(run->val, 0);
    for (int64_t i = 0; i < n; i++) {
        const int32_t *tokens, *targets;
        if (stop_requested) return true; /* the run ends: no value rather than a late one */
        console_status(&t->console, "validating: batch %lld of %lld", (long long)i + 1, (long long)n);
        if (!dataloader_next(run->val, &tokens, &targets, err)) return false;
        sum += gpt2_eval(&run->model, tokens, targets, (int)run->settings.batch, (int)run->settings.seq);
    }
    t->val_loss = sum / (double)n;
    if (!(t->val_loss >= t->state.best_val_loss)) t->state.best_val_loss = t->val_loss;
    console_val(&t->console, step, t->val_loss);
    log_val(&t->log, step, t->val_loss);
    return true;
}

/* Sends a sample's text to the console as it is drawn, and keeps it for the log. */
typedef struct SampleText {
    Console *console;
    char *bytes;
    size_t n;
} SampleText;

static void take_text(const char *bytes, size_t n, void *user) {
    SampleText *text = user;
    console_sample_text(bytes, n, text->console);
    char *grown = realloc(text->bytes, text->n + n);
    if (!grown) return; /* the console has it; the log does without */
    text->bytes = grown;
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
}

static bool draw_sample(Training *t, int64_t step, Error *err) {
    const Settings *s = &t->run->settings;
    if (s->sample_tokens == 0) return true;
    SampleOptions options = {
        .prompt = s->prompt,
        .n_tokens = (int)s->sample_tokens,
        .temperature = (float)s->temperature,
        .top_k = (int)s->top_k,
        .seed = (uint64_t)(s->seed + step),
    };
    SampleText text = {.console = &t->console};
    console_sample_begin(&t->console, step);
    bool ok = sample(&t->run->model, t->run->tokenizer, &options, take_text, &text, err);
    console_sample_end(&t->console);
    if (ok) log_sample(&t->log, step, text.bytes ? text.bytes : "", text.n);
    free(text.bytes);
    return ok;
}

/* In training a sample that fails (no memory left for its cache) is said, and the run goes on. */
static void sample_in_training(Training *t, int64_t step) {
    Error err = {0};
    if (!draw_sample(t, step, &err)) console_note(&t->console, "no sample: %s", err.text);
}

/* Saves the last whole step, unless it is saved already. False with err on a full disk and its kind: earlier
 * checkpoints stand. */
static bool save(Training *t, Error *err) {
    Run *run = t->run;
    const Settings *s = &run->settings;
    if (!s->out || t->last_saved == t->state.step) return true;
    char *flags = flags_to_json(s);
    console_status(&t->console, "saving step %lld", (long long)t->state.step);
    t->state.flags = flags;
    bool ok =
        checkpoint_save(s->out, &run->model, run->tokenizer, &t->state, (int)s->keep, s->model_only, err);
    t->state.flags = NULL;
    free(flags);
    if (ok) t->last_saved = t->state.step;
    return ok;
}

/* In training a save that fails is said, and the run goes on: the next one may find room. */
static void save_in_training(Training *t) {
    Error err = {0};
    if (!save(t, &err)) console_note(&t->console, "%s", err.text);
}

/* ---- one step ---- */

static bool feed(Training *t, Error *err) {
    const Settings *s = &t->run->settings;
    const int64_t n_micro = s->tokens_per_step / (s->batch * s->seq * t->run->n_ranks);
    gpt2_begin_step(&t->run->model);
    for (int64_t i = 0; i < n_micro; i++) {
        const int32_t *tokens, *targets;
        if (t->result_read == 0) /* until the first step is done; then there is the bar */
            console_status(&t->console, "first step: micro-step %lld of %lld", (long long)i + 1,
                           (long long)n_micro);
        if (s->overfit) dataloader_seek(t->run->train, 0);
        if (!dataloader_next(t->run->train, &tokens, &targets, err)) return false;
        gpt2_micro_step(&t->run->model, tokens, targets, (int)s->batch, (int)s->seq, 1.0f / (float)n_micro);
    }
    return true;
}

/* A NaN or inf never reached the weights (ops.h, StepStats); here it is reported, and too many in a row end
 * the run. */
static bool check_step(Training *t, int64_t step, const StepStats *stats, Error *err) {
    t->bad_in_a_row = stats->bad ? t->bad_in_a_row + 1 : 0;
    if (!stats->bad) return true;
    console_note(&t->console, "step %lld: loss %g, gradient norm %g: update skipped, weights untouched",
                 (long long)step, (double)stats->loss, (double)stats->grad_norm);
    if (t->bad_in_a_row < MAX_BAD_STEPS) return true;
    return fail(err, EXIT_RUN,
                "%d steps in a row had a NaN or infinite loss or gradient; stopped at step %lld, earlier "
                "checkpoints stand; "
                "hint: a lower --lr, a longer --warmup, --precision fp32",
                MAX_BAD_STEPS, (long long)step);
}

/* Waits for a queued step and reports it: console, log, NaN. A step lasts from the end of the one before it. */
static bool report_step(Training *t, const QueuedStep *q, Error *err) {
    Run *run = t->run;
    const Settings *s = &run->settings;
    const StepStats stats = gpt2_take_stats(&run->model, (int)(q->step % FETCH_SLOTS));
    const double ended = now(), seconds = ended - fmax(q->begun, t->result_read);
    const double rate = (double)s->tokens_per_step / seconds;
    t->result_read = ended;
    t->seconds_training += seconds;
    t->train_loss = stats.loss;
    t->state.n_skipped = stats.n_skipped;
    if (q->alone) t->memory_bytes = setup_memory_in_use(run);
    if (t->memory_bytes > t->peak_memory_bytes) t->peak_memory_bytes = t->memory_bytes;
    const StepReport report = {
        .step = q->step,
        .loss = stats.loss,
        .lr = q->lr,
        .norm = stats.grad_norm,
        .ms = seconds * 1e3,
        .tokens_per_second = rate,
        .mfu = rate * gpt2_flops_per_token(&run->config, (int)s->seq) / (t->peak_flops * run->n_ranks),
        .memory_bytes = t->memory_bytes,
        .n_skipped = stats.n_skipped,
    };
    console_step(&t->console, &report);
    log_step(&t->log, &report);
    return check_step(t, q->step, &stats, err);
}

/* Reports the step that is still queued, if there is one: before all that needs the model at rest. */
static bool settle(Training *t, Error *err) {
    const QueuedStep q = t->queued;
    t->queued.step = 0;
    return q.step == 0 || report_step(t, &q, err);
}

/* Steps count from 1: `step` is the number of steps done once its ops are. False before anything of the
 * update is queued where the data fail. */
static bool queue_step(Training *t, QueuedStep *q, int64_t step, Error *err) {
    Run *run = t->run;
    const Settings *s = &run->settings;
    const Schedule schedule = settings_schedule(s);
    *q = (QueuedStep){
        .step = step, .begun = now(), .lr = schedule_lr(&schedule, step - 1), .alone = !t->queued.step};
    if (!feed(t, err)) return false;
    gpt2_update(&run->model, &(UpdateArgs){.step = step,
                                           .lr = (float)q->lr,
                                           .beta1 = (float)s->beta1,
                                           .beta2 = (float)s->beta2,
                                           .eps = (float)s->eps,
                                           .weight_decay = (float)s->weight_decay,
                                           .clip = (float)s->clip});
    gpt2_queue_stats(&run->model, (int)(step % FETCH_SLOTS));
    t->state.step = step;
    t->state.tokens_seen += s->tokens_per_step;
    t->state.data_position = dataloader_position(run->train);
    return true;
}

/* Queues a step, then reports the one before it. Where nothing runs ahead, this step is done, too. */
static bool train_step(Training *t, int64_t step, Error *err) {
    QueuedStep q;
    if (!queue_step(t, &q, step, err)) return false;
    const bool ok = settle(t, err);
    t->queued = q;
    return ok && (t->run->ops->runs_ahead || settle(t, err));
}

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* ---- --profile ---- */

/* Plain steps, at least `least`, until `seconds` have passed or a signal came; returns the wall clock of one
 * in seconds, 0 after no step, or -1 with err. */
static double time_steps(Training *t, int64_t *step, int least, double seconds, Error *err) {
    const Ops *ops = t->run->ops;
    QueuedStep q;
    int n = 0;
    ops->synchronize();
    const double begun = now();
    while ((n < least || now() - begun < seconds) && !stop_requested) {
        if (!queue_step(t, &q, ++*step, err)) return -1;
        if (n++ > 0) gpt2_take_stats(&t->run->model, (int)((q.step - 1) % FETCH_SLOTS));
    }
    ops->synchronize();
    return n > 0 ? (now() - begun) / (double)n : 0;
}

/* Steps with every op noted, each queued behind a plain one, so that the host is ahead of the device. */
static bool profile_steps(Training *t, Profile *profile, int64_t *step, double seconds, Error *err) {
    GPT2 *model = &t->run->model;
    const Ops *wrapped = profile_ops(t->run->ops);
    QueuedStep q;
    const double begun = now();
    do {
        if (!queue_step(t, &q, ++*step, err)) return false;
        model->ops = wrapped;
        const bool ok = queue_step(t, &q, ++*step, err);
        model->ops = t->run->ops;
        if (!ok) return false;
        profile_collect(profile);
    } while (now() - begun < seconds && !stop_requested);
    return true;
}

/* Trains for some seconds on the run's own data, prints where a step's time goes, keeps nothing. */
static bool profile_run(Training *t, Error *err) {
    const double warm_up = 1, timed = 2; /* seconds: a card settles at its sustained clock within 0.1 s */
    catch_signals();
    const Roofs roofs = profile_roofs(t->run->ops);
    Profile profile = {0};
    int64_t step = 0;
    if (time_steps(t, &step, 2, warm_up, err) < 0) return false;
    profile.seconds_a_step = time_steps(t, &step, 1, timed, err);
    if (stop_requested && profile.seconds_a_step >= 0)
        return fail(err, EXIT_RUN, "--profile: stopped by a signal before an op was timed");
    if (profile.seconds_a_step < 0 || !profile_steps(t, &profile, &step, timed, err)) return false;
    profile_print(stdout, &profile, &roofs);
    return true;
}

/* ---- the run ---- */

/* Steps until the last one, a signal, or an error. */
static bool run_steps(Training *t, Error *err) {
    const Settings *s = &t->run->settings;
    for (int64_t step = t->state.step + 1; step <= s->steps && !stop_requested; step++) {
        const bool last = step == s->steps, eval = last || due(step, s->eval_every);
        const bool draw = last || due(step, s->sample_every), keep = due(step, s->save_every);
        if (!train_step(t, step, err)) return false;
        if ((eval || draw || keep) && !settle(t, err)) return false;
        if (eval && !evaluate(t, step, err)) return false;
        if (draw) sample_in_training(t, step);
        if (keep) save_in_training(t);
    }
    if (!settle(t, err)) return false;
    if (stop_requested)
        console_note(&t->console, "stopped by a signal after step %lld", (long long)t->state.step);
    return true;
}

static bool train(Training *t, Error *err) {
    const Run *run = t->run;
    const int64_t first_step = t->state.step;
    char planned[CONSOLE_NUMBER], measured[CONSOLE_NUMBER];
    if (first_step >= run->settings.steps)
        return fail(err, EXIT_INPUT,
                    "--steps %lld: the checkpoint is at step %lld already; hint: more --steps",
                    (long long)run->settings.steps, (long long)first_step);
    catch_signals();
    if (!run_steps(t, err)) { /* bad data, say: what was learned until then is kept */
        Error later = {0};    /* of the step that was queued already */
        settle(t, &later);
        if (t->state.step > first_step) save_in_training(t);
        return false;
    }
    if (!save(t, err)) return false;
    console_note(&t->console, "memory: planned %s, measured %s",
                 console_bytes(planned, (double)run->planned_bytes),
                 console_bytes(measured, (double)t->peak_memory_bytes));
    const double tokens = (double)(t->state.step - first_step) * (double)run->settings.tokens_per_step;
    console_done(&t->console, t->state.step, t->train_loss, t->val_loss,
                 t->seconds_training > 0 ? tokens / t->seconds_training : 0);
    return true;
}

static bool work(Training *t, Error *err) {
    const Settings *s = &t->run->settings;
    if (settings_sample_only(s)) return draw_sample(t, t->state.step, err);
    if (s->profile) return profile_run(t, err);
    if (!s->eval_only) return train(t, err);
    if (!evaluate(t, t->state.step, err)) return false;
    console_done(&t->console, t->state.step, NAN, t->val_loss, 0);
    return true;
}

/* Device, data, weights, each of which may take a while: the first line stands before them. */
static bool load(Run *run, Error *err) {
    const Settings *s = &run->settings;
    if (!settings_sample_only(s) && !s->eval_only)
        signal(SIGPIPE, SIG_IGN); /* the reader may leave after it */
    console_row(stdout, "program", "%s", program_version());
    fflush(stdout);
    console_waiting(stdout, "reading the data");
    if (!setup_device(run, err) || !setup_data(run, err)) return false;
    console_waiting(stdout, "loading the model");
    return setup_output(run, err) && setup_model(run, err);
}

/* What the run is, before it starts: everything that a reader of the output needs to repeat it. */
static void describe(Training *t) {
    const Run *run = t->run;
    const char *how;
    console_row(stdout, "device", "%s: %s", run->ops->name, run->ops->device_name());
    setup_print_model(run);
    if (settings_sample_only(&run->settings)) return;
    t->peak_flops = run->ops->peak_flops(&how);
    console_row(stdout, "peak", "%.1f TFLOP/s (%s)", t->peak_flops * 1e-12, how);
    if (run->train) console_row(stdout, "train", "%s", dataloader_description(run->train));
    if (run->val) console_row(stdout, "validation", "%s", dataloader_description(run->val));
    console_settings(stdout, &run->settings, run->n_ranks);
    setup_print_memory(run);
    if (run->checkpoint[0])
        console_row(stdout, "resumed", "%s, step %lld", run->checkpoint, (long long)run->resumed.step);
    else if (run->settings.resume)
        console_row(stdout, "resumed", "nothing: %s holds no checkpoint, a new run begins",
                    run->settings.out);
    fflush(stdout);
}

/* Where the run begins: at the start, or where the checkpoint ended. */
static void start_state(Training *t) {
    t->state = t->run->resumed;
    t->state.seed = (uint64_t)t->run->settings.seed;
    if (t->run->checkpoint[0])
        t->last_saved = t->state.step;
    else
        t->state.best_val_loss = NAN;
}

static bool open_log(Training *t, int argc, char **argv, Error *err) {
    const Run *run = t->run;
    char *flags = flags_to_json(&run->settings);
    LogHeader header = {
        .argc = argc,
        .argv = argv,
        .flags = flags,
        .device = run->ops->device_name(),
        .model = setup_model_name(run),
        .n_parameters = run->model.n_parameters,
        .train_data = run->train ? dataloader_description(run->train) : NULL,
        .val_data = run->val ? dataloader_description(run->val) : NULL,
        .n_ranks = run->n_ranks,
    };
    bool ok = log_open(&t->log, run->train ? run->settings.out : NULL,
                       run->checkpoint[0] ? run->resumed.step : -1, &header, err);
    free(flags);
    return ok;
}

/* What was asked for went to stdout: a full disk or a closed pipe there is a failure. */
static int finish_output(void) {
    Error err = {0};
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    fail(&err, EXIT_RUN, "the output could not be written: %s", strerror(errno));
    die(&err);
}

/* --help and its kind: prints and returns true. */
static bool answer(const Settings *s, const char *program) {
    if (s->help)
        flags_help(stdout, program);
    else if (s->help_markdown)
        flags_help_markdown(stdout);
    else if (s->version)
        print_line(stdout, "%s", program_version());
    else
        return false;
    return true;
}

static int show_memory(Run *run) {
    setup_print_model(run);
    setup_print_memory(run);
    setup_close(run);
    return finish_output();
}

int main(int argc, char **argv) {
    Run run = {.n_ranks = 1};
    Training training = {.run = &run, .train_loss = NAN, .val_loss = NAN, .last_saved = -1};
    Settings *s = &run.settings;
    Error err = {0};
    prepare_files();
    if (!flags_parse(s, argc, argv, &err)) die(&err);
    if (answer(s, argv[0])) return finish_output();
    if (!setup_backend(&run, &err)) die(&err);
    settings_complete(s, run.ops != &ops_cpu, run.n_ranks);
    if (!flags_check(s, run.n_ranks, &err) || !setup_check_output(&run, &err) ||
        !setup_model_size(&run, &err))
        die(&err);
    if (s->memory) return show_memory(&run);
    if (!load(&run, &err)) die(&err);
    start_state(&training);
    describe(&training);
    if (!open_log(&training, argc, argv, &err)) die(&err);
    console_open(&training.console, stdout, run.resumed.step, s->steps);
    if (!work(&training, &err)) die(&err);
    log_close(&training.log);
    /* A training run has its checkpoints and its log; of a profile the output is all. */
    const int status = run.train && !s->profile ? 0 : finish_output();
    setup_close(&run);
    return status;
}
