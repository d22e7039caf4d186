/* Multiple choice: the file, damaged ones, batches of rows, and what becomes of losses. */
#include "dev/test/choices_case.h"
#include <unistd.h>
#include "dev/test/folder.h"

enum { VOCAB = 300 };
static ChoicesCase whole;

static Choices *opened(const ChoicesCase *c, int vocab_size, Error *err) {
    *err = (Error){0};
    write_case(c, path_of("items.bin"));
    return choices_open(path_of("items.bin"), vocab_size, 0, err);
}

static void test_reading(void) {
    Error err;
    Choices *c = opened(&whole, VOCAB, &err);
    if (!CHECK(c, "%s", err.text)) return;
    CHECK(c->n_items == CASE_ITEMS && c->n_rows == 4 * CASE_ITEMS - 2, "%d items, %d rows", c->n_items,
          c->n_rows);
    const uint16_t *at = whole.stream;
    int row = 0, n_wrong = 0;
    for (int item = 0; item < CASE_ITEMS; item++) {
        const int label = at[3], n_endings = at[4], n_context = at[5];
        const uint16_t *context = at + 6;
        at = context + n_context;
        n_wrong += c->labels[item] != label;
        for (int k = 0; k < n_endings; k++, row++, at += 1 + at[0]) {
            const ChoiceRow *r = &c->rows[row];
            n_wrong += r->item != item || r->ending != k || r->n_context != n_context ||
                       r->n_ending != at[0] ||
                       memcmp(r->context_tokens, context, 2 * (size_t)n_context) != 0 ||
                       memcmp(r->ending_tokens, at + 1, 2 * (size_t)at[0]) != 0;
        }
    }
    CHECK(n_wrong == 0, "%d items or rows are read wrongly", n_wrong);
    choices_close(c);
}

static void refuses(const ChoicesCase *c, int vocab_size, const char *words) {
    Error err;
    Choices *choices = opened(c, vocab_size, &err);
    CHECK(!choices && err.exit_code == EXIT_INPUT && strstr(err.text, words), "expected '%s' in: %s", words,
          err.text);
    choices_close(choices);
}

static void test_damaged(void) {
    const int second = whole.stream[1] / 2;
    const struct {
        int at; /* of the stream; negative: of the header */
        int value;
        const char *words;
    } rows[] = {
        {-1,         20240520, "expected magic 20240522"                                                  },
        {-2,         2,        "and 2; hint: data/hellaswag.py"                                           },
        {-3,         0,        "expected items, found 0"                                                  },
        {-3,         39,       "found more behind them"                                                   },
        {-3,         41,       "item 40: mark of its beginning: expected 65535, found the end of the file"},
        {-5,         172,      "has tokens of a vocabulary of 172"                                        },
        {-5,         0,        "has tokens of a vocabulary of 50257"                                      },
        {0,          1,        "item 0: mark of its beginning: expected 65535, found 1"                   },
        {1,          8,        "item 0: bytes of the item"                                                },
        {3,          4,        "item 0: label: expected 0 to 3, found 4"                                  },
        {second + 3, 2,        "item 1: label: expected 0 to 1, found 2"                                  },
        {4,          1,        "item 0: number of endings: expected 2 to 64, found 1"                     },
        {4,          65,       "item 0: number of endings"                                                },
        {5,          0,        "item 0: tokens of the context"                                            },
        {5,          65534,    "item 0: tokens of the context: expected 65534, found "                    },
        {6,          VOCAB,    "item 0: token: expected 0 to 299, found 300"                              },
    };
    static ChoicesCase c;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        c = whole;
        if (rows[i].at < 0)
            c.header[-rows[i].at - 1] = rows[i].value;
        else
            c.stream[rows[i].at] = (uint16_t)rows[i].value;
        refuses(&c, VOCAB, rows[i].words);
    }
    Error err;
    c = whole;
    c.n--;
    refuses(&c, VOCAB, " and the end of the file; hint: copy it again");
    write_case(&whole, path_of("items.bin"));
    FILE *file = fopen(path_of("items.bin"), "ab");
    REQUIRE(file && fputc(7, file) == 7 && fclose(file) == 0, "writing items.bin");
    CHECK(!choices_open(path_of("items.bin"), VOCAB, 0, &err) && strstr(err.text, "found more behind them"),
          "half a number behind the last item: %s", err.text);
    refuses(&whole, VOCAB - 1,
            "the model's has 299; hint: data/hellaswag.py --tokenizer DIR, that of the model");
    refuses(&whole, 256, "--tokenizer bytes");
    refuses(&whole, 50304, "--tokenizer gpt2");
    refuses(&whole, VOCAB + 128, "the model's has 428");
    Choices *padded = opened(&whole, VOCAB + 127, &err);
    CHECK(padded, "a model whose table was rounded up: %s", err.text);
    choices_close(padded);
    padded = choices_open(path_of("items.bin"), 50304, VOCAB, &err);
    CHECK(padded, "a tokenizer of as many tokens, below a larger table: %s", err.text);
    choices_close(padded);
    CHECK(!choices_open(path_of("items.bin"), VOCAB + 1, VOCAB + 1, &err) &&
              strstr(err.text, "the model's has 301;"),
          "a tokenizer of a token more: %s", err.text);
    write_file("items.bin", whole.header, 100);
    CHECK(!choices_open(path_of("items.bin"), VOCAB, 0, &err) && strstr(err.text, "the file has 100"), "%s",
          err.text);
    CHECK(!choices_open(path_of("none.bin"), VOCAB, 0, &err) && strstr(err.text, "No such file"), "%s",
          err.text);
}

