/* What is said of flags and settings: values as they are recorded, words that were meant, and what a run prints before it
 * begins, line by line. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/run/console.h"
#include "llmc/run/flags_table.h"
#include "llmc/run/samples.h"
#include "dev/test/check.h"

static bool parse(Settings *s, Error *err, const char *line) {
    static char text[2000];
    char *argv[100] = {"train_gpt2"};
    int argc = 1;
    *err = (Error){0};
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return flags_parse(s, argc, argv, err);
}

/* ---- flags ---- */

static void test_values(void) {
    static const char *const values[][2] = {
        {"0.1",                 "0.1"                },
        {"3e-4",                "0.0003"             },
        {"0.123456789012345",   "0.123456789012345"  },
        {"0.3333333333333333",  "0.3333333333333333" },
        {"0.30000000000000004", "0.30000000000000004"},
        {"1e-9",                "1e-09"              },
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        Settings s;
        Error err;
        char line[80], number[FORMAT_NUMBER];
        const char *text = "";
        snprintf(line, sizeof line, "--lr %s", values[i][0]);
        if (parse(&s, &err, line)) text = flag_get_text(&s, &flags_table[flag_find("lr")], number);
        CHECK(strcmp(text, values[i][1]) == 0, "--lr %s is recorded as %s %s", values[i][0], text, err.text);
    }
}

/* An unknown flag, and the one that is named for it, or none. */
static void test_meant(void) {
    static const char *const rows[][2] = {
        {"--bacth 4",                              "--batch" },
        {"--tpo-k 4",                              "--top-k" }, /* two letters exchanged are one mistake */
        {"--kepe 4",                               "--keep"  },
        {"--lrr 1",                                "--lr"    },
        {"--steps-x 4",                            "--steps" },
        {"--windw 4",                              "--window"},
        {"--momentum 1",                           NULL      },
        {"--qqqq 1",                               NULL      },
        {"--epochs 3",                             "--steps" },
        {"--learning 3",                           NULL      },
        {"--abcdefghijklmnopqrstuvwxyz01234 1",    NULL      }, /* 31, 32, 33 and 34 letters: past every name */
        {"--abcdefghijklmnopqrstuvwxyz012345 1",   NULL      },
        {"--abcdefghijklmnopqrstuvwxyz0123456 1",  NULL      },
        {"--abcdefghijklmnopqrstuvwxyz01234567 1", NULL      },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Settings s;
        Error err;
        char said[80];
        snprintf(said, sizeof said, "did you mean %s?", rows[i][1] ? rows[i][1] : "");
        CHECK(!parse(&s, &err, rows[i][0]) && err.exit_code == EXIT_INPUT, "%s is taken", rows[i][0]);
        CHECK(rows[i][1] ? strstr(err.text, said) != NULL : !strstr(err.text, "did you mean"), "%s: %s",
              rows[i][0], err.text);
    }
}

static void test_quoted(void) {
    char long_value[200] = "--batch ";
    memset(long_value + 8, 'x', 150);
    Settings s;
    Error err;
    CHECK(!parse(&s, &err, long_value), "a long value is taken");
    const char *quote = strstr(err.text, "'x");
    CHECK(quote && strspn(quote + 1, "x") == 57 && strncmp(quote + 58, "...'", 4) == 0,
          "a long value is cut: %s", err.text);
    long_value[8 + 60] = 0;
    CHECK(!parse(&s, &err, long_value), "a value of 60 letters is taken");
    quote = strstr(err.text, "'x");
    CHECK(quote && strspn(quote + 1, "x") == 60 && quote[61] == '\'', "a shorter one is not: %s", err.text);
}

/* Flags that change the result are named when a run is resumed with others, and no other flag. */
static void test_what_affects_a_run(void) {
    static const char *const affecting[] = {"train b.txt",
                                            "val v.txt",
                                            "tokenizer bytes",
                                            "window 3",
                                            "sparse 64,0,0",
                                            "batch 3",
                                            "seq 8",
                                            "tokens-per-step 48",
                                            "steps 9",
                                            "lr 0.5",
                                            "warmup 2",
                                            "final-lr-fraction 0.5",
                                            "schedule wsd",
                                            "weight-decay 0.3",
                                            "beta1 0.5",
                                            "beta2 0.6",
                                            "eps 1e-5",
                                            "dropout 0.5",
                                            "clip 3",
                                            "seed 5",
                                            "attention standard",
                                            "overfit 1"};
    static const char *const others[] = {
        "eval-every 3",  "eval-batches 3", "sample-every 3",  "sample-tokens 3", "prompt x",
        "temperature 2", "top-k 3",        "recompute block", "graph off",       "top-p 0.5",
        "min-p 0.1",     "stop x",         "samples 3"};
    const char *base = "--train a.txt --model nano --batch 2 --seq 16 --steps 4";
    enum {
        AFFECTING = sizeof affecting / sizeof *affecting,
        ALL = AFFECTING + sizeof others / sizeof *others
    };
    for (int i = 0; i < ALL; i++) {
        const bool affects = i < AFFECTING;
        const char *flag = affects ? affecting[i] : others[i - AFFECTING];
        Settings s, now;
        Error err;
        char name[40];
        FlagDifference found[FLAGS_MAX];
        CHECK(parse(&s, &err, base), "%s", err.text);
        settings_complete(&s, false, 1);
        char *saved = flags_to_json(&s);
        now = s;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(flag, " "), flag);
        const Flag *row = &flags_table[flag_find(name)];
        CHECK(flag_set_value(&now, row, name, flag + strcspn(flag, " ") + 1, &err), "%s", err.text);
        const int n = flags_differences(saved, &now, found);
        CHECK(affects ? n == 1 && strcmp(found[0].name, name) == 0 : n == 0, "--%s: %d differences are named",
              flag, n);
        free(saved);
    }
}

