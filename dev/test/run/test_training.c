/* A step that a signal interrupts, and a peak that was measured too low. The program's own setup, a tiny model, the CPU. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "llmc/base/terminal.h"
#include "llmc/base/clock.h"
#include "llmc/run/flags_table.h"
#include "llmc/run/stop.h"
#include "llmc/run/training.h"
#include "dev/test/check.h"
#include "dev/test/folder.h"

static char text[64];

/* A new run of 3 micro-steps a step; false where it does not open. */
static bool overfit;
static bool open_run(Run *run, Training *t, Comm *comm) {
    char *argv[] = {"train_gpt2", "--device",  "cpu", "--train", text, "--layers", "2", "--channels",
                    "32",         "--heads",   "2",   "--seq",   "16", "--batch",  "2", "--tokens-per-step",
                    "96",         "--dropout", "0.2", "--steps", "9",  "--warmup", "0", "--optimizer",
                    "adamw"};
    const int argc = sizeof argv / sizeof *argv;
    Error err = {0};
    *run = (Run){.comm = comm};
    *t = (Training){
        .run = run, .val_step = -1, .saving.last_saved = -1, .step_seconds = INFINITY, .peak_flops = 1e12};
    bool ok = flags_parse(&run->settings, argc, argv, &err) && setup_backend(run, &err);
    run->settings.overfit = overfit;
    ok = ok && setup_model_size(run, &err) && setup_device(run, &err) && setup_data(run, &err) &&
         setup_model(run, &err);
    if (ok) console_open(&t->console, fopen("/dev/null", "w"), 0, 9);
    return CHECK(ok, "%s", err.text);
}

/* Passes of the model ask it; the n-th question brings the signal. */
static int questions, signal_at;
static bool signal_then_stop(void) {
    if (++questions == signal_at) raise(SIGTERM);
    return stop_now();
}

/* Two steps, then a third that a signal cuts: state, weights and moments are those of two. */
static void test_step_left_out(void) {
    Run whole, cut;
    static Training a, b;
    Error err = {0};
    if (!open_run(&whole, &a, &comm_alone) || !open_run(&cut, &b, &comm_alone)) return;
    for (int step = 1; step <= 2; step++)
        CHECK(training_step(&a, step, &err) && training_step(&b, step, &err), "step %d: %s", step, err.text);
    CHECK(b.good.n == 16, "a probe of %d tokens, of windows of 16", b.good.n);
    stop_catch();
    cut.model.stop = signal_then_stop;
    signal_at = 17;            /* in the second micro-step */
    b.step_seconds = INFINITY; /* of a step that is known to end soon the end is awaited */
    CHECK(freopen("/dev/null", "w", stderr), "stderr stays: the answer shows");
    CHECK(training_step(&b, 3, &err), "%s", err.text);
    CHECK(stop_requested() && stop_now() && questions >= 17, "no signal after %d questions", questions);
    CHECK(b.state.step == 2 && b.state.tokens_seen == a.state.tokens_seen &&
              b.state.data_position == a.state.data_position && b.state.n_skipped == 0,
          "the state is of step %lld", (long long)b.state.step);
    CHECK(cut.model.n_micro_steps < 3, "%lld micro-steps were done", (long long)cut.model.n_micro_steps);
    const size_t bytes = (size_t)cut.model.n_elements * sizeof(float);
    CHECK(memcmp(whole.model.master, cut.model.master, bytes) == 0, "the weights have changed");
    CHECK(memcmp(whole.model.states[ADAMW_M], cut.model.states[ADAMW_M], bytes) == 0 &&
              memcmp(whole.model.states[ADAMW_V], cut.model.states[ADAMW_V], bytes) == 0,
          "the moments have changed");
    setup_close(&whole);
    setup_close(&cut);
}

/* Six steps that run ahead: the part of the time that is said to be theirs, and the last one's beside the mean. */
static double share_of_steps_ahead(double *last) {
    Run run;
    static Training t;
    Error err = {0};
    *last = 0;
    if (!open_run(&run, &t, &comm_alone)) return 0;
    Device async = device_cpu;
    Ops ahead = ops_cpu;
    async.is_async = true;
    ahead.device = &async;
    run.ops = &ahead;
    t.peak_flops = INFINITY; /* else it is measured again where a step seems too fast */
    const double begun = clock_seconds();
    for (int step = 1; step <= 6; step++) CHECK(training_step(&t, step, &err), "step %d: %s", step, err.text);
    CHECK(training_settle(&t, &err), "%s", err.text);
    const double all = clock_seconds() - begun;
    CHECK(t.seconds_training <= all, "6 steps took %g s, of %g s in all", t.seconds_training, all);
    *last = 6 * t.step_seconds / all;
    run.ops = &ops_cpu;
    setup_close(&run);
    return t.seconds_training / all;
}

