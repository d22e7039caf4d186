/* Checkpoints on a healthy disk: bitwise round trips, names and orientation in the files, config.json. */
#include <dirent.h>
#include <pthread.h>
#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/base/parallel.h"
#include "dev/test/tiny_model.h"

static GPT2 model;

/* ---- our own ---- */
static void test_round_trip(void) {
    const TrainerState state = {.step = 200,
                                .data_position = 123456789012345,
                                .data_tokens = 12345678901,
                                .data_fingerprint = 0xfedcba98,
                                .tokens_seen = (int64_t)1 << 60,
                                .n_skipped = 3,
                                .seed = INT64_MAX - 1,
                                .best_val_loss = 3.2812345678901234,
                                .val_loss = 3.4812345678901236,
                                .best_only = true,
                                .flags = "{\"lr\": 0.0006, \"model\": \"d\\\"12\"}"};
    char path[256];
    int64_t step = -1;
    Error err = {0};
    CHECK(tiny_save(&model, path_of("run"), 1, &state, 0, false, &err), "%s", err.text);
    CHECK(checkpoint_find(path_of("run"), path, sizeof path, &step, &err), "%s", err.text);
    CHECK(strcmp(path, path_of("run/step_00000200")) == 0, "found %s", path);
    CHECK(step == 200, "found step %d", (int)step);

    TrainerState found = {0};
    tiny_poison(&model);
    memset(model.stats, 0, sizeof *model.stats);
    if (!CHECK(checkpoint_resume(path, &model, &found, &err), "%s", err.text)) return;
    CHECK(tiny_equals(&model, 1, true), "weights or moments differ");
    CHECK(found.step == state.step && found.data_position == state.data_position &&
              found.data_tokens == state.data_tokens && found.data_fingerprint == state.data_fingerprint &&
              found.tokens_seen == state.tokens_seen && found.n_skipped == state.n_skipped &&
              found.seed == state.seed,
          "a count differs");
    CHECK(found.best_val_loss == state.best_val_loss, "found %.17g", found.best_val_loss);
    CHECK(found.val_loss == state.val_loss && found.best_only, "found %.17g", found.val_loss);
    CHECK(found.flags && strcmp(found.flags, state.flags) == 0, "found flags %s", found.flags);
    CHECK(gpt2_step_stats(&model).n_skipped == 3, "the device counts other skipped updates");
    free((char *)found.flags);
}

/* Without an evaluation and without flags. */
static void test_empty_state(void) {
    const TrainerState state = {.step = 0, .best_val_loss = NAN, .val_loss = NAN};
    TrainerState found;
    Error err = {0};
    CHECK(tiny_save(&model, path_of("empty"), 1, &state, 0, false, &err), "%s", err.text);
    CHECK(checkpoint_resume(path_of("empty/step_00000000"), &model, &found, &err), "%s", err.text);
    CHECK(isnan(found.best_val_loss) && isnan(found.val_loss) && !found.best_only && !found.flags &&
              found.seed == 0,
          "the empty state came back");
    CHECK(!checkpoint_save(path_of("bad"), &model, NULL, &(TrainerState){.flags = "{"}, &(SaveOptions){0},
                           &err) &&
              strstr(err.text, "no JSON object"),
          "%s", err.text);
}

static void test_find_nothing(void) {
    char path[256];
    int64_t step = -1;
    Error err = {.exit_code = EXIT_RUN};
    CHECK(!checkpoint_find(path_of("nowhere"), path, sizeof path, &step, &err) && err.exit_code == 0,
          "no folder: %s", err.text);
    CHECK(!checkpoint_find(folder, path, sizeof path, &step, &err) && err.exit_code == 0, "no checkpoint: %s",
          err.text);
}

/* Element (i, j) of a matrix stored in the file. */
static float stored(const Safetensors *file, const char *name, int64_t i, int64_t j) {
    const SafetensorsEntry *entry = safetensors_find(file, name);
    Error err = {0};
    float value = NAN;
    if (!CHECK(entry, "%s is missing", name)) return NAN;
    CHECK(safetensors_read(file, entry, &value, i * (entry->rank == 2 ? entry->shape[1] : 0) + j, 1, &err),
          "%s", err.text);
    return value;
}

