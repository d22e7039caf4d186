/* The figures that the program prints and logs beside the loss (ms, tokens/s, MFU, the rate of the whole run) against a clock
 * outside of it and against arithmetic of this file's own. */
#include "llmc/base/clock.h"
#include "llmc/base/parallel.h"
#include "dev/test/program_case.h"

enum { STEPS = 10, TOKENS = 4096, LAYERS = 3, CHANNELS = 96, SEQ = 64 };

typedef struct Printed {
    double peak; /* TFLOP/s, as printed */
    double ms[STEPS + 1], tok_s[STEPS + 1], mfu[STEPS + 1];
    double lasted[STEPS + 1]; /* from the arrival of the line before to that of the step's own */
    double done_tok_s, last_line, begun, ended;
} Printed;

/* "34.2 k" */
static double count_of(const char *text) {
    char *end;
    const double x = strtod(text, &end);
    return x * (strncmp(end, " k", 2) == 0 ? 1e3 : strncmp(end, " M", 2) == 0 ? 1e6 : 1);
}

/* The number behind the last " | " before `unit`. */
static double before(const char *line, const char *unit) {
    const char *end = strstr(line, unit), *at = end;
    while (at && at > line && strncmp(at, " | ", 3) != 0) at--;
    return at && at > line ? count_of(at + 3) : NAN;
}

static void take_printed(Printed *p, const char *line) {
    int step;
    if (sscanf(line, "step %d/", &step) == 1 && step >= 1 && step <= STEPS && strstr(line, " ms ")) {
        p->lasted[step] = clock_seconds() - p->last_line;
        p->ms[step] = before(line, " ms ");
        p->tok_s[step] = before(line, " tok/s");
        p->mfu[step] = before(line, " % MFU") / 100;
    }
    if (strncmp(line, "peak ", 5) == 0) p->peak = strtod(line + 5, NULL);
    if (strncmp(line, "done: ", 6) == 0 && strstr(line, "val loss"))
        p->done_tok_s = count_of(strrchr(line, ',') + 1);
    p->last_line = clock_seconds();
}

