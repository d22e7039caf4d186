/* Hugging Face's tokenizer.json: the same ids as from our own files; what would give other ids is refused by its
 * name; and a folder whose files disagree. */
#include "llmc/base/json.h"
#include "llmc/base/utf8.h"
#include "dev/test/small_vocabulary.h"

static const char *const text = "hello world\n  he's abcaaaa \xC3\xA9\xFF x";
static const char *const byte_level =
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}";
static const char *const added =
    "[{\"id\": 270, \"content\": \"<|endoftext|>\", \"single_word\": false, \"special\": true}, "
    "{\"id\": 271, \"content\": \"<|pad|>\", \"special\": true}]";

/* A tokenizer.json as it is made: members in place of the usual ones; NULL: the usual. */
typedef struct Parts {
    const char *normalizer, *pre_tokenizer, *post_processor, *added_tokens, *model, *extra;
    bool pairs;      /* merges as pairs, not as strings */
    bool with_added; /* the vocabulary holds the special tokens, too */
} Parts;

/* Bytes as vocab.json spells them. */
static void append_spelled(Buffer *w, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)bytes[i];
        bool itself = (c >= '!' && c <= '~') || (c >= 0xA1 && c != 0xAD);
        int shifted = c <= ' ' ? 0x100 + c : c < 0xA1 ? 0x121 + c - 0x7F : 0x143;
        char spelled[4];
        if (c == '"' || c == '\\') buffer_append(w, "\\", 1);
        buffer_append(w, spelled, (size_t)utf8_encode(spelled, (uint32_t)(itself ? c : shifted)));
    }
}

static void put(Buffer *w, const char *words) {
    buffer_append(w, words, strlen(words));
}

static void put_vocab(Buffer *w, bool with_added) {
    char line[40];
    put(w, "{");
    for (int i = 0; i < EOT; i++) {
        put(w, i ? ", \"" : "\"");
        append_spelled(w, i < 256 ? &(char){(char)i} : merged[i - 256],
                       i < 256 ? 1 : strlen(merged[i - 256]));
        snprintf(line, sizeof line, "\": %d", i);
        put(w, line);
    }
    put(w, with_added ? ", \"<|endoftext|>\": 270, \"<|pad|>\": 271}" : "}");
}

/* The merges of the small vocabulary, worked out by hand. */
static void put_merges(Buffer *w, bool pairs) {
    static const char *const parts[N_MERGED][2] = {
        {"h",    "e"   },
        {"l",    "l"   },
        {"l",    "o"   },
        {"he",   "ll"  },
        {"ll",   "o"   },
        {" ",    "w"   },
        {"o",    "r"   },
        {"a",    "a"   },
        {"aa",   "aa"  },
        {"\xC3", "\xA9"},
        {"'",    "s"   },
        {"b",    "c"   },
        {"a",    "b"   },
        {"a",    "bc"  },
    };
    put(w, "[");
    for (int i = 0; i < N_MERGED; i++) {
        put(w, i ? ", " : "");
        put(w, pairs ? "[\"" : "\"");
        append_spelled(w, parts[i][0], strlen(parts[i][0]));
        put(w, pairs ? "\", \"" : " ");
        append_spelled(w, parts[i][1], strlen(parts[i][1]));
        put(w, pairs ? "\"]" : "\"");
    }
    put(w, "]");
}

static const char *given(const char *part, const char *usual) {
    return part ? part : usual;
}

static void write_json(const char *name, const Parts *p) {
    Buffer w = {0};
    put(&w, "{\"version\": \"1.0\", \"truncation\": null, \"normalizer\": ");
    put(&w, given(p->normalizer, "null"));
    put(&w, ", \"pre_tokenizer\": ");
    put(&w, given(p->pre_tokenizer, byte_level));
    put(&w, ", \"post_processor\": ");
    put(&w, given(p->post_processor, byte_level));
    put(&w, ", \"added_tokens\": ");
    put(&w, given(p->added_tokens, added));
    put(&w, ", \"model\": ");
    if (p->model) {
        put(&w, p->model);
    } else {
        put(&w, "{\"type\": \"BPE\", \"end_of_word_suffix\": \"\"");
        put(&w, given(p->extra, ""));
        put(&w, ", \"vocab\": ");
        put_vocab(&w, p->with_added);
        put(&w, ", \"merges\": ");
        put_merges(&w, p->pairs);
        put(&w, "}");
    }
    put(&w, "}");
    write_file(name, w.data, w.length);
    buffer_free(&w);
}