/* Where steps run ahead, one is read when a third of the next is queued: the steps' times add up to the run's, none counts
 * twice, and the last one, behind which nothing is queued, is about as long as the others. This device computes while the
 * host queues, as one does whose queue is full. Again where the machine held this test up. */
static void test_times_of_steps_ahead(void) {
    double share = 0, last = 0;
    for (int again = 0; again < 20 && (share <= 0.2 || last <= 0.2); again++)
        share = share_of_steps_ahead(&last);
    CHECK(share > 0.2, "6 steps took %g of their time", share);
    CHECK(last > 0.2, "the last of 6 steps took %g of the mean", last);
}

static double a_second_later(void) {
    static double now;
    return ++now;
}

/* The status that counts micro-steps is the first step's: the second does not begin to count behind it, while the first is
 * still to be read. */
static void test_status_of_first_step(void) {
    Run run;
    static Training t;
    Error err = {0};
    char *said = NULL;
    size_t length;
    if (!open_run(&run, &t, &comm_alone)) return;
    Device async = device_cpu;
    Ops ahead = ops_cpu;
    async.is_async = true;
    ahead.device = &async;
    run.ops = &ahead;
    console_open(&t.console, open_memstream(&said, &length), 0, 9);
    t.console.terminal = true;
    t.console.now = a_second_later; /* each status is shown */
    for (int step = 1; step <= 2; step++) CHECK(training_step(&t, step, &err), "step %d: %s", step, err.text);
    CHECK(training_settle(&t, &err), "%s", err.text);
    print_line(t.console.out, "hides the status, which the next line anywhere would do in the closed file");
    fclose(t.console.out);
    const char *last = strstr(said, "micro-step 3 of 3");
    CHECK(last && !strstr(last, "micro-step 1 of 3"), "the first step is counted again: %s", said);
    free(said);
    run.ops = &ops_cpu;
    setup_close(&run);
}

static size_t free_now;
static void free_of_card(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = free_now;
    *total_bytes = 100;
}

/* Memory that others gave back since the start is not this run's: never less than nothing. What a card lacks is no measure
 * where it is less than the run has allocated. */
static void test_memory_given_back(void) {
    const Device card = {.memory_info = free_of_card};
    const Ops ops = {.device = &card};
    const Run run = {.ops = &ops_cpu, .resident_at_start = SIZE_MAX / 2},
              on_card = {.ops = &ops, .free_at_start = 90, .planned_bytes = 40};
    CHECK(setup_memory_in_use(&run) == 0, "%zu bytes", setup_memory_in_use(&run));
    static const size_t rows[][2] = {
        {50, 40},
        {48, 42},
        {51, 39},
        {60, 0 },
        {90, 0 },
        {95, 0 }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        free_now = rows[i][0];
        CHECK(setup_memory_in_use(&on_card) == rows[i][1], "%zu of 90 are free: %zu in use, not %zu",
              free_now, setup_memory_in_use(&on_card), rows[i][1]);
    }
}

static double measured_peak;
static const char *measured_how;
static double measure(DType dtype, const char **how) {
    *how = measured_how;
    return measured_peak;
}

/* What was done can be done: no more than all of a measured peak; a derived one stands. */
static void test_mfu(void) {
    const struct {
        const char *how;
        double again, flops, mfu, peak;
    } rows[] = {
        {"measured", 9e11, 4e11, 0.4, 1e12},
        {"measured", 4e12, 2e12, 0.5, 4e12},
        {"measured", 9e11, 2e12, 1,   2e12},
        {"derived",  1e12, 2e12, 2,   1e12},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const Device device = {.peak_flops = measure};
        const Ops ops = {.device = &device};
        Comm two = {
            .ranks = {0, 2}
        };
        Run run = {.ops = &ops, .comm = &two};
        static Training t;
        t = (Training){.run = &run, .peak_flops = 1e12};
        measured_peak = rows[i].again;
        measured_how = rows[i].how;
        const double mfu = training_mfu(&t, 2 * rows[i].flops);
        CHECK(mfu == rows[i].mfu && t.peak_flops == rows[i].peak, "row %d: %g of %g", (int)i, mfu,
              t.peak_flops);
    }
}

