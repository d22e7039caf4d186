/* What flags and files make of a run before its first step, seen in what the program prints and refuses: sizes, memory, data. */
#include "llmc/base/files.h"
#include "llmc/run/console.h"
#include "llmc/model/sampler.h"
#include "dev/test/direct_run.h"

static const char *const text_path = "dev/reference/program.txt";

static bool says(const char *words) {
    char *text = read_text(path_of("stdout"));
    const bool found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* Exit code 2, and `words` on stderr. */
static void refuses(const char *flags, const char *words) {
    const int status = run_program("%s", flags);
    char *text = read_text(path_of("stderr"));
    CHECK(status == 2 && strstr(text, words), "%s: exit code %d, expected '%s': %s", flags, status, words,
          text);
    free(text);
}

/* ---- sizes ---- */

/* A folder's size is its own: the same number may be said again, another one is refused. */
static void test_size_of_files(void) {
    static const struct {
        const char *right, *wrong;
    } rows[] = {
        {"--layers 2",    "--layers 3"   },
        {"--heads 2",     "--heads 4"    },
        {"--channels 32", "--channels 64"},
    };
    char flags[600];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(flags, sizeof flags, "--train %s --model %s --batch 2 --memory %s", text_path,
                 path_of("model"), rows[i].right);
        CHECK(run_program("%s", flags) == 0 &&
                  says("2 layers, 2 heads, 32 channels, context 32, vocabulary 256 (padded 256)"),
              "%s", flags);
        snprintf(flags, sizeof flags, "--train %s --model %s --batch 2 %s", text_path, path_of("model"),
                 rows[i].wrong);
        refuses(flags, "the flags ask for");
    }
    snprintf(flags, sizeof flags, "--train %s --model %s --batch 2 --seq 33", text_path, path_of("model"));
    refuses(flags, "--seq 33");
}

/* ---- memory ---- */

/* --memory prints what gpt2_memory_plan says of the options that the flags make. */
static void test_memory(void) {
    static const struct {
        const char *flags;
        GPT2Options options;
    } rows[] = {
        {"--batch 8 --seq 32",                      {.B = 8, .T = 32, .training = true}},
        {"--batch 4 --seq 30",                      {.B = 4, .T = 30, .training = true}},
        {"--batch 8 --seq 32 --recompute gelu",
         {.B = 8, .T = 32, .training = true, .recompute = RECOMPUTE_GELU}              },
        {"--batch 8 --seq 32 --recompute linear",
         {.B = 8, .T = 32, .training = true, .recompute = RECOMPUTE_LINEAR}            },
        {"--batch 8 --seq 32 --recompute block",
         {.B = 8, .T = 32, .training = true, .recompute = RECOMPUTE_BLOCK}             },
        {"--batch 8 --seq 32 --attention standard",
         {.B = 8, .T = 32, .training = true, .attention = ATTENTION_STANDARD}          },
        {"--batch 8 --seq 32 --eval-only",          {.B = 8, .T = 32}                  },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        MemoryPlan plan;
        char bytes[FORMAT_NUMBER], total[80];
        const int status =
            run_program("--train %s --model %s --memory %s", text_path, path_of("model"), rows[i].flags);
        gpt2_memory_plan(&plan, &ops_cpu, &program_config, &rows[i].options);
        snprintf(total, sizeof total, "  %-28s %-11s %12s ", "total", "",
                 format_bytes(bytes, (double)plan.total_bytes));
        CHECK(status == 0 && says(total), "--memory %s: exit code %d, expected '%s'", rows[i].flags, status,
              total);
    }
}

/* A run that saves between its steps has a row for the copy that is written: 12 bytes a parameter, 4 of weights alone. */
static void test_snapshot_memory(void) {
    static const struct {
        const char *flags;
        bool model_only;
    } rows[] = {
        {"--steps 9 --save-every 3",              false},
        {"--steps 9 --save-every 3 --model-only", true },
        {"--steps 9 --keep-best",                 false},
    };
    static const char *const none[] = {"--steps 9", "--steps 9 --save-every 9"};
    char line[120], bytes[FORMAT_NUMBER];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = snapshot_bytes(&program_config, OPTIMIZER_ADAMW, rows[i].model_only, 1);
        snprintf(line, sizeof line, "  %-28s %s on the host", "snapshot of a save",
                 format_bytes(bytes, (double)n));
        const int status = run_program("--train %s --model %s --memory --out %s %s", text_path,
                                       path_of("model"), path_of("saved"), rows[i].flags);
        CHECK(status == 0 && says(line), "%s: exit code %d, expected '%s'", rows[i].flags, status, line);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        const int status = run_program("--train %s --model %s --memory --out %s %s", text_path,
                                       path_of("model"), path_of("saved"), none[i]);
        CHECK(status == 0 && !says("snapshot of a save"), "%s: a snapshot", none[i]);
    }
}

