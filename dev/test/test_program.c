/* The program as a whole. Each run of dev/reference/program.ref, in which one flag after the other differs, goes through
 * ./train_gpt2, and its log and checkpoints are held
 *   - to what PyTorch recorded (losses, norms, learning rates, validation), within roundings of fp32,
 *   - to the same run written out over the model's calls (direct_run.h), to the bit. */
#include "direct_run.h"

/* PyTorch's values are float64; fp32 rounds them, and Adam steps on the roundings. */
#define LOSS_LIMIT 1e-5
#define NORM_LIMIT 1e-4
#define LR_LIMIT 1e-7

/* ---- the recorded runs ---- */

typedef struct Recorded {
    char name[64], flags[700];
    ProgramLog log;
} Recorded;

static const char *const reference_path = "dev/reference/program.ref";

/* "step N LOSS LR NORM SKIPPED" or "val N LOSS" */
static void take_recorded(Recorded *r, const char *line) {
    int step;
    double a, b, c;
    long long skipped;
    if (sscanf(line, "step %d %lf %lf %lf %lld", &step, &a, &b, &c, &skipped) == 5 && step < LOG_MAX_STEPS) {
        r->log.steps[step] = (LoggedStep){.loss = a, .lr = b, .norm = c, .skipped = skipped, .val_loss = NAN};
        r->log.last = step;
    } else if (sscanf(line, "val %d %lf", &step, &a) == 2 && step < LOG_MAX_STEPS) {
        r->log.steps[step].val_loss = a;
    }
}

/* The next run of the file; false at its end. */
static bool next_recorded(FILE *file, Recorded *r) {
    static char line[700]; /* the "run" line that ended the run before */
    memset(r, 0, sizeof *r);
    while (strncmp(line, "run ", 4) != 0)
        if (!fgets(line, sizeof line, file)) return false;
    sscanf(line, "run %63s", r->name);
    line[0] = '\0';
    while (fgets(line, sizeof line, file) && strncmp(line, "run ", 4) != 0) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "flags ", 6) == 0) snprintf(r->flags, sizeof r->flags, "%s", line + 6);
        take_recorded(r, line);
    }
    return true;
}

/* ---- a run held to PyTorch ---- */

static bool near(double got, double want, double limit) {
    return isnan(want) ? isnan(got) : fabs(got - want) <= limit * fabs(want);
}

static void check_recorded(const Recorded *r, const ProgramLog *log) {
    CHECK(log->last == r->log.last, "%s: the log ends at step %d, PyTorch's at %d", r->name, log->last,
          r->log.last);
    for (int i = 1; i <= r->log.last; i++) {
        const LoggedStep *got = &log->steps[i], *want = &r->log.steps[i];
        CHECK(got->lines == 1, "%s: step %d is in the log %d times", r->name, i, got->lines);
        CHECK(near(got->loss, want->loss, LOSS_LIMIT), "%s: step %d: loss %.9g, PyTorch %.9g", r->name, i,
              got->loss, want->loss);
        CHECK(near(got->norm, want->norm, NORM_LIMIT), "%s: step %d: norm %.9g, PyTorch %.9g", r->name, i,
              got->norm, want->norm);
        CHECK(near(got->lr, want->lr, LR_LIMIT), "%s: step %d: learning rate %.9g, PyTorch %.9g", r->name, i,
              got->lr, want->lr);
        CHECK(near(got->val_loss, want->val_loss, LOSS_LIMIT), "%s: step %d: validation %.9g, PyTorch %.9g",
              r->name, i, got->val_loss, want->val_loss);
        CHECK(got->skipped == want->skipped, "%s: step %d: %lld skipped, PyTorch %lld", r->name, i,
              (long long)got->skipped, (long long)want->skipped);
    }
}

/* ---- a run held to the model's calls ---- */