/* By hand: d12 has 12 layers of 12 x 768^2 weights in products and a head of 50257 x 768; attention takes 12 x 12 x 768
 * for each of T/2 keys. */
static void test_flops(void) {
    GPT2Config d12 = {.max_seq_len = 131072,
                      .vocab_size = 50257,
                      .padded_vocab_size = 50304,
                      .n_layer = 12,
                      .n_head = 12,
                      .n_embd = 768};
    CHECK(gpt2_flops_per_token(&d12, 1024) == 797815296.0, "at 1k: %.0f", gpt2_flops_per_token(&d12, 1024));
    CHECK(gpt2_flops_per_token(&d12, 131072) == 7988949504.0, "at 131k: %.0f",
          gpt2_flops_per_token(&d12, 131072));
    d12.max_seq_len = 1024;
    CHECK(gpt2_flops_per_token(&d12, 1024) == 797815296.0,
          "the context that a model could have is no product");
    d12.window = 256; /* a query sees 256 - 256^2 / 2048 = 224 keys in the mean */
    CHECK(gpt2_flops_per_token(&d12, 1024) == 741192192.0 + 12 * 12 * 768 * 224.0, "with a window: %.0f",
          gpt2_flops_per_token(&d12, 1024));
    d12.window = 0;
    d12.sparse = (SparsePattern){
        2, 1, 1}; /* 16 blocks of 64: 0 to 3 blocks before its own, then 4, and 32 keys of it */
    CHECK(gpt2_flops_per_token(&d12, 1024) ==
              741192192.0 + 12 * 12 * 768 * (64 * (0 + 1 + 2 + 3 + 12 * 4) / 16.0 + 32),
          "with blocks: %.0f", gpt2_flops_per_token(&d12, 1024));
    d12.sparse = (SparsePattern){0};
    const GPT2 seen = {.config = d12, .seen_pairs = 3000, .seen_tokens = 40}, unseen = {.config = d12};
    CHECK(gpt2_step_flops_per_token(&seen, 1024) == 741192192.0 + 12 * 12 * 768 * 75.0,
          "with documents: %.0f", gpt2_step_flops_per_token(&seen, 1024));
    CHECK(gpt2_step_flops_per_token(&unseen, 1024) == 797815296.0, "without: %.0f",
          gpt2_step_flops_per_token(&unseen, 1024));
}

/* ---- ranks, the others of which are pretended ---- */

/* The other of two ranks has what this one has: as much data, the hash of its weights. */
static void other_has_the_same(Comm *comm, void *out, const void *mine, int64_t bytes) {
    for (int r = 0; r < comm->ranks.n_ranks; r++) memcpy((char *)out + r * bytes, mine, (size_t)bytes);
}

enum { MOST_BATCHES = 600 };
static double other_losses[MOST_BATCHES];
static int n_others;
static bool is_noted; /* this rank's losses become the other's */
static void sum_with_other(Comm *comm, double *values, int64_t n) {
    if (n == 1) return; /* whether one was asked to stop */
    for (int64_t i = 0; i < n; i++, n_others++)
        if (is_noted)
            other_losses[n_others] = values[i];
        else
            values[i] += other_losses[n_others];
}

/* The mean over two ranks, which take batches in turn, has the bits of a process alone, also over several blocks of
 * batches, and where one rank has a batch more. */
static void test_validation_of_two(int n_batches) {
    Comm comms[3] = {comm_alone, comm_alone, comm_alone};
    double means[3];
    Error err = {0};
    for (int i = 0; i < 3; i++) {
        Run run;
        static Training t;
        if (i > 0) comms[i].ranks = (Ranks){2 - i, 2}; /* rank 1, then rank 0 */
        if (i > 0) comms[i].sum_on_host = sum_with_other;
        if (i > 0) comms[i].gather_on_host = other_has_the_same;
        is_noted = i == 1;
        n_others = 0;
        if (!open_run(&run, &t, &comms[i])) return;
        run.settings.eval_batches = n_batches;
        CHECK(training_validate(&t, &means[i], &err), "%s", err.text);
        setup_close(&run);
    }
    int n_of_rank_1 = 0;
    for (int i = 0; i < n_batches; i++) n_of_rank_1 += other_losses[i] > 0;
    CHECK(n_of_rank_1 == n_batches / 2, "rank 1 takes %d of %d batches", n_of_rank_1, n_batches);
    CHECK(means[2] == means[0], "%d batches: %.17g by two ranks, %.17g alone", n_batches, means[2], means[0]);
}

