/* safetensors: values of every dtype, one test for each reason to refuse a file, and damaged headers at
 * random. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/checkpoint/safetensors.h"
#include "dev/test/check.h"

static char folder[] = "/tmp/test_safetensors_XXXXXX";
static char path[64];

/* Writes a file of a given header length field, header text and data. */
static void write_raw(uint64_t n, const char *header, size_t header_bytes, const void *data,
                      size_t data_bytes) {
    FILE *file = fopen(path, "wb");
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)(n >> 8 * i);
    bool ok = file && fwrite(size, 1, 8, file) == 8 &&
              fwrite(header, 1, header_bytes, file) == header_bytes &&
              fwrite(data, 1, data_bytes, file) == data_bytes;
    REQUIRE(ok && fclose(file) == 0, "writing the test file");
}

static void write_file(const char *header, size_t data_bytes) {
    static const char zeros[256];
    write_raw(strlen(header), header, strlen(header), zeros, data_bytes);
}

static void refuses(const char *what, const char *part) {
    Safetensors file;
    Error err = {0};
    bool opened = safetensors_open(&file, path, &err);
    CHECK(!opened && err.exit_code == EXIT_INPUT, "%s: accepted", what);
    CHECK(strstr(err.text, path) && strstr(err.text, part), "%s: message '%s' lacks the path or '%s'", what,
          err.text, part);
    if (opened) safetensors_close(&file);
}

static void test_rejections(void) {
#define F32(shape, offsets) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *part;
    } cases[] = {
        {"{\"a\":" F32("[2]",                     "[0,8]"),                                           8,                                                                       "JSON, byte"},
        {"[1]",                                       0,                                                                                     "start with '{'"                                                                                                                    },
        {" {}",                                       0,                                                                                     "start with '{'"},
        {"",                                       0,                                                                                        "start with '{'"                                                                                                                       },
        {"{}x",                                       0,                                                                                     "the end of the text"},
        {"{\"\xff\":" F32("[2]",                                       "[0,8]") "}",                                                                    8,                                                                                            "UTF-8"},
        {"{\"a\":" F32("[1]",                                "[0,4]") ",\"a\":" F32("[1]",                                                                                  "[4,8]") "}",                                            8, "found \"a\" twice"},
        {"{\"a\":3}",                           0,"and an object, found a number"   },
        {"{\"a\\u0000b\":" F32("[1]",                             "[0,4]") "}",                                                    4,                                                                                                  "without null bytes"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}",             4,                       "expected a known dtype, found nothing"                                         },
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}",                                       4,
         "expected a known dtype, found F33"                                                                                                   },
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",                                       4,                        "expected a shape"              },
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}",                                       4,                                      "expected data_offsets"},
        {"{\"a\":" F32("[1,1,1,1,1,1,1,1,1]",                                       "[0,4]") "}",                                               4,                                                                 "at most 8 sizes"},
        {"{\"a\":" F32("[-1]",                                       "[0,4]") "}",                                                       4,                                                                                                          "found -1"},
        {"{\"a\":" F32("[1.0]",                      "[0,4]") "}",                                                                        4,                                                            "found 1.0"},
        {"{\"a\":" F32("[\"1\"]",                                      "[0,4]") "}",                        4,"found a string"},
        {"{\"a\":" F32("[1]",      "[0]") "}",4,"expected data_offsets"},
        {"{\"a\":" F32("[1]",                 "[0,4,8]") "}",                  4,                                                                 "expected data_offsets"},
        {"{\"a\":" F32("[1]",                                       "[4,0]") "}",                                                                       4,                                                                                                                               "0 <= begin <= end"},
        {"{\"a\":" F32("[1]",                "[-4,0]") "}",                                                                  4,                                                                                                                                       "0 <= begin <= end"},
        {"{\"a\":" F32("[1]",                                      "[0,1e1]") "}",                                                4,                                                       "expected data_offsets"},
        {"{\"a\":" F32("[2]","[0,4]") "}",4,"expected 8 bytes for its dtype and shape, found 4"},
        {"{\"a\":" F32("[1]",                     "[0,8]") "}",                                           8,                                                "expected 4 bytes"},
        {"{\"a\":" F32("[4294967296,4294967296]",                                       "[0,0]") "}",                                                                       0,                                                                                           "overflows"},
        {"{\"a\":" F32("[9007199254740992,2]",                "[0,8]") "}",                                                                  8,                                                                 "overflows"},
        {"{\"a\":" F32("[9223372036854775807]",                                      "[0,8]") "}",                                                                      8,                                                                                                                                                                                                                                                        "found 9223372036854775807"},
        {"{\"a\":" F32("[4611686018427387905]",       "[0,4]") "}",              4,                    "found 4611686018427387905"},
        {"{\"a\":" F32("[1]", "[4,8]") "}", 8, "a hole lies before it"},
        {"{\"a\":" F32("[1]",                                       "[0,4]") ",\"b\":" F32("[1]",                                                      "[8,12]") "}",                                                                                                  12, "a hole lies before it"},
        {"{\"a\":" F32("[2]",                            "[0,8]") ",\"b\":" F32("[2]",                                                                              "[4,12]") "}",                                                 12, "overlaps"},
        {"{\"a\":" F32("[1]",                                      "[0,4]") ",\"b\":" F32("[1]","[0,4]") "}",4, "overlaps"},
        {"{\"a\":" F32("[1]",                     "[0,4]") "}",                                                         5,                                                                                  "by its header, found"},
        {"{\"a\":" F32("[1]",                     "[0,4]") "}",                                                           3,                                                                                                                                 "cut short: expected "},
        {"{}",                                       1,                                                                       "by its header, found"                                                                           },
        {"{\"__metadata__\":[]}",                                     0,                                                                "an object of strings"                                     },
        {"{\"__metadata__\":{\"a\":1}}",0,"an object of strings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(cases[i].header, cases[i].data_bytes);
        refuses(cases[i].header, cases[i].part);
    }
}