/* What samples take: a cache of keys and values, which grows with the tokens; nothing where none are drawn. */
static void test_sample_memory(void) {
    const SampleOptions options = {.n_samples = 5, .n_tokens = 20},
                        shorter = {.n_samples = 5, .n_tokens = 12};
    const size_t n = sample_bytes(&ops_cpu, &program_config, &options, 1),
                 grown = n - sample_bytes(&ops_cpu, &program_config, &shorter, 1),
                 cache = (size_t)program_config.n_layer * 5 * 8 * 2 * (size_t)program_config.n_embd * 4;
    char line[120], bytes[FORMAT_NUMBER];
    CHECK(grown + 256 > cache && grown < cache + 256, "%zu bytes more, for a cache of %zu", grown, cache);
    snprintf(line, sizeof line, "  %-28s %s more, while they are drawn", "samples",
             format_bytes(bytes, (double)n));
    const char *const flags = "--samples 5 --sample-tokens 20";
    int status = run_program("--train %s --model %s --memory %s", text_path, path_of("model"), flags);
    CHECK(status == 0 && says(line), "%s: exit code %d, expected '%s'", flags, status, line);
    status = run_program("--train %s --model %s --memory --sample-tokens 0", text_path, path_of("model"));
    CHECK(status == 0 && !says("while they are drawn"), "memory of samples that are not drawn");
}

/* "12.3 MiB" in bytes */
static double bytes_of(const char *text) {
    char *unit;
    const double x = strtod(text, &unit);
    return x * (strncmp(unit, " KiB", 4) == 0 ? 1024.0 : strncmp(unit, " MiB", 4) == 0 ? 1048576.0 : 1);
}

/* Sampling from a model of a long context needs no room for a batch of it: 600 MB, where the process may have 400. */
static void test_sampling_memory(void) {
    const GPT2Config size = {.max_seq_len = 1 << 18,
                             .vocab_size = 256,
                             .padded_vocab_size = 256,
                             .n_layer = 1,
                             .n_head = 1,
                             .n_embd = 8};
    char command[800];
    save_program_model("huge", LETTERS, &size);
    snprintf(command, sizeof command,
             "ulimit -v 400000 && OMP_NUM_THREADS=1 %s --device cpu --model %s --prompt ab "
             "--sample-tokens 3 "
             ">%s 2>%s",
             program, path_of("huge"), path_of("stdout"), path_of("stderr"));
    const int status = system(command);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "sampling with 400 MB: status %d", status);
    remove_tree(path_of("huge"));
}

/* Training where the machine has the memory and the process may not have it: 460 MB, where it may have 400. */
static void test_process_limit(void) {
    char command[800];
    snprintf(
        command, sizeof command,
        "ulimit -v 400000 && OMP_NUM_THREADS=1 %s --device cpu --train %s --layers 1 --heads 1 --channels 16 "
        "--seq 128 --batch 1600 --steps 1 --sample-tokens 0 >%s 2>%s",
        program, text_path, path_of("stdout"), path_of("stderr"));
    const int status = system(command);
    char *said = read_text(path_of("stderr"));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1 &&
              strstr(said, "hint: a limit of the process (ulimit -a), or a smaller --batch"),
          "training with 400 MB: status %d: %s", status, said);
    free(said);
}

/* After a run: what was planned, and what the process took, which is about that. */
static void test_measured(void) {
    double planned = 0, measured = 0;
    const int status =
        run_program("--train %s --model nano --batch 16 --steps 2 --sample-tokens 0", text_path);
    char *text = read_text(path_of("stdout")), *at = strstr(text, "memory: planned "),
         *second = at ? strstr(at, "measured ") : NULL;
    if (second)
        planned = bytes_of(at + strlen("memory: planned ")),
        measured = bytes_of(second + strlen("measured "));
    CHECK(status == 0 && planned > 3e7 && measured > planned / 2 && measured < 2 * planned,
          "exit code %d, planned %g bytes, measured %g", status, planned, measured);
    free(text);
}

