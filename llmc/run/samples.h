/* Samples for a reader: while a model trains, of a trained one alone, and as a chat. */
#pragma once
#include "llmc/model/sampler.h"
#include "training.h"

/* Draws --samples of the weights as they are, onto the console and into the log. */
bool samples_in_training(Training *t, int64_t step, Error *err);
/* Of --model's weights, of that step, for text alone: the texts on stdout, what they took on stderr. */
bool samples_alone(Run *run, int64_t step, Error *err);
/* What sampling took, on stderr. */
void samples_print_rates(const Ops *ops, const SampleRates *rates);
/* chat.c: reads lines from stdin until it ends (ctrl-D); the answers go to the console. SIGINT ends an answer, not the
 * program. */
bool chat(Run *run, Console *console, SampleOptions options, Error *err);
