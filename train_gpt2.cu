/* GPT-2 training: the whole program in one page. Plain C, no kernel; `make train_gpt2` builds it for the CPU
 * alone.
 *
 *   flags -> settings -> backend -> output -> model size -> memory -> data -> weights -> steps -> done
 *
 * Every part is a file of llmc/: flags, setup, gpt2 (the model over ops.h), dataloader, schedule, samples,
 * checkpoint, training (a step), stop (signals). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/checkpoint/export.h"
#include "llmc/comm/watchdog.h"
#include "llmc/run/console.h"
#include "llmc/run/flags.h"
#include "llmc/model/gpt2.h"
#include "llmc/run/log.h"
#include "llmc/run/profile_run.h"
#include "llmc/run/profile_trace.h"
#include "llmc/run/samples.h"
#include "llmc/run/score.h"
#include "llmc/run/setup.h"
#include "llmc/base/clock.h"
#include "llmc/base/files.h"
#include "llmc/base/stack.h"
#include "llmc/run/stop.h"
#include "llmc/base/terminal.h"
#include "llmc/run/training.h"

/* ---- evaluation, samples, checkpoints ---- */

/* --eval-only: what compares models of any vocabulary stands before the loss. */
static void say_val_loss(Training *t, int64_t step) {
    const Settings *s = &t->run->settings;
    const double tokens = (double)(s->eval_batches * s->batch * s->seq);
    char bits[64] = "bits a byte: not known without a tokenizer";
    if (t->val_bytes > 0)
        snprintf(bits, sizeof bits, "%.6f bits a byte", t->val_loss * tokens / (log(2) * t->val_bytes));
    console_note(&t->console, "step %lld | perplexity %.4f | %s", (long long)step, exp(t->val_loss), bits);
    console_note(&t->console, "step %lld | val loss %.6f", (long long)step, t->val_loss);
}

static bool validate(Training *t, int64_t step, Error *err) {
    const Settings *s = &t->run->settings;
    double mean = NAN;
    if (!training_validate(t, &mean, err)) return false;
    if (training_stops(t)) return true; /* the run ends: no value rather than a late one */
    t->val_loss = unsigned_nan(mean);
    t->val_step = step;
    t->state.val_loss = t->val_loss;
    t->is_best = isfinite(t->val_loss) && !(t->val_loss >= t->state.best_val_loss);
    if (t->is_best) t->state.best_val_loss = t->val_loss;
    if (s->eval_only)
        say_val_loss(t, step);
    else
        console_val(&t->console, step, t->val_loss);
    log_val(&t->log, step, t->val_loss, s->eval_only ? s->val ? s->val : s->train : NULL);
    return true;
}

/* --hellaswag. With --eval-only the log has each item's choice. */
static bool score_choices(Training *t, int64_t step, Error *err) {
    const Run *run = t->run;
    const double begun = clock_seconds();
    ChoiceScore score;
    unsigned char *chosen = NULL;
    if (run->settings.eval_only)
        chosen = must_allocate((size_t)run->choices->n_items, "--hellaswag's choices");
    const bool ok = training_score(t, &score, chosen, err);
    if (ok && !training_stops(t)) {
        t->n_lost = score.n_lost;
        console_score(&t->console, step, &score, clock_seconds() - begun);
        log_score(&t->log, step, &score, chosen, chosen ? run->settings.hellaswag : NULL);
    }
    free(chosen);
    return ok;
}

static bool evaluate(Training *t, int64_t step, Error *err) {
    const Run *run = t->run;
    stop_expect(STOP_IN_EVALUATION, INFINITY);
    return (!run->choices || score_choices(t, step, err)) &&
           (!run->val || training_stops(t) || validate(t, step, err));
}

/* In training a sample that fails (no memory left for its cache) is said, and the run goes on. */
static void sample_in_training(Training *t, int64_t step) {
    Error err = {0};
    if (!samples_in_training(t, step, &err)) console_note(&t->console, "no sample: %s", err.text);
}

