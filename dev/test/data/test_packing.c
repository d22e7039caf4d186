/* Packed windows: every token once, documents whole where they can be, none touching another without end-of-text, the same
 * from any place on and for any number of ranks. */
#include "dev/test/data_files.h"
#include "llmc/base/random.h"
#include "llmc/data/packing.h"

/* ---- a stream whose tokens say where they are ---- */

enum { EOT = 0 };

/* Token i is i + 1, or EOT where a document ends. */
typedef struct Stream {
    int64_t n;
    bool *ends;
    int64_t n_read;
} Stream;

static bool read_stream(void *ring, int64_t first, int64_t n, int32_t *out, Error *err) {
    Stream *s = ring;
    (void)err;
    s->n_read += n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (first + i) % s->n;
        out[i] = s->ends[at] ? EOT : (int32_t)at + 1;
    }
    return true;
}

/* Documents of `least` to `most` tokens, end-of-text included; 0: none ends. */
static Stream make_stream(int64_t n, int least, int most) {
    Stream s = {.n = n, .ends = calloc((size_t)n, 1)};
    uint64_t random = 1;
    if (!s.ends) abort();
    for (int64_t at = -1; most > 0;) {
        const double u = random_uniform(&random);
        at += least + (int64_t)(u * u * (most - least + 1)); /* more short ones than long ones */
        if (at >= n) break;
        s.ends[at] = true;
    }
    return s;
}

static Packing *open_stream(const Stream *s, int T, uint64_t seed) {
    Error err = {0};
    const WindowOrder order = {s->n, T, true, seed};
    Packing *packing = packing_open(&order, EOT, &err);
    CHECK(packing, "%s", err.text);
    return packing;
}

static const int32_t *window_of(Packing *p, Stream *s, int64_t index) {
    Error err = {0};
    const int32_t *window = NULL;
    CHECK(packing_window(p, index, read_stream, s, &window, &err) && window, "%s", err.text);
    return window;
}

/* ---- one epoch ---- */

typedef struct Found {
    int64_t windows, tokens, twice, touching, whole, documents;
} Found;

/* What a window has: tokens that were there before, pieces that follow another without end-of-text, whole documents. */
static void look_at(const Stream *s, const int32_t *w, int T, char *seen, Found *f) {
    int begin = 0;
    for (int t = 0; t <= T; t++) {
        const bool ends = w[t] == EOT, begins = t == begin;
        f->tokens++;
        if (!ends) f->twice += seen[w[t] - 1]++ > 0;
        if (!begins) f->touching += ends ? !s->ends[w[t - 1] % s->n] : w[t] != w[t - 1] % s->n + 1;
        if (ends && t > begin) f->whole += w[begin] == 1 || s->ends[w[begin] - 2];
        if (ends) begin = t + 1;
    }
}

static Found look_at_epoch(Stream *s, Packing *p, int T, int64_t epoch) {
    Found f = {.windows = packing_count(p)};
    char *seen = calloc((size_t)s->n, 1);
    for (int64_t i = 0; seen && i < f.windows; i++)
        look_at(s, window_of(p, s, epoch * f.windows + i), T, seen, &f);
    int64_t last = -1;
    for (int64_t i = 0; i < s->n; i++) {
        if (!s->ends[i]) continue;
        f.documents += i > last + 1 && i - last <= T + 1; /* of two tokens or more, that fit */
        last = i;
    }
    free(seen);
    return f;
}

