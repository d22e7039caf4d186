/* Parts of a test beside each other: each is a process forked from this one, whose counts are added to this one's. For
 * cases that wait more than they compute, and for the ranks of a run. */
#pragma once
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

enum { BESIDE_MAX = 64 };

typedef struct BesideCounts {
    bool whole; /* the part came to its end */
    int passed, failed, skipped;
} BesideCounts;

static struct {
    pid_t pids[BESIDE_MAX];
    BesideCounts *counts; /* memory that all parts share */
    int n;                /* parts started since the last wait */
} beside;

/* Starts a part: BESIDE(test_thing(3)). Whatever it changes in memory stays in it. */
#define BESIDE(call)                                                                                         \
    do {                                                                                                     \
        BesideCounts *counts_ = beside_begins();                                                             \
        if (counts_) call, beside_ends(counts_);                                                             \
    } while (0)

/* Where the new process puts its counts; NULL in the one that starts it. */
static BesideCounts *beside_begins(void) {
    const int i = beside.n;
    if (i == 0)
        beside.counts = mmap(NULL, BESIDE_MAX * sizeof *beside.counts, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (beside.counts == MAP_FAILED || i == BESIDE_MAX) abort();
    fflush(NULL);
    beside.pids[i] = fork();
    beside.n = beside.pids[i] == 0 ? 0 : i + 1;
    if (beside.n > 0) return NULL;
    check_passed = check_failed = check_skipped = 0;
    return &beside.counts[i];
}

static void beside_ends(BesideCounts *counts) {
    fflush(NULL);
    *counts = (BesideCounts){true, check_passed, check_failed, check_skipped};
    _exit(0);
}

/* Waits for all parts. statuses: how each ended, as waitpid says; NULL: all must come to their end. */
static void beside_wait(int *statuses) {
    for (int i = 0; i < beside.n; i++) {
        const BesideCounts *counts = &beside.counts[i];
        int status = -1;
        waitpid(beside.pids[i], &status, 0);
        if (statuses)
            statuses[i] = status;
        else
            REQUIRE(counts->whole, "part %d of %d ended with status %#x", i, beside.n, (unsigned)status);
        check_passed += counts->passed, check_failed += counts->failed, check_skipped += counts->skipped;
    }
    munmap(beside.counts, BESIDE_MAX * sizeof *beside.counts);
    beside.n = 0;
}
