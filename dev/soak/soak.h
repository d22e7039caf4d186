/* What the campaigns of the soak share: random numbers that a case's number determines, findings, counts.
 *
 * A campaign runs its cases in forked workers, case i in worker i % jobs. A finding ends the soak; what it prints is
 * enough to run the case again. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { N_COUNTS = 6, FOLDER_BYTES = 128, PATH_BYTES = 512 };

typedef struct Campaign {
    const char *name, *variable; /* the environment's variable that says how many cases */
    int64_t default_cases;
    void (*prepare)(void);                                    /* once, before the workers; may be NULL */
    void (*begin)(int worker);                                /* in every worker, before its first case */
    void (*run)(int worker, int64_t number, int64_t *counts); /* one case */
    const char *count_names[N_COUNTS];
} Campaign;

extern const Campaign damage_campaign, kill_campaign, term_campaign, flags_campaign, ranks_campaign;

/* The soak's own folder (removed at the end unless there is a finding), and the programs under test. */
extern char soak_folder[64];
extern const char *soak_program;      /* plain, for kills: its timing is the user's */
extern const char *sanitized_program; /* the same where the soak is not built with sanitizers */

/* Prints it and ends the worker, and with it the soak. */
void finding(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* The next random number of this case; below n. */
uint64_t draw(void);
int64_t draw_below(int64_t n);

/* Runs a shell command that must succeed. */
void must_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The file's bytes, malloc'ed with a 0 behind them; a finding if it cannot be read. */
char *read_whole(const char *path, size_t *n);
bool try_read_whole(const char *path, char **bytes, size_t *n);
void write_whole(const char *path, const void *bytes, size_t n);
/* A finding unless the folders of two runs hold the same model and optimizer at a step, bit for bit; `said` ends it. */
void check_same_state(const char *folder, const char *expected, int step, const char *said);
/* Starts the program with its output in OUT_FOLDER/out and OUT_FOLDER/err; its process. */
int start_program(const char *program, char *const argv[], const char *out_folder);
