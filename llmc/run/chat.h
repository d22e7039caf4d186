/* A chat on the terminal with a base model, which has learned no turns: it goes on with the text so far, in which each
 * line that is typed stands as it is. */
#pragma once
#include "console.h"
#include "llmc/model/sampler.h"
#include "setup.h"

/* Reads lines from stdin until it ends (ctrl-D); the answers go to the console. SIGINT ends an answer, not the program. */
bool chat(Run *run, Console *console, SampleOptions options, Error *err);
