/* Ranks that train one model: processes of this test, on the CPU. */
#include "llmc/cpu/cpu.h"
#include "llmc/base/parallel.h"
#include "dev/test/forked_ranks.h"
#include "dev/test/tiny_model.h"

enum { T = 8, STEPS = 3, N_MICRO = 30, MAX_PARAMETERS = 60000 };

static const UpdateArgs update = {
    .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-2f, .weight_decay = 0.1f, .clip = 0.5f};

/* With dropout weights of 40 channels, which end within a tile. */
static void open_model(GPT2 *model, const Ops *ops, GPT2Options options, float dropout, Comm *comm) {
    GPT2Config config = tiny_config;
    Error err = {0};
    config.dropout = dropout;
    if (dropout > 0) config.n_embd = 40, config.n_head = 5;
    options.B = 1;
    options.T = T;
    options.training = true;
    options.comm = comm;
    if (!gpt2_open(model, ops, &config, &options, &err)) die(&err);
    tiny_fill(model, 3);
    tiny_zero_states(model);
}

/* Micro-batch i of a step of all ranks. */
static void micro_step(GPT2 *model, int step, int i, float weight) {
    int32_t tokens[T], targets[T];
    for (int t = 0; t < T; t++) {
        tokens[t] = (7 * t + 13 * i + step) % 250;
        targets[t] = (5 * t + 3 * i + step) % 250;
    }
    gpt2_micro_step(model, tokens, targets, 1, T, weight);
}

/* One step of n micro-batches in all, of which a rank takes its part. */
static StepStats train_step(GPT2 *model, int step, int n) {
    const int own = n / model->comm->ranks.n_ranks, first = own * model->comm->ranks.rank;
    UpdateArgs args = update;
    args.step = step + 1;
    gpt2_begin_step(model, own);
    for (int i = 0; i < own; i++) micro_step(model, step, first + i, 1.0f / (float)n);
    gpt2_update(model, &args);
    return gpt2_step_stats(model);
}

/* ---- as one ---- */

typedef struct Case {
    const char *name;
    GPT2Options options;
    float dropout;
    StepStats stats[STEPS];
    float values[3][MAX_PARAMETERS]; /* weights, m, v, as llm.c counts parameters */
} Case;

static const float *whole_buffer(GPT2 *model, int k) {
    return k == 0 ? gpt2_gather_master(model) : gpt2_gather_state(model, (StateId)(k - 1));
}

/* A process alone says what is expected; ranks are held against it. */
static void train(Comm *comm, void *user) {
    Case *c = user;
    TinyPiece pieces[4 + 2 * 12];
    GPT2 model;
    open_model(&model, &ops_cpu, c->options, c->dropout, comm);
    const int n_pieces = tiny_pieces(&model, pieces);
    const int rank = comm ? comm->ranks.rank : 0, n_ranks = comm ? comm->ranks.n_ranks : 1;
    for (int step = 0; step < STEPS; step++) {
        const StepStats got = train_step(&model, step, N_MICRO), want = c->stats[step];
        if (!comm) c->stats[step] = got;
        if (comm)
            CHECK(fabsf(got.loss - want.loss) <= 1e-6f && !got.bad && !got.stop &&
                      fabsf(got.grad_norm - want.grad_norm) <= 1e-6f * want.grad_norm,
                  "%s, rank %d of %d, step %d: loss %.8g, norm %.8g; alone %.8g, %.8g", c->name, rank,
                  n_ranks, step, (double)got.loss, (double)got.grad_norm, (double)want.loss,
                  (double)want.grad_norm);
    }
    for (int k = 0; k < 3; k++) {
        const float *buffer = whole_buffer(&model, k);
        double worst = 0;
        for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++)
            for (int64_t i = 0; i < p->n; i++) {
                float *want = &c->values[k][p->first + i];
                if (!comm) *want = buffer[p->at + i];
                worst = worse(worst, fabs((double)buffer[p->at + i] - *want));
            }
        CHECK(worst <= 1e-6, "%s, rank %d of %d: %s is off by %g", c->name, rank, n_ranks,
              k ? optimizer_states[k - 1].name : "a weight", worst);
    }
    CHECK(memcmp(gpt2_gather_master(&model), model.weights, (size_t)model.n_elements * sizeof(float)) == 0,
          "%s, rank %d of %d: weights are not the master's", c->name, rank, n_ranks);
    gpt2_close(&model);
}

static void test_as_one(const char *name, GPT2Options options, float dropout) {
    Case *c = forked_memory(sizeof *c);
    *c = (Case){.name = name, .options = options, .dropout = dropout};
    train(NULL, c);
    CHECK(c->stats[0].loss != c->stats[2].loss && c->stats[0].grad_norm > update.clip,
          "%s: nothing is learned", name);
    for (int n = 1; n <= 6; n++)
        if (N_MICRO % n == 0) CHECK(forked_run(n, train, c), "%s: %d ranks", name, n);
    munmap(c, sizeof *c);
}

