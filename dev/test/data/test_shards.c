/* Token shards as files: both widths, any size and number, and what is said of those that are not as they
 * should be. */
#include "dev/test/data_files.h"
#include <fcntl.h>
#include <sys/resource.h>
#include "llmc/data/token_stream.h"

static void test_uint32(void) {
    uint32_t tokens[9] = {128000, 0, 65536, 1, 100000, 5, 6, 7, 128255};
    write_raw("llama.bin", MAGIC32, 7, 9, tokens, sizeof tokens);
    DataOptions options = options_of("llama.bin", 1, 8);
    options.vocab_size = 128256;
    DataLoader *loader = open_or_report(&options);
    int32_t batch[16];
    if (loader && take(loader, 1, 8, batch)) {
        for (int t = 0; t < 8; t++)
            CHECK((uint32_t)batch[t] == tokens[t] && (uint32_t)batch[8 + t] == tokens[t + 1], "token %d", t);
        CHECK(strcmp(dataloader_description(loader), "1 shard, 9 tokens (uint32)") == 0, "%s",
              dataloader_description(loader));
    }
    dataloader_close(loader);
    empty_folder();
}

static void test_bad_files(void) {
    uint16_t tokens[20] = {0};
    static const struct {
        const char *name;
        int magic, version, count;
        size_t n_bytes;
        const char *words, *more;
    } cases[] = {
        {"magic.bin",     20240521, 1, 20,  40, "magic.bin: magic: expected 20240520",        "found 20240521"   },
        {"tokenizer.bin", 20240328, 1, 20,  40, "found 20240328",                             "a llm.c tokenizer"},
        {"model.bin",     20240326, 3, 20,  40, "found 20240326",                             "a llm.c model"    },
        {"version.bin",   MAGIC16,  2, 20,  40, "version: expected 1",                        "found 2"          },
        {"version32.bin", MAGIC32,  1, 10,  40, "version: expected 7",                        "found 1"          },
        {"cut.bin",       MAGIC16,  1, 20,  38, "the header says 20, which takes 1064 bytes", "the file has 1062"},
        {"long.bin",      MAGIC16,  1, 19,  40, "the header says 19",                         "the file has 1064"},
        {"odd.bin",       MAGIC16,  1, 19,  39, "number of tokens",                           "the file has 1063"},
        {"odd32.bin",     MAGIC32,  7, 9,   38, "number of tokens",                           "the file has 1062"},
        {"negative.bin",  MAGIC16,  1, -20, 40, "the header says -20",                        "the file has 1064"},
        {"none.bin",      MAGIC16,  1, 0,   0,  "none.bin: no tokens by its header",          "hint: "           },
        {"short.bin",     MAGIC16,  1, 2,   4,  "2 tokens",                                   "at least 3"       },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_raw(cases[i].name, cases[i].magic, cases[i].version, cases[i].count, tokens, cases[i].n_bytes);
        DataOptions options = options_of(cases[i].name, 1, 2);
        expect_refusal(&options, cases[i].words, cases[i].more);
    }
    empty_folder();
    write_file("header.bin", "short", 5);
    DataOptions options = options_of("header.bin", 1, 2);
    expect_refusal(&options, "header: expected 1024 bytes", "has 5");
    options.pattern = path_of("nothing_*.bin");
    expect_refusal(&options, "nothing_*.bin: no such file", "hint");
    options.pattern = folder;
    expect_refusal(&options, folder, "directory");
    empty_folder();
}

static void test_mixtures(void) {
    uint32_t wide[10] = {0};
    write_shard("x_1.bin", 0, 10);
    write_raw("x_2.bin", MAGIC32, 7, 10, wide, sizeof wide);
    DataOptions options = options_of("x_*", 1, 2);
    expect_refusal(&options, "x_2.bin: token width: expected uint16", "found uint32");
    write_file("x_2.bin.txt", "plain text", 10);
    expect_refusal(&options, "x_1.bin is a token shard, but", "x_2.bin.txt is not");
    write_shard("shard_without_suffix", 0, 10);
    options.pattern = path_of("shard_*");
    DataLoader *loader = open_or_report(&options);
    if (loader)
        CHECK(strstr(dataloader_description(loader), "1 shard,"), "%s", dataloader_description(loader));
    dataloader_close(loader);
    write_shard("odd[1].bin", 0, 10); /* a name that as a pattern would match odd1.bin only */
    options.pattern = path_of("odd[1].bin");
    dataloader_close(open_or_report(&options));
    empty_folder();
}

/* Takes batches until one fails; returns how many came, with the error. */
static int batches_before_error(DataLoader *loader, int most, Error *err) {
    const int32_t *tokens, *targets;
    int n = 0;
    while (n < most && dataloader_next(loader, &tokens, &targets, err)) n++;
    return n;
}

/* A token beyond the vocabulary stops the run where it is met, again and again; elsewhere the file still
 * serves. */