static int n_blocks;
static void count_blocks(Comm *comm, double *values, int64_t n) {
    n_blocks += n > 1;
}

/* However many ranks there are, each has as many batches between two sums. */
static void test_validation_of_many(void) {
    Comm comm = comm_alone;
    double mean;
    Run run;
    static Training t;
    Error err = {0};
    if (!open_run(&run, &t, &comm)) return;
    comm.ranks = (Ranks){0, 600};
    comm.sum_on_host = count_blocks;
    run.settings.eval_batches = 2 * 8 * 600;
    CHECK(training_validate(&t, &mean, &err), "%s", err.text);
    CHECK(n_blocks == 2, "16 batches for each of 600 ranks in %d blocks, expected 2", n_blocks);
    setup_close(&run);
}

static void other_asks_to_stop(Comm *comm, StreamId stream, int64_t *x, int64_t n) {
    (void)stream;
    if (n == sizeof(StepSums) / sizeof *x) ((StepSums *)x)->stop += comm->ranks.n_ranks - 1;
}

static void rank_0_saves_at_once(Comm *comm, void *data, int64_t bytes) {
    const SaveWay way = SAVE_AT_ONCE;
    (void)comm;
    if (bytes == sizeof way) memcpy(data, &way, sizeof way);
}

/* Rank 1 of 2 makes no folder, takes no lock, saves nothing; it ends behind the step in which another rank was asked to. */
static void test_rank_1(void) {
    Comm comm = comm_alone;
    Run run;
    static Training t;
    Error err = {0};
    comm.ranks = (Ranks){1, 2};
    comm.gather_on_host = other_has_the_same;
    if (!open_run(&run, &t, &comm)) return;
    run.settings.tokens_per_step = 128;
    run.settings.out = path_of("out");
    const SaveOptions options = setup_save_options(&run);
    CHECK(setup_check_output(&run, &err) && setup_output(&run, &err), "%s", err.text);
    CHECK(training_step(&t, 1, &err) && !training_stops(&t), "it ends too early: %s", err.text);
    CHECK(t.state.data_position == 8, "window %lld behind 2 micro-steps of 2 ranks, 2 windows each",
          (long long)t.state.data_position);
    comm.sum_int64 = other_asks_to_stop;
    comm.broadcast_on_host = rank_0_saves_at_once;
    CHECK(training_step(&t, 2, &err) && training_stops(&t), "it goes on alone: %s", err.text);
    CHECK(training_save(&t, &options, false, &err) && t.saving.last_saved == 2, "%s", err.text);
    CHECK(!run.output_locked && access(run.settings.out, F_OK) != 0, "%s was made", run.settings.out);
    setup_close(&run);
}

/* A save that failed is tried again behind 1 step, then 2, 4, ...; one that went well ends that. */
static void test_failed_saves(void) {
    static const int64_t steps[] = {4, 5, 7, 11};
    Run run;
    static Training t;
    Error err = {0};
    char out[64];
    if (!open_run(&run, &t, &comm_alone)) return;
    const SaveOptions options = setup_save_options(&run);
    snprintf(out, sizeof out, "%s", path_of("in_the_way"));
    write_file("in_the_way", "x", 1);
    run.settings.out = out;
    CHECK(!training_take_retry(&t, 1000), "tried again, and nothing has failed");
    for (int i = 0; i < 3; i++) {
        t.state.step = steps[i];
        CHECK(!training_save(&t, &options, true, &err) && t.saving.last_saved == -1, "saved into a file");
        CHECK(!training_take_retry(&t, steps[i + 1] - 1), "step %d: tried too early", (int)steps[i]);
        CHECK(training_take_retry(&t, steps[i + 1]), "step %d: not tried again", (int)steps[i]);
        CHECK(!training_take_retry(&t, steps[i + 1] + 9), "step %d: tried twice", (int)steps[i]);
    }
    unlink(out);
    CHECK(setup_output(&run, &err) && training_save(&t, &options, true, &err) && t.saving.last_saved == 7,
          "%s", err.text);
    CHECK(!training_take_retry(&t, 1000) && t.saving.retry_gap == 0, "tried again after it went well");
    setup_release_output(&run);
    setup_close(&run);
}

