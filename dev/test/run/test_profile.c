/* --profile: a wrapped table computes the same bits, misses no op, counts the model's FLOP, and its times add up. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "llmc/base/files.h"
#include "llmc/model/gpt2.h"
#include "llmc/run/profile_trace.h"
#include "dev/test/check.h"

enum { B = 2, T = 24, L = 3, C = 64, V = 250, N_MICRO = 2 };

static const GPT2Config config = {
    .max_seq_len = T, .vocab_size = V, .padded_vocab_size = 256, .n_layer = L, .n_head = 1, .n_embd = C};

static void train_step(GPT2 *model, int64_t step) {
    int32_t tokens[B * T], targets[B * T];
    for (int i = 0; i < B * T; i++) tokens[i] = (i * 37 + (int)step) % V, targets[i] = (i * 11) % V;
    gpt2_begin_step(model, N_MICRO);
    for (int i = 0; i < N_MICRO; i++) gpt2_micro_step(model, tokens, targets, B, T, 1.0f / N_MICRO);
    gpt2_update(model, &(UpdateArgs){step, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, .momentum = 0.95f});
}

/* The weights after two steps, the second one wrapped if `profile`; malloc'ed, NULL if the model cannot open. */
static float *train(const Ops *ops, Recompute recompute, Profile *profile) {
    const GPT2Options options = {.B = B, .T = T, .recompute = recompute, .training = true, .graph = true};
    GPT2 model;
    Error err = {0};
    if (!CHECK(gpt2_open(&model, ops, &config, &options, &err), "%s", err.text)) return NULL;
    gpt2_init(&model, 1);
    train_step(&model, 1);
    if (profile) {
        model.options.graph = false;
        model.ops = profile_ops(ops, &model.at);
    }
    train_step(&model, 2);
    model.ops = ops;
    if (profile) profile_collect(profile);
    float *weights = malloc((size_t)model.n_elements * sizeof *weights);
    if (!weights) abort();
    ops->device->download(weights, model.master, (size_t)model.n_elements * sizeof *weights);
    gpt2_close(&model);
    return weights;
}

static int64_t parameters(void) {
    Tensor table[N_TENSORS];
    gpt2_tensors(table, &config, 1);
    return gpt2_n_elements(table);
}

/* Forward, input gradient and weight gradient of every matrix: 6 FLOP a weight and token. */
static double expected_linear_flops(void) {
    const double matrices = 12.0 * L * C * C + 256.0 * C;
    return 6 * matrices * B * T * N_MICRO;
}

static void check_rows(const Ops *ops, const Profile *p) {
    double flops = 0, seconds = 0;
    int64_t attention = 0, adamw = 0, norms = 0;
    for (int i = 0; i < p->n_rows; i++) {
        const ProfileRow *r = &p->rows[i];
        seconds += r->seconds;
        CHECK(r->calls > 0 && r->seconds > 0 && r->bytes > 0, "%s: %s: no time or no bytes", ops->name,
              r->name);
        CHECK(!strstr(r->name, "dots"), "%s: %s: at this size no backend makes them", ops->name, r->name);
        if (strncmp(r->name, "linear_", 7) == 0) flops += r->flops;
        if (strncmp(r->name, "attention_", 10) == 0) attention += r->calls;
        if (strncmp(r->name, "layernorm_backward", 18) == 0) norms += r->calls;
        if (strcmp(r->name, "adamw") == 0) {
            adamw += r->calls;
            CHECK(r->bytes == (ops->dtype == DTYPE_F32 ? 28.0 : 30.0) * (double)parameters(),
                  "adamw moves %g bytes", r->bytes);
        }
    }
    CHECK(flops == expected_linear_flops(), "%s: %g FLOP, expected %g", ops->name, flops,
          expected_linear_flops());
    CHECK(attention == 2 * L * N_MICRO, "%lld attention calls", (long long)attention);
    CHECK(norms == (2 * L + 1) * N_MICRO, "%lld layernorm_backward calls", (long long)norms);
    CHECK(adamw == 1 && p->n_steps == 1, "%lld updates in %lld steps", (long long)adamw,
          (long long)p->n_steps);
    CHECK(seconds <= p->seconds * 1.001, "%s: the ops take %g s of %g s", ops->name, seconds, p->seconds);
}

/* What the table prints; malloc'ed. */
static char *printed(const Profile *profile, const Roofs *roofs) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    profile_print(out, profile, roofs);
    fclose(out);
    return text;
}

