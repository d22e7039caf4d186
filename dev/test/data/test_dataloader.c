/* The order of the data: windows across file borders, the shuffle, ranks, resuming, and text. */
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include "dev/test/data_files.h"
#include "llmc/data/token_stream.h"
#include "llmc/data/window_order.h"

/* Shards of 10, 0, 3 and 20 tokens 0..32: windows of 4 run across the borders, every token is used, and after
 * the eighth window the first comes again. */
static void test_stream_order(void) {
    write_shard("s_2.bin", 10, 0);
    write_shard("s_1.bin", 0, 10);
    write_shard("s_3.bin", 10, 3);
    write_shard("s_4.bin", 13, 20);
    DataOptions options = options_of("s_*.bin", 3, 4);
    DataLoader *loader = open_or_report(&options);
    if (!loader) return;
    CHECK(dataloader_n_tokens(loader) == 33, "found %lld tokens", (long long)dataloader_n_tokens(loader));
    CHECK(dataloader_n_files(loader) == 4, "found %d files", dataloader_n_files(loader));
    for (int i = 1; i < 4; i++)
        CHECK(strcmp(dataloader_file(loader, i - 1), dataloader_file(loader, i)) < 0, "files %d and %d",
              i - 1, i);
    CHECK(strcmp(dataloader_description(loader), "4 shards, 33 tokens (uint16)") == 0, "%s",
          dataloader_description(loader));
    int32_t batch[24];
    for (int step = 0, window = 0; step < 10 && take(loader, 3, 4, batch); step++) {
        for (int b = 0; b < 3; b++, window++) {
            for (int t = 0; t < 4; t++) {
                int expected = window % 8 * 4 + t;
                CHECK(batch[4 * b + t] == expected, "window %d token %d is %d", window, t, batch[4 * b + t]);
                CHECK(batch[12 + 4 * b + t] == expected + 1, "window %d target %d is %d", window, t,
                      batch[12 + 4 * b + t]);
            }
        }
        CHECK(dataloader_position(loader) == 3 * (step + 1), "position %lld",
              (long long)dataloader_position(loader));
    }
    dataloader_close(loader);
    empty_folder();
}

static uint32_t fingerprint_of(const char *pattern, int B, int T, uint64_t seed) {
    const DataOptions options = {
        .pattern = pattern, .vocab_size = 65536, .B = B, .T = T, .ranks = {0, 1},
                      .seed = seed
    };
    DataLoader *loader = open_or_report(&options);
    const uint32_t found = loader ? dataloader_fingerprint(loader) : 0;
    dataloader_close(loader);
    return found;
}

/* A shard in place of another of its length is seen wherever it stands, and nothing else is. */
static void test_fingerprint(void) {
    enum { N = 100 };
    char name[3][16], all[300], mixture[2][600];
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "f_%d.bin", i);
        write_shard(name[i], i * N, N);
    }
    snprintf(all, sizeof all, "%s", path_of("f_*.bin"));
    const uint32_t whole = fingerprint_of(all, 1, 8, 1);
    CHECK(whole != 0, "no fingerprint");
    CHECK(fingerprint_of(all, 3, 4, 2) == whole, "another batch and seed");
    for (int i = 0; i < 3; i++) {
        write_shard(name[i], 1000, N);
        CHECK(fingerprint_of(all, 1, 8, 1) != whole, "shard %d is another", i);
        write_shard(name[i], i * N, N);
    }
    CHECK(fingerprint_of(all, 1, 8, 1) == whole, "the same again");
    for (int i = 0; i < 2; i++)
        snprintf(mixture[i], sizeof mixture[i], "%s/f_%d.bin:0.5,%s/f_%d.bin:0.5", folder, i, folder, 1 - i);
    CHECK(fingerprint_of(mixture[0], 1, 8, 1) != fingerprint_of(mixture[1], 1, 8, 1),
          "sources in another order");
    empty_folder();
}

