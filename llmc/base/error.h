/* Errors as values: one clear line that says what, where, expected, found, and a hint.
 *
 * A function that can fail takes an Error and returns false (or NULL) through fail(); main() prints and exits. So a reader
 * can be fuzzed, and a damaged checkpoint can be skipped instead of ending the run. What nobody could go on from calls die()
 * where it is: no memory for a small thing (must_allocate), a device that fails, a rank whose others end. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EXIT_RUN = 1,   /* a failure at run time: out of memory, a dead device, a full disk */
    EXIT_INPUT = 2, /* bad input: a flag, a file, a value */
};

typedef struct Error {
    int exit_code; /* EXIT_RUN or EXIT_INPUT, of a rank of --gpus also what place.h has; 0 while nothing failed */
    char text[1024];
} Error;

/* Fills err (printf-style, no newline at the end) and returns false, so that `return fail(...)` reads well. */
bool fail(Error *err, int exit_code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "--FLAG: ", of the flag that brought the failure, before its words; returns false. */
bool fail_flag(const char *flag, Error *err);

/* Prints "warning: TEXT" as one line to stderr: the run goes on. */
void warn(const Error *err);

/* The end of the process, with what was printed. By exit(), or, where `ends_at_once`, without what libraries do at an exit:
 * a library whose threads go on may crash or hang in it. */
void end_process(int exit_code) __attribute__((noreturn));
extern bool ends_at_once;

/* Prints "error: TEXT" as one line to stderr and ends the process with err->exit_code. */
void die(const Error *err) __attribute__((noreturn));
/* Not NULL: die() calls it instead, and it does not return. */
extern void (*die_with)(const Error *err);

/* Memory for `what`, in the middle of work that cannot fail: where there is none, the end, through die(). */
void *must_allocate(size_t bytes, const char *what);

#ifdef __cplusplus
}
#endif
