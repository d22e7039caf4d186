/* Text to tokens and back: the split into pieces, the merges, bytes. */
#include "dev/test/small_vocabulary.h"
#include <time.h>
#include "llmc/tokenizer/bpe.h"
#include "llmc/data/dataloader.h"

/* Random bytes, of which most are of the given letters. */
static void fill_random(char *text, size_t n, const char *letters, uint32_t *random) {
    for (size_t i = 0; i < n; i++) {
        *random = *random * 1664525 + 1013904223;
        uint32_t r = *random >> 8;
        text[i] = r % 8 ? letters[r / 8 % strlen(letters)] : (char)(r / 8);
    }
}

static void test_split(void) {
    /* text, and the same with | between the pieces */
    static const char *const cases[][2] = {
        {"Hello world",                                         "Hello| world"                                   },
        {"we're I'll don't 've 'd'm",                           "we|'re| I|'ll| don|'t| '|ve| '|d|'m"            },
        {"it'S 'sx ''s",                                        "it|'|S| '|sx| ''|s"                             },
        {"a  b",                                                "a| | b"                                         },
        {"a   ",                                                "a|   "                                          },
        {"a\n\n b\n",                                           "a|\n\n| b|\n"                                   },
        {"x\t\ty \n",                                           "x|\t|\t|y| \n"                                  },
        {"a\r\r\nb\v\fc",                                       "a|\r\r|\n|b|\v|\f|c"                            }, /* every space of ASCII is one */
        {" 12ab 3!? .",                                         " 12|ab| 3|!?| ."                                },
        {"   ",                                                 "   "                                            },
        {" ",                                                   " "                                              },
        {"\xC3\xA9t\xC3\xA9 \xD9\xA3\xE2\x85\xA7 \xE2\x82\xAC",
         "\xC3\xA9t\xC3\xA9| \xD9\xA3\xE2\x85\xA7| \xE2\x82\xAC"                                                 },
        {"a\xC2\xA0\xE3\x80\x80"
         "b",                                          "a|\xC2\xA0|\xE3\x80\x80|b"                      }, /* no-break and wide space */
        {"a\xC2\x85\x1C\xE2\x80\x8B",
         "a|\xC2\x85|\x1C\xE2\x80\x8B"                                                                           }, /* next line is a space; U+001C, U+200B are not */
        {"\xE5\xAD\x97\xF0\xA0\x80\x80\xF0\x9F\x98\x80z",       "\xE5\xAD\x97\xF0\xA0\x80\x80|\xF0\x9F\x98\x80|z"},
        {"e\xCC\x81",                                           "e|\xCC\x81"                                     }, /* a combining accent is no letter */
        {"a\xFF\xC3(b \xE2\x82 \xED\xA0\x80",
         "a|\xFF\xC3(|b| \xE2\x82| \xED\xA0\x80"                                                                 }, /* not UTF-8: symbols of a byte */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char found[128] = "";
        const char *text = cases[i][0];
        for (size_t left = strlen(text); left > 0;) {
            size_t n = bpe_split(text, left);
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%.*s", *found ? "|" : "", (int)n,
                     text);
            text += n;
            left -= n;
        }
        CHECK(strcmp(found, cases[i][1]) == 0, "split into '%s', expected '%s'", found, cases[i][1]);
    }
}