static void test_bad_token(void) {
    uint16_t tokens[41] = {0};
    tokens[29] = 50257;
    write_shard("a.bin", 0, 11);
    write_raw("b.bin", MAGIC16, 1, 41, tokens, sizeof tokens);
    DataOptions options = options_of("*.bin", 1, 10);
    options.vocab_size = 50257;
    DataLoader *loader = open_or_report(&options);
    if (!loader) return;
    for (int again = 0; again < 2; again++) {
        Error err = {0};
        int n = batches_before_error(loader, 10, &err);
        CHECK(n == (again ? 0 : 3), "%d batches before the bad token", n);
        CHECK(err.exit_code == EXIT_INPUT && strstr(err.text, "b.bin: token 29: ") &&
                  strstr(err.text, "50257, found 50257"),
              "%s", err.text);
    }
    dataloader_seek(loader, 0);
    Error err = {0};
    CHECK(batches_before_error(loader, 2, &err) == 2, "no batches after a seek: %s", err.text);
    dataloader_close(loader);
    empty_folder();
}

/* A shard that shrinks under a running loader is an error of that batch, not a crash or zeros. */
static void test_shrinking_file(void) {
    write_shard("a.bin", 0, 20000);
    DataOptions options = options_of("a.bin", 1, 100);
    DataLoader *loader = open_or_report(&options);
    Error err = {0};
    int n = loader ? batches_before_error(loader, 1, &err) : 0;
    CHECK(truncate(path_of("a.bin"), 1024 + 2 * 15000) == 0, "truncate");
    if (loader) n += batches_before_error(loader, 1000, &err);
    CHECK(n == 149 && strstr(err.text, "a.bin"), "%d batches, then: %s", n, err.text);
    dataloader_close(loader);
    empty_folder();
}

/* A sparse shard of `count` uint16 tokens whose last five are 1 2 3 4 5. */
static bool write_sparse(const char *name, int64_t count) {
    uint16_t last[5] = {1, 2, 3, 4, 5};
    write_raw(name, MAGIC16, 1, (int)(count > INT32_MAX ? 0 : count), "", 0);
    int fd = open(path_of(name), O_WRONLY);
    bool ok = fd >= 0 && pwrite(fd, last, sizeof last, 1024 + 2 * (count - 5)) == (ssize_t)sizeof last;
    if (fd >= 0) close(fd);
    return ok;
}

/* The largest shard that a header can count, 4 GiB; two of them; and one token more. */
static void test_large_files(void) {
    enum { T = 1 << 16 };
    if (!write_sparse("a.bin", INT32_MAX) || !write_sparse("b.bin", INT32_MAX)) {
        SKIP("this file system does not take sparse files of 4 GiB");
        empty_folder();
        return;
    }
    DataOptions options = options_of("?.bin", 1, T);
    DataLoader *loader = open_or_report(&options);
    static int32_t batch[2 * T];
    if (loader) {
        CHECK(dataloader_n_tokens(loader) == 2 * (int64_t)INT32_MAX, "%lld",
              (long long)dataloader_n_tokens(loader));
        dataloader_seek(loader, ((int64_t)INT32_MAX - 5) / T); /* across the border of the files */
        int64_t border = INT32_MAX % T;
        if (take(loader, 1, T, batch)) {
            CHECK(batch[border - 1] == 5 && batch[border - 5] == 1 && batch[border] == 0,
                  "the border reads %d %d", batch[border - 1], batch[border]);
        }
        dataloader_seek(loader, (2 * (int64_t)INT32_MAX - 1) / T - 1);
        if (take(loader, 1, T, batch)) CHECK(batch[T - 1] == 0, "the last window of the stream");
    }
    dataloader_close(loader);
    write_sparse("c.bin", (int64_t)INT32_MAX + 1);
    options.pattern = path_of("c.bin");
    expect_refusal(&options, "2147483648 tokens are more than the header can count", "hint");
    empty_folder();
}

/* 300 shards of 1 to 7 tokens, batches longer than any of them, and room for 100 open files. */
static void test_many_shards(void) {
    struct rlimit before, low;
    getrlimit(RLIMIT_NOFILE, &before);
    low = before;
    low.rlim_cur = 100;
    int n_tokens = 0;
    for (int i = 0; i < 300; i++) {
        char name[32];
        int n = 1 + i * 5 % 7;
        snprintf(name, sizeof name, "t_%06d.bin", i);
        write_shard(name, n_tokens, n);
        n_tokens += n;
    }
    setrlimit(RLIMIT_NOFILE, &low);
    DataOptions options = options_of("t_*.bin", 4, 64);
    DataLoader *loader = open_or_report(&options);
    int32_t batch[2 * 4 * 64];
    int wrong = 0;
    for (int step = 0; loader && step < 50 && take(loader, 4, 64, batch); step++) {
        for (int b = 0; b < 4; b++) {
            int start = (4 * step + b) % ((n_tokens - 1) / 64) * 64;
            for (int t = 0; t < 64; t++)
                wrong += batch[64 * b + t] != start + t || batch[256 + 64 * b + t] != start + t + 1;
        }
    }
    CHECK(wrong == 0, "%d wrong tokens", wrong);
    dataloader_close(loader);
    setrlimit(RLIMIT_NOFILE, &before);
    empty_folder();
}

