#include "json.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "files.h"
#include "utf8.h"

typedef struct Chunk {
    struct Chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
} Chunk;

struct Json {
    Chunk *chunks; /* the newest first */
    JsonValue *root;
};

typedef struct Parser {
    Json *json;
    const char *text, *what;
    size_t length, at; /* bytes in all, bytes consumed */
    int64_t n_values;
    int depth;
    Error *err;
} Parser;

static const char *const type_names[] = {"null",     "false",    "true",     "a number",
                                         "a string", "an array", "an object"};

const char *json_type_name(const JsonValue *value) {
    return value ? type_names[value->type] : "nothing";
}

const char *json_shown(const JsonValue *value) {
    return value && value->text ? value->text : json_type_name(value);
}

/* A text that could be read as a number or a word of JSON. */
static bool is_quoted_value(const JsonValue *value) {
    return json_is(value, JSON_STRING) &&
           (strchr("-0123456789", value->text[0]) || strcmp(value->text, "true") == 0 ||
            strcmp(value->text, "false") == 0 || strcmp(value->text, "null") == 0);
}

bool json_refuse(const char *path, const char *field, const char *expected, const JsonValue *found,
                 Error *err) {
    const char *quote = is_quoted_value(found) ? "\"" : "";
    return fail(err, EXIT_INPUT, "%s: %s: expected %s, found %s%.80s%s", path, field, expected, quote,
                json_shown(found), quote);
}

/* ---- memory ---- */
/* Memory that lives as long as the tree; NULL if there is none. Chunks double, so their number stays small. */
static void *arena_alloc(Json *json, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    Chunk *chunk = json->chunks;
    if (!chunk || chunk->size - chunk->used < bytes) {
        size_t size = chunk ? 2 * chunk->size : 4096;
        if (size > 16 << 20) size = 16 << 20;
        if (size < bytes) size = bytes;
        chunk = malloc(sizeof *chunk + size);
        if (!chunk) return NULL;
        *chunk = (Chunk){.next = json->chunks, .size = size};
        json->chunks = chunk;
    }
    void *p = chunk->data + chunk->used;
    chunk->used += bytes;
    return p;
}

static void *allocate(Parser *p, size_t bytes) {
    void *memory = arena_alloc(p->json, bytes);
    if (!memory) fail(p->err, EXIT_RUN, "%s: no memory for %zu bytes of its JSON tree", p->what, bytes);
    return memory;
}