/* Loss of the weights as they are, on a little of the last good step's data, all ranks'; whole, whatever the signals
 * say. */
static double probe_loss(Training *t) {
    GPT2 *model = &t->run->model;
    Comm *comm = t->run->comm;
    bool (*const stop)(void) = model->stop;
    model->stop = NULL;
    double loss = gpt2_eval(model, t->good.tokens, t->good.targets, 1, t->good.n);
    model->stop = stop;
    comm->sum_on_host(comm, &loss, 1);
    return unsigned_nan(loss / setup_data_ranks(t->run).n_ranks);
}

/* False, with err, for weights that have diverged: no finite loss, or one far beyond what any guess has. */
static bool check_state(Training *t, Error *err) {
    const double of_a_guess = log(t->run->config.vocab_size), limit = 10 + 3 * of_a_guess;
    const bool is_validated = t->val_step == t->state.step,
               by_validation = is_validated && (!t->good.n || !isfinite(t->val_loss));
    char stands[80];
    training_what_stands(t, stands, sizeof stands);
    if (!t->good.n && !is_validated)
        return fail(err, EXIT_RUN, "checkpoint of step %lld not saved: no step went well; %s",
                    (long long)t->state.step, stands);
    const double loss = by_validation ? t->val_loss : probe_loss(t);
    if (loss <= limit) return true;
    return fail(
        err, place_diverged(&t->run->place),
        "checkpoint of step %lld not saved: the weights have diverged, their %sloss is %g where a guess "
        "has %.1f; %s",
        (long long)t->state.step, by_validation ? "validation " : "", loss, of_a_guess, stands);
}

/* Saves the last whole step; `overlap`: beside training, and true means that it has begun. Where there is nothing new in it,
 * true: new is a step, or the loss of a validation that was made up. After a bad step nothing is removed for the save. False with
 * err on weights that have diverged, a full disk and its kind: earlier checkpoints stand. */
static bool save(Training *t, bool overlap, Error *err) {
    Run *run = t->run;
    const SaveOptions options =
        t->bad_in_a_row ? (SaveOptions){.model_only = run->settings.model_only} : setup_save_options(run);
    const bool is_new = t->state.step > run->resumed.step, made_up = !is_new && t->val_step == t->state.step;
    if (!run->settings.out || (!is_new && !made_up)) return true;
    stop_expect(STOP_IN_SAVE, INFINITY);
    training_await_save(t);
    if (t->saving.last_saved == t->state.step && !made_up) return true;
    if (!check_state(t, err)) {
        log_failed_save(&t->log, t->state.step, err->text);
        return false;
    }
    console_status(&t->console, "saving step %lld", (long long)t->state.step);
    return training_save(t, &options, overlap, err);
}

/* In training a save that fails is said, and the run goes on: the next one may find room. */
static void save_in_training(Training *t, bool best_only) {
    Error err = {0};
    t->state.best_only = best_only;
    if (t->run->settings.out && t->bad_in_a_row) {
        console_note(&t->console, "checkpoint of step %lld left out: its update was skipped",
                     (long long)t->state.step);
        if (!best_only) t->saving.retry_step = t->state.step + 1;
    } else if (!save(t, true, &err)) {
        const bool diverged = !t->saving.retry_step;
        if (diverged) /* on all ranks; a disk fails on rank 0 */
            console_note(&t->console, "%s", err.text);
        else if (ranks_leads(t->run->comm->ranks))
            warn(&err);
    }
    t->state.best_only = false;
}

/* SIGUSR1. */
static void save_on_request(Training *t) {
    if (!t->run->settings.out)
        console_note(&t->console, "SIGUSR1: there is no --out to save in");
    else
        save_in_training(t, false);
    if (t->saving.last_saved == t->state.step)
        console_note(&t->console, "saved step %lld on request", (long long)t->state.step);
    else /* said when it is done; a failed save that is tried again was not asked for */
        t->saving.asked = t->saving.background.running && !t->saving.retry_gap;
}