static const Roofs some_roofs = {.flops = 1e12, .bytes = 1e11, .flops_how = "derived"};

/* The same of one that was measured: a step without the profile takes as long as one with it. */
static char *printed_measured(const Profile *profile) {
    Profile p = *profile;
    p.seconds_a_step = p.seconds;
    return printed(&p, &some_roofs);
}

/* Every op, the sums, the roofs. */
static void check_table(const Profile *profile) {
    char *text = printed_measured(profile);
    for (int i = 0; i < profile->n_rows; i++)
        CHECK(strstr(text, profile->rows[i].name), "the table lacks %s", profile->rows[i].name);
    CHECK(strstr(text, "all ops") && strstr(text, "between ops"), "the table lacks its sums");
    CHECK(strstr(text, "1.0 TFLOP/s (derived)") && strstr(text, "100.0 GB/s"), "the table lacks its roofs");
    free(text);
}

/* The last number before a '%' of the line with `name`. */
static double of_roof(const char *table, const char *name) {
    const char *line = strstr(table, name);
    const char *end = line ? strchr(line, '\n') : NULL;
    while (end && end > line && *end != '%') end--;
    while (end && end > line + 1 && end[-1] == ' ') end--;
    const char *number = end;
    while (number && number > line && number[-1] != ' ') number--;
    return number ? strtod(number, NULL) : NAN;
}

/* An op that a cache serves is held to a copy that the cache serves, and none is beyond its roof. */
static void test_roofs(void) {
    static const Profile profile = {
        .n_rows = 3,
        .rows = {{.name = "large", .calls = 2, .seconds = 1, .bytes = 5e10},
                 {.name = "small", .calls = 1000000, .seconds = 1, .bytes = 3e11},
                 {.name = "fast", .calls = 1, .seconds = 1, .flops = 3e12}},
        .n_steps = 1,
        .seconds = 3,
        .seconds_a_step = 3,
    };
    const Roofs roofs = {
        .flops = 2e12,
        .bytes = 2e11,
        .bytes_of = {1e11, 1e11, 1e11, 1e11, 1e11, 1e11, 4e11},
        .flops_how = "measured"
    };
    char *text = printed(&profile, &roofs);
    CHECK(strstr(text, "2.0 TFLOP/s (measured), 200.0 GB/s"), "the roofs: %s", text);
    CHECK(of_roof(text, "  large") == 25, "large: %g %% of its roof", of_roof(text, "  large"));
    CHECK(of_roof(text, "  small") == 75, "small: %g %% of its roof", of_roof(text, "  small"));
    CHECK(of_roof(text, "  fast") == 100, "fast: %g %% of its roof", of_roof(text, "  fast"));
    free(text);
    Roofs measured = {.flops = 1e18, .bytes = 1e15, .bytes_of = {1e15}};
    profile_roofs(&measured, &ops_cpu);
    CHECK(measured.flops == 1e18 && measured.bytes == 1e15 && measured.bytes_of[0] == 1e15,
          "a higher roof stays: %g %g %g", measured.flops, measured.bytes, measured.bytes_of[0]);
    for (int i = 1; i < ROOF_SIZES; i++)
        CHECK(measured.bytes_of[i] > 1e8 && measured.bytes_of[i] < 1e15, "a copy of %zu bytes: %g bytes/s",
              roof_bytes(i), measured.bytes_of[i]);
}

/* The costliest op comes first; numbers are those of a step, shares those of all ops. */
static void test_means(void) {
    const Profile profile = {
        .n_rows = 2,
        .rows = {{.name = "quick", .calls = 4, .seconds = 1, .bytes = 8e9},
                 {.name = "slow", .calls = 8, .seconds = 2, .bytes = 8e9}},
        .n_steps = 4,
        .seconds = 5,
        .seconds_a_step = 1.6,
    };
    char *text = printed(&profile, &some_roofs), op[64], words[64];
    int calls = 0;
    double ms = 0, share = 0, work = 0;
    const char *slow = strstr(text, "  slow "), *quick = strstr(text, "  quick ");
    if (CHECK(slow && quick && slow < quick, "the costliest op is not the first: %s", text)) {
        CHECK(sscanf(slow, "%63s %d %lf %lf %% %lf GB", op, &calls, &ms, &share, &work) == 5 && calls == 2 &&
                  ms == 500 && share == 66.7 && work == 2,
              "slow: %.120s", slow);
        CHECK(sscanf(quick, "%63s %d %lf %lf", op, &calls, &ms, &share) == 4 && calls == 1 && ms == 250 &&
                  share == 33.3,
              "quick: %.120s", quick);
    }
    const char *all = strstr(text, "all ops"), *between = strstr(text, "between ops"),
               *wall = strstr(text, "wall clock");
    CHECK(all && sscanf(all, "all ops %d %lf", &calls, &ms) == 2 && calls == 3 && ms == 750, "%s", text);
    CHECK(between && sscanf(between, "between ops %lf", &ms) == 1 && ms == 500, "%s", text);
    CHECK(wall && sscanf(wall, "wall clock %lf the ops are %lf %% of %63s", &ms, &share, words) == 3 &&
              ms == 1600 && share == 46.9,
          "%s", text);
    free(text);
}