/* least, most: tokens of a document; percent: of documents that may be cut, borders of groups included. */
static void test_epochs(void) {
    static const struct {
        int64_t n;
        int T, least, most;
        double percent;
    } rows[] = {
        {400000, 255,  2,   200,  2   }, /* short ones */
        {400000, 255,  20,  2000, 2   }, /* many longer than a window */
        {400000, 1023, 50,  1500, 1   },
        {400000, 255,  100, 140,  12.5}, /* two fit, and no third */
        {100000, 63,   1,   1,    100 }, /* nothing but end-of-text */
        {100000, 63,   0,   0,    100 }, /* no end */
        {100000, 63,   1,   100,  1.5 },
        {5000,   63,   2,   64,   4   }, /* few windows */
        {65,     63,   5,   20,   100 }, /* one */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int T = rows[i].T;
        Stream s = make_stream(rows[i].n, rows[i].least, rows[i].most);
        Packing *p = open_stream(&s, T, 3);
        for (int64_t epoch = 0; p && epoch < 2; epoch++) {
            const Found f = look_at_epoch(&s, p, T, epoch);
            CHECK(f.twice == 0, "row %zu: %lld tokens stand twice", i, (long long)f.twice);
            CHECK(f.touching == 0, "row %zu: %lld documents touch without end-of-text", i,
                  (long long)f.touching);
            CHECK(f.windows * (T + 1) > s.n - s.n / 50 - T - 2, "row %zu: %lld windows of %lld tokens", i,
                  (long long)f.windows, (long long)s.n);
            const double cut = 100 * (1 - (double)f.whole / (double)(f.documents ? f.documents : 1));
            CHECK(f.documents == 0 || cut <= rows[i].percent, "row %zu: %.2f %% of %lld documents are cut", i,
                  cut, (long long)f.documents);
        }
        packing_close(p);
        free(s.ends);
    }
}

/* A window is the same whatever was read before; a pool is packed once for all its windows. */
static void test_any_order(void) {
    enum { T = 31, N = 300 };
    static int32_t first[N][T + 1];
    Stream s = make_stream(20000, 2, 40);
    Packing *p = open_stream(&s, T, 3), *other = open_stream(&s, T, 4);
    int wrong = 0, same = 0;
    unsigned random = 1;
    if (!p || !other) return;
    for (int i = 0; i < N; i++) memcpy(first[i], window_of(p, &s, 500 + i), sizeof first[i]);
    CHECK(s.n_read <= 2 * s.n, "%lld tokens are read for 300 windows of two epochs", (long long)s.n_read);
    for (int trial = 0; trial < 200; trial++) {
        random = random * 1664525 + 1013904223;
        const int i = (int)(random >> 16) % N;
        wrong += memcmp(first[i], window_of(p, &s, 500 + i), sizeof first[i]) != 0;
        same += memcmp(first[i], window_of(other, &s, 500 + i), sizeof first[i]) == 0;
    }
    CHECK(wrong == 0, "%d windows of 200 are others", wrong);
    CHECK(same < 20, "%d windows of 200 are those of another seed", same);
    packing_close(p);
    packing_close(other);
    free(s.ends);
}

/* Documents of the group [begin, end) that fit a window and stand in one where windows take the stream as it comes. */
static int64_t whole_plain(const Stream *s, int64_t begin, int64_t end, int T) {
    int64_t n = 0, first = begin;
    for (int64_t i = begin; i < end; i++) {
        if (!s->ends[i]) continue;
        const int64_t window = (first - begin) / T * T + begin;
        n += first > begin && i - first <= T && i <= window + T;
        first = i + 1;
    }
    return n;
}

/* What is said is what is there, but for the first document of a group, which may have begun in the one before. */
static void test_stats(void) {
    enum { T = 63, GROUP = 256 * (T + 1), GROUPS = 3 };
    Stream s = make_stream(GROUPS * GROUP + 1, 5, 90);
    Packing *p = open_stream(&s, T, 3);
    if (!p) return;
    const Found f = look_at_epoch(&s, p, T, 0);
    const PackingStats stats = packing_stats(p);
    int64_t plain = 0;
    for (int g = 0; g < GROUPS; g++)
        plain += whole_plain(&s, (int64_t)g * GROUP, (int64_t)(g + 1) * GROUP, T);
    CHECK(f.windows == GROUPS * 256, "%lld windows", (long long)f.windows);
    CHECK(stats.n_documents - stats.n_cut <= f.whole && stats.n_documents - stats.n_cut >= f.whole - GROUPS,
          "%lld of %lld are said to be cut, %lld are whole", (long long)stats.n_cut,
          (long long)stats.n_documents, (long long)f.whole);
    CHECK(stats.n_documents - stats.n_cut_plain == plain, "%lld of %lld in plain windows, %lld are whole",
          (long long)stats.n_cut_plain, (long long)stats.n_documents, (long long)plain);
    window_of(p, &s, f.windows); /* the next epoch's pool */
    CHECK(packing_stats(p).n_documents < stats.n_documents + 9, "two pools are counted as one");
    packing_close(p);
    free(s.ends);
}