/* ---- before the run ---- */

static void check_settings(const char *flags, int n_ranks, const char *expected) {
    Settings s;
    Error err;
    char *text = NULL;
    size_t size;
    CHECK(parse(&s, &err, flags), "%s", err.text);
    settings_complete(&s, false, n_ranks);
    FILE *out = open_memstream(&text, &size);
    console_settings(out, &s, n_ranks, s.steps * s.tokens_per_step);
    fclose(out);
    CHECK(strcmp(text, expected) == 0, "%s:\n%sexpected:\n%s", flags, text, expected);
    free(text);
}

static void test_settings(void) {
    check_settings("--train a.txt --batch 2 --seq 16 --tokens-per-step 64 --steps 100 --lr 0.002 --warmup 5 "
                   "--final-lr-fraction 0.25 --beta1 0.8 "
                   "--beta2 0.9 --eps 1e-6 --weight-decay 0.3 --clip 2 --seed 9 --window 16 --dropout 0.1 "
                   "--eval-every 10 --eval-batches 3 "
                   "--sample-every 20 --sample-tokens 7 --optimizer adamw --temperature 0.5 --top-k 4 "
                   "--samples 3 --top-p 0.9 --min-p 0.1 --stop end --out "
                   "out/x --save-every "
                   "50 --recompute gelu",
                   1,
                   "recipe      cpu-small (defaults for what the flags leave open)\n"
                   "numerics    fp32, flash attention, recompute gelu, seed 9\n"
                   "batch       2 x 16 tokens x 2 micro-steps = 64 tokens a step\n"
                   "run         100 steps, 6.4 k tokens\n"
                   "optimizer   AdamW, betas 0.8 0.9, eps 1e-06, weight decay 0.3, clip 2\n"
                   "window      16, the context or more: attention sees all of it\n"
                   "dropout     0.1 (26 of 256)\n"
                   "schedule    cosine, lr 2.00e-03 to 5.00e-04, 5 warm-up steps of 100\n"
                   "evaluation  3 batches every 10 steps and at the end\n"
                   "samples     3 x 7 tokens at most, until \"end\", temperature 0.5, top-k 4, top-p 0.9, "
                   "min-p 0.1, every 20 steps and at the end\n"
                   "output      out/x every 50 steps and at the end\n");
    check_settings(
        "--train a.bin --batch 2 --seq 16 --tokens-per-step 64 --steps 100 --lr 0.002 --warmup 5 "
        "--schedule constant --window 15 --sparse 64,0,1 --optimizer muon --momentum 0.9 --muon-polynomial "
        "jordan "
        "--eval-every 0 --sample-tokens 0 --overfit",
        2,
        "recipe      cpu-small (defaults for what the flags leave open)\n"
        "numerics    fp32, flash attention, recompute none, seed 1337\n"
        "batch       2 x 16 tokens x 2 ranks = 64 tokens a step\n"
        "run         100 steps, 6.4 k tokens, all on the first batch (--overfit)\n"
        "optimizer   Muon on matrices, momentum 0.9, jordan; AdamW, betas 0.9 0.95, eps 1e-08, weight "
        "decay 0.1, clip 1\n"
        "window      attention sees 15 of 16 positions\n"
        "sparse      attention sees blocks of 64: of the last 64 positions, of the first 0, 1 at random; 100 "
        "% of all "
        "pairs\n"
        "schedule    constant lr 2.00e-03 after 5 warm-up steps\n"
        "evaluation  none: --train names token shards and there is no --val\n"
        "output      none (--out DIR keeps checkpoints and a log)\n");
    check_settings("--train a.bin --batch 2 --seq 16 --tokens-per-step 128 --steps 100 --lr 0.002 --warmup 5 "
                   "--schedule constant --eval-every 0 --sample-tokens 7 --sample-every 0 --temperature 0 "
                   "--context-gpus 2 --optimizer adamw",
                   4,
                   "recipe      cpu-small (defaults for what the flags leave open)\n"
                   "numerics    fp32, flash attention, recompute none, seed 1337\n"
                   "batch       2 x 16 tokens x 2 micro-steps x 2 groups of ranks = 128 tokens a step\n"
                   "context     16 tokens shared out over 2 ranks: 8 each, of every sequence\n"
                   "run         100 steps, 12.8 k tokens\n"
                   "optimizer   AdamW, betas 0.9 0.95, eps 1e-08, weight decay 0.1, clip 1\n"
                   "schedule    constant lr 2.00e-03 after 5 warm-up steps\n"
                   "evaluation  none: --train names token shards and there is no --val\n"
                   "samples     1 x 7 tokens at most, temperature 0, at the end\n"
                   "output      none (--out DIR keeps checkpoints and a log)\n");
}