static void copy_nothing(void *dst, const void *src, size_t bytes) {}
static void note_nothing(int index) {}
static double half_a_second(int from, int to) {
    return 0.5;
}

/* A copy reads and writes. */
static void test_copy_rate(void) {
    Ops ops = ops_cpu;
    Device device = *ops.device;
    device.copy = copy_nothing;
    device.timestamp = note_nothing;
    device.seconds_between = half_a_second;
    ops.device = &device;
    CHECK(profile_copy_roof(&ops) == 2 * 16 * 1048576 / 0.5, "16 MiB in half a second: %g bytes/s",
          profile_copy_roof(&ops));
}

/* A step of more calls than there are timestamps: the profile says how many it left out, and no share of the step. */
static void test_too_many_calls(const Ops *ops) {
    enum { NOTED = TIMESTAMPS_MAX / 2, MORE = 5 };
    Profile profile = {0};
    float *x = ops->device->alloc(sizeof *x);
    const Ops *wrapped = profile_ops(ops, NULL);
    for (int i = 0; i < NOTED + MORE; i++) wrapped->device->zero(x, sizeof *x);
    profile_collect(&profile);
    CHECK(profile.n_rows == 1 && profile.rows[0].calls == NOTED && profile.n_unnoted == MORE,
          "%lld calls noted, %lld left out", (long long)profile.rows[0].calls, (long long)profile.n_unnoted);
    char *text = printed_measured(&profile);
    CHECK(strstr(text, "  5 more calls were not timed") && !strstr(text, "the ops are"), "%s", text);
    free(text);
    ops->device->free(x);
}

/* Attention's backward reads O, of the storage type, or D, one fp32 number a row and head, where that is known. */
static void test_known_d(const Ops *ops) {
    enum { TOKENS = 4, HEADS = 2, SIZE = 8, ELEMS = TOKENS * HEADS * SIZE };
    const OpShape shape = {
        .B = 1, .T = TOKENS, .C = HEADS * SIZE, .NH = HEADS, .V = 8, .Vp = 8, .loss_rows = 1};
    const AttentionMask mask = {0};
    const size_t bytes = 3 * ELEMS * sizeof(float);
    void *zeros = ops->device->alloc(bytes), *dqkv = ops->device->alloc(bytes),
         *scratch = ops->device->alloc(ops->scratch_bytes(&shape));
    Profile known = {0}, unknown = {0};
    const Ops *wrapped = profile_ops(ops, NULL);
    ops->device->zero(zeros, bytes);
    wrapped->attention_backward(dqkv, zeros, zeros, zeros, zeros, NULL, &mask, scratch, 1, TOKENS, HEADS,
                                SIZE);
    profile_collect(&unknown);
    wrapped->attention_backward(dqkv, zeros, zeros, zeros, zeros, zeros, &mask, scratch, 1, TOKENS, HEADS,
                                SIZE);
    profile_collect(&known);
    CHECK(unknown.rows[0].bytes - known.rows[0].bytes ==
              ELEMS * (double)dtype_bytes(ops->dtype) - TOKENS * HEADS * 4,
          "%s: attention_backward moves %g bytes, %g where D is known", ops->name, unknown.rows[0].bytes,
          known.rows[0].bytes);
    ops->device->free(zeros);
    ops->device->free(dqkv);
    ops->device->free(scratch);
}

/* Answers once an op, for the first two calls that are wrapped with one name, then with another. */
static int n_asked;
static const char *two_kernels(void) {
    static const char *const names[] = {"kernel_a", "kernel_b"};
    const int call = n_asked / 2, is_after = n_asked % 2; /* asked before an op and after it */
    n_asked++;
    return is_after ? names[call >= 2] : "kernel_before";
}

