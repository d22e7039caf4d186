/* Runs of the program that record_program.py has no row for, held to the same run over the model's calls (direct_run.h), to
 * the bit: new models, recipes' defaults, shards, separate validation, a resumed run with another batch, what is
 * saved, samples, --eval-only. */
#include "llmc/model/sampler.h"
#include "dev/test/direct_run.h"
#include "dev/test/logits.h"

static const char *const text_path = "dev/reference/program.txt";

/* The plain run. */
#define PLAIN_FLAGS                                                                                          \
    "--batch 2 --seq 16 --tokens-per-step 32 --steps 6 --lr 0.005 --warmup 0 --final-lr-fraction 0.1 "       \
    "--schedule constant --optimizer adamw --weight-decay 0.1 --beta1 0.9 --beta2 0.95 --eps 1e-08 "         \
    "--dropout 0 --clip 1 "                                                                                  \
    "--seed 7 --window 0 --eval-every 2 --eval-batches 2"

/* Runs the program in FOLDER/name with `flags` and `more`, and holds log and checkpoints to the direct run of `expected`, which
 * begins from `kind`, or from --seed where there is no --model. */
static void holds(const char *name, const char *flags, const char *expected, const GPT2Config *size,
                  bool is_new) {
    static ProgramLog log;
    char out[300];
    Direct d;
    snprintf(out, sizeof out, "%s/%s", folder, name);
    const int status = run_program("%s --out %s --save-every 3", flags, out);
    CHECK(status == 0, "%s: exit code %d", name, status);
    read_log(&log, out);
    direct_open(&d, expected, size, text_path);
    if (is_new)
        gpt2_init(&d.model, (uint64_t)d.seed);
    else
        program_weights(&d.model, PLAIN);
    check_direct(name, &d, &log, out);
    const int first = d.eval_every < d.steps ? d.eval_every : d.steps; /* step that validates */
    CHECK(fabs(printed_number("val loss ") - log.steps[first].val_loss) <= 6e-5,
          "%s: printed validation %g, logged %g", name, printed_number("val loss "),
          log.steps[first].val_loss);
    direct_close(&d);
    remove_tree(out);
}

/* ---- new models ---- */

static void test_new(void) {
    const GPT2Config size = {.max_seq_len = 16,
                             .vocab_size = 256,
                             .padded_vocab_size = 256,
                             .n_layer = 3,
                             .n_head = 2,
                             .n_embd = 48};
    char flags[900];
    snprintf(flags, sizeof flags,
             "--train %s --model nano --layers 3 --heads 2 --channels 48 --sample-tokens 0 " PLAIN_FLAGS,
             text_path);
    holds("new", flags, PLAIN_FLAGS, &size, true);
}

/* What the README says of a run without flags, on a text of 3,000 bytes: one validation batch reads all of its tenth. */
static void test_defaults(void) {
    const GPT2Config size = {.max_seq_len = 64,
                             .vocab_size = 256,
                             .padded_vocab_size = 256,
                             .n_layer = 4,
                             .n_head = 4,
                             .n_embd = 128};
    char flags[300];
    snprintf(flags, sizeof flags, "--train %s --steps 12", text_path);
    holds(
        "defaults", flags,
        "--batch 24 --seq 64 --tokens-per-step 1536 --steps 12 --lr 0.012 --warmup 1 --final-lr-fraction 0.1 "
        "--optimizer muon --momentum 0.95 --muon-polynomial polar-express "
        "--schedule cosine --weight-decay 0.1 --beta1 0.9 --beta2 0.95 --eps 1e-08 --dropout 0 --clip 1 "
        "--seed 1337 --window 0 --eval-every 135 --eval-batches 1",
        &size, true);
}

/* ---- the same tokens from other files ---- */