static void test_bad_lengths(void) {
    const uint64_t lengths[] = {
        3, 100, (100 << 20) + 1, (uint64_t)1 << 40, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_raw(lengths[i], "{}", 2, "", 0);
        refuses("length past the end",
                i < 2 ? "cut short: expected at least" : "expected a header of at most 104857600");
    }
    write_raw((100 << 20) + 1, "{}", 2, "", 0);
    CHECK(truncate(path, (off_t)200 << 20) == 0, "truncate");
    refuses("over 100 MB", "expected a header of at most 104857600 bytes");
    for (off_t bytes = 0; bytes < 8; bytes++) {
        write_file("{}", 0);
        CHECK(truncate(path, bytes) == 0, "truncate");
        refuses("shorter than its length field", "the file is cut short");
    }
    CHECK(unlink(path) == 0, "unlink");
    refuses("missing", "No such file");
}

/* True if the tensor, given as raw bytes, reads as the expected floats, bit for bit; all at once and in the
 * middle. */
static void reads(const char *dtype, int width, const void *bytes, const float *expected, int n) {
    char header[200];
    float found[16] = {0}, middle = 0;
    Safetensors file;
    Error err = {0};
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"format\":\"pt\"},\"x\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":["
             "0,%d]}}   ",
             dtype, n, n * width);
    write_raw(strlen(header), header, strlen(header), bytes, (size_t)(n * width));
    if (!CHECK(safetensors_open(&file, path, &err), "%s", err.text)) return;
    const SafetensorsEntry *x = safetensors_find(&file, "x");
    if (CHECK(x && !safetensors_find(&file, "__metadata__") && file.n == 1, "%s: one tensor", dtype)) {
        CHECK(safetensors_read(&file, x, found, 0, n, &err) && memcmp(found, expected, (size_t)n * 4) == 0,
              "%s: values", dtype);
        CHECK(safetensors_read(&file, x, &middle, n - 2, 1, &err) &&
                  memcmp(&middle, expected + n - 2, 4) == 0,
              "%s: one value", dtype);
    }
    safetensors_close(&file);
}

