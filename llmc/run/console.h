/* What the user sees: the echo of the settings, the memory plan, a line a step, a bar on a terminal.
 *
 * Only rank 0 prints. No control codes where the output is not a terminal, TERM is dumb or unset, or NO_COLOR is set. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "llmc/base/format.h"
#include "flags.h"
#include "llmc/data/choices.h"
#include "llmc/model/gpt2.h"
#include "log.h"

/* ---- before the run ---- */

/* "label      text", labels aligned. */
void console_row(FILE *out, const char *label, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The rows that Settings alone determine: recipe, batch, optimizer, schedule, evaluation, sampling, output.
 * n_tokens: of the whole run. */
void console_settings(FILE *out, const Settings *s, int n_ranks, int64_t n_tokens);
/* Of --eval-only: what computes it, and how much is evaluated. */
void console_eval_settings(FILE *out, const Settings *s);
/* What is drawn, and how: 2 x 256 tokens at most, until "x", temperature 0.8, top-k 200. Returns buffer. */
enum { SAMPLING_WORDS = 2048 };
const char *console_sampling(char buffer[SAMPLING_WORDS], const Settings *s);
/* The plan by category, or tensor by tensor; then what the device has (total_bytes 0: not known) and the
 * largest batch that fits (largest_batch < 0: not known). */
void console_memory(FILE *out, const MemoryPlan *plan, bool by_tensor, size_t free_bytes, size_t total_bytes,
                    int largest_batch);
/* What is taken beside the plan, and where; 0 bytes: no line. */
void console_more_memory(FILE *out, const char *name, size_t bytes, const char *where);

/* On a terminal, until the next line: what takes its time before the run begins. */
void console_waiting(FILE *out, const char *what);

/* ---- the run ---- */

/* When a step ended. */
typedef struct StepTime {
    int64_t step;
    double seconds;
} StepTime;

typedef struct Console {
    FILE *out;
    bool terminal;               /* one whose lines can be drawn again */
    int64_t first_step, n_steps; /* steps (first_step, n_steps] are run here */
    double (*now)(void);         /* seconds, monotonic; tests put their own */
    StepTime since, next; /* the time left is estimated from the steps behind `since`, later behind `next` */
    double last_line, last_bar;
    const char *last_status; /* its format */
    bool sample_ends_in_newline;
    char held[4]; /* bytes of a sample that begin a character */
    size_t n_held;
    int lost; /* errno of the first piece of text that could not be written */
} Console;

/* Starts the clock of the ETA. first_step: steps already done (resume), else 0. n_steps 0: nothing is trained. */
void console_open(Console *console, FILE *out, int64_t first_step, int64_t n_steps);
/* One line: the first 10 steps, the last, and any that comes 0.5 s or more after the line before; so at most
 * about two lines a second, and every step where a step takes longer; on a terminal as many of its fields as
 * fit. There the bar below it is redrawn at most 10 times a second. */
void console_step(Console *console, const StepReport *report);
void console_val(Console *console, int64_t step, double val_loss);
void console_score(Console *console, int64_t step, const ChoiceScore *score, double seconds);
/* A warning or a word between the steps, on a line of its own. */
void console_note(Console *console, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* On a terminal, in the bar's place until the next line: what takes its time now. */
void console_status(Console *console, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Text as it comes, piece by piece: a character that is split over pieces is printed whole, what a terminal would obey
 * does not pass, and console_text_end ends the last line. */
void console_text_begin(Console *console);
void console_text(Console *console, const char *bytes, size_t n);
void console_text_end(Console *console);
/* False where a piece could not be written, to a full disk for example. */
bool console_text_arrived(const Console *console, Error *err);
/* The same between two lines, which go to `frames` (NULL: nowhere): sample `number` of n, from 1. */
void console_sample_begin(Console *console, FILE *frames, int64_t step, int number, int n);
void console_sample_end(Console *console, FILE *frames);
/* The last line of a training run, exactly "done: step N, train loss X, val loss Y, Z tok/s"; NAN is "n/a". */
void console_done(Console *console, int64_t step, double train_loss, double val_loss,
                  double tokens_per_second);
