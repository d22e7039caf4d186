/* The tokenizer's files: llm.c's .bin and Hugging Face's vocab.json and merges.txt, written, read again, and
 * damaged. GPT-2's own ids are checked where data/gpt2_tokenizer.bin is there. */
#include "dev/test/small_vocabulary.h"
#include "llmc/base/json.h"

static const char *const text = "hello world\n  he's abcaaaa \xC3\xA9\xFF x";

/* Opening `spec` gives the ids of the small vocabulary. */
static void expect_same(const Tokenizer *small, const char *spec) {
    Error err = {0};
    size_t n, n_again;
    Tokenizer *again = tokenizer_open(spec, &err);
    if (!CHECK(again != NULL, "%s", err.text)) return;
    int32_t *tokens = encode(small, text, strlen(text), &n),
            *same = encode(again, text, strlen(text), &n_again);
    CHECK(n == n_again && memcmp(tokens, same, n * sizeof *tokens) == 0, "%s gives other ids", spec);
    CHECK(tokenizer_eot(again) == EOT, "%s: end of text %d", spec, tokenizer_eot(again));
    for (int i = 0; i < N_TOKENS; i++) {
        size_t a = 0, b = 0;
        const char *left = tokenizer_bytes(small, i, &a), *right = tokenizer_bytes(again, i, &b);
        CHECK(left && right && a == b && memcmp(left, right, a) == 0, "%s: token %d has other bytes", spec,
              i);
    }
    free(tokens);
    free(same);
    tokenizer_close(again);
}

/* GPT-2's spelling of bytes in vocab.json: the 68 that are not printable are U+0100 to U+0143 in order. */
static void test_spelling(void) {
    static const struct {
        const char *key;
        int64_t id;
    } cases[] = {
        {"!",             33 },
        {"~",             126},
        {"\xC4\xA0",      32 },
        {"\xC4\x80",      0  },
        {"\xC4\xA1",      127},
        {"\xC5\x82",      160},
        {"\xC2\xA1",      161},
        {"\xC2\xAC",      172},
        {"\xC5\x83",      173},
        {"\xC3\xBF",      255},
        {"hell",          259},
        {"<|endoftext|>", EOT},
    };
    Error err = {0};
    Tokenizer *small = open_small();
    if (!small || !CHECK(tokenizer_save(small, folder, 1024, &err), "%s", err.text)) return;
    Json *json = json_read(path_of("vocab.json"), &err);
    CHECK(json && json_root(json)->n == N_TOKENS, "vocab.json: %s", err.text);
    for (size_t i = 0; json && i < sizeof cases / sizeof *cases; i++) {
        int64_t id = -1;
        json_int64(json_get(json_root(json), cases[i].key), &id);
        CHECK(id == cases[i].id, "\"%s\" is %lld, expected %lld", cases[i].key, (long long)id,
              (long long)cases[i].id);
    }
    json_free(json);
    tokenizer_close(small);
    empty_folder();
}

/* Bytes have no end of text: what stands beside their vocab.json about one is not read. */
static void test_bytes(void) {
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    if (!CHECK(bytes && tokenizer_save(bytes, folder, 1024, &err), "%s", err.text)) return;
    unlink(path_of("tokenizer.bin"));
    write_file("special_tokens_map.json", "{\"eos_token\": ", 14);
    Tokenizer *again = tokenizer_open(folder, &err);
    if (CHECK(again, "%s", err.text)) CHECK(tokenizer_equals(bytes, again), "other tokens than bytes");
    tokenizer_close(bytes);
    tokenizer_close(again);
    empty_folder();
}

/* Of the same tokens, with another end of text. */
static void test_equals(void) {
    uint8_t file[4096];
    const size_t n = make_bin(file);
    const uint32_t eot = SPECIAL;
    Error err = {0};
    Tokenizer *small = open_small(), *again = open_small();
    memcpy(file + 3 * sizeof eot, &eot, sizeof eot);
    write_file("other.bin", file, n);
    Tokenizer *other = tokenizer_open(path_of("other.bin"), &err);
    if (CHECK(other, "%s", err.text))
        CHECK(tokenizer_equals(small, again) && !tokenizer_equals(small, other), "equal tokenizers");
    tokenizer_close(small);
    tokenizer_close(again);
    tokenizer_close(other);
    empty_folder();
}