static int run_timed(Printed *p, const char *out) {
    char command[1000], line[1000];
    memset(p, 0, sizeof *p);
    snprintf(command, sizeof command,
             "OMP_NUM_THREADS=1 %s --device cpu --train dev/reference/program.txt --model nano --layers %d "
             "--heads 4 --channels "
             "%d --batch 8 --seq %d --tokens-per-step %d --steps %d --eval-every 3 --eval-batches 9 "
             "--sample-every 5 "
             "--sample-tokens 40 --out %s 2>&1 </dev/null",
             program, LAYERS, CHANNELS, SEQ, TOKENS, STEPS, out);
    p->begun = clock_seconds();
    FILE *pipe = popen(command, "r");
    if (!CHECK(pipe, "%s", command)) return -1;
    while (fgets(line, sizeof line, pipe)) take_printed(p, line);
    const int status = pclose(pipe);
    p->ended = clock_seconds();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Forward and backward of one token: two FLOPs for each weight of a matrix product and its two gradients, and attention, in
 * which a query sees half of the positions: QK and PV, 2 C each, three times. */
static double flops_of_a_token(void) {
    const double C = CHANNELS, products = LAYERS * 12 * C * C + 256 * C;
    return 6 * products + LAYERS * 12 * C * SEQ / 2;
}

static bool within_parts(double got, double want, double part) {
    return fabs(got - want) <= part * fabs(want);
}

/* Steps by the log and as a clock outside sees them: from the line before, a validation's or a sample's perhaps, to the line
 * of the step. The first is left out: what stands before it takes time, too. */
typedef struct Times {
    double inside, outside;
} Times;

static Times times_of_steps(const Printed *p, const ProgramLog *log) {
    Times t = {0, 0};
    for (int step = 2; step <= STEPS; step++)
        t.inside += log->steps[step].ms * 1e-3, t.outside += p->lasted[step];
    return t;
}

static bool clocks_agree(Times t) {
    return t.inside > 0.65 * t.outside && t.inside < 1.5 * t.outside;
}

static bool peaks_agree(const Printed *p, double peak) {
    return p->peak > 0 && p->peak < 5 * peak + 0.1 && p->peak > peak / 5 - 0.1;
}

static bool has_peak_of_first(const ProgramLog *log, int step) {
    const LoggedStep *s = &log->steps[step], *first = &log->steps[1];
    return within_parts(s->mfu / s->tok_s, first->mfu / first->tok_s, 1e-9);
}

/* Where the machine held up the program or this test, a time is another's, or steps are faster than the peak was. */
static bool is_undisturbed(const Printed *p, const ProgramLog *log, double peak) {
    bool ok = clocks_agree(times_of_steps(p, log)) && peaks_agree(p, peak);
    for (int step = 2; step <= STEPS; step++) ok = ok && has_peak_of_first(log, step);
    return ok;
}

static void check_clock(const Printed *p, const ProgramLog *log) {
    const Times t = times_of_steps(p, log);
    double all = 0;
    for (int step = 1; step <= STEPS; step++) all += log->steps[step].ms * 1e-3;
    CHECK(clocks_agree(t), "the log says %.3f s for steps that take %.3f s", t.inside, t.outside);
    CHECK(all <= p->ended - p->begun, "the steps of the log take %.3f s, the whole run %.3f s", all,
          p->ended - p->begun);
    CHECK(within_parts(p->done_tok_s, TOKENS * STEPS / all, 0.001),
          "the run's %.1f tokens/s, from the log %.1f", p->done_tok_s, TOKENS * STEPS / all);
}

static double peak_here(void) {
    const char *how;
    cpu_set_thread_count(1); /* as the program runs */
    return ops_cpu.device->peak_flops(ops_cpu.dtype, &how) * 1e-12;
}

static void check_figures(const Printed *p, const ProgramLog *log, double peak) {
    CHECK(peaks_agree(p, peak), "peak %g TFLOP/s, measured here %g", p->peak, peak);
    for (int step = 1; step <= STEPS; step++) {
        const LoggedStep *s = &log->steps[step];
        CHECK(within_parts(s->tok_s * s->ms * 1e-3, TOKENS, 1e-9),
              "step %d: %g tokens/s x %g ms is no step of %d tokens", step, s->tok_s, s->ms, TOKENS);
        /* the peak is printed with one digit behind the point */
        const double implied = s->tok_s * flops_of_a_token() / s->mfu * 1e-12;
        CHECK(has_peak_of_first(log, step), "step %d: another peak", step);
        CHECK(fabs(implied - p->peak) <= 0.0501 + 0.01 * p->peak, "step %d: MFU %g of %g TFLOP/s, printed %g",
              step, s->mfu, implied, p->peak);
        CHECK(fabs(p->ms[step] - s->ms) <= 0.0501 && fabs(p->tok_s[step] - s->tok_s) <= 51 &&
                  fabs(p->mfu[step] - s->mfu) <= 0.00051,
              "step %d: printed %g ms, %g tok/s, MFU %g; logged %g, %g, %g", step, p->ms[step],
              p->tok_s[step], p->mfu[step], s->ms, s->tok_s, s->mfu);
    }
}

int main(void) {
    static ProgramLog log;
    Printed p;
    double peak = 0;
    int status = -1;
    bool is_good = false;
    Error err = {0};
    if (!program_is_here()) return check_finish("program_figures");
    if (!REQUIRE(mkdtemp(folder) && ops_cpu.device->open(0, &err), "%s cannot be made", folder))
        return check_finish("program_figures");
    for (int again = 0; again < 8 && !is_good; again++) {
        remove_tree(path_of("run"));
        status = run_timed(&p, path_of("run"));
        read_log(&log, path_of("run"));
        peak = peak_here();
        is_good = is_undisturbed(&p, &log, peak);
    }
    CHECK(status == 0, "exit code %d", status);
    if (CHECK(log.last == STEPS, "the log ends at step %d", log.last)) {
        check_clock(&p, &log);
        check_figures(&p, &log, peak);
    }
    remove_tree(folder);
    return check_finish("program_figures");
}