/* Shards begin with end-of-text, and an empty document is nothing else: neither is counted. */
static void test_end_of_text_alone(void) {
    enum { T = 63 };
    static const int ends[] = {0, 20, 40, 41};
    Stream s = make_stream(T + 2, 0, 0);
    for (int i = 0; i < 4; i++) s.ends[ends[i]] = true;
    Packing *p = open_stream(&s, T, 3);
    if (!p) return;
    window_of(p, &s, 0);
    const PackingStats stats = packing_stats(p);
    CHECK(stats.n_documents == 2 && stats.n_cut == 0 && stats.n_cut_plain == 0,
          "%lld documents, %lld are cut, %lld of plain windows", (long long)stats.n_documents,
          (long long)stats.n_cut, (long long)stats.n_cut_plain);
    packing_close(p);
    free(s.ends);
}

/* The second epoch has windows of its own. */
static void test_second_epoch(void) {
    enum { T = 31, N = 624 };
    static int32_t first[N][T + 1];
    Stream s = make_stream(N * (T + 1) + 1, 2, 40);
    Packing *p = open_stream(&s, T, 3);
    int same = 0;
    if (!p || !CHECK(packing_count(p) == N, "%lld windows", (long long)packing_count(p))) return;
    for (int i = 0; i < N; i++) memcpy(first[i], window_of(p, &s, i), sizeof first[i]);
    for (int i = 0; i < N; i++) {
        const int32_t *window = window_of(p, &s, N + i);
        for (int k = 0; k < N; k++) same += memcmp(first[k], window, sizeof first[k]) == 0;
    }
    CHECK(same < N / 2, "%d of %d windows are those of the first epoch", same, N);
    packing_close(p);
    free(s.ends);
}

/* ---- a real text ---- */

/* The paragraphs of the project's own pages are documents, their bytes tokens, 256 ends one. */
static int32_t *read_pages(int *n) {
    static const char *const pages[] = {
        "README.md",           "llmc/README.md",       "llmc/run/README.md",
        "llmc/comm/README.md", "llmc/model/MEMORY.md", "llmc/checkpoint/README.md",
        "dev/test/README.md"};
    int32_t *tokens = malloc(sizeof *tokens << 20);
    *n = 0;
    for (size_t i = 0; tokens && i < sizeof pages / sizeof *pages; i++) {
        FILE *file = fopen(pages[i], "r");
        int last = 0, c;
        if (!REQUIRE(file, "%s: not there; run from the repository root", pages[i])) continue;
        while ((c = fgetc(file)) != EOF && *n < (1 << 20) - 1) {
            tokens[(*n)++] = c == '\n' && last == '\n' ? 256 : c;
            last = c;
        }
        tokens[(*n)++] = 256;
        fclose(file);
    }
    return tokens;
}

static void test_real_text(void) {
    enum { T = 511 };
    int n;
    int32_t *tokens = read_pages(&n);
    if (!tokens) abort();
    write_raw("pages.bin", MAGIC32, 7, n, tokens, (size_t)n * sizeof *tokens);
    DataOptions options = options_of("pages.bin", 1, T);
    options.pack = true, options.end_of_text = 256;
    DataLoader *loader = open_or_report(&options);
    double cut = 100, plain = 0;
    const char *said = loader ? strstr(dataloader_description(loader), "packed: ") : NULL;
    CHECK(said && sscanf(said, "packed: %lf %% of documents that fit are cut, not %lf %%", &cut, &plain) == 2,
          "%s", loader ? dataloader_description(loader) : "");
    CHECK(cut < 7 && plain > 25 && cut < plain / 4, "%g %% of the documents are cut, %g %% of plain windows",
          cut, plain);
    dataloader_close(loader);
    free(tokens);
    empty_folder();
}

/* ---- the loader ---- */

enum { B_ALL = 12, T_SHORT = 15, STEPS = 30 };

