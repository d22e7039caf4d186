/* The lines of the run. What stands before it, settings and memory, is in console_settings.c. */
#include "console.h"
#include "llmc/base/clock.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include "llmc/base/terminal.h"

/* ---- the bar ---- */

void console_open(Console *console, FILE *out, int64_t first_step, int64_t n_steps) {
    *console = (Console){.out = out, .first_step = first_step, .n_steps = n_steps, .now = clock_seconds};
    console->terminal = terminal_redraws(out);
    console->last_line = console->last_bar = -1e9;
}

/* One column short of the terminal's width, since a full line would wrap and could not be rewritten. */
static int bar_columns(const Console *console) {
    const int columns = terminal_columns(console->out);
    return (columns ? columns : 80) - 1;
}

/* "[=====>      ]  12.3 % | loss 2.1234 | 62.4 k tok/s | ETA 0:25"; where that is too long, without the rate. */
static void draw_bar(Console *console, const StepReport *report, double eta) {
    enum { LONGEST = 60 };
    char number[FORMAT_NUMBER], rate[FORMAT_NUMBER + 16] = "", left[FORMAT_NUMBER], text[160],
                                                     bar[LONGEST + 3] = "";
    const double done = console->n_steps ? (double)report->step / (double)console->n_steps : 1;
    const int columns = bar_columns(console);
    if (columns >= 60)
        snprintf(rate, sizeof rate, "%s tok/s | ", format_count(number, report->tokens_per_second));
    const int length = snprintf(text, sizeof text, " %5.1f %% | loss %.4f | %sETA %s", 100 * done,
                                report->loss, rate, format_duration(left, eta));
    int cells = columns - length - 2;
    if (cells > LONGEST) cells = LONGEST;
    if (cells >= 4) {
        const int filled = (int)(done * cells);
        for (int i = 0; i < cells; i++) bar[i + 1] = i < filled ? '=' : i == filled ? '>' : ' ';
        bar[0] = '[', bar[cells + 1] = ']';
    }
    status_show(console->out, columns, false, "%s%s", bar, text);
    console->last_bar = console->now();
}

/* ---- lines ---- */

/* Mean time of the steps of the last half hour or hour, times what is left: a night in which the run was stopped, or had the
 * machine for itself, is forgotten. The first step is left out because it also warms up. */
static double estimate_seconds_left(Console *console, const StepReport *report) {
    const double span = 1800, left = (double)(console->n_steps - report->step);
    const StepTime now = {report->step, console->now()};
    if (report->step == console->first_step + 1) {
        console->since = console->next = now;
        return left * report->ms * 1e-3;
    }
    if (now.seconds - console->next.seconds >= span) {
        console->since = console->next;
        console->next = now;
    }
    return left * (now.seconds - console->since.seconds) / (double)(now.step - console->since.step);
}

enum { LINE_MAX_BYTES = 320 };

/* A line of the run, as many of its fields as the terminal is wide. */
typedef struct Line {
    char text[LINE_MAX_BYTES];
    int used, columns; /* columns 0: no limit */
    bool full;
} Line;

static Line begin_line(const Console *console, int64_t step) {
    Line line = {.columns = terminal_columns(console->out)};
    char total[24];
    const int width = snprintf(total, sizeof total, "%lld", (long long)console->n_steps);
    line.used = console->n_steps
                    ? snprintf(line.text, sizeof line.text, "step %*lld/%s", width, (long long)step, total)
                    : snprintf(line.text, sizeof line.text, "step %lld", (long long)step);
    return line;
}

/* Adds " | FIELD"; after the first that does not fit, none. */
__attribute__((format(printf, 2, 3))) static void add_field(Line *line, const char *format, ...) {
    char field[64];
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(field, sizeof field, format, args) + 3;
    va_end(args);
    line->full = line->full || (line->columns && line->used + length > line->columns);
    if (line->full) return;
    line->used += snprintf(line->text + line->used, sizeof line->text - (size_t)line->used, " | %s", field);
}

static void end_line(const Console *console, const Line *line) {
    print_line(console->out, "%s", line->text);
    print_flush(console->out);
}

static void print_step(Console *console, const StepReport *report, double eta) {
    char number[FORMAT_NUMBER];
    Line line = begin_line(console, report->step);
    add_field(&line, "loss %.4f", report->loss);
    add_field(&line, "lr %.2e", report->lr);
    add_field(&line, "norm %.2f", report->norm);
    add_field(&line, "%.1f ms", report->ms);
    add_field(&line, "%s tok/s", format_count(number, report->tokens_per_second));
    if (!isnan(report->mfu)) add_field(&line, "%.1f %% MFU", 100 * report->mfu);
    if (report->memory_bytes) add_field(&line, "%s", format_bytes(number, (double)report->memory_bytes));
    if (report->step > console->first_step + 1) /* the first step also readies the device */
        add_field(&line, "ETA %s", format_duration(number, eta));
    if (report->n_skipped) add_field(&line, "%lld skipped", (long long)report->n_skipped);
    end_line(console, &line);
}