/* ---- the window of a model's files ---- */

static void test_window(void) {
    static const struct {
        const char *flag;
        int window;
    } rows[] = {
        {"",           4},
        {"--window 0", 0},
        {"--window 9", 9},
    };
    GPT2Config size = program_config;
    size.window = 4;
    save_program_model("windowed", PLAIN, &size);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char flags[300];
        Direct d;
        const int status =
            run_program("--train %s --model %s --eval-only --batch 2 --seq 16 --eval-batches 2 %s", text_path,
                        path_of("windowed"), rows[i].flag);
        snprintf(flags, sizeof flags,
                 "--batch 2 --seq 16 --eval-batches 2 --tokens-per-step 0 --steps 1 --lr 0 --warmup 0 "
                 "--final-lr-fraction 0 --seed 0 "
                 "--dropout 0 --eval-every 0 --window %d",
                 rows[i].window);
        direct_open(&d, flags, &program_config, text_path);
        program_weights(&d.model, PLAIN);
        const double expected = direct_val(&d), got = printed_number("val loss ");
        CHECK(status == 0 && fabs(got - expected) <= 6e-5, "%s: exit code %d, val loss %g, expected %g",
              rows[i].flag, status, got, expected);
        direct_close(&d);
    }
}

/* ---- blocks ---- */

static void test_blocks(void) {
    static const struct {
        const char *flag;
        SparsePattern blocks;
    } rows[] = {
        {"",                {1, 1, 0}},
        {"--sparse 0",      {0, 0, 0}},
        {"--sparse 64,0,1", {1, 0, 1}},
    };
    GPT2Config size = program_config;
    size.max_seq_len = 300;
    size.sparse = (SparsePattern){1, 1, 0};
    save_program_model("blocks", PLAIN, &size);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Direct d;
        const int status =
            run_program("--train %s --model %s --eval-only --batch 1 --seq 250 --eval-batches 1 %s",
                        text_path, path_of("blocks"), rows[i].flag);
        size.sparse = rows[i].blocks;
        direct_open(&d,
                    "--batch 1 --seq 250 --eval-batches 1 --tokens-per-step 0 --steps 1 --lr 0 --warmup 0 "
                    "--final-lr-fraction 0 --seed 0 --dropout 0 --eval-every 0 --window 0",
                    &size, text_path);
        program_weights(&d.model, PLAIN);
        const double expected = direct_val(&d), got = printed_number("val loss ");
        CHECK(status == 0 && fabs(got - expected) <= 6e-5, "%s: exit code %d, val loss %g, expected %g",
              rows[i].flag, status, got, expected);
        CHECK(says("sparse ") == (rows[i].blocks.window > 0), "%s: what the program says", rows[i].flag);
        direct_close(&d);
    }
    CHECK(run_program("--model %s --export %s", path_of("blocks"), path_of("hf")) == 0, "no export");
    size_t n;
    Error err;
    char *file = file_read(path_of("hf/model.safetensors"), 1 << 24, &n, &err);
    CHECK(file && strstr(file + 8, "note.attention_in_sparse_blocks_is_not_applied"),
          "no tensor warns of blocks");
    free(file);
    CHECK(access(path_of("hf/README.md"), F_OK) == 0, "no page says it");
    char flags[300];
    snprintf(flags, sizeof flags, "--train %s --model %s --eval-only --window 9", text_path,
             path_of("blocks"));
    refuses(flags, "--sparse and --window: each says alone what attention sees");
    refuses("--sparse 64,0,0 --documents", "--sparse and --documents: each says alone what attention sees");
    refuses("--sparse 100,0,0", "--sparse '100,0,0': expected W,G,R");
    refuses("--sparse 64,1,0", "--sparse '64,1,0': expected W,G,R");
    refuses("--sparse 64,64", "--sparse '64,64': expected W,G,R");
    refuses("--sparse 0,64,1", "--sparse '0,64,1': expected W,G,R");
    refuses("--sparse 64,64,1,2", "--sparse '64,64,1,2': expected W,G,R");
    refuses("--sparse 64,64,-1", "--sparse '64,64,-1': expected W,G,R");
}

