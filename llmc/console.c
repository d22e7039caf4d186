/* The lines of the run. What stands before it, settings and memory, is in console_echo.c. */
#include "console.h"
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* ---- numbers ---- */

static const char *format_unit(char *buffer, double value, double base, const char *const units[],
                               int n_units) {
    int unit = 0;
    /* 999.95 would print as 1000.0: it goes to the next unit */
    while (unit + 1 < n_units && fabs(value) >= base - 0.05) {
        value /= base;
        unit++;
    }
    snprintf(buffer, CONSOLE_NUMBER, "%.*f%s%s", unit || value != floor(value) ? 1 : 0, value,
             *units[unit] ? " " : "", units[unit]);
    return buffer;
}

const char *console_count(char *buffer, double count) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    return format_unit(buffer, count, 1000, units, 6);
}

const char *console_bytes(char *buffer, double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return format_unit(buffer, bytes, 1024, units, 5);
}

const char *console_integer(char *buffer, int64_t n) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n), used = 0;
    for (int i = 0; i < length; i++) {
        buffer[used++] = digits[i];
        int left = length - 1 - i;
        if (isdigit((unsigned char)digits[i]) && left && left % 3 == 0) buffer[used++] = ',';
    }
    buffer[used] = '\0';
    return buffer;
}

const char *console_duration(char *buffer, double seconds) {
    if (!(seconds >= 0 && seconds < 1e12)) return strcpy(buffer, "-");
    long long s = llround(seconds);
    if (s < 3600)
        snprintf(buffer, CONSOLE_NUMBER, "%lld:%02lld", s / 60, s % 60);
    else
        snprintf(buffer, CONSOLE_NUMBER, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return buffer;
}

/* ---- the bar ---- */

static double monotonic_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void console_open(Console *console, FILE *out, int64_t first_step, int64_t n_steps) {
    *console = (Console){.out = out, .first_step = first_step, .n_steps = n_steps, .now = monotonic_seconds};
    console->terminal = isatty(fileno(out));
    console->last_line = console->last_bar = -1e9;
}

static void clear_bar(Console *console) {
    if (console->bar_shown) fputs("\r\033[K", console->out);
    console->bar_shown = false;
}

static int terminal_columns(FILE *out) {
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* "[=====>      ]  12.3 % | loss 2.1234 | 62.4 k tok/s | ETA 0:25", one column short of the terminal's width,
 * since a full line would wrap and could not be rewritten. */
static void draw_bar(Console *console, const StepReport *report, double eta) {
    enum { LONGEST = 60 };
    char rate[CONSOLE_NUMBER], left[CONSOLE_NUMBER], text[160], bar[LONGEST + 1];
    double done = console->n_steps ? (double)report->step / (double)console->n_steps : 1;
    int length =
        snprintf(text, sizeof text, " %5.1f %% | loss %.4f | %s tok/s | ETA %s", 100 * done, report->loss,
                 console_count(rate, report->tokens_per_second), console_duration(left, eta));
    int columns = terminal_columns(console->out) - 1, cells = columns - length - 2;
    if (cells > LONGEST) cells = LONGEST;
    clear_bar(console);
    if (cells >= 4) {
        int filled = (int)(done * cells);
        for (int i = 0; i < cells; i++) bar[i] = i < filled ? '=' : i == filled ? '>' : ' ';
        fprintf(console->out, "[%.*s]", cells, bar);
    }
    fprintf(console->out, "%.*s", columns, text);
    fflush(console->out);
    console->bar_shown = true;
    console->last_bar = console->now();
}

/* ---- lines ---- */

/* Mean time of the steps since the first, which is left out because it also warms up, times what is left. */
static double estimate_seconds_left(Console *console, const StepReport *report) {
    double left = (double)(console->n_steps - report->step);
    int64_t done = report->step - console->first_step;
    if (done > 1) return left * (console->now() - console->started) / (double)(done - 1);
    console->started = console->now();
    return left * report->ms * 1e-3;
}

static void print_place(Console *console, int64_t step) {
    char total[24];
    int width = snprintf(total, sizeof total, "%lld", (long long)console->n_steps);
    fprintf(console->out, "step %*lld/%s | ", width, (long long)step, total);
}

static void print_step(Console *console, const StepReport *report, double eta) {
    char number[CONSOLE_NUMBER];
    clear_bar(console);
    print_place(console, report->step);
    fprintf(console->out, "loss %.4f | lr %.2e | norm %.2f | %.1f ms | %s tok/s", report->loss, report->lr,
            report->norm, report->ms, console_count(number, report->tokens_per_second));
    if (!isnan(report->mfu)) fprintf(console->out, " | %.1f %% MFU", 100 * report->mfu);
    if (report->memory_bytes)
        fprintf(console->out, " | %s", console_bytes(number, (double)report->memory_bytes));
    fprintf(console->out, " | ETA %s", console_duration(number, eta));
    if (report->n_skipped) fprintf(console->out, " | %lld skipped", (long long)report->n_skipped);
    fputc('\n', console->out);
    fflush(console->out);
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
    clear_bar(console);
    print_place(console, step);
    fprintf(console->out, "val loss %.4f\n", val_loss);
    fflush(console->out);
}

void console_note(Console *console, const char *format, ...) {
    clear_bar(console);
    va_list args;
    va_start(args, format);
    vfprintf(console->out, format, args);
    va_end(args);
    fputc('\n', console->out);
    fflush(console->out);
}

void console_sample_begin(Console *console, int64_t step) {
    clear_bar(console);
    fprintf(console->out, "--- sample, step %lld ---\n", (long long)step);
    console->sample_ends_in_newline = true;
}

void console_sample_text(const char *bytes, size_t n, void *user) {
    Console *console = user;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        fputc(c == 127 || (c < ' ' && c != '\n' && c != '\t') ? '?' : c, console->out);
    }
    if (n > 0) console->sample_ends_in_newline = bytes[n - 1] == '\n';
    fflush(console->out);
}

void console_sample_end(Console *console) {
    fprintf(console->out, "%s---\n", console->sample_ends_in_newline ? "" : "\n");
    fflush(console->out);
}

static const char *loss_text(char *buffer, double loss) {
    if (isnan(loss)) return "n/a";
    snprintf(buffer, CONSOLE_NUMBER, "%.4f", loss);
    return buffer;
}

void console_done(Console *console, int64_t step, double train_loss, double val_loss,
                  double tokens_per_second) {
    char train[CONSOLE_NUMBER], val[CONSOLE_NUMBER];
    clear_bar(console);
    fprintf(console->out, "done: step %lld, train loss %s, val loss %s, %.0f tok/s\n", (long long)step,
            loss_text(train, train_loss), loss_text(val, val_loss), tokens_per_second);
    fflush(console->out);
}
