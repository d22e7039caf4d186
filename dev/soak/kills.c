/* Runs that save at every step and keep three checkpoints, killed (SIGKILL) or stopped (SIGTERM) at a random moment and
 * resumed, until they are at their last step. Promised: no checkpoint that was there is lost (the newest step never goes
 * back), none that a kill left is passed over as damaged, SIGTERM ends with exit code 0, and the weights and moments
 * at the end are bit for bit those of the run that nobody stopped. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include "llmc/base/clock.h"
#include "soak.h"

enum { STEPS = 30, COUNT_STOPPED = 0, COUNT_FINISHED, COUNT_SAVES };

static double whole_seconds; /* of the run that nobody stopped */

static void reference_folder(char *folder) {
    snprintf(folder, FOLDER_BYTES, "%s/reference", soak_folder);
}

/* Starts or resumes the run of that folder. */
static int start(const char *folder) {
    char out[PATH_BYTES], text[PATH_BYTES], steps[16];
    snprintf(out, sizeof out, "%s/run", folder);
    snprintf(text, sizeof text, "%s/text", soak_folder);
    snprintf(steps, sizeof steps, "%d", STEPS);
    char *argv[] = {"train_gpt2", "--device",        "cpu",       "--layers",     "1",  "--heads",
                    "2",          "--channels",      "32",        "--batch",      "2",  "--seq",
                    "16",         "--seed",          "5",         "--train",      text, "--steps",
                    steps,        "--sample-tokens", "0",         "--eval-every", "10", "--eval-batches",
                    "2",          "--save-every",    "1",         "--keep",       "3",  "--out",
                    out,          "--resume",        "--dropout", "0.1",          NULL};
    return start_program(soak_program, argv, folder);
}

static void prepare(void) {
    char path[PATH_BYTES], folder[FOLDER_BYTES], text[4000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i / 11 % 26);
    snprintf(path, sizeof path, "%s/text", soak_folder);
    write_whole(path, text, sizeof text);
    reference_folder(folder);
    must_run("rm -rf %s; mkdir %s", folder, folder);
    const double begun = clock_seconds();
    int status;
    const pid_t child = start(folder);
    if (waitpid(child, &status, 0) != child || status != 0)
        finding("the run that nobody stops fails: %s/err", folder);
    whole_seconds = clock_seconds() - begun;
}

static void folder_of(int worker, char *folder) {
    snprintf(folder, FOLDER_BYTES, "%s/run_%d", soak_folder, worker);
}

static void begin(int worker) {
    char folder[FOLDER_BYTES];
    folder_of(worker, folder);
    must_run("rm -rf %s; mkdir %s", folder, folder);
}

/* Step of the newest checkpoint by its name; 0: none. */
static int newest_step(const char *folder) {
    char path[PATH_BYTES];
    int newest = 0;
    snprintf(path, sizeof path, "%s/run", folder);
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (strncmp(entry->d_name, "step_", 5) == 0 && atoi(entry->d_name + 5) > newest)
            newest = atoi(entry->d_name + 5);
    if (directory) closedir(directory);
    return newest;
}

static bool says(const char *folder, const char *file, const char *words) {
    char path[PATH_BYTES], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (!try_read_whole(path, &text, &n)) return false;
    const bool found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* The run is at its end: compare, and start another. */
static void finish(const char *folder, int64_t *counts) {
    char reference[FOLDER_BYTES], paths[2][PATH_BYTES];
    reference_folder(reference);
    snprintf(paths[0], sizeof paths[0], "%s/run", folder);
    snprintf(paths[1], sizeof paths[1], "%s/run", reference);
    check_same_state(paths[0], paths[1], STEPS, ", of the run that nobody stopped");
    counts[COUNT_FINISHED]++;
    must_run("rm -rf %s/run", folder);
}

/* Stops a run after a random time, up to a little more than a whole one takes; until one signal has met a run. */
static void stop_once(int worker, int signal_number, int64_t *counts) {
    char folder[FOLDER_BYTES];
    folder_of(worker, folder);
    for (bool met = false; !met;) {
        const int before = newest_step(folder);
        int status;
        const pid_t child = start(folder);
        const double seconds =
            whole_seconds * (double)draw_below(1 << 20) / (1 << 20) * (draw_below(4) ? 0.5 : 1.2);
        nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))},
                  NULL);
        kill(child, signal_number);
        if (waitpid(child, &status, 0) != child) finding("waitpid");
        const int after = newest_step(folder);
        const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        const bool by_signal = WIFSIGNALED(status) && WTERMSIG(status) == signal_number;
        /* A SIGTERM before the run listens ends the process, as it does any other; nothing was done by then. */
        if (!ended && !(by_signal && (signal_number == SIGKILL || after == before)))
            finding("status %#x after step %d; see %s/err", (unsigned)status, after, folder);
        if (after < before) finding("the newest checkpoint was step %d, then %d: %s", before, after, folder);
        if (says(folder, "err", "skipped")) finding("a checkpoint is passed over: %s/err", folder);
        if (before > 0 && after > before && !says(folder, "out", "\nresumed ") && signal_number == SIGTERM)
            finding("not resumed: %s/out", folder);
        met = by_signal || after < STEPS;
        counts[COUNT_SAVES] += after - before;
        if (after == STEPS) finish(folder, counts);
    }
    counts[COUNT_STOPPED]++;
}

static void run_kill(int worker, int64_t number, int64_t *counts) {
    (void)number;
    stop_once(worker, SIGKILL, counts);
}

static void run_term(int worker, int64_t number, int64_t *counts) {
    (void)number;
    stop_once(worker, SIGTERM, counts);
}

const Campaign kill_campaign = {
    "kill", "KILLS", 1000, prepare, begin, run_kill, {"SIGKILLs", "runs at their end, bit for bit", "saves"}
};
const Campaign term_campaign = {
    "term", "TERMS", 1000, prepare, begin, run_term, {"SIGTERMs", "runs at their end, bit for bit", "saves"}
};