/* Positions computed by hand for C = 32, V = 250, 16 positions, 2 layers. Flat offsets: wte 0, wpe 256*32 =
 * 8192, ln_1.weight 8704, ln_1.bias 8768, c_attn.weight 8832 (2 x 96 x 32), c_attn.bias 14976 (2 x 96),
 * attn.c_proj.weight 15168 (2 x 32 x 32), attn.c_proj.bias 17216, ln_2 17280 and 17344, c_fc.weight 17408 (2
 * x 128 x 32), c_fc.bias 25600 (2 x 128), mlp.c_proj.weight 25856 (2 x 32 x 128), mlp.c_proj.bias 34048, ln_f
 * 34112 and 34144. */
static void test_orientation(void) {
    const struct {
        const char *name;
        int64_t rows, cols, i, j, flat;
    } cases[] = {
        {"wte.weight",             250, 32,  249, 31,  249 * 32 + 31                   },
        {"wpe.weight",             16,  32,  15,  1,   8192 + 15 * 32 + 1              },
        {"h.1.ln_1.weight",        32,  0,   0,   5,   8704 + 32 + 5                   },
        {"h.0.ln_1.bias",          32,  0,   0,   31,  8768 + 31                       },
        {"h.1.attn.c_attn.weight", 32,  96,  3,   90,  8832 + 96 * 32 + 90 * 32 + 3    },
        {"h.1.attn.c_attn.bias",   96,  0,   0,   95,  14976 + 96 + 95                 },
        {"h.0.attn.c_proj.weight", 32,  32,  1,   30,  15168 + 30 * 32 + 1             },
        {"h.1.attn.c_proj.bias",   32,  0,   0,   0,   17216 + 32                      },
        {"h.0.ln_2.weight",        32,  0,   0,   1,   17280 + 1                       },
        {"h.1.ln_2.bias",          32,  0,   0,   2,   17344 + 32 + 2                  },
        {"h.1.mlp.c_fc.weight",    32,  128, 31,  126, 17408 + 128 * 32 + 126 * 32 + 31},
        {"h.1.mlp.c_fc.bias",      128, 0,   0,   127, 25600 + 128 + 127               },
        {"h.0.mlp.c_proj.weight",  128, 32,  100, 7,   25856 + 7 * 128 + 100           },
        {"h.1.mlp.c_proj.bias",    32,  0,   0,   31,  34048 + 32 + 31                 },
        {"ln_f.weight",            32,  0,   0,   0,   34112                           },
        {"ln_f.bias",              32,  0,   0,   31,  34144 + 31                      },
    };
    Safetensors weights, moments;
    Error err = {0};
    char name[100];
    bool opened = safetensors_open(&weights, path_of("run/step_00000200/model.safetensors"), &err) &&
                  safetensors_open(&moments, path_of("run/step_00000200/optimizer.safetensors"), &err);
    if (!CHECK(opened, "%s", err.text)) return;
    CHECK(weights.n == 4 + 12 * 2 && moments.n == 2 * weights.n, "%d and %d tensors", weights.n, moments.n);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        snprintf(name, sizeof name, "transformer.%s", cases[c].name);
        const SafetensorsEntry *entry = safetensors_find(&weights, name);
        if (!CHECK(entry, "%s is missing", name)) continue;
        CHECK(entry->shape[0] == cases[c].rows && (entry->rank == 2 ? entry->shape[1] : 0) == cases[c].cols,
              "%s: shape", name);
        CHECK(stored(&weights, name, cases[c].i, cases[c].j) == tiny_value(3, cases[c].flat), "%s: value",
              name);
        snprintf(name, sizeof name, "m.%s", cases[c].name);
        CHECK(stored(&moments, name, cases[c].i, cases[c].j) == tiny_value(4, cases[c].flat), "%s: value",
              name);
        name[0] = 'v';
        CHECK(stored(&moments, name, cases[c].i, cases[c].j) == tiny_value(5, cases[c].flat), "%s: value",
              name);
    }
    safetensors_close(&weights);
    safetensors_close(&moments);
}

