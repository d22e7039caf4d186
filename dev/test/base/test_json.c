/* The JSON reader and writer: what RFC 8259 allows, what it does not, limits, and random damage. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "llmc/base/json.h"
#include "dev/test/check.h"

static Json *parse(const char *text, Error *err) {
    *err = (Error){0};
    return json_parse(text, strlen(text), "test", err);
}

static void accepts(const char *text) {
    Error err;
    Json *json = parse(text, &err);
    CHECK(json, "%s: %s", text, err.text);
    json_free(json);
}

/* The text is refused as bad input, and the message holds `part`. */
static void refuses(const char *text, const char *part) {
    Error err;
    Json *json = parse(text, &err);
    CHECK(!json && err.exit_code == EXIT_INPUT, "accepted: %.60s", text);
    CHECK(strstr(err.text, part), "%.60s: message '%s' lacks '%s'", text, err.text, part);
    json_free(json);
}

static void test_grammar(void) {
    const char *good[] = {"{}",
                          "[]",
                          " [1 , -0 , 1.5e+3, 0.1, 1E5, 9007199254740993] ",
                          "\"\"",
                          "null",
                          "true",
                          "\t\r\nfalse",
                          "{\"a\":{\"b\":[[[]]]},\"\":1}",
                          "\"\\u0000\\ud83d\\ude00\\/\"",
                          "\"\xF0\x9F\x98\x80\x7f\""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) accepts(good[i]);
    const struct {
        const char *text, *part;
    } bad[] = {
        {"",                          "byte 0: expected a value, found the end of the text"              },
        {"{",                         "expected a string, found the end"                                 },
        {"[1,]",                      "byte 3: expected a value, found ']'"                              },
        {"{\"a\":1,}",                "byte 7: expected a string, found '}'"                             },
        {"{\"a\" 1}",                 "expected ':', found '1'"                                          },
        {"[1 2]",                     "expected ',' or ']', found '2'"                                   },
        {"{\"a\":1 \"b\":2}",         "expected ',' or '}'"                                              },
        {"[1] x",                     "expected the end of the text, found 'x'"                          },
        {"01",                        "expected the end of the text, found '1'"                          },
        {"-",                         "expected a digit"                                                 },
        {"1.",                        "expected a digit"                                                 },
        {".5",                        "expected a value"                                                 },
        {"1e",                        "expected a digit"                                                 },
        {"+1",                        "expected a value"                                                 },
        {"NaN",                       "expected a value"                                                 },
        {"nul",                       "expected null"                                                    },
        {"True",                      "expected a value"                                                 },
        {"'a'",                       "expected a value"                                                 },
        {"\"a",                       "expected a closing quote"                                         },
        {"\"\\\"",                    "expected a closing quote"                                         },
        {"\"a\nb\"",                  "found byte 0x0a"                                                  },
        {"\"\\x41\"",                 "after a backslash"                                                },
        {"\"\\u12g4\"",               "hexadecimal"                                                      },
        {"\"\\ud800\"",               "low surrogate"                                                    },
        {"\"\\ud800\\n\"",            "low surrogate"                                                    },
        {"\"\\ud800\\u0041\"",        "low surrogate"                                                    },
        {"\"\\udc00\"",               "no lone low surrogate"                                            },
        {"\"\xff\"",                  "expected UTF-8, found byte 0xff"                                  },
        {"\"\xc0\x80\"",              "expected UTF-8"                                                   },
        {"\"\xed\xa0\x80\"",          "expected UTF-8"                                                   },
        {"\"\xf4\x90\x80\x80\"",      "expected UTF-8"                                                   },
        {"\"\xe2\x82\"",              "expected UTF-8"                                                   },
        {"{\"a\":1,\"b\":2,\"a\":3}", "byte 17: expected different names in an object, found \"a\" twice"},
        {"{\"a\":1,\"\\u0061\":3}",   "found \"a\" twice"                                                },
        {"[1,/* */2]",                "expected a value"                                                 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuses(bad[i].text, bad[i].part);
}

static void test_depth(void) {
    char text[2 * JSON_MAX_DEPTH + 3];
    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        text[2 * depth] = 0;
        if (depth == JSON_MAX_DEPTH)
            accepts(text);
        else
            refuses(text, "expected at most 64 nested levels");
    }
    char *deep = malloc(1000001);
    memset(deep, '[', 1000000);
    deep[1000000] = 0;
    refuses(deep, "nested levels");
    free(deep);
}

static void test_values(void) {
    Error err;
    Json *json =
        parse("{\"i\":-9223372036854775808,\"u\":18446744073709551615,\"f\":1.0,"
              "\"d\":0.1,\"inf\":1e999,\"s\":\"a\\u00e9\\ud83d\\ude00\\u0000z\",\"l\":[true,false,null],"
              "\"edges\":\"\\u007f\\u0080\\u07ff\\u0800\\uffff\"}",
              &err);
    if (!CHECK(json, "%s", err.text)) return;
    const JsonValue *root = json_root(json);
    int64_t i = 7;
    double d = 7;
    CHECK(json_int64(json_get(root, "i"), &i) && i == INT64_MIN, "found %lld", (long long)i);
    i = 7;
    CHECK(!json_int64(json_get(root, "u"), &i) && i == 7, "2^64-1 is no int64");
    CHECK(!json_int64(json_get(root, "f"), &i), "1.0 is not written as an integer");
    CHECK(!json_int64(json_get(root, "s"), &i) && !json_int64(json_get(root, "nothing"), &i), "no number");
    CHECK(json_double(json_get(root, "d"), &d) && d == 0.1, "found %g", d);
    CHECK(!json_double(json_get(root, "inf"), &d) && d == 0.1, "1e999 is no finite double");
    const JsonValue *s = json_get(root, "s");
    CHECK(s && s->length == 9 && memcmp(s->text, "a\xc3\xa9\xf0\x9f\x98\x80\0z", 9) == 0, "decoded string");
    CHECK(!json_equals(s, "a\xc3\xa9\xf0\x9f\x98\x80"), "a string does not end at \\u0000");
    const JsonValue *edges = json_get(root, "edges");
    CHECK(json_equals(edges, "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf"),
          "first and last of each length");
    CHECK(!json_equals(edges, "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf more"),
          "a beginning is not equal");
    CHECK(json_get(root, "l")->n == 3 && json_get(root, "l")->first->next->type == JSON_FALSE, "list");
    CHECK(!json_get(root, "L") && !json_get(s, "x") && !json_get(NULL, "x"), "absent members");
    json_free(json);
}

/* 50257 entries as in GPT-2's vocab.json: every one is found, in well under a second. */
static void test_large_object(void) {
    JsonWriter w = {0};
    char key[32];
    const int n = 50257;
    json_begin_object(&w, NULL);
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof key, "\xc4\xa0t%d", i * 7919 % n);
        json_write_int(&w, key, i);
    }
    json_end_object(&w);
    clock_t start = clock();
    Error err;
    Json *json = json_parse(w.text.data, w.text.length, "vocab", &err);
    if (!CHECK(json, "%s", err.text)) return;
    int n_right = 0;
    for (int i = 0; i < n; i++) {
        int64_t found = -1;
        snprintf(key, sizeof key, "\xc4\xa0t%d", i * 7919 % n);
        n_right += json_int64(json_get(json_root(json), key), &found) && found == i;
    }
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK(n_right == n, "%d of %d entries found", n_right, n);
    CHECK(seconds < 2, "%.2f s for %d entries", seconds, n);
    json_free(json);
    json_writer_free(&w);
}