/* OUT/step_N holds what the direct run has, bit for bit, and its place in the data. */
static void check_checkpoint(const char *name, Direct *d, const char *out, int step) {
    char path[400];
    GPT2 saved;
    TrainerState state = {0};
    Error err = {0};
    const GPT2Options options = {.B = 1, .T = 1, .training = true};
    snprintf(path, sizeof path, "%s/step_%08d", out, step);
    if (!CHECK(gpt2_open(&saved, &ops_cpu, &d->model.config, &options, &err), "%s", err.text)) return;
    if (CHECK(checkpoint_resume(path, &saved, &state, &err), "%s: %s", name, err.text)) {
        const float *const got[] = {saved.master, saved.m, saved.v}, *const want[] = {d->model.master,
                                                                                      d->model.m, d->model.v};
        static const char *const what[] = {"weights", "m", "v"};
        for (int i = 0; i < 3; i++)
            CHECK(memcmp(got[i], want[i], (size_t)saved.n_parameters * sizeof(float)) == 0,
                  "%s: %s of step %d differ in some bits", name, what[i], step);
        CHECK(state.step == step && state.seed == (uint64_t)d->seed && state.n_skipped == d->n_skipped,
              "%s: the checkpoint says step %lld, seed %lld, %lld skipped", name, (long long)state.step,
              (long long)state.seed, (long long)state.n_skipped);
        CHECK(state.tokens_seen == (int64_t)step * d->n_micro * d->B * d->T &&
                  state.data_position == d->position,
              "%s: the checkpoint says %lld tokens seen, window %lld, not %lld", name,
              (long long)state.tokens_seen, (long long)state.data_position, (long long)d->position);
    }
    free((char *)state.flags);
    gpt2_close(&saved);
}

static bool same_or_nan(double logged_value, float value) {
    return isfinite(value) ? logged_value == (double)value : isnan(logged_value);
}

/* Steps first+1 to the last of the log, and the checkpoints of every third and of the last. */
static void check_direct(const char *name, Direct *d, const ProgramLog *log, const char *out) {
    CHECK(log->last == d->steps, "%s: the log ends at step %d of %d", name, log->last, d->steps);
    for (int step = 1; step <= log->last; step++) {
        const LoggedStep *s = &log->steps[step];
        direct_step(d, step);
        CHECK(same_or_nan(s->loss, d->loss) && same_or_nan(s->norm, d->norm),
              "%s: step %d: loss %.9g, norm %.9g; over the model's calls %.9g, %.9g", name, step, s->loss,
              s->norm, (double)d->loss, (double)d->norm);
        CHECK(near(s->lr, direct_lr(d, step), 1e-14), "%s: step %d: learning rate %.17g, not %.17g", name,
              step, s->lr, direct_lr(d, step));
        CHECK(s->skipped == d->n_skipped, "%s: step %d: %lld skipped, not %lld", name, step,
              (long long)s->skipped, (long long)d->n_skipped);
        const bool due = d->eval_every > 0 && step % d->eval_every == 0;
        CHECK(due || step == d->steps ? s->val_loss == direct_val(d) : isnan(s->val_loss),
              "%s: step %d: validation %.17g", name, step, s->val_loss);
        if (step % 3 == 0 || step == d->steps) check_checkpoint(name, d, out, step);
    }
}

/* ---- the table ---- */

static void test_recorded(const Recorded *r) {
    char text[100], out[300];
    const bool poisoned = flag_is(r->flags, "--train", "program_nan.txt");
    const char *flags = strstr(r->flags, "--batch"); /* --train is the first of all */
    static ProgramLog log;
    Direct d;
    if (!CHECK(flags, "%s: no flags", r->name)) return;
    snprintf(text, sizeof text, "dev/reference/%s", poisoned ? "program_nan.txt" : "program.txt");
    snprintf(out, sizeof out, "%s/%s", folder, r->name);
    const int status = run_program("--train %s --model %s --out %s --save-every 3 --sample-tokens 0 %s", text,
                                   in_folder(poisoned ? "poisoned" : "model"), out, flags);
    CHECK(status == 0, "%s: exit code %d", r->name, status);
    read_log(&log, out);
    check_recorded(r, &log);
    direct_open(&d, flags, &program_config, text);
    program_weights(&d.model, poisoned);
    check_direct(r->name, &d, &log, out);
    direct_close(&d);
    remove_tree(out);
}

int main(void) {
    Recorded r;
    int n = 0;
    if (!program_is_here()) return check_finish("program");
    FILE *file = fopen(reference_path, "r");
    if (!CHECK(file && mkdtemp(folder), "%s or %s cannot be opened", reference_path, folder))
        return check_finish("program");
    save_program_model("model", false);
    save_program_model("poisoned", true);
    for (; next_recorded(file, &r); n++) test_recorded(&r);
    CHECK(n >= 20, "%s: %d runs", reference_path, n);
    fclose(file);
    remove_tree(folder);
    return check_finish("program");
}