/* Token i of a row, one text. */
static int token_of(const ChoiceRow *row, int i) {
    return i < row->n_context ? row->context_tokens[i] : row->ending_tokens[i - row->n_context];
}

/* Each row stands in one batch, whole or without its beginning, and its targets are its next tokens. */
static void check_plan(const Choices *c, const ChoicePlan *plan, int B, int T) {
    int seen[4 * CASE_ITEMS] = {0}, n_wrong = 0;
    int32_t *tokens = malloc(2 * (size_t)(B * T) * sizeof *tokens), *targets = tokens + B * T;
    for (int i = 0; i < plan->n_batches; i++) {
        const ChoiceBatch *batch = &plan->batches[i];
        if (!CHECK(batch->B * batch->T <= B * T && batch->T <= T && batch->n_rows <= batch->B,
                   "batch %d of (%d,%d)", i, batch->B, batch->T))
            break;
        choices_fill(c, plan, batch, tokens, targets);
        for (int b = 0; b < batch->n_rows; b++) {
            const int index = plan->order[batch->first + b];
            const ChoiceRow *row = &c->rows[index];
            const int n = row->n_context + row->n_ending, cut = n - 1 > T ? n - 1 - T : 0;
            seen[index]++;
            for (int t = 0; t < batch->T; t++) {
                const bool inside = t < n - 1 - cut;
                n_wrong += tokens[b * batch->T + t] != (inside ? token_of(row, cut + t) : 0);
                n_wrong += targets[b * batch->T + t] != (inside ? token_of(row, cut + t + 1) : 0);
            }
        }
    }
    for (int i = 0; i < c->n_rows; i++) n_wrong += seen[i] != 1;
    CHECK(n_wrong == 0, "(%d,%d): %d tokens, targets or rows are wrong", B, T, n_wrong);
    free(tokens);
}