/* A run beside that began and ended in a new --out while this one read its data: its checkpoints stay its own. */
static void test_output_taken_meanwhile(void) {
    Run run;
    static Training t;
    Error err = {0};
    char out[64], theirs[96];
    if (!open_run(&run, &t, &comm_alone)) return;
    snprintf(out, sizeof out, "%s", path_of("late"));
    snprintf(theirs, sizeof theirs, "%s/step_00000003", out);
    run.settings.out = out;
    run.settings.was_set[flag_find("out")] = true;
    CHECK(setup_check_output(&run, &err), "%s", err.text);
    REQUIRE(mkdir(out, 0700) == 0 && mkdir(theirs, 0700) == 0, "%s", out);
    CHECK(!setup_output(&run, &err) && strstr(err.text, "step_00000003"), "taken: '%s'", err.text);
    setup_release_output(&run);
    setup_close(&run);
}

/* --overfit is the first batch on every rank. */
static void test_overfit_of_two(void) {
    static Training t[2];
    Error err = {0};
    overfit = true;
    for (int rank = 0; rank < 2; rank++) {
        Comm comm = comm_alone;
        Run run;
        comm.ranks = (Ranks){rank, 2};
        comm.gather_on_host = other_has_the_same;
        if (!open_run(&run, &t[rank], &comm)) return;
        CHECK(training_step(&t[rank], 1, &err), "%s", err.text);
        setup_close(&run);
    }
    overfit = false;
    CHECK(t[0].good.n > 0 && memcmp(&t[0].good, &t[1].good, sizeof t->good) == 0,
          "two ranks read two batches");
}

/* What a rank prints that is not to print, in a process of its own: nothing arrives. */
static void test_print_nothing(void) {
    int ends[2];
    char said[16];
    if (!REQUIRE(pipe(ends) == 0, "no pipe")) return;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        print_line(stdout, "said");
        fflush(stdout);
        print_nothing();
        print_line(stdout, "unsaid");
        fflush(stdout);
        _exit(0);
    }
    close(ends[1]);
    waitpid(child, NULL, 0);
    const ssize_t n = read(ends[0], said, sizeof said);
    CHECK(n == 5 && memcmp(said, "said\n", 5) == 0, "%d bytes arrive", (int)n);
    close(ends[0]);
}

/* A plan for four cards, on a machine that may have none: precision and optimizer of the recipe count as if they were
 * flags. */
static void test_recipe_of_the_backend(void) {
    static char *lines[][8] = {
        {"train_gpt2", "--device", "cuda", "--memory", "--gpus",         "4"                 },
        {"train_gpt2", "--device", "cuda", "--memory", "--gpus",         "4",                  "--optimizer", "muon"},
        {"train_gpt2",      "--device",                "cuda",           "--memory",      "--recipe", "gpt2-cpu"},
    };
    Run runs[3];
    Error err = {0};
    if (!ops_cuda_fp32) {
        SKIP("recipes of a card: built without CUDA");
        return;
    }
    for (int i = 0; i < 3; i++) {
        const int argc = i == 1 ? 8 : 6;
        runs[i] = (Run){.comm = &comm_alone};
        CHECK(flags_parse(&runs[i].settings, argc, lines[i], &err) && setup_place(&runs[i], &err) &&
                  setup_backend(&runs[i], &err),
              "%s", err.text);
    }
    CHECK(runs[0].ops == ops_cuda_bf16 && runs[2].ops == ops_cuda_fp32, "the recipe's precision");
    CHECK(runs[0].comm->fixed_bytes == runs[1].comm->fixed_bytes,
          "the recipe's optimizer: %zu bytes, as a flag %zu", runs[0].comm->fixed_bytes,
          runs[1].comm->fixed_bytes);
}

int main(void) {
    if (!CHECK(mkdtemp(folder), "%s cannot be made", folder)) return check_finish("training");
    snprintf(text, sizeof text, "%s/text.txt", folder);
    FILE *file = fopen(text, "w");
    for (int i = 0; file && i < 200; i++) fprintf(file, "line %d: the quick brown fox\n", i);
    if (file) fclose(file);
    test_validation_of_two(7);
    test_validation_of_two(300);
    test_validation_of_many();
    test_rank_1();
    test_failed_saves();
    test_output_taken_meanwhile();
    test_overfit_of_two();
    test_print_nothing();
    test_times_of_steps_ahead();
    test_status_of_first_step();
    test_step_left_out();
    test_memory_given_back();
    test_mfu();
    test_flops();
    test_recipe_of_the_backend();
    empty_folder();
    rmdir(folder);
    return check_finish("training");
}