static void write_part(const char *name, const char *text, int64_t begin, int64_t end, bool shard) {
    const int32_t header[256] = {20240520, 1, (int32_t)(end - begin)};
    FILE *file = fopen(path_of(name), "wb");
    bool ok = file && (!shard || fwrite(header, sizeof header, 1, file) == 1);
    for (int64_t i = begin; ok && i < end; i++) {
        const uint16_t token = (unsigned char)text[i];
        ok = fwrite(&token, shard ? 2 : 1, 1, file) == 1;
    }
    REQUIRE(ok && fclose(file) == 0, "cannot write %s", name);
}

static void test_files(void) {
    char *text = read_text(text_path), flags[1200];
    const int64_t n = (int64_t)strlen(text), border = 9 * n / 10;
    for (int shard = 0; shard < 2; shard++) {
        const char *end = shard ? "bin" : "txt";
        char names[3][32];
        for (int i = 0; i < 3; i++)
            snprintf(names[i], sizeof names[i], "%s.%s", i == 2 ? "val" : i ? "part_b" : "part_a", end);
        write_part(names[0], text, 0, 1000, shard);
        write_part(names[1], text, 1000, border, shard);
        write_part(names[2], text, border, n, shard);
        snprintf(flags, sizeof flags,
                 "--train '%s/part_*.%s' --val %s/val.%s --model %s --sample-tokens 0 " PLAIN_FLAGS, folder,
                 end, folder, end, path_of("model"));
        holds(end, flags, PLAIN_FLAGS, &program_config, false);
    }
    free(text);
}

/* ---- what is saved, and gone on with ---- */

/* The numbers of the checkpoints in OUT, such as " 3 6". */
static const char *saved_steps(const char *out, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int step = 1; step < 20; step++) {
        char path[400];
        snprintf(path, sizeof path, "%s/step_%08d", out, step);
        if (access(path, F_OK) == 0) used += (size_t)snprintf(text + used, size - used, " %d", step);
    }
    return text;
}

static void test_saves(void) {
    static const struct {
        const char *flags, *saved;
    } rows[] = {
        {"--save-every 4",          " 4 6"  },
        {"--save-every 0",          " 6"    },
        {"--save-every 2",          " 2 4 6"},
        {"--save-every 1 --keep 2", " 5 6"  },
        {"--model-only",            " 6"    },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[300], text[80], path[400];
        snprintf(out, sizeof out, "%s/saves", folder);
        const int status = run_program("--train %s --model %s --out %s --sample-tokens 0 " PLAIN_FLAGS " %s",
                                       text_path, path_of("model"), out, rows[i].flags);
        CHECK(status == 0 && strcmp(saved_steps(out, text, sizeof text), rows[i].saved) == 0,
              "%s: exit code %d, saved%s, expected%s", rows[i].flags, status, text, rows[i].saved);
        snprintf(path, sizeof path, "%s/step_00000006/optimizer.safetensors", out);
        CHECK((access(path, F_OK) == 0) == !strstr(rows[i].flags, "model-only"), "%s: the optimizer's file",
              rows[i].flags);
        remove_tree(out);
    }
}

/* What stands before " tok/s" in the last line, such as "1234". */
static const char *printed_rate(void) {
    static char rate[32];
    char *text = read_text(path_of("stdout")), *done = strstr(text, "done: "),
         *comma = done ? strrchr(done, ',') : NULL;
    snprintf(rate, sizeof rate, "%.*s", comma ? (int)strcspn(comma + 2, " ") : 0, comma ? comma + 2 : "");
    free(text);
    return rate;
}

