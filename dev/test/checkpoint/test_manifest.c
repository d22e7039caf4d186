/* trainer_state.json with a right checksum over wrong content: every field is checked on its own, nothing
 * crashes. */
#include <fcntl.h>
#include "llmc/base/checksum.h"
#include "llmc/checkpoint/manifest.h"
#include "dev/test/tiny_model.h"

static const char good[] =
    "{\"format_version\": 1, \"program\": \"test\", \"model_only\": false, \"step\": 5, \"data_position\": "
    "6, "
    "\"tokens_seen\": 7, \"n_skipped\": 2, \"seed\": 9223372036854775807, \"best_val_loss\": 1.5, "
    "\"flags\": {\"a\": [1, 2]}, \"files\": ["
    "{\"name\": \"config.json\", \"bytes\": 1, \"crc32c\": \"00000000\"}, "
    "{\"name\": \"model.safetensors\", \"bytes\": 1, \"crc32c\": \"00000000\"}, "
    "{\"name\": \"optimizer.safetensors\", \"bytes\": 1, \"crc32c\": \"00000000\"}], "
    "\"crc32c\": \"00000000\"}";

/* Writes the text with its checksum put right: the digits of the last field. */
static void write_summed(const char *text, size_t length) {
    char *copy = malloc(length + 1), digits[9];
    memcpy(copy, text, length);
    copy[length] = 0;
    if (length >= 10) {
        memcpy(copy + length - 10, "00000000", 8);
        snprintf(digits, sizeof digits, "%08x", crc32c(0, copy, length));
        memcpy(copy + length - 10, digits, 8);
    }
    /* Written over, not truncated first: some file systems then wait for the disk, 20000 times. */
    int fd = open(path_of(MANIFEST_NAME), O_RDWR | O_CREAT, 0600);
    CHECK(pwrite(fd, copy, length, 0) == (ssize_t)length && ftruncate(fd, (off_t)length) == 0,
          "writing the manifest");
    close(fd);
    free(copy);
}

static void test_good(void) {
    Manifest m;
    Error err = {0};
    write_summed(good, strlen(good));
    if (!CHECK(manifest_read(&m, folder, &err), "%s", err.text)) return;
    CHECK(m.state.step == 5 && m.state.data_position == 6 && m.state.tokens_seen == 7 &&
              m.state.n_skipped == 2,
          "counts");
    CHECK(m.state.seed == INT64_MAX && m.state.best_val_loss == 1.5, "seed and loss");
    CHECK(isnan(m.state.val_loss) && !m.state.best_only, "what earlier programs did not write");
    CHECK(m.state.data_tokens == 0 && m.state.data_fingerprint == 0, "found %lld tokens of data",
          (long long)m.state.data_tokens);
    CHECK(strcmp(m.state.flags, "{\"a\": [1, 2]}") == 0, "found flags %s", m.state.flags);
    CHECK(!manifest_sizes_match(&m), "no file is there");
    manifest_free(&m);
}

/* The first occurrence of `from` replaced. */
static void write_edited(const char *from, const char *to) {
    char text[2000];
    const char *at = strstr(good, from);
    if (!CHECK(at, "no %s to replace", from)) return;
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    write_summed(text, strlen(text));
}