void json_free(Json *json) {
    if (!json) return;
    for (Chunk *chunk = json->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(json);
}

/* ---- errors ---- */
/* Fails at byte `at`: "FILE: byte 12: expected X, found Y". Returns NULL. */
static void *refuse(Parser *p, size_t at, const char *expected) {
    char found[32];
    unsigned char c = at < p->length ? (unsigned char)p->text[at] : 0;
    if (at >= p->length)
        snprintf(found, sizeof found, "the end of the text");
    else if (c >= 0x20 && c < 0x7f)
        snprintf(found, sizeof found, "'%c'", c);
    else
        snprintf(found, sizeof found, "byte 0x%02x", c);
    fail(p->err, EXIT_INPUT, "%s: JSON, byte %zu: expected %s, found %s", p->what, at, expected, found);
    return NULL;
}

/* ---- scalars ---- */
static void skip_space(Parser *p) {
    while (p->at < p->length && strchr(" \t\n\r", p->text[p->at]) && p->text[p->at]) p->at++;
}

static bool is_digit(const Parser *p) {
    return p->at < p->length && p->text[p->at] >= '0' && p->text[p->at] <= '9';
}

static bool take(Parser *p, char c) {
    if (p->at >= p->length || p->text[p->at] != c) return false;
    p->at++;
    return true;
}

static bool take_digits(Parser *p) {
    if (!is_digit(p)) return refuse(p, p->at, "a digit");
    while (is_digit(p)) p->at++;
    return true;
}

/* number = [-] (0 | 1-9 digits) [. digits] [e [+-] digits] */
static bool parse_number(Parser *p, JsonValue *value) {
    size_t begin = p->at;
    take(p, '-');
    if (!take(p, '0') && !take_digits(p)) return false;
    if (take(p, '.') && !take_digits(p)) return false;
    if (take(p, 'e') || take(p, 'E')) {
        if (!take(p, '+')) take(p, '-');
        if (!take_digits(p)) return false;
    }
    value->length = p->at - begin;
    char *copy = allocate(p, value->length + 1);
    if (!copy) return false;
    memcpy(copy, p->text + begin, value->length);
    copy[value->length] = 0;
    value->text = copy;
    value->type = JSON_NUMBER;
    return true;
}

static bool parse_literal(Parser *p, JsonValue *value, JsonType type) {
    for (const char *c = type_names[type]; *c; c++)
        if (!take(p, *c)) return refuse(p, p->at, type_names[type]);
    value->type = type;
    return true;
}

static bool parse_hex4(Parser *p, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        int c = p->at < p->length ? (unsigned char)p->text[p->at] : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return refuse(p, p->at, "four hexadecimal digits");
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

/* The rest of \uXXXX, with the second half of a surrogate pair. */
static bool parse_unicode_escape(Parser *p, uint32_t *code_point) {
    size_t at = p->at;
    uint32_t low;
    if (!parse_hex4(p, code_point)) return false;
    if (*code_point < 0xD800 || *code_point > 0xDFFF) return true;
    if (*code_point > 0xDBFF) return refuse(p, at, "no lone low surrogate");
    if (!take(p, '\\') || !take(p, 'u'))
        return refuse(p, p->at, "the low surrogate \\uDC00..\\uDFFF of a pair");
    at = p->at;
    if (!parse_hex4(p, &low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return refuse(p, at, "a low surrogate DC00..DFFF");
    *code_point = 0x10000 + ((*code_point - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

/* One escape after the backslash, decoded to out; advances *out. */
static bool parse_escape(Parser *p, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = p->at < p->length ? p->text[p->at] : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        p->at++;
        *(*out)++ = to[known - from];
        return true;
    }
    if (!take(p, 'u')) return refuse(p, p->at, "one of \"\\/bfnrtu after a backslash");
    uint32_t code_point;
    if (!parse_unicode_escape(p, &code_point)) return false;
    *out += utf8_encode(*out, code_point);
    return true;
}

/* A string with its quotes, decoded into the arena. */
static bool parse_string(Parser *p, const char **text, size_t *length) {
    if (!take(p, '"')) return refuse(p, p->at, "a string");
    size_t end = p->at;
    while (end < p->length && p->text[end] != '"') end += p->text[end] == '\\' ? 2 : 1;
    if (end >= p->length) return refuse(p, p->length, "a closing quote");
    char *copy = allocate(p, end - p->at + 1), *out = copy; /* decoding never makes a string longer */
    if (!copy) return false;
    while (p->at < end) {
        const char *c = p->text + p->at;
        if (*c == '\\') {
            p->at++;
            if (!parse_escape(p, &out)) return false;
            continue;
        }
        if ((unsigned char)*c < 0x20) return refuse(p, p->at, "no control character in a string");
        int n = utf8_sequence(c, end - p->at);
        if (n == 0) return refuse(p, p->at, "UTF-8");
        memcpy(out, c, n);
        out += n;
        p->at += n;
    }
    p->at++;
    *out = 0;
    *text = copy;
    *length = out - copy;
    return true;
}

/* ---- trees ---- */
static int compare_keys(const char *a, size_t a_length, const char *b, size_t b_length) {
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int compare_members(const void *a, const void *b) {
    const JsonValue *x = *(JsonValue *const *)a, *y = *(JsonValue *const *)b;
    int order = compare_keys(x->key, x->key_length, y->key, y->key_length);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorts the members by name, so that duplicates are neighbours and json_get can bisect: n log n for any keys,
 * where a hash table would be quadratic for keys made to collide. */
static bool index_members(Parser *p, JsonValue *object) {
    if (object->n == 0) return true;
    object->sorted = allocate(p, object->n * sizeof *object->sorted);
    if (!object->sorted) return false;
    int64_t n = 0;
    for (JsonValue *member = object->first; member; member = member->next) object->sorted[n++] = member;
    qsort(object->sorted, n, sizeof *object->sorted, compare_members);
    for (int64_t i = 1; i < n; i++) {
        const JsonValue *a = object->sorted[i - 1], *b = object->sorted[i];
        if (compare_keys(a->key, a->key_length, b->key, b->key_length) == 0)
            return fail(p->err, EXIT_INPUT,
                        "%s: JSON, byte %zu: expected different names in an object, found \"%.80s\" twice",
                        p->what, b->begin, b->key);
    }
    return true;
}

static JsonValue *parse_value(Parser *p);

/* Children up to the closing bracket, which is consumed. */
static bool parse_children(Parser *p, JsonValue *parent, char close) {
    JsonValue **tail = &parent->first;
    p->at++;
    skip_space(p);
    if (take(p, close)) return true;
    do {
        const char *key = NULL;
        size_t key_length = 0;
        skip_space(p);
        if (parent->type == JSON_OBJECT) {
            if (!parse_string(p, &key, &key_length)) return false;
            skip_space(p);
            if (!take(p, ':')) return refuse(p, p->at, "':'");
        }
        JsonValue *child = parse_value(p);
        if (!child) return false;
        child->key = key;
        child->key_length = key_length;
        *tail = child;
        tail = &child->next;
        parent->n++;
        skip_space(p);
    } while (take(p, ','));
    if (!take(p, close)) return refuse(p, p->at, close == ']' ? "',' or ']'" : "',' or '}'");
    return true;
}

static bool parse_container(Parser *p, JsonValue *value, JsonType type) {
    value->type = type;
    if (++p->depth > JSON_MAX_DEPTH)
        return fail(p->err, EXIT_INPUT, "%s: JSON, byte %zu: expected at most %d nested levels, found more",
                    p->what, p->at, JSON_MAX_DEPTH);
    if (!parse_children(p, value, type == JSON_ARRAY ? ']' : '}')) return false;
    p->depth--;
    return type == JSON_ARRAY || index_members(p, value);
}

static bool parse_content(Parser *p, JsonValue *value) {
    switch (p->at < p->length ? p->text[p->at] : 0) {
    case '{':
        return parse_container(p, value, JSON_OBJECT);
    case '[':
        return parse_container(p, value, JSON_ARRAY);
    case '"':
        value->type = JSON_STRING;
        return parse_string(p, &value->text, &value->length);
    case 'n':
        return parse_literal(p, value, JSON_NULL);
    case 't':
        return parse_literal(p, value, JSON_TRUE);
    case 'f':
        return parse_literal(p, value, JSON_FALSE);
    case '-':
        return parse_number(p, value);
    default:
        if (is_digit(p)) return parse_number(p, value);
        return refuse(p, p->at, "a value");
    }
}

static JsonValue *parse_value(Parser *p) {
    skip_space(p);
    if (++p->n_values > JSON_MAX_VALUES) {
        fail(p->err, EXIT_INPUT, "%s: JSON, byte %zu: expected at most %d values, found more", p->what, p->at,
             JSON_MAX_VALUES);
        return NULL;
    }
    JsonValue *value = allocate(p, sizeof *value);
    if (!value) return NULL;
    *value = (JsonValue){.begin = p->at};
    if (!parse_content(p, value)) return NULL;
    value->end = p->at;
    return value;
}

Json *json_parse(const char *text, size_t length, const char *what, Error *err) {
    if (length > JSON_MAX_BYTES) {
        fail(err, EXIT_INPUT, "%s: expected at most %d bytes of JSON, found %zu", what, JSON_MAX_BYTES,
             length);
        return NULL;
    }
    Json *json = calloc(1, sizeof *json);
    if (!json) {
        fail(err, EXIT_RUN, "%s: no memory for its JSON tree", what);
        return NULL;
    }
    Parser p = {.json = json, .text = text, .what = what, .length = length, .err = err};
    json->root = parse_value(&p);
    if (json->root) {
        skip_space(&p);
        if (p.at == length) return json;
        refuse(&p, p.at, "the end of the text");
    }
    json_free(json);
    return NULL;
}

Json *json_read(const char *path, Error *err) {
    size_t length;
    char *text = file_read(path, JSON_MAX_BYTES, &length, err);
    if (!text) return NULL;
    Json *json = json_parse(text, length, path, err);
    free(text);
    return json;
}

const JsonValue *json_root(const Json *json) {
    return json->root;
}

/* ---- access ---- */
const JsonValue *json_get(const JsonValue *object, const char *key) {
    if (!json_is(object, JSON_OBJECT)) return NULL;
    size_t length = strlen(key);
    int64_t low = 0, high = object->n;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        JsonValue *member = object->sorted[middle];
        int order = compare_keys(key, length, member->key, member->key_length);
        if (order == 0) return member;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool json_int64(const JsonValue *value, int64_t *out) {
    if (!json_is(value, JSON_NUMBER) || strpbrk(value->text, ".eE")) return false;
    errno = 0;
    long long number = strtoll(value->text, NULL, 10);
    if (errno) return false;
    *out = number;
    return true;
}

bool json_double(const JsonValue *value, double *out) {
    if (!json_is(value, JSON_NUMBER)) return false;
    double number = strtod(value->text, NULL);
    if (number - number != 0) return false; /* past the largest double */
    *out = number;
    return true;
}

bool json_equals(const JsonValue *value, const char *text) {
    return json_is(value, JSON_STRING) && strlen(text) == value->length &&
           !memcmp(value->text, text, value->length);
}