/* A run that is moved, and goes on from step 3 with one window in a micro-batch in place of two, and with other masks. */
static void test_resumed_elsewhere(void) {
    static ProgramLog log;
    static const char *const first = "--batch 2 --steps 3", *const second = "--batch 1 --steps 6";
    const char *common =
        strstr(PLAIN_FLAGS, "--seq"); /* constant rate: the steps to come do not affect the first three */
    char flags[2][900], out[300], moved[300];
    Direct d;
    snprintf(out, sizeof out, "%s/there", folder);
    snprintf(moved, sizeof moved, "%s/here", folder);
    for (int i = 0; i < 2; i++) {
        snprintf(flags[i], sizeof flags[i], "%s %s --dropout 0.1", i ? second : first, common);
        char *steps = strstr(strstr(flags[i], "--seq"), "--steps 6"),
             *none = strstr(flags[i], "--dropout 0 ");
        memset(steps, ' ', strlen("--steps 6"));
        memset(none, ' ', strlen("--dropout 0"));
        const int status = run_program("--train %s --model %s --out %s --sample-tokens 0 %s %s", text_path,
                                       path_of("model"), i ? moved : out, i ? "--resume" : "", flags[i]);
        CHECK(status == 0 && (i || rename(out, moved) == 0), "run %d: exit code %d", i, status);
    }
    read_log(&log, moved);
    double ms = 0;
    for (int step = 4; step <= 6; step++) ms += log.steps[step].ms;
    CHECK(fabs(strtod(printed_rate(), NULL) * ms / (1e3 * 3 * 32) - 1) <= 0.01,
          "resumed: the rate of the steps since is %s, not %g", printed_rate(), 1e3 * 3 * 32 / ms);
    direct_open(&d, flags[0], &program_config, text_path);
    program_weights(&d.model, PLAIN);
    for (int step = 1; step <= 6; step++) {
        if (step == 4) d.B = 1, d.n_micro = 2;
        direct_step(&d, step);
        CHECK(log.steps[step].loss == (double)d.loss && log.steps[step].lines == 1,
              "step %d: loss %.9g, not %.9g", step, log.steps[step].loss, (double)d.loss);
    }
    d.best_val = NAN;
    for (int step = 1; step <= 6; step++)
        if (!(log.steps[step].val_loss >= d.best_val) && !isnan(log.steps[step].val_loss))
            d.best_val = log.steps[step].val_loss;
    check_checkpoint("resumed elsewhere", &d, moved, 6);
    direct_close(&d);
    remove_tree(moved);
}

/* Three steps in a row that are left out end the run: exit code 1. */
static void test_three_bad_steps(void) {
    static ProgramLog log;
    char z[1000], out[300];
    memset(z, 'Z', sizeof z);
    write_part("bad.txt", z, 0, sizeof z, false);
    snprintf(out, sizeof out, "%s/bad", folder);
    const int status = run_program("--train %s --val %s --model %s --out %s --sample-tokens 0 " PLAIN_FLAGS,
                                   path_of("bad.txt"), text_path, path_of("poisoned"), out);
    read_log(&log, out);
    CHECK(status == 1 && log.last == 3, "three bad steps: exit code %d after step %d", status, log.last);
    CHECK(isnan(log.steps[3].loss) && log.steps[1].skipped == 1 && log.steps[3].skipped == 3,
          "three bad steps: loss %g, %lld skipped", log.steps[3].loss, (long long)log.steps[3].skipped);
    remove_tree(out);
}

/* A run that ends with a step that was left out, steps 2, 3 and 5 of 5: saved, but no good checkpoint goes for it. */
static void test_ends_with_a_bad_step(void) {
    char out[300], text[80];
    snprintf(out, sizeof out, "%s/ends_bad", folder);
    const int status = run_program(
        "--train dev/reference/program_nan.txt --model %s --out %s --sample-tokens 0 --batch 2 --seq 16 "
        "--tokens-per-step 32 --steps 5 --lr 0.005 --warmup 0 --schedule constant --beta1 0.9 --beta2 0.95 "
        "--clip 0 --seed 7 --eval-every 0 --eval-batches 2 --save-every 1 --keep 2",
        path_of("poisoned"), out);
    CHECK(status == 0 && strcmp(saved_steps(out, text, sizeof text), " 1 4 5") == 0,
          "ends with a bad step: exit code %d, saved%s, expected 1 4 5", status, text);
    remove_tree(out);
}

/* ---- evaluation and samples ---- */

