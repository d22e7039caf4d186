/* A whole file into memory. */
#pragma once
#include <stddef.h>
#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of a regular file, malloc'ed, with a null byte after the last; *size without it. Files over 2 GiB
 * are fine. NULL with err: missing, a directory or pipe, unreadable (EXIT_INPUT); out of memory (EXIT_RUN).
 */
char *read_file(const char *path, size_t *size, Error *err);

#ifdef __cplusplus
}
#endif
