/* Bytes that grow at their end: a text as it comes, a file before it is written. Start from {0}. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct Buffer {
    char *data; /* null-terminated; NULL before the first bytes */
    size_t length, capacity;
    bool failed; /* out of memory: bytes are missing */
} Buffer;

/* Copies the bytes. Without memory `failed` is set, and later calls do nothing. */
void buffer_append(Buffer *buffer, const void *bytes, size_t n);
/* Leaves {0}. */
void buffer_free(Buffer *buffer);
