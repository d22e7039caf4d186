/* The model against recorded PyTorch (dev/reference), on every backend that this machine has.
 *
 *   ./test_gpt2cu [-v] [small] [MODEL] [BACKEND]      e.g. -v hd64 bf16; -v prints every tensor's error and
 * limit; small: values and gradients of the steps alone, for compute-sanitizer; MODEL large: two layers as wide as
 * GPT-2's against our own fp32, where the GPU takes other kernels than at the recorded sizes
 *   ./test_gpt2cu [-v] gpt2_124M_debug_state.bin [BACKEND]    llm.c's debug state alone, with gpt2_124M.bin beside it
 *
 * fp32: every tensor within 1e-5 of PyTorch's float64 values, relative 2-norm. bf16: within twice the error
 * that PyTorch's own bf16 run makes on that tensor, which stands beside it in the file, and no entry by more than
 * BF16_ENTRY_LIMIT times that of the largest. */
#include "dev/test/bad_steps.h"
#include "dev/test/compare.h"
#include "dev/test/debug_state.h"
#include "dev/test/large_case.h"
#include "dev/test/reference_case.h"
#include "llmc/model/ops_testing.h"

#define FP32_LIMIT 1e-5
/* After some steps: where a gradient is rounding noise around zero, Adam's m/sqrt(v) has a random sign and
 * the weight moves by lr either way. PyTorch's fp32 run is up to 3e-5 off its float64 run for this reason. */
#define FP32_FINAL_LIMIT 1e-4
/* 1 x 2B against 2 x B micro-batches in bf16: another GEMM shape may round a few activations the other way,
 * which gives some 1e-4; gradients accumulated in bf16 would be 2^-9 = 2e-3 off. */
#define BF16_ACCUMULATION_LIMIT 1e-3
/* The same where linear layers of half the rows have a kernel of their own (linear_few_rows), which rounds a sum once where
 * the library's GEMM and the pass behind it round twice: PyTorch's bf16 gradients are as far off. */
#define BF16_KERNELS_LIMIT 1e-2
enum { FEW_ROWS = 64 };

static const char *const models[] = {"hd24",         "hd64",      "hd128", "hd64_window",
                                     "hd64_dropout", "hd24_muon", "d12"};
static bool small; /* what compute-sanitizer gets through in a minute */

/* ---- values against the records ---- */

/* After the steps, if every weight had gone the other way each time: Adam moves none by more than about lr. (In bf16
 * check_final_weights holds all tensors at once to much less.) */
static Limits limits_of_moves(const Case *c, const ReferenceRecord *record) {
    const ReferenceHeader *h = &c->reference->header;
    const float *want = c->reference->data[reference_find(c->reference, record->name)];
    const double move = 2.5 * h->lr * h->steps, elems = (double)reference_elems(record);
    double largest = 0;
    for (int64_t i = 0; i < record->n_entries; i++) largest = fmax(largest, fabs((double)want[i]));
    return (Limits){move * sqrt(elems) / record->norm, move / largest};
}

/* Ten steps of a whole loss with Muon: what a rounding is off in the scale of an update adds up over them, in PyTorch's
 * runs the other way than in ours. */
static bool muon_steps(const Case *c, const ReferenceRecord *record) {
    return c->reference->header.optimizer == OPTIMIZER_MUON && strcmp(record->name, "steps/loss") == 0;
}

static Limits limits_of(const Case *c, const ReferenceRecord *record) {
    const bool bf16 = c->ops->dtype == DTYPE_BF16, final = strncmp(record->name, "final/", 6) == 0;
    if (final) {
        const Limits moved = limits_of_moves(c, record);
        const bool muon = c->reference->header.optimizer == OPTIMIZER_MUON && strstr(record->name, "/h.") &&
                          record->shape[1] > 1; /* it has no rounding noise of its own */
        return (Limits){bf16 ? moved.norm : muon ? FP32_LIMIT : FP32_FINAL_LIMIT, moved.max};
    }
    const double times = muon_steps(c, record) ? 4 : 2;
    if (bf16) return (Limits){times * record->bf16_error, BF16_ENTRY_LIMIT * record->bf16_error};
    return (Limits){FP32_LIMIT, FP32_LIMIT};
}

/* Errors of `got`, the whole tensor, at the recorded entries, relative to the 2-norm of the whole; and of its
 * own norm, where that is larger. */
