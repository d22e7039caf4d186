#include "buffer.h"
#include <stdlib.h>
#include <string.h>

void buffer_append(Buffer *buffer, const void *bytes, size_t n) {
    if (buffer->failed) return;
    if (buffer->capacity - buffer->length <= n) { /* one byte more, for the terminating null */
        const size_t capacity = 2 * buffer->capacity + n + 256;
        char *data = realloc(buffer->data, capacity);
        if (!data) {
            buffer->failed = true;
            return;
        }
        buffer->data = data;
        buffer->capacity = capacity;
    }
    memcpy(buffer->data + buffer->length, bytes, n);
    buffer->length += n;
    buffer->data[buffer->length] = 0;
}

void buffer_free(Buffer *buffer) {
    free(buffer->data);
    *buffer = (Buffer){0};
}
