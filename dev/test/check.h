/* The test help: named conditions, counts, an exit code. A test file is a program:
 *
 *   int main(void) { test_thing(); return check_finish("thing"); }
 *
 * CHECK never stops the program; check the pointer you are about to follow with `if (!CHECK(...)) return;`.
 */
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int check_passed, check_failed, check_skipped;

/* Counts one condition; on failure prints file, line and the printf-style description. Returns the condition. */
#define CHECK(condition, ...) check_(__FILE__, __LINE__, #condition, (condition), __VA_ARGS__)
/* What a test needs of its own files and of the machine: no check of the program, so it counts only where it fails. */
#define REQUIRE(condition, ...) require_(__FILE__, __LINE__, #condition, (condition), __VA_ARGS__)
/* Counts one test that this machine cannot run, with the reason. */
#define SKIP(...) skip_(__VA_ARGS__)

static void check_failure(const char *file, int line, const char *text, const char *format, va_list args) {
    check_failed++;
    printf("FAIL %s:%d: %s: ", file, line, text);
    vprintf(format, args);
    printf("\n");
}

__attribute__((format(printf, 5, 6), unused)) static bool check_(const char *file, int line, const char *text,
                                                                 bool ok, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (ok)
        check_passed++;
    else
        check_failure(file, line, text, format, args);
    va_end(args);
    return ok;
}

__attribute__((format(printf, 5, 6), unused)) static bool
require_(const char *file, int line, const char *text, bool ok, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!ok) check_failure(file, line, text, format, args);
    va_end(args);
    return ok;
}

__attribute__((format(printf, 1, 2), unused)) static void skip_(const char *format, ...) {
    check_skipped++;
    printf("skip: ");
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

/* The larger of two errors; a NaN is larger than all, and stays: it must not be forgotten before the CHECK. */
__attribute__((unused)) static double worse(double a, double b) {
    return a >= b || isnan(a) ? a : b;
}

/* Prints "NAME: N passed, N failed, N skipped"; the exit code of main. */
__attribute__((unused)) static int check_finish(const char *name) {
    printf("%s: %d passed, %d failed, %d skipped\n", name, check_passed, check_failed, check_skipped);
    return check_failed || check_passed + check_skipped == 0;
}