static bool export(Training *t, Error *err) {
    const Settings *s = &t->run->settings;
    int64_t bytes;
    char size[FORMAT_NUMBER];
    if (!t->run->model_path[0]) /* random: seldom what was meant */
        print_note("--model %s is a size, not files: its weights are new, and random; hint: --model PATH",
                   s->model);
    if (t->run->config.documents)
        print_note("attention of this model sees its own document only; a program that knows no documents "
                   "lets it see all: its output is another past an end-of-text token");
    console_status(&t->console, "writing %s", s->export_path);
    stop_defer(); /* a signal ends it when what is written until then is removed */
    file_writes_end = stop_is_deferred;
    const bool ok =
        export_model(s->export_path, s->export_type, &t->run->model, t->run->tokenizer, &bytes, err);
    stop_end_deferred();
    if (!ok) return false;
    console_note(&t->console, "exported: %s, %s, %s; to open it: %s", s->export_path,
                 export_type_names[s->export_type], format_bytes(size, (double)bytes),
                 export_hint(s->export_path, s->export_type));
    return true;
}

/* ---- the run ---- */

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* Without --out the output is all that comes of a run. */
static bool check_output(const Training *t, Error *err) {
    return t->run->settings.out || !ferror(stdout) ||
           fail(err, EXIT_RUN,
                "the output could not be written, and without --out it is all that the run leaves");
}

static void say_stopped(Training *t, bool saved) {
    const Settings *s = &t->run->settings;
    if (t->state.step > t->run->resumed.step)
        console_note(&t->console, "stopped by a signal after step %lld%s", (long long)t->state.step,
                     s->out && saved && !s->model_only ? "; --resume goes on from there" : "");
    else
        console_note(&t->console,
                     "stopped by a signal before the end of its first step: nothing new to save");
}

/* The validation before which a signal ended the run that is resumed; its checkpoint is then written anew, with the loss. */
static bool make_up_validation(Training *t, Error *err) {
    Run *run = t->run;
    const int64_t step = t->state.step;
    if (!setup_owes_validation(run)) return true;
    console_note(&t->console, "step %lld was saved before its validation, which comes now", (long long)step);
    if (!evaluate(t, step, err)) return false;
    if (training_stops(t)) return true;
    log_sources(&t->log, step, run->train, t->state.data_position);
    if (step == run->settings.steps) sample_in_training(t, step);
    save_in_training(t, run->settings.keep_best && t->is_best && !due(step, run->settings.save_every) &&
                            step < run->settings.steps);
    t->val_step = -1; /* nothing more to save of this step */
    return true;
}

/* Steps until the last one, a signal, or an error. */
static bool run_steps(Training *t, Error *err) {
    const Settings *s = &t->run->settings;
    const bool alone = t->run->comm->ranks.n_ranks == 1; /* else rank 0 asks for it, as SIGUSR1 does */
    if (!make_up_validation(t, err)) return false;
    for (int64_t step = t->state.step + 1; step <= s->steps && !training_stops(t); step++) {
        const bool last = step == s->steps, eval = settings_validates_after(s, step);
        const bool draw = last || due(step, s->sample_every);
        const bool retry = alone && training_take_retry(t, step); /* of a save that failed */
        const bool keep = retry || due(step, s->save_every);
        if (!training_step(t, step, err) || !check_output(t, err)) return false;
        training_collect_save(t, false);
        if (training_stops(t)) break;
        const bool asked = training_take_save_request(t);
        if ((eval || draw || keep || asked) && !training_settle(t, err)) return false;
        if (eval && !evaluate(t, step, err)) return false;
        if (eval) log_sources(&t->log, step, t->run->train, t->state.data_position);
        if (draw && !training_stops(t)) sample_in_training(t, step);
        const bool best = s->keep_best && eval && t->is_best && !training_stops(t);
        if ((keep || best) && !last) save_in_training(t, best && !keep); /* train() saves the last one */
        if (asked) save_on_request(t);
    }
    return training_settle(t, err);
}