/* Opening `spec` gives the ids and the bytes of the small vocabulary. */
static void expect_same(const char *spec, const char *source) {
    Error err = {0};
    size_t n, n_again;
    Tokenizer *small = open_small(), *again = tokenizer_open(spec, &err);
    if (!CHECK(small && again, "%s: %s", source, err.text)) return;
    int32_t *tokens = encode(small, text, strlen(text), &n),
            *same = encode(again, text, strlen(text), &n_again);
    CHECK(n == n_again && memcmp(tokens, same, n * sizeof *tokens) == 0, "%s gives other ids", spec);
    CHECK(tokenizer_eot(again) == EOT && tokenizer_vocab_size(again) == N_TOKENS, "%s: end of text %d of %d",
          spec, tokenizer_eot(again), tokenizer_vocab_size(again));
    for (int i = 0; i < N_TOKENS; i++) {
        size_t a = 0, b = 0;
        const char *left = tokenizer_bytes(small, i, &a), *right = tokenizer_bytes(again, i, &b);
        CHECK(left && right && a == b && memcmp(left, right, a) == 0, "%s: token %d has other bytes", spec,
              i);
    }
    CHECK(strcmp(tokenizer_source(again), path_of(source)) == 0, "of %s", tokenizer_source(again));
    free(tokens);
    free(same);
    tokenizer_close(again);
    tokenizer_close(small);
    unlink(path_of("small.bin"));
}

#define GPT2_PATTERN                                                                                         \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT(pattern) SPLIT_AS(pattern, "Isolated", "false")
#define SPLIT_AS(pattern, behavior, invert)                                                                  \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern "\"}, \"behavior\": \"" behavior             \
    "\", \"invert\": " invert "}"
#define SEQUENCE(steps) "{\"type\": \"Sequence\", \"pretokenizers\": [" steps "]}"
#define NO_REGEX "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"