static void test_writer(void) {
    JsonWriter w = {0};
    json_begin_object(&w, NULL);
    json_write_string(&w, "text \"\\\n\x01", "a\tb\xff\xc3\xa9/");
    json_write_double(&w, "nan", NAN);
    json_write_double(&w, "inf", -INFINITY);
    json_write_double(&w, "lr", 6e-4);
    json_write_int(&w, "seed", INT64_MAX);
    json_write_string(&w, "none", NULL);
    json_begin_array(&w, "list");
    json_write_int(&w, NULL, INT64_MIN);
    json_write_bool(&w, NULL, true);
    json_begin_object(&w, NULL);
    json_end_object(&w);
    json_end_array(&w);
    json_write_raw(&w, "raw", "{\"x\": [1]}");
    json_end_object(&w);
    const char *expected =
        "{\"text \\\"\\\\\\n\\u0001\": \"a\\tb\xEF\xBF\xBD\xc3\xa9/\", \"nan\": null, \"inf\": null, \"lr\": "
        "0.0006, "
        "\"seed\": 9223372036854775807, \"none\": null, \"list\": [-9223372036854775808, true, {}], "
        "\"raw\": {\"x\": [1]}}";
    CHECK(!w.text.failed && strcmp(w.text.data, expected) == 0, "found %s", w.text.data);
    accepts(w.text.data);
    json_writer_free(&w);

    w = (JsonWriter){.indent = 2};
    json_begin_object(&w, NULL);
    json_write_int(&w, "a", 1);
    json_begin_array(&w, "b");
    json_write_null(&w, NULL);
    json_end_array(&w);
    json_begin_object(&w, "c");
    json_end_object(&w);
    json_end_object(&w);
    CHECK(strcmp(w.text.data, "{\n  \"a\": 1,\n  \"b\": [\n    null\n  ],\n  \"c\": {}\n}") == 0, "found %s",
          w.text.data);
    json_writer_free(&w);
}

