/* What the console prints: numbers, lines and how often, the bar, the memory plan, the last line. */
#include <stdlib.h>
#include <string.h>
#include "llmc/run/console.h"
#include "dev/test/check.h"

static double fake_time;

static double fake_now(void) {
    return fake_time;
}

/* A console that writes to memory; text is there after capture_end. */
typedef struct Capture {
    Console console;
    char *text;
    size_t length;
} Capture;

static void capture_begin(Capture *c, int64_t first_step, int64_t n_steps, bool terminal) {
    *c = (Capture){0};
    console_open(&c->console, open_memstream(&c->text, &c->length), first_step, n_steps);
    c->console.now = fake_now;
    c->console.terminal = terminal;
    fake_time = 100;
}

static char *capture_end(Capture *c) {
    fclose(c->console.out);
    return c->text;
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

static void test_numbers(void) {
    char b[FORMAT_NUMBER];
    static const struct {
        double value;
        const char *count, *bytes;
    } rows[] = {
        {0,       "0",        "0 B"          },
        {812,     "812",      "812 B"        },
        {999.94,  "999.9",    "999.9 B"      },
        {999.96,  "1.0 k",    "1000.0 B"     },
        {1023.96, "1.0 k",    "1.0 KiB"      },
        {62400,   "62.4 k",   "60.9 KiB"     },
        {999949,  "999.9 k",  "976.5 KiB"    },
        {999951,  "1.0 M",    "976.5 KiB"    },
        {1.5e18,  "1500.0 P", "1364242.1 TiB"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK(strcmp(format_count(b, rows[i].value), rows[i].count) == 0, "%g: %s", rows[i].value, b);
        CHECK(strcmp(format_bytes(b, rows[i].value), rows[i].bytes) == 0, "%g: %s", rows[i].value, b);
    }
    static const struct {
        int64_t n;
        const char *text;
    } integers[] = {
        {0,         "0"                        },
        {999,       "999"                      },
        {1000,      "1,000"                    },
        {-1234567,  "-1,234,567"               },
        {INT64_MAX, "9,223,372,036,854,775,807"}
    };
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        CHECK(strcmp(format_integer(b, integers[i].n), integers[i].text) == 0, "%s", b);
    static const struct {
        double seconds;
        const char *text;
    } durations[] = {
        {0,        "0:00"   },
        {25.4,     "0:25"   },
        {59.6,     "1:00"   },
        {727,      "12:07"  },
        {11045,    "3:04:05"},
        {NAN,      "-"      },
        {-1,       "-"      },
        {INFINITY, "-"      }
    };
    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++)
        CHECK(strcmp(format_duration(b, durations[i].seconds), durations[i].text) == 0, "%g: %s",
              durations[i].seconds, b);
    CHECK(strcmp(format_bytes_finely(b, 3.0 * (1 << 30) / 2 + (1 << 20) * 10), "1.51 GiB") == 0, "%s", b);
    CHECK(strcmp(format_bytes_finely(b, 512), "512 B") == 0, "%s", b);
    CHECK(strcmp(format_count(b, NAN), "nan") == 0, "a NaN count does not hang: %s", b);
}

static StepReport report(int64_t step, double ms) {
    return (StepReport){.step = step,
                        .loss = 3.14159,
                        .lr = 1e-3,
                        .norm = 0.8449,
                        .ms = ms,
                        .tokens_per_second = 62400,
                        .mfu = 0.412,
                        .memory_bytes = 1288490189};
}

static void test_step_line(void) {
    Capture c;
    capture_begin(&c, 0, 2000, false);
    for (int64_t step = 1; step <= 3; step++) {
        StepReport r = report(step, 12.34);
        if (step == 3) r.n_skipped = 2;
        if (step == 2) r.mfu = NAN, r.memory_bytes = 0;
        fake_time += 0.0125;
        console_step(&c.console, &r);
    }
    console_val(&c.console, 3, 2.5);
    char *text = capture_end(&c);
    CHECK(
        strcmp(text,
               "step    1/2000 | loss 3.1416 | lr 1.00e-03 | norm 0.84 | 12.3 ms | 62.4 k tok/s | 41.2 % MFU "
               "| 1.2 GiB\n"
               "step    2/2000 | loss 3.1416 | lr 1.00e-03 | norm 0.84 | 12.3 ms | 62.4 k tok/s | ETA 0:25\n"
               "step    3/2000 | loss 3.1416 | lr 1.00e-03 | norm 0.84 | 12.3 ms | 62.4 k tok/s | 41.2 % MFU "
               "| 1.2 GiB | ETA 0:25 | 2 skipped\n"
               "step    3/2000 | val loss 2.5000\n") == 0,
        "%s", text);
    free(text);
}

/* Lines of a run of n steps of `seconds` each. */
static int lines_of_run(int n, double seconds, int64_t first_step) {
    Capture c;
    capture_begin(&c, first_step, first_step + n, false);
    for (int i = 1; i <= n; i++) {
        StepReport r = report(first_step + i, seconds * 1e3);
        fake_time += seconds;
        console_step(&c.console, &r);
    }
    char *text = capture_end(&c);
    char last[32];
    snprintf(last, sizeof last, "step %d/%d |", (int)first_step + n, (int)first_step + n);
    CHECK(strstr(text, last), "the last step has its line: %s", last);
    int lines = count(text, "\n");
    free(text);
    return lines;
}

static void test_how_often(void) {
    CHECK(lines_of_run(20, 0.6, 0) == 20, "slow steps: every one");
    CHECK(lines_of_run(8, 0.001, 0) == 8, "a short run: every one");
    int lines = lines_of_run(4000, 0.005, 0); /* 20 s */
    CHECK(lines >= 10 + 35 && lines <= 11 + 40, "fast steps: the first 10, then about two a second: %d",
          lines);
    CHECK(lines_of_run(4000, 0.005, 5000) == lines, "a resumed run prints as often");
}

static void test_eta(void) {
    Capture c;
    capture_begin(&c, 100, 200, false);
    fake_time += 30; /* a slow first step (warming up) does not count */
    StepReport r = report(101, 30000);
    console_step(&c.console, &r);
    for (int64_t step = 102; step <= 110; step++) {
        fake_time += 1.5; /* of which 0.5 is evaluation: it is part of the time that is left */
        r = report(step, 1000);
        console_step(&c.console, &r);
    }
    char *text = capture_end(&c);
    CHECK(strstr(text, "step 110/200") && strstr(strstr(text, "step 110/200"), "ETA 2:15"), "90 x 1.5 s: %s",
          text);
    free(text);
}

/* A run of steps of a second that was stopped for a night after 10,000 of them: an hour later nothing is left of it. */
static void test_eta_after_a_night(void) {
    Capture c;
    capture_begin(&c, 0, 20000, false);
    for (int64_t step = 1; step <= 14000; step++) {
        fake_time += step == 10001 ? 30000 : 1;
        StepReport r = report(step, 1000);
        console_step(&c.console, &r);
    }
    char *text = capture_end(&c);
    const char *before = strstr(strstr(text, "step 10000/20000"), "ETA "), *after = strrchr(text, 'E');
    CHECK(strncmp(before, "ETA 2:46:40\n", 12) == 0, "10,000 x 1 s before it: %.20s", before);
    CHECK(strcmp(after, "ETA 1:40:00\n") == 0, "6,000 x 1 s after it: %s", after);
    free(text);
}

static void test_bar(void) {
    Capture c;
    capture_begin(&c, 0, 1000, true);
    for (int64_t step = 1; step <= 1000; step++) { /* 10 s */
        StepReport r = report(step, 10);
        fake_time += 0.01;
        console_step(&c.console, &r);
    }
    console_done(&c.console, 1000, 1.5, NAN, 62400.4);
    char *text = capture_end(&c);
    int bars = count(text, "[=") + count(text, "[>");
    CHECK(bars >= 80 && bars <= 101, "about 10 a second: %d", bars);
    CHECK(count(text, "\r\033[K") == bars, "each is wiped before the next line: %d of %d",
          count(text, "\r\033[K"), bars);
    const char *last = strrchr(text, '\r');
    CHECK(last && strstr(last, "step 1000/1000") && strstr(last, "done: step 1000"),
          "nothing is left of it at the end");
    CHECK(!strchr(last + 1, '\r'), "no bar after the last step");
    for (const char *bar = strchr(text, '['); bar; bar = strchr(bar + 1, '['))
        if (bar[1] == '=' || bar[1] == '>')
            CHECK((int)strcspn(bar, "\r\n") < 80, "a bar fits into the line: %d", (int)strcspn(bar, "\r\n"));
    free(text);
    capture_begin(&c, 0, 1000, false);
    for (int64_t step = 1; step <= 1000; step++) {
        StepReport r = report(step, 10);
        fake_time += 0.01;
        console_step(&c.console, &r);
    }
    text = capture_end(&c);
    CHECK(!strpbrk(text, "\r\033"), "no control codes where there is no terminal");
    free(text);
}

static void test_sample(void) {
    Capture c;
    capture_begin(&c, 0, 10, true);
    console_sample_begin(&c.console, c.console.out, 5, 1, 1);
    console_text(&c.console, "caf\xc3", 4);
    console_text(&c.console, "\xa9\n\t\033[2J\x07\r\0\x7f", 11);
    console_sample_end(&c.console, c.console.out);
    console_sample_begin(&c.console, c.console.out, 6, 2, 3);
    console_text(&c.console, "line\r", 5);
    console_text(&c.console, "\nline\r\n", 7);
    console_sample_end(&c.console, c.console.out);
    char *text = capture_end(&c);
    CHECK(strcmp(text, "--- sample, step 5 ---\ncaf\xc3\xa9\n\t?[2J????\n---\n--- sample 2 of 3, step 6 "
                       "---\nline\r\nline\r\n---\n") == 0,
          "text passes, what a terminal would obey does not: %s", text);
    free(text);
}

static void test_done(void) {
    Capture c;
    capture_begin(&c, 0, 2000, false);
    console_note(&c.console, "a %s", "word");
    console_done(&c.console, 2000, 1.23456, 1.87654, 62400.4);
    console_done(&c.console, 0, NAN, NAN, 0);
    char *text = capture_end(&c);
    CHECK(strcmp(text, "a word\ndone: step 2000, train loss 1.2346, val loss 1.8765, 62400 tok/s\n"
                       "done: step 0, train loss n/a, val loss n/a, 0 tok/s\n") == 0,
          "%s", text);
    free(text);
}

/* All rows of the plan end in one column. */
static void check_aligned(const char *text) {
    size_t columns = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        const size_t length = strcspn(line, "\n");
        if (line[length - 1] != '%') continue;
        if (!columns) columns = length;
        CHECK(length == columns, "%.*s", (int)length, line);
    }
    CHECK(columns > 0 && columns <= 64, "%zu columns", columns);
}

