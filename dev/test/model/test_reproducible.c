/* --reproducible: training has the same bits at every number of ranks. A process alone says what is expected; ranks are
 * processes of this test, on the CPU. */
#include "llmc/base/parallel.h"
#include "dev/test/forked_ranks.h"
#include "dev/test/tiny_model.h"

enum { T = 8, STEPS = 3, MAX_PARAMETERS = 60000 };

typedef struct Case {
    int n_leaves, n_micro; /* micro-batches of a step */
    GPT2Options options;
    float dropout;
    StepStats stats[STEPS];
    float values[1 + N_STATES][MAX_PARAMETERS]; /* weights, then states, as llm.c counts parameters */
} Case;

static void open_model(GPT2 *model, const Ops *ops, const Case *c, Comm *comm) {
    GPT2Config config = tiny_config;
    GPT2Options options = c->options;
    Error err = {0};
    config.dropout = c->dropout;
    options.B = 1;
    options.T = T;
    options.training = true;
    options.comm = comm;
    options.reproducible = c->n_leaves;
    if (!gpt2_open(model, ops, &config, &options, &err)) die(&err);
    tiny_fill(model, 3);
    tiny_zero_states(model);
}

/* This rank's part of a step of n_micro micro-batches, but for the update. */
static void feed(GPT2 *model, int step, int n_micro) {
    const int own = n_micro / model->comm->ranks.n_ranks, first = own * model->comm->ranks.rank;
    int32_t tokens[T], targets[T];
    gpt2_begin_step(model, own);
    for (int i = first; i < first + own; i++) {
        for (int t = 0; t < T; t++) {
            tokens[t] = (7 * t + 13 * i + step) % 250;
            targets[t] = (5 * t + 3 * i + step) % 250;
        }
        gpt2_micro_step(model, tokens, targets, 1, T, 1.0f / (float)n_micro);
    }
}

static StepStats train_step(GPT2 *model, int step, int n_micro) {
    const UpdateArgs args = {step + 1, 1e-2f, 0.9f, 0.99f, 1e-2f, 0.1f, 0.5f, .momentum = 0.9f};
    feed(model, step, n_micro);
    gpt2_update(model, &args);
    return gpt2_step_stats(model);
}

/* Whether parameters of this piece have what buffer k holds. */
static bool has_buffer(const GPT2 *model, const TinyPiece *piece, int k) {
    return k == 0 || optimizer_of(model->options.optimizer, model->tensors[piece->id].group) ==
                         optimizer_states[k - 1].kind;
}

/* Elements of buffer k that are not those of the process alone, which notes its own. */
static int64_t differences(const float *buffer, const GPT2 *model, int k, float *values, bool alone) {
    TinyPiece pieces[4 + 2 * 12];
    const int n_pieces = tiny_pieces(model, pieces);
    int64_t n = 0;
    for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++) {
        if (!has_buffer(model, p, k)) continue;
        if (alone) memcpy(values + p->first, buffer + p->at, (size_t)p->n * sizeof *values);
        for (int64_t i = 0; i < p->n; i++)
            n += memcmp(&values[p->first + i], &buffer[p->at + i], sizeof *values) != 0;
    }
    return n;
}

static void train(Comm *comm, void *user) {
    Case *c = user;
    GPT2 model;
    open_model(&model, &ops_cpu, c, comm);
    const Ranks ranks = model.comm->ranks;
    for (int step = 0; step < STEPS; step++) {
        const StepStats got = train_step(&model, step, c->n_micro);
        if (!comm) c->stats[step] = got;
        CHECK(memcmp(&got, &c->stats[step], sizeof got) == 0,
              "%d leaves, rank %d of %d, step %d: loss %a, norm %a; alone %a, %a", c->n_leaves, ranks.rank,
              ranks.n_ranks, step, (double)got.loss, (double)got.grad_norm, (double)c->stats[step].loss,
              (double)c->stats[step].grad_norm);
    }
    for (int k = 0; k <= N_STATES; k++) {
        if (k > 0 && !model.states[k - 1]) continue;
        const float *buffer =
            k == 0 ? gpt2_gather_master(&model) : gpt2_gather_state(&model, (StateId)(k - 1));
        const int64_t n = differences(buffer, &model, k, c->values[k], !comm);
        CHECK(n == 0, "%d leaves, rank %d of %d: %lld of buffer %d are others", c->n_leaves, ranks.rank,
              ranks.n_ranks, (long long)n, k);
    }
    gpt2_close(&model);
}