/* Matrices large enough for several threads come back as they were. */
static void test_larger_model(void) {
    const GPT2Config config = {.max_seq_len = 8,
                               .vocab_size = 300,
                               .padded_vocab_size = 384,
                               .n_layer = 1,
                               .n_head = 3,
                               .n_embd = 264};
    const GPT2 small = model;
    const TrainerState state = {.step = 1};
    TrainerState found;
    Error err = {0};
    tiny_open(&model, &config);
    CHECK(tiny_save(&model, path_of("larger"), 7, &state, 0, false, &err), "%s", err.text);
    tiny_poison(&model);
    CHECK(checkpoint_resume(path_of("larger/step_00000001"), &model, &found, &err), "%s", err.text);
    CHECK(tiny_equals(&model, 7, true), "weights or moments differ");
    gpt2_close(&model);
    model = small;
    load_refuses(&model, path_of("larger/step_00000001"),
                 "expected max_seq_len 16 as in the open model, found 8");
}

/* Without a tokenizer GPT-2's number of tokens means its end of text. The tensor that is damaged is
 * named, behind one that is written in two pieces; and a file that has grown. */
static void test_gpt2_vocabulary(void) {
    const GPT2Config config = {.max_seq_len = 8,
                               .vocab_size = 50257,
                               .padded_vocab_size = 50304,
                               .n_layer = 1,
                               .n_head = 1,
                               .n_embd = 24};
    GPT2 large;
    Error err = {0};
    int64_t id = 0;
    tiny_open(&large, &config);
    tiny_fill(&large, 3);
    CHECK(checkpoint_save(path_of("gpt2"), &large, NULL, &(TrainerState){.step = 1}, &(SaveOptions){0}, &err),
          "%s", err.text);
    Json *json = json_read(path_of("gpt2/step_00000001/config.json"), &err);
    CHECK(json && json_int64(json_get(json_root(json), "eos_token_id"), &id) && id == 50256,
          "end of text: %lld", (long long)id);
    json_free(json);
    load_accepts(&large, path_of("gpt2"), 3);
    FILE *file = fopen(path_of("gpt2/step_00000001/model.safetensors"), "r+b");
    REQUIRE(file && fseek(file, -8, SEEK_END) == 0 && fputc(77, file) == 77 &&
                fseek(file, 0, SEEK_END) == 0 && fflush(file) == 0,
            "cannot write into a checkpoint");
    load_refuses(&large, path_of("gpt2"), "tensor transformer.ln_f.bias: damaged");
    REQUIRE(file && fputc(0, file) == 0 && fclose(file) == 0, "cannot write into a checkpoint");
    load_refuses(&large, path_of("gpt2"), " bytes by trainer_state.json, found ");
    gpt2_close(&large);
}