static Deviation compare_record(const Reference *reference, int index, const float *got) {
    const ReferenceRecord *record = &reference->records[index];
    const int64_t elems = reference_elems(record), n = record->n_entries;
    float *entries = malloc((size_t)n * sizeof *entries);
    if (!entries) abort();
    double difference = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        entries[i] = got[reference_index(reference, index, i)];
        difference += pow((double)entries[i] - reference->data[index][i], 2);
    }
    for (int64_t i = 0; i < elems; i++) square += (double)got[i] * got[i];
    Deviation d = compare_floats(entries, reference->data[index], n);
    free(entries);
    double of_entries = sqrt(difference * (double)elems / (double)n) / record->norm;
    double of_norm = fabs(sqrt(square) - record->norm) / record->norm;
    d.norm = isnan(d.norm) || of_entries > of_norm || isnan(of_entries) ? of_entries : of_norm;
    return d;
}

/* Compares `elems` elements against the record called name. */
static void check_values(Case *c, const char *name, const float *got, int64_t elems) {
    int index = reference_find(c->reference, name);
    if (!CHECK(index >= 0, "%s.ref has no record %s", c->model, name)) return;
    const ReferenceRecord *record = &c->reference->records[index];
    if (!CHECK(reference_elems(record) == elems, "%s.ref: %s has %lld elements, the model %lld", c->model,
               name, (long long)reference_elems(record), (long long)elems))
        return;
    Deviation d = compare_record(c->reference, index, got);
    Limits limits = limits_of(c, record);
    c->n_compared++;
    c->square_error += pow(d.norm * record->norm, 2);
    c->square_bf16_error += pow((double)record->bf16_error * record->norm, 2);
    bool ok = CHECK(within(d, limits),
                    "%s, %s: %s: error %.2e, limit %.2e; largest %.2e, limit %.2e, at entry %lld",
                    c->ops->name, c->model, name, d.norm, limits.norm, d.max, limits.max, (long long)d.worst);
    if (verbose)
        printf("%-9s %-5s %-30s error %.1e  max %.1e  limit %.1e  PyTorch fp32 %.1e bf16 %.1e%s\n",
               c->ops->name, c->model, name, d.norm, d.max, limits.norm, (double)record->fp32_error,
               (double)record->bf16_error, ok ? "" : "  FAIL");
}

static void check_device(Case *c, const char *name, const void *device, DType dtype, int64_t elems) {
    float *got = malloc((size_t)elems * sizeof *got);
    if (!got) abort();
    download_floats(c->ops, got, device, dtype, elems);
    check_values(c, name, got, elems);
    free(got);
}

static void check_activations(Case *c, GPT2 *model) {
    for (int id = ACT_ENCODED; id <= ACT_LOSSES; id++) {
        const Activation *a = &model->activations[id];
        if (id == ACT_PROBS || (id == ACT_LSE && model->options.attention == ATTENTION_STANDARD)) continue;
        char name[64];
        snprintf(name, sizeof name, "act/%s", a->name);
        bool per_layer = reference_find(c->reference, name) < 0;
        for (int layer = 0; layer < (per_layer ? c->config.n_layer : 1); layer++) {
            if (per_layer) snprintf(name, sizeof name, "act/%s.%d", a->name, layer);
            check_device(c, name, gpt2_activation(model, (ActivationId)id, layer), a->dtype, a->elems);
        }
    }
    int64_t rows = (int64_t)c->B * c->T, elems = rows * c->config.vocab_size;
    float *logits = malloc((size_t)elems * sizeof *logits);
    if (!logits) abort();
    logits_of(model, logits, 0, rows);
    check_values(c, "act/logits", logits, elems);
    free(logits);
}

/* A flat buffer, tensor by tensor, against the records "PREFIX/NAME". */
static void check_parameters(Case *c, GPT2 *model, const float *flat, const char *prefix) {
    for (int id = 0; id < N_TENSORS; id++) {
        const Tensor *t = &model->tensors[id];
        /* Softmax does not see the key bias: its gradient is rounding noise, of which Adam makes full steps.
         */
        if (id == C_ATTN_B && strcmp(prefix, "final") == 0) continue;
        int64_t elems = id == WTE ? (int64_t)c->config.vocab_size * t->cols : t->layer_elems;
        for (int layer = 0; layer < t->n_layers; layer++) {
            char tensor[64], name[80];
            snprintf(tensor, sizeof tensor, t->name, layer);
            snprintf(name, sizeof name, "%s/%s", prefix, tensor);
            check_device(c, name, flat + tensor_at(t, layer), DTYPE_F32, elems);
        }
    }
}