static void test_case(Case settings) {
    Case *c = forked_memory(sizeof *c);
    *c = settings;
    train(NULL, c);
    CHECK(c->stats[0].loss != c->stats[STEPS - 1].loss, "%d leaves: nothing is learned", c->n_leaves);
    for (int n = 2; n <= 6; n++)
        if (c->n_leaves % n == 0) CHECK(forked_run(n, train, c), "%d leaves, %d ranks", c->n_leaves, n);
    munmap(c, sizeof *c);
}

/* ---- one process: the tree itself ---- */

/* Gradients of a step, whose leaves are those micro-batches. */
static float *gradients(int n_leaves, int n_micro) {
    const Case c = {.n_leaves = n_leaves};
    GPT2 model;
    open_model(&model, &ops_cpu, &c, NULL);
    float *grads = malloc((size_t)model.n_elements * sizeof *grads);
    train_step(&model, 0, n_micro);
    memcpy(grads, model.grads, (size_t)model.n_elements * sizeof *grads);
    gpt2_close(&model);
    return grads;
}

/* One leaf is the plain sum; three are another sum of the same, but for rounding. */
static void test_leaves(void) {
    float *plain = gradients(0, 6), *one = gradients(1, 6), *three = gradients(3, 6);
    GPT2 model;
    open_model(&model, &ops_cpu, &(Case){.n_leaves = 3}, NULL);
    int64_t other_bits = 0, n = model.n_elements;
    double square = 0, difference = 0;
    for (int64_t i = 0; i < n; i++) {
        other_bits += memcmp(&plain[i], &three[i], sizeof *plain) != 0;
        square += (double)plain[i] * plain[i];
        difference += ((double)plain[i] - three[i]) * ((double)plain[i] - three[i]);
    }
    CHECK(memcmp(plain, one, (size_t)n * sizeof *plain) == 0, "one leaf is not the plain sum");
    CHECK(other_bits > n / 100 && sqrt(difference / square) < 1e-6,
          "three leaves: %lld of %lld gradients have other bits, %g of the norm off", (long long)other_bits,
          (long long)n, sqrt(difference / square));
    free(plain);
    free(one);
    free(three);
    gpt2_close(&model);
}

/* ---- memory ---- */

static size_t planned(const char *name, int n_leaves, int n_ranks) {
    Comm comm = comm_planned(n_ranks);
    const GPT2Options o = {.B = 1, .T = T, .training = true, .comm = &comm, .reproducible = n_leaves};
    MemoryPlan plan;
    gpt2_memory_plan(&plan, &ops_cpu, &tiny_config, &o);
    for (int i = 0; i < plan.n_rows; i++)
        if (strcmp(plan.rows[i].name, name) == 0) return plan.rows[i].bytes;
    return 0;
}