/* One epoch: its windows start at least T apart on the ring, so none overlap and each is there once. */
static void check_epoch(const WindowOrder *order, int64_t epoch) {
    int64_t n = window_count(order), last = -1, first = -1;
    char *starts = calloc((size_t)order->n_tokens, 1);
    for (int64_t k = epoch * n; k < (epoch + 1) * n; k++) {
        int64_t start = window_start(order, k);
        if (!CHECK(start >= 0 && start < order->n_tokens, "window %lld starts at %lld", (long long)k,
                   (long long)start))
            continue;
        CHECK(epoch > 0 || start + order->T < order->n_tokens, "the first epoch wraps at %lld",
              (long long)start);
        CHECK(!starts[start]++, "%lld windows, epoch %lld: %lld twice", (long long)n, (long long)epoch,
              (long long)start);
    }
    for (int64_t i = 0; i < order->n_tokens; i++) {
        if (!starts[i]) continue;
        CHECK(last < 0 || i - last >= order->T, "windows overlap at %lld and %lld", (long long)last,
              (long long)i);
        if (first < 0) first = i;
        last = i;
    }
    CHECK(n == 1 || first + order->n_tokens - last >= order->T, "windows overlap on the ring");
    free(starts);
}

/* Every epoch has an order and an alignment of its own, and so has every seed. */
static void test_shuffle(void) {
    static const int counts[] = {1, 2, 3, 4, 5, 7, 15, 16, 17, 64, 65, 1000, 4097};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int n = counts[i], T = 8;
        WindowOrder order = {(int64_t)n * T + 1 + n % T, T, true, 42};
        CHECK(window_count(&order) == n, "%lld windows", (long long)window_count(&order));
        for (int epoch = 0; epoch < 3; epoch++) check_epoch(&order, epoch);
    }
    WindowOrder order = {8 * 1000 + 1, 8, true, 42}, other = order;
    other.seed = 43;
    int same_seed = 0, same_epoch = 0, descents = 0, shifted = 0;
    for (int k = 0; k < 1000; k++) {
        int64_t start = window_start(&order, k);
        same_seed += start == window_start(&other, k);
        same_epoch += start / 8 == window_start(&order, k + 1000) / 8;
        descents += k > 0 && start < window_start(&order, k - 1);
        shifted += window_start(&order, 1000 * k) % 8 != 0;
    }
    CHECK(same_seed < 10, "%d of 1000 windows where another seed has them", same_seed);
    CHECK(same_epoch < 10, "%d of 1000 windows where the second epoch has them", same_epoch);
    CHECK(descents > 440 && descents < 560, "%d descents of 999: not like a random order", descents);
    CHECK(shifted > 800, "%d of 1000 epochs are shifted, expected about 7 of 8", shifted);
}

/* Shuffled batches are the windows that window_start names, around the ring of the stream. */
static void test_shuffled_batches(void) {
    write_shard("a.bin", 0, 50);
    write_shard("b.bin", 50, 57);
    enum { N = 107, T = 5, B = 2 };
    DataOptions options = options_of("*.bin", B, T);
    options.shuffle = true;
    options.seed = 7;
    WindowOrder order = {N, T, true, 7};
    DataLoader *loader = open_or_report(&options);
    int32_t batch[2 * B * T];
    int wrong = 0, wrapped = 0;
    for (int window = 0; loader && window < 210 && take(loader, B, T, batch);) {
        for (int b = 0; b < B; b++, window++) {
            int64_t start = window_start(&order, window);
            wrapped += start + T + 1 > N;
            for (int t = 0; t < T; t++) {
                wrong +=
                    batch[T * b + t] != (start + t) % N || batch[B * T + T * b + t] != (start + t + 1) % N;
            }
        }
    }
    CHECK(wrong == 0, "%d tokens are not those of their window", wrong);
    CHECK(wrapped > 0, "no window of ten epochs ran around the ring");
    dataloader_close(loader);
    empty_folder();
}