static bool train(Training *t, Error *err) {
    const Run *run = t->run;
    const int64_t first_step = t->state.step;
    char planned[FORMAT_NUMBER], measured[FORMAT_NUMBER];
    stop_catch();
    if (!run_steps(t, err)) { /* bad data, say: what was learned until then is kept */
        Error later = {0};    /* of the step that was queued already */
        training_collect_save(t, true);
        if (run->comm->ranks.n_ranks > 1) return false; /* the other ranks are in their step */
        training_settle(t, &later);
        if (!t->untrusted && !save(t, false, &later)) warn(&later);
        return false;
    }
    const bool is_asked = run->settings.resume || !settings_out_is_default(&run->settings);
    const bool saved = save(t, false, err);
    if (training_stops(t)) say_stopped(t, saved);
    if (!saved && is_asked) return false;
    if (!saved) warn(err);
    console_note(&t->console, "memory: planned %s, measured %s",
                 format_bytes_finely(planned, (double)run->planned_bytes),
                 t->peak_memory_bytes ? format_bytes_finely(measured, (double)t->peak_memory_bytes) : "n/a");
    const double tokens = (double)(t->state.step - first_step) * (double)run->settings.tokens_per_step;
    console_done(&t->console, t->state.step, t->train_loss, t->val_loss,
                 t->seconds_training > 0 ? tokens / t->seconds_training : 0);
    return true;
}

/* --eval-only: the loss is the last line. */
static bool eval_only(Training *t, Error *err) {
    if (!evaluate(t, t->state.step, err)) return false;
    if (t->run->val && !isfinite(t->val_loss))
        return fail(err, EXIT_RUN, "--eval-only: the validation loss of %s is %g", setup_model_name(t->run),
                    t->val_loss);
    if (t->n_lost > 0)
        return fail(err, EXIT_RUN, "--hellaswag: %d of %d items have losses of %s that are NaN or infinite",
                    t->n_lost, t->run->choices->n_items, setup_model_name(t->run));
    return true;
}

static bool run_mode(Training *t, Error *err) {
    const Settings *s = &t->run->settings;
    if (s->export_path) return export(t, err);
    if (settings_sample_only(s)) return samples_alone(t->run, t->state.step, err);
    if (s->profile) return profile_run(stdout, t, err);
    return s->eval_only ? eval_only(t, err) : train(t, err);
}

static void say_program(const Run *run) {
    console_row(setup_header(run), "program", "%s", program_version());
    print_flush(setup_header(run));
}

/* Device, data, output folder, some of which may take a while: the first line stands before them. */
static bool load(Run *run, Error *err) {
    const Settings *s = &run->settings;
    FILE *header = setup_header(run);
    if (!setup_check_data(run, err)) return false;
    if (s->export_path && !export_check(s->export_path, s->export_type, &run->config, run->tokenizer, err))
        return false;
    if (s->profile_trace && !trace_check(s->profile_trace, err)) return false;
    if (header == stdout) say_program(run);
    console_waiting(header, "reading the data");
    if (!setup_device(run, err) || !setup_data(run, err)) return false;
    console_waiting(header, "loading the model");
    return setup_output(run, err);
}