static void test_dtypes(void) {
    const float expected[] = {0.0f,     -0.0f,    1.0f,          -2.5f,    65504.0f,
                              0x1p-14f, 0x1p-24f, -0x1.ff8p-15f, INFINITY, -INFINITY};
    const uint16_t f16[] = {0, 0x8000, 0x3c00, 0xc100, 0x7bff, 0x0400, 0x0001, 0x83ff, 0x7c00, 0xfc00};
    const float brain[] = {0.0f, -0.0f, 1.0f, -2.5f, 0x1.fep127f, 0x1p-126f, 0x1p-133f, INFINITY};
    const uint16_t bf16[] = {0, 0x8000, 0x3f80, 0xc020, 0x7f7f, 0x0080, 0x0001, 0x7f80};
    const double f64[] = {0.1, -1e300, 1e-300, 0x1.000001p0, 0x1.000003p0, 3};
    const float rounded[] = {0.1f, -INFINITY, 0.0f, 1.0f, 0x1.000004p0f, 3};
    reads("F32", 4, expected, expected, 10);
    reads("F16", 2, f16, expected, 10);
    reads("BF16", 2, bf16, brain, 8);
    reads("F64", 8, f64, rounded, 6);
}

/* NaN stays NaN in the half types; integer tensors may stand in a file but are not read as weights. */
static void test_odd_values(void) {
    const unsigned char data[] = {0x01, 0x7e, 0xc1, 0x7f, 7, 0};
    const char *header =
        "{\"h\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"BF16\",\"shape\":"
        "[1],"
        "\"data_offsets\":[2,4]},\"i\":{\"dtype\":\"I16\",\"shape\":[],\"data_offsets\":[4,6]},"
        "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[4,4]}}";
    Safetensors file;
    Error err = {0};
    float value = 0;
    write_raw(strlen(header), header, strlen(header), data, sizeof data);
    if (!CHECK(safetensors_open(&file, path, &err), "%s", err.text)) return;
    CHECK(safetensors_read(&file, safetensors_find(&file, "h"), &value, 0, 1, &err) && isnan(value),
          "found %g", value);
    CHECK(safetensors_read(&file, safetensors_find(&file, "b"), &value, 0, 1, &err) && isnan(value),
          "found %g", value);
    CHECK(!safetensors_read(&file, safetensors_find(&file, "i"), &value, 0, 1, &err) &&
              strstr(err.text, "found I16"),
          "%s", err.text);
    CHECK(safetensors_find(&file, "e")->n_elems == 0 && safetensors_find(&file, "i")->rank == 0,
          "empty and scalar shapes");
    safetensors_close(&file);
}

/* More elements than one piece of the reader holds, from an unaligned place. */
static void test_long_tensor(void) {
    enum { N = 100003 };
    uint16_t *halves = malloc(N * sizeof *halves);
    float *floats = malloc(N * sizeof *floats);
    char header[100];
    Safetensors file;
    Error err = {0};
    for (int i = 0; i < N; i++) halves[i] = (uint16_t)(0x3f80 + i % 100);
    snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"BF16\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", N,
             2 * N);
    write_raw(strlen(header), header, strlen(header), halves, N * sizeof *halves);
    if (CHECK(safetensors_open(&file, path, &err), "%s", err.text)) {
        CHECK(safetensors_read(&file, &file.entries[0], floats, 1, N - 1, &err), "%s", err.text);
        int n_wrong = 0;
        for (int i = 1; i < N; i++) n_wrong += floats[i - 1] != 1 + (float)(i % 100) / 128;
        CHECK(n_wrong == 0, "%d of %d values are wrong", n_wrong, N - 1);
        safetensors_close(&file);
    }
    free(halves);
    free(floats);
}