void console_step(Console *console, const StepReport *report) {
    enum { FIRST_LINES = 10 };
    const double line_interval = 0.5, bar_interval = 0.1; /* seconds */
    double eta = estimate_seconds_left(console, report), now = console->now();
    if (report->step - console->first_step <= FIRST_LINES || report->step >= console->n_steps ||
        now - console->last_line >= line_interval) {
        print_step(console, report, eta);
        console->last_line = now;
    }
    if (console->terminal && report->step < console->n_steps && now - console->last_bar >= bar_interval)
        draw_bar(console, report, eta);
}

void console_val(Console *console, int64_t step, double val_loss) {
    Line line = begin_line(console, step);
    add_field(&line, "val loss %.4f", val_loss);
    end_line(console, &line);
}

void console_score(Console *console, int64_t step, const ChoiceScore *score, double seconds) {
    char items[FORMAT_NUMBER];
    Line line = begin_line(console, step);
    add_field(&line, "hellaswag acc_norm %.4f", choices_share(score, score->n_right_mean));
    add_field(&line, "acc %.4f", choices_share(score, score->n_right));
    add_field(&line, "%s items in %.1f s", format_integer(items, score->n_items), seconds);
    end_line(console, &line);
}

void console_note(Console *console, const char *format, ...) {
    char text[2048]; /* an error and the words before it */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_wrapped(console->out, 0, 2, terminal_columns(console->out), "%s", text);
    print_flush(console->out);
}

void console_status(Console *console, const char *format, ...) {
    const double interval = 0.1, now = console->now();  /* seconds */
    const bool counts = format == console->last_status; /* the same words with other numbers */
    char text[256];
    if (!console->terminal || (counts && now - console->last_bar < interval)) return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    status_show(console->out, bar_columns(console), true, "%s", text);
    console->last_bar = now;
    console->last_status = format;
}

/* ---- samples ---- */

void console_text_begin(Console *console) {
    console->sample_ends_in_newline = true;
    console->n_held = 0;
}

/* What is printed goes out at once; that it could not, and why, is kept. */
static void send_text(Console *console) {
    const bool arrived = fflush(console->out) == 0 && !ferror(console->out);
    if (!arrived && !console->lost) console->lost = errno ? errno : EIO;
}

/* A token may be a part of a character: it waits until the rest is there. */
void console_text(Console *console, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        console->held[console->n_held++] = bytes[i];
        const size_t rest = incomplete_character(console->held, console->n_held);
        const size_t ready = console->n_held - rest;
        print_text(console->out, console->held, ready);
        memmove(console->held, console->held + ready, rest);
        console->n_held = rest;
    }
    if (n > 0) console->sample_ends_in_newline = bytes[n - 1] == '\n';
    send_text(console);
}

void console_text_end(Console *console) {
    print_text(console->out, console->held, console->n_held);
    console->n_held = 0;
    if (!console->sample_ends_in_newline) print_text(console->out, "\n", 1);
    send_text(console);
}

bool console_text_arrived(const Console *console, Error *err) {
    return !console->lost ||
           fail(err, EXIT_RUN, "the output could not be written: %s", strerror(console->lost));
}

void console_sample_begin(Console *console, FILE *frames, int64_t step, int number, int n) {
    if (frames && n == 1)
        print_line(frames, "--- sample, step %lld ---", (long long)step);
    else if (frames)
        print_line(frames, "--- sample %d of %d, step %lld ---", number, n, (long long)step);
    console_text_begin(console);
}

void console_sample_end(Console *console, FILE *frames) {
    console_text_end(console);
    if (!frames) return;
    print_line(frames, "---");
    print_flush(frames);
}

static const char *loss_text(char *buffer, double loss) {
    if (isnan(loss)) return "n/a";
    snprintf(buffer, FORMAT_NUMBER, "%.4f", loss);
    return buffer;
}

void console_done(Console *console, int64_t step, double train_loss, double val_loss,
                  double tokens_per_second) {
    char train[FORMAT_NUMBER], val[FORMAT_NUMBER];
    print_wrapped(console->out, 0, 2, terminal_columns(console->out),
                  "done: step %lld, train loss %s, val loss %s, %.0f tok/s", (long long)step,
                  loss_text(train, train_loss), loss_text(val, val_loss), tokens_per_second);
    print_flush(console->out);
}
