/* --profile: some seconds of a run's own steps, timed and noted op by op; nothing of them is kept. */
#pragma once
#include "profile.h"
#include "training.h"

/* Prints the table to out. */
bool profile_run(FILE *out, Training *t, Error *err);