static void test_settings_of_profile(void) {
    check_settings(
        "--train a.txt --batch 2 --seq 16 --optimizer adamw --profile --overfit", 1,
        "recipe      cpu-small (defaults for what the flags leave open)\n"
        "numerics    fp32, flash attention, recompute none, seed 1337\n"
        "batch       2 x 16 tokens = 32 tokens a step\n"
        "run         some seconds, all on the first batch (--overfit), for --profile; nothing is kept\n"
        "optimizer   AdamW, betas 0.9 0.95, eps 1e-08, weight decay 0.1, clip 1\n");
}

/* A stop text of n bytes, letters of two each, behind an x where n is odd: what of it is said. */
static void check_stop(size_t n, size_t shown, const char *end) {
    char stop[5000 + 1], words[SAMPLING_WORDS], expected[SAMPLING_WORDS];
    for (size_t i = 0; i < n; i++) stop[i] = "\xc3\xa9"[(i + n) % 2];
    if (n % 2) stop[0] = 'x';
    stop[n] = 0;
    const Settings s = {
        .samples = 1, .sample_tokens = 7, .stop = stop, .temperature = 0.5, .top_k = 4, .top_p = 1};
    snprintf(expected, sizeof expected, "1 x 7 tokens at most, until \"%.*s%s\", temperature 0.5, top-k 4",
             (int)shown, stop, end);
    console_sampling(words, &s);
    CHECK(strcmp(words, expected) == 0, "a stop text of %zu bytes: ...%s", n,
          words + (strlen(words) > 60 ? strlen(words) - 60 : 0));
}

static void test_stop(void) {
    check_stop(2, 2, "");
    check_stop(1000, 1000, "");
    check_stop(1002, 1000, "...");
    check_stop(1001, 999, "...");
    check_stop(5000, 1000, "...");
}

static void test_durations(void) {
    static const struct {
        double seconds;
        const char *text;
    } rows[] = {
        {3599.4, "59:59"   },
        {3599.5, "1:00:00" },
        {3600,   "1:00:00" },
        {3661,   "1:01:01" },
        {86400,  "24:00:00"},
        {9.4,    "0:09"    }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char b[FORMAT_NUMBER];
        CHECK(strcmp(format_duration(b, rows[i].seconds), rows[i].text) == 0, "%g s: %s", rows[i].seconds, b);
    }
}

/* ---- samples ---- */

/* What is said on stderr of a second of decoding in which so many bytes were read. */
static char *said_of_rates(double bytes) {
    const SampleRates rates = {
        .n_tokens = 101, .n_steps = 100, .step_seconds = 1, .step_bytes = bytes, .first_seconds = 0.002};
    FILE *file = tmpfile();
    char *text = calloc(1, 400);
    fflush(stderr);
    const int before = dup(2);
    dup2(fileno(file), 2);
    samples_print_rates(&ops_cpu, &rates);
    fflush(stderr);
    dup2(before, 2);
    close(before);
    rewind(file);
    text[fread(text, 1, 399, file)] = 0;
    fclose(file);
    return text;
}

/* Faster than the memory is a cache. */
static void test_rates(void) {
    const char *const begin = "sampled     101 tokens, the first after 2 ms, 100 tokens/s, ";
    char *of_memory = said_of_rates(1), *of_cache = said_of_rates(1e18);
    const char *memory = "0 % of the memory bandwidth\n", *cache = "the weights lie in a cache\n";
    CHECK(strncmp(of_memory, begin, strlen(begin)) == 0 && strcmp(of_memory + strlen(begin), memory) == 0,
          "%s", of_memory);
    CHECK(strncmp(of_cache, begin, strlen(begin)) == 0 && strcmp(of_cache + strlen(begin), cache) == 0, "%s",
          of_cache);
    free(of_memory);
    free(of_cache);
}

int main(void) {
    test_values();
    test_meant();
    test_quoted();
    test_what_affects_a_run();
    test_settings();
    test_settings_of_profile();
    test_stop();
    test_durations();
    test_rates();
    return check_finish("said");
}
