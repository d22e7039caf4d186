/* JSON (RFC 8259): a strict reader into a tree, and a writer.
 *
 * The reader refuses what the RFC does not allow (comments, trailing commas, bad UTF-8, lone surrogates, text
 * after the value), duplicate keys, and inputs past the limits below; a refusal names the byte offset, what
 * was expected and what was found. It is meant for files that nobody vouches for. */
#pragma once
#include <stdint.h>
#include "buffer.h"
#include "error.h"

enum {
    JSON_MAX_DEPTH = 64,        /* nested arrays and objects */
    JSON_MAX_BYTES = 256 << 20, /* of the text */
    JSON_MAX_VALUES = 8 << 20,  /* nodes of the tree, about 100 bytes each */
};

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

/* One node. Children of arrays and objects are a list in the order of the text:
 *   for (const JsonValue *child = value->first; child; child = child->next) ... */
typedef struct JsonValue JsonValue;
struct JsonValue {
    JsonType type;
    int64_t n;         /* children */
    const char *key;   /* in an object: the member's name, decoded UTF-8, null-terminated; else NULL */
    size_t key_length; /* bytes; a name can hold \u0000 */
    /* Of a string: its decoded bytes; of a number: its digits as written; null-terminated. */
    const char *text;
    size_t length;      /* bytes of text */
    size_t begin, end;  /* the value's place in the input, bytes [begin, end) */
    JsonValue *first;   /* first child, NULL if there is none */
    JsonValue *next;    /* next child of the same parent, NULL at the end */
    JsonValue **sorted; /* of an object: its n members by name, for json_get */
};

typedef struct Json Json; /* owns every node and string of one parsed text */

/* Parses `length` bytes (need not be null-terminated, may be freed afterwards). `what` names the source in
 * messages. NULL on error. */
Json *json_parse(const char *text, size_t length, const char *what, Error *err);
/* Reads and parses a whole file. */
Json *json_read(const char *path, Error *err);
void json_free(Json *json); /* NULL is fine */
const JsonValue *json_root(const Json *json);

/* True of a value of that type, not of NULL. */
static inline bool json_is(const JsonValue *value, JsonType type) {
    return value && value->type == type;
}
/* NULL or null. */
static inline bool json_is_absent(const JsonValue *value) {
    return !value || value->type == JSON_NULL;
}
/* Member of an object by name, in O(log n); NULL if it is absent or `object` is NULL or no object. */
const JsonValue *json_get(const JsonValue *object, const char *key);
/* A number without fraction or exponent, in range, exactly. False (and *out untouched) for all else and NULL. */
bool json_int64(const JsonValue *value, int64_t *out);
/* Any finite number, rounded to nearest. */
bool json_double(const JsonValue *value, double *out);
/* True if the value is a string equal to `text`. */
bool json_equals(const JsonValue *value, const char *text);
/* "an object", "a string", ... for messages; "nothing" for NULL. */
const char *json_type_name(const JsonValue *value);
/* A number or string as it stands in the file, of the rest the type: for messages. */
const char *json_shown(const JsonValue *value);
/* Fails with "PATH: FIELD: expected EXPECTED, found FOUND". */
bool json_refuse(const char *path, const char *field, const char *expected, const JsonValue *found,
                 Error *err);

/* ---- writer ---- */
/* Commas, colons, quotes and escapes are its business. Start from {0}:
 *
 *   JsonWriter w = {.indent = 2};       indent 0: all on one line
 *   json_begin_object(&w, NULL);        the key is NULL in an array and at the top
 *   json_write_int(&w, "step", 200);
 *   json_end_object(&w);
 *   if (w.text.failed) ...              out of memory; w.text.data is then not to be used
 *   json_writer_free(&w); */
typedef struct JsonWriter {
    Buffer text; /* plain bytes may be appended where JSON has blank space */
    int indent;  /* spaces a level */
    int depth;   /* open arrays and objects */
    bool comma;  /* a value stands before the next one at this level */
} JsonWriter;

void json_begin_object(JsonWriter *w, const char *key);
void json_end_object(JsonWriter *w);
void json_begin_array(JsonWriter *w, const char *key);
void json_end_array(JsonWriter *w);
/* NULL text is written as null. Bytes that are not UTF-8 become U+FFFD, so that the result is always JSON. */
void json_write_string(JsonWriter *w, const char *key, const char *text);
void json_write_int(JsonWriter *w, const char *key, int64_t value);
/* The fewest digits that read back to the same double; NaN and inf, which JSON lacks, as null. */
void json_write_double(JsonWriter *w, const char *key, double value);
void json_write_bool(JsonWriter *w, const char *key, bool value);
void json_write_null(JsonWriter *w, const char *key);
/* `json` is JSON text already and is inserted as it is. */
void json_write_raw(JsonWriter *w, const char *key, const char *json);
void json_writer_free(JsonWriter *w);
