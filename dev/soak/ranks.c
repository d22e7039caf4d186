/* Random models and options, trained by one rank, by several, and by several after others had done the first half. Promised:
 * with --reproducible weights and states bit for bit those of one rank; without it, and with a shared context, its
 * losses and norms but for rounding. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "soak.h"

enum { STEPS = 4, HALF = 2, MAX_WORDS = 64, WORD = 32, MAX_RANKS = 6, MAX_MICRO_BATCHES = 24 };
enum { COUNT_BITS, COUNT_NEAR, COUNT_CONTEXT, COUNT_MUON };
static const double near = 5e-4; /* rounding, through four steps */

typedef struct Case {
    char words[MAX_WORDS][WORD];
    int n;
    int ranks[2], context[2]; /* [0] those of the first half */
    bool bits, muon;
} Case;

static void add(Case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(Case *c, const char *format, ...) {
    va_list args;
    if (c->n == MAX_WORDS) finding("a case of too many flags");
    va_start(args, format);
    vsnprintf(c->words[c->n++], WORD, format, args);
    va_end(args);
}

static void add_flag(Case *c, const char *flag, int value) {
    add(c, "--%s", flag);
    add(c, "%d", value);
}

static int pick(const int *values, int n) {
    return values[draw_below(n)];
}

/* How many of n ranks may share a sequence. */
static int draw_context(int n, int heads, int T) {
    int K = n;
    while (n % K || heads % K || T % K || (K > 1 && draw_below(3) == 0)) K--;
    return K;
}

static int common_multiple(int a, int b) {
    int n = a;
    while (n % b) n += a;
    return n;
}

static void add_model(Case *c, int heads, int T) {
    static const int sizes[] = {8, 8, 16, 24};
    add_flag(c, "layers", 1 + (int)draw_below(4));
    add_flag(c, "heads", heads);
    add_flag(c, "channels", heads * pick(sizes, 4));
    add_flag(c, "seq", T);
}

static void add_options(Case *c, int T, bool may_drop) {
    static const char *const recompute[] = {"none", "gelu", "linear", "block"};
    add(c, "--recompute");
    add(c, "%s", recompute[draw_below(4)]);
    if (draw_below(3) == 0) add_flag(c, "window", 1 + (int)draw_below(T));
    if (may_drop && draw_below(3) == 0) add(c, "--dropout"), add(c, "0.1");
    if (draw_below(5) == 0) add_flag(c, "verify-every", 1);
    if (draw_below(5) == 0) add(c, "--clip"), add(c, "0.01");
    c->muon = draw_below(3) == 0;
    if (c->muon) add(c, "--optimizer"), add(c, "muon");
}

static Case draw_case(void) {
    static const int heads[] = {1, 2, 3, 4, 6}, lengths[] = {6, 12, 16, 20, 30, 36, 64};
    const int NH = pick(heads, 5), T = pick(lengths, 7), B = 1 + (int)draw_below(3);
    Case c = {
        .bits = draw_below(2), .ranks = {1, 1},
             .context = {1, 1}
    };
    int n = 1, micro;
    for (int i = 0; i < 2; i++) {
        do c.ranks[i] = 1 + i + (int)draw_below(MAX_RANKS - i);
        while (common_multiple(n, c.ranks[i]) > MAX_MICRO_BATCHES);
        n = common_multiple(n, c.ranks[i]);
        if (!c.bits) c.context[i] = draw_context(c.ranks[i], NH, T);
    }
    micro = 2 * n <= MAX_MICRO_BATCHES && draw_below(2) ? 2 * n : n;
    add_model(&c, NH, T);
    add_flag(&c, "batch", B);
    add_flag(&c, "tokens-per-step", micro * B * T);
    add_flag(&c, "seed", (int)draw_below(100));
    add_options(&c, T, c.context[0] == 1 && c.context[1] == 1);
    if (c.bits) add_flag(&c, "reproducible", micro > n && draw_below(2) ? micro : n);
    return c;
}

/* ---- runs ---- */

static void folder_of(int worker, const char *run, char *folder) {
    snprintf(folder, PATH_BYTES, "%s/ranks_%d/%s", soak_folder, worker, run);
}

static void begin(int worker) {
    char text[6000], path[PATH_BYTES];
    must_run("rm -rf %s/ranks_%d; mkdir %s/ranks_%d", soak_folder, worker, soak_folder, worker);
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + draw_below(20));
    folder_of(worker, "text", path);
    write_whole(path, text, sizeof text);
}

static void describe(const Case *c, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < c->n && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, " %s", c->words[i]);
}