static void test_served(void) {
    static const Parts cases[] = {
        {0                                                                                               },
        {.pairs = true                                                                                   },
        {.with_added = true                                                                              },
        {.normalizer = "{\"type\": \"Sequence\", \"normalizers\": []}"                                   },
        {.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"                       },
        {.pre_tokenizer = SEQUENCE("{\"type\": \"ByteLevel\", \"add_prefix_space\": false}")             },
        {.pre_tokenizer = SEQUENCE(SPLIT(GPT2_PATTERN) ", " NO_REGEX)                                    },
        {.post_processor = "null"                                                                        },
        {.post_processor =
             "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}]}"},
        {.extra = ", \"ignore_merges\": true",                                                             .with_added = true},
        {.extra =
             ", \"dropout\": null, \"unk_token\": null, \"byte_fallback\": false, \"ignore_merges\": true, "
             "\"continuing_subword_prefix\": null"                                                                                               },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_json("tokenizer.json", &cases[i]);
        expect_same(folder, "tokenizer.json");
        expect_same(path_of("tokenizer.json"), "tokenizer.json");
    }
    empty_folder();
}

static const struct {
    Parts parts;
    const char *words;
} refusals[] = {
    {{.model = "{\"type\": \"WordPiece\"}"},                                                          "tokenizer.json: model.type: expected BPE, found WordPiece" },
    {{.model = "{\"type\": \"Unigram\"}"},                                                            "model.type: expected BPE, found Unigram"                   },
    {{.model = "[]"},                                                                                 "model: expected an object, found an array"                 },
    {{.model = "{\"merges\": []}"},                                                                   "model.vocab: expected an object {token: id}, found nothing"},
    {{.model = "{\"vocab\": {\"a\": 0, \"b\": 5}, \"merges\": []}"},                                  "id of token \"b\""                                         },
    {{.model = "{\"vocab\": {\"a\": 0}, \"merges\": 5}", .added_tokens = "[]"},
     "model.merges: expected an array"                                                                                                                            },
    {{.model = "{\"vocab\": {\"a\": 0}, \"merges\": [5]}", .added_tokens = "[]"},                     "model.merges"                                              },
    {{.model = "{\"vocab\": {\"a\": 0}, \"merges\": [[\"a\", \"b\", \"c\"]]}", .added_tokens = "[]"},
     "model.merges"                                                                                                                                               },
    {{.model = "{\"vocab\": {\"a\": 0}, \"merges\": []}", .added_tokens = "[]"},                      "no token for byte 0x00"                                    },
    {{.extra = ", \"dropout\": 0.1"},                                                                 "model.dropout: expected null, found 0.1"                   },
    {{.extra = ", \"ignore_merges\": true", .with_added = true, .added_tokens = "[]"},
     "model.ignore_merges: expected false, as not each token is a byte or has a merge, found true"                                                                },
    {{.extra = ", \"byte_fallback\": true"},                                                          "model.byte_fallback: expected false"                       },
    {{.extra = ", \"continuing_subword_prefix\": \"##\""},
     "model.continuing_subword_prefix: expected null, found ##"                                                                                                   },
    {{.normalizer = "{\"type\": \"NFC\"}"},                                                           "normalizer.type: expected null, found NFC"                 },
    {{.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}"},
     "normalizer.type: expected null"                                                                                                                             },
    {{.pre_tokenizer = "null"},                                                                       "pre_tokenizer.type: expected ByteLevel, found null"        },
    {{.pre_tokenizer = "{\"type\": \"Whitespace\"}"},
     "pre_tokenizer.type: expected ByteLevel, found Whitespace"                                                                                                   },
    {{.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"},
     "pre_tokenizer.add_prefix_space: expected false"                                                                                                             },
    {{.pre_tokenizer = NO_REGEX},                                                                     "pre_tokenizer.use_regex: expected true"                    },
    {{.pre_tokenizer = SEQUENCE(SPLIT("\\\\s+") ", " NO_REGEX)},                                      "pre_tokenizer.pattern: expected GPT-2's"                   },
    {{.pre_tokenizer = SEQUENCE(SPLIT_AS(GPT2_PATTERN, "Removed", "false") ", " NO_REGEX)},
     "pre_tokenizer.behavior: expected Isolated, found Removed"                                                                                                   },
    {{.pre_tokenizer = SEQUENCE(SPLIT_AS(GPT2_PATTERN, "Isolated", "true") ", " NO_REGEX)},
     "pre_tokenizer.invert: expected false"                                                                                                                       },
    {{.pre_tokenizer = SEQUENCE(SPLIT(GPT2_PATTERN))},                                                "pre_tokenizer.type: expected ByteLevel"                    },
    {{.pre_tokenizer = SEQUENCE(NO_REGEX)},                                                           "pre_tokenizer.use_regex"                                   },
    {{.pre_tokenizer = SEQUENCE("{\"type\": \"Digits\"}, " NO_REGEX)},
     "pre_tokenizer.type: expected ByteLevel, or Split by GPT-2's pattern and ByteLevel, found Digits"                                                            },
    {{.pre_tokenizer = SEQUENCE(SPLIT(GPT2_PATTERN) ", " NO_REGEX ", {\"type\": \"Digits\"}")},
     "pre_tokenizer.type"                                                                                                                                         },
    {{.post_processor = "{\"type\": \"BertProcessing\"}"},
     "post_processor.type: expected null, ByteLevel or TemplateProcessing, found BertProcessing"                                                                  },
    {{.post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                        "\"x\"}}, {\"Sequence\": {\"id\": \"A\"}}]}"},
     "post_processor.single: expected the text alone"                                                                                                             },
    {{.post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": "
                        "\"A\"}}, {\"SpecialToken\": {\"id\": \"x\"}}]}"},
     "post_processor.single: expected the text alone"                                                                                                             },
    {{.added_tokens = "[{\"id\": 270, \"content\": \"word\", \"special\": false}]"},
     "added_tokens: \"word\" is not special"                                                                                                                      },
    {{.added_tokens = "[{\"id\": 300, \"content\": \"<x>\", \"special\": true}]"},
     "added_tokens.id: expected an integer below the number of tokens, found 300"                                                                                 },
    {{.added_tokens = "[{\"id\": 5, \"content\": \"<x>\", \"special\": true}]"},                      "have the same id 5"                                        },
    {{.added_tokens = "[{\"id\": 270, \"content\": \"\", \"special\": true}]"},
     "added_tokens.content: expected a text"                                                                                                                      },
    {{.added_tokens = "7"},                                                                           "added_tokens: expected an array, found 7"                  },
};

static void test_refused(void) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        write_json("tokenizer.json", &refusals[i].parts);
        expect_refusal(folder, refusals[i].words);
    }
    write_json("tokenizer.json",
               &(Parts){.added_tokens = "[{\"id\": 270, \"content\": \"<a>\", \"special\": true}, "
                                        "{\"id\": 270, \"content\": \"<b>\", \"special\": true}]"});
    expect_refusal(folder, "tokens \"<a>\" and \"<b>\" have the same id 270");
    write_file("tokenizer.json", "{\"!\": 0}", 8);
    expect_refusal(folder, "no `model` in it; hint: the directory stands for vocab.json and merges.txt");
    write_file("tokenizer.json", "{\"model\"", 8);
    expect_refusal(folder, "tokenizer.json: JSON, byte 8");
    empty_folder();
    CHECK(symlink("nowhere", path_of("tokenizer.json")) == 0 && tokenizer_is_in(folder),
          "a link to nothing is there");
    expect_refusal(folder, "tokenizer.json: No such file");
    empty_folder();
}

