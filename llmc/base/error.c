#include "error.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "terminal.h"

bool fail(Error *err, int exit_code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    /* One line, whatever names a hostile file brings. */
    err->text[make_printable(err->text, strlen(err->text), false)] = '\0';
    err->exit_code = exit_code;
    return false;
}

bool fail_flag(const char *flag, Error *err) {
    const Error cause = *err;
    return fail(err, cause.exit_code, "--%s: %s", flag, cause.text);
}

void warn(const Error *err) {
    fflush(stdout);
    print_line(stderr, "warning: %s", err->text);
}

bool ends_at_once;

void end_process(int exit_code) {
    if (!ends_at_once) exit(exit_code);
    fflush(NULL);
    _exit(exit_code);
}

void (*die_with)(const Error *err);

void die(const Error *err) {
    if (die_with) die_with(err);
    fflush(stdout);
    print_line(stderr, "error: %s", err->text);
    end_process(err->exit_code);
}

void *must_allocate(size_t bytes, const char *what) {
    void *memory = malloc(bytes);
    Error err = {0};
    if (memory || bytes == 0) return memory;
    fail(&err, EXIT_RUN, "out of memory: %zu bytes for %s", bytes, what);
    die(&err);
}
