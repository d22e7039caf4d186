/* A thread in each rank that notices when another is gone: dead, stopped, or ended with an error; and on rank 0, when all
 * are there and none gets anything done, because a GPU hangs. Within watchdog_seconds_silent plus two or so it ends this
 * process, whatever the main thread waits for: exit 1, or the error's code. Rank 0 prints one line that names the rank,
 * its host, the step and what it was doing; where rank 0 is the one that is gone, the lowest other rank of each host does. */
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

/* How long a rank may say nothing: 8, which is less than it takes to lose patience and more than a busy host needs. Tests
 * have a shorter time. */
extern double watchdog_seconds_silent;
/* How long no rank may get anything done, behind the first step and before the end: this, 60, and ten times the longest
 * step; what disks and rank 0's terminal take does not count. LLMC_STUCK_SECONDS sets it. */
extern double watchdog_seconds_stuck;

/* From here to watchdog_stop() die() is watchdog_die(). Does nothing where a process is alone. */
bool watchdog_start(Rendezvous *r, Error *err);
/* What this rank is doing: called by the main thread at each change; a store, no lock. */
void watchdog_set(WatchPhase phase, int64_t step);
/* This rank has got a step, a batch of a validation or a token done: called by the main thread; an addition, no lock. */
void watchdog_progress(void);
/* Around what the main thread waits for this rank's disk for, however long that takes: a store, no lock. */
void watchdog_waits_for_disk(bool waits);
/* Around a checkpoint that a thread of rank 0 writes: another rank's failure waits for its end, a minute at most; a rank that is
 * gone does not. */
void watchdog_saves(bool saves);
/* What a line about a lost run ends with: the newest whole checkpoint, in `out`, kept by the caller, is of this step, or
 * there is none: -1. Rank 0, which saves, tells the other ranks at once. */
void watchdog_set_saved(const char *out, int64_t step);
/* This rank's own failure, before it ends: rank 0 prints it for all, once, and all end with its exit code; a failure that
 * all have, in rank 0's words. Without a watchdog: prints and exits as die() does. */
_Noreturn void watchdog_die(const Error *err);
/* The main thread lost a connection to another rank: the watchdog has the time that it needs to say why and end the
 * process; else `what` is the line. */
_Noreturn void watchdog_lost(const char *what);
/* All ranks agree that the run is over. Returns on rank 0 at once, on the others once rank 0 is here, too: it may still save
 * or sample, and they look after it meanwhile. */
void watchdog_stop(void);