/* ---- one for all ---- */

/* A rank whose loss is no number leaves the step out on all. What it has is undone by those whose parts they are. */
static void bad_rank(Comm *comm, void *user) {
    GPT2 model;
    open_model(&model, &ops_cpu, (GPT2Options){0}, 0, comm);
    const size_t bytes = (size_t)model.n_elements * sizeof(float);
    float *before = malloc(bytes);
    memcpy(before, model.master, bytes);
    const int64_t of_rank_0 = gpt2_own_part(&model, -1).begin;
    if (comm->ranks.rank == 1) ((float *)model.weights)[0] = NAN; /* rank 0's part */
    CHECK((of_rank_0 == 0) == (comm->ranks.rank == 0), "rank %d's part begins at %lld", comm->ranks.rank,
          (long long)of_rank_0);
    const StepStats bad = train_step(&model, 0, N_MICRO);
    CHECK(bad.bad && bad.n_skipped == 1, "rank %d: bad %d, %lld steps left out", comm->ranks.rank, bad.bad,
          (long long)bad.n_skipped);
    CHECK(memcmp(before, model.master, bytes) == 0, "rank %d: a bad step changed weights", comm->ranks.rank);
    const StepStats good = train_step(&model, 1, N_MICRO);
    CHECK(!good.bad && good.n_skipped == 1 && memcmp(before, model.master, bytes) != 0,
          "rank %d: bad %d, %lld steps left out behind a good one", comm->ranks.rank, good.bad,
          (long long)good.n_skipped);
    free(before);
    gpt2_close(&model);
}

/* A stop that one rank asks for reaches all, once. */
static void stopped_rank(Comm *comm, void *user) {
    GPT2 model;
    open_model(&model, &ops_cpu, (GPT2Options){0}, 0, comm);
    for (int step = 0; step < 3; step++) {
        gpt2_begin_step(&model, 1);
        micro_step(&model, step, 0, 1.0f / (float)comm->ranks.n_ranks);
        if (step == 1 && comm->ranks.rank == comm->ranks.n_ranks - 1) gpt2_request_stop(&model);
        gpt2_update(&model, &update);
        CHECK(gpt2_step_stats(&model).stop == (step == 1), "rank %d, step %d: stop %d", comm->ranks.rank,
              step, gpt2_step_stats(&model).stop);
    }
    gpt2_close(&model);
}

/* ---- sharded master weights, as bf16 has them ---- */

/* AdamW whose weights are the upper halves of the master's. */
static void adamw_halves(const AdamWArgs *args) {
    AdamWArgs whole = *args;
    whole.weights = whole.master;
    cpu_adamw(&whole);
    for (int64_t i = 0; i < args->n_tiles * PARAMETER_TILE; i++) {
        uint32_t bits;
        memcpy(&bits, &args->master[i], sizeof bits);
        ((uint16_t *)args->weights)[i] = (uint16_t)(bits >> 16);
    }
}
static void halves_from_master(floatX *weights, const float *master, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &master[i], sizeof bits);
        ((uint16_t *)weights)[i] = (uint16_t)(bits >> 16);
    }
}
static Ops ops_of_halves(void) {
    Ops ops = ops_cpu;
    ops.dtype = DTYPE_BF16;
    ops.adamw = adamw_halves;
    ops.weights_from_master = halves_from_master;
    return ops;
}

typedef struct Halves {
    float values[3][MAX_PARAMETERS];
    uint16_t weights[MAX_PARAMETERS];
} Halves;

/* Gradients that all ranks have in full, a step, and all that comes of it: the same bits at any number of ranks. */
static void step_of_halves(Comm *comm, void *user) {
    Halves *want = user;
    const Ops ops = ops_of_halves();
    TinyPiece pieces[4 + 2 * 12];
    UpdateArgs args = update;
    GPT2 model;
    int64_t wrong[4] = {0};
    open_model(&model, &ops, (GPT2Options){0}, 0, comm);
    const int n_pieces = tiny_pieces(&model, pieces);
    gpt2_begin_step(&model, 1);
    for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++)
        for (int64_t i = 0; i < p->n; i++) model.grads[p->at + i] = tiny_element(p, 9, 0, i);
    args.step = 1;
    gpt2_update(&model, &args);
    for (int k = 0; k < 4; k++) {
        const float *buffer = k < 3 ? whole_buffer(&model, k) : NULL;
        for (const TinyPiece *p = pieces; p < pieces + n_pieces; p++)
            for (int64_t i = 0; i < p->n; i++) {
                float *value = &want->values[k % 3][p->first + i];
                uint16_t *half = &want->weights[p->first + i];
                const uint16_t got = ((uint16_t *)model.weights)[p->at + i];
                if (!comm && k < 3) *value = buffer[p->at + i];
                if (!comm && k == 3) *half = got;
                wrong[k] += k < 3 ? *value != buffer[p->at + i] : *half != got;
            }
        CHECK(wrong[k] == 0, "%lld elements of buffer %d differ", (long long)wrong[k], k);
    }
    gpt2_close(&model);
}