/* In bf16 a tensor's error after some steps is that of the few weights which Adam moved the other way, more
 * or fewer of them by luck; over all tensors it is at most twice PyTorch's. */
static void check_final_weights(Case *c, GPT2 *model) {
    c->square_error = c->square_bf16_error = 0;
    check_parameters(c, model, model->master, "final");
    double limit = 2 * sqrt(c->square_bf16_error);
    if (c->ops->dtype == DTYPE_BF16)
        CHECK(sqrt(c->square_error) <= limit,
              "%s, %s: weights after the steps are %.2e off in 2-norm, limit %.2e", c->ops->name, c->model,
              sqrt(c->square_error), limit);
}

static void check_padding_is_zero(Case *c, GPT2 *model, const float *flat, const char *what) {
    const int64_t begin = (int64_t)c->config.vocab_size * c->config.n_embd,
                  end = model->tensors[WTE].layer_elems;
    float *padding = malloc((size_t)(end - begin + 1) * sizeof *padding);
    if (!padding) abort();
    c->ops->device->download(padding, flat + model->tensors[WTE].offset + begin,
                             (size_t)(end - begin) * sizeof *padding);
    int64_t wrong = 0, first = 0;
    for (int64_t i = end - begin - 1; i >= 0; i--)
        if (padding[i] != 0) wrong++, first = i;
    CHECK(wrong == 0, "%s, %s: %lld elements of wte's padding rows are not 0 in %s, the first %g",
          c->ops->name, c->model, (long long)wrong, what, (double)padding[first]);
    free(padding);
}

/* bf16: the vector as a whole, since PyTorch's error of one loss may be small by luck; fp32: each loss as
 * well. */
static void check_losses(Case *c, const float *loss, int steps) {
    check_values(c, "steps/loss", loss, steps);
    int index = reference_find(c->reference, "steps/loss");
    if (index < 0 || c->ops->dtype != DTYPE_F32) return;
    for (int step = 0; step < steps; step++) {
        float expected = c->reference->data[index][step];
        CHECK(fabs((double)loss[step] - expected) <= FP32_LIMIT * expected,
              "%s, %s: loss of step %d is %.7f, not %.7f", c->ops->name, c->model, step + 1,
              (double)loss[step], (double)expected);
    }
}

/* Every record of the model: activations, logits, gradients, the steps' losses and norms, the weights after
 * them. */
static void test_values(Case *c, AttentionKind attention) {
    const int steps = c->reference->header.steps;
    float loss[64], norm[64];
    GPT2 model;
    if (!CHECK(steps <= 64, "%d steps", steps) || !case_open(c, &model, RECOMPUTE_NONE, attention)) return;
    c->n_compared = 0;
    for (int step = 0; step < steps; step++) {
        if (step == 0 && c->config.dropout == 0) { /* backward reuses some of them */
            gpt2_eval(&model, c->tokens, c->targets, c->B, c->T);
            check_activations(c, &model);
        }
        forward_backward(c, &model);
        if (step == 0) {
            check_parameters(c, &model, model.grads, "grad");
            check_padding_is_zero(c, &model, model.grads, "the gradients");
        }
        update(c, &model, step + 1);
        StepStats stats = gpt2_step_stats(&model);
        loss[step] = stats.loss;
        norm[step] = stats.grad_norm;
        CHECK(!stats.bad && stats.n_skipped == 0, "%s, %s: step %d skipped", c->ops->name, c->model,
              step + 1);
    }
    check_losses(c, loss, steps);
    check_values(c, "steps/grad_norm", norm, steps);
    check_final_weights(c, &model);
    check_padding_is_zero(c, &model, model.master, "the weights");
    int without = attention == ATTENTION_STANDARD && c->config.dropout == 0 ? c->config.n_layer : 0; /* lse */
    CHECK(c->n_compared == c->reference->header.n_records - without, "%s.ref: %d records, %d compared",
          c->model, c->reference->header.n_records, c->n_compared);
    gpt2_close(&model);
}

/* ---- the model against itself ---- */