/* What a checkpoint could not hold is refused before a run, not by its first save. */
static void test_longest_token(void) {
    for (int n = 255; n <= 256; n++) {
        char list[400], name[257] = "";
        Error err = {0};
        memset(name, 'x', (size_t)n);
        snprintf(list, sizeof list, "[{\"id\": 270, \"content\": \"%s\", \"special\": true}]", name);
        write_json("tokenizer.json", &(Parts){.added_tokens = list});
        if (n > 255) {
            expect_refusal(folder, "tokenizer.json: token 270: expected at most 255 bytes");
            break;
        }
        Tokenizer *tokenizer = tokenizer_open(folder, &err);
        CHECK(tokenizer && tokenizer_save_bin(tokenizer, folder, "saved.bin", &err), "%s", err.text);
        tokenizer_close(tokenizer);
    }
    empty_folder();
}

/* Special tokens are saved as they are, so that transformers finds them in a text; spelled where a reader would take their text for
 * other bytes. Either way they are read again the same. */
static void test_special_texts(void) {
    Error err = {0};
    write_json("tokenizer.json",
               &(Parts){.added_tokens = "[{\"id\": 270, \"content\": \"<|endoftext|>\", \"special\": true}, "
                                        "{\"id\": 271, \"content\": \"<|a b|>\", \"special\": true}, "
                                        "{\"id\": 272, \"content\": \"<\u00e9>\", \"special\": true}]"});
    Tokenizer *tokenizer = tokenizer_open(folder, &err);
    if (!CHECK(tokenizer && tokenizer_save(tokenizer, folder, 1024, &err), "%s", err.text)) return;
    static const char *const files[] = {"vocab.json", "tokenizer_config.json", "special_tokens_map.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        CHECK(strstr(text_of(files[i]), "\"<|a b|>\"") && strstr(text_of(files[i]), "\"<\xC3\x83\xC2\xA9>\""),
              "%s: %s", files[i], text_of(files[i]));
    unlink(path_of("tokenizer.json"));
    unlink(path_of("tokenizer.bin"));
    Tokenizer *again = tokenizer_open(folder, &err);
    CHECK(again && tokenizer_equals(tokenizer, again), "%s", err.text);
    tokenizer_close(tokenizer);
    tokenizer_close(again);
    empty_folder();
}

