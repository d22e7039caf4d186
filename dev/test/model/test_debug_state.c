/* llm.c's debug state as test_gpt2 reads it: a model that computes what the file says, one value that differs, and files
 * that are none. */
#include "dev/test/debug_state.h"
#include "dev/test/tiny_model.h"

enum { B = 2, T = 8, V = 250, N = B * T };

/* A state of B x T tokens as the header describes it, from this model's own values; element `wrong` of what is behind the
 * tokens is 1 off (-1: none). */
static void write_state(GPT2 *model, const char *name, int64_t wrong) {
    int32_t header[256] = {20240327, 2, B, T}, tokens[2 * N];
    static float logits[N * V];
    for (int i = 0; i < 2 * N; i++) tokens[i] = (i * 37 + i / N * 5) % V;
    float loss = gpt2_eval(model, tokens, tokens + N, B, T);
    logits_of(model, logits, 0, N);
    gpt2_begin_step(model, 1);
    gpt2_micro_step(model, tokens, tokens + N, B, T, 1.0f);
    FILE *file = fopen(path_of(name), "wb");
    if (!REQUIRE(file, "cannot write %s", name)) return;
    fwrite(header, 4, 256, file);
    fwrite(tokens, 4, 2 * N, file);
    const long begin = ftell(file);
    fwrite(logits, 4, N * V, file);
    fwrite(&loss, 4, 1, file);
    for (int id = 0; id < N_TENSORS; id++)
        for (int layer = 0; layer < model->tensors[id].n_layers; layer++)
            fwrite(model->grads + tensor_at(&model->tensors[id], layer), 4,
                   (size_t)model->tensors[id].layer_elems, file);
    fclose(file);
    if (wrong < 0) return;
    float value = 0;
    file = fopen(path_of(name), "r+b");
    REQUIRE(file && fseek(file, begin + 4 * wrong, SEEK_SET) == 0 && fread(&value, 4, 1, file) == 1, "seek");
    value += 1;
    REQUIRE(fseek(file, begin + 4 * wrong, SEEK_SET) == 0 && fwrite(&value, 4, 1, file) == 1 &&
                fclose(file) == 0,
            "write");
}

static void test_values(GPT2 *model) {
    const int64_t n_values = N * V + 1 + model->n_parameters;
    const struct {
        int64_t wrong;
        int n_wrong;
    } rows[] = {
        {-1,           0},
        {0,            1},
        {N * V - 1,    1},
        {N * V,        1},
        {N * V + 1,    1},
        {n_values - 1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int n_wrong = -1;
        Error err = {0};
        write_state(model, "tiny_debug_state.bin", rows[i].wrong);
        CHECK(debug_state_check(&ops_cpu, path_of("tiny_debug_state.bin"), path_of("tiny.bin"), false,
                                &n_wrong, &err),
              "%s", err.text);
        CHECK(n_wrong == rows[i].n_wrong, "value %lld off: %d tensors differ, expected %d",
              (long long)rows[i].wrong, n_wrong, rows[i].n_wrong);
    }
}

static void refuses(const char *what, const char *part) {
    int n_wrong;
    Error err = {0};
    CHECK(!debug_state_check(&ops_cpu, path_of("tiny_debug_state.bin"), path_of("tiny.bin"), false, &n_wrong,
                             &err) &&
              err.exit_code == EXIT_INPUT && strstr(err.text, part),
          "%s: '%s' lacks '%s'", what, err.text, part);
}

static void put(long at, int32_t value) {
    FILE *file = fopen(path_of("tiny_debug_state.bin"), "r+b");
    REQUIRE(file && fseek(file, at, SEEK_SET) == 0 && fwrite(&value, 4, 1, file) == 1 && fclose(file) == 0,
            "write");
}

static void test_bad_files(GPT2 *model) {
    const struct {
        const char *what, *part;
        long at;
        int32_t value;
    } rows[] = {
        {"magic",   "expected magic 20240327",    0,    20240326},
        {"version", "version 2 of a debug state", 4,    1       },
        {"B",       "found 0 and 8",              8,    0       },
        {"T",       "from 1 to the model's 16",   12,   17      },
        {"size",    "bytes by its header",        8,    3       },
        {"token",   "expected tokens below 250",  1028, 250     },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_state(model, "tiny_debug_state.bin", -1);
        put(rows[i].at, rows[i].value);
        refuses(rows[i].what, rows[i].part);
    }
    unlink(path_of("tiny_debug_state.bin"));
    refuses("no file", "cannot open");
}

static void test_name(void) {
    char path[PATH_MAX];
    CHECK(debug_state_model(path, "a/gpt2_124M_debug_state.bin") && strcmp(path, "a/gpt2_124M.bin") == 0,
          "%s", path);
    CHECK(!debug_state_model(path, "gpt2_124M.bin") && !debug_state_model(path, "_debug_state.bin"), "%s",
          path);
}

int main(void) {
    const GPT2Options options = {.B = B, .T = T, .training = true};
    GPT2 model;
    Error err = {0};
    if (!CHECK(mkdtemp(folder), "%s cannot be made", folder)) return check_finish("debug_state");
    if (REQUIRE(gpt2_open(&model, &ops_cpu, &tiny_config, &options, &err), "%s", err.text)) {
        gpt2_init(&model, 5);
        CHECK(llmc_bin_save(folder, "tiny.bin", &model, DTYPE_F32, &err), "%s", err.text);
        test_values(&model);
        test_bad_files(&model);
        gpt2_close(&model);
    }
    test_name();
    remove_tree(folder);
    return check_finish("debug_state");
}