/* Relative 2-norm difference of two gradient buffers. */
static double gradient_difference(const Snapshot *a, const Snapshot *b) {
    return compare_floats((const float *)(const void *)a->flat[GRADS],
                          (const float *)(const void *)b->flat[GRADS],
                          (int64_t)(a->bytes[GRADS] / sizeof(float)))
        .norm;
}

/* What a step of a model opened in this way leaves; false if it could not be opened. */
static bool step_snapshot(Case *c, const GPT2Options *options, Snapshot *out) {
    GPT2 model;
    if (!case_open_with(c, &model, options)) return false;
    for (int step = 1; step <= 2; step++) {
        forward_backward(c, &model);
        update(c, &model, step);
    }
    forward_backward(c, &model);
    for (int i = 0; i < 2; i++) gpt2_micro_step(&model, c->tokens, c->targets, c->B, c->T, 1.0f);
    if (options->graph && c->ops->device->is_async)
        CHECK(model.captured[0][0].graph && model.captured[1][1].graph,
              "%s: micro-steps are not launched as graphs", c->ops->name);
    *out = snapshot(&model);
    gpt2_close(&model);
    return true;
}

/* Two steps and a gradient of three micro-steps: the same bits when run twice, when launched as graphs, when blocks are recomputed. */
static void test_same_bits(Case *c) {
    static const struct {
        GPT2Options options;
        const char *what;
    } ways[] = {
        {{.graph = false},                              "run twice"             },
        {{.graph = true},                               "graph"                 },
        {{.recompute = RECOMPUTE_LINEAR},               "recompute linear"      },
        {{.recompute = RECOMPUTE_BLOCK},                "recompute block"       },
        {{.recompute = RECOMPUTE_BLOCK, .graph = true}, "recompute block, graph"},
    };
    Snapshot first, again;
    if (!step_snapshot(c, &ways[0].options, &first)) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (step_snapshot(c, &ways[i].options, &again)) check_same_bits(c, &first, again, -1, ways[i].what);
    snapshot_free(&first);
}

/* A recomputed GELU starts from the stored fch, which in bf16 is rounded once more than what a fused epilogue
 * had: not the same bits, but PyTorch's gradients. */
static void test_recompute_gelu(Case *c) {
    GPT2 model;
    if (!case_open(c, &model, RECOMPUTE_GELU, ATTENTION_FLASH)) return;
    forward_backward(c, &model);
    check_parameters(c, &model, model.grads, "grad");
    gpt2_close(&model);
}

/* 1 x 2B against 2 x B. */
static void test_micro_batches(Case *c) {
    GPT2 model;
    if (c->B % 2 || !case_open(c, &model, RECOMPUTE_NONE, ATTENTION_FLASH)) return;
    const int half = c->B / 2;
    forward_backward(c, &model);
    Snapshot whole = snapshot(&model);
    float loss = loss_so_far(&model);
    gpt2_begin_step(&model, 2);
    for (int i = 0; i < 2; i++)
        gpt2_micro_step(&model, c->tokens + i * half * c->T, c->targets + i * half * c->T, half, c->T, 0.5f);
    Snapshot halves = snapshot(&model);
    double error = gradient_difference(&halves, &whole);
    const bool kernels = half * c->T <= FEW_ROWS && c->B * c->T > FEW_ROWS;
    const double bf16 = kernels ? BF16_KERNELS_LIMIT : BF16_ACCUMULATION_LIMIT;
    const double limit = c->ops->dtype == DTYPE_BF16 ? bf16 : FP32_LIMIT;
    CHECK(error <= limit, "%s, %s: gradients of 2 x %d micro-batches are %.2e off 1 x %d, limit %.2e",
          c->ops->name, c->model, half, error, c->B, limit);
    float sum = loss_so_far(&model);
    CHECK(loss > 0 && fabsf(sum - loss) <= (float)limit * loss, "%s, %s: losses %.7f and %.7f", c->ops->name,
          c->model, (double)sum, (double)loss);
    snapshot_free(&whole);
    snapshot_free(&halves);
    gpt2_close(&model);
}

/* The head in chunks of 32 tokens, as it is where the logits of a micro-batch would be too large; two micro-steps of the same
 * tokens, so that the second one's chunks add to what the first left. */