/* The windows of a step do not depend on how ranks and batches share it. A rank's of a block follow each other. */
static void test_ranks(void) {
    write_shard("a.bin", 0, 1000);
    enum { T = 3, WINDOWS = 12, STEPS = 60, SPLITS = 9 };
    static const int splits[SPLITS][3] = {
        {1,  12, 0},
        {2,  6,  1},
        {4,  3,  1},
        {12, 1,  1},
        {3,  2,  1},
        {1,  4,  3},
        {3,  2,  2},
        {2,  2,  3},
        {4,  1,  3},
    }; /* ranks, B, block */
    static int32_t first[STEPS * WINDOWS][T];
    for (int s = 0; s < SPLITS; s++) {
        int n_ranks = splits[s][0], B = splits[s][1], block = splits[s][2] ? splits[s][2] : 1, wrong = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            DataOptions options = options_of("a.bin", B, T);
            options.ranks = (Ranks){rank, n_ranks}, options.shuffle = true, options.seed = 5;
            options.block = splits[s][2];
            DataLoader *loader = open_or_report(&options);
            int32_t batch[2 * WINDOWS * T];
            int64_t position = 0;
            while (loader && position < STEPS * WINDOWS && take(loader, B, T, batch)) {
                const int64_t i = position / (n_ranks * B) % block, of_block = position - i * n_ranks * B;
                int64_t window = of_block + (rank * block + i) * B;
                size_t bytes = (size_t)B * T * sizeof *batch;
                if (s == 0) memcpy(first[window], batch, bytes);
                wrong += memcmp(first[window], batch, bytes) != 0;
                position += n_ranks * B;
                CHECK(dataloader_position(loader) == position, "position %lld",
                      (long long)dataloader_position(loader));
                if (position == 2 * block * n_ranks * B) dataloader_seek(loader, position);
            }
            dataloader_close(loader);
        }
        CHECK(wrong == 0, "%d ranks of %d windows: %d batches differ", n_ranks, B, wrong);
    }
    empty_folder();
}

/* After a seek the batches are bitwise those of an uninterrupted run, from any state. */
static void test_seek(void) {
    write_shard("a.bin", 0, 777);
    enum { B = 4, T = 6, STEPS = 100 };
    static int32_t run[STEPS][2 * B * T];
    int32_t batch[2 * B * T];
    DataOptions options = options_of("a.bin", B, T);
    options.shuffle = true;
    DataLoader *loader = open_or_report(&options);
    if (!loader) return;
    for (int step = 0; step < STEPS; step++) take(loader, B, T, run[step]);
    unsigned random = 1;
    for (int trial = 0; trial < 300; trial++) {
        random = random * 1664525 + 1013904223;
        int step = (int)(random >> 16) % (STEPS - 3);
        dataloader_seek(loader, (int64_t)step * B);
        CHECK(dataloader_position(loader) == (int64_t)step * B, "position after a seek to step %d", step);
        for (int k = 0; k < trial % 4; k++) { /* trial % 4 == 0: two seeks in a row */
            take(loader, B, T, batch);
            CHECK(memcmp(batch, run[step + k], sizeof batch) == 0, "batch %d after a seek to %d differs", k,
                  step);
        }
    }
    dataloader_close(loader);
    empty_folder();
}

