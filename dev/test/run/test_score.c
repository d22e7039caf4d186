/* --hellaswag: the choices of batches are those of one ending at a time, on one rank and on two; the text that tokens
 * stand for. The program's own runs are in test_ranks.sh and test_cli.sh. */
#include <unistd.h>
#include "llmc/run/score.h"
#include "dev/test/choices_case.h"
#include "dev/test/small_vocabulary.h"

enum { B = 2, T = 32 };
static const GPT2Config config = {
    .max_seq_len = T, .vocab_size = 256, .padded_vocab_size = 256, .n_layer = 2, .n_head = 2, .n_embd = 32};
static double other_means[4 * CASE_ITEMS];
static bool is_noted; /* this rank's means become the other's */

/* One value is the wish to stop, which the other rank has not. */
static void sum_with_other(Comm *comm, double *values, int64_t n) {
    for (int64_t i = 0; i < n && n > 1 && i < 4 * CASE_ITEMS; i++)
        if (is_noted)
            other_means[i] = values[i];
        else
            values[i] += other_means[i];
}

static bool open_run(Run *run, Training *t, Comm *comm, Error *err) {
    const GPT2Options options = {.B = B, .T = T};
    *run = (Run){.ops = &ops_cpu, .comm = comm};
    *t = (Training){.run = run};
    run->choices = choices_open(path_of("items.bin"), 256, 0, err);
    console_open(&t->console, stdout, 0, 0);
    if (!run->choices || !choices_plan(&run->choice_plan, run->choices, B, T, err)) return false;
    if (!ops_cpu.device->open(0, err) || !gpt2_open(&run->model, &ops_cpu, &config, &options, err))
        return false;
    gpt2_init(&run->model, 5);
    return true;
}

/* The ending of the smallest mean, one row at a time. */
static void choose_plainly(GPT2 *model, const Choices *c, unsigned char *chosen) {
    double least = INFINITY;
    for (int i = 0; i < c->n_rows; i++) {
        const ChoiceRow *row = &c->rows[i];
        int32_t text[3 * CASE_LONGEST];
        int n = 0;
        for (int k = 0; k < row->n_context; k++) text[n++] = row->context_tokens[k];
        for (int k = 0; k < row->n_ending; k++) text[n++] = row->ending_tokens[k];
        const int cut = n - 1 > T ? n - 1 - T : 0;
        const float *losses = gpt2_losses(model, text + cut, text + cut + 1, 1, n - 1 - cut);
        double sum = 0;
        for (int k = n - 1 - cut - row->n_ending; k < n - 1 - cut; k++) sum += losses[k];
        if (row->ending == 0) least = INFINITY;
        if (sum / row->n_ending < least)
            least = sum / row->n_ending, chosen[row->item] = (unsigned char)row->ending;
    }
}

static void test_choices_of_ranks(void) {
    unsigned char plain[CASE_ITEMS], chosen[3][CASE_ITEMS];
    ChoiceScore score[3];
    Error err = {0};
    for (int i = 0; i < 3; i++) {
        static Training t;
        Run run;
        Comm comm = comm_alone;
        if (i > 0) comm.ranks = (Ranks){2 - i, 2}; /* rank 1, then rank 0 */
        if (i > 0) comm.sum_on_host = sum_with_other;
        is_noted = i == 1;
        if (!CHECK(open_run(&run, &t, &comm, &err), "%s", err.text)) return;
        CHECK(run.choice_plan.n_batches > 2 * 16 + 1, "%d batches: losses are collected once",
              run.choice_plan.n_batches);
        if (i == 0) choose_plainly(&run.model, run.choices, plain);
        CHECK(training_score(&t, &score[i], chosen[i], &err), "%s", err.text);
        setup_close(&run);
    }
    CHECK(memcmp(chosen[0], plain, sizeof plain) == 0, "batches choose otherwise than one ending at a time");
    CHECK(memcmp(chosen[2], plain, sizeof plain) == 0, "two ranks choose otherwise than one");
    CHECK(score[0].n_right == score[2].n_right && score[0].n_right_mean == score[2].n_right_mean,
          "two ranks score otherwise than one");
}

/* Behind a token, 16 targets: single bytes, merged ones, end-of-text, which is no text. */
static void test_bytes_of_text(void) {
    enum { FIRST = EOT - 10 };
    const GPT2Config small = {.max_seq_len = 16,
                              .vocab_size = N_TOKENS,
                              .padded_vocab_size = 384,
                              .n_layer = 1,
                              .n_head = 1,
                              .n_embd = 8};
    const GPT2Options options = {.B = 1, .T = 16};
    static Training t;
    Run run = {.ops = &ops_cpu, .comm = &comm_alone, .tokenizer = open_small()};
    struct {
        int32_t header[256];
        uint16_t tokens[17];
    } shard = {
        .header = {20240520, 1, 17}
    };
    double expected = 0, mean;
    Error err = {0};
    for (int i = 0; i < 17; i++) {
        size_t length = 0;
        shard.tokens[i] = (uint16_t)(FIRST + i % 12);
        tokenizer_bytes(run.tokenizer, shard.tokens[i], &length);
        if (i > 0 && shard.tokens[i] != EOT) expected += (double)length;
    }
    write_file("text.bin", &shard, sizeof shard.header + sizeof shard.tokens);
    t = (Training){.run = &run};
    console_open(&t.console, stdout, 0, 0);
    run.settings = (Settings){.eval_only = true, .eval_batches = 1, .batch = 1, .seq = 16, .context_gpus = 1};
    const DataOptions data = {
        .pattern = path_of("text.bin"), .vocab_size = N_TOKENS, .B = 1, .T = 16, .ranks = {0, 1}
    };
    run.val = dataloader_open(&data, &err);
    if (!CHECK(run.val && gpt2_open(&run.model, &ops_cpu, &small, &options, &err), "%s", err.text)) return;
    gpt2_init(&run.model, 1);
    CHECK(training_validate(&t, &mean, &err) && t.val_bytes == expected, "%g bytes, expected %g", t.val_bytes,
          expected);
    setup_close(&run);
}

int main(void) {
    static ChoicesCase items;
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("score");
    make_case(&items, 256);
    write_case(&items, path_of("items.bin"));
    test_choices_of_ranks();
    test_bytes_of_text();
    empty_folder();
    rmdir(folder);
    return check_finish("score");
}