static void test_chunks(Case *c) {
    GPT2 model;
    if (!case_open(c, &model, RECOMPUTE_NONE, ATTENTION_FLASH)) return;
    const float limit = c->ops->dtype == DTYPE_BF16 ? (float)BF16_ACCUMULATION_LIMIT : 1e-6f;
    const float whole = gpt2_eval(&model, c->tokens, c->targets, c->B, c->T);
    model.shape.loss_rows = 32;
    const float chunks = gpt2_eval(&model, c->tokens, c->targets, c->B, c->T);
    CHECK(fabsf(chunks - whole) <= limit * whole, "%s, %s: evaluation in chunks %.7f, at once %.7f",
          c->ops->name, c->model, (double)chunks, (double)whole);
    check_activations(c, &model);
    gpt2_begin_step(&model, 2);
    for (int i = 0; i < 2; i++) gpt2_micro_step(&model, c->tokens, c->targets, c->B, c->T, 0.5f);
    check_parameters(c, &model, model.grads, "grad");
    const float loss = loss_so_far(&model);
    CHECK(fabsf(loss - whole) <= limit * whole, "%s, %s: training loss in chunks %.7f, not %.7f",
          c->ops->name, c->model, (double)loss, (double)whole);
    gpt2_close(&model);
}

/* Validation drops nothing: the loss of a model opened without dropout, to the bit, before and after a step. */
static void test_dropout_eval(Case *c) {
    GPT2 model, plain;
    Case without = *c;
    without.config.dropout = 0;
    if (!case_open(c, &model, RECOMPUTE_NONE, ATTENTION_FLASH)) return;
    if (case_open(&without, &plain, RECOMPUTE_NONE, ATTENTION_FLASH)) {
        const float expected = gpt2_eval(&plain, c->tokens, c->targets, c->B, c->T);
        for (int i = 0; i < 2; i++) {
            const float loss = gpt2_eval(&model, c->tokens, c->targets, c->B, c->T);
            CHECK(loss == expected, "%s, %s: evaluation %.9g, without dropout %.9g", c->ops->name, c->model,
                  (double)loss, (double)expected);
            forward_backward(c, &model);
        }
        gpt2_close(&plain);
    }
    gpt2_close(&model);
}

/* A model told that it is at step 2 draws what one draws that came there; its first step draws something else. */
static void test_dropout_resumes(Case *c) {
    GPT2 model;
    Snapshot at_two[2];
    if (!case_open(c, &model, RECOMPUTE_NONE, ATTENTION_FLASH)) return;
    forward_backward(c, &model);
    const float first = loss_so_far(&model);
    for (int i = 0; i < 2; i++) {
        model.step = 1; /* begun so far */
        forward_backward(c, &model);
        at_two[i] = snapshot(&model);
    }
    check_same_bits(c, &at_two[0], at_two[1], -1, "the masks of step 2");
    const float second = loss_so_far(&model);
    CHECK(first != second, "%s, %s: steps 1 and 2 have the same masks", c->ops->name, c->model);
    snapshot_free(&at_two[0]);
    gpt2_close(&model);
}

/* Validation gives the training loss and leaves all training state as it was. */
static void test_eval(Case *c) {
    GPT2 model;
    if (!case_open(c, &model, RECOMPUTE_NONE, ATTENTION_FLASH)) return;
    forward_backward(c, &model);
    Snapshot before = snapshot(&model);
    const float trained = loss_so_far(&model);
    StepStats stats = gpt2_step_stats(&model);
    float loss = gpt2_eval(&model, c->tokens, c->targets, c->B, c->T);
    CHECK(trained > 0 && fabsf(loss - trained) <= 1e-6f * trained,
          "%s, %s: evaluation %.7f, training loss %.7f", c->ops->name, c->model, (double)loss,
          (double)trained);
    check_same_bits(c, &before, snapshot(&model), -1, "after an evaluation");
    StepStats after = gpt2_step_stats(&model);
    CHECK(memcmp(&stats, &after, sizeof stats) == 0, "%s, %s: an evaluation changed the statistics",
          c->ops->name, c->model);
    snapshot_free(&before);
    gpt2_close(&model);
}

/* ---- all of it ---- */

/* The argument that names llm.c's debug state; NULL: none. */
static const char *find_state(int argc, char **argv) {
    char model[PATH_MAX];
    for (int i = 1; i < argc; i++)
        if (debug_state_model(model, argv[i])) return argv[i];
    return NULL;
}