/* Text by bytes; the last tenth validates; files join in the order of their names. */
static void test_text(void) {
    char text[1000];
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    for (int i = 0; i < 1000; i++) text[i] = (char)(1 + i * 7 % 251);
    write_file("1.txt", text, 333);
    write_file("2.txt", text + 333, 667);
    static const struct {
        int split, first, n;
        const char *description;
    } cases[] = {
        {SPLIT_ALL,   0,   1000, "2 text files, 1,000 tokens (bytes)"                 },
        {SPLIT_TRAIN, 0,   900,  "2 text files, 900 tokens (bytes, first nine tenths)"},
        {SPLIT_VAL,   900, 100,  "2 text files, 100 tokens (bytes, last tenth)"       },
    };
    for (int i = 0; i < 3; i++) {
        DataOptions options = options_of("*.txt", 1, 33);
        options.split = cases[i].split;
        options.tokenizer = bytes;
        DataLoader *loader = open_or_report(&options);
        int32_t batch[66];
        int wrong = 0;
        for (int w = 0; loader && w < cases[i].n / 33 && take(loader, 1, 33, batch); w++) {
            for (int t = 0; t < 33; t++) {
                const char *expected = text + cases[i].first + (w % ((cases[i].n - 1) / 33)) * 33 + t;
                wrong += batch[t] != (uint8_t)expected[0] || batch[33 + t] != (uint8_t)expected[1];
            }
        }
        CHECK(wrong == 0, "split %d: %d wrong tokens", cases[i].split, wrong);
        if (loader)
            CHECK(strcmp(dataloader_description(loader), cases[i].description) == 0, "%s",
                  dataloader_description(loader));
        dataloader_close(loader);
    }
    DataOptions options = options_of("*.txt", 1, 100);
    options.split = SPLIT_VAL;
    options.tokenizer = bytes;
    expect_refusal(&options, "100 tokens in its last tenth: expected at least 101", "hint");
    write_file("2.txt", "", 0);
    options.pattern = path_of("2.txt");
    expect_refusal(&options, "2.txt: 0 tokens", "hint");
    options.tokenizer = NULL;
    options.vocab_size = 257; /* bytes cannot serve a model of another size */
    expect_refusal(&options, "2.txt is text, and there is no tokenizer for it; hint: ", "--tokenizer PATH");
    options.vocab_size = 256;
    expect_refusal(&options, "2.txt is text, and there is no tokenizer for it; hint: ", "--tokenizer bytes");
    options.no_tokenizer = "X is missing";
    expect_refusal(&options, "no tokenizer for it: X is missing; hint: ", "");
    tokenizer_close(bytes);
    empty_folder();
}

/* 1,009 bytes, letters up to the border at 908 (9 n / 10 is 908.1), then each byte once. Windows of a split that are shuffled run around its own end, not the file's. */
static void test_splits(void) {
    enum { N = 1009, BORDER = 908, T = 7 };
    char text[N];
    int n_wrapped = 0, n_outside = 0, n_wrong = 0;
    Error err = {0};
    int32_t batch[2 * T];
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    for (int i = 0; i < N; i++) text[i] = (char)(i < BORDER ? 'a' + i % 26 : ' ' + i - BORDER);
    write_file("text.txt", text, N);
    DataOptions options = options_of("text.txt", 1, T);
    options.tokenizer = bytes;
    options.split = SPLIT_TRAIN;
    DataLoader *loader = open_or_report(&options);
    if (loader)
        CHECK(dataloader_n_tokens(loader) == BORDER, "%lld tokens", (long long)dataloader_n_tokens(loader));
    dataloader_close(loader);
    options.split = SPLIT_VAL;
    options.shuffle = true;
    loader = open_or_report(&options);
    for (int w = 0; loader && w < 300 && take(loader, 1, T, batch); w++) {
        for (int t = 0; t < T; t++) {
            const int at = batch[t] - ' ', next = batch[T + t] - ' ';
            n_outside += at < 0 || at >= N - BORDER || next < 0;
            n_wrong += next != (at + 1) % (N - BORDER);
            n_wrapped += next == 0;
        }
    }
    CHECK(n_outside == 0 && n_wrong == 0, "%d tokens are not the split's, %d not the next", n_outside,
          n_wrong);
    CHECK(n_wrapped > 0, "no window ran around the end of the split");
    dataloader_close(loader);
    tokenizer_close(bytes);
    empty_folder();
}

/* ---- text and vocabularies ---- */

/* A tokenizer of the 256 bytes and `tokens`, length and bytes of each, n of them. */
static Tokenizer *open_tokens(const uint8_t *tokens, size_t size, int n) {
    const uint32_t header[256] = {20240328, 2, (uint32_t)(256 + n + 1), (uint32_t)(256 + n)};
    Error err = {0};
    FILE *file = fopen(path_of("tokenizer.bin"), "wb");
    bool ok = file && fwrite(header, sizeof header, 1, file) == 1;
    for (int b = 0; ok && b < 256; b++) ok = fputc(1, file) == 1 && fputc(b, file) == b;
    ok = ok && fwrite(tokens, 1, size, file) == size && fwrite("\x0D<|endoftext|>", 1, 14, file) == 14;
    REQUIRE(ok && fclose(file) == 0, "cannot write a tokenizer");
    Tokenizer *tokenizer = tokenizer_open(path_of("tokenizer.bin"), &err);
    CHECK(tokenizer, "%s", err.text);
    return tokenizer;
}