/* What the run is, before it starts: everything that a reader of the output needs to repeat it. */
static void print_run(Training *t) {
    const Run *run = t->run;
    const char *how;
    if (setup_header(run) == stderr) say_program(run); /* nothing was wrong, else one line says it */
    setup_print_device(run);
    setup_print_ranks(run);
    setup_print_model(run);
    if (settings_model_alone(&run->settings)) return;
    if (run->train) {
        t->peak_flops = run->ops->device->peak_flops(run->ops->dtype, &how);
        console_row(stdout, "peak", "%.1f TFLOP/s (%s)", t->peak_flops * 1e-12, how);
    }
    setup_print_data(run);
    setup_print_choices(run);
    if (run->train)
        console_settings(stdout, &run->settings, run->comm->ranks.n_ranks, setup_run_tokens(run));
    else
        console_eval_settings(stdout, &run->settings);
    setup_print_memory(run);
    if (run->checkpoint[0])
        console_row(stdout, "resumed", "%s, step %lld", run->checkpoint, (long long)run->resumed.step);
    else if (run->settings.resume)
        console_row(stdout, "resumed", "nothing: %s holds no checkpoint, a new run begins",
                    run->settings.out);
    print_flush(stdout);
}

/* Where the run begins: at the start, or where the checkpoint ended. */
static void start_state(Training *t) {
    t->state = t->run->resumed;
    t->state.seed = (uint64_t)t->run->settings.seed;
    const bool alone = t->run->comm->ranks.n_ranks == 1;
    t->run->model.stop = alone ? stop_now : NULL; /* ranks end every step together */
    if (!t->run->train) t->state.step = setup_model_step(t->run);
    t->state.val_loss = NAN;
    t->state.best_only = false;
    if (t->run->checkpoint[0])
        t->saving.last_saved = t->state.step;
    else
        t->state.best_val_loss = NAN;
    t->saving.last_begun = t->saving.last_verified = t->saving.last_saved;
    training_tell_watchdog(t);
}

static bool open_log(Training *t, int argc, char **argv, Error *err) {
    const Run *run = t->run;
    if (!ranks_leads(run->comm->ranks)) return true;
    if (run->settings.eval_only) return log_append(&t->log, run->settings.out, err) || fail_flag("out", err);
    char *flags = flags_to_json(&run->settings);
    LogHeader header = {
        .argc = argc,
        .argv = argv,
        .flags = flags,
        .device = run->ops->device->name(),
        .model = setup_model_name(run),
        .n_parameters = gpt2_n_parameters(&run->config),
        .tokenizer = run->tokenizer,
        .train_data = run->train ? dataloader_description(run->train) : NULL,
        .val_data = run->val ? dataloader_description(run->val) : NULL,
        .train_fingerprint = run->train ? dataloader_fingerprint(run->train) : 0,
        .val_fingerprint = run->val ? dataloader_fingerprint(run->val) : 0,
        .n_ranks = run->comm->ranks.n_ranks,
    };
    bool ok = log_open(&t->log, run->train ? run->settings.out : NULL,
                       run->checkpoint[0] ? run->resumed.step : -1, &header, err);
    free(flags);
    return ok || fail_flag("out", err);
}

/* What was asked for went to stdout: a full disk or a closed pipe there is a failure. */
static int finish_output(void) {
    Error err = {0};
    const int reason = print_failure();
    if (!reason) return 0;
    fail(&err, EXIT_RUN, "the output could not be written: %s", strerror(reason));
    die(&err);
}

/* --help and its kind: prints and returns true. */
static bool answer_info_flags(const Settings *s, const char *program) {
    if (s->help)
        flags_help(stdout, program);
    else if (s->help_markdown)
        flags_help_markdown(stdout);
    else if (flags_was_set(s, "completion"))
        flags_completion(stdout, s->completion);
    else if (s->version)
        print_line(stdout, "%s", program_version());
    else
        return false;
    return true;
}

static int show_memory(Run *run) {
    setup_print_device(run);
    setup_print_ranks(run);
    setup_print_model(run);
    setup_print_memory(run);
    setup_close(run);
    return finish_output();
}

/* --resume of a run that has all its steps. */
static int say_finished(Run *run) {
    Error err = {0};
    setup_agree(run, setup_output(run, &err), &err);
    print_line(stdout, "finished: %s has %lld steps, --steps is %lld; hint: more --steps go on from there",
               run->checkpoint, (long long)run->checkpoint_step, (long long)run->settings.steps);
    setup_close(run);
    return setup_leave(run, finish_output());
}