static void test_eval_only(void) {
    static const struct {
        const char *flags;
        int B, T, batches;
    } rows[] = {
        {"--batch 2 --seq 16 --eval-batches 3",  2,  16, 3},
        {"--batch 3 --seq 8 --window 4",         3,  8,  4}, /* the recipe's four batches */
        {"--batch 12 --seq 16",                  12, 16, 2}, /* 18 windows: two batches read them all */
        {"--batch 12 --seq 16 --eval-batches 3", 12, 16, 3}, /* as asked, some of them twice */
        {"--batch 1 --eval-batches 1",           1,  32, 1}, /* the model's context */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char flags[1000];
        Direct d;
        const int status =
            run_program("--train %s --model %s --eval-only %s", text_path, path_of("model"), rows[i].flags);
        snprintf(flags, sizeof flags,
                 "--batch %d --seq %d --eval-batches %d --tokens-per-step 0 --steps 1 --lr 0 --warmup 0 "
                 "--final-lr-fraction 0 "
                 "--seed 0 --dropout 0 --eval-every 0 --window %d",
                 rows[i].B, rows[i].T, rows[i].batches, strstr(rows[i].flags, "--window 4") ? 4 : 0);
        direct_open(&d, flags, &program_config, text_path);
        program_weights(&d.model, PLAIN);
        const double expected = direct_val(&d), got = printed_number("val loss ");
        CHECK(status == 0 && fabs(got - expected) <= 6e-5,
              "--eval-only %s: exit code %d, val loss %g, expected %g", rows[i].flags, status, got, expected);
        direct_close(&d);
    }
}

/* The text that the program printed, without the newline at its end; malloc'ed. */
static char *printed_sample(void) {
    char *text = read_text(path_of("stdout"));
    const size_t n = strlen(text);
    if (n > 0) text[n - 1] = '\0';
    return text;
}

/* Greedy text of n bytes behind `prompt`, each from a whole forward pass: no cache. */
static void greedy_text(GPT2 *model, const char *prompt, int n, char *text) {
    enum { V = 256 };
    const int T = model->config.max_seq_len;
    int32_t *tokens = calloc((size_t)T, sizeof *tokens);
    float logits[V];
    int length = (int)strlen(prompt), in_view = length;
    memcpy(text, prompt, (size_t)length);
    for (int i = 0; i < n; i++) {
        int best = 0;
        for (int t = 0; t < in_view; t++) tokens[t] = (unsigned char)text[length - in_view + t];
        gpt2_eval(model, tokens, tokens, 1, in_view);
        logits_of(model, logits, in_view - 1, 1);
        for (int v = 1; v < V; v++)
            if (logits[v] > logits[best]) best = v;
        text[length++] = (char)best;
        if (++in_view > T) in_view = T / 2;
    }
    text[length] = '\0';
    free(tokens);
}

/* A context of 150 tokens: the cache holds more than the 64 keys that the CPU decodes in one piece, then the window slides.
 * blocks: of the model's files, of 210 tokens. */
static void test_greedy(int window, bool documents, SparsePattern blocks) {
    enum { N = 220 };
    const char *const prompt = documents ? "the quick\nbrown fox" : "the quick brown fox";
    GPT2Config size = program_config;
    const GPT2Options options = {.B = 1, .T = blocks.window ? 210 : 150};
    GPT2 model;
    Error err = {0};
    char expected[N + 40];
    int seen[256] = {0}, letters = 0;
    size.max_seq_len = options.T;
    size.sparse = blocks;
    size.documents = documents;
    size.end_of_text = '\n';
    save_program_model("long", LETTERS, &size);
    size.window = window;
    if (!CHECK(gpt2_open(&model, &ops_cpu, &size, &options, &err), "%s", err.text)) return;
    program_weights(&model, LETTERS);
    greedy_text(&model, prompt, N, expected);
    const int status = run_program("--model %s --prompt '%s' --temperature 0 --sample-tokens %d --window %d",
                                   path_of("long"), prompt, N, window);
    char *got = printed_sample();
    size_t same = 0;
    while (got[same] && got[same] == expected[same]) same++;
    CHECK(status == 0 && strcmp(got, expected) == 0,
          "window %d: greedy text parts at byte %zu: %s, expected %s", window, same, got, expected);
    for (const char *c = expected; *c; c++) letters += !seen[(unsigned char)*c]++;
    CHECK(letters > 12, "the text has %d different letters: it would hide a wrong cache", letters);
    free(got);
    gpt2_close(&model);
    remove_tree(path_of("long"));
}

