/* Mixtures: what a list of globs and weights means, in which order the windows of its sources come, and that a loader follows
 * it whoever reads, from any place on. */
#include <math.h>
#include "dev/test/data_files.h"
#include "llmc/base/random.h"
#include "llmc/data/mixture.h"
#include "llmc/data/window_order.h"

/* ---- reading ---- */

/* "PATTERN SHARE" of each source, of parts of all. */
static void check_parsed(const char *text, const char *expected) {
    char found[2000] = "";
    Mixture mixture;
    Error err = {0};
    if (!CHECK(mixture_parse(&mixture, text, &err), "%s: %s", text, err.text)) return;
    int64_t before = 0;
    for (int i = 0; i < mixture.n_sources; i++) {
        const MixtureSource *source = &mixture.sources[i];
        const size_t used = strlen(found);
        snprintf(found + used, sizeof found - used, "%s%s %.9g", i ? ", " : "", source->pattern,
                 (double)source->parts / (double)mixture.parts);
        CHECK(source->before == before, "%s: source %d begins behind %lld parts", text, i,
              (long long)source->before);
        before += source->parts;
    }
    CHECK(before == mixture.parts && mixture.parts <= 1 << 30, "%s: %lld parts", text,
          (long long)mixture.parts);
    CHECK(strcmp(found, expected) == 0, "'%s' is '%s', expected '%s'", text, found, expected);
    mixture_free(&mixture);
}

static void check_refused(const char *text, const char *words) {
    Mixture mixture;
    Error err = {0};
    CHECK(!mixture_parse(&mixture, text, &err), "'%s' is taken", text);
    CHECK(err.exit_code == EXIT_INPUT && strstr(err.text, words) && !strchr(err.text, '\n'), "'%s': %s", text,
          err.text);
}

static void test_parse(void) {
    check_parsed("a_*.bin", "a_*.bin 1");
    check_parsed("a_*.bin:0.7,b_*.bin:0.3", "a_*.bin 0.7, b_*.bin 0.3");
    check_parsed("a:1,b:2,c:1", "a 0.25, b 0.5, c 0.25");
    check_parsed("a:3x,b", "a:3x,b 1"); /* no number, so no weight: a name */
    check_parsed("a:1e12,b:1e12", "a 0.5, b 0.5");
    check_parsed("a:1e-12,b:3e-12", "a 0.25, b 0.75");
    check_parsed("a:99999999,b:1", "a 0.99999999, b 1e-08");
    check_parsed("a:5", "a 1");
    check_parsed("C:\\x,y:z.txt:2,b:6", "C:\\x,y:z.txt 0.25, b 0.75");
    check_parsed("a,b", "a,b 1");
    check_refused("a:0,b:1", "'a': the weight is '0'");
    check_refused("a:1,b:-0.5", "'b': the weight is '-0.5'; expected a number from 1e-12 to 1e12");
    check_refused("a:1e13,b:1", "'1e13'");
    check_refused("a:3e12e,b:1", "'3e12e'");
    check_refused("a:1.2.3,b:1", "'1.2.3'");
    check_refused("a:1,b", "'b': expected GLOB:WEIGHT");
    check_refused("a:1,", "behind the last comma");
    check_refused("a:1,:2", "':2': expected GLOB:WEIGHT");
    check_refused("a:1,b:4e-10", "'b': the weight 4e-10 is too small");
}

/* A name that reads like a mixture is a name where a file has it, alone or as a source. */
static void test_names(void) {
    char text[800], expected[900];
    write_file("x:3,y:1", "text", 4);
    write_file("x:3", "text", 4);
    const char *path = path_of("x:3,y:1"), *shorter = path_of("x:3");
    snprintf(expected, sizeof expected, "%s 1", path);
    check_parsed(path, expected);
    snprintf(text, sizeof text, "%s:1,%s:3", path, shorter);
    snprintf(expected, sizeof expected, "%s 0.25, %s 0.75", path, shorter);
    check_parsed(text, expected);
    empty_folder();
    check_parsed(path, (snprintf(expected, sizeof expected, "%.*s 0.75, y 0.25", (int)strlen(path) - 6, path),
                        expected));
}

/* ---- the order ---- */

/* From window `first` on: each source's windows come one by one, and no prefix is far from the weights. */
static void check_order(const char *text, int64_t first, int n) {
    Mixture mixture;
    Error err = {0};
    int wrong = 0;
    double worst = 0;
    int64_t counts[16];
    if (!CHECK(mixture_parse(&mixture, text, &err), "%s", err.text)) return;
    for (int i = 0; i < mixture.n_sources; i++) counts[i] = mixture_count(&mixture, 7, i, first);
    for (int64_t k = first; k < first + n; k++) {
        int64_t index, sum = 0;
        const int source = mixture_source(&mixture, 7, k, &index);
        wrong += index != counts[source]++;
        for (int i = 0; i < mixture.n_sources; i++) {
            const int64_t q = (k + 1) / mixture.parts, r = (k + 1) % mixture.parts,
                          parts = mixture.sources[i].parts;
            const double share = (double)(r * parts) / (double)mixture.parts; /* beside q whole rounds */
            wrong += mixture_count(&mixture, 7, i, k + 1) != counts[i];
            sum += counts[i];
            worst = fmax(worst, fabs((double)(counts[i] - q * parts) - share));
        }
        wrong += sum != k + 1;
    }
    CHECK(wrong == 0, "%s from %lld: %d windows are not the next of their source", text, (long long)first,
          wrong);
    const double bound = mixture.n_sources == 2 ? 1 : log2(mixture.n_sources) + 1;
    CHECK(worst < bound, "%s from %lld: %g windows from the weights", text, (long long)first, worst);
    mixture_free(&mixture);
}