/* A checkpoint of a step that was saved before takes its place; a file there is another's and stays. */
static void test_place_taken(void) {
    const TrainerState state = {.step = 4};
    Error err = {0};
    CHECK(tiny_save(&model, path_of("twice"), 1, &state, 0, false, &err) &&
              tiny_save(&model, path_of("twice"), 2, &state, 0, false, &err),
          "%s", err.text);
    CHECK(access(path_of("twice/.old-step_00000004"), F_OK) != 0, "what was replaced is still there");
    DIR *saved = opendir(path_of("twice"));
    int n = 0;
    for (struct dirent *e; saved && (e = readdir(saved));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    if (saved) closedir(saved);
    CHECK(n == 1, "%d entries, expected the checkpoint alone", n);
    load_accepts(&model, path_of("twice"), 2);
    CHECK(directory_make(path_of("taken"), &err), "%s", err.text);
    write_text(path_of("taken/step_00000004"), "mine");
    CHECK(!tiny_save(&model, path_of("taken"), 1, &state, 0, false, &err) &&
              strstr(err.text, "expected a checkpoint's directory or nothing, found a file"),
          "%s", err.text);
    FILE *file = fopen(path_of("taken/step_00000004"), "r");
    char text[8] = "";
    CHECK(file && fgets(text, sizeof text, file) && strcmp(text, "mine") == 0, "the file holds '%s'", text);
    if (file) fclose(file);
}

/* Sizes that fit and a number of heads that does not: the weights would mean something else. */
static void test_other_heads(void) {
    GPT2Config config = tiny_config;
    GPT2 other;
    config.n_head = 4;
    tiny_open(&other, &config);
    load_refuses(&other, path_of("twice"), "expected n_head 4 as in the open model, found 2");
    gpt2_close(&other);
}

/* Only the weights of a model that does not train can be saved. */
static void test_without_optimizer(void) {
    const GPT2Options options = {.B = 1, .T = 8};
    GPT2 sampling;
    Error err = {0};
    if (!CHECK(gpt2_open(&sampling, &ops_cpu, &tiny_config, &options, &err), "%s", err.text)) return;
    gpt2_init(&sampling, 1);
    CHECK(!checkpoint_save(path_of("sampling"), &sampling, NULL, &(TrainerState){.step = 1},
                           &(SaveOptions){0}, &err) &&
              strstr(err.text, "without an optimizer"),
          "%s", err.text);
    CHECK(access(path_of("sampling"), F_OK) != 0, "something was written");
    gpt2_close(&sampling);
}

/* Optimizer steps [from, to) on tokens that depend on the step alone. */
static void train(GPT2 *trained, int from, int to) {
    int32_t tokens[8], targets[8];
    for (int step = from; step < to; step++) {
        for (int i = 0; i < 8; i++) {
            tokens[i] = (step * 31 + i * 7) % 250;
            targets[i] = (step * 17 + i * 5) % 250;
        }
        gpt2_begin_step(trained, 1);
        gpt2_micro_step(trained, tokens, targets, 1, 8, 1.0f);
        gpt2_update(trained, &(UpdateArgs){.step = step + 1,
                                           .lr = 1e-3f,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .eps = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .clip = 1.0f});
    }
}

/* A run that stops and resumes ends with the bits of one that does not stop. */
static void test_resumed_training(void) {
    GPT2 resumed;
    TrainerState state = {.step = 3};
    Error err = {0};
    gpt2_init(&model, 42);
    tiny_zero_states(&model);
    train(&model, 0, 3);
    CHECK(checkpoint_save(path_of("train"), &model, NULL, &state, &(SaveOptions){0}, &err), "%s", err.text);
    train(&model, 3, 6);
    tiny_open(&resumed, &tiny_config);
    tiny_poison(&resumed);
    CHECK(checkpoint_resume(path_of("train/step_00000003"), &resumed, &state, &err), "%s", err.text);
    train(&resumed, (int)state.step, 6);
    const size_t bytes = (size_t)model.n_elements * sizeof(float);
    CHECK(memcmp(model.master, resumed.master, bytes) == 0, "weights differ");
    CHECK(memcmp(model.states[ADAMW_M], resumed.states[ADAMW_M], bytes) == 0 &&
              memcmp(model.states[ADAMW_V], resumed.states[ADAMW_V], bytes) == 0,
          "moments differ");
    float before = gpt2_step_stats(&model).loss, after = gpt2_step_stats(&resumed).loss;
    CHECK(isfinite(before) && before == after, "losses %.9g and %.9g differ", (double)before, (double)after);
    gpt2_close(&resumed);
}

static bool same_file(const char *a, const char *b, const char *name) {
    char path[2][256];
    char *bytes[2];
    size_t size[2] = {0};
    Error err = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s/step_00000003/%s", folder, i ? b : a, name);
        bytes[i] = file_read(path[i], 1 << 26, &size[i], &err);
    }
    const bool same = bytes[0] && bytes[1] && size[0] == size[1] && memcmp(bytes[0], bytes[1], size[0]) == 0;
    free(bytes[0]);
    free(bytes[1]);
    return same;
}

static void *save_from_snapshot(void *snapshot) {
    Error err = {0};
    CHECK(checkpoint_save(path_of("snapshot"), &model, NULL, &(TrainerState){.step = 3},
                          &(SaveOptions){.snapshot = snapshot}, &err),
          "%s", err.text);
    return NULL;
}

/* Of matrices in several chunks: a file has the same bytes by one thread, by several, and from a snapshot, which another
 * thread writes while the model goes on. */