/* A shard is closed for another one and opened again: what took its place meanwhile is not read as if it were it. */
static void test_replaced_shard(void) {
    TokenStream stream;
    Error err = {0};
    int32_t tokens[4];
    write_shard("a.bin", 0, 4);
    write_shard("b.bin", 4, 4);
    if (!CHECK(token_stream_open(&stream, path_of("?.bin"), NULL, NULL, 100, &err), "%s", err.text)) return;
    token_stream_share_files(&stream, OPEN_FILES); /* one at a time */
    for (int i = 0; i < 2; i++)
        CHECK(token_stream_read(&stream, 4 * i, 4, tokens, &err) && tokens[3] == 4 * i + 3, "%s", err.text);
    write_shard("a.bin", 50, 9);
    CHECK(!token_stream_read(&stream, 0, 4, tokens, &err), "another shard is read, token %d", tokens[0]);
    CHECK(err.exit_code == EXIT_INPUT &&
              strstr(err.text, "a.bin: expected 1032 bytes as at the start of the run, found 1042; hint: "),
          "%s", err.text);
    token_stream_close(&stream);
    empty_folder();
}

/* Refused with these words, or, `words` NULL, found: as many files. By a user whom folders can keep out. */
static void expect_files(const char *pattern, int n, const char *words) {
    const bool is_root = geteuid() == 0;
    TokenStream stream;
    Error err = {0};
    REQUIRE(!is_root || seteuid(65534) == 0, "another user");
    const bool ok = token_stream_open(&stream, path_of(pattern), NULL, NULL, 65536, &err);
    REQUIRE(!is_root || seteuid(0) == 0, "root again");
    if (words)
        CHECK(!ok && err.exit_code == EXIT_INPUT && strstr(err.text, words) &&
                  strstr(err.text, "Permission denied"),
              "%s: expected '%s', exit code %d: %s", pattern, words, err.exit_code, err.text);
    else
        CHECK(ok && stream.n_files == n, "%s: expected %d files, found %d: %s", pattern, n,
              ok ? stream.n_files : 0, err.text);
    if (ok) token_stream_close(&stream);
}

/* A part of the data that cannot be looked at is not left out without a word. */
static void test_closed_folders(void) {
    chmod(folder, 0755);
    for (int i = 1; i <= 3; i++) {
        static const char *const names[] = {"a1", "a2", "b"};
        char name[32];
        mkdir(path_of(names[i - 1]), 0755);
        snprintf(name, sizeof name, "%s/x.bin", names[i - 1]);
        write_shard(name, 0, 10);
    }
    write_shard("a0", 0, 10); /* no folder */
    REQUIRE(symlink("nowhere", path_of("a9")) == 0, "a link");
    expect_files("a*/*.bin", 2, NULL);
    expect_files("a*/x.bin", 2, NULL);
    expect_files("*/*", 3, NULL);
    expect_files("[b]/../a\\2//x.*", 1, NULL);
    chmod(path_of("a2"), 0);
    expect_files("a*/*.bin", 0, "/a2");
    expect_files("a*/x.bin", 0, "cannot look into ");
    expect_files("a*/x.bin", 0, "/a2: ");
    expect_files("a2/x.bin", 0, "/a2: ");
    expect_files("a2/deeper/x.bin", 0, "/a2: ");
    expect_files("b/*.bin", 1, NULL);
    chmod(path_of("a2"), 0700);
    chmod(folder, 0700);
    empty_folder();
}

/* By their whole paths, in which '-' comes before '/'. */
static void test_order_of_folders(void) {
    TokenStream stream;
    Error err = {0};
    mkdir(path_of("a"), 0755);
    mkdir(path_of("a-1"), 0755);
    write_shard("a/x.bin", 0, 10);
    write_shard("a-1/x.bin", 0, 10);
    if (CHECK(token_stream_open(&stream, path_of("a*/x.bin"), NULL, NULL, 65536, &err), "%s", err.text)) {
        CHECK(strstr(stream.files[0].path, "a-1/x.bin"), "first: %s", stream.files[0].path);
        token_stream_close(&stream);
    }
    empty_folder();
}

/* No descriptor left is no reason to say that there are no files. */
static void test_no_descriptor(void) {
    struct rlimit before, none;
    TokenStream stream;
    Error err = {0};
    write_shard("t_0.bin", 0, 10);
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    const bool ok = token_stream_open(&stream, path_of("t_*.bin"), NULL, NULL, 65536, &err);
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK(!ok && err.exit_code == EXIT_RUN && strstr(err.text, "Too many open files"), "exit code %d: %s",
          err.exit_code, err.text);
    empty_folder();
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp")) return check_finish("shards");
    test_uint32();
    test_bad_files();
    test_mixtures();
    test_bad_token();
    test_shrinking_file();
    test_large_files();
    test_many_shards();
    test_closed_folders();
    test_order_of_folders();
    test_no_descriptor();
    test_replaced_shard();
    rmdir(folder);
    return check_finish("shards");
}
