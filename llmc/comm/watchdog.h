/* A thread in each rank that notices when another is gone: dead, stopped, or ended with an error. It ends this process
 * within SECONDS_SILENT plus a few, exit 1; rank 0 prints one line that names the rank, its host, the step and what it
 * was doing. */
#pragma once
#include "rendezvous.h"

typedef enum {
    PHASE_START,
    PHASE_STEP,
    PHASE_VALIDATION,
    PHASE_SAMPLE,
    PHASE_SAVE,
    PHASE_END, /* done: a closed connection is no fault */
    N_PHASES
} WatchPhase;

enum { WATCHDOG_SECONDS_SILENT = 8 };

/* `what_stands`: text for the end of the line ("the newest checkpoint is step 120 in out"), kept by the caller, may
 * change; NULL: none. */
bool watchdog_start(Rendezvous *r, Error *err);
/* What this rank is doing: called by the main thread at each change; a store, no lock. */
void watchdog_set(WatchPhase phase, int64_t step);
/* What a line about a lost run ends with: "the newest whole checkpoint is of step 120, in out". */
void watchdog_set_stands(const char *text);
/* This rank's own failure, before it ends: rank 0 prints it for all, once, and all end with `exit_code`. Does not
 * return. Without a watchdog: prints and exits as die() does. */
_Noreturn void watchdog_die(const Error *err);
/* All ranks agree that the run is over. */
void watchdog_stop(void);
