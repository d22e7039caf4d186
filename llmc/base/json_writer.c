#include "json.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- UTF-8 (RFC 3629) ---- */
int utf8_sequence(const char *p, size_t n) {
    const unsigned char *c = (const unsigned char *)p;
    if (n == 0) return 0;
    if (c[0] < 0x80) return 1;
    int length = c[0] >= 0xF0 ? 4 : c[0] >= 0xE0 ? 3 : 2;
    if (c[0] < 0xC2 || c[0] > 0xF4 || (size_t)length > n) return 0;
    for (int i = 1; i < length; i++)
        if ((c[i] & 0xC0) != 0x80) return 0;
    bool overlong = (c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xF0 && c[1] < 0x90);
    bool surrogate = c[0] == 0xED && c[1] > 0x9F;
    bool too_large = c[0] == 0xF4 && c[1] > 0x8F;
    return overlong || surrogate || too_large ? 0 : length;
}

uint32_t utf8_decode(const char *p, int n) {
    const unsigned char *c = (const unsigned char *)p;
    uint32_t code_point = n == 1 ? c[0] : c[0] & (0x7Fu >> n);
    for (int i = 1; i < n; i++) code_point = code_point << 6 | (c[i] & 0x3Fu);
    return code_point;
}

int utf8_encode(char out[4], uint32_t code_point) {
    int length = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code_point & 0x3F));
        code_point >>= 6;
    }
    out[0] = (char)(lead[length] | code_point);
    return length;
}

/* ---- buffer ---- */
void json_append(JsonWriter *w, const char *bytes, size_t n) {
    if (w->failed) return;
    if (w->capacity - w->length <= n) { /* one byte more, for the terminating null */
        size_t capacity = 2 * w->capacity + n + 256;
        char *data = realloc(w->data, capacity);
        if (!data) {
            w->failed = true;
            return;
        }
        w->data = data;
        w->capacity = capacity;
    }
    memcpy(w->data + w->length, bytes, n);
    w->length += n;
    w->data[w->length] = 0;
}

void json_writer_free(JsonWriter *w) {
    free(w->data);
    *w = (JsonWriter){0};
}

static void append_text(JsonWriter *w, const char *text) {
    json_append(w, text, strlen(text));
}

static void append_quoted(JsonWriter *w, const char *text) {
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    size_t n = strlen(text);
    append_text(w, "\"");
    while (n > 0) {
        int length = utf8_sequence(text, n);
        const char *escape = strchr(special, *text);
        char escaped[8];
        if (length == 0) {
            length = 1;
            append_text(w, "\xEF\xBF\xBD"); /* U+FFFD, the replacement character */
        } else if (escape) {
            snprintf(escaped, sizeof escaped, "\\%c", letter[escape - special]);
            append_text(w, escaped);
        } else if ((unsigned char)*text < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", *text);
            append_text(w, escaped);
        } else {
            json_append(w, text, length);
        }
        text += length;
        n -= length;
    }
    append_text(w, "\"");
}

static void new_line(JsonWriter *w) {
    if (w->indent == 0) return;
    append_text(w, "\n");
    for (int i = 0; i < w->indent * w->depth; i++) append_text(w, " ");
}

/* ---- structure ---- */
static void begin_value(JsonWriter *w, const char *key) {
    if (w->comma) append_text(w, w->indent || !w->depth ? "," : ", ");
    if (w->depth > 0) new_line(w);
    if (key) {
        append_quoted(w, key);
        append_text(w, ": ");
    }
    w->comma = w->depth > 0;
}

static void begin_container(JsonWriter *w, const char *key, const char *bracket) {
    begin_value(w, key);
    append_text(w, bracket);
    w->depth++;
    w->comma = false;
}

static void end_container(JsonWriter *w, const char *bracket) {
    w->depth--;
    if (w->comma) new_line(w);
    append_text(w, bracket);
    w->comma = w->depth > 0;
}

void json_begin_object(JsonWriter *w, const char *key) {
    begin_container(w, key, "{");
}

void json_end_object(JsonWriter *w) {
    end_container(w, "}");
}

void json_begin_array(JsonWriter *w, const char *key) {
    begin_container(w, key, "[");
}

void json_end_array(JsonWriter *w) {
    end_container(w, "]");
}

/* ---- values ---- */
void json_write_raw(JsonWriter *w, const char *key, const char *json) {
    begin_value(w, key);
    append_text(w, json);
}

void json_write_string(JsonWriter *w, const char *key, const char *text) {
    if (!text) {
        json_write_null(w, key);
        return;
    }
    begin_value(w, key);
    append_quoted(w, text);
}

void json_write_int(JsonWriter *w, const char *key, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    json_write_raw(w, key, text);
}

void json_write_double(JsonWriter *w, const char *key, double value) {
    char text[40] = "null";
    if (isfinite(value))
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, value);
            if (strtod(text, NULL) == value) break;
        }
    json_write_raw(w, key, text);
}

void json_write_bool(JsonWriter *w, const char *key, bool value) {
    json_write_raw(w, key, value ? "true" : "false");
}

void json_write_null(JsonWriter *w, const char *key) {
    json_write_raw(w, key, "null");
}
