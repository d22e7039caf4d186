/* What must be equal bit for bit: weights over ranks, a step computed twice. Bits are flipped here and there. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "dev/test/check.h"
#include "dev/test/folder.h"
#include "llmc/run/training.h"
#include "llmc/run/verify.h"

/* ---- ranks that compare, each a thread ---- */

enum { MAX_RANKS = 5 };
static pthread_barrier_t all_here;
static const char *shared[MAX_RANKS];

typedef struct Rank {
    Comm comm;
    const Rendezvous *r;
    uint64_t hash;
    bool equal;
    Error err;
} Rank;

static void gather_over_threads(Comm *comm, void *out, const void *mine, int64_t bytes) {
    shared[comm->ranks.rank] = mine;
    pthread_barrier_wait(&all_here);
    for (int r = 0; r < comm->ranks.n_ranks; r++) memcpy((char *)out + r * bytes, shared[r], (size_t)bytes);
    pthread_barrier_wait(&all_here);
}

static void *compare(void *argument) {
    Rank *rank = argument;
    rank->equal = verify_weights(&rank->comm, rank->r, rank->hash, 300, &rank->err);
    return NULL;
}

/* `said`: how the line ends; NULL: the weights are equal. */
static void test_ranks(int n, const Rendezvous *r, const uint64_t *hashes, const char *said) {
    Rank ranks[MAX_RANKS] = {0};
    pthread_t threads[MAX_RANKS];
    pthread_barrier_init(&all_here, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        ranks[i].comm = (Comm){
            .ranks = {i, n},
              .gather_on_host = gather_over_threads
        };
        ranks[i].r = r;
        ranks[i].hash = hashes[i];
        pthread_create(&threads[i], NULL, compare, &ranks[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&all_here);
    for (int i = 0; i < n; i++) {
        CHECK(ranks[i].equal == !said, "rank %d of %d: %s", i, n, ranks[i].err.text);
        if (said)
            CHECK(strcmp(ranks[i].err.text, said) == 0 && ranks[i].err.exit_code == EXIT_RUN, "%s",
                  ranks[i].err.text);
    }
}

static void test_verify_weights(void) {
    char hosts[3][HOST_NAME] = {"alpha", "beta", "gamma"};
    const Rendezvous unnamed = {0}, named = {.hosts = hosts};
    const uint64_t a = 0xfedcba9876543210u, b = a ^ (1ull << 63), c = a ^ 1;
    test_ranks(2, &unnamed, (uint64_t[]){a, a}, NULL);
    test_ranks(5, &unnamed, (uint64_t[]){b, b, b, b, b}, NULL);
    test_ranks(2, &unnamed, (uint64_t[]){a, b},
               "step 300: the weights of rank 0 and rank 1 differ, and must not");
    test_ranks(3, &unnamed, (uint64_t[]){a, a, c},
               "step 300: the weights of rank 2 differ from those of the others, and must not");
    test_ranks(3, &unnamed, (uint64_t[]){c, a, a},
               "step 300: the weights of rank 0 differ from those of the others, and must not");
    test_ranks(5, &unnamed, (uint64_t[]){a, b, a, c, a},
               "step 300: the weights of rank 1 and 1 more differ from those of the others, and must not");
    test_ranks(4, &unnamed, (uint64_t[]){a, a, c, c},
               "step 300: the weights of the ranks differ, and must not");
    test_ranks(2, &named, (uint64_t[]){a, b},
               "step 300: the weights of rank 0 (alpha) and rank 1 (beta) differ, and must not");
    test_ranks(3, &named, (uint64_t[]){a, c, a},
               "step 300: the weights of rank 1 (beta) differ from those of the others, and must not");
}

/* ---- a run ---- */

static char text[64];

/* A new run of 3 micro-steps a step. */
static bool open_run(Run *run, Training *t, Comm *comm, int64_t verify_every) {
    char *argv[] = {"train_gpt2", "--device",   "cpu",   "--train",           text,  "--layers",
                    "2",          "--channels", "32",    "--heads",           "2",   "--seq",
                    "16",         "--batch",    "1",     "--tokens-per-step", "48",  "--dropout",
                    "0.2",        "--steps",    "9",     "--warmup",          "0",   "--optimizer",
                    "adamw",      "--lr",       "0.003", "--beta2",           "0.99"};
    Error err = {0};
    *run = (Run){.comm = comm};
    *t = (Training){
        .run = run,
        .val_step = -1,
        .saving = {.last_saved = -1, .last_verified = -1},
        .step_seconds = INFINITY,
        .peak_flops = 1e12
    };
    bool ok = flags_parse(&run->settings, sizeof argv / sizeof *argv, argv, &err) && setup_backend(run, &err);
    if (comm->ranks.n_ranks > 1) run->settings.tokens_per_step *= comm->ranks.n_ranks;
    run->settings.verify_every = verify_every;
    ok = ok && setup_model_size(run, &err) && setup_device(run, &err) && setup_data(run, &err) &&
         setup_model(run, &err);
    if (ok) console_open(&t->console, fopen("/dev/null", "w"), 0, 9);
    return CHECK(ok, "%s", err.text);
}

/* A step computed twice is the same step: weights, moments, what the state says. */
static void test_same_bits(void) {
    Run once, twice;
    static Training a, b;
    Error err = {0};
    if (!open_run(&once, &a, &comm_alone, 0) || !open_run(&twice, &b, &comm_alone, 2)) return;
    for (int step = 1; step <= 5; step++) {
        CHECK(training_step(&a, step, &err), "once: %s", err.text);
        CHECK(training_step(&b, step, &err), "twice: %s", err.text);
        CHECK(a.train_loss == b.train_loss, "step %d: loss %g and %g", step, a.train_loss, b.train_loss);
    }
    const size_t bytes = (size_t)once.model.n_elements * sizeof(float);
    CHECK(memcmp(once.model.master, twice.model.master, bytes) == 0, "the weights differ");
    CHECK(memcmp(once.model.states[ADAMW_V], twice.model.states[ADAMW_V], bytes) == 0, "the moments differ");
    CHECK(a.state.data_position == b.state.data_position && a.state.tokens_seen == b.state.tokens_seen,
          "the states differ");
    CHECK(once.model.step == twice.model.step, "masks of step %lld and %lld", (long long)once.model.step,
          (long long)twice.model.step);
    setup_close(&once);
    setup_close(&twice);
}

/* The n-th backward of the embedding has one bit wrong. */
static int n_backwards, wrong_backward;
static void embedding_backward(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens,
                               void *scratch, int B, int T, int C, int V) {
    ops_cpu.embedding_backward(dwte, dwpe, dout, tokens, scratch, B, T, C, V);
    if (++n_backwards == wrong_backward) *(uint32_t *)dwpe ^= 1;
}

/* Of steps 1 to 3, with 3 micro-steps each, the second is computed twice: micro-steps 4 to 9. */
static void test_wrong_once(int at, bool seen) {
    Run run;
    static Training t;
    Error err = {0};
    Ops faulty = ops_cpu;
    if (!open_run(&run, &t, &comm_alone, 2)) return;
    faulty.embedding_backward = embedding_backward;
    run.ops = run.model.ops = &faulty;
    n_backwards = 0, wrong_backward = at;
    bool ok = true;
    for (int step = 1; step <= 3 && ok; step++) ok = training_step(&t, step, &err);
    CHECK(ok == !seen && t.untrusted == seen, "a bit wrong in micro-step %d: %s", at, err.text);
    CHECK(n_backwards == (seen ? 9 : 12), "%d micro-steps", n_backwards);
    if (seen) {
        CHECK(strcmp(err.text,
                     "step 2 was computed twice, and its gradients differ: the device or its memory makes "
                     "errors; stopped and not saved, nothing was saved before") == 0 &&
                  err.exit_code == EXIT_RUN,
              "%s", err.text);
        CHECK(t.state.step == 1, "the state is of step %lld", (long long)t.state.step);
    }
    setup_close(&run);
}

/* ---- weights compared in a run ---- */

/* Rank 0 of two; the other has the same weights, but one bit where `differs`. */
static bool differs;
static uint64_t compared; /* the last hash of rank 0 */
static int n_compared;
static void other_rank(Comm *comm, void *out, const void *mine, int64_t bytes) {
    for (int r = 0; r < comm->ranks.n_ranks; r++) memcpy((char *)out + r * bytes, mine, (size_t)bytes);
    if (bytes != sizeof compared) return; /* as much data */
    memcpy(&compared, mine, sizeof compared);
    memcpy(out, (uint64_t[]){compared, compared ^ (differs ? 1ull << 63 : 0)}, 2 * sizeof compared);
    n_compared++;
}

static Comm first_of_two(void) {
    Comm comm = comm_alone;
    comm.ranks = (Ranks){0, 2};
    comm.gather_on_host = other_rank;
    return comm;
}

/* The hash is of the weights that the step began with: a bit that was flipped since the update before shows. */
static void test_hash_of_step(void) {
    Run run;
    static Training t;
    Error err = {0};
    uint64_t want = 0;
    Comm comm = first_of_two();
    if (!open_run(&run, &t, &comm, 0)) return;
    CHECK(training_step(&t, 98, &err) && n_compared == 1, "not compared in the run's first step; %s",
          err.text);
    CHECK(training_step(&t, 99, &err) && n_compared == 1, "compared at step 99; %s", err.text);
    ((uint32_t *)run.model.weights)[1234] ^= 1;
    ops_cpu.hash_bytes(&want, run.model.weights, run.model.n_elements * (int64_t)sizeof(float));
    t.saving.last_saved = t.saving.last_begun = 60;
    CHECK(training_step(&t, 100, &err) && n_compared == 2, "%s", err.text);
    CHECK(compared == want, "the hash is not of the weights of step 100");
    CHECK(t.saving.last_verified == 60, "verified %lld", (long long)t.saving.last_verified);
    t.saving.last_saved = t.saving.last_begun = 150;
    differs = true;
    CHECK(!training_step(&t, 200, &err) && t.untrusted, "weights that differ at step 200 are not seen");
    CHECK(strcmp(err.text,
                 "step 200: the weights of rank 0 and rank 1 differ, and must not; stopped and not saved; "
                 "the checkpoint of step 60 was saved while they were equal") == 0,
          "%s", err.text);
    setup_close(&run);
}

int main(void) {
    if (!CHECK(mkdtemp(folder), "%s cannot be made", folder)) return check_finish("verify");
    snprintf(text, sizeof text, "%s/text.txt", folder);
    FILE *file = fopen(text, "w");
    for (int i = 0; file && i < 200; i++) fprintf(file, "line %d: the quick brown fox\n", i);
    if (file) fclose(file);
    test_verify_weights();
    test_same_bits();
    test_wrong_once(2, false);
    test_wrong_once(5, true);
    test_wrong_once(9, true);
    test_wrong_once(10, false);
    test_hash_of_step();
    empty_folder();
    rmdir(folder);
    return check_finish("verify");
}