/* An op by two kernels has two rows, and the table names them. */
static void test_kernels(void) {
    Ops ops = ops_cpu;
    Profile profile = {0};
    float x = 0;
    ops.kernel_ran = two_kernels;
    const Ops *wrapped = profile_ops(&ops, NULL);
    for (int i = 0; i < 5; i++) wrapped->device->zero(&x, sizeof x);
    profile_collect(&profile);
    CHECK(profile.n_rows == 2 && profile.rows[0].calls == 2 && profile.rows[1].calls == 3,
          "%d rows, of %lld and %lld calls", profile.n_rows, (long long)profile.rows[0].calls,
          (long long)profile.rows[1].calls);
    char *text = printed_measured(&profile);
    CHECK(strstr(text, "kernel_a\n") && strstr(text, "kernel_b\n") && !strstr(text, "kernel_before"), "%s",
          text);
    free(text);
}

/* ---- the trace ---- */

static double number_of(const JsonValue *object, const char *key) {
    double value = NAN;
    json_double(json_get(object, key), &value);
    return value;
}

/* What a trace's slices add up to. */
typedef struct TraceSums {
    int ops, layers, phases, micro_steps;
    int64_t attention_layers[2 * L]; /* of forward, then of backward: calls */
    double flops, ms, reached;       /* reached: end of the last op, microseconds */
    double layers_ms, in_layers_ms;  /* of the layers, of their ops */
} TraceSums;

static void add_op(TraceSums *sums, const JsonValue *event) {
    const JsonValue *args = json_get(event, "args"), *name = json_get(event, "name");
    const double begin = number_of(event, "ts"), length = number_of(event, "dur");
    int64_t layer = -1, micro_step = -1;
    const bool in_layer = json_int64(json_get(args, "layer"), &layer);
    CHECK(begin >= sums->reached - 1e-6 && length >= 0, "%s: at %g us, behind %g", name->text, begin,
          sums->reached);
    if (strncmp(name->text, "attention_", 10) == 0 && CHECK(in_layer, "%s: no layer", name->text))
        sums->attention_layers[layer + (strncmp(name->text, "attention_back", 14) == 0 ? L : 0)]++;
    if (json_equals(json_get(event, "cat"), "update"))
        CHECK(!in_layer && !json_get(args, "micro-step"), "%s: of a micro-step", name->text);
    else if (!json_equals(json_get(event, "cat"), "begin"))
        CHECK(json_int64(json_get(args, "micro-step"), &micro_step) && micro_step >= 0 &&
                  micro_step < N_MICRO,
              "%s: no micro-step", name->text);
    sums->flops += number_of(args, "FLOP");
    sums->ms += 1e-3 * length;
    if (in_layer) sums->in_layers_ms += 1e-3 * length;
    sums->reached = begin + length;
    sums->ops++;
}

static TraceSums read_trace(const JsonValue *root) {
    TraceSums sums = {0};
    const JsonValue *events = json_get(root, "traceEvents");
    for (const JsonValue *e = events ? events->first : NULL; e; e = e->next) {
        const char *name = json_get(e, "name")->text;
        if (!json_equals(json_get(e, "ph"), "X")) continue;
        if (number_of(e, "tid") == 2)
            add_op(&sums, e);
        else if (strncmp(name, "layer", 5) == 0)
            sums.layers++, sums.layers_ms += 1e-3 * number_of(e, "dur");
        else if (strncmp(name, "micro-step", 10) == 0)
            sums.micro_steps++;
        else
            sums.phases++;
    }
    return sums;
}