static void test_state(const Ops *ops, const char *path) {
    char model[PATH_MAX];
    Error err = {0};
    int n_wrong;
    debug_state_model(model, path);
    if (CHECK(debug_state_check(ops, path, model, verbose, &n_wrong, &err), "%s: %s", ops->name, err.text))
        CHECK(n_wrong == 0, "%s, %s: %d tensors differ", ops->name, path, n_wrong);
}

/* True if every argument but -v and small names this model or is part of this backend's name. */
static bool chosen(int argc, char **argv, const char *model, const char *backend) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-v") != 0 && strcmp(argv[i], "small") != 0 && strcmp(argv[i], model) != 0 &&
            !strstr(backend, argv[i]))
            return false;
    return true;
}

/* The model against itself, and with NaN. */
static void test_itself(Case *c) {
    test_values(c, ATTENTION_STANDARD);
    test_same_bits(c);
    test_recompute_gelu(c);
    if (c->config.dropout > 0) {
        test_dropout_eval(c);
        test_dropout_resumes(c);
        return; /* the rest compares runs that draw different masks */
    }
    test_micro_batches(c);
    test_chunks(c);
    test_eval(c);
    test_bad_step(c, NAN, false);
    test_bad_step(c, INFINITY, false);
    test_bad_step(c, NAN, true);
    test_bad_step(c, -INFINITY, true);
}

static void test_case(const Ops *ops, const char *model) {
    char path[64];
    Error err = {0};
    Reference reference;
    snprintf(path, sizeof path, "dev/reference/%s.ref", model);
    if (!CHECK(reference_load(&reference, path, &err), "%s", err.text)) return;
    const ReferenceHeader *h = &reference.header;
    Case c = {.ops = ops, .reference = &reference, .model = model, .B = h->B, .T = h->T};
    c.config = (GPT2Config){.max_seq_len = h->max_seq_len,
                            .vocab_size = h->vocab_size,
                            .padded_vocab_size = gpt2_pad_vocab(h->vocab_size),
                            .n_layer = h->n_layer,
                            .n_head = h->n_head,
                            .n_embd = h->n_embd,
                            .window = h->window,
                            .dropout = h->dropout};
    c.tokens = hash_tokens(STREAM_TOKENS, (int64_t)c.B * c.T, c.config.vocab_size);
    c.targets = hash_tokens(STREAM_TARGETS, (int64_t)c.B * c.T, c.config.vocab_size);
    test_values(&c, ATTENTION_FLASH);
    if (strcmp(model, "d12") != 0 && !small) test_itself(&c); /* does not depend on the size */
    free(c.tokens);
    free(c.targets);
    reference_free(&reference);
}

int main(int argc, char **argv) {
    const struct {
        const Ops *ops;
        const char *name;
        bool is_cuda;
    } backends[] = {
        {&ops_cpu,      "cpu fp32",  false},
        {ops_cuda_fp32, "cuda fp32", true },
        {ops_cuda_bf16, "cuda bf16", true }
    };
    for (int i = 1; i < argc; i++) {
        verbose |= strcmp(argv[i], "-v") == 0;
        small |= strcmp(argv[i], "small") == 0;
    }
    if (small) cuda_limit_alignment(2);
    const char *const state = find_state(argc, argv);
    for (size_t b = 0; b < sizeof backends / sizeof *backends; b++) {
        const char *missing = !backends[b].ops                           ? "built without CUDA"
                              : backends[b].is_cuda && !cuda_available() ? "no CUDA device"
                                                                         : NULL;
        Error err = {0};
        if (!missing &&
            !REQUIRE(backends[b].ops->device->open(0, &err), "%s: %s", backends[b].name, err.text))
            continue;
        if (state) {
            if (chosen(argc, argv, state, backends[b].name) && !missing) test_state(backends[b].ops, state);
            continue;
        }
        for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
            if (!chosen(argc, argv, models[m], backends[b].name)) continue;
            if (missing)
                SKIP("%s on %s: %s", models[m], backends[b].name, missing);
            else
                test_case(backends[b].ops, models[m]);
        }
        if (strcmp(backends[b].name, "cuda bf16") != 0 || small ||
            !chosen(argc, argv, "large", backends[b].name))
            continue;
        if (missing)
            SKIP("large on %s: %s", backends[b].name, missing);
        else
            test_large(backends[b].ops, ops_cuda_fp32);
    }
    REQUIRE(check_passed + check_failed + check_skipped > 0, "no model and no backend has that name");
    return check_finish("gpt2");
}