/* To step `steps`, in the folder of that name; goes on where that has a checkpoint. */
static void train(int worker, Case c, const char *run, int ranks, int context, int steps) {
    static const char *const same[] = {
        "--device", "cpu",  "--schedule", "constant", "--warmup",        "0", "--eval-batches",
        "2",        "--lr", "1e-3",       "--resume", "--sample-tokens", "0"};
    char folder[PATH_BYTES], text[PATH_BYTES], *argv[MAX_WORDS + 24];
    char said[MAX_WORDS * WORD];
    int n = 0, status;
    if (ranks > 1) add_flag(&c, "gpus", ranks);
    if (context > 1) add_flag(&c, "context-gpus", context);
    add_flag(&c, "steps", steps);
    folder_of(worker, run, folder);
    folder_of(worker, "text", text);
    argv[n++] = (char *)soak_program;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) argv[n++] = (char *)same[i];
    for (int i = 0; i < c.n; i++) argv[n++] = c.words[i];
    argv[n++] = "--train", argv[n++] = text, argv[n++] = "--out", argv[n++] = folder, argv[n] = NULL;
    must_run("mkdir -p %s", folder);
    const pid_t child = start_program(soak_program, argv, folder);
    describe(&c, said, sizeof said);
    if (waitpid(child, &status, 0) != child || status != 0)
        finding("%s: status %#x, see %s/err:%s", run, (unsigned)status, folder, said);
}

/* ---- what came of them ---- */

static void compare_bits(int worker, const Case *c, const char *run) {
    char folder[PATH_BYTES], one[PATH_BYTES], flags[MAX_WORDS * WORD], said[MAX_WORDS * WORD + 64];
    describe(c, flags, sizeof flags);
    snprintf(said, sizeof said, ", of one rank; %d ranks, then %d:%s", c->ranks[0], c->ranks[1], flags);
    folder_of(worker, run, folder);
    folder_of(worker, "one", one);
    check_same_state(folder, one, STEPS, said);
}

/* The next number of that name in a log; NULL where there is none. */
static char *next_number(char *at, const char *name, double *value) {
    char key[32];
    snprintf(key, sizeof key, "\"%s\":", name);
    if (!at || !(at = strstr(at, key))) return NULL;
    *value = strtod(at + strlen(key), &at);
    return at;
}

static void compare_log(int worker, const Case *c, const char *run) {
    static const char *const names[] = {"loss", "norm"};
    char folder[PATH_BYTES], path[PATH_BYTES + 16], *log[2], said[MAX_WORDS * WORD];
    size_t bytes;
    describe(c, said, sizeof said);
    for (int i = 0; i < 2; i++) {
        folder_of(worker, i ? run : "one", folder);
        snprintf(path, sizeof path, "%s/log.jsonl", folder);
        log[i] = read_whole(path, &bytes);
    }
    for (int k = 0; k < 2; k++) {
        char *one = log[0], *other = log[1];
        for (int step = 1; step <= STEPS; step++) {
            double a = NAN, b = NAN;
            one = next_number(one, names[k], &a);
            other = next_number(other, names[k], &b);
            if (!(fabs(b - a) <= near * fabs(a)))
                finding("%s: %s %d is %.9g, of one rank %.9g; %d ranks (%d a sequence), then %d (%d):%s",
                        path, names[k], step, b, a, c->ranks[0], c->context[0], c->ranks[1], c->context[1],
                        said);
        }
    }
    free(log[0]), free(log[1]);
}

static void run_case(int worker, int64_t number, int64_t *counts) {
    const Case c = draw_case();
    (void)number;
    must_run("cd %s/ranks_%d && rm -rf one many moved", soak_folder, worker);
    train(worker, c, "one", 1, 1, STEPS);
    train(worker, c, "many", c.ranks[1], c.context[1], STEPS);
    train(worker, c, "moved", c.ranks[0], c.context[0], HALF);
    train(worker, c, "moved", c.ranks[1], c.context[1], STEPS);
    for (int i = 0; i < 2; i++) {
        if (c.bits) compare_bits(worker, &c, i ? "moved" : "many");
        compare_log(worker, &c, i ? "moved" : "many");
    }
    counts[c.bits ? COUNT_BITS : COUNT_NEAR]++;
    counts[COUNT_CONTEXT] += c.context[0] > 1 || c.context[1] > 1;
    counts[COUNT_MUON] += c.muon;
}

const Campaign ranks_campaign = {
    "ranks",
    "RANKS",
    300,
    NULL,
    begin,
    run_case,
    {"models bit for bit on any ranks", "but for rounding", "with a shared context", "by Muon"}
};
