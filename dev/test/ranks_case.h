/* Runs a function in n forked processes that are ranks of one run, on this host. The parent has touched neither a card nor
 * OpenMP before: both do not survive a fork. */
#pragma once
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "llmc/comm/rendezvous.h"
#include "llmc/comm/socket.h"

enum { MOST_RANKS = 8, RANKS_PATIENCE = 120 /* seconds that a rank may take, should it hang */ };

typedef void (*RankBody)(Rendezvous *r, const void *context);

static void ranks_child_(int rank, int n, int listening, int port, RankBody body, const void *context,
                         int (*counts)[3]) {
    Place place = {
        .ranks = {rank, n},
          .local_rank = rank, .n_local = n, .port = port, .listening = -1
    };
    Rendezvous r;
    Error err = {0};
    bool known;
    alarm(RANKS_PATIENCE);
    snprintf(place.address, sizeof place.address, "127.0.0.1");
    if (rank == 0) place.listening = listening;
    if (rank != 0) close(listening);
    check_passed = check_failed = check_skipped = 0;
    if (REQUIRE(rendezvous_open(&r, &place, "", 20, &known, &err), "%s", err.text)) {
        body(&r, context);
        rendezvous_close(&r);
    }
    counts[rank][0] = check_passed, counts[rank][1] = check_failed, counts[rank][2] = check_skipped;
    fflush(stdout);
    _exit(0);
}

/* The ranks' checks count as the caller's. statuses (n): how each ended, as waitpid says; NULL: all must end with 0. */
static void run_ranks(int n, RankBody body, const void *context, int *statuses) {
    Error err = {0};
    int port = 0, children[MOST_RANKS];
    const int listening = socket_listen("127.0.0.1", &port, &err);
    int(*counts)[3] =
        mmap(NULL, sizeof(int[MOST_RANKS][3]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!REQUIRE(listening >= 0 && counts != MAP_FAILED, "%s", err.text)) return;
    fflush(stdout);
    for (int rank = 0; rank < n; rank++)
        if ((children[rank] = fork()) == 0) ranks_child_(rank, n, listening, port, body, context, counts);
    close(listening);
    for (int rank = 0; rank < n; rank++) {
        int status = -1;
        waitpid(children[rank], &status, 0);
        if (statuses)
            statuses[rank] = status;
        else
            REQUIRE(status == 0, "rank %d of %d ended with status %x", rank, n, status);
        check_passed += counts[rank][0], check_failed += counts[rank][1], check_skipped += counts[rank][2];
    }
    munmap(counts, sizeof(int[MOST_RANKS][3]));
}
