/* Random combinations of the program's flags, from its own table, with values that fit, do not, and never could. Promised:
 * exit code 0, 1 or 2 within a minute of SIGTERM, one line of error where it is not 0, no report of a sanitizer. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "llmc/run/flags_table.h"
#include "soak.h"

enum { MAX_ARGUMENTS = 64, SECONDS = 2 };
enum { COUNT_0, COUNT_1, COUNT_2, COUNT_LONG };

static void prepare(void) {
    must_run("mkdir -p %s/flags && cd %s/flags && for i in 1 2 3 4 5 6 7 8 9; do echo \"line $i: hello "
             "world\"; done >text && : >empty && "
             "%s --device cpu --layers 1 --heads 2 --channels 16 --batch 2 --seq 8 --steps 2 --sample-tokens "
             "0 --eval-batches 1 --train text "
             "--out model >out 2>&1",
             soak_folder, soak_folder, soak_program);
}

static void begin(int worker) {
    must_run("cd %s && rm -rf flags_%d && cp -r flags flags_%d", soak_folder, worker, worker);
}

/* ---- a command ---- */

typedef struct Command {
    char *argv[MAX_ARGUMENTS + 1];
    int n;
} Command;

static void add(Command *command, const char *text) {
    if (command->n < MAX_ARGUMENTS) command->argv[command->n++] = strdup(text);
}

static const char *pick(const char *const list[], int n) {
    return list[draw_below(n)];
}

/* A value of the flag's type, or of none. */
static void draw_value(const Flag *flag, char *value, size_t size) {
    static const char *const odd[] = {
        "",      "-1",  "0",   "1e400", "nan", "inf",     "99999999999999999999",
        "0x10",  "1.5", "two", "-",     "--",  "\x1b[2J", "9007199254740993",
        "1e-320"};
    static const char *const texts[] = {
        "text",  "empty", "nowhere", "model", ".",      "/",  "/dev/null", "*", "model/step_00000002",
        "bytes", "nano",  "d12",     "te?t",  "text/x", "a[", "hello"};
    static const char *const whole[] = {"0", "1", "2", "3", "4", "8", "12", "16", "17", "32", "64"};
    static const char *const real[] = {"0", "0.1", "0.5", "0.9", "1", "1e-3", "1e-8", "10"};
    int n_choices = 0;
    while (flag->choices[n_choices]) n_choices++;
    const char *text = draw_below(12) == 0         ? pick(odd, sizeof odd / sizeof *odd)
                       : flag->type == FLAG_CHOICE ? flag->choices[draw_below(n_choices)]
                       : flag->type == FLAG_TEXT   ? pick(texts, sizeof texts / sizeof *texts)
                       : flag->type == FLAG_REAL   ? pick(real, sizeof real / sizeof *real)
                                                   : pick(whole, sizeof whole / sizeof *whole);
    snprintf(value, size, "%s", text);
}

static void add_flag(Command *command, const Flag *flag) {
    char text[PATH_BYTES], value[128];
    const bool letter = flag->letter && draw_below(4) == 0;
    snprintf(text, sizeof text, letter ? "-%.0s%c" : "--%s", flag->name, flag->letter);
    if (flag->type == FLAG_SWITCH) return add(command, text);
    draw_value(flag, value, sizeof value);
    if (letter || draw_below(2)) {
        add(command, text);
        if (draw_below(50)) add(command, value);
        return;
    }
    snprintf(text, sizeof text, "--%s=%s", flag->name, value);
    add(command, text);
}

/* A run that would be good, small, and over soon, most often one that trains, and then some flags. */
static Command draw_command(void) {
    /* clang-format off */
    static const char *const good[][20] = {
        {"--device", "cpu", "--layers", "1", "--heads", "2", "--channels", "16", "--batch", "2", "--seq", "8",
         "--steps", "2", "--sample-tokens", "5", "--train", "text"},
        {"--device", "cpu", "--model", "model", "--prompt", "a", "--sample-tokens", "5"},
        {"--device", "cpu", "--model", "model", "--eval-only", "1", "--batch", "2", "--seq", "8"},
        {"--device", "cpu", "--model", "model", "--export", "exported"},
    };
    /* clang-format on */
    const int64_t kind = draw_below(12) - 8;
    const char *const *flags = good[kind > 0 ? kind : 0];
    Command command = {0};
    add(&command, "train_gpt2");
    for (int i = 0; flags[i]; i += 2) {
        if (draw_below(8) == 0 && i > 0) continue;
        add(&command, flags[i]);
        add(&command, flags[i + 1]);
    }
    if (draw_below(4) == 0) add(&command, "--out"), add(&command, draw_below(2) ? "out" : "model");
    for (int64_t left = draw_below(7); left >= 0; left--)
        add_flag(&command, &flags_table[draw_below(flags_count)]);
    return command;
}

/* ---- what came of it ---- */

static void describe(const Command *command, char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i < command->n && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, " '%s'", command->argv[i]);
}

/* Waits; a run that goes on for long is asked to stop. */
static int wait_for(pid_t child, int64_t *counts) {
    int status;
    for (int ticks = 0;; ticks++) {
        if (waitpid(child, &status, WNOHANG) == child) return status;
        nanosleep(&(struct timespec){.tv_nsec = ticks < 100 ? 1000000 : 20000000}, NULL);
        if (ticks == SECONDS * 50) {
            kill(child, SIGTERM);
            counts[COUNT_LONG]++;
        }
    }
}

static int count_lines(const char *text, const char *beginning) {
    int n = 0;
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        n += strncmp(line, beginning, strlen(beginning)) == 0;
    return n;
}

static void run(int worker, int64_t number, int64_t *counts) {
    char folder[FOLDER_BYTES], path[PATH_BYTES], words[8192] = "";
    size_t n;
    Command command = draw_command();
    describe(&command, words, sizeof words);
    snprintf(folder, sizeof folder, "%s/flags_%d", soak_folder, worker);
    if (chdir(folder) != 0) finding("%s is gone", folder);
    const int status = wait_for(start_program(sanitized_program, command.argv, folder), counts);
    snprintf(path, sizeof path, "%s/err", folder);
    char *said = read_whole(path, &n);
    if (!WIFEXITED(status) && WTERMSIG(status) != SIGTERM) finding("signal %d of%s", WTERMSIG(status), words);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0; /* SIGTERM where nothing is to be saved */
    if (code > 2) finding("exit code %d of%s: %.300s", code, words, said);
    if (strstr(said, "Sanitizer") || strstr(said, "runtime error"))
        finding("a sanitizer's report of%s: %.500s", words, said);
    if (code > 0 && (count_lines(said, "error: ") != 1 ||
                     count_lines(said, "") != count_lines(said, "error: ") + count_lines(said, "warning: ")))
        finding("exit code %d, expected one line of error, of%s: %.500s", code, words, said);
    if (code == 0 && count_lines(said, "error: "))
        finding("exit code 0 with an error of%s: %.300s", words, said);
    counts[code]++;
    must_run("cd %s && rm -rf out", folder);
    if (number % 20 < 2) must_run("cd %s && cp -r ../flags/. .", folder);
    free(said);
    for (int i = 0; i < command.n; i++) free(command.argv[i]);
}

const Campaign flags_campaign = {
    "flags",
    "FLAGS",
    5000,
    prepare,
    begin,
    run,
    {"exit code 0", "exit code 1", "exit code 2", "stopped after some seconds"}
};
