/* What the tests that run ./train_gpt2 share: runs of it, its log, a model of hashed weights to begin from, and the
 * reading of a line of flags. main() makes the folder. */
#pragma once
#include <sys/wait.h>
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/base/json.h"
#include "dev/reference/reference.h"
#include "tiny_model.h"

static const char *const program = "./train_gpt2";

/* The size that record_program.py trains: bytes as tokens. */
static const GPT2Config program_config = {
    .max_seq_len = 32, .vocab_size = 256, .padded_vocab_size = 256, .n_layer = 2, .n_head = 2, .n_embd = 32};
enum { PROGRAM_LOG2_SCALE = -2 };

/* Whether there is a program that computes with this build's bits; else the test is skipped. */
__attribute__((unused)) static bool program_is_here(void) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("%s: built without sanitizers, so it has other bits than this test", program);
    return false;
#else
    if (access(program, X_OK) == 0) return true;
    SKIP("%s is not built", program);
    return false;
#endif
}

/* Runs the program on one thread, its output in FOLDER/stdout and stderr; returns its exit status. Memory that it
 * allocates holds 3.4e38 in every float, so that nothing works because fresh memory happens to be zero. */
__attribute__((format(printf, 1, 2), unused)) static int run_program(const char *format, ...) {
    char flags[2000], command[3000];
    va_list args;
    va_start(args, format);
    vsnprintf(flags, sizeof flags, format, args);
    va_end(args);
    snprintf(command, sizeof command,
             "MALLOC_PERTURB_=128 OMP_NUM_THREADS=1 %s --device cpu %s >%s/stdout 2>%s/stderr </dev/null",
             program, flags, folder, folder);
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The number behind `label` in what the program printed, NAN where it is not. */
__attribute__((unused)) static double printed_number(const char *label) {
    char *text = read_text(path_of("stdout"));
    const char *at = strstr(text, label);
    const double value = at ? strtod(at + strlen(label), NULL) : NAN;
    free(text);
    return value;
}

/* ---- the log ---- */

enum { LOG_MAX_STEPS = 64 };

typedef struct LoggedStep {
    double loss, lr, norm, ms, tok_s, mfu; /* NAN where the log says null */
    int64_t skipped;
    double val_loss; /* NAN where nothing was validated after this step */
    int lines;       /* of this step's loss */
} LoggedStep;

/* log.jsonl, step by step; [0] is not used. */
typedef struct ProgramLog {
    int last; /* step */
    LoggedStep steps[LOG_MAX_STEPS];
} ProgramLog;

static double logged(const JsonValue *line, const char *key) {
    double x = NAN;
    return json_double(json_get(line, key), &x) ? x : NAN;
}

static void take_line(ProgramLog *log, const JsonValue *line) {
    int64_t step;
    if (!json_int64(json_get(line, "step"), &step) || step < 0 || step >= LOG_MAX_STEPS) return;
    LoggedStep *s = &log->steps[step];
    if (json_get(line, "val_loss")) s->val_loss = logged(line, "val_loss");
    if (!json_get(line, "loss")) return;
    const double val_loss = s->val_loss;
    *s = (LoggedStep){logged(line, "loss"),
                      logged(line, "lr"),
                      logged(line, "norm"),
                      logged(line, "ms"),
                      logged(line, "tok_s"),
                      logged(line, "mfu"),
                      -1,
                      val_loss,
                      s->lines + 1};
    json_int64(json_get(line, "skipped"), &s->skipped);
    if (step > log->last) log->last = (int)step;
}

/* Reads OUT/log.jsonl. */
__attribute__((unused)) static void read_log(ProgramLog *log, const char *out) {
    char path[400];
    memset(log, 0, sizeof *log);
    for (int i = 0; i < LOG_MAX_STEPS; i++) log->steps[i].val_loss = NAN;
    snprintf(path, sizeof path, "%s/log.jsonl", out);
    char *text = read_text(path);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        Error err = {0};
        Json *json = json_parse(line, strlen(line), path, &err);
        if (CHECK(json, "%s", err.text)) take_line(log, json_root(json));
        json_free(json);
    }
    free(text);
}

/* ---- flags ---- */

/* What stands behind "--name " in a line of flags; NULL where it does not. */
static const char *flag_text(const char *flags, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = strstr(flags, name); at; at = strstr(at + 1, name))
        if (at[n] == ' ' || at[n] == '\0') return at[n] ? at + n + 1 : "";
    return NULL;
}

__attribute__((unused)) static double flag_number(const char *flags, const char *name) {
    const char *text = flag_text(flags, name);
    CHECK(text, "no %s in %s", name, flags);
    return text ? strtod(text, NULL) : 0;
}

__attribute__((unused)) static bool flag_is(const char *flags, const char *name, const char *value) {
    const char *text = flag_text(flags, name);
    const size_t n = strlen(value);
    return text && strncmp(text, value, n) == 0 && (text[n] == ' ' || text[n] == '\0');
}

/* ---- a model to begin from ---- */

typedef enum {
    PLAIN,
    POISONED, /* 'Z' has a logit of -inf: a window with it has an infinite loss or a NaN, and no other sees it */
    LETTERS, /* whatever stands before, the next byte is a small letter */
} WeightsKind;

static void set_channel(float *weights, const GPT2 *model, int channel, float bias) {
    weights[model->tensors[LN_F_W].offset + channel] = 0;
    weights[model->tensors[LN_F_B].offset + channel] = bias;
}

/* Weights as record_program.py makes them, PLAIN or POISONED. */
static void program_weights(GPT2 *model, WeightsKind kind) {
    const ReferenceHeader h = {.vocab_size = model->config.vocab_size, .log2_scale = PROGRAM_LOG2_SCALE};
    float *weights = calloc((size_t)model->n_elements, sizeof *weights);
    if (!weights) abort();
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *t = &model->tensors[id];
        for (int l = 0; l < t->n_layers; l++) hash_tensor(weights + tensor_at(t, l), (TensorId)id, l, t, &h);
    }
    float *wte = weights + model->tensors[WTE].offset;
    for (int c = 0; kind == POISONED && c < 2; c++) {
        wte['Z' * model->config.n_embd + c] = 3e38f;
        set_channel(weights, model, c, -1);
    }
    if (kind == LETTERS) set_channel(weights, model, 0, 1);
    for (int v = 0; kind == LETTERS && v < model->config.vocab_size; v++)
        if (v < 'a' || v > 'z') wte[v * model->config.n_embd] = -60;
    gpt2_set_weights(model, weights, 0, model->n_elements);
    free(weights);
}

/* FOLDER/name as a run's folder: a checkpoint of that model at step 5, with moments that are not zero. */
__attribute__((unused)) static void save_program_model(const char *name, WeightsKind kind,
                                                       const GPT2Config *size) {
    GPT2 model;
    Error err = {0};
    Tokenizer *bytes = tokenizer_open("bytes", &err);
    const TrainerState state = {.step = 5, .data_position = 11, .tokens_seen = 77, .best_val_loss = 1};
    tiny_open(&model, size);
    tiny_fill(&model, 1);
    program_weights(&model, kind);
    CHECK(bytes && checkpoint_save(path_of(name), &model, bytes, &state, &(SaveOptions){0}, &err), "%s",
          err.text);
    tokenizer_close(bytes);
    gpt2_close(&model);
}