/* A rank with one leaf keeps nothing; others keep whole gradients, as many as siblings wait. */
static void test_memory(void) {
    static const struct {
        int n_leaves, n_ranks, kept, received; /* in gradients of all; in gradients of the largest layer */
    } cases[] = {
        {0,  1, 0, 0},
        {0,  4, 0, 0},
        {8,  1, 3, 0},
        {8,  2, 2, 0},
        {8,  4, 1, 1},
        {8,  8, 0, 1},
        {12, 1, 3, 0},
        {12, 2, 3, 2},
        {12, 3, 2, 1},
        {12, 4, 2, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int N = cases[i].n_leaves, n = cases[i].n_ranks;
        Tensor tensors[N_TENSORS];
        gpt2_tensors(tensors, &tiny_config, n);
        const ParameterRange block = gpt2_layer_range(tensors, 0), embedding = gpt2_layer_range(tensors, -1);
        const int64_t a = block.n, b = embedding.n, largest = a > b ? a : b;
        CHECK(planned("kept sums (fp32)", N, n) == (size_t)(cases[i].kept * gpt2_n_elements(tensors) * 4),
              "%d leaves, %d ranks: %zu bytes of kept sums", N, n, planned("kept sums (fp32)", N, n));
        CHECK(planned("received sums (fp32)", N, n) == (size_t)(cases[i].received * largest * 4),
              "%d leaves, %d ranks: %zu bytes of received sums", N, n, planned("received sums (fp32)", N, n));
    }
}

/* ---- streams ---- */

/* What is queued, a word each: records and waits with the event and the stream, exchanges and sums with their stream. */
static char queued[2000];
static void note(const char *what, StreamId stream) {
    const size_t length = strlen(queued);
    snprintf(queued + length, sizeof queued - length, "%s@%s ", what,
             stream == STREAM_MAIN ? "main" : "side");
}
static void note_event(const char *final, const char *reduced, EventId event, StreamId stream) {
    if (event == EVENT_GRADS_FINAL) note(final, stream);
    if (event == EVENT_GRADS_REDUCED) note(reduced, stream);
}
static void note_record(EventId event, StreamId stream) {
    note_event("+final", "+received", event, stream);
}
static void note_wait(StreamId stream, EventId event) {
    note_event("?final", "?received", event, stream);
}
static void note_exchange(Comm *comm, StreamId stream, void *out, const void *in, int64_t bytes) {
    note("exchange", stream);
}
static void note_sum(float *out, const float *a, const float *b, int64_t n) {
    note("sum", STREAM_MAIN);
}

/* Of two leaves a rank, layer by layer: the second joins the first, the sum goes to the ranks; the next layer's goes once
 * what came in meanwhile is added. */
static void test_order(void) {
    static const char first[] = "sum@main +final@main ?final@side exchange@side ",
                      next[] = "sum@main +received@side ?received@main sum@main sum@main "
                               "+final@main ?final@side exchange@side ",
                      last[] = "+received@side ?received@main sum@main sum@main ";
    Comm comm = comm_planned(3);
    Device device = device_cpu;
    Ops ops = ops_cpu;
    GPT2 model;
    char want[sizeof queued];
    device.event_record = note_record;
    device.stream_wait = note_wait;
    ops.device = &device;
    ops.sum_gradients = note_sum;
    comm.all_to_all = note_exchange;
    open_model(&model, &ops, &(Case){.n_leaves = 6}, &comm);
    feed(&model, 0, 6);
    gpt2_close(&model);
    snprintf(want, sizeof want, "%s%s%s%s%s", first, next, next, next, last);
    CHECK(strcmp(queued, want) == 0, "%s; expected %s", queued, want);
}

int main(void) {
    cpu_set_thread_count(1);
    test_leaves();
    test_order();
    test_memory();
    test_case((Case){.n_leaves = 12, .n_micro = 24});
    test_case((Case){.n_leaves = 6, .n_micro = 6, .options = {.recompute = RECOMPUTE_BLOCK}});
    test_case((Case){.n_leaves = 5, .n_micro = 5});
    test_case((Case){.n_leaves = 12, .n_micro = 12, .options = {.optimizer = OPTIMIZER_MUON}});
    test_case((Case){.n_leaves = 4, .n_micro = 16, .options = {.dropout_seed = 1}, .dropout = 0.2f});
    return check_finish("reproducible");
}