/* What is saved is read again the same: from tokenizer.bin, from vocab.json with merges.txt; not from half of it. */
static void test_save(void) {
    Error err = {0};
    Tokenizer *small = open_small();
    if (!small || !CHECK(tokenizer_save(small, folder, 1024, &err), "%s", err.text)) return;
    expect_same(small, folder);
    unlink(path_of("tokenizer.bin"));
    expect_same(small, folder);
    CHECK(strcmp(text_of("merges.txt"),
                 "#version: 0.2\nh e\nl l\nl o\nhe ll\nll o\n\xC4\xA0 w\no r\na a\naa aa\n"
                 "\xC3\x83 \xC2\xA9\n' s\nb c\na b\na bc\n") == 0,
          "%s", text_of("merges.txt"));
    write_file("merges.kept", text_of("merges.txt"), strlen(text_of("merges.txt")));
    unlink(path_of("merges.txt"));
    expect_refusal(folder, "found no merges.txt; hint: ");
    CHECK(rename(path_of("merges.kept"), path_of("merges.txt")) == 0, "cannot rename");
    unlink(path_of("vocab.json"));
    expect_refusal(folder, "found no vocab.json; hint: ");
    Json *json = json_read(path_of("tokenizer_config.json"), &err);
    CHECK(json && json_equals(json_get(json_root(json), "tokenizer_class"), "GPT2Tokenizer") &&
              json_equals(json_get(json_root(json), "eos_token"), "<|endoftext|>"),
          "tokenizer_config.json: %s", err.text);
    const JsonValue *more = json ? json_get(json_root(json), "additional_special_tokens") : NULL;
    CHECK(more && more->type == JSON_ARRAY && more->n == 1 && json_equals(more->first, "<|pad|>"),
          "tokenizer_config.json: transformers would spell <|pad|>, not find it");
    json_free(json);
    json = json_read(path_of("special_tokens_map.json"), &err);
    CHECK(json && json_equals(json_get(json_root(json), "bos_token"), "<|endoftext|>"),
          "special_tokens_map.json: %s", err.text);
    CHECK(json && json_get(json_root(json), "additional_special_tokens"),
          "special_tokens_map.json: no <|pad|>");
    json_free(json);
    tokenizer_close(small);
    empty_folder();
}

static void test_save_fails(void) {
    Error err = {0};
    Tokenizer *small = open_small();
    CHECK(small && !tokenizer_save(small, path_of("missing"), 1024, &err) &&
              strstr(err.text, "missing/tokenizer.bin"),
          "%s", err.text);
    tokenizer_close(small);
    empty_folder();
}

/* Version 1 of the .bin has no end-of-text field: 50256, where there are as many tokens. */
static void test_version_1(void) {
    uint8_t file[4096];
    Error err = {0};
    size_t n = make_bin(file);
    memcpy(file + 4, &(uint32_t){1}, 4);
    write_file("v1.bin", file, n);
    Tokenizer *tokenizer = tokenizer_open(path_of("v1.bin"), &err);
    CHECK(tokenizer && tokenizer_eot(tokenizer) == -1, "%s", tokenizer ? "an end-of-text id" : err.text);
    tokenizer_close(tokenizer);
    enum { GPT2_TOKENS = 50257 };
    uint8_t *large = calloc(1024 + 5 * GPT2_TOKENS, 1);
    if (!large) return;
    memcpy(large, (uint32_t[]){20240328, 1, GPT2_TOKENS}, 12);
    n = 1024;
    for (int i = 0; i < GPT2_TOKENS; i++) { /* the bytes, then fillers of three bytes */
        const char token[3] = {i < 256 ? (char)i : '~', (char)(i >> 8), (char)i};
        n = append(large, n, token, i < 256 ? 1 : 3);
    }
    write_file("v1.bin", large, n);
    free(large);
    tokenizer = tokenizer_open(path_of("v1.bin"), &err);
    CHECK(tokenizer && tokenizer_eot(tokenizer) == GPT2_TOKENS - 1, "%s",
          tokenizer ? "no end-of-text id" : err.text);
    tokenizer_close(tokenizer);
    empty_folder();
}

static void test_bad_bin(void) {
    static const struct {
        size_t at; /* byte to change */
        uint32_t value;
        size_t width;
        const char *words;
    } cases[] = {
        {0,                  20240520,     4, "magic: expected 20240328"                                },
        {4,                  3,            4, "version: expected 1 or 2, found 3"                       },
        {8,                  0,            4, "number of tokens"                                        },
        {8,                  UINT32_MAX,   4, "number of tokens"                                        },
        {8,                  N_TOKENS + 1, 4, "token 272 of 273"                                        },
        {8,                  N_TOKENS - 1, 4, "size: expected"                                          },
        {12,                 N_TOKENS,     4, "end-of-text id: expected below the 272 tokens, found 272"},
        {1024,               0,            1, "token 0 of 272"                                          },
        {1024 + 2 * 65 + 1,  'B',          1, "tokens 65 and 66 are the same byte 0x42"                 },
        {1024 + 512 + 3 + 2, 'o',          1, "tokens 257 and 258 are the same 2 bytes"                 },
    };
    uint8_t file[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = make_bin(file);
        memcpy(file + cases[i].at, &cases[i].value, cases[i].width);
        write_file("bad.bin", file, n);
        expect_refusal(path_of("bad.bin"), cases[i].words);
    }
    empty_folder();
}