static void test_memory(void) {
    static const MemoryPlan plan = {
        .n_rows = 6,
        .rows = {{"master weights", "weights", 3 << 20},
                 {"qkv", "activations", 1 << 20},
                 {"weights", "weights", 2 << 20},
                 {"lse", "activations", 2 << 20},
                 {"exchange with other ranks", "scratch", 1},
                 {"master weights (fp32) (1/16)", "weights", 1}},
        .total_bytes = 8 << 20,
    };
    char *text = NULL;
    size_t length;
    for (int by_tensor = 0; by_tensor < 2; by_tensor++) {
        FILE *out = open_memstream(&text, &length);
        console_memory(out, &plan, by_tensor, (size_t)6 << 30, (size_t)8 << 30, 17);
        fclose(out);
        CHECK((strstr(text, "qkv") != NULL) == by_tensor, "tensors only on --memory: %s", text);
        CHECK(count(text, "5.0 MiB") == 1 && count(text, "62.5 %") == 1, "weights add up: %s", text);
        CHECK(count(text, "8.0 MiB") == 1 && strstr(text, "100.0 %"), "the total: %s", text);
        check_aligned(text);
        CHECK(strstr(text, "6.0 GiB of 8.0 GiB free") && strstr(text, "--batch 17"), "the device: %s", text);
        free(text);
    }
    FILE *out = open_memstream(&text, &length);
    console_memory(out, &plan, false, 0, 0, -1);
    fclose(out);
    CHECK(!strstr(text, "free") && !strstr(text, "--batch"), "what is not known is not said: %s", text);
    free(text);
}