/* The stream of text.txt has the tokens of the text, encoded at once. */
static void check_encoded(const Tokenizer *tokenizer, const char *text, size_t n) {
    Error err = {0};
    int32_t *want = NULL;
    size_t n_want = 0;
    TokenStream stream;
    write_file("text.txt", text, n);
    bool ok = tokenizer_encode(tokenizer, text, n, &want, &n_want, &err) &&
              token_stream_open(&stream, path_of("text.txt"), tokenizer, NULL, 0, &err);
    if (!CHECK(ok, "%s", err.text)) return;
    int32_t *got = malloc(n_want * sizeof *got);
    ok = got && stream.n_tokens == (int64_t)n_want &&
         token_stream_read(&stream, 0, (int64_t)n_want, got, &err);
    CHECK(ok && memcmp(got, want, n_want * sizeof *got) == 0,
          "%zu bytes: %lld tokens, %zu at once, or others", n, (long long)stream.n_tokens, n_want);
    token_stream_close(&stream);
    free(got);
    free(want);
}

/* A text is read in pieces of 4 MiB. A run of spaces lies over the border: two of them are a token. */
static void test_cut(void) {
    enum { CHUNK = 4 << 20, N = CHUNK + 100 };
    Tokenizer *tokenizer = open_tokens((const uint8_t *)"\2  ", 3, 1);
    char *text = malloc(N);
    if (!text || !tokenizer) abort();
    for (int i = 0; i < N; i++) text[i] = i % 8 == 7 ? '\n' : 'a';
    for (int i = -2; i <= 3; i++) text[CHUNK + i] = ' ';
    check_encoded(tokenizer, text, N);
    free(text);
    tokenizer_close(tokenizer);
    empty_folder();
}

/* All pairs of bytes are tokens, then "abc", the 65792nd: more than two bytes can count. */
static void test_wide_tokens(void) {
    enum { PAIRS = 1 << 16 };
    uint8_t *tokens = malloc(3 * PAIRS + 4), *at = tokens;
    if (!tokens) abort();
    for (int pair = 0; pair < PAIRS; pair++) *at++ = 2, *at++ = (uint8_t)(pair >> 8), *at++ = (uint8_t)pair;
    memcpy(at, "\3abc", 4);
    Tokenizer *tokenizer = open_tokens(tokens, 3 * PAIRS + 4, PAIRS + 1);
    if (tokenizer) check_encoded(tokenizer, "abc\nabc xyz", 11);
    tokenizer_close(tokenizer);
    free(tokens);
    empty_folder();
}

/* Signals are the program's, not the reading thread's: every thread but this one has them blocked. */
static void test_signals(void) {
    write_shard("a.bin", 0, 100);
    DataOptions options = options_of("a.bin", 1, 2);
    DataLoader *loader = open_or_report(&options);
    int32_t batch[4];
    if (loader) take(loader, 1, 2, batch); /* the thread runs, with the signals that it was given */
    DIR *threads = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e; threads && (e = readdir(threads));) {
        char path[300], line[200];
        unsigned long long blocked;
        if (e->d_name[0] == '.' || atoi(e->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "SigBlk: %llx", &blocked) == 1)
                n++, CHECK(blocked >> (SIGTERM - 1) & blocked >> (SIGINT - 1) & 1, "blocked: %llx", blocked);
        if (file) fclose(file);
    }
    if (!threads)
        SKIP("no /proc on this machine");
    else
        CHECK(n >= 1, "no thread beside this one");
    if (threads) closedir(threads);
    dataloader_close(loader);
    empty_folder();
}

