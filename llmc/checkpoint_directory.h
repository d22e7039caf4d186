/* Names of checkpoints in the run's folder; shared by the saving and the loading side. */
#pragma once
#include "files.h"

/* "OUT/step_00000200"; with a prefix "OUT/PREFIXstep_00000200-PID". */
bool checkpoint_name(char *path, const char *out, const char *prefix, int64_t step, Error *err);
/* Steps of all OUT/step_*, the newest first; malloc'ed. */
bool checkpoint_steps(const char *out, int64_t **steps, int *n, Error *err);
/* Puts back a checkpoint that a killed save had moved aside, or removes it where its successor stands. */
void checkpoint_recover(const char *out);