static void test_settings(void) {
    static const struct {
        const char *flag, *says;
    } rows[] = {
        {"--lr=0.5",               "lr 5.00e-01 to 5.00e-02"                               },
        {"--batch=3",              "3 x 64 tokens = 192 tokens a step"                     },
        {"--tokens-per-step=7680", "24 x 64 tokens x 5 micro-steps = 7,680 tokens a step"  },
        {"--schedule=constant",    "constant lr 1.20e-02"                                  },
        {"--train=a.bin",          "none: --train names token shards and there is no --val"},
        {"--out=somewhere",        "somewhere"                                             },
        {"--sample-tokens=0",      "recipe      cpu-small"                                 },
        {"--overfit",              "--overfit"                                             },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char flag[64], *argv[] = {"train_gpt2", flag}, *text = NULL;
        size_t length;
        Settings s;
        Error err = {0};
        snprintf(flag, sizeof flag, "%s", rows[i].flag);
        CHECK(flags_parse(&s, 2, argv, &err), "%s", err.text);
        settings_complete(&s, false, 1);
        FILE *out = open_memstream(&text, &length);
        console_settings(out, &s, 1, s.steps * s.tokens_per_step);
        fclose(out);
        CHECK(strstr(text, rows[i].says), "%s: %s", flag, text);
        CHECK((strstr(text, "samples ") != NULL) == (s.sample_tokens > 0), "%s: %s", flag, text);
        free(text);
    }
}

int main(void) {
    test_numbers();
    test_step_line();
    test_how_often();
    test_eta();
    test_eta_after_a_night();
    test_bar();
    test_sample();
    test_done();
    test_memory();
    test_settings();
    return check_finish("console");
}