static void test_fields(void) {
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"\"format_version\": 1",                         "\"format_version\": 2",
         "format_version: expected 1 (a newer program may have written it), found 2"                                                                          },
        {"\"format_version\": 1, ",                       "",                                       "format_version: expected 1"                              },
        {"false",                                         "0",                                      "model_only: expected true or false, found 0"             },
        {"\"step\": 5",                                   "\"step\": -5",                           "step: expected a whole number from 0 on, found -5"       },
        {"\"step\": 5",                                   "\"step\": 5.5",                          "found 5.5"                                               },
        {"\"step\": 5",                                   "\"step\": 1",                            "n_skipped: expected at most the number of steps, found 2"},
        {"\"data_position\": 6",                          "\"data_position\": 9223372036854775808",
         "data_position: expected a whole number"                                                                                                             },
        {"\"tokens_seen\": 7",                            "\"tokens_seen\": \"7\"",                 "tokens_seen: expected a whole number"                    },
        {"\"seed\"",                                      "\"data_tokens\": -1, \"seed\"",
         "data_tokens: expected a whole number from 0 on, found -1"                                                                                           },
        {"9223372036854775807",                           "9223372036854775808",                    "seed: expected a whole number from 0 on"                 },
        {"9223372036854775807",                           "-1",                                     "seed: expected"                                          },
        {"1.5",                                           "\"x\"",                                  "best_val_loss: expected a number or null, found x"       },
        {"\"best_val_loss\"",                             "\"val_loss\": \"y\", \"best_val_loss\"",
         "val_loss: expected a number or null, found y"                                                                                                       },
        {"\"best_val_loss\"",                             "\"best_only\": 1, \"best_val_loss\"",
         "best_only: expected true or false, found 1"                                                                                                         },
        {"{\"a\": [1, 2]}",                               "[]",                                     "flags: expected an object or null, found an array"       },
        {"\"name\": \"config.json\"",                     "\"name\": \"../config.json\"",           "entries with name, bytes and crc32c"                     },
        {"\"name\": \"config.json\"",                     "\"name\": \"config.jsom\"",              "expected an entry for config.json"                       },
        {"\"name\": \"optimizer.safetensors\"",           "\"name\": \"other\"",
         "expected an entry for optimizer.safetensors"                                                                                                        },
        {"\"bytes\": 1",                                  "\"bytes\": -1",                          "entries with name, bytes and crc32c"                     },
        {"\"crc32c\": \"00000000\"}, {\"name\": \"model", "\"crc\": 3}, {\"name\": \"model",
         "entries with name, bytes and crc32c"                                                                                                                },
        {"\"seed\"",                                      "\"step\"",                               "found \"step\" twice"                                    },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Manifest m;
        Error err = {0};
        write_edited(cases[i].from, cases[i].to);
        if (!CHECK(!manifest_read(&m, folder, &err), "accepted: %s", cases[i].to)) manifest_free(&m);
        CHECK(err.exit_code == EXIT_INPUT && strstr(err.text, path_of(MANIFEST_NAME)),
              "the file is not named: %s", err.text);
        CHECK(strstr(err.text, cases[i].part), "message '%s' lacks '%s'", err.text, cases[i].part);
    }
}

/* The digits count as written: upper case is damage too. */
static void test_checksum_case(void) {
    char text[sizeof good];
    Manifest m;
    Error err = {0};
    memcpy(text, good, sizeof good);
    FILE *file = fopen(path_of(MANIFEST_NAME), "wb");
    snprintf(text + strlen(good) - 10, 11, "%08X\"}", crc32c(0, good, strlen(good)));
    REQUIRE(file && fputs(text, file) >= 0 && fclose(file) == 0, "writing the manifest");
    CHECK(strpbrk(text + strlen(good) - 10, "ABCDEF"), "the checksum %s has no letter: change the text",
          text + strlen(good) - 10);
    if (!CHECK(!manifest_read(&m, folder, &err), "upper-case digits were accepted")) manifest_free(&m);
}

static void test_fuzz(void) {
    static const char alphabet[] = "{}[]\",:0123456789-eE.\\ \xff";
    char text[sizeof good];
    uint32_t random = 2463534242u;
    int n_accepted = 0, n_refused = 0;
    for (int round = 0; round < 20000; round++) {
        memcpy(text, good, sizeof good);
        for (int edit = 0; edit <= round % 3; edit++) {
            random ^= random << 13, random ^= random >> 17, random ^= random << 5;
            size_t at = random % (strlen(good) - 10);
            if (random >> 31)
                text[at] ^= (char)(1 << (random >> 28 & 7));
            else
                text[at] = alphabet[(random >> 16) % (sizeof alphabet - 1)];
        }
        write_summed(text, strlen(good));
        Manifest m;
        Error err = {0};
        if (manifest_read(&m, folder, &err)) {
            n_accepted++;
            manifest_sizes_match(&m);
            manifest_verify(&m, true, &err);
            manifest_free(&m);
        } else {
            n_refused += err.exit_code == EXIT_INPUT;
        }
    }
    CHECK(n_accepted + n_refused == 20000 && n_accepted > 100, "%d accepted, %d refused", n_accepted,
          n_refused);
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("manifest");
    test_good();
    test_fields();
    test_checksum_case();
    test_fuzz();
    remove_tree(folder);
    return check_finish("manifest");
}