static void test_writer(void) {
    SafetensorsHeader header;
    OutFile out;
    Safetensors in;
    Error err = {0};
    const float data[] = {1, 2, 3, 4, 5, 6, 7};
    float found[6];
    unlink(path);
    safetensors_header_begin(&header);
    safetensors_header_add(&header, "h.0.\"w\"", 2, (int64_t[]){2, 3});
    safetensors_header_add(&header, "b", 1, (int64_t[]){1});
    CHECK(outfile_open(&out, path, &err) && safetensors_header_write(&header, &out, &err), "%s", err.text);
    CHECK(out.bytes % 8 == 0, "the data starts at byte %lld, no multiple of 8", (long long)out.bytes);
    CHECK(outfile_write(&out, data, sizeof data, &err) && outfile_close(&out, &err), "%s", err.text);
    if (!CHECK(safetensors_open(&in, path, &err), "%s", err.text)) return;
    const SafetensorsEntry *w = safetensors_find(&in, "h.0.\"w\"");
    CHECK(w && w->rank == 2 && w->shape[0] == 2 && w->shape[1] == 3, "shape");
    CHECK(w && safetensors_read(&in, w, found, 0, 6, &err) && memcmp(found, data, sizeof found) == 0,
          "values");
    CHECK(json_equals(json_get(json_get(json_root(in.header), "__metadata__"), "format"), "pt"),
          "transformers wants format pt");
    safetensors_close(&in);
}

/* Random edits of a good header: never a crash; what is accepted has data inside the file, so every tensor
 * reads. */
static void test_fuzz(void) {
    static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,"
                               "3],\"data_offsets\":[0,24]},"
                               "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}";
    static const char alphabet[] = "{}[]\",:0123456789-eE.FBU\\ \xff";
    enum { ROUNDS = 200000 };
    uint32_t random = 2463534242u;
    int n_accepted = 0, n_refused = 0, n_unreadable = 0;
    const size_t length = sizeof good - 1;
    write_file(good, 32);
    FILE *out = fopen(path, "r+b");
    if (!CHECK(out != NULL, "reopen")) return;
    setvbuf(out, NULL, _IONBF, 0);
    for (int round = 0; round < ROUNDS; round++) {
        char bytes[8 + sizeof good - 1] = {(char)length};
        memcpy(bytes + 8, good, length);
        for (int edit = 0; edit <= round % 3; edit++) {
            random ^= random << 13, random ^= random >> 17, random ^= random << 5;
            size_t at = random % sizeof bytes;
            if (random >> 31)
                bytes[at] ^= (char)(1 << (random >> 28 & 7));
            else
                bytes[at] = alphabet[(random >> 16) % (sizeof alphabet - 1)];
        }
        if (pwrite(fileno(out), bytes, sizeof bytes, 0) != sizeof bytes) break;
        Safetensors file;
        Error err = {0};
        float values[6];
        if (safetensors_open(&file, path, &err)) {
            n_accepted++;
            for (int i = 0; i < file.n; i++) {
                const SafetensorsEntry *entry = &file.entries[i];
                bool is_float = entry->dtype[0] == 'F' || entry->dtype[0] == 'B';
                if (!is_float || entry->n_elems > 6) continue;
                if (!safetensors_read(&file, entry, values, 0, entry->n_elems, &err))
                    n_unreadable += !strstr(err.text, "expected F32");
            }
            safetensors_close(&file);
        } else {
            n_refused += err.exit_code == EXIT_INPUT;
        }
    }
    fclose(out);
    CHECK(n_accepted + n_refused == ROUNDS && n_accepted > 100, "%d accepted, %d refused of %d", n_accepted,
          n_refused, ROUNDS);
    CHECK(n_unreadable == 0, "%d accepted tensors could not be read", n_unreadable);
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("safetensors");
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    test_rejections();
    test_bad_lengths();
    test_dtypes();
    test_odd_values();
    test_long_tensor();
    test_writer();
    test_fuzz();
    unlink(path);
    CHECK(rmdir(folder) == 0, "%s holds other files", folder);
    return check_finish("safetensors");
}
