/* Multiple choice (HellaSwag): contexts, each with some endings, of which one is right. llm.c's file, as
 * data/hellaswag.py writes it: 256 int32, [0] 20240522, [1] 1, [2] number of items, [3] bytes of the longest,
 * [4] vocabulary (0: GPT-2's 50257, llm.c's files); then uint16, for each item:
 *
 *   65535, bytes of the item (all of these), its index, label, number of endings, n and n tokens of the context, then
 *   for each ending n and n tokens */
#pragma once
#include <math.h>
#include <stdint.h>
#include "llmc/base/error.h"

/* An ending behind its context: what a model gives a loss of. */
typedef struct ChoiceRow {
    int item, ending;
    const uint16_t *context_tokens, *ending_tokens;
    int n_context, n_ending;
} ChoiceRow;

typedef struct Choices {
    char *path;
    int n_items, n_rows;
    int *labels;     /* (n_items) the right ending */
    ChoiceRow *rows; /* (n_rows) item by item */
    uint16_t *file;  /* whose tokens they are */
} Choices;

/* Reads and checks the whole file; one of a tokenizer of another size is refused. n_tokens: of the model's tokenizer; 0: it has
 * none, and vocab_size, which may have been rounded up, stands for it. NULL with err. */
Choices *choices_open(const char *path, int vocab_size, int n_tokens, Error *err);
void choices_close(Choices *choices); /* NULL is fine */

/* Rows of about the same length, to be computed together: (B,T) tokens. */
typedef struct ChoiceBatch {
    int B, T;
    int first, n_rows; /* of ChoicePlan.order; the rows behind them are padding */
} ChoiceBatch;

typedef struct ChoicePlan {
    int *order; /* (n_rows) indices of Choices.rows, shortest first */
    ChoiceBatch *batches;
    int n_batches;
    int n_cut; /* items whose context is longer than T: its beginning is left out */
} ChoicePlan;

/* Batches of at most B*T tokens and T positions: nearly all have the same number of tokens, which kernels are chosen for.
 * The same on all ranks. Refuses an ending that is longer than T. */
bool choices_plan(ChoicePlan *plan, const Choices *choices, int B, int T, Error *err);
void choices_plan_free(ChoicePlan *plan);
/* tokens, targets (B,T): the rows, padded with zeros. */
void choices_fill(const Choices *choices, const ChoicePlan *plan, const ChoiceBatch *batch, int32_t *tokens,
                  int32_t *targets);
/* The mean loss over a row's ending. losses: (T) of the row in its batch. */
double choices_mean_loss(const ChoiceRow *row, const float *losses, int T);

typedef struct ChoiceScore {
    int n_items;
    int n_right;      /* by the smallest sum of losses of an ending: acc */
    int n_right_mean; /* by the smallest mean: acc_norm, what llm.c and others report */
    int n_lost; /* with a mean that is NaN or infinite: if there are any, the counts above say nothing */
} ChoiceScore;

/* Of all items the share of n_right, one of the score's counts; NaN where there is no score. */
static inline double choices_share(const ChoiceScore *score, int n_right) {
    return score->n_lost ? NAN : (double)n_right / score->n_items;
}

/* means (n_rows) as choices_mean_loss has them; chosen (n_items) = the ending of the smallest mean, or NULL. Of equal ones
 * the first; one that is no number is never chosen. */
ChoiceScore choices_score(const Choices *choices, const double *means, unsigned char *chosen);