/* ---- documents ---- */

/* The loss of two documents in one sequence, each of 16 bytes, the first with its end. */
static double loss_of_pair(const char *model, const char *first, const char *second, const char *flags) {
    FILE *file = fopen(path_of("pair.txt"), "w");
    if (!CHECK(file, "pair.txt")) return NAN;
    fprintf(file, "%s\n%s", first, second);
    fclose(file);
    const int status = run_program("--train %s --val %s/pair.txt --model %s --eval-only --batch 1 --seq 32 "
                                   "--eval-batches 1 %s",
                                   text_path, folder, model, flags);
    CHECK(status == 0, "exit code %d", status);
    return printed_number("val loss ");
}

/* Documents that do not see each other have their losses apart: exchanging what stands beside them changes no sum. The
 * second ones begin alike, for that byte is the first ones' last target. */
static void test_documents(void) {
    static const char *const firsts[] = {"what is not here", "QxQ 0123, yet it"}, *const seconds[] = {
                                                                                      "and many other ones",
                                                                                      "as 77, ZZ! and :;"};
    GPT2Config size = program_config;
    double off[2];
    size.end_of_text = '\n';
    for (int documents = 0; documents < 2; documents++) {
        double loss[2][2];
        size.documents = documents;
        save_program_model("packed", PLAIN, &size);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++)
                loss[i][j] = loss_of_pair(path_of("packed"), firsts[i], seconds[j], "");
        off[documents] = fabs(loss[0][0] + loss[1][1] - loss[0][1] - loss[1][0]);
        CHECK(says("sees its own document only") == documents, "what the program says of documents");
    }
    CHECK(off[0] > 1e-3, "without documents: sums differ by %g: the test sees nothing", off[0]);
    CHECK(off[1] <= 2e-4, "documents see each other: sums differ by %g", off[1]);
    char flags[300];
    snprintf(flags, sizeof flags, "--train %s --model %s --eval-only --batch 1 --documents", text_path,
             path_of("model"));
    refuses(flags, "--documents: the tokenizer has no end-of-text token");
}

/* ---- data ---- */

static void write_shard(const char *name, int n, int token) {
    const int32_t header[256] = {20240520, 1, n};
    FILE *file = fopen(path_of(name), "wb");
    bool ok = file && fwrite(header, sizeof header, 1, file) == 1;
    for (int i = 0; ok && i < n; i++) {
        const uint16_t value = (uint16_t)(i == n / 2 ? token : i % 200);
        ok = fwrite(&value, 2, 1, file) == 1;
    }
    REQUIRE(ok && fclose(file) == 0, "cannot write %s", name);
}

/* Shards without a tokenizer are GPT-2's; a token that its vocabulary lacks is refused, though wte has a row for it. */
static void test_shards(void) {
    static const char *const small =
        "--model nano --layers 1 --heads 1 --channels 8 --batch 1 --seq 8 --steps 12 --sample-tokens 0";
    static ProgramLog log;
    char flags[700];
    write_shard("good.bin", 100, 50256);
    write_shard("bad.bin", 100, 50257);
    snprintf(flags, sizeof flags, "--train %s %s --memory", path_of("good.bin"), small);
    CHECK(run_program("%s", flags) == 0 && says("vocabulary 50257 (padded 50304)"), "%s", flags);
    snprintf(flags, sizeof flags, "--train %s %s", path_of("bad.bin"), small);
    refuses(flags, "50257");
    snprintf(flags, sizeof flags, "--train %s %s --out %s", path_of("good.bin"), small, path_of("shards"));
    const int status = run_program("%s", flags);
    read_log(&log, path_of("shards"));
    CHECK(status == 0 && says("done: step 12") && log.last == 12 && isnan(log.steps[12].val_loss),
          "shards without --val: exit code %d, %d steps", status, log.last);
    remove_tree(path_of("shards"));
    snprintf(flags, sizeof flags, "--train '%s/good*.bin' --val %s %s", folder, path_of("good.bin"), small);
    CHECK(run_program("%s", flags) == 0 && says("good.bin is in --val and in --train"), "%s", flags);
}

