/* --hellaswag: which ending of each item the model gives the smallest loss. */
#pragma once
#include "llmc/data/choices.h"
#include "training.h"

/* Ranks take batches in turn; each loss is one rank's alone, so the sums over ranks are exact, and the score is the same
 * on any number of them. chosen (n_items), or NULL: choices_score. Where training_stops() comes true meanwhile, it ends
 * without a score. */
bool training_score(Training *t, ChoiceScore *score, unsigned char *chosen, Error *err);
