#include "json.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "utf8.h"

void json_writer_free(JsonWriter *w) {
    buffer_free(&w->text);
    *w = (JsonWriter){0};
}

static void append_text(JsonWriter *w, const char *text) {
    buffer_append(&w->text, text, strlen(text));
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
            buffer_append(&w->text, text, (size_t)length);
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