/* A .bin cut at any byte, or with one more, is refused and never read past its end. */
static void test_truncated_bin(void) {
    uint8_t file[4096];
    size_t n = make_bin(file);
    for (size_t cut = 0; cut < n; cut += cut < 1000 ? 97 : 1) {
        write_file("cut.bin", file, cut);
        expect_refusal(path_of("cut.bin"), "cut.bin: ");
    }
    write_file("cut.bin", file, n - 1);
    expect_refusal(path_of("cut.bin"), "token 271 of 272: expected a length and that many bytes");
    file[n] = 1;
    write_file("cut.bin", file, n + 1);
    expect_refusal(path_of("cut.bin"), "size: expected");
    empty_folder();
}

static void test_bad_specs(void) {
    expect_refusal(path_of("nothing"), "nothing");
    expect_refusal(folder, "expected tokenizer.bin, tokenizer.json, or vocab.json and merges.txt");
    static const char *const cases[][2] = {
        {"[1, 2]",               "expected an object"                                                },
        {"{}",                   "with at least one token"                                           },
        {"{\"a\": 0, \"b\": 0}", "have the same id 0"                                                },
        {"{\"a\": 0, \"b\": 2}", "id of token \"b\": expected an integer below the 2 tokens, found 2"},
        {"{\"a\": \"0\"}",       "id of token \"a\""                                                 },
        {"{\"a\": 0, \"b\": 1}", "no token for byte 0x00"                                            },
        {"{\"a\": 0",            "vocab.json"                                                        },
    };
    write_file("merges.txt", "", 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("vocab.json", cases[i][0], strlen(cases[i][0]));
        expect_refusal(folder, cases[i][1]);
    }
    empty_folder();
}

/* merges.txt in another order than the ids would encode differently elsewhere: refused with the line. */
static void test_bad_merges(void) {
    Error err = {0};
    Tokenizer *small = open_small();
    if (!small || !CHECK(tokenizer_save(small, folder, 1024, &err), "%s", err.text)) return;
    unlink(path_of("tokenizer.bin"));
    char *merges = text_of("merges.txt");
    char *line = strstr(merges, "l l\nl o\n");
    if (CHECK(line != NULL, "%s", merges)) {
        memcpy(line, "l o\nl l\n", 8);
        write_file("merges.txt", merges, strlen(merges));
        expect_refusal(folder, "merges.txt: merge 2: ");
        write_file("merges.txt", merges, 30);
        expect_refusal(folder, "merges.txt: merge ");
    }
    tokenizer_close(small);
    empty_folder();
}

/* Ids of GPT-2 that tiktoken gives. */
static void test_gpt2(void) {
    const char *path = "data/gpt2_tokenizer.bin";
    if (access(path, F_OK) != 0) {
        SKIP("GPT-2's ids: no %s (make data/tinyshakespeare)", path);
        return;
    }
    Error err = {0};
    Tokenizer *tokenizer = tokenizer_open(path, &err);
    if (!CHECK(tokenizer != NULL, "%s", err.text)) return;
    CHECK(tokenizer_eot(tokenizer) == 50256 && tokenizer_vocab_size(tokenizer) == 50257, "%s",
          tokenizer_name(tokenizer));
    expect_ids(tokenizer, "First Citizen:\nBefore we", "5962 22307 25 198 8421 356");
    expect_ids(tokenizer, "Hello world, it's 2024!", "15496 995 11 340 338 48609 0");
    expect_ids(tokenizer, "<|endoftext|>", "27 91 437 1659 5239 91 29");
    expect_ids(tokenizer, "na\xC3\xAFve \xF0\x9F\x98\x80", "2616 38776 30325 222");
    CHECK(tokenizer_save(tokenizer, folder, 1024, &err), "%s", err.text);
    unlink(path_of("tokenizer.bin"));
    Tokenizer *again = tokenizer_open(folder, &err);
    if (CHECK(again != NULL, "%s", err.text)) expect_ids(again, "Hello world", "15496 995");
    tokenizer_close(again);
    tokenizer_close(tokenizer);
    empty_folder();
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp"))
        return check_finish("tokenizer_files");
    test_spelling();
    test_bytes();
    test_equals();
    test_save();
    test_save_fails();
    test_version_1();
    test_bad_bin();
    test_truncated_bin();
    test_bad_specs();
    test_bad_merges();
    test_gpt2();
    rmdir(folder);
    return check_finish("tokenizer_files");
}