static void test_snapshot(void) {
    const GPT2Config config = {.max_seq_len = 8,
                               .vocab_size = 1000,
                               .padded_vocab_size = 1024,
                               .n_layer = 2,
                               .n_head = 4,
                               .n_embd = 256};
    static const char *const outs[] = {"one_thread", "threads"};
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors"};
    const GPT2 tiny = model;
    const int n_threads = cpu_thread_count();
    Snapshot snapshot;
    pthread_t thread;
    Error err = {0};
    tiny_open(&model, &config);
    gpt2_init(&model, 9);
    train(&model, 0, 3);
    for (int i = 0; i < 2; i++) {
        cpu_set_thread_count(i ? 3 : 1);
        CHECK(checkpoint_save(path_of(outs[i]), &model, NULL, &(TrainerState){.step = 3}, &(SaveOptions){0},
                              &err),
              "%s", err.text);
    }
    cpu_set_thread_count(n_threads);
    CHECK(snapshot_bytes(&config, OPTIMIZER_ADAMW, false, 1) == 3 * sizeof(float) * (size_t)model.n_elements,
          "%zu bytes", snapshot_bytes(&config, OPTIMIZER_ADAMW, false, 1));
    if (!REQUIRE(snapshot_open(&snapshot, &model, false), "no memory")) return;
    snapshot_take(&snapshot, &model, false);
    REQUIRE(pthread_create(&thread, NULL, save_from_snapshot, &snapshot) == 0, "no thread");
    train(&model, 3, 6);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++)
        CHECK(same_file("one_thread", "threads", names[i]) && same_file("one_thread", "snapshot", names[i]),
              "%s differs", names[i]);
    snapshot_close(&snapshot);
    gpt2_close(&model);
    model = tiny;
}

/* None that would take more than half of the memory that is free. */
static void test_snapshot_too_large(void) {
    size_t free_bytes, total_bytes;
    Snapshot snapshot;
    GPT2 huge = model;
    bool opened = true;
    for (int i = 0; i < 20 && opened; i++) { /* others give memory back */
        device_cpu.memory_info(&free_bytes, &total_bytes);
        huge.n_elements = (int64_t)(free_bytes * 3 / 4 / 3 / sizeof(float));
        opened = snapshot_open(&snapshot, &huge, false) || snapshot_is_open(&snapshot);
        snapshot_close(&snapshot);
    }
    CHECK(!opened, "it was opened");
}

static void test_model_only(void) {
    const TrainerState state = {.step = 7};
    TrainerState found;
    GPT2Config config;
    char path[256];
    int64_t step = -1;
    Error err = {0};
    CHECK(tiny_save(&model, path_of("only"), 2, &state, 0, true, &err), "%s", err.text);
    CHECK(access(path_of("only/step_00000007/optimizer.safetensors"), F_OK) != 0, "an optimizer was saved");
    load_accepts(&model, path_of("only/step_00000007"), 2);
    load_accepts(&model, path_of("only"), 2); /* a run's folder stands for its newest checkpoint */
    CHECK(checkpoint_read_config(path_of("only"), &config, &err) &&
              memcmp(&config, &tiny_config, sizeof config) == 0,
          "%s", err.text);
    CHECK(!checkpoint_resume(path_of("only/step_00000007"), &model, &found, &err) &&
              strstr(err.text, "weights only"),
          "%s", err.text);
    CHECK(!checkpoint_find(path_of("only"), path, sizeof path, &step, &err) && err.exit_code == EXIT_INPUT,
          "%s", err.text);
}

/* ---- config.json ---- */
/* What transformers needs is there, and no token id lies past the vocabulary. */
static void test_config_written(void) {
    Error err = {0};
    Json *json = json_read(path_of("run/step_00000200/config.json"), &err);
    if (!CHECK(json, "%s", err.text)) return;
    const JsonValue *root = json_root(json);
    int64_t value;
    CHECK(json_equals(json_get(root, "model_type"), "gpt2") &&
              json_equals(json_get(root, "activation_function"), "gelu_new"),
          "names");
    CHECK(json_equals(json_get(root, "architectures")->first, "GPT2LMHeadModel"), "architectures");
    CHECK(json_int64(json_get(root, "vocab_size"), &value) && value == 250, "vocab_size");
    CHECK(json_int64(json_get(root, "n_positions"), &value) && value == 16, "n_positions");
    CHECK(json_get(root, "bos_token_id")->type == JSON_NULL &&
              json_get(root, "eos_token_id")->type == JSON_NULL,
          "token ids");
    json_free(json);
}

