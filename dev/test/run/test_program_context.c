/* The program where ranks share sequences out: losses, norms and validation are those of one process. */
#include "dev/test/program_case.h"

#define RUN                                                                                                  \
    "--train %s/text --layers 2 --heads 6 --channels 48 --batch 3 --seq 24 --tokens-per-step 288 --steps 4 " \
    "--eval-every 2 --eval-batches 3 --sample-every 2 --sample-tokens 3 --seed 3 --lr 0.003 "

static void write_data(void) {
    char text[4001] = "";
    for (int i = 0; i < 4000; i++) text[i] = (char)('a' + i * i % 97 % 26);
    write_text(path_of("text"), text);
}

static void run(ProgramLog *log, const char *name, const char *flags) {
    const int status = run_program(RUN "--out %s/%s %s", folder, folder, name, flags);
    char *errors = read_text(path_of("stderr"));
    CHECK(status == 0, "%s: exit code %d: %s", flags, status, errors);
    free(errors);
    read_log(log, path_of(name));
}

static void same(double got, double want, const char *flags, int step, const char *what) {
    CHECK(fabs(got - want) <= 1e-6 * fabs(want) || (isnan(got) && isnan(want)),
          "%s, step %d: %s %.9g, alone %.9g", flags, step, what, got, want);
}

static void test_runs(const char *more) {
    static const char *const ranks[] = {"--gpus 2 --context-gpus 2", "--gpus 4 --context-gpus 2",
                                        "--gpus 3 --context-gpus 3"};
    ProgramLog alone, log;
    char flags[200], name[40];
    snprintf(name, sizeof name, "alone%zu", strlen(more));
    run(&alone, name, more);
    CHECK(alone.last == 4 && alone.steps[4].loss < alone.steps[1].loss, "%s: %d steps", more, alone.last);
    CHECK(isfinite(alone.steps[2].val_loss) && isfinite(alone.steps[4].val_loss), "%s: no validation", more);
    for (int i = 0; i < 3; i++) {
        snprintf(flags, sizeof flags, "%s %s", ranks[i], more);
        snprintf(name, sizeof name, "ranks%d_%zu", i, strlen(more));
        run(&log, name, flags);
        for (int step = 1; step <= 4; step++) {
            same(log.steps[step].loss, alone.steps[step].loss, flags, step, "loss");
            same(log.steps[step].norm, alone.steps[step].norm, flags, step, "norm");
            same(log.steps[step].val_loss, alone.steps[step].val_loss, flags, step, "validation");
        }
    }
}

static void refuses(const char *flags, const char *part) {
    const int status = run_program(RUN "%s", folder, flags);
    char *errors = read_text(path_of("stderr"));
    CHECK(status == 2, "%s: exit code %d", flags, status);
    CHECK(strstr(errors, part) && strchr(errors, '\n') == errors + strlen(errors) - 1, "%s: '%s'", flags,
          errors);
    free(errors);
}

int main(void) {
    if (!program_is_here()) return check_finish("program_context");
    if (!REQUIRE(mkdtemp(folder), "mkdtemp")) return check_finish("program_context");
    write_data();
    test_runs("");
    test_runs("--window 5 --recompute block");
    refuses("--gpus 4 --context-gpus 3", "--context-gpus 3 does not divide the 4 ranks of the run");
    refuses("--gpus 4 --context-gpus 4", "--context-gpus 4 does not divide the model's 6 heads");
    remove_tree(folder);
    return check_finish("program_context");
}
