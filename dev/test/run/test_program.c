/* The program as a whole. Each run of dev/reference/program.ref, in which one flag after the other differs, goes through
 * ./train_gpt2, and its log and checkpoints are held
 *   - to what PyTorch recorded (losses, norms, learning rates, validation), within roundings of fp32,
 *   - to the same run written out over the model's calls (direct_run.h), to the bit. */
#include "dev/test/direct_run.h"

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

/* ---- the table ---- */

/* A step whose update was skipped is not saved: of the poisoned run, steps 2, 3, 5 and 6. */
static int save_every(bool poisoned) {
    return poisoned ? 4 : 3;
}

/* The run FLAGS with `more`, from the hashed weights; resumed: its checkpoints after the first are lost, and --resume goes on. */
static void run_recorded(const char *name, const char *flags, const char *more, bool poisoned, bool resumed) {
    char out[300], line[1500], command[400];
    snprintf(out, sizeof out, "%s/%s", folder, name);
    snprintf(line, sizeof line,
             "--train dev/reference/%s --model %s --out %s --save-every %d --sample-tokens 0 %s %s",
             poisoned ? "program_nan.txt" : "program.txt", path_of(poisoned ? "poisoned" : "model"), out,
             save_every(poisoned), flags, more);
    int status = run_program("%s", line);
    CHECK(status == 0, "%s %s: exit code %d", name, more, status);
    if (!resumed) return;
    snprintf(command, sizeof command, "cd %s && rm -r step_0000000[%d-9]", out, save_every(poisoned) + 1);
    CHECK(system(command) == 0, "%s: no later checkpoint", name);
    status = run_program("%s --resume", line);
    CHECK(status == 0, "%s, resumed: exit code %d", name, status);
}

static void test_recorded(const Recorded *r, const char *more, bool resumed) {
    char text[100], out[300], all[800];
    const bool poisoned = flag_is(r->flags, "--train", "program_nan.txt");
    const char *flags = strstr(r->flags, "--batch"); /* --train is the first of all */
    static ProgramLog log;
    Direct d;
    if (!CHECK(flags, "%s: no flags", r->name)) return;
    snprintf(text, sizeof text, "dev/reference/%s", poisoned ? "program_nan.txt" : "program.txt");
    snprintf(out, sizeof out, "%s/%s", folder, r->name);
    snprintf(all, sizeof all, "%s %s", flags, more);
    run_recorded(r->name, flags, more, poisoned, resumed);
    read_log(&log, out);
    check_recorded(r, &log);
    direct_open(&d, all, &program_config, text);
    d.save_every = save_every(poisoned);
    program_weights(&d.model, poisoned ? POISONED : PLAIN);
    check_direct(r->name, &d, &log, out);
    direct_close(&d);
    remove_tree(out);
}

/* What must change nothing: resuming, and computing again what backward needs. Standard attention has other roundings. */
static void test_variants(const Recorded *r) {
    static const struct {
        const char *run, *more;
        bool resumed;
    } variants[] = {
        {"everything",    "--recompute gelu",     false},
        {"everything",    "--recompute linear",   false},
        {"everything",    "--recompute block",    false},
        {"everything",    "--attention standard", false},
        {"everything",    "",                     true },
        {"accumulate",    "--recompute block",    true },
        {"skipped_steps", "",                     true },
    };
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (strcmp(variants[i].run, r->name) == 0) test_recorded(r, variants[i].more, variants[i].resumed);
}

int main(void) {
    static Recorded r;
    int n = 0;
    if (!program_is_here()) return check_finish("program");
    FILE *file = fopen(reference_path, "r");
    if (!REQUIRE(file && mkdtemp(folder), "%s or %s cannot be opened", reference_path, folder))
        return check_finish("program");
    save_program_model("model", PLAIN, &program_config);
    save_program_model("poisoned", POISONED, &program_config);
    for (; next_recorded(file, &r); n++) {
        test_recorded(&r, "", false);
        test_variants(&r);
    }
    CHECK(n >= 20, "%s: %d runs", reference_path, n);
    fclose(file);
    remove_tree(folder);
    return check_finish("program");
}
