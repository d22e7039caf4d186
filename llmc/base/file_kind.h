/* Whether a file is what it is taken for: files that are no text, known by how they begin. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "error.h"

/* bytes: n bytes of the file from `offset` on. Refuses what is no text by the name of its kind: an archive, a picture,
 * UTF-16, any file with a null byte. */
bool file_kind_check(const char *path, const char *bytes, size_t n, int64_t offset, Error *err);