/* A text is cut between two pieces, whatever follows, and behind every symbol that is no white space. */
static void test_cuts(void) {
    static const char *const symbols[] = {
        " ", "\n", "\r", "\xC2\x85", "\xC2\xA0", "\xE3\x80\x80", /* white space */
        "a", "'s", "1",  "!",        "\xC3\xA9", "\xE5\xAD\x97", "\xF0\x9F\x98\x80", "\xFF", "\xE3\x80"};
    enum { SPACES = 6, N = sizeof symbols / sizeof *symbols };
    unsigned random = 1, n_cuts = 0;
    for (int trial = 0; trial < 2000; trial++) {
        char text[64] = "", begins[65] = {0};
        size_t last = 0, length = 0;
        bool follows_space = true;
        for (int i = 0; i < 12; i++) {
            random = random * 1664525 + 1013904223;
            const unsigned symbol = (random >> 16) % N;
            if (symbol < 2 && !follows_space) last = length;
            follows_space = symbol < SPACES;
            length += (size_t)snprintf(text + length, sizeof text - length, "%s", symbols[symbol]);
        }
        for (size_t at = 0; at < length; at += bpe_split(text + at, length - at)) begins[at] = 1;
        CHECK(bpe_cut(text, length) == last, "'%s' is cut at %zu, not %zu", text, bpe_cut(text, length),
              last);
        for (size_t n = 1; n <= length; n++) {
            const size_t cut = bpe_cut(text, n);
            n_cuts += cut > 0;
            CHECK(begins[cut], "'%.*s' is cut within a piece, at %zu", (int)n, text, cut);
        }
    }
    CHECK(n_cuts > 10000, "%u cuts", n_cuts);
}

static void test_merges(void) {
    Tokenizer *tokenizer = open_small();
    if (!tokenizer) return;
    CHECK(tokenizer_vocab_size(tokenizer) == N_TOKENS && tokenizer_eot(tokenizer) == EOT,
          "%d tokens, end of text %d", tokenizer_vocab_size(tokenizer), tokenizer_eot(tokenizer));
    CHECK(tokenizer_start(tokenizer) == EOT, "a text begins after %d", tokenizer_start(tokenizer));
    CHECK(strcmp(tokenizer_name(tokenizer), "bpe of 272 tokens") == 0, "%s", tokenizer_name(tokenizer));
    expect_ids(tokenizer, "hello", "259 111"); /* he, ll, hell before lo and llo */
    expect_ids(tokenizer, "ello", "101 260");  /* ll before lo, then llo */
    expect_ids(tokenizer, "llll", "257 257");
    expect_ids(tokenizer, "hello world", "259 111 261 262 108 100");
    expect_ids(tokenizer, "aaa", "263 97"); /* the leftmost of equal pairs */
    expect_ids(tokenizer, "aaaaaaa", "264 263 97");
    expect_ids(tokenizer, "abc", "269");      /* a token as a whole, */
    expect_ids(tokenizer, "xabc", "120 269"); /* and by its merges: bc, then a bc */
    expect_ids(tokenizer, "abcd", "269 100");
    expect_ids(tokenizer, "abbc", "268 267");
    expect_ids(tokenizer, "he's", "256 266");
    expect_ids(tokenizer, "h e", "104 32 101"); /* nothing merges across pieces */
    expect_ids(tokenizer, "\xC3\xA9", "265");
    expect_ids(tokenizer, "\xC3", "195");
    expect_ids(tokenizer, "<|pad|>",
               "60 124 112 97 100 124 62"); /* special tokens are never made from text */
    expect_ids(tokenizer, "", "");
    size_t n;
    int32_t *tokens = encode(tokenizer, "<|endoftext|>", 13, &n);
    CHECK(n == 13, "end-of-text in text became %zu tokens, expected its 13 bytes", n);
    free(tokens);
    size_t length = 0;
    const char *bytes = tokenizer_bytes(tokenizer, EOT, &length);
    CHECK(bytes && length == 13 && memcmp(bytes, "<|endoftext|>", 13) == 0, "the text of end-of-text");
    CHECK(!tokenizer_bytes(tokenizer, N_TOKENS, &length) && !tokenizer_bytes(tokenizer, -1, &length),
          "ids out of range");
    tokenizer_close(tokenizer);
    empty_folder();
}

static void test_append(void) {
    Tokenizer *tokenizer = open_small();
    Error err = {0};
    int32_t *tokens = NULL;
    size_t n = 0;
    bool ok = tokenizer && tokenizer_encode(tokenizer, "hello", 5, &tokens, &n, &err) &&
              tokenizer_encode(tokenizer, "aa", 2, &tokens, &n, &err);
    CHECK(ok && n == 3 && tokens[0] == 259 && tokens[1] == 111 && tokens[2] == 263, "a second text appends");
    free(tokens);
    tokenizer_close(tokenizer);
    empty_folder();
}