static void test_order(void) {
    static const char *const texts[] = {"a:1",
                                        "a:0.7,b:0.3",
                                        "a:1,b:1",
                                        "a:1,b:1000",
                                        "a:0.123456789,b:0.5,c:0.3",
                                        "a:1,b:2,c:3,d:4,e:5,f:6,g:7,h:8,i:9"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_order(texts[i], 0, 5000);
        check_order(texts[i], INT64_MAX / 2, 500);
    }
}

/* Another seed, another order; and a source's windows are not all in a run of neighbours. */
static void test_seeds(void) {
    Mixture mixture;
    Error err = {0};
    int same = 0, longest = 0, run = 0, last = -1;
    if (!CHECK(mixture_parse(&mixture, "a:1,b:1,c:1,d:1,e:1", &err), "%s", err.text)) return;
    for (int64_t k = 0; k < 5000; k++) {
        int64_t index, other;
        const int source = mixture_source(&mixture, 1, k, &index);
        same += source == mixture_source(&mixture, 2, k, &other);
        run = source == last ? run + 1 : 1;
        longest = run > longest ? run : longest;
        last = source;
    }
    CHECK(same < 2500, "%d of 5000 windows where another seed has them", same);
    CHECK(longest <= 2, "%d windows of one of five sources follow each other", longest);
    mixture_free(&mixture);
}

/* ---- the loader ---- */

enum { T = 5, N_A = 101, N_B = 507, FIRST_B = 1000, SEED = 11 };
static char two_sources[600];

/* The tokens of sources a (0 ..) and b (1000 ..), to window k of the run. */
static int expected_token(const Mixture *mixture, int64_t k, int t) {
    int64_t index;
    const int i = mixture_source(mixture, SEED, k, &index);
    const WindowOrder order = {i ? N_B : N_A, T, true, i ? random_stream(SEED, 1) : SEED};
    return (int)((window_start(&order, index) + t) % order.n_tokens) + (i ? FIRST_B : 0);
}

/* Each source goes through its own order and epochs, the same windows for any number of ranks, from any place on. */
static void test_loader(void) {
    static const int splits[][3] = {
        {1, 12, 1},
        {3, 2,  2},
        {4, 1,  3},
        {2, 2,  3}
    }; /* ranks, B, block */
    Mixture mixture;
    Error err = {0};
    if (!CHECK(mixture_parse(&mixture, two_sources, &err), "%s", err.text)) return;
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
        const int n_ranks = splits[s][0], B = splits[s][1], block = splits[s][2];
        int wrong = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            DataOptions options = options_of("", B, T);
            options.pattern = two_sources, options.shuffle = true, options.seed = SEED;
            options.ranks = (Ranks){rank, n_ranks}, options.block = block;
            DataLoader *loader = open_or_report(&options);
            int32_t batch[2 * 12 * T];
            for (int step = 0; loader && step < 60; step++) {
                if (step == 40) dataloader_seek(loader, 12 * (step = 50));
                for (int i = 0; i < block && take(loader, B, T, batch); i++)
                    for (int j = 0; j < B * T; j++) {
                        const int64_t k = 12 * step + (rank * block + i) * B + j / T;
                        wrong += batch[j] != expected_token(&mixture, k, j % T) ||
                                 batch[B * T + j] != expected_token(&mixture, k, j % T + 1);
                    }
            }
            dataloader_close(loader);
        }
        CHECK(wrong == 0, "%d ranks, %d windows, %d in a row: %d tokens are others", n_ranks, B, block,
              wrong);
    }
    mixture_free(&mixture);
}