/* ---- states in pieces ---- */

/* A state that comes in pieces of odd sizes goes out whole, on every rank. */
static void set_and_gather(Comm *comm, void *user) {
    GPT2 model;
    open_model(&model, &ops_cpu, (GPT2Options){0}, 0, comm);
    float *values = malloc((size_t)model.n_elements * sizeof *values);
    for (int64_t i = 0; i < model.n_elements; i++) values[i] = (float)i;
    for (int64_t i = 0, n; i < model.n_elements; i += n) {
        n = i % 7001 + 1 < model.n_elements - i ? i % 7001 + 1 : model.n_elements - i;
        gpt2_set_state(&model, ADAMW_V, values + i, i, n);
    }
    CHECK(memcmp(gpt2_gather_state(&model, ADAMW_V), values, (size_t)model.n_elements * sizeof *values) == 0,
          "rank %d has another state", comm->ranks.rank);
    const float *m = gpt2_gather_state(&model, ADAMW_M);
    for (int64_t i = 0; i < model.n_elements; i++) values[0] += m[i] != 0;
    CHECK(values[0] == 0, "rank %d: %g elements of m", comm->ranks.rank, (double)values[0]);
    free(values);
    gpt2_close(&model);
}

/* ---- memory ---- */

static size_t allocated;
static void *counted_alloc(size_t bytes) {
    allocated += bytes;
    return device_cpu.alloc(bytes);
}
/* What is planned is allocated; a rank of n has an n-th of what is sharded. Some parts are padding alone. */
static void test_memory(DType dtype) {
    const Ops halves = ops_of_halves();
    Ops ops = dtype == DTYPE_F32 ? ops_cpu : halves;
    Device device = device_cpu;
    device.alloc = counted_alloc;
    ops.device = &device;
    for (int n = 1; n <= 5; n++) {
        Comm comm = comm_planned(n);
        GPT2 model;
        MemoryPlan plan;
        int n_sharded = 0;
        comm.fixed_bytes = 1000;
        allocated = 0;
        open_model(&model, &ops, (GPT2Options){0}, 0, &comm);
        gpt2_memory_plan(&plan, &ops, &tiny_config, &model.options);
        CHECK(allocated == plan.total_bytes - device.fixed_bytes() - 1000, "%d ranks: %zu bytes, planned %zu",
              n, allocated, plan.total_bytes);
        CHECK(model.n_elements % (n * PARAMETER_TILE) == 0, "%d ranks: %lld elements", n,
              (long long)model.n_elements);
        for (int i = 0; i < plan.n_rows; i++) {
            const char *part = strstr(plan.rows[i].name, " (1/");
            n_sharded +=
                part && atoi(part + 4) == n && plan.rows[i].bytes == (size_t)model.n_elements / (size_t)n * 4;
        }
        CHECK(n_sharded == (n == 1               ? 0
                            : dtype == DTYPE_F32 ? 2
                                                 : 3),
              "%d ranks: %d buffers in parts", n, n_sharded);
        if (n == 5) {
            const OwnSpan last = gpt2_own_part(&model, 2);
            comm.ranks.rank = 4;
            CHECK(gpt2_own_part(&model, 2).begin >= model.tensors[LN_F_B].offset + PARAMETER_TILE,
                  "the part of rank 4 begins at %lld, that of rank 0 at %lld",
                  (long long)gpt2_own_part(&model, 2).begin, (long long)last.begin);
        }
        gpt2_close(&model);
    }
}

/* ---- streams ---- */

/* What is queued, a word each: records and waits with the event and the stream, exchanges with their stream. */
static char queued[2000];
static void note(const char *what, int event, int stream) {
    static const char *const events[N_EVENTS] = {[EVENT_GRADS_FINAL] = "final",
                                                 [EVENT_GRADS_REDUCED] = "reduced",
                                                 [EVENT_WEIGHTS_UPDATED] = "updated",
                                                 [EVENT_WEIGHTS_GATHERED] = "gathered"};
    const size_t length = strlen(queued);
    if (event >= 0 && !events[event]) return;
    snprintf(queued + length, sizeof queued - length, "%s%s%s ", what, event < 0 ? "" : events[event],
             stream == STREAM_MAIN ? "@main" : "@side");
}
static void note_record(EventId event, StreamId stream) {
    note("+", (int)event, stream);
}
static void note_wait(StreamId stream, EventId event) {
    note("?", (int)event, stream);
}
static void note_reduce(Comm *comm, StreamId stream, float *x, int64_t n) {
    note("reduce", -1, stream);
}
static void note_gather(Comm *comm, StreamId stream, void *x, int64_t n, DType dtype) {
    note("gather", -1, stream);
}
static void note_sum(Comm *comm, StreamId stream, int64_t *x, int64_t n) {
    note("sum", -1, stream);
}
static void note_adamw(const AdamWArgs *args) {
    note("adamw", -1, STREAM_MAIN);
}