typedef struct Drawn {
    char text[400];
    size_t n;
} Drawn;

static void take_drawn(int sample_number, const char *bytes, size_t n, void *user) {
    Drawn *drawn = user;
    (void)sample_number;
    if (drawn->n + n < sizeof drawn->text) memcpy(drawn->text + drawn->n, bytes, n);
    drawn->n += n;
}

/* The sample of a step in the log; malloc'ed, "" where there is none. */
static char *logged_sample(const char *out, int step) {
    char path[400], *text, *result = calloc(1, 1);
    snprintf(path, sizeof path, "%s/log.jsonl", out);
    text = read_text(path);
    Error err = {0};
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        Json *json = json_parse(line, strlen(line), path, &err);
        const JsonValue *root = json ? json_root(json) : NULL, *sample_text = json_get(root, "sample");
        int64_t at;
        if (sample_text && json_int64(json_get(root, "step"), &at) && at == step) {
            free(result);
            result = strdup(sample_text->text);
        }
        json_free(json);
    }
    free(text);
    return result;
}

/* Samples of training: at every fourth step and at the end, each from a seed of its own. */
static void test_samples(void) {
    enum { N = 60 };
    Direct d;
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    char out[300];
    snprintf(out, sizeof out, "%s/samples", folder);
    save_program_model("letters", LETTERS, &program_config);
    const int status = run_program("--train %s --model %s --out %s " PLAIN_FLAGS " --sample-every 4 "
                                   "--sample-tokens %d --prompt abc --temperature 0.7 --top-k 5 "
                                   "--top-p 0.9 --min-p 0.02",
                                   text_path, path_of("letters"), out, N);
    CHECK(bytes && status == 0, "samples: exit code %d", status);
    direct_open(&d, PLAIN_FLAGS, &program_config, text_path);
    program_weights(&d.model, LETTERS);
    for (int step = 1; step <= 6; step++) {
        Drawn drawn = {0};
        const SampleOptions options = {.prompt = "abc",
                                       .n_samples = 1,
                                       .n_tokens = N,
                                       .temperature = 0.7f,
                                       .top_k = 5,
                                       .top_p = 0.9f,
                                       .min_p = 0.02f,
                                       .seed = (uint64_t)(7 + step)};
        char *got = logged_sample(out, step);
        direct_step(&d, step);
        if (step == 4 || step == 6)
            CHECK(sample(&d.model, bytes, &options, take_drawn, &drawn, NULL, &err), "%s", err.text);
        CHECK(strcmp(got, drawn.text) == 0, "step %d: sample '%s', expected '%s'", step, got, drawn.text);
        free(got);
    }
    direct_close(&d);
    tokenizer_close(bytes);
    remove_tree(out);
}

int main(void) {
    if (!program_is_here()) return check_finish("program_runs");
    if (!REQUIRE(mkdtemp(folder), "%s cannot be made", folder)) return check_finish("program_runs");
    save_program_model("model", PLAIN, &program_config);
    save_program_model("poisoned", POISONED, &program_config);
    test_new();
    test_defaults();
    test_files();
    test_saves();
    test_resumed_elsewhere();
    test_three_bad_steps();
    test_ends_with_a_bad_step();
    test_eval_only();
    test_greedy(0, false, (SparsePattern){0});
    test_greedy(70, false, (SparsePattern){0});
    test_greedy(0, true, (SparsePattern){0});
    test_greedy(0, false, (SparsePattern){1, 0, 1}); /* the last block sees one of two at random */
    test_samples();
    remove_tree(folder);
    return check_finish("program_runs");
}