static void test_round_trip(void) {
    Error err = {0};
    uint32_t random = 1;
    Tokenizer *both[2] = {tokenizer_open("bytes", &err), open_small()};
    for (int i = 0; i < 4000 && both[0] && both[1]; i++) {
        char text[300];
        size_t length = (size_t)i % sizeof text, n;
        fill_random(text, length, "helo wr'sabc\xC3\xA9", &random);
        int32_t *tokens = encode(both[i % 2], text, length, &n);
        CHECK(spells(both[i % 2], tokens, n, text, length), "%s: text %d does not come back",
              tokenizer_name(both[i % 2]), i);
        free(tokens);
    }
    tokenizer_close(both[0]);
    tokenizer_close(both[1]);
    empty_folder();
}

/* A run of 1 MB of one letter, one piece, is a matter of a second: merging is not quadratic. */
static void test_long_piece(void) {
    Tokenizer *tokenizer = open_small();
    size_t length = 1000003, n = 0, wrong = 0;
    char *text = malloc(length);
    if (!tokenizer || !text) return;
    memset(text, 'a', length);
    clock_t start = clock();
    int32_t *tokens = encode(tokenizer, text, length, &n);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK(seconds < 10, "%.1f s for 1 MB of one letter", seconds);
    for (size_t i = 0; i + 2 < n; i++) wrong += tokens[i] != 264;
    CHECK(n == 250002 && wrong == 0 && tokens[n - 2] == 263 && tokens[n - 1] == 97, "%zu tokens, %zu wrong",
          n, wrong);
    free(tokens);
    free(text);
    tokenizer_close(tokenizer);
    empty_folder();
}

/* A text with runs of blanks at all places, and 5 MB in its middle without any, which cannot be cut. */
static char *make_long_text(size_t length) {
    uint32_t random = 3;
    char *made = malloc(length);
    for (size_t i = 0; made && i < length; i++) {
        random = random * 1664525 + 1013904223;
        bool middle = i >= 2000000 && i < 7000000;
        made[i] = middle ? "a1b!c"[(random >> 16) % 5] : "hello  \n'sab"[(random >> 16) % 12];
    }
    return made;
}

/* The loader reads text in chunks; its tokens are those of the text as a whole. */
static void test_text_in_chunks(void) {
    enum { T = 1000 };
    Error err = {0};
    Tokenizer *tokenizer = open_small();
    size_t length = 8000000, n = 0, wrong = 0;
    char *made = make_long_text(length);
    if (!tokenizer || !made) return;
    write_file("long.txt", made, length);
    int32_t *expected = encode(tokenizer, made, length, &n);
    DataOptions options = {
        .pattern = path_of("long.txt"), .tokenizer = tokenizer, .B = 1, .T = T, .ranks = {0, 1}
    };
    DataLoader *loader = dataloader_open(&options, &err);
    CHECK(loader && dataloader_n_tokens(loader) == (int64_t)n, "%zu tokens expected: %s", n, err.text);
    for (size_t at = 0; loader && at + T < n; at += T) {
        const int32_t *tokens, *targets;
        if (!CHECK(dataloader_next(loader, &tokens, &targets, &err), "%s", err.text)) break;
        wrong += memcmp(tokens, expected + at, T * sizeof *tokens) != 0;
    }
    CHECK(wrong == 0, "%zu windows differ", wrong);
    dataloader_close(loader);
    free(expected);
    free(made);
    tokenizer_close(tokenizer);
    empty_folder();
}

/* The 256 bytes, all tokens of two of the letters from 'a' on that make n_tokens of them, and no end of text or `eot`. */
static const char *write_pairs(int n_tokens, uint32_t eot) {
    const uint32_t header[256] = {20240328, 2, (uint32_t)n_tokens, eot};
    uint8_t file[4096];
    size_t at = sizeof header;
    memcpy(file, header, sizeof header);
    for (int b = 0; b < 256; b++) at = append(file, at, &(char){(char)b}, 1);
    for (int i = 0; i < n_tokens - 256; i++)
        at = append(file, at, (char[]){(char)('a' + i / 16), (char)('a' + i % 16)}, 2);
    write_file("pairs.bin", file, at);
    return path_of("pairs.bin");
}