/* Merges in another order, one too few, one too many. */
static void test_merges(void) {
    static const char *const edits[][2] = {
        {"\"l l\", \"l o\"", "\"l o\", \"l l\""  },
        {"\"b c\", ",        ""                  },
        {"\"b c\", ",        "\"b c\", \"x y\", "},
    };
    static char json[1 << 16], edited[1 << 16];
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        write_json("tokenizer.json", &(Parts){0});
        FILE *file = fopen(path_of("tokenizer.json"), "rb");
        size_t n = file ? fread(json, 1, sizeof json - 1, file) : 0;
        if (file) fclose(file);
        json[n] = 0;
        const char *at = strstr(json, edits[i][0]);
        if (!CHECK(at, "no %s", edits[i][0])) continue;
        int length = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - json), json, edits[i][1],
                              at + strlen(edits[i][0]));
        write_file("tokenizer.json", edited, (size_t)length);
        expect_refusal(folder, i == 0 ? "tokenizer.json: merge 2: " : i == 1 ? "merge 12: " : "merge 13: ");
    }
    empty_folder();
}

/* The files of one folder must agree, whichever comes first; of special tokens at the end some may be missing. */
static void test_agreement(void) {
    Error err = {0};
    Tokenizer *small = open_small();
    if (!small || !CHECK(tokenizer_save(small, folder, 1024, &err), "%s", err.text)) return;
    unlink(path_of("small.bin"));
    write_json("tokenizer.json", &(Parts){0});
    expect_same(folder, "tokenizer.bin");
    unlink(path_of("tokenizer.bin"));
    expect_same(folder, "tokenizer.json");
    write_json("tokenizer.json", &(Parts){.added_tokens = "[]"});
    expect_refusal(folder, "vocab.json: its tokens are not those of ");
    write_json("tokenizer.json",
               &(Parts){.added_tokens = "[{\"id\": 270, \"content\": \"<|pad|>\", \"special\": true}, "
                                        "{\"id\": 271, \"content\": \"<|endoftext|>\", \"special\": true}]"});
    expect_refusal(folder, "vocab.json: its tokens are not those of ");
    write_json("tokenizer.json", &(Parts){.normalizer = "{\"type\": \"NFC\"}"});
    expect_refusal(folder, "normalizer.type");
    unlink(path_of("tokenizer.json"));
    write_file("merges.txt", "#version: 0.2\nh e\n", 18);
    expect_refusal(folder, "merges.txt: merge 2: ");
    tokenizer_close(small);
    empty_folder();
}

/* Without a tokenizer.json the class beside vocab.json says how text is cut. */
static void test_class(void) {
    Error err = {0};
    Tokenizer *small = open_small();
    if (!small || !CHECK(tokenizer_save(small, folder, 1024, &err), "%s", err.text)) return;
    unlink(path_of("tokenizer.bin"));
    static const char *const served[] = {"{\"tokenizer_class\": \"GPT2TokenizerFast\"}", "{}"};
    for (int i = 0; i < 2; i++) {
        write_file("tokenizer_config.json", served[i], strlen(served[i]));
        Tokenizer *again = tokenizer_open(folder, &err);
        CHECK(again != NULL, "%s: %s", served[i], err.text);
        tokenizer_close(again);
    }
    static const char other[] = "{\"tokenizer_class\": \"Qwen2Tokenizer\"}";
    write_file("tokenizer_config.json", other, strlen(other));
    expect_refusal(folder,
                   "tokenizer_config.json: tokenizer_class: expected GPT2Tokenizer, found Qwen2Tokenizer");
    tokenizer_close(small);
    empty_folder();
}

static int end_of_text_of_folder(void) {
    Error err = {0};
    Tokenizer *tokenizer = tokenizer_open(folder, &err);
    const int eot = tokenizer ? tokenizer_eot(tokenizer) : -2;
    CHECK(tokenizer != NULL, "%s", err.text);
    tokenizer_close(tokenizer);
    return eot;
}

/* Where no token is <|endoftext|>, eos_token beside the tokens ends a text, if it is a special one; files that are
 * written name it. */