/* Any double that is written reads back as the same bits. */
static void test_doubles(void) {
    uint64_t random = 88172645463325252u;
    int n_wrong = 0;
    for (int i = 0; i < 100000; i++) {
        double value, back = NAN;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        memcpy(&value, &random, sizeof value);
        if (!isfinite(value)) continue;
        JsonWriter w = {0};
        Error err;
        json_write_double(&w, NULL, value);
        Json *json = json_parse(w.text.data, w.text.length, "double", &err);
        n_wrong += !json || !json_double(json_root(json), &back) || memcmp(&back, &value, sizeof value) != 0;
        json_free(json);
        json_writer_free(&w);
    }
    CHECK(n_wrong == 0, "%d doubles did not survive", n_wrong);
}

/* Random damage to a valid text: never a crash, and what is accepted reads the same after a copy that ends
 * exactly at its last byte (a read past the end shows under AddressSanitizer). */
static void test_fuzz(void) {
    const char *seed = "{\"a\":[1,-2.5e3,\"x\\u00e9\\ud83d\\ude00\"],\"b\":{\"c\":null,\"d\":[true,false,{}]}"
                       ",\"\xc3\xa9\":\"\\n\"}";
    const size_t length = strlen(seed);
    uint32_t random = 2463534242u;
    int n_accepted = 0, n_refused = 0;
    for (int round = 0; round < 200000; round++) {
        size_t n = length;
        char *text = malloc(length);
        memcpy(text, seed, length);
        for (int edit = 0; edit < 1 + round % 4 && n > 1; edit++) {
            random ^= random << 13, random ^= random >> 17, random ^= random << 5;
            size_t at = random % n;
            static const char alphabet[] = "{}[]\",:\\u0123eE+-.\x80\xff tfn";
            switch (random >> 28 & 3) {
            case 0:
                text[at] ^= (char)(1 << (random >> 24 & 7));
                break;
            case 1:
                text[at] = alphabet[(random >> 16) % (sizeof alphabet - 1)];
                break;
            case 2:
                memmove(text + at, text + at + 1, --n - at);
                break;
            default:
                n = at + 1;
                break;
            }
            text = realloc(text, n);
        }
        Error err = {0};
        Json *json = json_parse(text, n, "fuzz", &err);
        if (json)
            n_accepted++;
        else
            n_refused += err.exit_code == EXIT_INPUT && err.text[0];
        json_free(json);
        free(text);
    }
    CHECK(n_accepted + n_refused == 200000 && n_accepted > 1000 && n_refused > 1000,
          "%d accepted, %d refused", n_accepted, n_refused);
}

static void test_files(void) {
    Error err = {0};
    CHECK(!json_read("/nonexistent/vocab.json", &err) && strstr(err.text, "No such file"), "%s", err.text);
    CHECK(!json_read("/tmp", &err) && err.exit_code == EXIT_INPUT, "a directory is no JSON file: %s",
          err.text);
    char path[] = "/tmp/test_json_XXXXXX";
    int fd = mkstemp(path);
    if (!CHECK(fd >= 0, "mkstemp")) return;
    CHECK(write(fd, "{\"a\": 1}\n", 9) == 9, "write");
    Json *json = json_read(path, &err);
    CHECK(json && json_get(json_root(json), "a"), "%s", err.text);
    json_free(json);
    CHECK(ftruncate(fd, 0) == 0 && !json_read(path, &err) && strstr(err.text, "found the end of the text"),
          "%s", err.text);
    CHECK(ftruncate(fd, (off_t)JSON_MAX_BYTES + 1) == 0 && !json_read(path, &err) &&
              strstr(err.text, "at most 268435456 bytes"),
          "%s", err.text);
    close(fd);
    unlink(path);
}

int main(void) {
    test_grammar();
    test_depth();
    test_values();
    test_large_object();
    test_writer();
    test_doubles();
    test_fuzz();
    test_files();
    return check_finish("json");
}