/* Exchanges of ranges run beside what follows; the main stream waits once for sums and once for weights. */
static void test_order(int n_ranks, const char *in_step, const char *in_update) {
    Comm comm = comm_planned(n_ranks);
    Device device = device_cpu;
    Ops ops = ops_cpu;
    GPT2 model;
    device.event_record = note_record;
    device.stream_wait = note_wait;
    ops.device = &device;
    ops.adamw = note_adamw;
    comm.reduce_scatter = note_reduce;
    comm.all_gather = note_gather;
    comm.sum_int64 = note_sum;
    open_model(&model, &ops, (GPT2Options){0}, 0, &comm);
    gpt2_begin_step(&model, 2);
    micro_step(&model, 0, 0, 0.5f);
    CHECK(queued[0] == 0, "%d ranks: before the last micro-step: %s", n_ranks, queued);
    micro_step(&model, 0, 1, 0.5f);
    CHECK(strcmp(queued, in_step) == 0, "%d ranks: %s", n_ranks, queued);
    queued[0] = 0;
    gpt2_update(&model, &update);
    CHECK(strcmp(queued, in_update) == 0, "%d ranks: %s", n_ranks, queued);
    queued[0] = 0;
    gpt2_close(&model);
}

/* ---- dropout ---- */

/* The masks of rank r's micro-step i are those of a process alone in its micro-step r * n + i. */
static void test_dropout_keys(void) {
    enum { N_RANKS = 3, N = 2 };
    uint64_t keys[N_RANKS * N];
    GPT2 model;
    open_model(&model, &ops_cpu, (GPT2Options){.dropout_seed = 5}, 0.1f, NULL);
    gpt2_begin_step(&model, N_RANKS * N);
    for (int i = 0; i < N_RANKS * N; i++) {
        micro_step(&model, 0, i, 1);
        keys[i] = *model.dropout_key;
        for (int k = 0; k < i; k++) CHECK(keys[k] != keys[i], "micro-steps %d and %d drop the same", k, i);
    }
    gpt2_close(&model);
    for (int rank = 0; rank < N_RANKS; rank++) {
        Comm comm = comm_planned(N_RANKS);
        comm.ranks.rank = rank;
        open_model(&model, &ops_cpu, (GPT2Options){.dropout_seed = 5}, 0.1f, &comm);
        gpt2_begin_step(&model, N);
        for (int i = 0; i < N; i++) {
            micro_step(&model, 0, rank * N + i, 1);
            CHECK(*model.dropout_key == keys[rank * N + i], "rank %d, micro-step %d", rank, i);
        }
        gpt2_close(&model);
    }
}

int main(void) {
    cpu_set_thread_count(1);
    test_as_one("all saved", (GPT2Options){.recompute = RECOMPUTE_NONE}, 0);
    test_as_one("recompute block", (GPT2Options){.recompute = RECOMPUTE_BLOCK}, 0);
    test_as_one("dropout", (GPT2Options){.dropout_seed = 1}, 0.2f);
    CHECK(forked_run(2, bad_rank, NULL) && forked_run(3, bad_rank, NULL), "a bad rank");
    CHECK(forked_run(1, stopped_rank, NULL) && forked_run(3, stopped_rank, NULL), "a rank that stops");
    CHECK(forked_run(1, set_and_gather, NULL) && forked_run(3, set_and_gather, NULL), "a state in pieces");
    Halves *halves = forked_memory(sizeof *halves);
    step_of_halves(NULL, halves);
    for (int n = 1; n <= 5; n++) CHECK(forked_run(n, step_of_halves, halves), "bf16, %d ranks", n);
    test_memory(DTYPE_F32);
    test_memory(DTYPE_BF16);
    test_order(1, "", "sum@main adamw@main ");
    test_order(2,
               "+final@main ?final@side reduce@side +final@main ?final@side reduce@side "
               "+final@main ?final@side reduce@side +final@main ?final@side reduce@side "
               "+reduced@side ?reduced@main ",
               "sum@main adamw@main +updated@main ?updated@side gather@side "
               "adamw@main +updated@main ?updated@side gather@side "
               "adamw@main +updated@main ?updated@side gather@side "
               "adamw@main +updated@main ?updated@side gather@side +gathered@side ?gathered@main ");
    test_dropout_keys();
    return check_finish("comm");
}
