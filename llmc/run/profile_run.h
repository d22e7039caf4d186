/* --profile: some seconds of a run's own steps, timed and noted op by op; nothing of them is kept. */
#pragma once
#include <stdio.h>
#include "llmc/model/gpt2.h"
#include "profile.h"

/* Queues training step `step` (from 1) up to gpt2_queue_stats in slot step % READBACK_SLOTS. */
typedef bool (*QueueStep)(void *user, int64_t step, Error *err);

/* Prints the table to out. */
bool profile_run(FILE *out, GPT2 *model, QueueStep queue_step, void *user, Error *err);