/* Windows 0.. of the run, by a single rank. */
static void write_documents(const char *name, int n, int least, int most) {
    const Stream s = make_stream(n, least, most);
    uint16_t *tokens = malloc((size_t)n * sizeof *tokens);
    if (!tokens) abort();
    for (int i = 0; i < n; i++) tokens[i] = s.ends[i] ? EOT : (uint16_t)(i + 1);
    write_raw(name, MAGIC16, 1, n, tokens, (size_t)n * sizeof *tokens);
    free(tokens);
    free(s.ends);
}

/* Any ranks, batches and blocks, and a seek, give the windows of one rank; of a mixture, too. */
static void test_ranks(void) {
    static const int splits[][3] = {
        {1,  12, 1},
        {3,  2,  2},
        {2,  6,  1},
        {12, 1,  1}
    };
    static int32_t first[STEPS * B_ALL][2 * T_SHORT];
    char mixture[600];
    snprintf(mixture, sizeof mixture, "%s:1,%s:2", path_of("a.bin"), path_of("b.bin"));
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
        const int n_ranks = splits[s][0], B = splits[s][1], block = splits[s][2];
        int wrong = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            DataOptions options = options_of("", B, T_SHORT);
            options.pattern = mixture, options.shuffle = true, options.pack = true, options.seed = 5;
            options.ranks = (Ranks){rank, n_ranks}, options.block = block;
            DataLoader *loader = open_or_report(&options);
            for (int step = 0; loader && step < STEPS; step++) {
                if (s > 0 && step == 10) dataloader_seek(loader, B_ALL * (step = 20));
                for (int i = 0; i < block; i++) {
                    int32_t batch[2 * B_ALL * T_SHORT];
                    if (!take(loader, B, T_SHORT, batch)) break;
                    for (int b = 0; b < B; b++) {
                        int32_t *row = first[step * B_ALL + (rank * block + i) * B + b];
                        const int32_t *tokens = batch + b * T_SHORT, *targets = tokens + B * T_SHORT;
                        if (s == 0)
                            memcpy(row, tokens, T_SHORT * 4), memcpy(row + T_SHORT, targets, T_SHORT * 4);
                        wrong += memcmp(row, tokens, T_SHORT * 4) ||
                                 memcmp(row + T_SHORT, targets, T_SHORT * 4) ||
                                 memcmp(tokens + 1, targets, (T_SHORT - 1) * 4);
                    }
                }
            }
            dataloader_close(loader);
        }
        CHECK(wrong == 0, "%d ranks of %d windows, %d in a row: %d windows differ", n_ranks, B, block, wrong);
    }
}

static void test_refused(void) {
    DataOptions options = options_of("a.bin", 1, 3000);
    options.pack = true;
    write_documents("short.bin", 16, 3, 5);
    options.pattern = path_of("short.bin"), options.T = 15;
    expect_refusal(&options, "short.bin: 16 tokens: expected at least 17", "--seq");
    options.T = 14;
    DataLoader *loader = open_or_report(&options);
    int32_t batch[28];
    if (loader) CHECK(take(loader, 1, 14, batch), "one window cannot be read");
    dataloader_close(loader);
    write_shard("no_end.bin", 1, 100);
    options.pattern = path_of("no_end.bin");
    loader = open_or_report(&options);
    if (loader)
        CHECK(strstr(dataloader_description(loader), "packed: no document fits a window"), "%s",
              dataloader_description(loader));
    dataloader_close(loader);
    CHECK(dataloader_packing_bytes("x", 1023) > 256 * 1024 * 4 &&
              dataloader_packing_bytes("x", 1023) < 64 << 20 &&
              dataloader_packing_bytes("x:1,y:1", 1023) == 2 * dataloader_packing_bytes("x", 1023),
          "%zu bytes", dataloader_packing_bytes("x", 1023));
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp")) return check_finish("packing");
    test_epochs();
    test_any_order();
    test_stats();
    test_end_of_text_alone();
    test_second_epoch();
    test_real_text();
    write_documents("a.bin", 3000, 2, 20);
    write_documents("b.bin", 5000, 2, 30);
    test_ranks();
    test_refused();
    empty_folder();
    rmdir(folder);
    return check_finish("packing");
}