/* A folder that holds one checkpoint is another run's, unless --resume says that it goes on. */
static void test_used_folder(void) {
    char flags[500];
    snprintf(flags, sizeof flags, "--train %s --model nano --steps 1 --out %s", text_path, path_of("model"));
    refuses(flags, "holds checkpoints of another run (step_00000005)");
}

/* ---- what the log and a checkpoint say of the run ---- */

static bool contains(const JsonValue *text, const char *part) {
    return text && text->type == JSON_STRING && strstr(text->text, part);
}

static void check_flags(const JsonValue *flags, const char *where) {
    double lr = 0;
    int64_t batch = 0, steps = 0;
    json_double(json_get(flags, "lr"), &lr);
    json_int64(json_get(flags, "batch"), &batch);
    json_int64(json_get(flags, "steps"), &steps);
    CHECK(lr == 0.004 && batch == 2 && steps == 2 && json_equals(json_get(flags, "schedule"), "linear"),
          "flags in %s: lr %g, batch %lld, steps %lld", where, lr, (long long)batch, (long long)steps);
}

/* The first line of the log, and trainer_state.json. */
static void test_header(void) {
    Tensor table[N_TENSORS];
    Error err = {0};
    int64_t parameters = 0, first_step = -1, ranks = 0;
    const int status = run_program(
        "--train %s --model %s --out %s --batch 2 --seq 16 --steps 2 --lr 0.004 --schedule linear "
        "--sample-tokens 0",
        text_path, path_of("model"), path_of("header"));
    char *text = read_text(path_of("header/log.jsonl"));
    Json *log = json_parse(text, strcspn(text, "\n"), "the header", &err),
         *state = json_read(path_of("header/step_00000002/trainer_state.json"), &err);
    if (CHECK(status == 0 && log && state, "exit code %d: %s", status, err.text)) {
        const JsonValue *run = json_get(json_root(log), "run"), *argv = json_get(run, "argv");
        check_flags(json_get(run, "flags"), "the log");
        check_flags(json_get(json_root(state), "flags"), "trainer_state.json");
        CHECK(json_int64(json_get(run, "parameters"), &parameters) &&
                  parameters == gpt2_tensors(table, &program_config, 1),
              "%lld parameters", (long long)parameters);
        CHECK(json_int64(json_get(run, "first_step"), &first_step) && first_step == 0, "first step %lld",
              (long long)first_step);
        CHECK(json_int64(json_get(run, "ranks"), &ranks) && ranks == 1, "%lld ranks", (long long)ranks);
        CHECK(argv && argv->n == 21 && json_equals(argv->first, program) &&
                  json_equals(argv->first->next, "--device"),
              "argv");
        CHECK(contains(json_get(run, "model"), "/model"), "the model's name");
        CHECK(contains(json_get(run, "train"), "2,700 tokens"), "the training data");
        CHECK(contains(json_get(run, "val"), "300 tokens"), "the validation data");
        int64_t train = 0, val = 0, resumed = 0;
        CHECK(json_int64(json_get(run, "train_fingerprint"), &train) &&
                  json_int64(json_get(json_root(state), "data_fingerprint"), &resumed) && train &&
                  train == resumed,
              "fingerprint %lld, %lld in trainer_state.json", (long long)train, (long long)resumed);
        CHECK(json_int64(json_get(run, "val_fingerprint"), &val) && val && val != train,
              "the validation data's fingerprint: %lld", (long long)val);
        CHECK(contains(json_get(run, "device"), "") && contains(json_get(run, "version"), ""),
              "device and version");
    }
    json_free(log);
    json_free(state);
    free(text);
    remove_tree(path_of("header"));
}

int main(void) {
    if (!program_is_here()) return check_finish("program_setup");
    if (!REQUIRE(mkdtemp(folder), "%s cannot be made", folder)) return check_finish("program_setup");
    save_program_model("model", PLAIN, &program_config);
    test_size_of_files();
    test_memory();
    test_snapshot_memory();
    test_sample_memory();
    test_sampling_memory();
    test_process_limit();
    test_measured();
    test_window();
    test_blocks();
    test_documents();
    test_shards();
    test_header();
    test_used_folder();
    remove_tree(folder);
    return check_finish("program_setup");
}