/* A file that is no text is refused by the name of its kind. */
static void test_kinds(void) {
    static const struct {
        size_t n;
        const char *bytes, *words;
    } cases[] = {
        {10, "\x1F\x8B\x08\0\0\0\0\0\0\x03", "looks like gzip, not text; hint: gunzip"        },
        {6,  "\x28\xB5\x2F\xFDxx",           "looks like zstd, not text; hint: unzstd"        },
        {8,  "\xFD\x37zXZ\0\0\x04",          "looks like xz, not text; hint: unxz"            },
        {10, "BZh91AY&SY",                   "looks like bzip2, not text; hint: bunzip2"      },
        {6,  "\x04\x22\x4D\x18xx",           "looks like lz4"                                 },
        {6,  "PK\3\4xx",                     "looks like zip, not text; hint: unzip"          },
        {8,  "7z\xBC\xAF\x27\x1Cxx",         "looks like 7-zip"                               },
        {8,  "PAR1\x15\x04\x15x",            "looks like parquet, not text; hint: data/"      },
        {9,  "ARROW1\0\0x",                  "looks like arrow"                               },
        {8,  "\xFF\xFE\0\0h\0\0\0",          "looks like UTF-32 text, not text; hint: ic"     },
        {8,  "\0\0\xFE\xFF\0\0\0h",          "looks like UTF-32 text"                         },
        {6,  "\xFF\xFEh\0i\0",               "looks like UTF-16 text, not text; hint: ic"     },
        {6,  "\xFE\xFF\0h\0i",               "looks like UTF-16 text, not text; hint: ic"     },
        {10, "h\0e\0l\0l\0o\0",              "iconv -f UTF-16LE"                              },
        {10, "\0h\0e\0l\0l\0o",              "iconv -f UTF-16BE"                              },
        {9,  "\x89PNG\r\n\x1A\nx",           "looks like a PNG picture"                       },
        {6,  "\xFF\xD8\xFF\xE0xx",           "looks like a JPEG picture"                      },
        {8,  "GIF87a  ",                     "looks like a GIF picture"                       },
        {8,  "GIF89a  ",                     "looks like a GIF picture"                       },
        {9,  "%PDF-1.4\n",                   "looks like PDF, not text; hint: pdftotext"      },
        {12, "\x93NUMPY\x01xv\0{'",          "looks like a numpy array"                       },
        {10, "\x89HDF\r\n\x1A\nxx",          "looks like HDF5"                                },
        {6,
         "\x7F"
         "ELF\2\1",                          "looks like a program"                           },
        {18, "SQLite format 3\0xx",          "looks like an SQLite database"                  },
        {14, "\x40\0\0\0\0\0\0\0{\"a\":1",   "looks like safetensors, not text; hint: a model"},
        {12, "plain text\0x",                "byte 10 is null"                                },
    };
    Error err = {0};
    char tar[300];
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    DataOptions options = options_of("file.txt", 1, 2);
    options.tokenizer = bytes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("file.txt", cases[i].bytes, cases[i].n);
        expect_refusal(&options, cases[i].words, "file.txt");
    }
    memset(tar, 'x', sizeof tar);
    memcpy(tar + 257, "ustar", 5);
    write_file("file.txt", tar, sizeof tar);
    expect_refusal(&options, "looks like a tar archive", "tar xf");
    tokenizer_close(bytes);
    empty_folder();
}

/* A null byte is found behind the first chunk, too; a text that only begins like a kind of file is a text. */
static void test_kinds_in_place(void) {
    static const char *const texts[] = {"PARTS of it",  "BZhang wrote", "GIF pictures",
                                        "ARROW1 and 2", "PK in 3 4",    "\xEF\xBB\xBFmark"};
    enum { N = 5000000 };
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    char *text = malloc(N);
    DataOptions options = options_of("file.txt", 1, 2);
    options.tokenizer = bytes;
    for (size_t i = 0; text && i < N; i++) text[i] = i % 50 ? 'a' : '\n';
    if (text) text[N - 10] = 0;
    if (text) write_file("file.txt", text, N);
    expect_refusal(&options, "byte 4999990 is null", "");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file("file.txt", texts[i], strlen(texts[i]));
        dataloader_close(open_or_report(&options));
    }
    free(text);
    tokenizer_close(bytes);
    empty_folder();
}

