#include "terminal.h"
#include "clock.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "thread.h"
#include "utf8.h"

/* ---- what may be shown ---- */

/* The text ends within a character that begins at s. */
static bool is_begun(const unsigned char *s, size_t n) {
    const size_t length = (size_t)utf8_length((char)s[0]);
    for (size_t i = 1; i < n && i < length; i++)
        if (s[i] >> 6 != 2) return false;
    return n < length;
}

/* Length of the UTF-8 character at s, and its code; 0: none begins here; -1: the text ends within it. */
static int read_character(const unsigned char *s, size_t n, uint32_t *code) {
    const int length = utf8_sequence((const char *)s, n);
    *code = length ? utf8_decode((const char *)s, length) : s[0];
    return length ? length : is_begun(s, n) ? -1 : 0;
}

/* Control codes, direction marks, separators: first and last of each range. */
static bool is_hidden(uint32_t code) {
    static const uint32_t ranges[][2] = {
        {0,      0x1F  },
        {0x7F,   0x9F  },
        {0x61C,  0x61C },
        {0x200E, 0x200F},
        {0x2028, 0x202E},
        {0x2066, 0x2069},
        {0xFEFF, 0xFEFF}
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1]) return true;
    return false;
}

/* The first byte of n is a newline's or a tab; of a newline as Windows has it (CR LF), too. */
static bool is_newline_or_tab(const char *s, size_t n) {
    return *s == '\n' || *s == '\t' || (n > 1 && s[0] == '\r' && s[1] == '\n');
}

size_t make_printable(char *text, size_t n, bool keep_newline_and_tab) {
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        const int length = read_character((const unsigned char *)text + i, n - i, &code);
        const bool kept = keep_newline_and_tab && is_newline_or_tab(text + i, n - i);
        const size_t step = length > 0 ? (size_t)length : 1;
        if (length > 0 && (kept || !is_hidden(code))) {
            memmove(text + used, text + i, step);
            used += step;
        } else {
            text[used++] = '?';
        }
        i += step;
    }
    return used;
}

size_t incomplete_character(const char *text, size_t n) {
    uint32_t code;
    if (n > 0 && text[n - 1] == '\r') return 1;
    for (size_t k = 1; k <= 3 && k <= n; k++)
        if (read_character((const unsigned char *)text + n - k, k, &code) < 0) return k;
    return 0;
}

/* ---- the terminal ---- */

int terminal_columns(FILE *out) {
    struct winsize size;
    const int fd = fileno(out);
    if (fd < 0 || !isatty(fd)) return 0;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char *text = getenv("COLUMNS");
    const int columns = text ? atoi(text) : 0;
    return columns > 0 ? columns : 80;
}

bool terminal_redraws(FILE *out) {
    const char *kind = getenv("TERM"), *forbidden = getenv("NO_COLOR");
    return terminal_columns(out) > 0 && kind && *kind && strcmp(kind, "dumb") != 0 &&
           !(forbidden && *forbidden);
}

/* ---- the status line ---- */

static struct Status {
    FILE *out; /* NULL: none is shown */
    bool ticks, has_clock;
    time_t since;
    char text[512];
} status;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of status, and of lines beside the clock's */

static void hide(void) {
    if (!status.out) return;
    fputs("\r\033[K", status.out);
    fflush(status.out);
    status.out = NULL;
}

/* As much of the text as fits. */
static void draw(FILE *out, const char *text, int columns) {
    size_t n = strlen(text);
    if (n > (size_t)columns) {
        n = (size_t)columns;
        n -= incomplete_character(text, n);
    }
    fwrite(text, 1, n, out);
    fflush(out);
}

static time_t seconds_now(void) {
    return (time_t)clock_seconds();
}

/* Once a second: the line again, with the time that it has stood there. */
static void *run_clock(void *unused) {
    for (;;) {
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        pthread_mutex_lock(&lock);
        const int room = status.out ? terminal_columns(status.out) - 1 : 0;
        if (room > 0 && status.ticks) {
            char line[sizeof status.text + 32];
            snprintf(line, sizeof line, "%s, %lld s", status.text, (long long)(seconds_now() - status.since));
            fputs("\r\033[K", status.out);
            draw(status.out, line, room);
        }
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

/* Without a thread the line stands still. */
static void start_clock(void) {
    pthread_t thread;
    if (thread_start(&thread, run_clock, NULL)) pthread_detach(thread);
    status.has_clock = true;
}

void status_show(FILE *out, int columns, bool ticks, const char *format, ...) {
    va_list args;
    pthread_mutex_lock(&lock);
    hide();
    va_start(args, format);
    vsnprintf(status.text, sizeof status.text, format, args);
    va_end(args);
    status.text[make_printable(status.text, strlen(status.text), false)] = '\0';
    status.out = out;
    status.ticks = ticks;
    status.since = seconds_now();
    draw(out, status.text, columns);
    if (ticks && !status.has_clock) start_clock();
    pthread_mutex_unlock(&lock);
}

/* ---- lines ---- */

static int failure; /* errno; 0: none */

static void note_failure(const FILE *out, bool written) {
    if (!written && out == stdout && !failure) failure = errno ? errno : EIO;
}

void print_flush(FILE *out) {
    note_failure(out, fflush(out) == 0);
}

int print_failure(void) {
    print_flush(stdout);
    return failure ? failure : ferror(stdout) ? EIO : 0;
}

static void put(FILE *out, const char *bytes, size_t n, const char *end) {
    pthread_mutex_lock(&lock);
    hide();
    const int put =
        fprintf(out, "%.*s%s", (int)n, bytes, end); /* one write: other ranks have the same stderr */
    note_failure(out, put >= 0);
    pthread_mutex_unlock(&lock);
}

/* The text, printable, in memory of its own; NULL where there is none left. */
static char *format_text(const char *format, va_list args) {
    char *text = NULL;
    const int n = vasprintf(&text, format, args);
    if (n < 0) return NULL;
    text[make_printable(text, (size_t)n, false)] = '\0';
    return text;
}

static void print_args(FILE *out, const char *end, const char *format, va_list args) {
    char *text = format_text(format, args);
    if (text) put(out, text, strlen(text), end);
    free(text);
}

void print_nothing(void) {
    if (!freopen("/dev/null", "w", stdout)) fclose(stdout);
}

void print(FILE *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_args(out, "", format, args);
    va_end(args);
}

void print_line(FILE *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_args(out, "\n", format, args);
    va_end(args);
}

void print_text(FILE *out, const char *bytes, size_t n) {
    char part[1024];
    for (size_t done = 0, size; done < n; done += size) {
        size = n - done < sizeof part ? n - done : sizeof part;
        if (done + size < n) size -= incomplete_character(bytes + done, size);
        memcpy(part, bytes + done, size);
        put(out, part, make_printable(part, size, true), "");
    }
}

void print_wrapped(FILE *out, int column, int indent, int width, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *all = format_text(format, args);
    va_end(args);
    for (const char *word = all; word && *word;) {
        const size_t length = strcspn(word, " ");
        const bool first = word == all;
        if (width > 0 && !first && column + 1 + (int)length > width) {
            put(out, "", 0, "\n");
            print(out, "%*s", indent, "");
            column = indent;
        } else if (!first) {
            print(out, " ");
            column++;
        }
        put(out, word, length, "");
        column += (int)length;
        word += length;
        word += *word == ' ';
    }
    put(out, "", 0, "\n");
    free(all);
}

void print_note_to(FILE *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_text(format, args);
    va_end(args);
    print_wrapped(out, 0, 2, terminal_columns(out), "note: %s", text ? text : "");
    free(text);
}