static void test_end_of_text(void) {
    static const char *const texts[] = {
        "{\"eos_token\": \"</s>\"}",  "{\"eos_token\": {\"content\": \"</s>\"}}",
        "{\"eos_token\": null}",      "{}",
        "{\"eos_token\": \"<eos>\"}", "{\"eos_token\": \"hell\"}",
        "{\"eos_token\": \"h\"}",
    };
    Error err = {0};
    write_json("tokenizer.json",
               &(Parts){.added_tokens = "[{\"id\": 270, \"content\": \"<|pad|>\", \"special\": true}, "
                                        "{\"id\": 271, \"content\": \"</s>\", \"special\": true}]"});
    CHECK(end_of_text_of_folder() == -1, "a vocabulary alone names an end of text");
    for (int i = 0; i < 7; i++) {
        write_file("tokenizer_config.json", texts[i], strlen(texts[i]));
        CHECK(end_of_text_of_folder() == (i < 2 ? 271 : -1), "%s: %d", texts[i], end_of_text_of_folder());
    }
    write_file("special_tokens_map.json", texts[1], strlen(texts[1]));
    write_file("tokenizer_config.json", "{}", 2);
    CHECK(end_of_text_of_folder() == 271, "special_tokens_map.json is not read");
    Tokenizer *tokenizer = tokenizer_open(folder, &err);
    empty_folder();
    if (tokenizer && CHECK(tokenizer_save(tokenizer, folder, 1024, &err), "%s", err.text)) {
        CHECK(end_of_text_of_folder() == 271, "tokenizer.bin names another end of text");
        unlink(path_of("tokenizer.bin"));
        CHECK(end_of_text_of_folder() == 271, "the files for transformers name another end of text");
        write_file("tokenizer_config.json", "{\"eos_token\": ", 14);
        expect_refusal(folder, "tokenizer_config.json: ");
    }
    tokenizer_close(tokenizer);
    empty_folder();
}

/* Bytes in Hugging Face's files: 256 tokens, no merges, no special token. */
static void test_bytes(void) {
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    if (!CHECK(bytes && tokenizer_save(bytes, folder, 1024, &err), "%s", err.text)) return;
    unlink(path_of("tokenizer.bin"));
    Tokenizer *again = tokenizer_open(folder, &err);
    CHECK(again && strcmp(tokenizer_name(again), "bytes") == 0, "%s",
          again ? tokenizer_name(again) : err.text);
    if (again) expect_ids(again, "h\xC3\xA9\n", "104 195 169 10");
    tokenizer_close(again);
    Json *json = json_read(path_of("vocab.json"), &err);
    int64_t id = -1;
    CHECK(json && json_root(json)->n == 256 && json_int64(json_get(json_root(json), "\xC4\xA0"), &id) &&
              id == 32,
          "vocab.json: %s, space is %lld", err.text, (long long)id);
    json_free(json);
    json = json_read(path_of("tokenizer_config.json"), &err);
    static const char *const specials[] = {"bos_token", "eos_token", "unk_token"};
    for (int i = 0; i < 3; i++) {
        const JsonValue *special = json ? json_get(json_root(json), specials[i]) : NULL;
        CHECK(special && special->type == JSON_NULL, "%s must be null: transformers would add one",
              specials[i]);
    }
    const JsonValue *clean = json ? json_get(json_root(json), "clean_up_tokenization_spaces") : NULL;
    CHECK(clean && clean->type == JSON_FALSE, "decoding would drop spaces");
    const JsonValue *prefix = json ? json_get(json_root(json), "add_prefix_space") : NULL;
    CHECK(prefix && prefix->type == JSON_FALSE, "a space would stand before every text");
    json_free(json);
    write_file("merges.txt", "#version: 0.2\nh e\n", 18);
    expect_refusal(folder, "merges.txt: merge 1: ");
    tokenizer_close(bytes);
    empty_folder();
}

int main(void) {
    if (!CHECK(mkdtemp(folder) != NULL, "cannot make a folder in /tmp"))
        return check_finish("tokenizer_json");
    test_served();
    test_refused();
    test_longest_token();
    test_special_texts();
    test_merges();
    test_agreement();
    test_class();
    test_end_of_text();
    test_bytes();
    rmdir(folder);
    return check_finish("tokenizer_json");
}
