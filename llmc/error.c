#include "error.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool fail(Error *err, int exit_code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    /* One line, whatever names a hostile file brings. */
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    err->exit_code = exit_code;
    return false;
}

bool fail_flag(const char *flag, Error *err) {
    const Error cause = *err;
    return fail(err, cause.exit_code, "--%s: %s", flag, cause.text);
}

void die(const Error *err) {
    fflush(stdout);
    fprintf(stderr, "error: %s\n", err->text);
    exit(err->exit_code);
}