static void test_said(void) {
    char expected[1000];
    DataOptions options = options_of("", 1, T);
    options.pattern = two_sources, options.seed = SEED;
    DataLoader *loader = open_or_report(&options);
    if (!loader) return;
    const DataSource a = dataloader_source(loader, 0, 1000), b = dataloader_source(loader, 1, 1000);
    CHECK(dataloader_n_sources(loader) == 2 && a.share == 0.25 && b.share == 0.75, "shares %g, %g", a.share,
          b.share);
    CHECK(labs((long)(a.n_tokens - 250 * T)) <= T && a.n_tokens + b.n_tokens == 1000 * T,
          "%lld and %lld tokens", (long long)a.n_tokens, (long long)b.n_tokens);
    CHECK(fabs(a.epochs - (double)a.n_tokens / T / 20) < 1e-9 &&
              fabs(b.epochs - (double)b.n_tokens / T / 101) < 1e-9,
          "%g and %g epochs", a.epochs, b.epochs);
    CHECK(dataloader_epoch(loader) == 80, "the first source is read once after %lld windows",
          (long long)dataloader_epoch(loader)); /* 20 of a's, a quarter; 101 of b's would be 134 */
    CHECK(dataloader_n_tokens(loader) == N_A + N_B && dataloader_n_files(loader) == 3,
          "%lld tokens, %d files", (long long)dataloader_n_tokens(loader), dataloader_n_files(loader));
    CHECK(strstr(dataloader_file(loader, 2), "b_2.bin") && strstr(dataloader_file(loader, 0), "a.bin"),
          "files %s, %s", dataloader_file(loader, 0), dataloader_file(loader, 2));
    snprintf(expected, sizeof expected,
             "mixture of 2 sources, 608 tokens: 25 %% %s/a.bin (1 shard, 101 tokens (uint16)), "
             "75 %% %s/b_*.bin (2 shards, 507 tokens (uint16))",
             folder, folder);
    CHECK(strcmp(dataloader_description(loader), expected) == 0, "%s", dataloader_description(loader));
    dataloader_close(loader);
}

/* A text beside shards, and the names of both. */
static void test_kinds(void) {
    char text[1200], first[PATH_MAX];
    bool is_shard;
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    write_file("t.txt", "abcdefghijklmnopqrstuvwxyz", 26);
    snprintf(text, sizeof text, "%s:1,%s:1", path_of("t.txt"), path_of("a.bin"));
    CHECK(dataloader_names_shards(text) && dataloader_names_shards("x.txt:1,y*.bin:2") &&
              !dataloader_names_shards("x.bin:1.txt") && !dataloader_names_shards("a.txt:1,b.txt:1") &&
              dataloader_names_shards("./v1.2/y*.bin"),
          "shards by their names");
    CHECK(dataloader_first_file(text, first, &is_shard) && is_shard && strcmp(first, path_of("a.bin")) == 0,
          "the first shard is %s", first);
    CHECK(dataloader_check(text, &err), "%s", err.text);
    DataOptions options = options_of("", 2, T);
    options.pattern = text, options.tokenizer = bytes;
    DataLoader *loader = open_or_report(&options);
    int32_t batch[4 * T];
    int n_text = 0;
    for (int i = 0; loader && i < 5 && take(loader, 2, T, batch); i++)
        for (int b = 0; b < 2; b++) n_text += batch[b * T] >= 'a';
    CHECK(n_text == 5, "%d of 10 windows are the text's", n_text);
    dataloader_close(loader);
    snprintf(text, sizeof text, "%s:1,%s:1", path_of("a.bin"), path_of("none.bin"));
    CHECK(!dataloader_check(text, &err) && strstr(err.text, "none.bin: no such file"), "%s", err.text);
    expect_refusal(&options, "none.bin: no such file", "");
    options.pattern = "a.bin,b.bin";
    expect_refusal(&options, "a.bin,b.bin: no such file", "a mixture gives each glob a weight");
    tokenizer_close(bytes);
}

/* More sources than a stream keeps files open, each of two shards. */
static void test_many(void) {
    enum { N = 80 };
    static char text[N * 80];
    int32_t batch[2 * T];
    int seen[N] = {0}, wrong = 0;
    for (int i = 0; i < N; i++) {
        char name[40];
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "s%02d_%d.bin", i, k);
            write_shard(name, 100 * i + 50 * k, 50);
        }
        snprintf(name, sizeof name, "s%02d_*.bin", i);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s:1", i ? "," : "", path_of(name));
    }
    DataOptions options = options_of("", 1, T);
    options.pattern = text, options.shuffle = true;
    DataLoader *loader = open_or_report(&options);
    for (int k = 0; loader && k < 10 * N && take(loader, 1, T, batch); k++) {
        seen[batch[0] / 100]++;
        for (int t = 0; t < T; t++) wrong += batch[T + t] != batch[t] + 1;
    }
    for (int i = 0; i < N; i++) wrong += seen[i] < 8 || seen[i] > 12;
    CHECK(wrong == 0, "%d tokens or counts of 80 sources are wrong", wrong);
    dataloader_close(loader);
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp")) return check_finish("mixture");
    test_parse();
    test_names();
    test_order();
    test_seeds();
    write_shard("a.bin", 0, N_A);
    write_shard("b_1.bin", FIRST_B, 200);
    write_shard("b_2.bin", FIRST_B + 200, N_B - 200);
    snprintf(two_sources, sizeof two_sources, "%s:1,%s:3", path_of("a.bin"), path_of("b_*.bin"));
    test_loader();
    test_said();
    test_kinds();
    test_many();
    empty_folder();
    rmdir(folder);
    return check_finish("mixture");
}