static void test_config_read(void) {
#define SIZES "\"vocab_size\":50257,\"n_positions\":1024,\"n_embd\":768,\"n_layer\":12,\"n_head\":12"
    const struct {
        const char *text, *part; /* part: NULL where it is accepted */
    } cases[] = {
        {"{\"model_type\":\"gpt2\"," SIZES "}",                                          NULL                                                           },
        {"{\"model_type\":\"gpt2\"," SIZES
         ",\"n_inner\":3072,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":0.00001,"
         "\"tie_word_embeddings\":true,\"task_specific_params\":{}}",           NULL                                                           },
        {"[]",                                                                           "expected an object, found an array"                           },
        {"{" SIZES "}",                                                                  "model_type: expected gpt2, found nothing"                     },
        {"{\"model_type\":\"llama\"," SIZES "}",                                         "model_type: expected gpt2, found llama"                       },
        {"{\"model_type\":\"gpt2\"}",                                                    "n_positions: expected a whole number from 1 on, found nothing"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":0,\"n_positions\":1}",
         "vocab_size: expected a whole number from 1 on, found 0"                                                                                       },
        {"{\"model_type\":\"gpt2\",\"vocab_size\":1.5,\"n_positions\":1}",               "found 1.5"                                                    },
        {"{\"model_type\":\"gpt2\",\"vocab_size\":4294967297,\"n_positions\":1}",        "found 4294967297"                                             },
        {"{\"model_type\":\"gpt2\",\"vocab_size\":2147483647,\"n_positions\":1,\"n_layer\":1,\"n_head\":1,"
         "\"n_embd\":8}",                                                       "vocab_size"                                                   },
        {"{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_positions\":9,\"n_layer\":1,\"n_head\":7,\"n_embd\":"
         "64}",                                                                 "7 heads"                                                      },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":\"relu\"}",
         "activation_function: expected gelu_new, found relu"                                                                                           },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":1e-6}",
         "layer_norm_epsilon: expected 1e-5, found 1e-6"                                                                                                },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":\"1e-5\"}",
         "layer_norm_epsilon: expected 1e-5, found \"1e-5\""                                                                                            },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"tie_word_embeddings\":\"true\"}",
         "tie_word_embeddings: expected true, found \"true\""                                                                                           },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"quantization_config\":null}",             NULL                                                           },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"quantization_config\":{\"bits\":4}}",
         "quantization_config: expected null, found an object"                                                                                          },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":1024}",
         "n_inner: expected null or 3072 (4 n_embd), found 1024"                                                                                        },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_weights\":false}",
         "scale_attn_weights: expected true, found false"                                                                                               },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"tie_word_embeddings\":false}",
         "tie_word_embeddings: expected true, found false"                                                                                              },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_by_inverse_layer_idx\":true}",
         "scale_attn_by_inverse_layer_idx: expected false, found true"                                                                                  },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"add_cross_attention\":true}",
         "add_cross_attention: expected false, found true"                                                                                              },
        {"{\"model_type\":\"gpt2\"," SIZES ",\"model_type\":\"gpt2\"}",                  "found \"model_type\" twice"                                   },
    };
    Error err = {0};
    CHECK(directory_make(path_of("config"), &err), "%s", err.text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        GPT2Config config;
        write_text(path_of("config/config.json"), cases[i].text);
        bool ok = checkpoint_read_config(path_of("config"), &config, &err);
        if (!cases[i].part) {
            CHECK(ok && config.n_embd == 768 && config.padded_vocab_size == 50304, "%s", err.text);
            continue;
        }
        CHECK(!ok && err.exit_code == EXIT_INPUT && strstr(err.text, "config.json"), "accepted %s",
              cases[i].text);
        CHECK(strstr(err.text, cases[i].part), "message '%s' lacks '%s'", err.text, cases[i].part);
    }
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("checkpoint");
    tiny_open(&model, &tiny_config);
    test_find_nothing();
    test_round_trip();
    test_empty_state();
    test_orientation();
    test_larger_model();
    test_gpt2_vocabulary();
    test_place_taken();
    test_other_heads();
    test_without_optimizer();
    test_resumed_training();
    test_snapshot();
    test_snapshot_too_large();
    test_model_only();
    test_config_written();
    test_config_read();
    gpt2_close(&model);
    remove_tree(folder);
    return check_finish("checkpoint");
}