static void test_plans(void) {
    static const int sizes[][2] = {
        {1,  18  },
        {1,  36  },
        {7,  33  },
        {4,  64  },
        {60, 64  },
        {61, 64  },
        {1,  5000}
    };
    Error err;
    Choices *c = opened(&whole, VOCAB, &err);
    if (!CHECK(c, "%s", err.text)) return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int B = sizes[i][0], T = sizes[i][1];
        ChoicePlan plan;
        int n_cut = 0, last = -1;
        if (!CHECK(choices_plan(&plan, c, B, T, &err), "%s", err.text)) continue;
        check_plan(c, &plan, B, T);
        for (int k = 0; k < c->n_rows; k++)
            if (c->rows[k].n_context + c->rows[k].n_ending - 1 > T && c->rows[k].item != last)
                n_cut++, last = c->rows[k].item;
        CHECK(plan.n_cut == n_cut, "(%d,%d): %d items are cut, expected %d", B, T, plan.n_cut, n_cut);
        choices_plan_free(&plan);
    }
    ChoicePlan plan;
    CHECK(choices_plan(&plan, c, 61, 64, &err) && plan.n_batches > 1, "one batch of (61,64)");
    for (int i = 0; i < plan.n_batches; i++)
        CHECK(plan.batches[i].B * plan.batches[i].T == 3840, "batch %d has (%d,%d)", i, plan.batches[i].B,
              plan.batches[i].T);
    CHECK(plan.batches[plan.n_batches - 1].T < plan.batches[0].T, "short rows are padded as long ones");
    choices_plan_free(&plan);
    CHECK(!choices_plan(&plan, c, 4, 17, &err) && strstr(err.text, "an ending of 18 tokens; hint: --seq 18"),
          "%s", err.text);
    choices_close(c);
}

/* A row that is longer than the even part of a batch. */
static void test_long_row(void) {
    static uint16_t text[4000];
    static ChoiceRow rows[] = {
        {0, 0, text, text, 3900, 12},
        {0, 1, text, text, 3900, 9 }
    };
    const Choices c = {.n_items = 1, .n_rows = 2, .rows = rows};
    ChoicePlan plan;
    Error err;
    CHECK(choices_plan(&plan, &c, 1, 4000, &err) && plan.n_batches == 2 && plan.batches[0].B == 1 &&
              plan.n_cut == 0,
          "two rows of 3911 positions in (1,4000)");
    choices_plan_free(&plan);
}

/* By hand: sums and means that choose differently, a tie, a loss that is no number. */
static void test_score(void) {
    static ChoiceRow rows[] = {
        {0, 0, NULL, NULL, 1, 1},
        {0, 1, NULL, NULL, 1, 4},
        {1, 0, NULL, NULL, 1, 2},
        {1, 1, NULL, NULL, 1, 2},
        {2, 0, NULL, NULL, 1, 1},
        {2, 1, NULL, NULL, 1, 1},
        {3, 0, NULL, NULL, 1, 1},
        {3, 1, NULL, NULL, 1, 1},
    };
    int labels[] = {1, 0, 1, 0};
    const Choices c = {.n_items = 4, .n_rows = 8, .labels = labels, .rows = rows};
    const double means[] = {2, 1, 3, 3, NAN, 5, NAN, INFINITY};
    unsigned char chosen[4];
    const ChoiceScore score = choices_score(&c, means, chosen);
    CHECK(chosen[0] == 1 && chosen[1] == 0 && chosen[2] == 1 && chosen[3] == 255, "chosen: %d %d %d %d",
          chosen[0], chosen[1], chosen[2], chosen[3]);
    CHECK(score.n_items == 4 && score.n_right_mean == 3 && score.n_right == 2,
          "%d by the mean, %d by the sum", score.n_right_mean, score.n_right);
    CHECK(score.n_lost == 2 && isnan(choices_share(&score, score.n_right)), "%d items lost", score.n_lost);
    const double finite[] = {2, 1, 3, 3, 4, 5, 1, 2};
    const ChoiceScore whole_score = choices_score(&c, finite, NULL);
    CHECK(whole_score.n_lost == 0 && choices_share(&whole_score, whole_score.n_right_mean) == 0.75,
          "%d items lost, %g right", whole_score.n_lost,
          choices_share(&whole_score, whole_score.n_right_mean));
    const float losses[] = {9, 1, 2, 6, 9, 9};
    const ChoiceRow row = {.n_context = 2, .n_ending = 3};
    CHECK(choices_mean_loss(&row, losses, 6) == 3, "mean %g", choices_mean_loss(&row, losses, 6));
    CHECK(choices_mean_loss(&row, losses, 3) == 4, "cut: mean %g", choices_mean_loss(&row, losses, 3));
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "mkdtemp")) return check_finish("choices");
    make_case(&whole, VOCAB);
    test_reading();
    test_damaged();
    test_plans();
    test_long_row();
    test_score();
    empty_folder();
    rmdir(folder);
    return check_finish("choices");
}