/* Every call of the step in its layer, one behind the other, with the FLOP and the time of the table. */
static void check_trace(const Ops *ops, const Profile *profile) {
    int n;
    double flops = 0, ms = 0;
    const ProfileCall *calls = profile_calls(&n);
    const TraceHead head = {"program", "a \"device\"", "model", 0.5};
    JsonWriter w = {0};
    Error err = {0};
    trace_json(&w, &head, calls, n);
    Json *json = json_parse(w.text.data, w.text.length, "the trace", &err);
    if (!CHECK(json && n > 0, "%s: %s", ops->name, err.text)) return;
    const TraceSums sums = read_trace(json_root(json));
    for (int i = 0; i < profile->n_rows; i++)
        flops += profile->rows[i].flops, ms += 1e3 * profile->rows[i].seconds;
    CHECK(sums.ops == n && sums.flops == flops, "%s: %d ops of %d, %g FLOP of %g", ops->name, sums.ops, n,
          sums.flops, flops);
    CHECK(fabs(sums.ms - ms) <= 2e-6 * n + 1e-6 * ms, "%s: %g ms, by the table %g", ops->name, sums.ms, ms);
    for (int i = 0; i < 2 * L; i++)
        CHECK(sums.attention_layers[i] == N_MICRO, "%s: attention of layer %d: %lld calls", ops->name, i % L,
              (long long)sums.attention_layers[i]);
    CHECK(sums.micro_steps == N_MICRO && sums.layers == 2 * L * N_MICRO && sums.phases == 4 * N_MICRO + 2,
          "%s: %d micro-steps, %d layers, %d phases", ops->name, sums.micro_steps, sums.layers, sums.phases);
    CHECK(sums.layers_ms >= sums.in_layers_ms && sums.layers_ms <= sums.reached,
          "%s: layers of %g ms, their ops take %g", ops->name, sums.layers_ms, sums.in_layers_ms);
    const JsonValue *other = json_get(json_root(json), "otherData");
    CHECK(json_equals(json_get(other, "device"), head.device) && number_of(other, "ops") == n &&
              fabs(number_of(other, "ms of all ops") - ms) <= 2e-6 * n + 1e-6 * ms,
          "%s: the trace's head", ops->name);
    json_free(json);
    json_writer_free(&w);
}

/* A new file, and no other. */
static void test_trace_file(void) {
    char folder[] = "/tmp/test_profile_XXXXXX", path[64];
    const TraceHead head = {"program", "device", "model", 0.5};
    Error err = {0};
    size_t size = 0;
    if (!CHECK(mkdtemp(folder), "no folder")) return;
    snprintf(path, sizeof path, "%s/trace", folder);
    CHECK(trace_check(path, &err) && trace_write(path, &head, NULL, 0, &err), "%s", err.text);
    char *text = file_read(path, 1 << 20, &size, &err);
    Json *json = text ? json_parse(text, size, path, &err) : NULL;
    CHECK(json && json_get(json_root(json), "traceEvents")->n == 3, "a trace of nothing: %s", err.text);
    json_free(json);
    free(text);
    CHECK(!trace_check(path, &err) && strstr(err.text, "is there already (a file)"), "%s", err.text);
    CHECK(!trace_write(path, &head, NULL, 0, &err) && err.exit_code == EXIT_INPUT, "a file was replaced");
    snprintf(path, sizeof path, "%s/none/trace", folder);
    CHECK(!trace_check(path, &err) && strstr(err.text, "cannot write in /tmp/"), "%s", err.text);
    CHECK(trace_check("/a_trace_in_the_root", &err) || strstr(err.text, "cannot write in /:"), "%s",
          err.text);
    snprintf(path, sizeof path, "%s/trace", folder);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0, "something else was left");
}

static void test_backend(const Ops *ops) {
    Profile none = {0};
    profile_ops(ops, NULL);
    profile_collect(&none);
    CHECK(none.n_rows == 0 && none.n_steps == 0, "a profile of nothing has rows");
    test_known_d(ops);
    const Recompute levels[] = {RECOMPUTE_NONE, RECOMPUTE_BLOCK};
    for (int i = 0; i < 2; i++) {
        Profile profile = {0};
        float *plain = train(ops, levels[i], NULL), *wrapped = train(ops, levels[i], &profile);
        if (plain && wrapped)
            CHECK(memcmp(plain, wrapped, (size_t)parameters() * sizeof *plain) == 0,
                  "%s: profiling changes some bits", ops->name);
        if (wrapped && levels[i] == RECOMPUTE_NONE) {
            check_rows(ops, &profile);
            check_table(&profile);
            check_trace(ops, &profile);
        }
        free(plain);
        free(wrapped);
    }
}

int main(void) {
    test_roofs();
    test_means();
    test_copy_rate();
    const Ops *const tables[] = {&ops_cpu, ops_cuda_fp32, ops_cuda_bf16};
    for (int i = 0; i < 3; i++) {
        Error err = {0};
        if (i > 0 && !cuda_available())
            SKIP("the profile of a CUDA table: no CUDA device or a build without CUDA");
        else if (CHECK(tables[i]->device->open(0, &err), "%s", err.text))
            test_backend(tables[i]);
    }
    test_too_many_calls(&ops_cpu);
    test_kernels();
    test_trace_file();
    return check_finish("profile");
}