/* Where the first byte lies that is no UTF-8, in every place of a chunk of 4 MiB; -1 where all of it is. */
static void test_not_utf8(void) {
    enum { CHUNK = 4 << 20, N = CHUNK + 1000 };
    static const struct {
        int at;
        const char *bytes;
        int first; /* -1: none */
    } cases[] = {
        {0,         "\xE9",             0        },
        {10,        "\xC3\xA9",         -1       },
        {10,        "\xC3\xA9\xE9",     12       },
        {10,        "\xF0\x9F\x98\x80", -1       },
        {10,        "\xED\xA0\x80",     10       }, /* a surrogate */
        {CHUNK - 2, "\xF0\x9F\x98\x80", -1       }, /* across the border */
        {CHUNK - 2, "\xF0\x9F\x98",     CHUNK - 2},
        {CHUNK + 9, "\x80",             CHUNK + 9},
        {N - 1,     "\xC3",             N - 1    }, /* the file ends in it */
    };
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    char *text = malloc(N);
    write_file("1.txt", "text", 4);
    for (size_t i = 0; text && i < sizeof cases / sizeof *cases; i++) {
        for (int k = 0; k < N; k++) text[k] = k % 50 ? 'a' : '\n';
        memcpy(text + cases[i].at, cases[i].bytes, strlen(cases[i].bytes));
        write_file("2.txt", text, N);
        DataOptions options = options_of("*.txt", 1, 2);
        options.tokenizer = bytes;
        DataLoader *loader = open_or_report(&options);
        if (!loader) break;
        CHECK(dataloader_not_utf8(loader, 0) == -1, "plain text is said to be no UTF-8");
        CHECK(dataloader_not_utf8(loader, 1) == cases[i].first, "row %zu: no UTF-8 at byte %lld, expected %d",
              i, (long long)dataloader_not_utf8(loader, 1), cases[i].first);
        dataloader_close(loader);
    }
    free(text);
    tokenizer_close(bytes);
    empty_folder();
}

/* Closing never waits for the reader to be read out, nor loses it. */
static void test_open_close(void) {
    write_shard("a.bin", 0, 5000);
    DataOptions options = options_of("a.bin", 8, 64);
    int32_t batch[2 * 8 * 64];
    for (int i = 0; i < 200; i++) {
        DataLoader *loader = open_or_report(&options);
        if (!loader) break;
        if (i % 3 == 1) take(loader, 8, 64, batch);
        if (i % 3 == 2) dataloader_seek(loader, i);
        dataloader_close(loader);
    }
    dataloader_close(NULL);
    empty_folder();
}

static atomic_int n_waits, n_wrong;
static atomic_bool waits;

static void note_wait(bool begins) {
    n_wrong += waits == begins;
    waits = begins;
    n_waits += begins;
}

/* A wait for the disk is told, and it is over once the batch is there. */
static void test_waits(void) {
    enum { B = 64, T = 256 };
    int32_t *batch = malloc(2 * B * T * sizeof *batch);
    write_shard("w.bin", 0, 20000);
    DataOptions options = options_of("w.bin", B, T);
    DataLoader *loader = open_or_report(&options);
    dataloader_on_wait = note_wait;
    for (int i = 0; loader && i < 200; i++) {
        dataloader_seek(loader, 0);
        CHECK(take(loader, B, T, batch) && !waits, "batch %d is there, and still waited for", i);
    }
    CHECK(n_waits > 0 && n_wrong == 0, "%d waits, %d began or ended twice", n_waits, n_wrong);
    dataloader_close(loader);
    dataloader_on_wait = NULL;
    free(batch);
    empty_folder();
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp")) return check_finish("dataloader");
    test_stream_order();
    test_fingerprint();
    test_shuffle();
    test_shuffled_batches();
    test_ranks();
    test_seek();
    test_waits();
    test_text();
    test_splits();
    test_cut();
    test_wide_tokens();
    test_signals();
    test_kinds();
    test_kinds_in_place();
    test_not_utf8();
    test_open_close();
    rmdir(folder);
    return check_finish("dataloader");
}
