/* llm.c's debug state (gpt2_124M_debug_state.bin): what PyTorch computed in fp32 from a model file (gpt2_124M.bin). A header
 * of 256 int32, [0] 20240327, [1] 2, [2] B, [3] T; then tokens and targets (B,T) int32, logits (B,T,V), the loss, and the
 * gradients of the model file's 16 tensors in its order, fp32. */
#pragma once
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/checkpoint/llmc_bin.h"
#include "compare.h"
#include "logits.h"

/* Relative 2-norm. The file's own values are as far off as fp32 sums in another order are. In bf16 PyTorch's own run of
 * GPT-2 124M is up to 2 % off in some gradients. */
#define STATE_FP32_LIMIT 1e-4
#define STATE_BF16_LIMIT 5e-2

typedef struct DebugState {
    const char *path;
    int fd, B, T;
    int64_t at; /* byte that is read next */
    int32_t *tokens, *targets;
    GPT2 model;
    int n_compared, n_wrong; /* tensors */
    bool verbose;
} DebugState;

static bool state_read(DebugState *s, void *out, int64_t n, Error *err) {
    const size_t bytes = (size_t)n * 4;
    if (!file_read_at(s->fd, s->path, out, bytes, s->at, err)) return false;
    s->at += (int64_t)bytes;
    return true;
}

static bool state_check_header(DebugState *s, const int32_t header[256], const GPT2Config *config,
                               int64_t bytes, Error *err) {
    Tensor table[N_TENSORS];
    const int64_t n_gradients = gpt2_tensors(table, config, 1);
    if (header[0] != 20240327 || header[1] != 2)
        return fail(err, EXIT_INPUT,
                    "%s: expected magic 20240327 and version 2 of a debug state, found %d and %d", s->path,
                    header[0], header[1]);
    s->B = header[2], s->T = header[3];
    if (s->B < 1 || s->T < 1 || s->T > config->max_seq_len || s->B > (1 << 24) / s->T)
        return fail(err, EXIT_INPUT, "%s: expected B from 1 and T from 1 to the model's %d, found %d and %d",
                    s->path, config->max_seq_len, s->B, s->T);
    const int64_t N = (int64_t)s->B * s->T;
    const int64_t expected = 1024 + 4 * (2 * N + N * config->vocab_size + 1 + n_gradients);
    return bytes == expected ||
           fail(err, EXIT_INPUT, "%s: expected %lld bytes by its header and the model, found %lld", s->path,
                (long long)expected, (long long)bytes);
}

static bool state_read_tokens(DebugState *s, int vocab_size, Error *err) {
    const int64_t N = (int64_t)s->B * s->T;
    s->tokens = malloc((size_t)N * 2 * sizeof *s->tokens);
    if (!s->tokens) abort();
    s->targets = s->tokens + N;
    if (!state_read(s, s->tokens, 2 * N, err)) return false;
    for (int64_t i = 0; i < 2 * N; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= vocab_size)
            return fail(err, EXIT_INPUT, "%s: expected tokens below %d, found %d", s->path, vocab_size,
                        s->tokens[i]);
    return true;
}

static bool state_open(DebugState *s, const Ops *ops, const char *model, Error *err) {
    int64_t bytes;
    int32_t header[256];
    GPT2Config config;
    if (!llmc_bin_read_config(model, &config, err)) return false;
    s->fd = file_open(s->path, &bytes, err);
    if (s->fd < 0 || !state_read(s, header, 256, err) ||
        !state_check_header(s, header, &config, bytes, err) || !state_read_tokens(s, config.vocab_size, err))
        return false;
    const GPT2Options options = {.B = s->B, .T = s->T, .training = true};
    return gpt2_open(&s->model, ops, &config, &options, err) && llmc_bin_load_weights(model, &s->model, err);
}

/* n elements of the file against ours. */
static bool state_compare(DebugState *s, const char *name, const float *got, int64_t n, Error *err) {
    const bool bf16 = s->model.ops->dtype == DTYPE_BF16;
    const double limit = bf16 ? STATE_BF16_LIMIT : STATE_FP32_LIMIT;
    float *want = malloc((size_t)n * sizeof *want);
    if (!want) abort();
    const bool ok = state_read(s, want, n, err);
    const Deviation d = ok ? compare_floats(got, want, n) : (Deviation){0};
    const bool within_limit = d.norm <= limit;
    free(want);
    s->n_compared++;
    s->n_wrong += !within_limit;
    if (s->verbose || !within_limit)
        printf("%-9s %-30s error %.1e  limit %.1e%s\n", s->model.ops->name, name, d.norm, limit,
               within_limit ? "" : "  FAIL");
    return ok;
}

static bool state_compare_forward(DebugState *s, Error *err) {
    const int64_t N = (int64_t)s->B * s->T, n = N * s->model.config.vocab_size;
    float *logits = malloc((size_t)n * sizeof *logits);
    if (!logits) abort();
    const float loss = gpt2_eval(&s->model, s->tokens, s->targets, s->B, s->T);
    logits_of(&s->model, logits, 0, N);
    const bool ok = state_compare(s, "logits", logits, n, err) && state_compare(s, "loss", &loss, 1, err);
    free(logits);
    return ok;
}

static bool state_compare_gradients(DebugState *s, Error *err) {
    bool ok = true;
    gpt2_begin_step(&s->model, 1);
    gpt2_micro_step(&s->model, s->tokens, s->targets, s->B, s->T, 1.0f);
    for (int id = 0; id < N_TENSORS && ok; id++) {
        const Tensor *t = &s->model.tensors[id];
        float *got = malloc((size_t)t->layer_elems * sizeof *got);
        if (!got) abort();
        for (int layer = 0; layer < t->n_layers && ok; layer++) {
            char name[64];
            snprintf(name, sizeof name, t->name, layer);
            s->model.ops->device->download(got, s->model.grads + tensor_at(t, layer),
                                           (size_t)t->layer_elems * sizeof *got);
            ok = state_compare(s, name, got, t->layer_elems, err);
        }
        free(got);
    }
    return ok;
}

/* The model computes what the file says; prints what it does not. False with err where a file cannot be used. */
__attribute__((unused)) static bool debug_state_check(const Ops *ops, const char *path, const char *model,
                                                      bool verbose, int *n_wrong, Error *err) {
    DebugState s = {.path = path, .fd = -1, .verbose = verbose};
    const bool ok =
        state_open(&s, ops, model, err) && state_compare_forward(&s, err) && state_compare_gradients(&s, err);
    if (s.fd >= 0) close(s.fd);
    if (s.model.ops) gpt2_close(&s.model);
    free(s.tokens);
    *n_wrong = s.n_wrong;
    return ok;
}

/* "gpt2_124M.bin" for "gpt2_124M_debug_state.bin"; false where the name has not that end. */
__attribute__((unused)) static bool debug_state_model(char model[PATH_MAX], const char *path) {
    static const char end[] = "_debug_state.bin";
    const size_t n = strlen(path), n_end = sizeof end - 1;
    if (n <= n_end || strcmp(path + n - n_end, end) != 0) return false;
    return snprintf(model, PATH_MAX, "%.*s.bin", (int)(n - n_end), path) < PATH_MAX;
}