static Tokenizer *open_pairs(int n_tokens, uint32_t eot) {
    Error err = {0};
    Tokenizer *tokenizer = tokenizer_open(write_pairs(n_tokens, eot), &err);
    CHECK(tokenizer, "%s", err.text);
    return tokenizer;
}

/* As many tokens as a table has places: what is no token is still told from them. */
static void test_full_table(void) {
    Tokenizer *tokenizer = open_pairs(512, UINT32_MAX);
    if (!tokenizer) return;
    alarm(600); /* a search without an end */
    expect_ids(tokenizer, "zz", "122 122");
    expect_ids(tokenizer, "pp", "511");
    alarm(0);
    tokenizer_close(tokenizer);
    empty_folder();
}

/* Text that spells the end-of-text token is text, also where two tokens make it up. */
static void test_spelled_end_of_text(void) {
    Tokenizer *tokenizer = open_pairs(257, 256);
    if (!tokenizer) return;
    expect_ids(tokenizer, "aa", "97 97");
    CHECK(tokenizer_eot(tokenizer) == 256, "end of text %d", tokenizer_eot(tokenizer));
    tokenizer_close(tokenizer);
    expect_refusal(write_pairs(256, 10), "no token for byte 0x0a"); /* 256 tokens, and not the bytes */
    empty_folder();
}

/* Without an end of text a text begins after a newline, which here is token 245. */
static void test_start(void) {
    const uint32_t header[256] = {20240328, 2, 256, UINT32_MAX};
    uint8_t file[4096];
    size_t at = sizeof header;
    Error err = {0};
    memcpy(file, header, sizeof header);
    for (int b = 0; b < 256; b++) at = append(file, at, &(char){(char)(255 - b)}, 1);
    write_file("reversed.bin", file, at);
    Tokenizer *tokenizer = tokenizer_open(path_of("reversed.bin"), &err);
    if (!CHECK(tokenizer, "%s", err.text)) return;
    CHECK(tokenizer_start(tokenizer) == 245, "a text begins after %d", tokenizer_start(tokenizer));
    tokenizer_close(tokenizer);
    empty_folder();
}

static void test_bytes(void) {
    Error err = {0};
    Tokenizer *tokenizer = tokenizer_open("bytes", &err);
    if (!CHECK(tokenizer != NULL, "%s", err.text)) return;
    expect_ids(tokenizer, "a\xFF\n", "97 255 10");
    CHECK(tokenizer_start(tokenizer) == '\n', "a text begins after %d", tokenizer_start(tokenizer));
    int32_t *tokens = NULL;
    size_t n = 0;
    bool ok = tokenizer_encode(tokenizer, "ab", 2, &tokens, &n, &err) &&
              tokenizer_encode(tokenizer, "c", 1, &tokens, &n, &err);
    CHECK(ok && n == 3 && tokens[0] == 'a' && tokens[2] == 'c', "a second text appends");
    free(tokens);
    CHECK(tokenizer_eot(tokenizer) == -1 && tokenizer_vocab_size(tokenizer) == 256, "eot %d",
          tokenizer_eot(tokenizer));
    CHECK(tokenizer_save(tokenizer, folder, 1024, &err), "%s", err.text);
    CHECK(access(path_of("vocab.json"), F_OK) == 0, "no vocabulary for transformers");
    Tokenizer *again = tokenizer_open(folder, &err);
    CHECK(again && strcmp(tokenizer_name(again), "bytes") == 0, "%s",
          again ? tokenizer_name(again) : err.text);
    tokenizer_close(again);
    tokenizer_close(tokenizer);
    empty_folder();
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp")) return check_finish("tokenizer");
    test_split();
    test_cuts();
    test_merges();
    test_append();
    test_round_trip();
    test_long_piece();
    test_text_in_chunks();
    test_full_table();
    test_spelled_end_of_text();
    test_start();
    test_bytes();
    rmdir(folder);
    return check_finish("tokenizer");
}