/* Flags, checked as far as flags alone can be; true where that was all. */
static bool read_flags(Run *run, int argc, char **argv) {
    Settings *s = &run->settings;
    Error err = {0};
    if (!flags_parse(s, argc, argv, &err)) die(&err);
    const bool placed = setup_place(run, &err);
    const int n_ranks = run->comm->ranks.n_ranks;
    if (!ranks_leads(run->comm->ranks)) print_nothing(), stop_say_nothing();
    if (answer_info_flags(s, argv[0])) return true;
    if (!placed || !setup_backend(run, &err)) die(&err);
    if (!flags_check(s, n_ranks, &err) || !setup_prompt(run, &err)) die(&err);
    settings_set_default_out(s);
    return false;
}

/* Its files: the output folder, the checkpoint to resume, the model's size. */
static void read_sizes(Run *run) {
    Error err = {0};
    setup_agree(run, setup_check_output(run, &err), &err);
    setup_agree(run, setup_model_size(run, &err), &err);
}

/* The parent of --gpus: what can be seen to be wrong is said before anything is started, but of checkpoints, which are
 * rank 0's to look through, and to warn of, once. */
static int launch(Run *run, char **argv) {
    const bool resumes = run->settings.resume;
    Error err = {0};
    if (!setup_check_devices(run, &err) || !setup_check_output(run, &err) ||
        !(resumes || setup_model_size(run, &err)) || !setup_check_data(run, &err))
        die(&err);
    return setup_launch(run, argv);
}

/* Of a run without --out: the model that it leaves, and what to do with it. */
static void say_what_is_kept(Training *t, const char *program) {
    const Settings *s = &t->run->settings;
    if (settings_out_is_default(s) && t->saving.last_saved >= 0)
        console_note(&t->console, "to sample from it: %s --model %s --prompt \"Once\"", program, s->out);
}

static int run_to_end(Training *t, int argc, char **argv) {
    Run *run = t->run;
    const Settings *s = &run->settings;
    Error err = {0};
    const bool only_prints =
        (s->eval_only || (s->profile && !s->profile_trace)) && run->comm->ranks.n_ranks == 1;
    if (!settings_model_alone(s) && !only_prints)
        stop_ignore_pipe(); /* the reader may leave behind the first line */
    setup_agree(run, load(run, &err), &err);
    setup_share_output(run);
    setup_agree(run, setup_model(run, &err), &err);
    gpt2_attach(&run->model);
    start_state(t);
    print_run(t);
    setup_agree(run, open_log(t, argc, argv, &err), &err);
    console_open(&t->console, stdout, run->resumed.step, s->eval_only ? 0 : s->steps);
    const bool ok = run_mode(t, &err);
    checkpoint_end_removal();
    if (!ok) die(&err);
    log_close(&t->log);
    say_what_is_kept(t, argv[0]);
    const int status = s->out ? 0 : finish_output(); /* with --out there are checkpoints and a log */
    setup_close(run);
    return setup_leave(run, status);
}

static int program(int argc, char **argv) {
    Run run = {.comm = &comm_alone};
    Training training = {.run = &run,
                         .train_loss = NAN,
                         .val_loss = NAN,
                         .val_step = -1,
                         .saving.last_saved = -1,
                         .step_seconds = INFINITY};
    stop_prepare();
    if (read_flags(&run, argc, argv)) return finish_output();
    if (setup_launches(&run) && !run.settings.memory) return launch(&run, argv);
    if (!run.settings.memory) setup_join(&run);
    read_sizes(&run);
    if (run.settings.memory) return show_memory(&run);
    if (setup_is_finished(&run)) return say_finished(&run);
    return run_to_end(&training, argc, argv);
}

int main(int argc, char **argv) {
    return run_on_own_stack(program, argc, argv);
}
